//! Configuration of an engine.

use std::{sync::Arc, time::Duration};

use wopr_core::{HostBounds, InProcess, NodeTypes, SignaturePolicy};

use crate::{Budget, NoSecrets, Notifier, PushOptions, Secrets, WorkerOptions};

#[derive(Debug, Clone)]
pub struct Options {
    /// Limits of every run.
    pub bounds: HostBounds,
    /// Optional node types that this host offers.
    pub node_types: NodeTypes,
    /// What this host does activities with; in languages that leave them to the host, mocks do them where absent.
    pub in_process: Option<Arc<InProcess>>,
    /// Whose signatures of definitions are good, and whether there must be one.
    pub signatures: Arc<SignaturePolicy>,
    /// Threads for decisions; `None` means one less than there are processors.
    pub deciders: Option<usize>,
    /// Maximum runs in a tree, not counting its root.
    pub max_descendants: u64,
    /// Maximum current workflows of one tenant. The shared ones have a limit of their own.
    pub max_workflows: usize,
    /// Maximum bytes of a tenant's current workflows: of the parsed definitions, and of what they are compiled to.
    pub max_workflow_bytes: usize,
    /// Maximum concurrent effect attempts.
    pub max_effects: usize,
    /// Maximum bytes of running effects: their requests, and their outcomes until they are recorded.
    pub max_effect_bytes: usize,
    /// Duration of a lease that is not renewed.
    pub lease: Duration,
    /// Interval of polling without a hint: for work rows and, if other processes append too, for growth of
    /// followed logs.
    pub poll: Duration,
    /// How long a run tree is kept after its last run ended; `None` keeps everything.
    pub retention: Option<Duration>,
    /// Sends push notifications; `None` sends none.
    pub notifier: Option<Arc<dyn Notifier>>,
    pub push: PushOptions,
    /// How workers lease activities.
    pub workers: WorkerOptions,
    /// What must not be stored with what agents remember.
    pub secrets: Arc<dyn Secrets>,
    /// Budgets that the runs of a tenant or of a workflow share.
    pub budgets: Vec<Budget>,
    /// Makes ids and pauses repeatable, for simulations only: run ids become predictable.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bounds: HostBounds {
                node_executions: 1_000,
                log_bytes: 64 << 20,
                run_duration_ms: None,
            },
            node_types: NodeTypes::default(),
            in_process: None,
            signatures: Arc::default(),
            deciders: None,
            max_descendants: 20_000,
            max_workflows: 2_000,
            max_workflow_bytes: 128 << 20,
            max_effects: 256,
            max_effect_bytes: 64 << 20,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            retention: None,
            notifier: None,
            push: PushOptions::default(),
            workers: WorkerOptions::default(),
            secrets: Arc::new(NoSecrets),
            budgets: Vec::new(),
            seed: None,
        }
    }
}
