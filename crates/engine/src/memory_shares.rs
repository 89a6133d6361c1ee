//! The share of what a host remembers that each tenant has.
//!
//! A tenant may keep so many rows and bytes. If a call would exceed them, what runs that have ended remembered in scopes
//! of their own makes room. If that is not enough, there is no room, and for some seconds nobody looks again: a look
//! reads all that the tenant remembers, and a tenant may try to write as often as it likes.
//!
//! Calls that run at the same time may exceed the share by what they write.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::{TenantId, Timestamp};
use wopr_store::{MemoryRoom, MemoryUse, Store};

use crate::{locks::Locks, remembering::Trouble};

/// Maximum rows that a tenant keeps, earlier versions included.
pub const MAX_ROWS: u64 = 10_000;
/// Maximum bytes that a tenant keeps, earlier versions included.
pub const MAX_BYTES: u64 = 64 << 20;

/// Rows deleted at once if a share is used up.
const ROWS: usize = 256;
/// Room that is made beside what is lacking, so that not each of the next calls has to look for some.
const SPARE: MemoryRoom = MemoryRoom {
    rows: MAX_ROWS / 64,
    bytes: MAX_BYTES / 64,
};
/// How long a tenant for which no room was found is taken to have none.
const FULL_FOR: Duration = Duration::from_secs(5);
/// Maximum tenants remembered as full. A further one takes the place of the first, for which the next call looks again.
const MAX_FULL: usize = 1_024;

/// Finds room for what tenants want to remember.
#[derive(Debug, Default)]
pub(crate) struct MemoryShares {
    /// The others of a tenant wait for what the first finds.
    looking: Locks<TenantId>,
    full: Mutex<HashMap<TenantId, Full>>,
}

/// A tenant for which no room was found.
#[derive(Debug)]
struct Full {
    used: MemoryUse,
    until: Instant,
}

impl MemoryShares {
    /// Makes room for rows and bytes in the share of a tenant, if it is used up. Returns what is used, and whether there
    /// is room.
    pub(crate) async fn make_room(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        scope: &str,
        wanted: MemoryRoom,
        now: Timestamp,
    ) -> Result<(MemoryUse, bool), Trouble> {
        if let Some(used) = self.full(tenant)
            && !fits(&used, &wanted)
        {
            return Ok((used, false));
        }
        let used = store.memory_use(tenant, scope).await?;
        if fits(&used, &wanted) {
            return Ok((used, true));
        }
        let _turn = self.looking.hold(tenant).await;
        let full = self.full(tenant);
        if let Some(used) = full
            && !fits(&used, &wanted)
        {
            return Ok((used, false));
        }
        let mut used = store.memory_use(tenant, scope).await?;
        // There was room for this call when there was none for another, and now there is none for this one either.
        if full.is_none() && !fits(&used, &wanted) {
            used = tidied(store, tenant, scope, &wanted, now).await?;
        }
        let has_room = fits(&used, &wanted);
        if !has_room {
            self.note(tenant, used);
        }
        Ok((used, has_room))
    }

    /// What a tenant used when no room was found a short time ago.
    fn full(&self, tenant: &TenantId) -> Option<MemoryUse> {
        let full = self.full.lock();
        let known = full.get(tenant)?;
        (Instant::now() < known.until).then_some(known.used)
    }

    /// Notes what a tenant uses for which no room was found. The time until the next look begins with the last one.
    fn note(&self, tenant: &TenantId, used: MemoryUse) {
        let now = Instant::now();
        let mut full = self.full.lock();
        full.retain(|_, known| now < known.until);
        if let Some(known) = full.get_mut(tenant) {
            known.used = used;
            return;
        }
        if full.len() >= MAX_FULL {
            let first = full.iter().min_by_key(|(_, known)| known.until);
            if let Some(first) = first.map(|(tenant, _)| tenant.clone()) {
                full.remove(&first);
            }
        }
        let until = now + FULL_FOR;
        full.insert(tenant.clone(), Full { used, until });
    }
}

fn fits(used: &MemoryUse, wanted: &MemoryRoom) -> bool {
    used.rows + wanted.rows <= MAX_ROWS && used.bytes + wanted.bytes <= MAX_BYTES
}

/// How much more has to be free. Spare room is made only of what is lacking.
fn lacking(used: &MemoryUse, wanted: &MemoryRoom) -> MemoryRoom {
    let lacks = |needed: u64, most: u64, spare: u64| match needed.saturating_sub(most) {
        0 => 0,
        lacking => lacking + spare,
    };
    MemoryRoom {
        rows: lacks(used.rows + wanted.rows, MAX_ROWS, SPARE.rows),
        bytes: lacks(used.bytes + wanted.bytes, MAX_BYTES, SPARE.bytes),
    }
}

/// Deletes what is needed least until there is room. Returns what is used then.
async fn tidied(
    store: &dyn Store,
    tenant: &TenantId,
    scope: &str,
    wanted: &MemoryRoom,
    now: Timestamp,
) -> Result<MemoryUse, Trouble> {
    // First delete the entries that no run can read any more.
    let mut used = loop {
        let n_forgotten = store.forget_memory(tenant, now, now, ROWS).await?;
        let used = store.memory_use(tenant, scope).await?;
        if n_forgotten == 0 || fits(&used, wanted) {
            break used;
        }
    };
    // Entries that only a fork can still read.
    while !fits(&used, wanted) {
        let lacking = lacking(&used, wanted);
        if store.forget_ended_scopes(tenant, lacking, ROWS).await? == 0 {
            break;
        }
        used = store.memory_use(tenant, scope).await?;
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use wopr_core::{ContentHash, PrincipalId, RunId, RunKey, RunStatus, Seq, WorkflowId};
    use wopr_store::{AgentMemory as _, Batch, Guard, Log as _, MemoryRow, MemoryStore, Summary};

    use super::*;
    use crate::remembering::copied;

    /// A run that has written so many entries to its own scope.
    async fn remembering(store: &MemoryStore, n: i64, status: RunStatus, n_entries: u64) -> RunKey {
        let at = Timestamp::from_millis(n);
        let tenant = TenantId::parse("acme").expect("valid");
        let run = RunKey::new(tenant, RunId::from_parts(at, [0; 10]));
        let workflow = WorkflowId::parse("w").expect("valid");
        let principal = PrincipalId::parse("p").expect("valid");
        let summary = Summary {
            status,
            ..Summary::new(workflow, ContentHash::of(b"w"), principal, at)
        };
        let mut batch = Batch::new(run.clone(), Guard::Create, Vec::new(), summary);
        batch.memory = (0..n_entries)
            .map(|id| MemoryRow {
                scope: run.run.memory_scope(),
                id: id.to_string(),
                seq: Seq(id + 1),
                at,
                content: Some("x".to_owned()),
                tags: Vec::new(),
                created_at: at,
                expires_at: None,
                is_untrusted: false,
            })
            .collect();
        store.append(batch).await.expect("appends");
        run
    }

    #[tokio::test]
    async fn runs_that_have_ended_make_room_for_others() {
        let store = MemoryStore::new();
        let later = remembering(&store, 2, RunStatus::Completed, 4_000).await;
        // It ended before the other.
        let first = remembering(&store, 1, RunStatus::Failed, 4_000).await;
        let live = remembering(&store, 3, RunStatus::Running, 2_000).await;
        let now = Timestamp::from_millis(9);
        let shares = MemoryShares::default();
        let room = async |n_rows| room(&shares, &store, &live.tenant, n_rows).await;
        assert_eq!(room(1).await, (6_000, true));
        assert_eq!(room(4_000).await, (6_000, true));
        assert_eq!(room(4_001).await, (2_000, true));
        assert_eq!(room(8_001).await, (2_000, false));
        for (run, is_forgotten) in [(&first, true), (&later, true), (&live, false)] {
            assert_eq!(store.has_forgotten(run).await.expect("reads"), is_forgotten);
            // A fork would begin without what its source remembered.
            let from = run.run.memory_scope();
            let copied = copied(
                (&store, &shares),
                run,
                (&from, "run:fork"),
                Vec::new(),
                (now, now),
            )
            .await;
            assert_eq!(copied.expect("reads").is_none(), is_forgotten);
        }
    }

    /// Looks for room for so many rows. Returns how many are used, and whether there is room.
    async fn room(shares: &MemoryShares, store: &MemoryStore, tenant: &TenantId, rows: u64) -> (u64, bool) {
        let wanted = MemoryRoom { rows, bytes: 1 };
        let now = Timestamp::from_millis(9);
        let made = shares.make_room(store, tenant, "team", wanted, now).await;
        let (used, has_room) = made.expect("counts");
        (used.rows, has_room)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_without_room_is_refused_without_another_look() {
        let (store, shares) = (MemoryStore::new(), MemoryShares::default());
        let live = remembering(&store, 1, RunStatus::Running, 9_990).await;
        let room = async |n_rows| room(&shares, &store, &live.tenant, n_rows).await;
        assert_eq!(room(11).await, (9_990, false));
        // A look would find something to forget now.
        remembering(&store, 2, RunStatus::Completed, 8).await;
        assert_eq!(room(11).await, (9_990, false));
        // Smaller calls are counted, but nothing is deleted for them.
        assert_eq!(room(2).await, (9_998, true));
        assert_eq!(room(3).await, (9_998, false));
        tokio::time::advance(FULL_FOR).await;
        assert_eq!(room(3).await, (9_990, true));
    }

    #[tokio::test]
    async fn ended_scopes_make_spare_room() {
        let (store, shares) = (MemoryStore::new(), MemoryShares::default());
        for n in 1..=100 {
            remembering(&store, n, RunStatus::Completed, 100).await;
        }
        let tenant = TenantId::parse("acme").expect("valid");
        assert_eq!(room(&shares, &store, &tenant, 1).await, (9_800, true));
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_remembered_as_full_are_bounded() {
        let shares = MemoryShares::default();
        let tenant = |n: usize| TenantId::parse(&format!("t{n}")).expect("valid");
        for n in 0..=MAX_FULL {
            shares.note(&tenant(n), MemoryUse::default());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(shares.full.lock().len(), MAX_FULL);
        assert!(shares.full(&tenant(0)).is_none());
        assert!(shares.full(&tenant(MAX_FULL)).is_some());
        tokio::time::advance(FULL_FOR).await;
        assert!(shares.full(&tenant(MAX_FULL)).is_none());
    }
}
