//! How an engine runs.

use std::{sync::Arc, time::Duration};

use wopr_core::{HostBounds, NodeTypes};

use crate::{Notifier, PushOptions};

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bounds of every run.
    pub bounds: HostBounds,
    /// Optional node types.
    pub node_types: NodeTypes,
    /// Threads that decide beside those of input and output; one less than there are processors where absent.
    pub deciders: Option<usize>,
    /// Runs below one root.
    pub max_descendants: u64,
    /// Current workflows of one tenant; the shared ones count as those of another.
    pub max_workflows: usize,
    /// What their definitions may take once they are parsed, in bytes.
    pub max_workflow_bytes: usize,
    /// Effect attempts under way at once.
    pub max_effects: usize,
    /// What effects under way may take: their requests, and their outcomes until they are recorded, in bytes.
    pub max_effect_bytes: usize,
    /// How long a lease lasts without being renewed.
    pub lease: Duration,
    /// How often work rows and, where other processes append too, the ends of followed logs are looked for without a
    /// hint.
    pub poll: Duration,
    /// How long a tree of runs is kept after the last of them ended; `None` keeps all.
    pub retention: Option<Duration>,
    /// Who tells others what happens to runs; without one nobody is told.
    pub notifier: Option<Arc<dyn Notifier>>,
    /// When and how often they are told.
    pub push: PushOptions,
    /// Makes ids and pauses repeatable, for simulations only: run ids can then be guessed.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bounds: HostBounds {
                node_executions: 1_000,
                run_duration_ms: None,
            },
            node_types: NodeTypes::default(),
            deciders: None,
            max_descendants: 20_000,
            max_workflows: 2_000,
            max_workflow_bytes: 64 << 20,
            max_effects: 256,
            max_effect_bytes: 64 << 20,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            retention: None,
            notifier: None,
            push: PushOptions::default(),
            seed: None,
        }
    }
}
