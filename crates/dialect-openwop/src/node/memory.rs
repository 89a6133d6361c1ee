//! `core.memory.write`, `core.memory.read`, `core.memory.compact`, and the probes of the conformance suite.
//!
//! The scope is a fixed text: what a run is given cannot choose whose memory it reads or writes.

use super::config::Config;
use crate::{definition::Node, expression::Template, schema::Allowance};

pub(crate) const WRITE: &str = "core.memory.write";
pub(crate) const READ: &str = "core.memory.read";
pub(crate) const COMPACT: &str = "core.memory.compact";

/// The setting that makes a passing node a probe.
pub(crate) const PROBE: &str = "memoryAction";
pub(crate) const PROBES: [&str; 4] = [
    "write-then-read",
    "redaction-probe",
    "cross-tenant-probe",
    "ttl-probe",
];

pub(crate) const MAX_TAGS: usize = 32;
/// Longest name of a scope, in characters.
pub(crate) const MAX_SCOPE: usize = 256;
/// Most entries that one read returns.
pub(crate) const MAX_READ: u64 = 100;
const DEFAULT_READ: u32 = 20;
/// Longest time that an entry is kept if it has a limit: ten years.
pub(crate) const MAX_TTL_MS: u64 = 3_650 * 24 * 3_600 * 1_000;

#[derive(Debug)]
pub(crate) struct MemoryNode {
    /// Instead of that of the node's agent or of the run.
    pub scope: Option<String>,
    pub task: MemoryTask,
}

#[derive(Debug)]
pub(crate) enum MemoryTask {
    Write(Entry),
    Read {
        id: Option<Template>,
        tag: Option<Template>,
        limit: u32,
    },
    /// Writes an entry in the place of those that the port `sourceIds` names.
    Compact(Entry),
    Probe(Probe),
}

/// The entry that a node writes.
#[derive(Debug)]
pub(crate) struct Entry {
    /// An input port `content` takes precedence.
    pub content: Option<Template>,
    pub tags: Vec<Template>,
    pub ttl_ms: Option<u64>,
    /// An entry that has it is replaced.
    pub id: Option<Template>,
}

/// What a node of the conformance suite does with its memory.
#[derive(Debug)]
pub(crate) enum Probe {
    WriteThenRead,
    Redaction { secret: String },
    OtherTenant,
    Expiry,
}

impl MemoryNode {
    pub(super) fn read(node: &Node, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        let scope = config.text("memoryRef")?.map(ToOwned::to_owned);
        check_scope("memoryRef", scope.as_deref())?;
        let task = match node.type_id.as_str() {
            WRITE => MemoryTask::Write(Entry::read(config, allowance)?),
            COMPACT => MemoryTask::Compact(Entry::read(config, allowance)?),
            _ => MemoryTask::Read {
                id: template(config, "id", allowance)?,
                tag: template(config, "tag", allowance)?,
                limit: match config.millis("limit")? {
                    None => DEFAULT_READ,
                    Some(limit) => u32::try_from(limit)
                        .ok()
                        .filter(|limit| (1..=MAX_READ).contains(&u64::from(*limit)))
                        .ok_or_else(|| format!("config.limit is not within 1 to {MAX_READ}"))?,
                },
            },
        };
        Ok(Self { scope, task })
    }

    /// Reads the probe that a passing node asks for.
    pub(super) fn probe(node: &Node) -> Result<Option<Self>, String> {
        let config = Config(&node.config);
        let Some(action) = config.text(PROBE)? else {
            return Ok(None);
        };
        let (scope, probe) = match action {
            "write-then-read" => (None, Probe::WriteThenRead),
            "ttl-probe" => (None, Probe::Expiry),
            "redaction-probe" => {
                let secret = config
                    .text("byokSecretId")?
                    .ok_or("config.byokSecretId is missing")?;
                let secret = secret.to_owned();
                (None, Probe::Redaction { secret })
            }
            "cross-tenant-probe" => {
                let scope = config
                    .text("probeMemoryRef")?
                    .ok_or("config.probeMemoryRef is missing")?;
                (Some(scope.to_owned()), Probe::OtherTenant)
            }
            _ => return Err(format!("config.{PROBE} is none of {}", PROBES.join(", "))),
        };
        check_scope("probeMemoryRef", scope.as_deref())?;
        let task = MemoryTask::Probe(probe);
        Ok(Some(Self { scope, task }))
    }

    /// Whether it renders templates, which may read everything that the run holds.
    pub(crate) fn has_templates(&self) -> bool {
        match &self.task {
            MemoryTask::Write(entry) | MemoryTask::Compact(entry) => {
                entry.content.is_some() || entry.id.is_some() || !entry.tags.is_empty()
            }
            MemoryTask::Read { id, tag, .. } => id.is_some() || tag.is_some(),
            MemoryTask::Probe(_) => false,
        }
    }
}

impl Entry {
    fn read(config: Config<'_>, allowance: &Allowance) -> Result<Self, String> {
        let tags = config.names("tags")?;
        if tags.len() > MAX_TAGS {
            return Err(format!("config.tags has more than {MAX_TAGS} entries"));
        }
        let tags = tags.iter().enumerate().map(|(n, tag)| {
            Template::compile(tag, allowance).map_err(|error| format!("config.tags[{n}]: {error}"))
        });
        Ok(Self {
            content: template(config, "content", allowance)?,
            tags: tags.collect::<Result<_, _>>()?,
            ttl_ms: match config.millis("ttlMs")? {
                Some(ms) if !(1..=MAX_TTL_MS).contains(&ms) => {
                    return Err(format!("config.ttlMs is not within 1 to {MAX_TTL_MS}"));
                }
                ms => ms,
            },
            id: template(config, "id", allowance)?,
        })
    }
}

fn template(config: Config<'_>, field: &str, allowance: &Allowance) -> Result<Option<Template>, String> {
    let source = config.text(field)?;
    let parsed =
        source.map(|source| Template::compile(source, allowance).map_err(|e| format!("config.{field}: {e}")));
    parsed.transpose()
}

/// Returns `true` for the name of a run's own scope, which only the run and its children may use.
pub(crate) fn is_of_a_run(scope: &str) -> bool {
    scope.starts_with("run:")
}

fn check_scope(field: &str, scope: Option<&str>) -> Result<(), String> {
    match scope {
        Some(scope) if !(1..=MAX_SCOPE).contains(&scope.chars().count()) => Err(format!(
            "config.{field} is not a text of 1 to {MAX_SCOPE} characters"
        )),
        Some(scope) if is_of_a_run(scope) => Err(format!(
            "config.{field} begins with 'run:', as the scopes of runs do; leave it out for the run's own scope"
        )),
        Some(_) | None => Ok(()),
    }
}
