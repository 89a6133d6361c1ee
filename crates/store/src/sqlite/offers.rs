//! The offers port in SQL.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use wopr_core::{RunKey, TenantId, Timestamp};

use super::{SqliteStore, fault::Fault, lanes::Lane, queue::SMALL, retention::listed, rows};
use crate::{
    Fence, Leased, LeasedOffers, OfferRequest, OfferThen, OfferedQueue, Offers, ReadError, WorkKey,
    WriteError, offers::most_counted,
};

/// Rows of a worker queue, those that can be leased first in front, each with its lost leases. A lease that
/// ended between the times in parameters 4 and 5 does not count as lost.
const IN_QUEUE: &str = concat!(
    "SELECT tenant, run, queue, key, ready, length(body),
         leases - CASE WHEN leases > 0 AND ready > ?4 AND ready <= ?5 THEN 1 ELSE 0 END
     FROM work INDEXED BY work_offers
     WHERE tenant = ?1 AND worker_queue = ?2 AND deaths < 3",
    listed!("work"),
    " ORDER BY ready, run, key LIMIT ?3"
);

const LEASE: &str = "UPDATE work SET ready = ?5, fence = fence + 1, leases = ?6
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4 RETURNING body, fence, deaths";

/// Parameter 7 is 1 to give the lease back, which counts once.
const SET: &str =
    "UPDATE work SET ready = ?6, leases = max(0, leases - CASE WHEN ready <> ?6 THEN ?7 ELSE 0 END)
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4 AND fence = ?5 AND worker_queue IS NOT NULL";

const LEASED_OF_QUEUE: &str = concat!(
    "SELECT count(*) FROM (SELECT 1 FROM work INDEXED BY work_offers
     WHERE tenant = ?1 AND worker_queue = ?2 AND ready > ?3 AND deaths < 3",
    listed!("work"),
    " LIMIT ?4)"
);

const LEASED_OF_TENANT: &str = concat!(
    "SELECT count(*) FROM (SELECT 1 FROM work INDEXED BY work_offers_of_tenant
     WHERE tenant = ?1 AND worker_queue IS NOT NULL AND ready > ?2 AND deaths < 3",
    listed!("work"),
    " LIMIT ?3)"
);

const NEXT_QUEUE: &str = concat!(
    "SELECT worker_queue FROM work INDEXED BY work_offers
     WHERE tenant = ?1 AND worker_queue > ?2 AND deaths < 3",
    listed!("work"),
    " ORDER BY worker_queue LIMIT 1"
);

const COUNT_WAITING: &str = concat!(
    "SELECT count(*), min(ready) FROM (SELECT ready FROM work INDEXED BY work_offers
     WHERE tenant = ?1 AND worker_queue = ?2 AND ready <= ?3 AND deaths < 3",
    listed!("work"),
    " ORDER BY ready LIMIT ?4)"
);

/// How many rows are leased, if it matters.
fn leased(conn: &Connection, request: &OfferRequest) -> Result<(usize, usize), Fault> {
    let (tenant, now) = (request.tenant.as_str(), request.now.millis());
    let of_queue = match request.most_of_queue {
        None => 0,
        Some(most) => conn
            .prepare_cached(LEASED_OF_QUEUE)?
            .query_row(params![tenant, request.queue, now, rows::limit(most)], |row| {
                row.get::<_, u32>(0)
            })?,
    };
    let of_tenant = match request.most_of_tenant {
        None => 0,
        Some(most) => conn
            .prepare_cached(LEASED_OF_TENANT)?
            .query_row(params![tenant, now, rows::limit(most)], |row| {
                row.get::<_, u32>(0)
            })?,
    };
    let count = |n| usize::try_from(n).unwrap_or(usize::MAX);
    Ok((count(of_queue), count(of_tenant)))
}

/// A row that may be leased.
struct Found {
    run: RunKey,
    key: WorkKey,
    since: Timestamp,
    n_lost: u32,
}

fn lease(conn: &Connection, request: &OfferRequest) -> Result<LeasedOffers, Fault> {
    let (of_queue, of_tenant) = leased(conn, request)?;
    let room = request.room(of_queue, of_tenant);
    let (mut found, mut next) = (Vec::new(), None);
    {
        let mut statement = conn.prepare_cached(IN_QUEUE)?;
        // One more than there is room for, to learn when to look again.
        let most = rows::limit(room.saturating_add(1));
        let outage = request.outage;
        let mut queued = statement.query(params![
            request.tenant.as_str(),
            request.queue,
            most,
            outage.map(|outage| outage.after.millis()),
            outage.map(|outage| outage.until.millis()),
        ])?;
        let mut n_bytes = 0;
        while let Some(row) = queued.next()? {
            let since = rows::time(row, 4)?;
            if since > request.now || found.len() == room || n_bytes >= request.bytes {
                next = Some(since);
                break;
            }
            n_bytes += usize::try_from(rows::count(row, 5)?).unwrap_or(usize::MAX);
            found.push(Found {
                run: rows::run_key(row, 0)?,
                key: WorkKey::effect(rows::text(row, 3)?),
                since,
                n_lost: u32::try_from(rows::count(row, 6)?).unwrap_or(u32::MAX),
            });
        }
    }
    let lease_ends = (!found.is_empty()).then_some(request.until);
    let mut leased = LeasedOffers {
        next: [next, lease_ends].into_iter().flatten().min(),
        ..LeasedOffers::default()
    };
    for found in found {
        let Found {
            run,
            key,
            since,
            n_lost,
        } = found;
        let mut statement = conn.prepare_cached(LEASE)?;
        let mut updated = statement.query(params![
            run.tenant.as_str(),
            run.run.as_str(),
            key.queue.number(),
            key.name,
            request.until.millis(),
            n_lost + u32::from(n_lost < request.max_lost),
        ])?;
        let Some(row) = updated.next()? else {
            return Err(Fault::Damaged("a row that was just found is gone".into()));
        };
        let read = || Ok((rows::bytes(row, 0)?, rows::fence(row, 1)?, rows::deaths(row, 2)?));
        let read = read();
        // The update completes only when its statement is done.
        while updated.next()?.is_some() {}
        match read {
            Ok((body, fence, deaths)) => {
                let row = Leased {
                    run,
                    key,
                    body,
                    since,
                    fence,
                    deaths,
                };
                leased.add(request, row, n_lost);
            }
            // A damaged row must not block the others.
            Err(Fault::Damaged(why)) => tracing::error!(%why, "work row passed over that cannot be read"),
            Err(fault) => return Err(fault),
        }
    }
    Ok(leased)
}

fn set(conn: &Connection, run: &RunKey, key: &WorkKey, fence: Fence, then: OfferThen) -> Result<bool, Fault> {
    let (ready, is_given_back) = then.columns();
    let held = conn.prepare_cached(SET)?.execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        key.queue.number(),
        key.name,
        rows::int(fence.0),
        ready.millis(),
        is_given_back,
    ])?;
    Ok(held == 1)
}

fn queues(
    conn: &Connection,
    tenant: &TenantId,
    now: Timestamp,
    after: &str,
    limit: usize,
) -> Result<Vec<OfferedQueue>, Fault> {
    let mut names: Vec<String> = Vec::new();
    while names.len() < limit {
        let after = names.last().map_or(after, String::as_str);
        let mut statement = conn.prepare_cached(NEXT_QUEUE)?;
        let mut found = statement.query(params![tenant.as_str(), after])?;
        let Some(row) = found.next()? else { break };
        names.push(rows::text(row, 0)?.to_owned());
    }
    let most = rows::int(most_counted(names.len()));
    let mut queues = Vec::with_capacity(names.len());
    for queue in names {
        let key = params![tenant.as_str(), queue, now.millis(), most];
        let (waiting, oldest) = {
            let mut statement = conn.prepare_cached(COUNT_WAITING)?;
            let mut found = statement.query(key)?;
            match found.next()? {
                Some(row) => (rows::count(row, 0)?, rows::opt_time(row, 1)?),
                None => (0, None),
            }
        };
        let mut statement = conn.prepare_cached(LEASED_OF_QUEUE)?;
        let mut found = statement.query(key)?;
        let leased = found.next()?.map_or(Ok(0), |row| rows::count(row, 0))?;
        queues.push(OfferedQueue {
            queue,
            waiting,
            leased,
            oldest,
        });
    }
    Ok(queues)
}

#[async_trait]
impl Offers for SqliteStore {
    async fn lease_offers(&self, request: &OfferRequest) -> Result<LeasedOffers, WriteError> {
        let request = request.clone();
        self.write(SMALL, move |conn| lease(conn, &request)).await
    }

    async fn set_offer(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: OfferThen,
    ) -> Result<bool, WriteError> {
        let (run, key) = (run.clone(), key.clone());
        self.write(SMALL, move |conn| set(conn, &run, &key, fence, then))
            .await
    }

    async fn offered_queues(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OfferedQueue>, ReadError> {
        // No queue has the empty name, which sorts before all others.
        let (tenant, after) = (tenant.clone(), after.unwrap_or_default().to_owned());
        self.read(Lane::List(tenant.clone()), move |conn| {
            queues(conn, &tenant, now, &after, limit)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::{assert_indexed, database};

    #[test]
    fn leasing_offers_reads_only_matching_rows() {
        let (_files, conn) = database();
        assert_indexed(&conn, [IN_QUEUE, NEXT_QUEUE]);
    }
}
