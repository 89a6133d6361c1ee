//! Asks the scripted model of a conformance suite again what the source of a replay asked it.
//!
//! A replay takes every reply from its source's log and asks no provider. A conformance suite still wants to see what a replay
//! does whose model refuses where it did not before. So a host that has a scripted model asks it when a replay is asked
//! for, once for each recorded reply of that model. The first reply of another kind is stored with the fork,
//! which ends there. Real models are never asked.

use wopr_core::{
    Event, Fork, ForkMode, KernelEvent, ModelReply, RefusalDivergence, ReplyKind, RunKey, RunStarted, Seq,
    StepId, provider,
};
use wopr_store::ReadError;

use crate::Engine;

/// Events of a source whose replies are asked for again. Later replies count as they are recorded.
const MAX_LOOKED_AT: usize = 65_536;
/// Events read at once.
const PAGE: usize = 1_024;
/// Maximum length of a refusal's words in the log, in bytes.
const MAX_REASON: usize = 500;

/// A model inside the process whose replies a test writes.
pub trait ScriptedModel: Send + Sync {
    /// By what its replies name their provider.
    fn provider(&self) -> &str;

    /// What it replies next to this step; `None` if its script says nothing more.
    fn next_reply(&self, started: &RunStarted, step: &StepId) -> Option<ModelReply>;
}

impl Engine {
    /// The first recorded reply in the part of a log that a replay decides again, of which the scripted model now gives
    /// another kind.
    pub(crate) async fn ask_again(
        &self,
        source: &RunKey,
        started: &RunStarted,
        fork: &Fork,
    ) -> Result<Option<RefusalDivergence>, ReadError> {
        let (ForkMode::Replay, Some(model)) = (fork.mode, self.shared.executor.scripted_model()) else {
            return Ok(None);
        };
        let (mut next, mut given_at, mut n_seen) = (fork.since, fork.since, 0);
        while next < fork.until && n_seen < MAX_LOOKED_AT {
            let Some(page) = self.events(source, next, PAGE).await? else {
                break;
            };
            let Some(last) = page.events.last().map(|event| event.seq) else {
                break;
            };
            for event in page.events.iter().take_while(|event| event.seq < fork.until) {
                if event.given.is_some() {
                    given_at = event.seq;
                }
                if given_at >= fork.from
                    && let Some((step, recorded)) = reply_of(&event.event, model.provider())
                    && let Some(again) = model.next_reply(started, step)
                    && let Some(found) = differing(given_at, step, recorded, again)
                {
                    return Ok(Some(found));
                }
            }
            n_seen += page.events.len();
            next = last.next();
        }
        Ok(None)
    }
}

/// The reply that an event records, if it is one of this provider.
fn reply_of<'a>(event: &'a Event, of: &str) -> Option<(&'a StepId, ModelReply)> {
    match event {
        Event::Kernel(KernelEvent::EffectEnded {
            step,
            provider,
            outcome,
            ..
        }) if provider == provider::MODEL => {
            let reply: ModelReply = serde_json::from_value(outcome.clone().into()).ok()?;
            (reply.provider == of).then_some((step, reply))
        }
        Event::Kernel(_) | Event::Dialect(_) => None,
    }
}

fn differing(at: Seq, step: &StepId, recorded: ModelReply, again: ModelReply) -> Option<RefusalDivergence> {
    let original = ReplyKind::of(recorded.stop);
    let reason = match (original, ReplyKind::of(again.stop)) {
        (ReplyKind::Valid, ReplyKind::Refusal) => again.refusal,
        (ReplyKind::Refusal, ReplyKind::Valid) => recorded.refusal,
        (ReplyKind::Valid, ReplyKind::Valid) | (ReplyKind::Refusal, ReplyKind::Refusal) => return None,
    };
    Some(RefusalDivergence {
        at,
        step: step.clone(),
        original,
        reason: reason.map(|mut words| {
            words.truncate(words.floor_char_boundary(MAX_REASON));
            words
        }),
    })
}
