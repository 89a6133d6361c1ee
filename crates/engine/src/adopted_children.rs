//! Runs below one that is adopted: created with the whole of their logs, and with the work that those leave.
//!
//! They may go on, unlike children that were decided with their parent. Their attempts are leased like those of a process
//! that has died, because no process has begun them.

use std::sync::Arc;

use wopr_core::{Decision, NewChild, Plan, RunKey, Timestamp, Work, format};
use wopr_store::{ChildRow, InboxRow, Snapshot, StoredEvent, Summary, WorkRow, WorkState};

use crate::commit::{
    Context, SNAPSHOT_BYTES, SNAPSHOT_EVERY, effect_key, encode_message, offered, stored_effect, waiting_on,
};

/// A run below one that is adopted.
#[derive(Debug, Clone)]
pub struct AdoptedChild {
    pub child: NewChild,
    pub workflow: Arc<Plan>,
    /// The whole log, and the work that is left. It starts no children. Its messages are those that no run of the tree has
    /// heard.
    pub decision: Decision,
}

/// The rows of an adopted child.
#[derive(Debug)]
pub(crate) struct AdoptedRows {
    pub(crate) row: ChildRow,
    pub(crate) sent: Vec<InboxRow>,
    /// Whether an attempt waits to be leased.
    pub(crate) has_effects: bool,
    pub(crate) next_timer: Option<Timestamp>,
}

pub(crate) fn rows(context: &Context<'_>, adopted: AdoptedChild) -> AdoptedRows {
    let AdoptedChild {
        child,
        workflow,
        decision,
    } = adopted;
    let Decision {
        run,
        events,
        work,
        heard: _,
    } = decision;
    let Work {
        effects,
        timers_set,
        messages,
        // Nothing of it was under way on this host, and its children are adopted with it.
        settled: _,
        parked: _,
        cancelled: _,
        answered: _,
        timers_cleared: _,
        children: _,
    } = work;
    let NewChild {
        run: id,
        workflow: named,
        version,
        node,
        start,
        dispatched: _,
    } = child;
    let root = &context.view.summary;
    let began = run.started_at.unwrap_or(context.now);
    let parent = start.parent.map(|parent| (parent.run, node));
    let summary = Summary {
        parent,
        alias: match &root.alias {
            Some(_) => workflow.child_alias(&start.configurable).map(str::to_owned),
            None => None,
        },
        ..Summary::new(named, version, start.principal, began)
    };
    let error_code = run.error.as_ref().map(|(error, _)| error.code.as_str());
    let at = context.now.max(run.updated_at);
    let summary = summary.after(run.status, waiting_on(&run, &workflow), error_code, at);
    let stored = events.iter().map(|recorded| StoredEvent {
        seq: recorded.seq,
        body: format::encode_event(recorded),
    });
    let stored: Vec<_> = stored.collect();
    let n_bytes: usize = stored.iter().map(|event| event.body.len()).sum();
    let is_long = run.head.0 >= SNAPSHOT_EVERY || n_bytes > SNAPSHOT_BYTES;
    let snapshot = is_long.then(|| Snapshot {
        head: run.head,
        body: format::encode_run(workflow.dialect(), &run),
    });
    let key = RunKey::new(start.tenant, id.clone());
    let (trace, dialect) = (start.trace, workflow.dialect().name());
    let mut has_effects = false;
    let mut left = Vec::with_capacity(timers_set.len() + effects.len());
    for (timer, due) in &timers_set {
        left.push(WorkRow::timer(timer.key(), *due));
    }
    for effect in effects {
        let work_key = effect_key(&effect.step, effect.attempt, effect.number);
        let effect = stored_effect((&key, dialect), trace.as_ref(), effect);
        let offered = offered(&effect, context.lease_now);
        has_effects |= offered.is_none();
        let state = offered.unwrap_or(WorkState::Due(context.lease_now));
        left.push(WorkRow {
            key: work_key,
            state,
            body: serde_json::to_vec(&effect).expect("a request has string keys"),
        });
    }
    let sent = messages
        .into_iter()
        .map(|(target, source_seq, message)| InboxRow {
            target,
            source: id.clone(),
            source_seq,
            body: encode_message(&message),
        });
    AdoptedRows {
        sent: sent.collect(),
        row: ChildRow {
            run: id.clone(),
            summary,
            events: stored,
            snapshot,
            work: left,
        },
        has_effects,
        next_timer: timers_set.iter().map(|(_, due)| *due).min(),
    }
}
