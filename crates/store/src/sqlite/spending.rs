//! Counts the tokens, the cost and the time of models, in SQL.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use wopr_core::{BudgetPeriod, BudgetWindow, TenantId, Timestamp, WorkflowId};

use super::{SqliteStore, fault::Fault, guest::Guest, lanes::Lane, queue::SMALL, rows};
use crate::{
    ReadError, Spenders, Spending, SpentRow, WriteError,
    spending::{MOST_ADDED, MOST_SPENT},
};

/// The tenant as a whole is the workflow without a name.
const ADD: &str = "\
    INSERT INTO spending (tenant, workflow, per, since, until, tokens, cost_micros, time_ms)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT (tenant, workflow, per, since) DO UPDATE SET
         tokens = min(tokens + excluded.tokens, ?9), cost_micros = min(cost_micros + excluded.cost_micros, ?9),
         time_ms = min(time_ms + excluded.time_ms, ?9)";

const SELECT: &str = "\
    SELECT tenant, workflow, per, since, until, tokens, cost_micros, time_ms FROM spending
     WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR workflow IN ('', ?2)) AND since <= ?3 AND until > ?3
     ORDER BY tenant, workflow, per LIMIT ?4";

/// The same for one tenant and workflow, by the primary key alone.
const SELECT_OF: &str = "\
    SELECT tenant, workflow, per, since, until, tokens, cost_micros, time_ms FROM spending
     WHERE tenant = ?1 AND workflow IN ('', ?2) AND per IN ('hour', 'day', 'month') AND since <= ?3 AND until > ?3
     ORDER BY tenant, workflow, per LIMIT ?4";

/// The same for one tenant and all of its workflows.
const SELECT_ALL_OF: &str = "\
    SELECT tenant, workflow, per, since, until, tokens, cost_micros, time_ms FROM spending
     WHERE tenant = ?1 AND (?2 IS NULL) AND since <= ?3 AND until > ?3
     ORDER BY tenant, workflow, per LIMIT ?4";

const FORGET: &str = "\
    DELETE FROM spending WHERE (tenant, workflow, per, since) IN (
         SELECT tenant, workflow, per, since FROM spending WHERE until < ?1 LIMIT ?2)";

pub(super) fn add(conn: &Connection, tenant: &TenantId, row: &SpentRow) -> Result<(), Fault> {
    conn.prepare_cached(ADD)?.execute(params![
        tenant.as_str(),
        row.workflow.as_ref().map_or("", WorkflowId::as_str),
        row.per.as_str(),
        row.window.since.millis(),
        row.window.until.millis(),
        rows::int(row.tokens.min(MOST_ADDED)),
        rows::int(row.cost_micros.min(MOST_ADDED)),
        rows::int(row.time_ms.min(MOST_ADDED)),
        rows::int(MOST_SPENT),
    ])?;
    Ok(())
}

/// What a read is restricted to, owned.
type Owned = (Option<String>, Option<String>);

fn owned(of: Spenders<'_>) -> Owned {
    let (tenant, workflow) = of.columns();
    (tenant.map(str::to_owned), workflow.map(str::to_owned))
}

fn read(
    conn: &Connection,
    (tenant, workflow): &Owned,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(TenantId, SpentRow)>, Fault> {
    let mut statement = conn.prepare_cached(match (tenant, workflow) {
        (Some(_), Some(_)) => SELECT_OF,
        (Some(_), None) => SELECT_ALL_OF,
        (None, _) => SELECT,
    })?;
    let mut found = statement.query(params![tenant, workflow, now.millis(), rows::limit(limit)])?;
    let mut spent = Vec::new();
    while let Some(row) = found.next()? {
        let workflow = match rows::text(row, 1)? {
            "" => None,
            _ => Some(rows::id(row, 1, WorkflowId::parse)?),
        };
        let per = BudgetPeriod::parse(rows::text(row, 2)?);
        spent.push((
            rows::id(row, 0, TenantId::parse)?,
            SpentRow {
                workflow,
                per: per.ok_or_else(|| Fault::invalid(row, 2, "it is no period"))?,
                window: BudgetWindow {
                    since: rows::time(row, 3)?,
                    until: rows::time(row, 4)?,
                },
                tokens: rows::count(row, 5)?,
                cost_micros: rows::count(row, 6)?,
                time_ms: rows::count(row, 7)?,
            },
        ));
    }
    Ok(spent)
}

fn forget(conn: &Connection, before: Timestamp, limit: usize) -> Result<usize, Fault> {
    let mut statement = conn.prepare_cached(FORGET)?;
    Ok(statement.execute(params![before.millis(), rows::limit(limit)])?)
}

#[async_trait]
impl Spending for SqliteStore {
    async fn spent(
        &self,
        of: Spenders<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TenantId, SpentRow)>, ReadError> {
        let lane = match of {
            Spenders::All => Lane::Work,
            Spenders::Tenant(tenant) | Spenders::Workflow(tenant, _) => Lane::Look(tenant.clone()),
        };
        let of = owned(of);
        self.read(lane, move |conn| read(conn, &of, now, limit)).await
    }

    async fn forget_spent(&self, before: Timestamp, limit: usize) -> Result<usize, WriteError> {
        self.write(SMALL, move |conn| forget(conn, before, limit)).await
    }
}

#[async_trait]
impl Spending for Guest {
    async fn spent(
        &self,
        of: Spenders<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TenantId, SpentRow)>, ReadError> {
        self.read(|conn| read(conn, &owned(of), now, limit))
    }

    async fn forget_spent(&self, before: Timestamp, limit: usize) -> Result<usize, WriteError> {
        self.write(|conn| forget(conn, before, limit))
    }
}
