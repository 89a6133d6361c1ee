//! Calls to what agents remember: reads entries from the store, and prepares those that the append of the outcome
//! writes. All other calls go to the host's executor.
//!
//! A call fails if its tenant or its scope has no room for what it writes. Secrets are replaced before anything is
//! stored.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wopr_core::{
    CONTENT_TRUST, Event, KernelEvent, MemoryCall, ModelCall, NewMemory, Recorded, RunId, RunKey, RunStarted,
    Seq, TenantId, Timestamp, UNTRUSTED, hex,
};
use wopr_store::{MemoryEntry, MemoryQuery, MemoryRoom, MemoryRow, ReadError, Store, WriteError};

use crate::{
    Answered, Answering, Attempt, CancelError, Cancellation, Clock, Estimate, Executor, Outcome, Recalled,
    Recalling, Report, Request, ScriptedModel,
    logs::store_failed,
    memory_shares::{MAX_BYTES, MAX_ROWS, MemoryShares},
};

/// Maximum entries of one scope.
pub const MAX_OF_SCOPE: u64 = 1_000;
/// How long a row is kept after another one has replaced it.
pub(crate) const KEPT: Duration = Duration::from_secs(24 * 3_600);

/// Maximum bytes of content that one read returns.
const MAX_READ_BYTES: usize = 512 << 10;
/// Shortest secret that is looked for: any text may contain a shorter one by chance.
const SHORTEST_SECRET: usize = 6;
/// How often an unavailable store is asked, and the first pause in between, which doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

/// The secrets of a host, for calls that must not store them.
#[async_trait]
pub trait Secrets: Send + Sync + fmt::Debug + 'static {
    /// The secrets that a tenant's runs may have seen, by name.
    async fn of(&self, tenant: &TenantId) -> Result<Vec<(String, String)>, ReadError>;
}

/// A host without secrets.
#[derive(Debug)]
pub struct NoSecrets;

#[async_trait]
impl Secrets for NoSecrets {
    async fn of(&self, _tenant: &TenantId) -> Result<Vec<(String, String)>, ReadError> {
        Ok(Vec::new())
    }
}

#[derive(Debug)]
pub(crate) struct Remembering {
    others: Arc<dyn Executor>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    secrets: Arc<dyn Secrets>,
    shares: Arc<MemoryShares>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("{message}")]
    Refused { code: &'static str, message: String },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Trouble {
    fn refused(code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Refused { code, message }
    }

    /// Whether the store may answer another time.
    const fn may_pass(&self) -> bool {
        match self {
            Self::Refused { .. } => false,
            Self::Read(error) => matches!(error, ReadError::Unavailable(_)),
            Self::Write(_) => true,
        }
    }
}

impl Remembering {
    pub(crate) fn new(
        others: Arc<dyn Executor>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        secrets: Arc<dyn Secrets>,
        shares: Arc<MemoryShares>,
    ) -> Self {
        Self {
            others,
            store,
            clock,
            secrets,
            shares,
        }
    }

    async fn perform(&self, attempt: &Attempt, call: &MemoryCall) -> Outcome {
        let mut n_tries = 0;
        loop {
            n_tries += 1;
            let trouble = match self.answer_to(attempt, call).await {
                Ok(outputs) => return Outcome::Done(outputs),
                Err(trouble) => trouble,
            };
            if trouble.may_pass() && n_tries < TRIES {
                tokio::time::sleep(PAUSE * 2_u32.pow(n_tries - 1)).await;
                continue;
            }
            let retryable = trouble.may_pass();
            let (code, message) = match trouble {
                Trouble::Refused { code, message } => (code, message),
                // What exactly is wrong with the store is for its operator.
                Trouble::Read(error) => {
                    store_failed("cannot read memory", &error);
                    ("memory_unavailable", "the memory cannot be read".to_owned())
                }
                Trouble::Write(error) => {
                    store_failed("cannot tidy memory", &error);
                    ("memory_unavailable", "the memory cannot be written".to_owned())
                }
            };
            return Outcome::Failed {
                code: code.to_owned(),
                message,
                retryable,
                retry_after: None,
                may_go_on: false,
                is_timeout: false,
            };
        }
    }

    async fn answer_to(&self, attempt: &Attempt, call: &MemoryCall) -> Result<Value, Trouble> {
        let tenant = &attempt.run.tenant;
        let now = self.clock.now();
        let secrets = self.secrets.of(tenant).await?;
        let without = |text: &String| redacted(text, &secrets);
        // Stored ids contain no secrets, so a call cannot name entries by ids that do.
        let removed: Vec<_> = call.remove.iter().map(without).collect();
        let mut written = Vec::with_capacity(call.write.len());
        for (n, entry) in call.write.iter().enumerate() {
            written.push(prepare(attempt, n, entry, &secrets, now)?);
        }
        if !written.is_empty() {
            self.find_room(tenant, &call.scope, &written, now).await?;
        }
        let mut outputs = json!({ "memoryRef": call.scope });
        if let Some(read) = &call.read {
            let query = MemoryQuery {
                scope: call.scope.clone(),
                id: read.id.as_ref().map(without),
                tag: read.tag.as_ref().map(without),
                now,
                as_of: None,
                limit: read.limit as usize + 1,
            };
            let mut stored = self.store.memory(tenant, &query).await?;
            // One that the host did not have when the entry was written.
            for entry in &mut stored {
                entry.content = without(&entry.content);
            }
            // This call also reads the entries that it writes, although they are not stored yet.
            let is_replaced = |entry: &MemoryEntry| {
                let mut own = written.iter();
                own.any(|new: &MemoryEntry| new.id == entry.id) || removed.contains(&entry.id)
            };
            let own = written.iter().rev().filter(|entry| {
                entry.expires_at.is_none_or(|at| at > now)
                    && query.id.as_ref().is_none_or(|id| *id == entry.id)
                    && query.tag.as_ref().is_none_or(|tag| entry.tags.contains(tag))
            });
            let stored = stored.iter().filter(|entry| !is_replaced(entry));
            let (mut entries, mut n_bytes) = (Vec::new(), 0);
            let mut has_more = false;
            let mut is_untrusted = false;
            for entry in own.chain(stored) {
                n_bytes += entry.content.len();
                has_more = entries.len() >= read.limit as usize || n_bytes > MAX_READ_BYTES;
                if has_more {
                    break;
                }
                is_untrusted |= entry.is_untrusted;
                entries.push(shown(entry));
            }
            outputs["entries"] = entries.into();
            outputs["hasMore"] = has_more.into();
            if is_untrusted {
                outputs[CONTENT_TRUST] = UNTRUSTED.into();
            }
        }
        if !call.write.is_empty() {
            outputs["written"] = written.iter().map(shown).collect();
        }
        if !removed.is_empty() {
            outputs["removed"] = json!(removed);
        }
        Ok(outputs)
    }

    /// Refuses entries for which the tenant or the scope has no room.
    async fn find_room(
        &self,
        tenant: &TenantId,
        scope: &str,
        written: &[MemoryEntry],
        now: Timestamp,
    ) -> Result<(), Trouble> {
        let n_bytes: usize = written.iter().map(|entry| entry.content.len()).sum();
        let wanted = MemoryRoom {
            rows: written.len() as u64,
            bytes: n_bytes as u64,
        };
        let shares = &self.shares;
        let (used, has_room) = shares.make_room(&*self.store, tenant, scope, wanted, now).await?;
        if !has_room {
            return Err(Trouble::refused(
                "memory_full",
                format!(
                    "the tenant remembers {} entries of {} bytes; {MAX_ROWS} and {MAX_BYTES} are the most",
                    used.rows, used.bytes
                ),
            ));
        }
        if used.in_scope + wanted.rows > MAX_OF_SCOPE {
            return Err(Trouble::refused(
                "memory_full",
                format!(
                    "the scope has {} entries, and {MAX_OF_SCOPE} is the most",
                    used.in_scope
                ),
            ));
        }
        Ok(())
    }
}

/// The entries of a scope that a run had when it had written `own`, the rows of its last millisecond, as rows of another
/// scope. `None` if they are no longer known, or if the tenant may not remember so much.
pub(crate) async fn copied(
    (store, shares): (&dyn Store, &MemoryShares),
    run: &RunKey,
    (from, to): (&str, &str),
    own: Vec<MemoryRow>,
    (at, now): (Timestamp, Timestamp),
) -> Result<Option<Vec<MemoryRow>>, Trouble> {
    let owner = from
        .strip_prefix(RunId::MEMORY_SCOPE)
        .and_then(|id| RunId::parse(id).ok());
    if let Some(owner) = owner
        && store.has_forgotten(&run.sibling(owner)).await?
    {
        return Ok(None);
    }
    let read = async |as_of| {
        let query = MemoryQuery {
            scope: from.to_owned(),
            id: None,
            tag: None,
            now: at,
            as_of,
            limit: usize::try_from(MAX_OF_SCOPE).unwrap_or(usize::MAX),
        };
        store.memory(&run.tenant, &query).await.map_err(Trouble::from)
    };
    let then = read(Some(at)).await?;
    let kept_ms = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
    // Since then, rows that had been replaced may have been deleted.
    if now.millis_since(at) >= kept_ms && read(None).await? != then {
        return Ok(None);
    }
    // Within the millisecond only the log says what the run wrote before, and what after.
    let before = Timestamp::from_millis(at.millis().saturating_sub(1));
    let earlier = read(Some(before)).await?.into_iter();
    // The first event of a run writes nothing: what has its number was copied from the run's own source.
    let others = then
        .into_iter()
        .filter(|entry| entry.run != run.run || entry.seq == Seq(0));
    let row_of = |entry: MemoryEntry| MemoryRow {
        scope: to.to_owned(),
        id: entry.id,
        seq: Seq(0),
        // Entries are read in the order in which they were written.
        at: entry.written_at,
        content: Some(entry.content),
        tags: entry.tags,
        created_at: entry.created_at,
        expires_at: entry.expires_at,
        is_untrusted: entry.is_untrusted,
    };
    let own = own
        .into_iter()
        .filter(|row| row.scope == from)
        .map(|row| MemoryRow {
            scope: to.to_owned(),
            seq: Seq(0),
            ..row
        });
    let mut rows = BTreeMap::new();
    for row in earlier.chain(others).map(row_of).chain(own) {
        match row.content {
            Some(_) => drop(rows.insert(row.id.clone(), row)),
            None => drop(rows.remove(&row.id)),
        }
    }
    if rows.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let rows: Vec<_> = rows.into_values().collect();
    let n_bytes: usize = rows.iter().map(MemoryRow::size).sum();
    let wanted = MemoryRoom {
        rows: rows.len() as u64,
        bytes: n_bytes as u64,
    };
    let (_, has_room) = shares.make_room(store, &run.tenant, to, wanted, now).await?;
    Ok(has_room.then_some(rows))
}

/// The entry that a call writes, without secrets.
fn prepare(
    attempt: &Attempt,
    n: usize,
    entry: &NewMemory,
    secrets: &[(String, String)],
    now: Timestamp,
) -> Result<MemoryEntry, Trouble> {
    let mut content = entry.content.clone();
    if let Some(name) = &entry.secret {
        // One that is too short to be looked for would be stored as it is.
        let mut long = secrets
            .iter()
            .filter(|(_, secret)| secret.len() >= SHORTEST_SECRET);
        let secret = long.find(|(known, _)| known == name);
        let (_, secret) = secret.ok_or_else(|| {
            Trouble::refused("credential_unavailable", format!("there is no secret '{name}'"))
        })?;
        content.push_str(secret);
    }
    Ok(MemoryEntry {
        id: match &entry.id {
            Some(id) => redacted(id, secrets),
            None => new_id(&attempt.idempotency_key, n),
        },
        content: redacted(&content, secrets),
        tags: entry.tags.iter().map(|tag| redacted(tag, secrets)).collect(),
        created_at: now,
        expires_at: entry
            .ttl_ms
            .map(|ms| Timestamp::from_millis(now.millis().saturating_add(ms))),
        is_untrusted: false,
        run: attempt.run.run.clone(),
        // The append gives the entry its own; until then nobody reads these.
        seq: Seq(0),
        written_at: now,
    })
}

/// The same for every attempt, so that an entry that is written twice is one.
fn new_id(key: &str, n: usize) -> String {
    let digest = Sha256::digest(format!("{key}:{n}").as_bytes());
    format!("mem_{}", hex(&digest[..16]))
}

/// A text with the names of secrets in their place. Longer secrets first: one may contain another.
fn redacted(text: &str, secrets: &[(String, String)]) -> String {
    let mut known: Vec<_> = secrets
        .iter()
        .filter(|(_, secret)| secret.len() >= SHORTEST_SECRET)
        .collect();
    known.sort_by_key(|(_, secret)| std::cmp::Reverse(secret.len()));
    let mut text = text.to_owned();
    for (name, secret) in known {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), &format!("[REDACTED:{name}]"));
        }
    }
    text
}

fn shown(entry: &MemoryEntry) -> Value {
    let mut shown = json!({
        "id": entry.id,
        "content": entry.content,
        "tags": entry.tags,
        "createdAt": entry.created_at.to_text(),
    });
    if let Some(at) = entry.expires_at {
        shown["expiresAt"] = at.to_text().into();
    }
    shown
}

/// The rows that events say.
fn rows(events: &[Recorded]) -> Vec<MemoryRow> {
    let rows_of = |recorded: &Recorded| {
        let (seq, at, is_untrusted) = (recorded.seq, recorded.at, recorded.is_untrusted);
        match &recorded.event {
            Event::Kernel(KernelEvent::MemoryWritten(written)) => vec![MemoryRow {
                scope: written.scope.clone(),
                id: written.id.clone(),
                seq,
                at,
                content: Some(written.content.clone()),
                tags: written.tags.clone(),
                created_at: written.created_at,
                expires_at: written.expires_at,
                is_untrusted,
            }],
            Event::Kernel(KernelEvent::MemoryCompacted {
                scope,
                sources,
                output,
                ..
            }) => {
                let others = sources.iter().filter(|source| *source != output);
                let removal = |id: &String| MemoryRow {
                    scope: scope.clone(),
                    id: id.clone(),
                    seq,
                    at,
                    content: None,
                    tags: Vec::new(),
                    created_at: at,
                    expires_at: None,
                    is_untrusted: false,
                };
                others.map(removal).collect()
            }
            Event::Kernel(_) | Event::Dialect(_) => Vec::new(),
        }
    };
    events.iter().flat_map(rows_of).collect()
}

/// The rows that these events of a run write.
///
/// A branch may go live in the middle of a decision of its source. The rest of that decision follows from an outcome of
/// the source, and names the source's scopes: what belongs to the source's own scope belongs to the branch's, and the
/// source has already written the rest. The branch's own calls end in later appends.
pub(crate) fn written_by(run: &RunId, started: &RunStarted, events: &[Recorded]) -> Vec<MemoryRow> {
    let own_depth = started.fork.as_ref().map(|fork| fork.depth);
    let goes_live = |recorded: &Recorded| match recorded.event {
        Event::Kernel(KernelEvent::ForkResumed { depth, .. }) => Some(depth) == own_depth,
        Event::Kernel(_) | Event::Dialect(_) => false,
    };
    let Some(live) = events.iter().position(goes_live) else {
        return rows(events);
    };
    let own = run.memory_scope();
    // The source has already written what the fork repeats.
    let mut rows = rows(&events[live..]);
    rows.retain(|row| row.scope == own || started.replaces_memory_scope(&row.scope));
    for row in &mut rows {
        row.scope.clone_from(&own);
    }
    rows
}

#[async_trait]
impl Executor for Remembering {
    async fn run(&self, attempt: Attempt) -> Report {
        let Request::Memory(call) = &attempt.request else {
            return self.others.run(attempt).await;
        };
        self.perform(&attempt, call).await.into()
    }

    async fn answer(&self, answer: Answering) -> Result<Answered, CancelError> {
        self.others.answer(answer).await
    }

    fn may_go_on(&self, provider: &str) -> bool {
        self.others.may_go_on(provider)
    }

    fn scripted_model(&self) -> Option<&dyn ScriptedModel> {
        self.others.scripted_model()
    }

    fn estimate(&self, tenant: &TenantId, call: &ModelCall) -> Estimate {
        self.others.estimate(tenant, call)
    }

    async fn recall(&self, call: Recalling) -> Result<Recalled, CancelError> {
        self.others.recall(call).await
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        self.others.cancel(call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_by_their_names() {
        let secret = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let secrets = [
            secret("short", "abc"),
            secret("key", "sk-12345678"),
            secret("longer", "sk-12345678-and-more"),
        ];
        for (text, expected) in [
            ("nothing here", "nothing here"),
            ("abc", "abc"),
            ("it is sk-12345678!", "it is [REDACTED:key]!"),
            ("sk-12345678-and-more", "[REDACTED:longer]"),
            ("sk-12345678sk-12345678", "[REDACTED:key][REDACTED:key]"),
        ] {
            assert_eq!(redacted(text, &secrets), expected);
        }
    }

    #[test]
    fn ids_are_the_same_for_every_attempt() {
        assert_eq!(new_id("key", 0), new_id("key", 0));
        assert_ne!(new_id("key", 0), new_id("key", 1));
    }
}
