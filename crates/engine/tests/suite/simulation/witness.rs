//! Sees every write of a world at the moment it happens, and checks it against the invariants.
//!
//! The witness keeps its own fold of every log, its own list of outstanding work, and the holder of each
//! lease. It learns of them from batches alone, so it judges what engine and kernel wrote to the store, not
//! what they intended. A violation is found at the commit that causes it, and reported with the log of the
//! run.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use wopr_core::{
    ContentHash, DialectId, Event, KernelEvent, NodeId, NodeTypes, Plan, Recorded, Run, RunId, RunKey,
    RunStatus, Seq, StepId, TenantId, Timer, WorkflowId, format,
    invariant::{self, ChildStatus, LogChecker, OutstandingWork},
};
use wopr_engine::{Answering, View};
use wopr_store::{
    Batch, Guard, Hold, IdempotencyKey, IdempotencyRecord, Leased, Moved, Queue, Removal, StoredEvent,
    WorkKey, WorkRow, WorkState, WorkflowRow,
};
use wopr_testkit::{line, note_handoff};

use super::{fate::Fate, questions::Questions};

type Kept = Result<(), String>;

/// The steps that these events complete.
fn completed_steps(events: &[Recorded]) -> Vec<&StepId> {
    let completed = events.iter().filter_map(|recorded| match &recorded.event {
        Event::Kernel(KernelEvent::NodeCompleted { step, .. }) => Some(step),
        Event::Kernel(_) | Event::Dialect(_) => None,
    });
    completed.collect()
}

#[derive(Debug)]
pub(crate) struct Witness {
    fate: Arc<Fate>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    plans: HashMap<(WorkflowId, ContentHash), Arc<Plan>>,
    runs: BTreeMap<RunKey, Known>,
    /// Messages sent and not consumed: target, source and the source's event.
    mail: HashSet<(RunKey, RunId, Seq)>,
    /// Messages whose run had nothing to say to them, with the length of its log at that time.
    unheeded: HashMap<(RunKey, RunId, Seq), Seq>,
    records: HashMap<IdempotencyKey, IdempotencyRecord>,
    invocations: HashMap<String, Invocation>,
    /// What peers do that have got an invocation.
    peers: HashMap<String, Peer>,
    n_recalled: u64,
    /// The handles by which peers have accepted each invocation.
    accepted: HashMap<String, Vec<serde_json::Value>>,
    questions: Questions,
    n_parked: u64,
    n_told: u64,
    /// Attempts begun, each with its invocation and its process.
    calls: Vec<(String, u64)>,
    /// Commits that carry a client's mark.
    marks: HashMap<String, u32>,
}

/// What the peer of an invocation does. It recognizes the message if it gets it again.
#[derive(Debug)]
enum Peer {
    /// It is at it, for this step of a run.
    Works(RunKey, StepId),
    /// It has ended the call, and would begin again for one that waits.
    Ended,
    /// It was told to stop, or it was asked and had nothing. A message that comes after that is too late: it was sent
    /// by a process that had stood still for longer than its lease.
    Stopped,
}

#[derive(Debug)]
struct Known {
    plan: Arc<Plan>,
    log: Vec<Recorded>,
    /// How many events a fork has from its source, with those that still follow from them in the same commit.
    n_copied: usize,
    run: Run,
    checker: LogChecker,
    outstanding: OutstandingWork,
    parent: Option<RunId>,
    /// Rows of cancelled calls whose peers were not told yet.
    untold: HashSet<WorkKey>,
    /// Rows of recalls.
    recalls: HashSet<WorkKey>,
    /// Rows of calls that may have to be recalled.
    kept: HashSet<WorkKey>,
    /// Rows of answers whose peers were not told yet.
    unanswered: HashMap<WorkKey, Unanswered>,
    /// The run ended, and processes died over one of those rows. Nobody can resume the run, so the row stays
    /// until the run is removed.
    has_given_up: bool,
    /// The process that holds the newest lease of each effect.
    holders: HashMap<WorkKey, u64>,
}

/// One logical call to the outside: how often it was leased, and how often attempted.
#[derive(Debug, Default)]
struct Invocation {
    granted: usize,
    begun: usize,
}

/// The fields of a stored effect that the witness needs.
#[derive(Debug, Deserialize)]
struct Stored {
    step: StepId,
    attempt: u32,
    idempotency_key: String,
    handle: Option<serde_json::Value>,
    /// The fence of the last lease, if nobody has begun the attempt.
    not_begun: Option<u64>,
}

/// The fields of a stored cancellation that the witness needs.
#[derive(Debug, Deserialize)]
struct Cancelled {
    idempotency_key: String,
    handle: serde_json::Value,
}

/// The fields of a stored answer that the witness needs.
#[derive(Debug, Clone, Deserialize)]
struct Unanswered {
    step: StepId,
    attempt: u32,
    idempotency_key: String,
    content: Content,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Content {
    Answer {
        interrupt: String,
        value: serde_json::Value,
    },
}

impl Unanswered {
    fn answer(&self) -> (&str, &serde_json::Value) {
        let Content::Answer { interrupt, value } = &self.content;
        (interrupt, value)
    }
}

impl Witness {
    pub(crate) fn new(fate: Arc<Fate>) -> Self {
        Self {
            fate,
            seen: Mutex::default(),
        }
    }

    /// A workflow is about to be stored.
    pub(crate) fn registered(&self, row: &WorkflowRow) {
        let place = (row.id.clone(), row.version.clone());
        self.seen.lock().plans.entry(place).or_insert_with(|| {
            let dialect = DialectId::parse(&row.dialect).expect("registered here");
            let document = serde_json::from_slice(&row.body).expect("a definition is JSON");
            let node_types = NodeTypes { conformance: true };
            let plan = Plan::compile(dialect, document, node_types);
            Arc::new(plan.expect("registered"))
        });
    }

    /// A batch was appended.
    pub(crate) fn commit(&self, batch: &Batch, by: u64) {
        let mut seen = self.seen.lock();
        let key = batch.run.clone();
        if let Err(what) = seen.commit(batch) {
            let known = seen.runs.get(&key);
            let log: Vec<_> = known.into_iter().flat_map(|known| lines(&known.log)).collect();
            self.fate
                .breaks(format!("{key}, by p{by}: {what}\n  {}", log.join("\n  ")));
        }
    }

    /// An effect was leased.
    pub(crate) fn leased(&self, effect: &Leased, to: u64) {
        let mut seen = self.seen.lock();
        self.fate.holds(seen.leased(effect, to));
    }

    /// An attempt begins, or a look at a call that was accepted. Returns its number.
    pub(crate) fn begun(&self, idempotency_key: &str, handle: Option<&serde_json::Value>, by: u64) -> usize {
        let mut seen = self.seen.lock();
        self.fate.holds(seen.begin(idempotency_key, by));
        if let Some(handle) = handle {
            self.fate.holds(seen.knows(idempotency_key, handle));
        }
        seen.calls.len() - 1
    }

    /// A peer is told that nobody waits for its call.
    pub(crate) fn told(&self, idempotency_key: &str, handle: &serde_json::Value) {
        let mut seen = self.seen.lock();
        seen.n_told += 1;
        self.fate.holds(seen.knows(idempotency_key, handle));
        seen.peers.insert(idempotency_key.to_owned(), Peer::Stopped);
    }

    /// A peer gets the message of a call.
    pub(crate) fn takes(&self, run: &RunKey, step: &StepId, attempt: u32, idempotency_key: &str) {
        let mut seen = self.seen.lock();
        let known = seen.runs.get(run);
        let is_awaited = known.is_some_and(|known| known.outstanding.has_effect(step, attempt));
        match seen.peers.get(idempotency_key) {
            Some(Peer::Stopped | Peer::Works(..)) => {}
            // From a process that had stood still while another one got the outcome. No host can take back what such a
            // process sends; the peer knows the message and has its answer.
            Some(Peer::Ended) if !is_awaited => {}
            Some(Peer::Ended) | None => {
                let works = Peer::Works(run.clone(), step.clone());
                seen.peers.insert(idempotency_key.to_owned(), works);
            }
        }
    }

    /// A peer has ended a call.
    pub(crate) fn ends(&self, idempotency_key: &str) {
        let mut seen = self.seen.lock();
        if let Some(peer @ Peer::Works(..)) = seen.peers.get_mut(idempotency_key) {
            *peer = Peer::Ended;
        }
    }

    /// A peer is asked whether it works at a call.
    pub(crate) fn recalls(&self, idempotency_key: &str) -> bool {
        let mut seen = self.seen.lock();
        let works = matches!(seen.peers.get(idempotency_key), Some(Peer::Works(..)));
        match works {
            true => seen.n_recalled += 1,
            false => _ = seen.peers.insert(idempotency_key.to_owned(), Peer::Stopped),
        }
        works
    }

    /// How often a call was found at a peer that its run had dropped.
    pub(crate) fn n_recalled(&self) -> u64 {
        self.seen.lock().n_recalled
    }

    /// What the peer of a call asks.
    pub(crate) fn open_question(&self, idempotency_key: &str) -> Option<u64> {
        self.seen.lock().questions.open(idempotency_key)
    }

    /// The peer of a call asks its next question.
    pub(crate) fn asks(&self, idempotency_key: &str) -> u64 {
        self.seen.lock().questions.ask(idempotency_key)
    }

    /// The peer of a call goes on without an answer.
    pub(crate) fn goes_on(&self, idempotency_key: &str) {
        self.seen.lock().questions.go_on(idempotency_key);
    }

    /// A peer is told an answer. Returns `true` if it still asks.
    pub(crate) fn answers(&self, answering: &Answering) -> bool {
        let mut seen = self.seen.lock();
        let told = seen
            .questions
            .tell(call_of(&answering.idempotency_key), answering);
        told.unwrap_or_else(|violation| {
            self.fate.breaks(violation);
            false
        })
    }

    /// How many questions of peers were asked in runs.
    pub(crate) fn n_asked(&self) -> u64 {
        self.seen.lock().questions.n_asked()
    }

    /// How many answers reached a peer that still asked.
    pub(crate) fn n_answered(&self) -> u64 {
        self.seen.lock().questions.n_answered()
    }

    /// How often an accepted call was parked.
    pub(crate) fn n_parked(&self) -> u64 {
        self.seen.lock().n_parked
    }

    /// How often a peer was told of a cancelled call.
    pub(crate) fn n_told(&self) -> u64 {
        self.seen.lock().n_told
    }

    /// A caller was shown a run.
    pub(crate) fn shown(&self, view: &View) {
        let seen = self.seen.lock();
        let Some(known) = seen.runs.get(&view.key) else {
            return self
                .fate
                .breaks(format!("{}: shown before it was created", view.key));
        };
        if let Err(violation) = invariant::check_answer(&known.log, &known.plan, &view.run) {
            self.fate.breaks(format!("{}: {violation}", view.key));
        }
    }

    /// The number of commits that carry a client's mark.
    pub(crate) fn n_marked(&self, mark: &str) -> u32 {
        self.seen.lock().marks.get(mark).copied().unwrap_or(0)
    }

    pub(crate) fn record(&self, key: &IdempotencyKey) -> Option<IdempotencyRecord> {
        self.seen.lock().records.get(key).cloned()
    }

    /// The log of a run, which may be long.
    pub(crate) fn log(&self, key: &RunKey) -> Option<Vec<Recorded>> {
        let seen = self.seen.lock();
        seen.runs.get(key).map(|known| known.log.clone())
    }

    /// The number of events of a run.
    pub(crate) fn head(&self, key: &RunKey) -> u64 {
        let seen = self.seen.lock();
        seen.runs.get(key).map_or(0, |known| known.log.len() as u64)
    }

    /// Returns `true` if a run has ended and nothing is left to do for it.
    pub(crate) fn is_done(&self, key: &RunKey) -> bool {
        let seen = self.seen.lock();
        seen.runs.get(key).is_some_and(|known| {
            let is_left_alone = known.has_given_up || !seen.works_for(key);
            known.checker.is_over() && known.is_at_rest() && is_left_alone
        })
    }

    /// How many events of all runs there are, and how many of them a condition selects.
    pub(crate) fn count(&self, selects: impl Fn(&Recorded) -> bool) -> (u64, u64) {
        let seen = self.seen.lock();
        let events = seen.runs.values().flat_map(|known| &known.log);
        events.fold((0, 0), |(all, selected), event| {
            (all + 1, selected + u64::from(selects(event)))
        })
    }

    pub(crate) fn parent(&self, key: &RunKey) -> Option<RunKey> {
        let seen = self.seen.lock();
        let parent = seen.runs.get(key)?.parent.clone()?;
        Some(key.sibling(parent))
    }

    /// Runs are about to be marked as removed.
    pub(crate) fn removed(&self, tenant: &TenantId, removals: &[Removal]) {
        let seen = self.seen.lock();
        for removal in removals {
            let key = RunKey::new(tenant.clone(), removal.run.clone());
            let known = seen.runs.get(&key);
            let has_ended = known.is_some_and(|known| known.checker.is_over() && known.is_at_rest());
            let is_forgotten = seen.works_for(&key) && !known.is_some_and(|known| known.has_given_up);
            if !has_ended || is_forgotten {
                self.fate.breaks(format!("{key} is taken out and has not ended"));
            }
        }
    }

    /// All runs, including children.
    pub(crate) fn keys(&self) -> Vec<RunKey> {
        self.seen.lock().runs.keys().cloned().collect()
    }

    /// Returns `true` if every run has consumed its messages.
    pub(crate) fn all_is_heard(&self) -> bool {
        let seen = self.seen.lock();
        // A run that has ended takes no more messages. If its inbox was quarantined, the rows stay until the run is removed.
        let is_over = |key| seen.runs.get(key).is_some_and(|known| known.checker.is_over());
        seen.mail.iter().all(|(target, _, _)| is_over(target))
    }

    pub(crate) fn n_calls(&self) -> usize {
        self.seen.lock().calls.len()
    }
}

impl Seen {
    fn commit(&mut self, batch: &Batch) -> Kept {
        let key = batch.run.clone();
        self.check_guard(batch)?;
        if let Some(record) = &batch.idempotency
            && self.records.insert(record.key.clone(), record.clone()).is_some()
        {
            return Err("a request took effect twice".to_owned());
        }
        if matches!(batch.guard, Guard::Create) {
            let plan = self.plan(&batch.summary.workflow, &batch.summary.version)?;
            self.runs.insert(key.clone(), Known::new(plan, None));
        }
        for child in &batch.children {
            let plan = self.plan(&child.summary.workflow, &child.summary.version)?;
            let mut known = Known::new(plan, Some(key.run.clone()));
            // One that was decided with its parent has its whole log.
            known.fold(&child.events, child.summary.status)?;
            self.runs.insert(key.sibling(child.run.clone()), known);
        }
        for (source, seq) in &batch.inbox_consumed {
            let place = (key.clone(), source.clone(), *seq);
            let was_told = self.mail.remove(&place);
            if was_told && batch.events.is_empty() {
                self.unheeded.insert(place, batch.expected());
            } else if !was_told && !batch.events.is_empty() {
                // Two processes may consume a message at once if it changes nothing. The events are then about another
                // message, and the log is the one that had nothing to say to this one.
                if self.unheeded.get(&place) != Some(&batch.expected()) {
                    return Err(format!("it hears event {seq} of {source}, which nobody told it"));
                }
            }
        }
        for row in &batch.inbox_sent {
            let place = (
                key.sibling(row.target.clone()),
                row.source.clone(),
                row.source_seq,
            );
            if !self.mail.insert(place) {
                return Err(format!(
                    "event {} tells {} two things",
                    row.source_seq, row.target
                ));
            }
        }
        let known = self.runs.get_mut(&key).ok_or("appended to and not created")?;
        let n_before = known.log.len();
        let marks = known.append(batch)?;
        let completed = completed_steps(&known.log[n_before..]);
        let has_answered = |peer: &&mut Peer| matches!(peer, Peer::Works(run, step) if *run == key && completed.contains(&step));
        if !completed.is_empty() {
            // It has given the answer. What it does since a process that had stood still sent the message again, it ends by
            // itself.
            for peer in self.peers.values_mut().filter(has_answered) {
                *peer = Peer::Ended;
            }
        }
        known.has_given_up |= known.checker.is_over() && batch.hold == Some(Hold::Quarantine);
        known.settle(&key, batch, &self.calls, &self.questions)?;
        known.follow_moved(batch)?;
        known.check_answers(&key, batch, &mut self.questions)?;
        for row in batch
            .work_set
            .iter()
            .filter(|row| row.key.queue == Queue::Effects)
        {
            if is_cancel(&row.key) {
                let call: Cancelled = serde_json::from_slice(&row.body).map_err(|error| error.to_string())?;
                // One that was accepted too late is in no log.
                let handles = self.accepted.entry(call.idempotency_key).or_default();
                handles.push(call.handle);
                known.untold.insert(row.key.clone());
                continue;
            }
            if is_answer(&row.key) {
                let answer: Unanswered =
                    serde_json::from_slice(&row.body).map_err(|error| error.to_string())?;
                known.unanswered.insert(row.key.clone(), answer);
                continue;
            }
            let stored = known.enqueue(row)?;
            if stored.idempotency_key != invocation(&key, known, &stored.step) {
                return Err("an effect has another key than its execution".to_owned());
            }
            let invocation = self.invocations.entry(stored.idempotency_key).or_default();
            invocation.granted += usize::from(matches!(row.state, WorkState::Leased(..)));
        }
        let attempts = batch.work_parked.iter();
        for parked in attempts.filter(|parked| !parked.key.is_call_delivery()) {
            let body = parked
                .body
                .as_deref()
                .ok_or("a call is parked without its handle")?;
            let stored = read(body)?;
            // Parked under its newest lease, it waits for a newer one.
            let held = known
                .outstanding
                .settle(&stored.step, stored.attempt, parked.fence.0);
            held.map_err(|error| error.to_string())?;
            known
                .outstanding
                .begin(stored.step.clone(), stored.attempt, parked.fence.0);
            let handle = match (stored.handle, stored.not_begun) {
                (Some(handle), _) => handle,
                // Its holder had no room for it.
                (None, Some(fence)) if fence == parked.fence.0 => continue,
                (None, _) => return Err("a call is parked without its handle".to_owned()),
            };
            self.n_parked += 1;
            if known.handle(&stored.step, stored.attempt) != Some(&handle) {
                return Err("a call is parked under another handle than its log has".to_owned());
            }
            let handles = self.accepted.entry(stored.idempotency_key).or_default();
            handles.push(handle);
        }
        known.check_replay(batch)?;
        // What a fork waits for as long as it takes from its source is the source's own.
        if !known.run.is_catching_up() {
            invariant::check_run(&known.run, &known.plan, &known.outstanding)
                .map_err(|error| error.to_string())?;
        }
        let parent = known.parent.clone().map(|parent| key.sibling(parent));
        for mark in marks {
            *self.marks.entry(mark).or_default() += 1;
        }
        self.check_family(&key)?;
        parent.map_or(Ok(()), |parent| self.check_family(&parent))
    }

    fn plan(&self, id: &WorkflowId, version: &ContentHash) -> Result<Arc<Plan>, String> {
        let plan = self.plans.get(&(id.clone(), version.clone()));
        plan.cloned()
            .ok_or_else(|| format!("{id} {version} runs and was not registered"))
    }

    fn check_guard(&self, batch: &Batch) -> Kept {
        let head = self.runs.get(&batch.run).map(|known| known.checker.head());
        let holds = match batch.guard {
            Guard::Create => head.is_none(),
            Guard::At(seq) => head == Some(seq),
        };
        if holds {
            Ok(())
        } else {
            Err(format!("appended at {} to a log of {head:?}", batch.expected()))
        }
    }

    /// Whether a peer works at a call of a run.
    fn works_for(&self, key: &RunKey) -> bool {
        let mut peers = self.peers.values();
        peers.any(|peer| matches!(peer, Peer::Works(run, _) if run == key))
    }

    fn check_family(&self, key: &RunKey) -> Kept {
        let Some(known) = self.runs.get(key).filter(|known| !known.run.is_catching_up()) else {
            return Ok(());
        };
        let waits = |to: &RunKey, from: &RunId| self.mail.iter().any(|(at, by, _)| at == to && by == from);
        let kept = invariant::check_children(&known.run, |child| {
            let place = key.sibling(child.clone());
            let of = self.runs.get(&place)?;
            Some(ChildStatus {
                has_begun: of.run.started.is_some(),
                is_over: of.checker.is_over(),
                is_told: waits(&place, &key.run),
                has_told: waits(key, child),
            })
        });
        kept.map_err(|error| error.to_string())
    }

    fn knows(&self, idempotency_key: &str, handle: &serde_json::Value) -> Kept {
        let handles = self.accepted.get(idempotency_key);
        match handles.is_some_and(|handles| handles.contains(handle)) {
            true => Ok(()),
            false => Err(format!("no peer has accepted a call as {handle}")),
        }
    }

    fn leased(&mut self, effect: &Leased, to: u64) -> Kept {
        if is_answer(&effect.key) {
            let known = self
                .runs
                .get(&effect.run)
                .ok_or("an answer of no run is leased")?;
            return match known.unanswered.contains_key(&effect.key) {
                true => Ok(()),
                false => Err("a peer that was told its answer is told again".to_owned()),
            };
        }
        if is_cancel(&effect.key) {
            let known = self.runs.get(&effect.run).ok_or("a cancel of no run is leased")?;
            return match known.untold.contains(&effect.key) {
                true => Ok(()),
                false => Err("a peer that was told is told again".to_owned()),
            };
        }
        if is_recall(&effect.key) {
            let known = self.runs.get(&effect.run).ok_or("a recall of no run is leased")?;
            return match known.recalls.contains(&effect.key) {
                true => Ok(()),
                false => Err("a recall that is over is leased".to_owned()),
            };
        }
        let stored = read(&effect.body)?;
        let known = self
            .runs
            .get_mut(&effect.run)
            .ok_or("an effect of no run is leased")?;
        let lease = known
            .outstanding
            .lease(&stored.step, stored.attempt, effect.fence.0);
        lease.map_err(|error| format!("{}: {error}", effect.run))?;
        known.holders.insert(effect.key.clone(), to);
        let invocation = self.invocations.entry(stored.idempotency_key).or_default();
        invocation.granted += 1;
        Ok(())
    }

    fn begin(&mut self, idempotency_key: &str, by: u64) -> Kept {
        self.calls.push((idempotency_key.to_owned(), by));
        match self.invocations.get_mut(idempotency_key) {
            Some(invocation) if invocation.begun < invocation.granted => {
                invocation.begun += 1;
                Ok(())
            }
            Some(invocation) => Err(format!(
                "p{by} makes a call that was handed out {} times once more",
                invocation.granted
            )),
            None => Err(format!("p{by} makes a call before the event that asks for it")),
        }
    }
}

impl Known {
    fn new(plan: Arc<Plan>, parent: Option<RunId>) -> Self {
        Self {
            plan,
            log: Vec::new(),
            n_copied: 0,
            run: Run::default(),
            checker: LogChecker::default(),
            outstanding: OutstandingWork::default(),
            parent,
            untold: HashSet::new(),
            recalls: HashSet::new(),
            kept: HashSet::new(),
            unanswered: HashMap::new(),
            has_given_up: false,
            holders: HashMap::new(),
        }
    }

    fn is_at_rest(&self) -> bool {
        let has_told = self.untold.is_empty() && self.unanswered.is_empty() && self.recalls.is_empty();
        let has_told = has_told && self.kept.is_empty();
        self.outstanding.is_empty() && (has_told || self.has_given_up)
    }

    /// Applies the events and returns the client marks they carry.
    fn fold(&mut self, events: &[StoredEvent], status: RunStatus) -> Result<HashSet<String>, String> {
        let mut marks = HashSet::new();
        let mut copies = false;
        for stored in events {
            let recorded =
                format::decode_event(stored.seq, &stored.body).map_err(|error| error.to_string())?;
            copies |= self.run.is_catching_up();
            match copies {
                // What a client said to the source it did not say to the fork.
                true => self.n_copied = self.log.len() + 1,
                false => marks.extend(self.mark(&recorded.event)),
            }
            note_handoff(&mut self.checker, &self.plan, &recorded);
            self.checker
                .follow(&recorded)
                .map_err(|error| error.to_string())?;
            let applied = self.run.apply(&self.plan, &recorded);
            self.log.push(recorded);
            applied.map_err(|error| error.to_string())?;
        }
        if status != self.run.status {
            return Err(format!("its row says {status:?}, its log {:?}", self.run.status));
        }
        Ok(marks)
    }

    fn append(&mut self, batch: &Batch) -> Result<HashSet<String>, String> {
        let marks = self.fold(&batch.events, batch.summary.status)?;
        if let Some(snapshot) = &batch.snapshot {
            let folded =
                format::decode_run(self.plan.dialect(), &snapshot.body).map_err(|error| error.to_string())?;
            if folded != self.run || snapshot.head != self.run.head {
                return Err("its snapshot is not the fold of its log".to_owned());
            }
        }
        let is_timer = |key: &WorkKey| key.queue == Queue::Timers;
        for ended in batch.work_ended.iter().filter(|ended| is_timer(&ended.key)) {
            self.outstanding.clear(&timer_of(&ended.key.name)?);
        }
        for row in batch.work_set.iter().filter(|row| is_timer(&row.key)) {
            self.outstanding.set(timer_of(&row.key.name)?);
        }
        Ok(marks)
    }

    /// The client mark of an event that a client's command caused directly.
    fn mark(&self, event: &Event) -> Option<String> {
        let feedback = |value: &serde_json::Value| {
            let answers = ["/answers/colour", "/answers/0/answer"];
            let answer = answers.iter().find_map(|pointer| value.pointer(pointer));
            let words = value.get("feedback").or(answer);
            words?.as_str().map(str::to_owned)
        };
        match event.kernel()? {
            KernelEvent::CancelRequested {
                reason, parent: None, ..
            } => reason.clone(),
            // Otherwise it ends a cancellation whose mark was counted with the request.
            KernelEvent::RunCancelled {
                reason, parent: None, ..
            } if self.run.status != RunStatus::Cancelling => reason.clone(),
            KernelEvent::RunPaused { reason, .. } | KernelEvent::RunResumed { reason } => reason.clone(),
            KernelEvent::InterruptResolved { value, .. } => value.as_ref().and_then(feedback),
            KernelEvent::ApprovalVoted { feedback, .. } => feedback.clone(),
            _ => None,
        }
    }

    /// Settles effects. An outcome counts only under the newest lease, and only from its holder.
    fn settle(
        &mut self,
        key: &RunKey,
        batch: &Batch,
        calls: &[(String, u64)],
        questions: &Questions,
    ) -> Kept {
        let new = &self.log[usize::try_from(batch.expected().0).expect("small")..];
        let settled = batch.work_ended.iter();
        for settled in settled.filter(|ended| ended.key.queue == Queue::Effects) {
            if is_cancel(&settled.key) {
                if settled.fence.is_none() || !self.untold.remove(&settled.key) {
                    return Err("a cancel ends without its lease, or twice".to_owned());
                }
                continue;
            }
            if is_answer(&settled.key) {
                let told = self.unanswered.remove(&settled.key);
                let (Some(told), Some(_)) = (told, settled.fence) else {
                    return Err("an answer ends without its lease, or twice".to_owned());
                };
                let is_awaited = self.run.awaits_call(&self.plan, &told.step, told.attempt);
                if is_awaited && !questions.was_told(&told.idempotency_key) {
                    return Err(format!("the answer to {} is lost", told.answer().0));
                }
                continue;
            }
            if is_recall(&settled.key) {
                if settled.fence.is_none() || !self.recalls.remove(&settled.key) {
                    return Err("a recall ends without its lease, or twice".to_owned());
                }
                continue;
            }
            if is_kept(&settled.key) {
                self.kept.remove(&settled.key);
                continue;
            }
            let (step, attempt) = effect_of(&settled.key)?;
            let holder = self.holders.remove(&settled.key);
            let outcome = new.iter().find_map(|recorded| match recorded.event.kernel()? {
                KernelEvent::NodeCompleted {
                    step: of, outputs, ..
                } if *of == step => Some(outputs.get("call")),
                KernelEvent::NodeFailed { step: of, .. } | KernelEvent::NodeRetried { step: of, .. }
                    if *of == step =>
                {
                    Some(None)
                }
                // Its peer has cancelled it; a cancel of the run takes the effect away from its holder.
                KernelEvent::NodeCancelled { step: of, .. } if *of == step && settled.fence.is_some() => {
                    Some(None)
                }
                _ => None,
            });
            match (outcome, settled.fence) {
                (None, None) => {
                    self.outstanding.end(&step, attempt);
                    self.check_remembered(batch, &step, attempt)?;
                }
                // It ended with an answer to its peer, which has a lease of its own.
                (Some(_), None) if self.is_being_answered(&step, attempt) => {
                    self.outstanding.end(&step, attempt);
                }
                (Some(_), None) => return Err("an outcome counts without a lease".to_owned()),
                (None, Some(_)) => return Err("a lease was given up for no outcome".to_owned()),
                (Some(call), Some(fence)) => {
                    let kept = self.outstanding.settle(&step, attempt, fence.0);
                    kept.map_err(|error| error.to_string())?;
                    let call = call.and_then(serde_json::Value::as_u64);
                    let made = call
                        .and_then(|n| usize::try_from(n).ok())
                        .and_then(|n| calls.get(n));
                    match made {
                        Some((of, by)) if Some(*by) != holder || *of != invocation(key, self, &step) => {
                            return Err(format!("the outcome is p{by}'s, the lease {holder:?}'s"));
                        }
                        Some(_) | None => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Follows the rows of calls that are recalled, or may have to be.
    fn follow_moved(&mut self, batch: &Batch) -> Kept {
        let new = &self.log[usize::try_from(batch.expected().0).expect("small")..];
        for Moved { key, to, fence, .. } in &batch.work_moved {
            let is_there = match is_kept(key) {
                true => self.kept.remove(key),
                false => {
                    let (step, attempt) = effect_of(key)?;
                    if self.handle(&step, attempt).is_some() {
                        return Err(format!("{to:?} is recalled although its task is known"));
                    }
                    self.holders.remove(key);
                    let Some(fence) = fence else {
                        self.outstanding.end(&step, attempt);
                        self.recalls.insert(to.clone());
                        continue;
                    };
                    let kept = self.outstanding.settle(&step, attempt, fence.0);
                    kept.map_err(|error| error.to_string())?;
                    let has_failed = new.iter().any(|recorded| match recorded.event.kernel() {
                        Some(
                            KernelEvent::NodeFailed { step: of, .. }
                            | KernelEvent::NodeRetried { step: of, .. },
                        ) => *of == step,
                        _ => false,
                    });
                    if !has_failed {
                        return Err(format!("{key:?} is moved by a holder that did not fail"));
                    }
                    true
                }
            };
            if is_there {
                match is_kept(to) {
                    true => self.kept.insert(to.clone()),
                    false => self.recalls.insert(to.clone()),
                };
            }
        }
        Ok(())
    }

    /// A replay calls nobody and tells nobody.
    fn check_replay(&self, batch: &Batch) -> Kept {
        if !self.run.is_replay() {
            return Ok(());
        }
        let mut rows = batch.work_set.iter().map(|row| row.key.queue);
        let calls = rows.any(|queue| queue == Queue::Effects);
        match calls || !batch.children.is_empty() || !batch.inbox_sent.is_empty() {
            true => Err("a replay calls out, or tells somebody".to_owned()),
            false => Ok(()),
        }
    }

    fn is_being_answered(&self, step: &StepId, attempt: u32) -> bool {
        let mut answers = self.unanswered.values();
        answers.any(|answer| answer.step == *step && answer.attempt == attempt)
    }

    /// Every answer to a peer in the batch is on its way to it.
    fn check_answers(&mut self, key: &RunKey, batch: &Batch, questions: &mut Questions) -> Kept {
        let expected = usize::try_from(batch.expected().0).expect("small");
        for recorded in &self.log[expected.max(self.n_copied)..] {
            let Some((interrupt, value)) = questions.follow(key, recorded) else {
                continue;
            };
            let rows = batch.work_set.iter().filter(|row| is_answer(&row.key));
            let mut answers = rows.filter_map(|row| serde_json::from_slice::<Unanswered>(&row.body).ok());
            if !answers.any(|answer| answer.answer() == (interrupt.as_str(), &value)) {
                return Err(format!("the answer to {interrupt} is not passed on"));
            }
        }
        Ok(())
    }

    /// The peer of a call that ends without its word is to be told.
    fn check_remembered(&self, batch: &Batch, step: &StepId, attempt: u32) -> Kept {
        let Some(handle) = self.handle(step, attempt) else {
            return Ok(());
        };
        let rows = batch.work_set.iter().filter(|row| is_cancel(&row.key));
        let mut told = rows.filter_map(|row| serde_json::from_slice::<Cancelled>(&row.body).ok());
        match told.any(|call| call.handle == *handle) {
            true => Ok(()),
            false => Err(format!("the task {handle} of {} is forgotten", step.key())),
        }
    }

    /// The handle of a call that the run waits for. A fork waits for none of its source's.
    fn handle(&self, step: &StepId, attempt: u32) -> Option<&serde_json::Value> {
        self.log[self.n_copied..]
            .iter()
            .rev()
            .find_map(|recorded| match recorded.event.kernel()? {
                KernelEvent::EffectAccepted {
                    step: of,
                    attempt: at,
                    handle,
                } if of == step && *at == attempt => Some(handle),
                _ => None,
            })
    }

    fn enqueue(&mut self, row: &WorkRow) -> Result<Stored, String> {
        let stored = read(&row.body)?;
        let asked = self.checker.check_effect(&stored.step, stored.attempt);
        asked.map_err(|error| error.to_string())?;
        let lease = match row.state {
            WorkState::Leased(epoch, _) => {
                self.holders.insert(row.key.clone(), epoch.0);
                OutstandingWork::FIRST_LEASE
            }
            WorkState::Due(_) | WorkState::Parked | WorkState::Offered(_) => 0,
        };
        self.outstanding.begin(stored.step.clone(), stored.attempt, lease);
        Ok(stored)
    }
}

pub(crate) fn lines(log: &[Recorded]) -> Vec<String> {
    log.iter()
        .map(|recorded| line(recorded, ToString::to_string))
        .collect()
}

fn read(body: &[u8]) -> Result<Stored, String> {
    serde_json::from_slice(body).map_err(|error| format!("an effect's row is not understood: {error}"))
}

fn is_cancel(key: &WorkKey) -> bool {
    key.name.starts_with("cancel:")
}

fn is_recall(key: &WorkKey) -> bool {
    key.name.starts_with("recall:")
}

fn is_kept(key: &WorkKey) -> bool {
    key.name.starts_with("KEPT:")
}

fn is_answer(key: &WorkKey) -> bool {
    key.name.starts_with("answer:")
}

/// The key of the call that an answer belongs to.
pub(crate) fn call_of(answer: &str) -> &str {
    answer.rsplit_once('.').map_or(answer, |(call, _)| call)
}

fn timer_of(key: &str) -> Result<Timer, String> {
    Timer::parse(key).ok_or_else(|| format!("'{key}' names no timer"))
}

/// `<ordinal>:<attempt>:<node>`
fn effect_of(key: &WorkKey) -> Result<(StepId, u32), String> {
    let mut parts = key.name.splitn(3, ':');
    let mut number = || parts.next()?.parse().ok();
    let (ordinal, attempt) = (number(), number());
    let node = parts.next().and_then(|node| NodeId::parse(node).ok());
    match (ordinal, attempt, node) {
        (Some(ordinal), Some(attempt), Some(node)) => Ok((StepId { node, ordinal }, attempt)),
        _ => Err(format!("'{}' names no effect", key.name)),
    }
}

/// The stable key of an execution's call to the outside, derived independently from the specification
/// (OpenWOP v1 §17.2), which other languages follow under their own names.
fn invocation(run: &RunKey, known: &Known, step: &StepId) -> String {
    let ordinal = step.ordinal.to_string();
    let kind = format!("{}:activity:v2", known.plan.dialect().name());
    let mut scheduled = known
        .log
        .iter()
        .rev()
        .filter_map(|recorded| recorded.event.kernel());
    let provider = scheduled.find_map(|event| match event {
        KernelEvent::EffectScheduled {
            step: of, provider, ..
        } if of == step => Some(provider.as_str()),
        _ => None,
    });
    let parts = [
        kind.as_str(),
        run.tenant.as_str(),
        run.run.as_str(),
        step.node.as_str(),
        &ordinal,
        provider.unwrap_or_default(),
    ];
    URL_SAFE_NO_PAD.encode(Sha256::digest(parts.join("\0")))
}
