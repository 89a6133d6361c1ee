//! What agents remember, in memory.

use std::collections::BTreeSet;

use async_trait::async_trait;
use wopr_core::{RunId, Seq, TenantId, Timestamp};

use super::MemoryStore;
use crate::{AgentMemory, MemoryEntry, MemoryQuery, MemoryRow, MemoryUse, ReadError, WriteError};

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
                latest.map(|((at, run, _), row)| (*at, id, run, row))
            })
            .filter(|(_, id, ..)| query.id.as_ref().is_none_or(|wanted| wanted == *id))
            .filter(|(.., row)| row.expires_at.is_none_or(|at| at > query.now))
            .filter(|(.., row)| query.tag.as_ref().is_none_or(|tag| row.tags.contains(tag)))
            .filter_map(|(at, id, run, row)| {
                let entry = MemoryEntry {
                    id: id.clone(),
                    content: row.content.clone()?,
                    tags: row.tags.clone(),
                    created_at: row.created_at,
                    expires_at: row.expires_at,
                    is_untrusted: row.is_untrusted,
                    run: run.clone(),
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

    async fn forget_memory(
        &self,
        tenant: Option<&TenantId>,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        let mut n_forgotten = 0;
        let mut empty = BTreeSet::new();
        for (place, versions) in &mut state.memory {
            if tenant.is_some_and(|tenant| *tenant != place.0) {
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
}
