//! The executable specification: plain maps behind one lock.
//!
//! Every rule of the port is written here the shortest way that can be read. The databases must answer as this
//! one does; the behaviour suite and a property test hold them to it. Nothing survives the process.

mod append;
mod log;
mod push;
mod registry;
mod retention;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};

use crate::{
    BlobRow, DeliveryRow, EffectKey, Epoch, Fence, IdempotencyKey, IdempotencyRecord, InboxRow, KeyRow,
    MessageRow, PushRow, Revision, Snapshot, StoredEvent, Summary, TaskRow, TimerKey, WorkflowRow,
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
    timers: BTreeMap<(RunKey, TimerKey), Timer>,
    effects: BTreeMap<(RunKey, EffectKey), Effect>,
    /// Oldest first; a run without rows has no entry.
    inboxes: BTreeMap<RunKey, Vec<Told>>,
    records: HashMap<IdempotencyKey, IdempotencyRecord>,
    pushes: BTreeMap<(RunKey, String), Push>,
    /// What is still to be told of each run.
    outbox: BTreeMap<RunKey, Note>,
    deliveries: BTreeMap<(RunKey, String, Seq), DeliveryRow>,
    /// The root that each marked run goes with.
    removals: BTreeMap<RunKey, RunId>,
    epoch: u64,
    /// Epochs that ended in order.
    ended: BTreeSet<Epoch>,
    /// Whether the epoch before the present one did not.
    has_died: bool,
    /// The latest time that was kept.
    high_water: Option<Timestamp>,
    /// `None` sorts before every tenant.
    workflows: BTreeMap<(Option<TenantId>, WorkflowId), Workflow>,
    keys: BTreeMap<(String, TenantId), (Revision, KeyRow)>,
    /// The newest change of the registry.
    revision: Revision,
}

#[derive(Debug)]
struct Run {
    summary: Summary,
    events: Vec<StoredEvent>,
    snapshot: Option<Snapshot>,
    task: Option<TaskRow>,
    descendants: u64,
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
            descendants: 0,
            messages: Vec::new(),
            blobs: BTreeMap::new(),
        }
    }

    fn head(&self) -> Seq {
        Seq(0).plus(self.events.len())
    }
}

#[derive(Debug)]
struct Timer {
    /// When somebody may fire it; of one that is leased, when that ends.
    due: Timestamp,
    epoch: Option<Epoch>,
    fence: Fence,
    deaths: u32,
}

#[derive(Debug)]
struct Told {
    row: InboxRow,
    hand: Hand,
}

#[derive(Debug)]
struct Note {
    from: Seq,
    to: Seq,
    hand: Hand,
}

/// Who claimed a row, and the deaths it has counted.
#[derive(Debug, Default)]
struct Hand {
    epoch: Option<Epoch>,
    deaths: u32,
}

#[derive(Debug)]
struct Effect {
    body: Vec<u8>,
    enqueued_at: Timestamp,
    lease: Option<(Epoch, Timestamp)>,
    fence: Fence,
    deaths: u32,
}

#[derive(Debug)]
struct Push {
    row: PushRow,
    since: Seq,
    /// When somebody may work at it; of one that is leased, when that ends.
    due: Option<Timestamp>,
    epoch: Option<Epoch>,
    fence: Fence,
    deaths: u32,
    news: u64,
}

#[derive(Debug)]
struct Workflow {
    current: ContentHash,
    /// Since when it is current.
    since: Revision,
    versions: BTreeMap<ContentHash, WorkflowRow>,
}
