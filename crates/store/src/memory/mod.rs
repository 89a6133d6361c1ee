//! The executable specification: plain maps behind one lock.
//!
//! Every rule of the port is implemented here in the shortest readable way. The databases must behave the
//! same; the behaviour suite and a property test check that they do. Nothing survives the process.

mod agent_memory;
mod append;
mod log;
mod offers;
mod push;
mod registry;
mod retention;
mod secrets;
mod spending;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};

use crate::{
    BlobRow, DeliveryRow, Epoch, Fence, IdempotencyKey, IdempotencyRecord, InboxRow, KeyRow, MessageRow,
    Offer, PushRow, Revision, SecretRow, Snapshot, SpentRow, StoredEvent, Summary, WorkKey, WorkflowRow,
};

/// A store in memory, for tests and experiments.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

impl MemoryStore {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[derive(Debug, Default)]
struct State {
    runs: BTreeMap<RunKey, Run>,
    /// The runs without a parent that have an alias, by tenant and alias.
    aliases: HashMap<TenantId, HashMap<String, RunKey>>,
    work: BTreeMap<(RunKey, WorkKey), Item>,
    /// Oldest first; a run without rows has no entry.
    inboxes: BTreeMap<RunKey, Vec<Told>>,
    records: HashMap<IdempotencyKey, IdempotencyRecord>,
    pushes: BTreeMap<(RunKey, String), Push>,
    /// Events of each run that have not been expanded into deliveries.
    outbox: BTreeMap<RunKey, Note>,
    deliveries: BTreeMap<(RunKey, String, Seq), DeliveryRow>,
    memory: BTreeMap<agent_memory::Place, agent_memory::Versions>,
    /// The root that each marked run is removed with.
    removals: BTreeMap<RunKey, RunId>,
    epoch: u64,
    /// Epochs that ended cleanly.
    ended: BTreeSet<Epoch>,
    /// The previous epoch did not end cleanly.
    has_died: bool,
    /// The latest time stored by `keep_time`.
    high_water: Option<Timestamp>,
    /// The key `None` sorts before every tenant.
    workflows: BTreeMap<(Option<TenantId>, WorkflowId), Workflow>,
    keys: BTreeMap<(String, TenantId), (Revision, KeyRow)>,
    secrets: BTreeMap<(TenantId, String), SecretRow>,
    key_check: Option<String>,
    spending: BTreeMap<spending::Place, SpentRow>,
    /// The latest change of the registry.
    revision: Revision,
}

#[derive(Debug)]
struct Run {
    summary: Summary,
    events: Vec<StoredEvent>,
    snapshot: Option<Snapshot>,
    descendants: u64,
    memory_forgotten: bool,
    messages: Vec<MessageRow>,
    blobs: BTreeMap<String, BlobRow>,
}

impl Run {
    fn new(summary: Summary) -> Self {
        Self {
            summary,
            events: Vec::new(),
            snapshot: None,
            descendants: 0,
            memory_forgotten: false,
            messages: Vec::new(),
            blobs: BTreeMap::new(),
        }
    }

    fn head(&self) -> Seq {
        Seq(0).plus(self.events.len())
    }
}

/// A row of work.
#[derive(Debug)]
struct Item {
    /// When the row can be leased, or when its lease expires; `None` if it waits to be woken.
    due: Option<Timestamp>,
    body: Vec<u8>,
    epoch: Option<Epoch>,
    fence: Fence,
    deaths: u32,
    /// When a row that is leased was woken.
    woken: Option<Timestamp>,
    /// The worker queue that it waits in, and when it can be leased from there.
    offer: Option<Offer>,
    /// Leases of workers that were not given back.
    leases: u32,
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

/// The claim on a mailbox row and its death count.
#[derive(Debug, Default)]
struct Hand {
    epoch: Option<Epoch>,
    deaths: u32,
}

#[derive(Debug)]
struct Push {
    row: PushRow,
    since: Seq,
}

#[derive(Debug)]
struct Workflow {
    /// `None` once it is removed.
    current: Option<ContentHash>,
    /// When `current` changed.
    since: Revision,
    versions: BTreeMap<ContentHash, WorkflowRow>,
    /// When to look for runs of a removed workflow.
    check_at: Option<Timestamp>,
    /// The last check found no run.
    is_unused: bool,
}
