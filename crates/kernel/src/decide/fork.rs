//! Forks: runs that take the beginning of their log from another run, their source.
//!
//! ```text
//!  0            since            from                          until
//!  |-- copied --|-- decided again, and the same --|-- replay: decided again, and compared --|-- live
//!                                                 |-- branch: live
//! ```
//!
//! What the source was given from outside is in its log (see [`crate::given`]). A replay is given it again, event by event and
//! at the recorded times, so a replay reads no clock, makes no call and does not wait. It decides anew what
//! follows. The first difference is recorded. From then on the source's events no longer say what comes next, so the
//! replay looks through all of them for what its own steps wait for. When the source has no more to give, the
//! fork goes on by itself: a branch calls out again, and in a replay a call fails with [`SOURCE_MISSING`].
//!
//! A decision takes a bounded part of the source's log, and leaves the rest to the next one.

mod children;
mod compare;
mod give;
mod live;
mod next;
mod refusal;
mod source;

use std::sync::Arc;

use crate::{
    CONTENT_TRUST, Command, Dialect, Event, EventRef, Failure, Fork, ForkMode, HostBounds, KernelEvent,
    Overlay, Planned, Refusal, RunStarted, Seq, StartFork, StartRun, Timer, Trigger, UNTRUSTED, Work,
    cost::MAX_DECISION_WORK,
};

use super::{DecisionBuilder, MAX_BYTES};
use next::Next;

pub use refusal::REFUSAL_DIVERGED;
pub(super) use source::Following;
pub use source::Source;

/// The code of a node that would call out in a replay whose source has no record of that.
pub const SOURCE_MISSING: &str = "replay_source_missing";
/// The code of a fork that was interrupted before it had caught up.
const INTERRUPTED: &str = "fork_interrupted";
/// The code of a fork whose source went away, or does not lead to where it is to begin.
const UNREACHABLE: &str = "fork_point_unreachable";
/// Maximum number of events with which one decision catches up. It may end a little later.
const MAX_CAUGHT_UP: usize = 1_024;

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    /// Prepares to take from the source.
    pub(super) fn follow_source(&mut self, source: Source<'a, D::Event>) {
        let Some(fork) = self.run.fork().cloned().filter(|_| self.run.is_catching_up()) else {
            return;
        };
        let has_diverged = self.run.forked.is_some_and(|forked| forked.diverged_at.is_some());
        self.following = Some(Following {
            fork,
            source,
            is_aligned: !has_diverged,
            is_first: true,
            lost_at: None,
            begin_again: None,
        });
    }

    /// Starts a fork, which then catches up with its source.
    pub(super) fn start_fork(
        &mut self,
        start: StartFork,
        source: Option<Source<'a, D::Event>>,
    ) -> Result<(), Refusal> {
        let source = source.ok_or(Refusal::WrongState)?;
        let StartFork {
            fork,
            overlay,
            bounds,
        } = start;
        let first = source.at(Seq(0)).ok_or(Refusal::WrongState)?;
        let EventRef::Kernel(KernelEvent::RunStarted(started)) = first.event else {
            return Err(Refusal::WrongState);
        };
        if self.run.started.is_some() || self.run.status.is_terminal() {
            return Err(Refusal::WrongState);
        }
        let is_live = fork.mode == ForkMode::Branch && fork.from == Seq(0);
        let started = self.forked_start(started, fork, overlay, bounds)?;
        if !is_live {
            self.input.now = first.at;
        }
        let since = started.fork.as_ref().map_or(Seq(0), |fork| fork.since);
        self.record(None, KernelEvent::RunStarted(Arc::new(started)));
        self.weigh();
        if is_live {
            return self.advance(Trigger::Started);
        }
        self.follow_source(source);
        if since == Seq(0) {
            if let Some(following) = &mut self.following {
                following.is_first = false;
            }
            self.give(Trigger::Started)?;
        }
        self.catch_up()
    }

    /// The first event of a fork.
    fn forked_start(
        &self,
        source: &RunStarted,
        fork: Fork,
        overlay: Option<Overlay>,
        bounds: HostBounds,
    ) -> Result<RunStarted, Refusal> {
        let mut started = source.clone();
        if fork.mode == ForkMode::Branch {
            D::drop_own_options(&mut started.configurable);
        }
        started.fork = Some(fork);
        // The definition may be another one by now.
        started.version = self.plan.version().clone();
        let Some(Overlay {
            configurable,
            tags,
            metadata,
        }) = overlay
        else {
            return Ok(started);
        };
        started.configurable.extend(configurable);
        started.tags = tags.unwrap_or(started.tags);
        started.metadata.extend(metadata);
        if source.is_untrusted() {
            // What its source was given is as untrusted here.
            started
                .metadata
                .insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        started.limits = D::check_start(self.plan, &StartRun::again(&started, bounds), &self.budget)?;
        Ok(started)
    }

    /// Follows a command to a fork that still takes from its source.
    pub(super) fn command_fork(&mut self, command: Command) -> Result<(), Refusal> {
        match command {
            Command::Timer(Timer::Continue) => self.catch_up(),
            Command::Cancel { reason, by } => {
                self.following = None;
                self.cancel(reason, by, None)?;
                // No child of the source reports to this run.
                for step in self.active_steps() {
                    let reason = "run-cancelled".to_owned();
                    self.record(self.last(), KernelEvent::NodeCancelled { step, reason });
                }
                self.end_cancel_if_done();
                Ok(())
            }
            Command::Resume { .. } if self.run.paused => {
                self.following = None;
                let message = "the host stopped this fork before it had caught up with its source";
                self.fail_run(self.last(), Failure::new(INTERRUPTED, message), None);
                Ok(())
            }
            // Nobody sends any.
            Command::RunMessages(messages) => {
                self.heard = messages.len();
                Ok(())
            }
            // An obsolete timer.
            Command::Timer(_) => Ok(()),
            Command::Start(_) | Command::Fork(_) => Err(Refusal::WrongState),
            Command::Pause { .. }
            | Command::Resume { .. }
            | Command::Resolve(_)
            | Command::SetVariables(_) => Err(Refusal::CatchingUp),
            Command::Effect { .. }
            | Command::EffectCancelled { .. }
            | Command::EffectGivenUp { .. }
            | Command::Accepted { .. }
            | Command::Interrupted { .. }
            | Command::Progressed { .. }
            | Command::Produced { .. } => Err(Refusal::Stale),
        }
    }

    /// Takes from the source until the fork has caught up, has ended, or the decision is full.
    fn catch_up(&mut self) -> Result<(), Refusal> {
        loop {
            if self.run.status.is_terminal() || !self.run.is_catching_up() || self.is_lost() {
                return Ok(());
            }
            if self.has_caught_up_enough() {
                self.rest_later();
                return Ok(());
            }
            let Some(following) = &self.following else {
                return Ok(());
            };
            let (fork, head) = (&following.fork, self.run.head);
            if head < fork.since {
                let Some(event) = following.source.at(head) else {
                    return self.wait_or_give_up();
                };
                self.repeat(event);
                continue;
            }
            if fork.mode == ForkMode::Branch && head >= fork.from {
                return self.go_live();
            }
            match self.next() {
                Next::From(seq) => self.give_at(seq)?,
                Next::More => return self.wait_or_give_up(),
                Next::Nothing => return self.go_live(),
            }
        }
    }

    fn is_lost(&self) -> bool {
        let following = self.following.as_ref();
        following.is_some_and(|following| following.lost_at.is_some())
    }

    fn has_caught_up_enough(&self) -> bool {
        self.events.len() >= MAX_CAUGHT_UP
            || self.bytes >= MAX_BYTES
            || self.worked >= MAX_DECISION_WORK
            || self.is_beyond()
    }

    fn rest_later(&mut self) {
        self.work = Work::default();
        self.pause();
        self.cut = true;
    }

    /// Continues with the next part of the source's log. If this decision came no further, there is none: the source
    /// was removed.
    fn wait_or_give_up(&mut self) -> Result<(), Refusal> {
        if !self.events.is_empty() {
            self.rest_later();
            return Ok(());
        }
        let from = self.following.as_ref().map(|following| following.fork.from);
        if from.is_some_and(|from| self.run.head >= from) {
            return self.go_live();
        }
        self.give_up("the run that this fork comes from is gone");
        Ok(())
    }

    /// Fails a fork that cannot become what was asked for.
    pub(super) fn give_up(&mut self, message: &str) {
        self.following = None;
        self.fail_run(self.last(), Failure::new(UNREACHABLE, message), None);
    }

    /// Drops the work that a fork must not do: a replay calls nobody, and while a fork catches up with its source,
    /// whatever that waits for is the source's own.
    pub(super) fn keep_to_itself(&mut self) {
        let is_catching_up = self.run.is_catching_up();
        let is_over = self.run.fork().is_some() && self.run.status.is_terminal() && !self.went_live;
        let has_caught_up = self.run.forked.is_none_or(|forked| forked.has_caught_up);
        if is_catching_up || (is_over && !has_caught_up) {
            self.work = Work::default();
            if self.cut && is_catching_up {
                self.work.timers_set.push((Timer::Continue, self.live_now));
            } else {
                self.work.timers_cleared.push(Timer::Continue);
            }
            return;
        }
        if self.went_live {
            // The timer that brought the fork this far.
            self.work.timers_cleared.push(Timer::Continue);
        }
        if self.run.is_replay() {
            let Work {
                timers_set,
                timers_cleared,
                ..
            } = std::mem::take(&mut self.work);
            let is_own = |timer: &Timer| !matches!(timer, Timer::Overdue(..));
            self.work = Work {
                timers_set: timers_set
                    .into_iter()
                    .filter(|(timer, _)| is_own(timer))
                    .collect(),
                timers_cleared,
                ..Work::default()
            };
        }
    }
}

fn missing(what: &str) -> Failure {
    Failure::new(
        SOURCE_MISSING,
        format!("a replay calls nobody, and its source has no record of {what}"),
    )
}

fn owned<D: Dialect>(event: EventRef<'_, D::Event>) -> Event<D::Event> {
    match event {
        EventRef::Kernel(event) => Event::Kernel(event.clone()),
        EventRef::Dialect(event) => Event::Dialect(event.clone()),
    }
}
