//! Gives a fork what its source was given.

use crate::{
    Command, Dialect, Divergence, EventRef, Given, GivenEnd, GivenResult, KernelEvent, PrincipalId, Recorded,
    RecordedRef, Refusal, RunId, RunMessage, Seq, Timer, Timestamp, Trigger, Work,
    decide::elide::{end_of, outcome_of},
};

use super::{DecisionBuilder, owned, source::Following};

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    /// Gives the run what its source was given with the event at `seq`.
    pub(super) fn give_at(&mut self, seq: Seq) -> Result<(), Refusal> {
        let Some(following) = &mut self.following else {
            return Ok(());
        };
        following.is_first = true;
        let Some(event) = following.source.at(seq) else {
            return Ok(());
        };
        let Some(given) = event.given else {
            // The source went on where this run waits.
            self.diverge(seq, Divergence::Missing, None);
            return Ok(());
        };
        let group = following.source.group(seq).to_vec();
        self.begin_input(event.at);
        if self.ends_at_refusal(seq) {
            return Ok(());
        }
        match given {
            Given::News | Given::Pause => {
                for event in group {
                    if self.is_at_branch() || !self.run.is_catching_up() {
                        break;
                    }
                    self.repeat(event);
                }
                Ok(())
            }
            Given::Live => {
                self.repeat(event);
                self.note_begin_again();
                self.end_input()
            }
            Given::Abandoned(step) => {
                self.abandon(&step.clone())?;
                self.end_input()
            }
            Given::Cancel => match cancel_of(&group) {
                Some((reason, by, parent)) => {
                    self.given = Some(Box::new(Given::Cancel));
                    self.cancel(reason, by, parent)?;
                    self.give(Trigger::Advance)
                }
                None => self.refuse_given(seq),
            },
            Given::Child(message) => {
                let message = (**message).clone();
                self.give_message(seq, message)
            }
            Given::ChildEnded(end) => match ended::<D>(end, &group) {
                Some(message) => self.give_message(seq, message),
                None => self.refuse_given(seq),
            },
            Given::Resume
            | Given::Answer(_)
            | Given::Set(_)
            | Given::Timer(_)
            | Given::Effect { .. }
            | Given::EffectCancelled { .. } => match command_of::<D>(given, &group) {
                Some(command) => match self.trigger(command) {
                    Ok(trigger) => self.give(trigger),
                    Err(_) => self.refuse_given(seq),
                },
                None => self.refuse_given(seq),
            },
        }
    }

    pub(super) fn give_message(&mut self, seq: Seq, message: RunMessage) -> Result<(), Refusal> {
        self.given = Given::of_message(&message).map(Box::new);
        match self.message(message) {
            Ok(trigger) => self.give(trigger),
            Err(_) => self.refuse_given(seq),
        }
    }

    /// The run does not take what its source took.
    pub(super) fn refuse_given(&mut self, seq: Seq) -> Result<(), Refusal> {
        self.given = None;
        self.diverge(seq, Divergence::Missing, None);
        Ok(())
    }

    /// Begins to decide what follows from something given at this time, with a budget of its own.
    pub(super) fn begin_input(&mut self, at: Timestamp) {
        self.input.now = at.max(self.run.updated_at);
        self.outside = None;
        self.given = None;
        self.renew_budget(0);
        self.weigh();
    }

    pub(super) fn give(&mut self, trigger: Trigger) -> Result<(), Refusal> {
        D::decide(trigger, self)?;
        self.end_input()
    }

    /// Looks at what has followed from what was given.
    pub(super) fn end_input(&mut self) -> Result<(), Refusal> {
        self.elide();
        loop {
            self.begin_again()?;
            if !self.run.is_catching_up() {
                // A branch has begun its own way within this input.
                return Ok(());
            }
            self.work = Work::default();
            self.cut = false;
            self.repeat_notes();
            // The last note may say that a fork went on by itself here.
            let following = self.following.as_ref();
            if following.is_none_or(|following| following.begin_again.is_none()) {
                break;
            }
        }
        let Some(following) = &self.following else {
            return Ok(());
        };
        let (head, fork) = (self.run.head, &following.fork);
        let is_short = following.is_aligned
            && head < fork.until
            && following
                .source
                .at(head)
                .is_some_and(|event| event.given.is_none());
        if is_short {
            self.diverge(head, Divergence::Missing, None);
        } else if !following.is_aligned && following.is_first {
            // Nothing followed, so it would be given without end.
            return self.go_live();
        }
        Ok(())
    }

    /// Repeats an event of the source as it is.
    pub(super) fn repeat(&mut self, event: RecordedRef<'a, D::Event>) {
        self.input.now = event.at.max(self.run.updated_at);
        self.given = event.given.cloned().map(Box::new);
        let following = self.following.take();
        let owned = owned::<D>(event.event);
        let recorded = Recorded {
            seq: self.run.head,
            at: self.input.now,
            cause: event.cause,
            is_untrusted: event.is_untrusted,
            given: self.given.take(),
            event: owned,
        };
        if self.try_push(recorded).is_err() {
            // Another definition, in which this cannot happen.
            self.following = following.map(|following| Following {
                lost_at: Some(event.seq),
                ..following
            });
            return;
        }
        self.following = following;
    }
}

/// The reason of a cancel, who asked for it, and the parent that it comes from.
type CancelOf = (Option<String>, Option<PrincipalId>, Option<RunId>);

fn cancel_of<X>(group: &[RecordedRef<'_, X>]) -> Option<CancelOf> {
    group.iter().find_map(|event| match event.event {
        EventRef::Kernel(
            KernelEvent::CancelRequested { reason, by, parent }
            | KernelEvent::RunCancelled { reason, by, parent },
        ) => Some((reason.clone(), by.clone(), parent.clone())),
        EventRef::Kernel(_) | EventRef::Dialect(_) => None,
    })
}

/// The command by which the source was given something. `None` if its events do not say it.
fn command_of<D: Dialect>(given: &Given, group: &[RecordedRef<'_, D::Event>]) -> Option<Command> {
    Some(match given {
        Given::Resume => {
            let reason = group.first().and_then(|event| match event.event {
                EventRef::Kernel(KernelEvent::RunResumed { reason }) => reason.clone(),
                EventRef::Kernel(_) | EventRef::Dialect(_) => None,
            });
            Command::Resume { reason }
        }
        Given::Answer(answer) => Command::Resolve((**answer).clone().into()),
        Given::Set(variables) => Command::SetVariables(variables.clone()),
        Given::Timer(key) => Command::Timer(Timer::parse(key)?),
        Given::Effect {
            step,
            attempt,
            retry_after_ms,
            outcome,
        } => {
            let said = || group.iter().find_map(|event| outcome_of(event.event, step));
            let outcome = outcome.as_deref().cloned().or_else(said)?;
            Command::Effect {
                step: step.clone(),
                attempt: *attempt,
                outcome: outcome.into(),
                retry_after_ms: *retry_after_ms,
            }
        }
        Given::EffectCancelled {
            step,
            attempt,
            reason,
        } => Command::EffectCancelled {
            step: step.clone(),
            attempt: *attempt,
            reason: reason.clone(),
        },
        Given::Cancel
        | Given::Pause
        | Given::News
        | Given::Child(_)
        | Given::ChildEnded(_)
        | Given::Live
        | Given::Abandoned(_) => return None,
    })
}

/// The message by which the source learned that a child ended.
fn ended<D: Dialect>(end: &GivenEnd, group: &[RecordedRef<'_, D::Event>]) -> Option<RunMessage> {
    let said = || group.iter().find_map(|event| end_of(event.event, &end.child));
    let GivenResult {
        status,
        outputs,
        report,
        error,
    } = end.end.as_deref().cloned().or_else(said)?;
    Some(RunMessage::ChildEnded {
        step: end.step.clone(),
        child: end.child.clone(),
        status,
        outputs,
        report,
        error,
        is_untrusted: end.is_untrusted,
    })
}
