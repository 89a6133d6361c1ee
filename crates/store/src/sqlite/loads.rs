//! Loads of runs that share a turn.
//!
//! Many commands at once load a small run each. A turn, the way to a reader and a transaction cost more than such a load.
//! So the load whose turn comes first also serves others of its tenant that wait at that moment, up to a bound. Those
//! give up their own turns.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;
use wopr_core::{RunKey, TenantId};

use super::{SqliteStore, fault::Fault, lanes::Lane, read};
use crate::{Load, ReadError};

/// Maximum bytes of a load that shares a turn.
const MOST: usize = 256 << 10;
/// Maximum loads of one turn.
const MANY: usize = 16;

type Answer = Result<Option<Load>, Fault>;

/// The loads that wait, in order, by tenant.
#[derive(Debug, Default)]
pub(super) struct Loads(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    by_tenant: HashMap<TenantId, BTreeMap<u64, Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    run: RunKey,
    most: usize,
    reply: oneshot::Sender<Answer>,
}

/// Takes a load out when its caller is gone.
struct Place<'l> {
    loads: &'l Loads,
    tenant: &'l TenantId,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.loads.0.lock();
        if let Some(waiters) = waiting.by_tenant.get_mut(self.tenant) {
            waiters.remove(&self.number);
            waiting.forget_if_none(self.tenant);
        }
    }
}

impl Waiting {
    fn forget_if_none(&mut self, tenant: &TenantId) {
        if self.by_tenant.get(tenant).is_some_and(BTreeMap::is_empty) {
            self.by_tenant.remove(tenant);
        }
    }
}

impl Loads {
    fn add<'l>(&'l self, run: &'l RunKey, most: usize) -> (Place<'l>, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        let waiter = Waiter {
            run: run.clone(),
            most,
            reply,
        };
        let waiters = waiting.by_tenant.entry(run.tenant.clone()).or_default();
        waiters.insert(number, waiter);
        let place = Place {
            loads: self,
            tenant: &run.tenant,
            number,
        };
        (place, answer)
    }

    /// Takes a load, and the others of its tenant that have waited for longest. Takes none if another turn has served the
    /// load already.
    fn take(&self, tenant: &TenantId, number: u64) -> Vec<Waiter> {
        let mut waiting = self.0.lock();
        let Some(waiters) = waiting.by_tenant.get_mut(tenant) else {
            return Vec::new();
        };
        let Some(own) = waiters.remove(&number) else {
            return Vec::new();
        };
        let mut taken = vec![own];
        while taken.len() < MANY
            && let Some((_, waiter)) = waiters.pop_first()
        {
            taken.push(waiter);
        }
        waiting.forget_if_none(tenant);
        taken
    }
}

/// Serves the loads as of one moment. It begins with the first read, after all of them were requested.
fn serve(conn: &Connection, waiters: Vec<Waiter>) {
    for Waiter { run, most, reply } in waiters {
        if !reply.is_closed() {
            drop(reply.send(read::load(conn, &run, most)));
        }
    }
}

impl SqliteStore {
    /// Loads a run, in a turn that it may share with others.
    pub(super) async fn load_in_turn(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError> {
        let lane = Lane::Look(run.tenant.clone());
        if most > MOST {
            let run = run.clone();
            return self.read(lane, move |conn| read::load(conn, &run, most)).await;
        }
        let (place, mut answer) = self.loads.add(run, most);
        let (loads, tenant, number) = (Arc::clone(&self.loads), run.tenant.clone(), place.number);
        let turn = self.read(lane, move |conn| {
            serve(conn, loads.take(&tenant, number));
            Ok(())
        });
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            served = turn => {
                served?;
                // Another turn may have taken this load, and be about to answer.
                answer.await
            }
        };
        match answer {
            Ok(loaded) => loaded.map_err(ReadError::from),
            Err(_) => Err(ReadError::Unavailable("the read was dropped".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::RunId;

    use super::*;
    use crate::sqlite::Options;

    fn run(tenant: &str, run: &str) -> RunKey {
        RunKey::new(
            TenantId::parse(tenant).expect("valid"),
            RunId::parse(&format!("run_{run:0>16}")).expect("valid"),
        )
    }

    #[test]
    fn a_turn_serves_its_own_load_and_the_oldest_of_its_tenant() {
        let loads = Loads::default();
        let (run, other) = (run("acme", "1"), run("other", "2"));
        let mut places: Vec<_> = (0..MANY + 3).map(|_| loads.add(&run, 1)).collect();
        let elsewhere = loads.add(&other, 1);
        // The caller of the oldest one has gone.
        drop(places.remove(0));
        let (last, _) = places.last().expect("some");
        let last = last.number;
        let taken = loads.take(&run.tenant, last);
        assert_eq!(taken.len(), MANY);
        assert!(loads.take(&run.tenant, last).is_empty(), "it is served");
        let (left, _) = &places[MANY - 1];
        assert_eq!(loads.take(&run.tenant, left.number).len(), 2);
        assert_eq!(loads.take(&other.tenant, elsewhere.0.number).len(), 1);
        drop((places, elsewhere));
        assert!(loads.0.lock().by_tenant.is_empty(), "nothing is left");
    }

    #[tokio::test]
    async fn many_loads_at_once_are_all_answered() {
        let files = tempfile::tempdir().expect("a folder");
        let options = Options {
            readers: 1,
            ..Options::default()
        };
        let store = Arc::new(SqliteStore::open(files.path().join("db"), options).expect("open"));
        let loading: Vec<_> = (0..200)
            .map(|n| {
                let store = Arc::clone(&store);
                let key = run(["acme", "other"][n % 2], &n.to_string());
                tokio::spawn(async move { store.load_in_turn(&key, [1, MOST + 1][n % 3 % 2]).await })
            })
            .collect();
        for loaded in loading {
            assert!(loaded.await.expect("no panic").expect("reads").is_none());
        }
        assert!(store.loads.0.lock().by_tenant.is_empty());
        store.close().await;
        let closed = store.load_in_turn(&run("acme", "1"), 1).await;
        assert!(matches!(closed, Err(ReadError::Unavailable(_))), "{closed:?}");
    }
}
