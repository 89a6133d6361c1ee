//! What a fork is given next: what its source was given next, or, once it differs, whatever of it a step waits for.

use crate::{Dialect, Given, Phase, Planned, Resolve, RunId, Seq, StepId, Timer, Wait};

use super::{DecisionBuilder, source::Following};

/// What a fork is given next.
pub(super) enum Next {
    /// What the source was given with this event.
    From(Seq),
    /// More of the source's log has to be read.
    More,
    /// The source has nothing more to give.
    Nothing,
}

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    pub(super) fn next(&self) -> Next {
        let Some(following) = &self.following else {
            return Next::Nothing;
        };
        let Following {
            fork,
            source,
            is_aligned,
            ..
        } = following;
        if *is_aligned {
            let head = self.run.head;
            if head >= fork.until {
                return Next::Nothing;
            }
            return match source.at(head) {
                // A cancel of the source is none of a replay's business, unless it is history.
                Some(event) if event.given == Some(&Given::Cancel) && head >= fork.from => Next::Nothing,
                Some(_) if source.has_group(head, fork.until) => Next::From(head),
                Some(_) | None => Next::More,
            };
        }
        let from = self.run.forked.and_then(|forked| forked.diverged_at);
        // The source's log has not been read as a whole yet.
        if source
            .events
            .last()
            .is_none_or(|last| last.seq.next() < fork.until)
        {
            return match self.events.is_empty() {
                true => Next::Nothing,
                false => Next::More,
            };
        }
        let later = source.events.iter().filter(|event| Some(event.seq) >= from);
        let mut given = later.filter(|event| event.given.is_some_and(|given| self.is_waited_for(given)));
        given.next().map_or(Next::Nothing, |event| Next::From(event.seq))
    }

    /// Whether a step waits for what the source was given, whatever else has happened.
    pub(super) fn is_waited_for(&self, given: &Given) -> bool {
        match given {
            Given::Effect { step, attempt, .. } | Given::EffectCancelled { step, attempt, .. } => {
                matches!(self.active(step), Some((_, active)) if active.attempt == *attempt
                    && matches!(active.wait, Wait::Effect(_)))
            }
            Given::Timer(key) => match Timer::parse(key) {
                Some(Timer::Delay(step)) => {
                    let active = self.active(&step);
                    active.is_some_and(|(position, active)| {
                        active.wait == Wait::Work && self.plan.has_timer(position)
                    })
                }
                Some(Timer::Retry(step, attempt)) => {
                    matches!(self.active(&step), Some((_, active)) if active.attempt + 1 == attempt
                        && matches!(active.wait, Wait::Retry { .. }))
                }
                Some(Timer::Interrupt(step)) => self.is_asking(&step, None),
                Some(Timer::RunDuration | Timer::Overdue(..) | Timer::Continue) | None => false,
            },
            Given::Answer(answer) => {
                let wanted = Resolve::from((**answer).clone()).wanted();
                let Ok(wanted) = wanted else { return false };
                let Some(position) = self.plan.position(&answer.node) else {
                    return false;
                };
                let Some(Phase::Active(active)) = self.run.nodes.get(position).map(|node| &node.phase) else {
                    return false;
                };
                // Votes that others have to join would be given without end.
                let Wait::Interrupt(open) = &active.wait else {
                    return false;
                };
                let voter = answer.voter.as_deref().unwrap_or(answer.by.as_str());
                let is_known = open.votes.iter().any(|vote| vote.voter == voter);
                !is_known
                    && wanted.ordinal.is_none_or(|ordinal| ordinal == active.ordinal)
                    && wanted.number.is_none_or(|number| number == open.number)
            }
            Given::ChildEnded(end) => self.mirrors(&end.step, &end.child),
            Given::Cancel
            | Given::Pause
            | Given::Resume
            | Given::Set(_)
            | Given::News
            | Given::Child(_)
            | Given::Live
            | Given::Abandoned(_) => false,
        }
    }

    pub(super) fn is_asking(&self, step: &StepId, number: Option<u32>) -> bool {
        let Some((_, active)) = self.active(step) else {
            return false;
        };
        match &active.wait {
            Wait::Interrupt(open) => number.is_none_or(|number| number == open.number),
            Wait::Work | Wait::Effect(_) | Wait::Retry { .. } | Wait::Children(_) => false,
        }
    }

    pub(super) fn mirrors(&self, step: &StepId, child: &RunId) -> bool {
        let active = self.active(step);
        active.is_some_and(|(_, active)| match &active.wait {
            Wait::Children(members) => {
                let mut running = members.iter().filter(|member| member.end.is_none());
                running.any(|member| member.run == *child)
            }
            Wait::Work | Wait::Effect(_) | Wait::Retry { .. } | Wait::Interrupt(_) => false,
        })
    }
}
