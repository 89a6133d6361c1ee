//! Group commit: appends that wait at the same time share a transaction.
//!
//! ```text
//! append ──> queue ──(all that wait)──> one of few committers ──> one transaction ──> replies
//!                                            '── failed a check ──> alone ──'
//! ```
//!
//! No append waits for others: a free committer takes what is queued, even a single batch. While all
//! committers are busy the queue grows, and with it the next group. Each batch gets its own result: one that
//! is refused or breaks the transaction is appended alone, and the others without it.
//!
//! The queue is limited in number, bytes and time, and so are the resources of its batches: those appended
//! alone share a few connections, and a committer whose group takes too long gives up its place to another.

use std::{
    collections::{HashSet, VecDeque},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use super::{Options, append, fault::Fault, hints::Hints, pool::Pool, stats::Counters, turns::Purpose};
use crate::{AppendError, Batch, Hint, WriteError, vitals::Vitals, with_timeout};

/// Concurrent groups: while one waits for the disk, another is prepared. More would only make groups smaller.
const COMMITTERS: usize = 3;
/// Maximum batches per group. Larger groups gain nothing, and their first batch would wait for the last.
const MOST: usize = 128;
/// Approximate maximum bytes per group; a single batch may be larger.
const MOST_BYTES: usize = 4 << 20;
/// Approximate maximum bytes of all unanswered appends, so that a burst of large ones is refused before it
/// exhausts memory; a single append may be larger.
const ROOM: usize = 64 << 20;
/// How long an append is retried while other transactions hold its rows. Twice the server's idle timeout for
/// transactions, so that the locks of a stopped process are released in time.
const HELD: Duration = Duration::from_secs(20);

pub(super) struct Groups {
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    vitals: Vitals,
    hints: Option<Hints>,
    tasks: TaskTracker,
    queue: Mutex<Queue>,
    most_committers: usize,
    most_waiting: usize,
    /// One permit per kilobyte of unanswered appends.
    room: Arc<Semaphore>,
    /// One permit per batch that is appended alone or waits to be.
    alone: Semaphore,
    /// One permit per committer that gave up its place before its group was settled.
    slow: Semaphore,
    timeout: Duration,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    next_ticket: u64,
    n_committers: usize,
}

/// A queued batch and the channel for its result.
struct Waiting {
    ticket: u64,
    batch: Batch,
    answer: oneshot::Sender<Result<(), AppendError>>,
    _room: OwnedSemaphorePermit,
}

impl Queue {
    /// Takes a group from the front of the queue, as long as no two batches name the same run, record or
    /// child. Empty if nothing is queued.
    fn take(&mut self) -> Vec<Waiting> {
        let mut names = HashSet::new();
        let (mut n, mut bytes) = (0, 0);
        for Waiting { batch, .. } in self.waiting.iter().take(MOST) {
            bytes += batch.weight();
            let record = batch.idempotency.as_ref().map(|record| record.key.key.as_str());
            let children = batch.children.iter().map(|child| child.run.as_str());
            let told = batch.push.as_ref().map(|push| push.run.as_str());
            let told = told.filter(|told| *told != batch.run.run.as_str());
            let mut all = [batch.run.run.as_str()]
                .into_iter()
                .chain(record)
                .chain(children)
                .chain(told);
            if (n > 0 && bytes > MOST_BYTES) || !all.all(|name| names.insert(name)) {
                break;
            }
            n += 1;
        }
        self.waiting.drain(..n.max(1).min(self.waiting.len())).collect()
    }
}

impl Groups {
    pub(super) fn new(
        pool: Arc<Pool>,
        counters: Arc<Counters>,
        hints: Option<Hints>,
        tasks: TaskTracker,
        options: &Options,
    ) -> Arc<Self> {
        Arc::new(Self {
            pool,
            counters,
            vitals: Vitals::default(),
            hints,
            tasks,
            queue: Mutex::default(),
            // Leave connections for reads, whatever the load of writes.
            most_committers: (options.connections / 2).clamp(1, COMMITTERS),
            most_waiting: options.waiting.max(1),
            room: Arc::new(Semaphore::new(ROOM >> 10)),
            alone: Semaphore::new(options.waiting.clamp(1, Semaphore::MAX_PERMITS)),
            slow: Semaphore::new(options.share()),
            timeout: options.timeout,
        })
    }

    /// Appends a batch. Once a committer has taken it, it completes even if the caller is gone.
    pub(super) async fn append(self: &Arc<Self>, batch: Batch) -> Result<(), AppendError> {
        let (answer, mut answered) = oneshot::channel();
        let ticket = self.enqueue(batch, answer)?;
        let answered = match with_timeout(self.timeout, &mut answered).await {
            Some(answered) => answered,
            None if self.withdraw(ticket) => {
                return Err(self.refused("every connection to the database is busy"));
            }
            None => answered.await,
        };
        answered.unwrap_or_else(|_| Err(AppendError::Unknown("the append broke off".into())))
    }

    /// Checks that the last append succeeded, or failed too long ago to count.
    pub(super) fn check(&self) -> Result<(), WriteError> {
        self.vitals.check()
    }

    fn refused(&self, why: &str) -> AppendError {
        self.counters.refused();
        AppendError::Unavailable(why.into())
    }

    fn enqueue(
        self: &Arc<Self>,
        batch: Batch,
        answer: oneshot::Sender<Result<(), AppendError>>,
    ) -> Result<u64, AppendError> {
        let kilobytes = u32::try_from(batch.weight().min(ROOM).div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(kilobytes) else {
            return Err(self.refused("too much waits for the database"));
        };
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= self.most_waiting {
            return Err(self.refused("too many requests wait for the database"));
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiting.push_back(Waiting {
            ticket,
            batch,
            answer,
            _room: room,
        });
        if queue.n_committers < self.most_committers {
            queue.n_committers += 1;
            self.tasks.spawn(Arc::clone(self).commit());
        }
        Ok(ticket)
    }

    /// Removes a batch from the queue unless a committer has taken it.
    fn withdraw(&self, ticket: u64) -> bool {
        let mut queue = self.queue.lock();
        match queue.waiting.iter().position(|waiting| waiting.ticket == ticket) {
            Some(place) => queue.waiting.remove(place).is_some(),
            None => false,
        }
    }

    /// Commits groups until the queue is empty.
    async fn commit(self: Arc<Self>) {
        let post = Post(&self);
        loop {
            let group = self.queue.lock().take();
            if group.is_empty() {
                return;
            }
            let mut settling = pin!(self.settle(group));
            // Half of the timeout of queued batches. A group this slow may have a silent connection; others
            // may not.
            if timeout(self.timeout / 2, &mut settling).await.is_ok() {
                continue;
            }
            tokio::select! {
                () = &mut settling => {}
                // Another slow group is done.
                Ok(_slow) = self.slow.acquire() => {
                    drop(post);
                    return settling.await;
                }
            }
        }
    }

    /// Appends a group and answers each of its batches.
    async fn settle(self: &Arc<Self>, mut group: Vec<Waiting>) {
        let until = self.pool.deadline();
        group.sort_unstable_by(|one, other| one.batch.run.cmp(&other.batch.run));
        while !group.is_empty() {
            let client = match self.pool.get(Purpose::Work, until).await {
                Ok(client) => client,
                Err(fault) => return self.answer_all(group, &fault),
            };
            let batches: Vec<_> = group.iter().map(|waiting| &waiting.batch).collect();
            match append::together(&self.pool, client, &batches, until).await {
                Ok(refused) if refused.is_empty() => {
                    self.counters.committed(group.len());
                    for waiting in group {
                        self.answer(waiting, Ok(()));
                    }
                    return;
                }
                Ok(refused) => {
                    for place in refused.into_iter().rev() {
                        self.append_alone(group.remove(place), until);
                    }
                }
                Err(fault) => {
                    // The server refused, or may have committed. Locked rows and lost connections say nothing
                    // about the next append.
                    if let Fault::Refused(why) | Fault::InDoubt(why) = &fault {
                        self.vitals.failed(why);
                    }
                    let is_verdict = group.len() == 1 && !fault.is_passing();
                    if is_verdict || matches!(fault, Fault::InDoubt(_)) || Instant::now() >= until {
                        return self.answer_all(group, &fault);
                    }
                    self.counters.retried();
                    for waiting in group {
                        self.append_alone(waiting, until);
                    }
                    return;
                }
            }
        }
    }

    /// Appends a batch alone, on its own task, because it may have to wait longer than others.
    fn append_alone(self: &Arc<Self>, waiting: Waiting, until: Instant) {
        let groups = Arc::clone(self);
        let until = until.min(Instant::now() + HELD);
        self.tasks.spawn(async move {
            let Ok(_alone) = groups.alone.try_acquire() else {
                let refused = groups.refused("too many appends wait for rows that others hold");
                return groups.answer(waiting, Err(refused));
            };
            let done = append::alone(&groups.pool, &waiting.batch, until, || groups.counters.retried()).await;
            if done.is_ok() {
                groups.counters.committed(1);
            }
            groups.answer(waiting, done);
        });
    }

    fn answer_all(&self, group: Vec<Waiting>, fault: &Fault) {
        for waiting in group {
            self.answer(waiting, Err(fault.clone().into()));
        }
    }

    fn answer(&self, waiting: Waiting, done: Result<(), AppendError>) {
        let Waiting {
            batch, answer, _room, ..
        } = waiting;
        self.counters.appended(&done);
        if matches!(done, Ok(()) | Err(AppendError::Corrupt(_))) {
            self.vitals.note(batch.guard, &done);
        }
        if let (Ok(()), Some(hints)) = (&done, &self.hints) {
            hints.tell(Hint::Run(batch.run));
        }
        // The caller may be gone.
        drop(answer.send(done));
    }
}

/// A committer's place. When dropped, even by a panic, it passes to a new committer if batches are queued.
struct Post<'g>(&'g Arc<Groups>);

impl Drop for Post<'_> {
    fn drop(&mut self) {
        let Self(groups) = self;
        let mut queue = groups.queue.lock();
        queue.n_committers -= 1;
        if queue.waiting.is_empty() {
            return;
        }
        // Without a runtime no task can run, and nobody waits.
        if let Ok(runtime) = Handle::try_current() {
            queue.n_committers += 1;
            groups.tasks.spawn_on(Arc::clone(groups).commit(), &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{ContentHash, PrincipalId, RunId, RunKey, TenantId, Timestamp, WorkflowId};

    use super::*;
    use crate::{Guard, Summary, postgres::open};

    fn batch() -> Batch {
        let now = Timestamp::from_millis(1);
        let summary = Summary::new(
            WorkflowId::parse("greet").expect("an id"),
            ContentHash::of(b"greet"),
            PrincipalId::parse("ada").expect("a principal"),
            now,
        );
        let run = RunKey::new(
            TenantId::parse("acme").expect("a tenant"),
            RunId::parse(&format!("run_{:032}", 1)).expect("a run id"),
        );
        Batch::new(run, Guard::Create, Vec::new(), summary)
    }

    #[tokio::test]
    async fn an_aborted_committer_is_replaced() {
        let mut options = Options::default();
        let connector = open::parse("postgres://nobody@localhost/none", &mut options).expect("a url");
        let counters = Arc::new(Counters::default());
        let pool = Pool::new(connector, &options, Arc::clone(&counters), TaskTracker::new());
        let pool = Arc::new(pool.expect("a pool"));
        pool.close();
        let groups = Groups::new(pool, counters, None, TaskTracker::new(), &options);
        groups.queue.lock().n_committers = groups.most_committers;
        let waiting = tokio::spawn({
            let groups = Arc::clone(&groups);
            async move { groups.append(batch()).await }
        });
        while groups.queue.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let broken = tokio::spawn({
            let groups = Arc::clone(&groups);
            async move {
                let _post = Post(&groups);
                panic!("as a committer that meets what nobody thought of");
            }
        });
        broken.await.expect_err("it broke off");
        let answer = waiting.await.expect("no panic").expect_err("closed");
        assert_eq!(
            answer.to_string(),
            AppendError::Unavailable("the store is closed".into()).to_string()
        );
        assert_eq!(groups.queue.lock().n_committers, groups.most_committers - 1);
    }
}
