//! Loads runs within the load budget.

use wopr_core::{RunKey, Seq};
use wopr_store::{Load, Loaded, ReadError};

use crate::{
    Engine, Events,
    engine::Shared,
    load_budget::{LoadPermit, Purpose},
    turns::Turn,
    view::decode_events,
};

/// How often a run may outgrow its permit before the load is refused.
const MAX_TRIES: u32 = 4;

pub(crate) struct Fetched {
    pub(crate) loaded: Loaded,
    /// Permit for the decoded run.
    pub(crate) held: LoadPermit,
    /// Turn to load, held until the run is decoded.
    pub(crate) turn: Turn,
}

impl Engine {
    /// Reads a run once the load budget has room for it.
    pub(crate) async fn fetch(&self, key: &RunKey, purpose: Purpose) -> Result<Option<Fetched>, ReadError> {
        let Shared {
            store, load_budget, ..
        } = &*self.shared;
        let mut held = load_budget.expect(purpose, key).await?.unwrap_or_default();
        for _ in 0..MAX_TRIES {
            let turn = load_budget.turn(&key.tenant).await?;
            let needed = match store.load_within(key, held.readable()).await? {
                None => return Ok(None),
                Some(Load::Heavy(n_bytes)) => n_bytes,
                Some(Load::Whole(loaded)) => {
                    let n_bytes = loaded.parsed_size();
                    load_budget.note(key, n_bytes);
                    if held.n_bytes() < n_bytes {
                        // Give the permit back first: a tenant without permits gets one most easily.
                        drop(held);
                        held = load_budget
                            .try_hold(purpose, &key.tenant, n_bytes)
                            .unwrap_or_default();
                    }
                    if held.n_bytes() >= n_bytes {
                        let loaded = *loaded;
                        return Ok(Some(Fetched { loaded, held, turn }));
                    }
                    n_bytes
                }
            };
            // Hold nothing while waiting.
            drop((held, turn));
            held = Box::pin(load_budget.hold(purpose, &key.tenant, needed)).await?;
        }
        Err(ReadError::Unavailable(
            format!("run {key} grows while it is read").into(),
        ))
    }

    /// Reads the last events of a run's log before a position: at most `limit`, and fewer if they are large,
    /// but at least one if there are any.
    pub async fn events_before(
        &self,
        key: &RunKey,
        end: Seq,
        limit: usize,
    ) -> Result<Option<Events>, ReadError> {
        let (mut end, mut n) = (end, limit);
        loop {
            let from = Seq(end.0.saturating_sub(n as u64));
            let expected = usize::try_from(end.0 - from.0).unwrap_or(n);
            let Some(page) = self.shared.store.events(key, from, expected).await? else {
                return Ok(None);
            };
            if page.head < end {
                end = page.head;
                continue;
            }
            // A page cut short ends before `end`.
            if page.events.len() < expected {
                n = expected / 2;
                continue;
            }
            return Ok(Some(Events {
                events: decode_events(&page.events)?,
                head: page.head,
                status: page.status,
            }));
        }
    }
}
