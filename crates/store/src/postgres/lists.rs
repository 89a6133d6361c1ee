//! Lists of a tenant's runs, by creation and by phase.
//!
//! The cost of a page depends only on its size: each status is a subquery, ordered by an index and limited to
//! the page, and the results are merged. Statuses are written into the text as constants, because only then
//! does the planner use the partial index.

use tokio_postgres::types::Type;
use wopr_core::{RunId, RunStatus, TenantId};

use super::{
    fault::Fault,
    pool::Pool,
    retention::listed,
    round::{Round, Value, value},
    rows,
};
use crate::{Match, PhaseCursor, PhaseFilter, PhasePage, RunFilter, RunPage};

/// The text and the bound values of a statement under construction.
#[derive(Default)]
struct Query<'v> {
    sql: String,
    values: Vec<(Value<'v>, Type)>,
}

impl<'v> Query<'v> {
    fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Appends text and a placeholder for a value.
    fn bind(&mut self, sql: &str, value: Value<'v>, kind: Type) {
        self.values.push((value, kind));
        let place = self.values.len().to_string();
        self.sql.extend([sql, "$", place.as_str()]);
    }

    fn text(&mut self, sql: &str, text: &'v str) {
        self.bind(sql, value(text), Type::TEXT);
    }

    fn number(&mut self, sql: &str, number: i64) {
        self.bind(sql, value(number), Type::INT8);
    }

    fn round(self) -> Round<'v> {
        Round::typed(self.sql, self.values)
    }
}

pub(super) async fn runs(
    pool: &Pool,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<&RunId>,
    limit: usize,
) -> Result<RunPage, Fault> {
    let found = pool
        .list(tenant, || runs_query(tenant, filter, after, limit).round())
        .await?;
    let mut runs = Vec::with_capacity(found.len().min(limit));
    for row in found.iter().take(limit) {
        let (summary, head) = rows::summary(row, 1)?;
        runs.push((rows::id(row, 0, RunId::parse)?, summary, head));
    }
    Ok(RunPage {
        runs,
        has_more: found.len() > limit,
    })
}

fn runs_query<'v>(
    tenant: &'v TenantId,
    filter: &'v RunFilter,
    after: Option<&'v RunId>,
    limit: usize,
) -> Query<'v> {
    let most = rows::limit(limit.saturating_add(1));
    let mut query = Query::default();
    let wanted: Vec<_> = RunStatus::ALL
        .into_iter()
        .filter(|status| filter.statuses.contains(status))
        .collect();
    if wanted.len() < 2 || filter.parent.is_some() {
        // A parent has few children: filtering them by status is cheaper than another index.
        runs_arm(&mut query, tenant, filter, after, &wanted);
    } else {
        for (n, status) in wanted.iter().enumerate() {
            query.push(if n > 0 { " UNION ALL (" } else { "(" });
            runs_arm(&mut query, tenant, filter, after, std::slice::from_ref(status));
            query.number(" ORDER BY run DESC LIMIT ", most);
            query.push(")");
        }
    }
    query.number(" ORDER BY run DESC LIMIT ", most);
    query
}

fn runs_arm<'v>(
    query: &mut Query<'v>,
    tenant: &'v TenantId,
    filter: &'v RunFilter,
    after: Option<&'v RunId>,
    statuses: &[RunStatus],
) {
    query.push("SELECT run, ");
    query.push(rows::SUMMARY);
    query.push(" FROM runs");
    query.text(" WHERE tenant = ", tenant.as_str());
    if let Some(parent) = &filter.parent {
        query.text(" AND parent_run = ", parent.as_str());
    }
    self::statuses(query, statuses);
    if let Some(workflow) = &filter.workflow {
        query.text(" AND workflow = ", workflow.as_str());
    }
    if let Some(principal) = &filter.principal {
        query.text(" AND principal = ", principal.as_str());
    }
    if let Some(after) = after {
        query.text(" AND run < ", after.as_str());
    }
    query.push(listed!("runs"));
}

pub(super) async fn phases(
    pool: &Pool,
    tenant: &TenantId,
    filter: &PhaseFilter,
    after: Option<&PhaseCursor>,
    limit: usize,
) -> Result<PhasePage, Fault> {
    let found = pool
        .list(tenant, || phases_query(tenant, filter, after, limit).round())
        .await?;
    let total = found.first().map(|row| rows::count(row, 0)).transpose()?;
    let mut page: Vec<_> = found.iter().collect();
    // An empty page is one row that contains only the total.
    if let [only] = page.as_slice()
        && rows::opt_text(only, 1)?.is_none()
    {
        page.clear();
    }
    let mut runs = Vec::with_capacity(page.len().min(limit));
    for row in page.iter().take(limit) {
        let (summary, _) = rows::summary(row, 2)?;
        runs.push((rows::id(row, 1, RunId::parse)?, summary));
    }
    Ok(PhasePage {
        runs,
        total: total.unwrap_or(0),
        has_more: page.len() > limit,
    })
}

/// One statement for the page and the total, so that they agree.
fn phases_query<'v>(
    tenant: &'v TenantId,
    filter: &'v PhaseFilter,
    after: Option<&'v PhaseCursor>,
    limit: usize,
) -> Query<'v> {
    let mut query = Query::default();
    query.push("SELECT c.total, t.* FROM (SELECT count(*) AS total");
    phases_from(&mut query, tenant, filter);
    query.push(") AS c LEFT JOIN LATERAL (SELECT run, ");
    query.push(rows::SUMMARY);
    phases_from(&mut query, tenant, filter);
    if let Some(after) = after {
        query.number(" AND (phase_since, run) < (", after.since.millis());
        query.text(", ", after.run.as_str());
        query.push(")");
    }
    query.number(
        " ORDER BY phase_since DESC, run DESC LIMIT ",
        rows::limit(limit.saturating_add(1)),
    );
    query.push(") AS t ON true ORDER BY t.phase_since DESC, t.run DESC");
    query
}

fn phases_from<'v>(query: &mut Query<'v>, tenant: &'v TenantId, filter: &'v PhaseFilter) {
    query.text(" FROM runs WHERE tenant = ", tenant.as_str());
    if let Some(group) = &filter.group {
        query.bind(" AND run_group = ", value(rows::free(group)), Type::TEXT);
    }
    statuses(query, &filter.statuses);
    match &filter.error_code {
        None => {}
        Some(Match::Is(code)) => {
            query.bind(" AND error_code = ", value(rows::free(code)), Type::TEXT);
        }
        Some(Match::IsNot(code)) => {
            query.bind(
                " AND error_code IS DISTINCT FROM ",
                value(rows::free(code)),
                Type::TEXT,
            );
        }
    }
    match &filter.workflow {
        None => {}
        Some(Match::Is(workflow)) => query.text(" AND workflow = ", workflow.as_str()),
        Some(Match::IsNot(workflow)) => query.text(" AND workflow <> ", workflow.as_str()),
    }
    if let Some(since) = filter.since {
        query.number(" AND phase_since >= ", since.millis());
    }
    if let Some(principal) = &filter.principal {
        query.text(" AND principal = ", principal.as_str());
    }
    query.push(listed!("runs"));
}

/// Appends the condition that the status is one of these, or none if there are none.
fn statuses(query: &mut Query<'_>, statuses: &[RunStatus]) {
    for (n, status) in statuses.iter().enumerate() {
        // Statuses are our own constants and need no quoting.
        query.push(if n > 0 { ", '" } else { " AND status IN ('" });
        query.push(status.as_str());
        query.push(if n + 1 < statuses.len() { "'" } else { "')" });
    }
}
