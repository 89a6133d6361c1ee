//! Forks: runs that begin as another run did. See `wopr_core::Fork` for what they take from it.
//!
//! The first append creates the fork with a bounded part of its log; its `continue` timer brings the rest, so a
//! crash in the middle loses nothing. Each decision reads the part of the source's log that it takes next. The source
//! itself is only read: a fork sees its log as of the moment at which it was asked for.

use std::{borrow::Cow, sync::Arc};

use wopr_core::{
    Command, Event, Fork, ForkMode, KernelEvent, Overlay, Plan, Recorded, Refusal, Run, RunId, RunKey,
    RunStarted, Seq, StartFork, Timestamp,
};
use wopr_store::{Cause, Guard, MemoryRow, ReadError, Summary};

use crate::{
    CommandError, Done, Engine, SideRows, View,
    commanding::{MAX_ATTEMPTS, RETRY_AFTER_MS},
    load_budget::LoadPermit,
    remembering::{self, Trouble},
    uncertain_commit::UncertainCommits,
    view::decode_events,
};

/// Events of a source that a decision gets: more than it takes, by what one decision of the source made.
const WINDOW: usize = 3_072;
/// Bytes of such a window. One decision takes a mebibyte of it.
const WINDOW_BYTES: usize = 8 << 20;
/// Events and bytes that are read of a source whose log no longer says what comes next. What follows counts as
/// not recorded.
const WHOLE: usize = 65_536;
const WHOLE_BYTES: usize = 32 << 20;
/// Events read at once.
const PAGE: usize = 1_024;

/// A fork to start.
#[derive(Debug)]
pub struct ForkRun {
    /// From [`crate::Engine::new_run_id`].
    pub run: RunId,
    pub source: RunKey,
    pub mode: ForkMode,
    /// The first event that the fork does not take from its source.
    pub from: Seq,
    pub overlay: Option<Overlay>,
    /// The definition to go on with, if not the source's own.
    pub workflow: Option<Arc<Plan>>,
    /// Rows committed together with the first append.
    pub side_rows: SideRows,
}

impl Engine {
    /// Starts a fork of a run.
    ///
    /// # Errors
    /// The run does not exist, has fewer events, or another definition does not lead to the event.
    pub async fn fork(&self, fork: ForkRun) -> Result<Done, CommandError> {
        let once = fork.side_rows.idempotency.clone();
        match (Box::pin(self.fork_once(fork)).await, once) {
            (Err(error @ (CommandError::Refused(_) | CommandError::NotFound)), Some(once)) => {
                self.replay_or(error, &once).await
            }
            (done, _) => done,
        }
    }

    /// Whether a fork asks a scripted model again.
    #[must_use]
    pub fn asks_again(&self, mode: ForkMode) -> bool {
        mode == ForkMode::Replay && self.shared.executor.scripted_model().is_some()
    }

    async fn fork_once(&self, request: ForkRun) -> Result<Done, CommandError> {
        let ForkRun {
            run,
            source,
            mode,
            from,
            mut overlay,
            workflow,
            mut side_rows,
        } = request;
        let (summary, head) = self.summary(&source).await?.ok_or(CommandError::NotFound)?;
        if from > head || (from == head && summary.status.is_terminal()) || head == Seq(0) {
            return Err(Refusal::BeyondLog { from, head }.into());
        }
        let began = self.beginning(&source).await?.ok_or(CommandError::NotFound)?;
        let pinned = self
            .version(&source.tenant, &summary.workflow, &summary.version)
            .await?;
        let plan = match workflow {
            Some(plan) => {
                plan.continues(&pinned).map_err(Refusal::OtherDefinition)?;
                plan
            }
            None => pinned,
        };
        if let Some(overlay) = &mut overlay {
            let host = self.shared.options.in_process.as_deref();
            plan.add_in_process(&mut overlay.configurable, host)?;
        }
        if let Some(overlay) = &overlay
            && let Some(name) = plan.alias(&overlay.configurable)?
        {
            let rule = format!("must not name the fork: '{name}' may be the name of another run");
            let field = "overlay.configurable".to_owned();
            return Err(Refusal::InvalidInput { field, rule }.into());
        }
        let mut fork = Fork {
            source: source.run.clone(),
            mode,
            from,
            since: self.decision_of(&source, from, head).await?,
            until: head,
            depth: began.fork.as_ref().map_or(0, |fork| fork.depth).saturating_add(1),
            recorders: began
                .fork
                .as_ref()
                .map_or_else(Vec::new, Fork::recorders_of_forks),
            refusal: None,
        };
        fork.refusal = self.ask_again(&source, &began, &fork).await?.map(Box::new);
        let now = self.now();
        let key = source.sibling(run);
        if mode == ForkMode::Branch {
            let remembered = self.remembered(&source, &began, from, &key.run, now).await?;
            side_rows.memory = remembered.ok_or(Refusal::MemoryGone(from))?;
        }
        let view = View {
            key,
            summary: Summary {
                group: began.context.clone(),
                ..Summary::new(
                    plan.id().clone(),
                    plan.version().clone(),
                    began.principal.clone(),
                    now,
                )
            },
            plan,
            run: Run::default(),
            last_events: Vec::new(),
            continues: None,
            held: LoadPermit::default(),
        };
        let command = Command::Fork(Box::new(StartFork {
            fork,
            overlay,
            bounds: self.shared.options.bounds,
        }));
        let mut uncertain = UncertainCommits::default();
        for attempt in 0..MAX_ATTEMPTS {
            let made = self
                .decide(&view, Cow::Borrowed(&command), now, Guard::Create)
                .await?;
            if let Some(done) = self
                .commit_new(&view, made, &mut uncertain, &side_rows, now)
                .await?
            {
                return Ok(done);
            }
            self.back_off(attempt).await;
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// How a run started. `None` if it has not, or has been removed.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn beginning(&self, key: &RunKey) -> Result<Option<Arc<RunStarted>>, ReadError> {
        let page = self.events(key, Seq(0), 1).await?;
        let first = page.and_then(|page| page.events.into_iter().next());
        Ok(first.and_then(|first| match first.event {
            Event::Kernel(KernelEvent::RunStarted(started)) => Some(started),
            Event::Kernel(_) | Event::Dialect(_) => None,
        }))
    }

    /// What the source remembered before the event at `from`, for a branch of its own scope. `None` if that is no longer
    /// known.
    async fn remembered(
        &self,
        source: &RunKey,
        began: &RunStarted,
        from: Seq,
        branch: &RunId,
        now: Timestamp,
    ) -> Result<Option<Vec<MemoryRow>>, ReadError> {
        if from == Seq(0) {
            return Ok(Some(Vec::new()));
        }
        let page = self.events_before(source, from, PAGE).await?;
        let mut events = page.map_or_else(Vec::new, |page| page.events);
        let Some(at) = events.last().map(|last| last.at) else {
            return Ok(None);
        };
        events.retain(|event| event.at == at);
        let (mut owner, mut began) = (source.clone(), Cow::Borrowed(began));
        // A replay writes nothing, and a branch does not have what its source had replaced before the branch began.
        while let Some(fork) = &began.fork
            && (fork.mode == ForkMode::Replay || from < fork.from)
        {
            let earlier = source.sibling(fork.source.clone());
            let Some(started) = self.beginning(&earlier).await? else {
                break;
            };
            (owner, began) = (earlier, Cow::Owned((*started).clone()));
        }
        let scopes = (&*began.memory_scope(&owner.run), &*branch.memory_scope());
        let own = remembering::written_by(&owner.run, &began, &events);
        let store = &*self.shared.store;
        let copied = remembering::copied(
            (store, &self.shared.memory_shares),
            &owner,
            scopes,
            own,
            (at, now),
        )
        .await;
        copied.map_err(|trouble| match trouble {
            Trouble::Read(error) => error,
            other => ReadError::Unavailable(Cause::of(other)),
        })
    }

    /// The first event of the decision to which the event at `seq` belongs.
    async fn decision_of(&self, key: &RunKey, seq: Seq, head: Seq) -> Result<Seq, ReadError> {
        if seq == head {
            return Ok(seq);
        }
        let mut end = seq.next();
        while end > Seq(0) {
            let Some(page) = self.events_before(key, end, PAGE).await? else {
                break;
            };
            let Some(first) = page.events.first().map(|event| event.seq) else {
                break;
            };
            if let Some(begins) = page.events.iter().rev().find(|event| event.given.is_some()) {
                return Ok(begins.seq);
            }
            end = first;
        }
        Ok(Seq(0))
    }

    /// The part of its source's log that a run takes next, if the command or the run is a fork that does so.
    pub(crate) async fn source_of(
        &self,
        key: &RunKey,
        run: &Run,
        command: &Command,
    ) -> Result<Option<Vec<Recorded>>, ReadError> {
        let begun = run.fork().filter(|_| run.is_catching_up());
        let asked = if let Command::Fork(start) = command {
            Some(&start.fork)
        } else {
            None
        };
        let Some(fork) = asked.or(begun) else {
            return Ok(None);
        };
        let source = key.sibling(fork.source.clone());
        let diverged_at = run.forked.and_then(|forked| forked.diverged_at);
        let (from, most, most_bytes) = match diverged_at {
            None => (run.head, WINDOW, WINDOW_BYTES),
            Some(at) => (at, WHOLE, WHOLE_BYTES),
        };
        let (mut events, mut n_bytes, mut next) = (Vec::new(), 0, from);
        while next < fork.until && events.len() < most && n_bytes < most_bytes {
            let left = usize::try_from(fork.until.0 - next.0).unwrap_or(PAGE).min(PAGE);
            // A source that is gone gives no more.
            let Some(page) = self.shared.store.events(&source, next, left).await? else {
                break;
            };
            n_bytes += page.events.iter().map(|event| event.body.len()).sum::<usize>();
            let page = decode_events(&page.events)?;
            let Some(last) = page.last().map(|event| event.seq) else {
                break;
            };
            next = last.next();
            events.extend(page);
        }
        Ok(Some(events))
    }
}
