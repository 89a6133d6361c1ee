//! How workers lease activities.

use serde::{Deserialize, Serialize};
use wopr_engine::{WorkerLimits, WorkerOptions};

use super::{Config, ConfigError, Period};

/// The most queues with limits of their own.
const MAX_QUEUES: usize = 1_000;
/// The longest name of a queue, in bytes.
const MAX_NAME: usize = 128;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workers {
    /// How long a worker must be silent before its activities are handed to another one.
    pub lease: Period,
    /// The most calls of a tenant that wait for activities at the same time.
    pub max_waiting: usize,
    /// The number of leases in a row without an outcome that end an attempt of an activity.
    pub max_lost_leases: u32,
    /// The most activities of a tenant that are leased at the same time; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_leased: Option<usize>,
    /// The most activities of a tenant that are leased in a second; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_second: Option<u32>,
    /// Queues with limits of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<WorkerQueue>,
}

/// The limits of one queue, in each tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerQueue {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_leased: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_second: Option<u32>,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            lease: Period::from_secs(60),
            max_waiting: 1_000,
            max_lost_leases: 10,
            max_leased: None,
            max_per_second: None,
            queues: Vec::new(),
        }
    }
}

impl Workers {
    pub fn options(&self) -> WorkerOptions {
        let of_queue = |queue: &WorkerQueue| {
            let limits = WorkerLimits {
                max_leased: queue.max_leased,
                per_second: queue.max_per_second,
            };
            (queue.name.clone(), limits)
        };
        WorkerOptions {
            lease: self.lease.as_duration(),
            max_waiting: self.max_waiting,
            max_lost_leases: self.max_lost_leases,
            of_tenant: WorkerLimits {
                max_leased: self.max_leased,
                per_second: self.max_per_second,
            },
            of_queues: self.queues.iter().map(of_queue).collect(),
        }
    }
}

impl Config {
    /// Checks the limits on workers, and that no queue is named twice.
    pub(crate) fn check_workers(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, rule: &str| {
            Err(ConfigError::Invalid {
                key: format!("workers.{key}"),
                rule: rule.to_owned(),
            })
        };
        let Workers {
            lease,
            max_waiting,
            max_lost_leases,
            max_leased,
            max_per_second,
            queues,
        } = &self.workers;
        if !(1_000..=86_400_000).contains(&lease.as_millis()) {
            return invalid("lease", "must be 1s to 1d");
        }
        if *max_waiting == 0 {
            return invalid("max_waiting", "must be at least 1");
        }
        if *max_lost_leases == 0 {
            return invalid("max_lost_leases", "must be at least 1");
        }
        let is_zero = |most: &Option<usize>, rate: &Option<u32>| *most == Some(0) || *rate == Some(0);
        if is_zero(max_leased, max_per_second) {
            return invalid("max_leased, workers.max_per_second", "must be at least 1");
        }
        if queues.len() > MAX_QUEUES {
            return invalid("queues", "must be 1,000 at most");
        }
        for (index, queue) in queues.iter().enumerate() {
            let at = |field: &str| format!("queues[{index}].{field}");
            let WorkerQueue {
                name,
                max_leased,
                max_per_second,
            } = queue;
            if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
                return invalid(&at("name"), "must have 1 to 128 bytes without control characters");
            }
            if queues[..index].iter().any(|other| other.name == *name) {
                return invalid(&at("name"), "must not be that of another queue");
            }
            if is_zero(max_leased, max_per_second) {
                return invalid(&at("max_leased, max_per_second"), "must be at least 1");
            }
        }
        Ok(())
    }
}
