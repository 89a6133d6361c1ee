//! The offers port in SQL. Each call writes with one statement, which is its own transaction; a lease is followed by a
//! read of when to look again.

use async_trait::async_trait;
use wopr_core::{RunKey, TenantId, Timestamp};

use super::{
    PostgresStore,
    fault::Fault,
    retention::listed,
    round::{Round, value},
    rows,
    work::{of_row, read_leased},
};
use crate::{
    Fence, Hint, LeasedOffers, MOST_COUNTED, OfferRequest, OfferThen, OfferedQueue, Offers, Queue, ReadError,
    WorkKey, WriteError,
};

/// Locks the rows that it leases and passes over those that somebody else has locked. Parameters 7 and 8 are the most
/// rows that may be leased at once of the queue and of the tenant; null for no limit, and then nothing is counted. After
/// so many lost leases as parameter 9 says the host leases a row for itself, which is not counted. A lease that ended
/// between parameters 10 and 11 was not lost.
const LEASE: &str = concat!(
    "WITH free AS (
         SELECT tenant, run, queue, key, ready, octet_length(body) AS n_bytes,
             leases - CASE WHEN leases > 0 AND ready > $10::bigint AND ready <= $11::bigint THEN 1 ELSE 0 END AS lost
         FROM work
         WHERE tenant = $1 AND worker_queue = $2 AND ready <= $3 AND deaths < 3",
    listed!("work"),
    " ORDER BY ready, run, key
         LIMIT (SELECT least($5::bigint,
             CASE WHEN $7::bigint IS NOT NULL THEN greatest(0, $7::bigint - (SELECT count(*) FROM (
                 SELECT FROM work WHERE tenant = $1 AND worker_queue = $2 AND ready > $3 AND deaths < 3",
    listed!("work"),
    " LIMIT $7::bigint) AS q)) END,
             CASE WHEN $8::bigint IS NOT NULL THEN greatest(0, $8::bigint - (SELECT count(*) FROM (
                 SELECT FROM work WHERE tenant = $1 AND worker_queue IS NOT NULL AND ready > $3 AND deaths < 3",
    listed!("work"),
    " LIMIT $8::bigint) AS t)) END))
         FOR UPDATE SKIP LOCKED),
     fitting AS (SELECT *, sum(n_bytes) OVER (ORDER BY ready, run, key) - n_bytes AS before FROM free)
     UPDATE work AS w SET ready = $4, fence = w.fence + 1,
         leases = t.lost + CASE WHEN t.lost < $9::bigint THEN 1 ELSE 0 END
     FROM fitting AS t
     WHERE t.before < $6::bigint AND w.tenant = t.tenant AND w.run = t.run AND w.queue = t.queue AND w.key = t.key
     RETURNING w.tenant, w.run, w.key, w.body, t.ready, w.fence, w.deaths, t.lost"
);

const NEXT: &str = concat!(
    "SELECT ready FROM work WHERE tenant = $1 AND worker_queue = $2 AND deaths < 3",
    listed!("work"),
    " ORDER BY ready LIMIT 1"
);

/// Returns a row if the lease is held. Parameter 7 is 1 to give the lease back, which counts once.
const SET: &str = "UPDATE work SET ready = $6,
         leases = greatest(0, leases - CASE WHEN ready <> $6 THEN $7::bigint ELSE 0 END)
     WHERE tenant = $1 AND run = $2 AND queue = $3 AND key = $4 AND fence = $5 AND worker_queue IS NOT NULL
     RETURNING fence";

/// Finds the queues each by a seek, and counts an equal share of rows in each.
const QUEUES: &str = concat!(
    "WITH RECURSIVE seeks AS (
         (SELECT worker_queue FROM work WHERE tenant = $1 AND worker_queue > $3 AND deaths < 3",
    listed!("work"),
    " ORDER BY worker_queue LIMIT 1)
         UNION ALL
         SELECT next.worker_queue FROM seeks AS s, LATERAL (
             SELECT worker_queue FROM work WHERE tenant = $1 AND worker_queue > s.worker_queue AND deaths < 3",
    listed!("work"),
    " ORDER BY worker_queue LIMIT 1) AS next),
     found AS (SELECT worker_queue FROM seeks LIMIT $4),
     share AS (SELECT greatest(1, $5::bigint / greatest(1, count(*))) AS most FROM found)
     SELECT f.worker_queue, waiting.n, waiting.oldest, leased.n FROM found AS f,
         LATERAL (SELECT count(*) AS n, min(ready) AS oldest FROM (
             SELECT ready FROM work WHERE tenant = $1 AND worker_queue = f.worker_queue AND ready <= $2
                 AND deaths < 3",
    listed!("work"),
    " ORDER BY ready LIMIT (SELECT most FROM share)) AS x) AS waiting,
         LATERAL (SELECT count(*) AS n FROM (
             SELECT FROM work WHERE tenant = $1 AND worker_queue = f.worker_queue AND ready > $2
                 AND deaths < 3",
    listed!("work"),
    " LIMIT (SELECT most FROM share)) AS x) AS leased
     ORDER BY f.worker_queue"
);

#[async_trait]
impl Offers for PostgresStore {
    async fn lease_offers(&self, request: &OfferRequest) -> Result<LeasedOffers, WriteError> {
        let lease = || {
            Round::of(
                LEASE,
                vec![
                    value(request.tenant.as_str()),
                    value(rows::free(&request.queue)),
                    value(request.now.millis()),
                    value(request.until.millis()),
                    value(rows::limit(request.rows)),
                    value(rows::limit(request.bytes)),
                    value(request.most_of_queue.map(rows::limit)),
                    value(request.most_of_tenant.map(rows::limit)),
                    value(i64::from(request.max_lost)),
                    value(request.outage.map(|outage| outage.after.millis())),
                    value(request.outage.map(|outage| outage.until.millis())),
                ],
            )
        };
        let found = self.pool.write(lease).await?;
        let mut leased = Vec::with_capacity(found.len());
        let mut damage = None;
        for row in &found {
            let read = read_leased(Queue::Effects, row);
            match read.and_then(|leased| Ok((leased, rows::count(row, 7)?))) {
                Ok(row) => leased.push(row),
                // This row is leased and its lease will expire; the other leased rows must not wait for that.
                Err(fault) => {
                    tracing::error!(?fault, "leased an offer that cannot be read");
                    damage = Some(fault);
                }
            }
        }
        if let (Some(fault), true) = (damage, leased.is_empty()) {
            return Err(fault.into());
        }
        leased.sort_unstable_by(|(one, _), (other, _)| {
            (one.since, &one.run, &one.key).cmp(&(other.since, &other.run, &other.key))
        });
        let next = || {
            let key = vec![value(request.tenant.as_str()), value(rows::free(&request.queue))];
            Round::of(NEXT, key)
        };
        let read = self.pool.learn(next).await;
        let read = read.and_then(|found| found.first().map(|row| rows::time(row, 0)).transpose());
        let next = match read {
            Ok(next) => next,
            // The rows are leased, and must not be lost because it is unknown when to look again.
            Err(fault) if !leased.is_empty() => {
                tracing::warn!(?fault, "cannot read when the next offer is due");
                Some(request.now)
            }
            Err(fault) => return Err(fault.into()),
        };
        let mut offers = LeasedOffers {
            next,
            ..LeasedOffers::default()
        };
        for (row, n_lost) in leased {
            offers.add(request, row, u32::try_from(n_lost).unwrap_or(u32::MAX));
        }
        Ok(offers)
    }

    async fn set_offer(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: OfferThen,
    ) -> Result<bool, WriteError> {
        let (ready, is_given_back) = then.columns();
        let set = || {
            let mut values = of_row(run, key);
            values.extend([
                value(rows::int(fence.0)),
                value(ready.millis()),
                value(i64::from(is_given_back)),
            ]);
            Round::of(SET, values)
        };
        let is_held = !self.pool.write(set).await?.is_empty();
        if is_held && is_given_back {
            // Workers may wait at another process.
            self.tell(Hint::Run(run.clone()));
        }
        Ok(is_held)
    }

    async fn offered_queues(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OfferedQueue>, ReadError> {
        let round = || {
            Round::of(
                QUEUES,
                vec![
                    value(tenant.as_str()),
                    value(now.millis()),
                    value(rows::free(after.unwrap_or_default())),
                    value(rows::limit(limit)),
                    value(rows::int(MOST_COUNTED)),
                ],
            )
        };
        let found = self.pool.list(tenant, round).await?;
        let queue = |row| {
            Ok(OfferedQueue {
                queue: rows::free_text(row, 0)?,
                waiting: rows::count(row, 1)?,
                oldest: rows::opt_time(row, 2)?,
                leased: rows::count(row, 3)?,
            })
        };
        let queues: Result<_, Fault> = found.iter().map(queue).collect();
        Ok(queues?)
    }
}
