//! What agents remember, in memory.

use std::collections::BTreeSet;

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, Seq, TenantId, Timestamp};

use super::MemoryStore;
use crate::{AgentMemory, MemoryEntry, MemoryQuery, MemoryRoom, MemoryRow, MemoryUse, ReadError, WriteError};

/// The tenant, the scope and the id of an entry.
pub(super) type Place = (TenantId, String, String);
/// The versions of an entry, in their order.
pub(super) type Versions = std::collections::BTreeMap<(Timestamp, RunId, Seq), MemoryRow>;

#[async_trait]
impl AgentMemory for MemoryStore {
    async fn memory(&self, tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, ReadError> {
        let state = self.state.lock();
        let of_scope = state
            .memory
            .iter()
            .filter(|((of, scope, _), _)| of == tenant && *scope == query.scope);
        let mut found: Vec<_> = of_scope
            .filter_map(|((_, _, id), versions)| {
                let mut written = versions.iter().rev();
                let latest = written.find(|((at, ..), _)| query.as_of.is_none_or(|as_of| *at <= as_of));
                latest.map(|((at, run, seq), row)| (*at, id, (run, *seq), row))
            })
            .filter(|(_, id, ..)| query.id.as_ref().is_none_or(|wanted| wanted == *id))
            .filter(|(.., row)| row.expires_at.is_none_or(|at| at > query.now))
            .filter(|(.., row)| query.tag.as_ref().is_none_or(|tag| row.tags.contains(tag)))
            .filter_map(|(at, id, (run, seq), row)| {
                let entry = MemoryEntry {
                    id: id.clone(),
                    content: row.content.clone()?,
                    tags: row.tags.clone(),
                    created_at: row.created_at,
                    expires_at: row.expires_at,
                    is_untrusted: row.is_untrusted,
                    run: run.clone(),
                    seq,
                    written_at: at,
                };
                Some((at, entry))
            })
            .collect();
        found.sort_by(|(a, left), (b, right)| b.cmp(a).then_with(|| left.id.cmp(&right.id)));
        found.truncate(query.limit);
        Ok(found.into_iter().map(|(_, entry)| entry).collect())
    }

    async fn memory_use(&self, tenant: &TenantId, scope: &str) -> Result<MemoryUse, ReadError> {
        let state = self.state.lock();
        let mut used = MemoryUse::default();
        for ((of, within, _), versions) in &state.memory {
            if of == tenant {
                used.rows += versions.len() as u64;
                used.bytes += versions.values().map(|row| row.size() as u64).sum::<u64>();
                used.in_scope += u64::from(within == scope);
            }
        }
        Ok(used)
    }

    async fn next_remembering(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        let state = self.state.lock();
        let mut tenants = state.memory.keys().map(|(tenant, ..)| tenant);
        Ok(tenants
            .find(|tenant| after.is_none_or(|after| *tenant > after))
            .cloned())
    }

    async fn forget_memory(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        let mut n_forgotten = 0;
        let mut empty = BTreeSet::new();
        for (place, versions) in &mut state.memory {
            if *tenant != place.0 {
                continue;
            }
            while n_forgotten < limit {
                let mut newest = versions.iter().rev();
                let (Some((at, row)), next) = (newest.next(), newest.next()) else {
                    break;
                };
                let is_over =
                    row.expires_at.is_some_and(|at| at <= now) || (row.content.is_none() && at.0 < before);
                let mut replaced = versions.keys().zip(versions.keys().skip(1));
                let oldest = replaced.next().filter(|(_, by)| by.0 < before);
                let gone = match oldest {
                    Some((gone, _)) => gone.clone(),
                    None if next.is_none() && is_over => at.clone(),
                    None => break,
                };
                versions.remove(&gone);
                n_forgotten += 1;
            }
            if versions.is_empty() {
                empty.insert(place.clone());
            }
        }
        state.memory.retain(|place, _| !empty.contains(place));
        Ok(n_forgotten)
    }

    async fn forget_ended_scopes(
        &self,
        tenant: &TenantId,
        wanted: MemoryRoom,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        let scopes = state.memory.keys().filter(|(of, ..)| of == tenant);
        let ended: BTreeSet<_> = scopes
            .filter_map(|(_, scope, _)| {
                let id = scope
                    .strip_prefix(RunId::MEMORY_SCOPE)
                    .and_then(|id| RunId::parse(id).ok())?;
                let run = state.runs.get(&RunKey::new(tenant.clone(), id.clone()));
                let is_over = run.is_none_or(|run| run.summary.status.is_terminal());
                is_over.then(|| (run.map(|run| run.summary.updated_at), scope.clone(), id))
            })
            .collect();
        let (mut freed, mut n_rows) = (MemoryRoom::default(), 0);
        for (_, scope, id) in ended {
            if freed.covers(&wanted) || n_rows >= limit {
                break;
            }
            if let Some(run) = state.runs.get_mut(&RunKey::new(tenant.clone(), id)) {
                run.memory_forgotten = true;
            }
            state.memory.retain(|(of, within, _), versions| {
                let is_forgotten = of == tenant && *within == scope;
                if is_forgotten {
                    n_rows += versions.len();
                    freed.rows += versions.len() as u64;
                    freed.bytes += versions.values().map(|row| row.size() as u64).sum::<u64>();
                }
                !is_forgotten
            });
        }
        Ok(n_rows)
    }

    async fn has_forgotten(&self, run: &RunKey) -> Result<bool, ReadError> {
        let state = self.state.lock();
        Ok(state.run(run).is_some_and(|run| run.memory_forgotten))
    }
}
