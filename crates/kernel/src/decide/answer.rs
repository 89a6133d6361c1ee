//! Answers to interrupts.
//!
//! An answer is checked against the rules of the open interrupt before anything is recorded, so a refused answer
//! leaves the run unchanged. A gate that times out counts as rejected.

mod read;

use serde_json::{Value, json};

use crate::{
    Answered, AnsweredCall, ApprovalAction, ApprovalRules, Authority, Dialect, InterruptKind, KernelEvent,
    Open, Phase, Planned, Refusal, Resolve, Rules, RunStatus, Seq, StepId, Trigger, Verdict, Wait,
    measure::{MAX_NESTING, too_deep},
    run::{event_id, hash},
};

use super::DecisionBuilder;
use crate::command::Wanted;

use read::{
    Answer, closes_conversation, matching_event, read_answers, read_verdict, without_claims, without_voter,
};

/// How often one voter may change a vote.
const MAX_VOTES: u32 = 20;

impl<D: Dialect> DecisionBuilder<'_, D> {
    pub(super) fn resolve(&mut self, resolve: &Resolve) -> Result<Trigger, Refusal> {
        self.outside = resolve.is_untrusted.then(|| resolve.node.clone());
        let plan = self.plan;
        let position = plan.position(&resolve.node).ok_or(Refusal::NoInterrupt)?;
        let (step, open) = match self.open(position, resolve) {
            Err(Refusal::AlreadyResolved) if self.has_taken(position, resolve) => {
                self.given = None;
                return Ok(Trigger::Advance);
            }
            open => open?,
        };
        // The timer may fire late; the result must not depend on that.
        if open.deadline.is_some_and(|deadline| deadline <= self.input.now) {
            return Err(Refusal::AlreadyResolved);
        }
        if too_deep(&resolve.value) {
            return Err(Refusal::InvalidAnswer(format!(
                "it nests more than {MAX_NESTING} levels deep"
            )));
        }
        let by = Some(resolve.by.to_string());
        if open.remote.is_some() {
            return Ok(self.answer_peer(&step, &open, resolve));
        }
        let rules = match (plan.rules(position, open.kind), open.kind) {
            (Some(rules), _) => rules,
            // Two kinds have rules of their own, whatever the node is.
            (None, InterruptKind::LowConfidence) => &Rules::Verdict,
            (None, InterruptKind::Conversation) => &Rules::Turn,
            (
                None,
                InterruptKind::Approval
                | InterruptKind::Clarification
                | InterruptKind::ExternalEvent
                | InterruptKind::Custom,
            ) => return Err(Refusal::NoInterrupt),
        };
        match rules {
            Rules::Approval(rules) => self.approve(rules, position, step, &open, resolve),
            Rules::Clarification(questions) => {
                let answers = read_answers(questions, &resolve.value, &self.budget)?;
                let value = Some(json!({ "answers": answers }));
                let resolved = self.close(&step, open.kind, value, by.clone(), None);
                let event = KernelEvent::ClarificationResolved {
                    step: step.clone(),
                    answers: answers.clone(),
                    by,
                };
                let cause = self.record(Some(resolved), event);
                let cause = self.resume_step(&step, cause, Some(without_claims(&resolve.value)));
                Ok(Trigger::Answered {
                    position,
                    step,
                    cause,
                    answer: Answered::Clarification { answers },
                })
            }
            Rules::Verdict => self.judge(position, step, &open, resolve),
            Rules::Turn => Ok(Trigger::TurnTaken {
                position,
                step,
                by: resolve.answerer(),
                closes: closes_conversation(&resolve.value)?,
                turn: resolve.value.clone(),
            }),
            rules @ (Rules::Event(_) | Rules::Any | Rules::Checked(_)) => {
                let event = match rules {
                    Rules::Event(schema) => {
                        let event = matching_event(&open.data, &resolve.value)?;
                        if let Some(schema) = schema {
                            let checked = schema.check(event, &self.budget.meter());
                            checked.map_err(Refusal::InvalidAnswer)?;
                        }
                        event
                    }
                    Rules::Checked(schema) => {
                        let checked = schema.check(&resolve.value, &self.budget.meter());
                        checked.map_err(Refusal::InvalidAnswer)?;
                        &resolve.value
                    }
                    Rules::Any
                    | Rules::Approval(_)
                    | Rules::Clarification(_)
                    | Rules::Verdict
                    | Rules::Turn => &resolve.value,
                };
                let answer = Answered::Value {
                    event: event.clone(),
                    value: resolve.value.clone(),
                };
                let cause = self.close(&step, open.kind, Some(resolve.value.clone()), by, None);
                let cause = self.resume_step(&step, cause, Some(resolve.value.clone()));
                Ok(Trigger::Answered {
                    position,
                    step,
                    cause,
                    answer,
                })
            }
        }
    }

    /// Closes a held decision's interrupt with a verdict.
    fn judge(
        &mut self,
        position: usize,
        step: StepId,
        open: &Open,
        resolve: &Resolve,
    ) -> Result<Trigger, Refusal> {
        let verdict = read_verdict(&resolve.value)?;
        let value = without_claims(&resolve.value);
        let by = Some(resolve.by.to_string());
        let mut cause = self.close(&step, open.kind, Some(value.clone()), by, None);
        if verdict != Verdict::Rejected {
            cause = self.resume_step(&step, cause, Some(value));
        }
        Ok(Trigger::Answered {
            position,
            step,
            cause,
            answer: Answered::Verdict {
                verdict,
                held: open.data.clone(),
            },
        })
    }

    /// Closes a conversation, with the turn that does so, and continues its step.
    pub fn close_turns(&mut self, step: &StepId, by: &str, turn: &Value) -> Seq {
        let value = without_claims(turn);
        let kind = InterruptKind::Conversation;
        let cause = self.close(step, kind, Some(value.clone()), Some(by.to_owned()), None);
        self.resume_step(step, cause, Some(value))
    }

    /// Closes what the peer of a call asks, and passes the answer on. The call goes on.
    fn answer_peer(&mut self, step: &StepId, open: &Open, resolve: &Resolve) -> Trigger {
        let called = self.active(step).and_then(|(_, active)| match &active.wait {
            Wait::Effect(pending) => Some(AnsweredCall {
                step: step.clone(),
                attempt: active.attempt,
                provider: pending.provider.clone(),
                handle: pending.handle.clone()?,
                interrupt: step.interrupt(open.number),
                value: resolve.value.clone(),
            }),
            Wait::Work | Wait::Retry { .. } | Wait::Interrupt(_) | Wait::Children(_) => None,
        });
        self.work.answered.extend(called);
        let by = Some(resolve.by.to_string());
        let cause = self.close(step, open.kind, Some(resolve.value.clone()), by, None);
        self.resume_step(step, cause, Some(resolve.value.clone()));
        Trigger::Advance
    }

    /// Whether the interrupt has got this very event: senders deliver an event again until they have an answer.
    fn has_taken(&self, position: usize, resolve: &Resolve) -> bool {
        let taken = self
            .run
            .nodes
            .get(position)
            .and_then(|state| state.event.as_deref());
        let Some((taken, Wanted { ordinal, number })) = taken.zip(resolve.wanted().ok()) else {
            return false;
        };
        ordinal.is_none_or(|ordinal| ordinal == taken.ordinal)
            && number.is_none_or(|number| number == taken.number)
            && event_id(&resolve.value).is_some_and(|id| id == taken.id)
    }

    /// The open interrupt that an answer means, or why there is none.
    fn open(&self, position: usize, resolve: &Resolve) -> Result<(StepId, Box<Open>), Refusal> {
        let Wanted {
            ordinal: wanted,
            number,
        } = resolve.wanted()?;
        let state = self.run.nodes.get(position).ok_or(Refusal::NoInterrupt)?;
        if let Phase::Active(active) = &state.phase
            && wanted.is_none_or(|wanted| wanted == active.ordinal)
        {
            let open = match &active.wait {
                Wait::Interrupt(open) => Some(open),
                Wait::Effect(pending) => pending.question.as_ref(),
                Wait::Work | Wait::Retry { .. } | Wait::Children(_) => None,
            };
            if let Some(open) = open.filter(|open| number.is_none_or(|number| number == open.number)) {
                return Ok((self.step(position, active.ordinal), open.clone()));
            }
            // An interrupt that this execution has not opened yet. The first one may be that of a child.
            if number.is_some_and(|number| number > 0 && number >= active.n_interrupts) {
                return Err(Refusal::NoInterrupt);
            }
        }
        let past = wanted.is_none_or(|ordinal| ordinal < state.next_ordinal);
        if !state.asked || !past {
            return Err(Refusal::NoInterrupt);
        }
        let latest = wanted.is_none_or(|ordinal| ordinal.saturating_add(1) == state.next_ordinal);
        // The end of a run cancels its nodes too, and so does a join; only a cancel of the run counts as one.
        let cancelling = self.run.cancelling.as_ref();
        let is_cancel = cancelling.is_some() || self.run.status == RunStatus::Cancelled;
        if !(latest && is_cancel && matches!(state.phase, Phase::Cancelled)) {
            return Err(Refusal::AlreadyResolved);
        }
        let by_parent = self.run.cancelled_by_parent.is_some()
            || cancelling.is_some_and(|cancel| cancel.parent.is_some());
        Err(if by_parent {
            Refusal::InterruptGone
        } else {
            Refusal::InterruptCancelled
        })
    }

    fn approve(
        &mut self,
        rules: &ApprovalRules,
        position: usize,
        step: StepId,
        open: &Open,
        resolve: &Resolve,
    ) -> Result<Trigger, Refusal> {
        let by_token = matches!(resolve.authority, Authority::Token { .. });
        if rules.auth_required && by_token {
            return Err(Refusal::NeedsCredential);
        }
        // A node may offer less in one interrupt than in another.
        let listed = open.data.get("actions").and_then(Value::as_array);
        let is_listed = |action: &ApprovalAction| {
            listed.is_none_or(|list| list.iter().any(|name| name.as_str() == Some(action.as_str())))
        };
        let offered = rules.actions.iter().filter(|action| is_listed(action));
        let offered: Vec<_> = offered.map(|action| action.as_str()).collect();
        let not_offered = |action: &str| {
            Refusal::InvalidAnswer(format!(
                "action '{action}' is not offered here; offered are {}",
                offered.join(", ")
            ))
        };
        let mut answer = Answer::read(&resolve.value, &not_offered)?;
        if answer.legacy_refine && !rules.actions.contains(&ApprovalAction::Refine) {
            answer.action = ApprovalAction::Reject;
            answer.refine = None;
        }
        if !rules.actions.contains(&answer.action) || !is_listed(&answer.action) {
            return Err(not_offered(answer.action.as_str()));
        }
        if let (Some(schema), Some(edited)) = (&rules.edited, &answer.edited) {
            let checked = schema.check(edited, &self.budget.meter());
            checked.map_err(|rule| Refusal::InvalidAnswer(format!("editedArtifactData: {rule}")))?;
        }
        let voter = resolve.voter();
        if answer.voter.as_ref().is_some_and(|named| *named != voter) {
            return Err(Refusal::NotAllowed(match resolve.authority {
                Authority::Token { .. } => "a token votes as its holder, and the answer names another voter",
                Authority::Credential(_) => "the answer names a voter for whom the caller may not vote",
            }));
        }
        rules.check(&open.data, &voter, &resolve.authority)?;
        let answerer = resolve.answerer();
        let decided_by = match answer.action {
            ApprovalAction::Ask => {
                if answer
                    .feedback
                    .as_deref()
                    .is_none_or(|words| words.trim().is_empty())
                {
                    return Err(Refusal::InvalidAnswer("'question' is missing".to_owned()));
                }
                return Ok(Trigger::Asked {
                    step,
                    by: answerer,
                    question: answer.feedback,
                });
            }
            ApprovalAction::Accept if rules.required > 1 => {
                let settles = |accepts| accepts >= rules.required;
                let accepts = self.vote(&step, open, (&voter, ApprovalAction::Accept), &answer, settles)?;
                if accepts < rules.required {
                    return Ok(Trigger::Advance);
                }
                format!("quorum:{accepts}-of-{}", rules.required)
            }
            // A refinement decides for all voters, so it needs the quorum as well.
            ApprovalAction::Refine if rules.required > 1 => {
                let settles = |refines| refines >= rules.required;
                let refines = self.vote(&step, open, (&voter, ApprovalAction::Refine), &answer, settles)?;
                if refines < rules.required {
                    return Ok(Trigger::Advance);
                }
                format!("quorum:{refines}-of-{}", rules.required)
            }
            ApprovalAction::Reject if rules.required > 1 && rules.majority => {
                let settles = |rejects| rejects * 2 > rules.required;
                let rejects = self.vote(&step, open, (&voter, ApprovalAction::Reject), &answer, settles)?;
                if rejects * 2 <= rules.required {
                    return Ok(Trigger::Advance);
                }
                format!("quorum:{rejects}-of-{}", rules.required)
            }
            ApprovalAction::Accept
            | ApprovalAction::Reject
            | ApprovalAction::Refine
            | ApprovalAction::EditAccept
            | ApprovalAction::Timeout => answerer,
        };
        let value = without_voter(&resolve.value);
        Ok(self.decide_gate(position, step, answer, Some(decided_by), Some(value)))
    }

    /// Records a vote and counts the votes with the same action. A voter's later vote replaces the earlier
    /// one; an identical vote is not recorded again. Once the log is full, only a vote that settles the gate counts.
    fn vote(
        &mut self,
        step: &StepId,
        open: &Open,
        (voter, action): (&str, ApprovalAction),
        answer: &Answer,
        settles: impl FnOnce(u32) -> bool,
    ) -> Result<u32, Refusal> {
        let others = open.votes.iter().filter(|vote| vote.voter != voter);
        let alike = others.filter(|vote| vote.action == action).count();
        let count = u32::try_from(alike + 1).unwrap_or(u32::MAX);
        if let Some(earlier) = open.votes.iter().find(|vote| vote.voter == voter) {
            let words = answer.words();
            if earlier.action == action && earlier.words == words.as_deref().map(hash) {
                return Ok(count);
            }
            if earlier.n_votes >= MAX_VOTES {
                return Err(Refusal::InvalidAnswer(format!(
                    "this vote was changed {MAX_VOTES} times, which is the most"
                )));
            }
        }
        if let Some(most) = self.run.full_log()
            && !settles(count)
        {
            return Err(Refusal::InvalidAnswer(format!(
                "the log of the run has reached its limit of {most} bytes, so only a vote that settles the gate counts"
            )));
        }
        let event = KernelEvent::ApprovalVoted {
            step: step.clone(),
            voter: voter.to_owned(),
            action,
            feedback: answer.words(),
        };
        self.record(self.last(), event);
        Ok(count)
    }

    /// Closes an approval.
    pub(super) fn decide_gate(
        &mut self,
        position: usize,
        step: StepId,
        answer: Answer,
        by: Option<String>,
        value: Option<Value>,
    ) -> Trigger {
        let action = answer.action;
        let kind = InterruptKind::Approval;
        let resolved = self.close(&step, kind, value.clone(), by.clone(), Some(action));
        let mut cause = self.record(
            Some(resolved),
            KernelEvent::ApprovalReceived {
                step: step.clone(),
                action,
                by: by.clone(),
                feedback: answer.feedback.clone(),
                refine: answer.refine.clone(),
                edited: answer.edited.clone(),
                decided_at: self.input.now,
            },
        );
        match action {
            ApprovalAction::Reject | ApprovalAction::Timeout => {}
            ApprovalAction::Accept
            | ApprovalAction::Refine
            | ApprovalAction::EditAccept
            | ApprovalAction::Ask => cause = self.resume_step(&step, cause, Some(value.unwrap_or_default())),
        }
        let Answer {
            feedback,
            refine,
            edited,
            ..
        } = answer;
        Trigger::Answered {
            position,
            step,
            cause,
            answer: Answered::Approval {
                action,
                by,
                feedback,
                refine,
                edited,
            },
        }
    }
}

/// The answer that a gate gets when its time is up.
pub(super) fn timed_out() -> Answer {
    Answer {
        action: ApprovalAction::Timeout,
        feedback: None,
        refine: None,
        edited: None,
        voter: None,
        legacy_refine: false,
    }
}
