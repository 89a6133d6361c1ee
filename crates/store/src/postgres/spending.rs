//! Counts the tokens and the cost of models, in SQL.

use std::collections::BTreeMap;

use async_trait::async_trait;
use wopr_core::{BudgetPeriod, BudgetWindow, TenantId, Timestamp, WorkflowId};

use super::{
    PostgresStore,
    fault::Fault,
    round::{Round, value},
    rows,
};
use crate::{
    Batch, ReadError, Spenders, Spending, SpentRow, WriteError,
    spending::{MOST_ADDED, MOST_SPENT},
};

/// The tenant as a whole is the workflow without a name.
const ADD: &str = "INSERT INTO spending AS known (tenant, workflow, per, since, until, tokens, cost_micros, time_ms)
     SELECT * FROM unnest(
         $1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
     ON CONFLICT (tenant, workflow, per, since) DO UPDATE SET
         tokens = least(known.tokens + excluded.tokens, $9::bigint),
         cost_micros = least(known.cost_micros + excluded.cost_micros, $9::bigint),
         time_ms = least(known.time_ms + excluded.time_ms, $9::bigint)";

const SELECT: &str = "SELECT tenant, workflow, per, since, until, tokens, cost_micros, time_ms FROM spending
     WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR workflow IN ('', $2))
         AND since <= $3::bigint AND until > $3::bigint
     ORDER BY tenant, workflow, per LIMIT $4::bigint";

/// The same for one tenant, by the primary key.
const SELECT_OF: &str =
    "SELECT tenant, workflow, per, since, until, tokens, cost_micros, time_ms FROM spending
     WHERE tenant = $1::text AND ($2::text IS NULL OR workflow IN ('', $2))
         AND since <= $3::bigint AND until > $3::bigint
     ORDER BY tenant, workflow, per LIMIT $4::bigint";

const FORGET: &str = "DELETE FROM spending WHERE (tenant, workflow, per, since) IN (
         SELECT tenant, workflow, per, since FROM spending WHERE until < $1::bigint LIMIT $2::bigint)
     RETURNING 1";

/// Tenant, workflow, period, and the beginning and the end of a window.
type Key<'b> = (&'b str, &'b str, &'b str, i64, i64);

/// Adds what batches say. It is the last write of a transaction, and in the order of the keys: runs of a tenant share
/// these rows, so a transaction that waits for one of them holds none that another waits for.
pub(super) fn add<'b>(round: &mut Round<'b>, batches: &[&'b Batch]) {
    let mut sums: BTreeMap<Key<'_>, [u64; 3]> = BTreeMap::new();
    for batch in batches {
        for row in &batch.spent {
            let sum = sums
                .entry((
                    batch.run.tenant.as_str(),
                    row.workflow.as_ref().map_or("", WorkflowId::as_str),
                    row.per.as_str(),
                    row.window.since.millis(),
                    row.window.until.millis(),
                ))
                .or_default();
            for (sum, added) in sum.iter_mut().zip([row.tokens, row.cost_micros, row.time_ms]) {
                *sum += added.min(MOST_ADDED);
            }
        }
    }
    if sums.is_empty() {
        return;
    }
    let keys = || sums.keys();
    let values = vec![
        value(keys().map(|key| key.0).collect::<Vec<_>>()),
        value(keys().map(|key| key.1).collect::<Vec<_>>()),
        value(keys().map(|key| key.2).collect::<Vec<_>>()),
        value(keys().map(|key| key.3).collect::<Vec<_>>()),
        value(keys().map(|key| key.4).collect::<Vec<_>>()),
        value(sums.values().map(|sum| rows::int(sum[0])).collect::<Vec<_>>()),
        value(sums.values().map(|sum| rows::int(sum[1])).collect::<Vec<_>>()),
        value(sums.values().map(|sum| rows::int(sum[2])).collect::<Vec<_>>()),
        value(rows::int(MOST_SPENT)),
    ];
    round.add(ADD, values);
}

#[async_trait]
impl Spending for PostgresStore {
    async fn spent(
        &self,
        of: Spenders<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TenantId, SpentRow)>, ReadError> {
        let round = || {
            let (tenant, workflow) = of.columns();
            let values = vec![
                value(tenant),
                value(workflow),
                value(now.millis()),
                value(rows::limit(limit)),
            ];
            let statement = match tenant {
                Some(_) => SELECT_OF,
                None => SELECT,
            };
            Round::of(statement, values)
        };
        let found = match of {
            Spenders::Tenant(tenant) | Spenders::Workflow(tenant, _) => self.pool.read(tenant, round).await?,
            Spenders::All => self.pool.learn(round).await?,
        };
        let read = |row| {
            let workflow = match rows::text(row, 1)? {
                "" => None,
                _ => Some(rows::id(row, 1, WorkflowId::parse)?),
            };
            let per = BudgetPeriod::parse(rows::text(row, 2)?);
            Ok((
                rows::id(row, 0, TenantId::parse)?,
                SpentRow {
                    workflow,
                    per: per.ok_or_else(|| Fault::Damaged("spending.per: it is no period".into()))?,
                    window: BudgetWindow {
                        since: rows::time(row, 3)?,
                        until: rows::time(row, 4)?,
                    },
                    tokens: rows::count(row, 5)?,
                    cost_micros: rows::count(row, 6)?,
                    time_ms: rows::count(row, 7)?,
                },
            ))
        };
        let spent: Result<_, Fault> = found.iter().map(read).collect();
        Ok(spent?)
    }

    async fn forget_spent(&self, before: Timestamp, limit: usize) -> Result<usize, WriteError> {
        let round = || {
            let values = vec![value(before.millis()), value(rows::limit(limit))];
            Round::of(FORGET, values)
        };
        Ok(self.pool.write(round).await?.len())
    }
}
