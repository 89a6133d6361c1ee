//! The executable specification: plain maps behind one lock.
//!
//! Every rule of the port is written here the shortest way that can be read. The databases must answer as this
//! one does; the behaviour suite and a property test hold them to it. Nothing survives the process.

mod append;
mod log;
mod registry;
mod retention;
mod work;

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use wopr_core::{ContentHash, RunId, RunKey, TenantId, Timestamp, WorkflowId};

use crate::{
    BlobRow, EffectKey, Epoch, Fence, IdempotencyKey, IdempotencyRecord, InboxRow, KeyRow, MessageRow,
    Revision, Snapshot, StoredEvent, Summary, TaskRow, TimerKey, WorkflowRow,
};

/// A store in memory, for tests and for trying things out.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[derive(Debug, Default)]
struct State {
    runs: BTreeMap<RunKey, Run>,
    timers: BTreeMap<(RunKey, TimerKey), Timestamp>,
    effects: BTreeMap<(RunKey, EffectKey), Effect>,
    /// Oldest first; a run without rows has no entry.
    inboxes: BTreeMap<RunKey, Vec<InboxRow>>,
    records: HashMap<IdempotencyKey, IdempotencyRecord>,
    /// The root that each marked run goes with.
    removals: BTreeMap<RunKey, RunId>,
    epoch: u64,
    /// `None` sorts before every tenant.
    workflows: BTreeMap<(Option<TenantId>, WorkflowId), Workflow>,
    keys: BTreeMap<String, (Revision, KeyRow)>,
    /// The newest change of the registry.
    revision: Revision,
}

#[derive(Debug)]
struct Run {
    summary: Summary,
    events: Vec<StoredEvent>,
    snapshot: Option<Snapshot>,
    task: Option<TaskRow>,
    messages: Vec<MessageRow>,
    blobs: BTreeMap<String, BlobRow>,
}

impl Run {
    fn new(summary: Summary) -> Self {
        Self {
            summary,
            events: Vec::new(),
            snapshot: None,
            task: None,
            messages: Vec::new(),
            blobs: BTreeMap::new(),
        }
    }

    fn head(&self) -> wopr_core::Seq {
        wopr_core::Seq(0).plus(self.events.len())
    }
}

#[derive(Debug)]
struct Effect {
    body: Vec<u8>,
    enqueued_at: Timestamp,
    lease: Option<(Epoch, Timestamp)>,
    fence: Fence,
}

#[derive(Debug)]
struct Workflow {
    current: ContentHash,
    /// Since when it is current.
    since: Revision,
    versions: BTreeMap<ContentHash, WorkflowRow>,
}
