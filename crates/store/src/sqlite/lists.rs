//! Lists of a tenant's runs, by creation and by phase.
//!
//! Each shape of filter names the index it uses, so that the cost of a page depends only on its size. A
//! changed query plan fails the tests instead of slowing down production.

use rusqlite::{Connection, params_from_iter, types::Value};
use wopr_core::{RunId, RunStatus, TenantId};

use super::{fault::Fault, retention::listed, rows};
use crate::{Match, PhaseCursor, PhaseFilter, PhasePage, RunFilter, RunPage};

/// The text and the bound values of a statement under construction.
#[derive(Default)]
struct Query {
    sql: String,
    values: Vec<Value>,
}

impl Query {
    fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Appends a condition on one value.
    fn bind(&mut self, sql: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        let place = self.values.len().to_string();
        self.sql.extend([sql, "?", place.as_str()]);
    }
}

pub(super) fn runs(
    conn: &Connection,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<&RunId>,
    limit: usize,
) -> Result<RunPage, Fault> {
    let query = runs_query(tenant, filter, after, limit);
    let mut statement = conn.prepare_cached(&query.sql)?;
    let mut found = statement.query(params_from_iter(query.values))?;
    let mut runs = Vec::new();
    let mut has_more = false;
    while let Some(row) = found.next()? {
        if runs.len() == limit {
            has_more = true;
            break;
        }
        let (summary, head) = rows::summary(row, 1)?;
        runs.push((rows::id(row, 0, RunId::parse)?, summary, head));
    }
    Ok(RunPage { runs, has_more })
}

fn runs_query(tenant: &TenantId, filter: &RunFilter, after: Option<&RunId>, limit: usize) -> Query {
    let mut query = Query::default();
    if filter.statuses.is_empty() || filter.parent.is_some() {
        // A parent has few children: filtering them by status is cheaper than another index.
        runs_arm(&mut query, tenant, filter, after, &filter.statuses);
    } else {
        // Each status is an ordered range of an index; SQLite merges the arms without sorting.
        for (n, status) in RunStatus::ALL
            .iter()
            .filter(|status| filter.statuses.contains(status))
            .enumerate()
        {
            if n > 0 {
                query.push(" UNION ALL ");
            }
            runs_arm(&mut query, tenant, filter, after, std::slice::from_ref(status));
        }
    }
    query.bind(" ORDER BY run DESC LIMIT ", rows::limit(limit.saturating_add(1)));
    query
}

fn runs_arm(
    query: &mut Query,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<&RunId>,
    statuses: &[RunStatus],
) {
    query.push("SELECT run, ");
    query.push(rows::SUMMARY);
    query.push(" FROM runs");
    let by_status = matches!(statuses, [status] if *status != RunStatus::Completed);
    query.push(if filter.parent.is_some() {
        " INDEXED BY runs_by_parent"
    } else if by_status {
        " INDEXED BY runs_by_status"
    } else if filter.workflow.is_some() {
        " INDEXED BY runs_by_workflow"
    } else {
        ""
    });
    query.bind(" WHERE tenant = ", tenant.as_str().to_owned());
    if let Some(parent) = &filter.parent {
        query.bind(
            " AND parent_run IS NOT NULL AND parent_run = ",
            parent.as_str().to_owned(),
        );
    }
    if by_status && filter.parent.is_none() {
        // SQLite uses a partial index only if the query repeats its condition.
        query.push(" AND status <> 'completed'");
    }
    self::statuses(query, statuses);
    if let Some(workflow) = &filter.workflow {
        query.bind(" AND workflow = ", workflow.as_str().to_owned());
    }
    if let Some(principal) = &filter.principal {
        query.bind(" AND principal = ", principal.as_str().to_owned());
    }
    if let Some(after) = after {
        query.bind(" AND run < ", after.as_str().to_owned());
    }
    query.push(listed!("runs"));
}

/// Reads a page of runs by phase. They are counted unless `total` is known.
pub(super) fn phases(
    conn: &Connection,
    tenant: &TenantId,
    filter: &PhaseFilter,
    after: Option<&PhaseCursor>,
    limit: usize,
    total: Option<u64>,
) -> Result<PhasePage, Fault> {
    let total = match total {
        Some(total) => total,
        None => count(conn, &phases_count(tenant, filter))?,
    };
    let query = phases_query(tenant, filter, after, limit);
    let mut statement = conn.prepare_cached(&query.sql)?;
    let mut found = statement.query(params_from_iter(query.values))?;
    let mut runs = Vec::new();
    let mut has_more = false;
    while let Some(row) = found.next()? {
        if runs.len() == limit {
            has_more = true;
            break;
        }
        let (summary, _) = rows::summary(row, 1)?;
        runs.push((rows::id(row, 0, RunId::parse)?, summary));
    }
    Ok(PhasePage {
        runs,
        total,
        has_more,
    })
}

fn count(conn: &Connection, query: &Query) -> Result<u64, Fault> {
    let mut statement = conn.prepare_cached(&query.sql)?;
    let mut found = statement.query(params_from_iter(&query.values))?;
    match found.next()? {
        Some(row) => rows::count(row, 0),
        None => Ok(0),
    }
}

fn phases_count(tenant: &TenantId, filter: &PhaseFilter) -> Query {
    let mut query = Query::default();
    query.push("SELECT count(*)");
    phases_from(&mut query, tenant, filter);
    query
}

fn phases_query(tenant: &TenantId, filter: &PhaseFilter, after: Option<&PhaseCursor>, limit: usize) -> Query {
    let mut query = Query::default();
    query.push("SELECT run, ");
    query.push(rows::SUMMARY);
    phases_from(&mut query, tenant, filter);
    if let Some(after) = after {
        query.bind(" AND (phase_since, run) < (", after.since.millis());
        query.bind(", ", after.run.as_str().to_owned());
        query.push(")");
    }
    query.bind(
        " ORDER BY phase_since DESC, run DESC LIMIT ",
        rows::limit(limit.saturating_add(1)),
    );
    query
}

fn phases_from(query: &mut Query, tenant: &TenantId, filter: &PhaseFilter) {
    query.push(" FROM runs INDEXED BY ");
    query.push(if filter.group.is_some() {
        "runs_by_group"
    } else {
        "runs_by_phase"
    });
    query.bind(" WHERE tenant = ", tenant.as_str().to_owned());
    if let Some(group) = &filter.group {
        // SQLite uses a partial index only if the query repeats its condition.
        query.bind(" AND run_group IS NOT NULL AND run_group = ", group.clone());
    }
    statuses(query, &filter.statuses);
    match &filter.error_code {
        None => {}
        Some(Match::Is(code)) => query.bind(" AND error_code = ", code.clone()),
        Some(Match::IsNot(code)) => query.bind(" AND error_code IS NOT ", code.clone()),
    }
    match &filter.workflow {
        None => {}
        Some(Match::Is(workflow)) => query.bind(" AND workflow = ", workflow.as_str().to_owned()),
        Some(Match::IsNot(workflow)) => query.bind(" AND workflow <> ", workflow.as_str().to_owned()),
    }
    if let Some(since) = filter.since {
        query.bind(" AND phase_since >= ", since.millis());
    }
    if let Some(principal) = &filter.principal {
        query.bind(" AND principal = ", principal.as_str().to_owned());
    }
    query.push(listed!("runs"));
}

/// Appends the condition that the status is one of these, or none if there are none.
fn statuses(query: &mut Query, statuses: &[RunStatus]) {
    for (n, status) in statuses.iter().enumerate() {
        query.bind(
            if n > 0 { ", " } else { " AND status IN (" },
            status.as_str().to_owned(),
        );
    }
    if !statuses.is_empty() {
        query.push(")");
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{Timestamp, WorkflowId};

    use super::*;
    use crate::sqlite::schema::tests::database;

    fn plan(conn: &Connection, query: &Query) -> Vec<String> {
        let mut statement = conn
            .prepare(&format!("EXPLAIN QUERY PLAN {}", query.sql))
            .expect("a valid statement");
        let steps = statement
            .query_map(params_from_iter(&query.values), |row| row.get::<_, String>(3))
            .expect("a plan");
        let steps: Vec<_> = steps.collect::<Result<_, _>>().expect("readable steps");
        // Removal marks are few and checked once per query.
        let is_about_marks = |step: &str| {
            ["SCAN removals", "SEARCH m USING", "SEARCH r USING"]
                .iter()
                .any(|start| step.starts_with(start))
                || step.contains("SCALAR SUBQUERY")
        };
        steps.into_iter().filter(|step| !is_about_marks(step)).collect()
    }

    #[test]
    fn pages_of_runs_need_no_sort_and_no_table_scan() {
        let (_files, conn) = database();
        let tenant = TenantId::parse("acme").expect("a tenant");
        let run = RunId::parse("run_0000000000000000").expect("a run id");
        let some = [
            vec![],
            vec![RunStatus::Completed],
            vec![RunStatus::Failed],
            RunStatus::ALL.to_vec(),
        ];
        for statuses in some {
            for workflow in [None, Some(WorkflowId::parse("greet").expect("a workflow id"))] {
                for parent in [None, Some(run.clone())] {
                    for after in [None, Some(&run)] {
                        let filter = RunFilter {
                            statuses: statuses.clone(),
                            workflow: workflow.clone(),
                            parent: parent.clone(),
                            principal: None,
                        };
                        let plan = plan(&conn, &runs_query(&tenant, &filter, after, 10));
                        assert!(
                            !plan.iter().any(|step| step.contains("TEMP B-TREE")),
                            "{filter:?}: {plan:?}"
                        );
                        assert!(
                            !plan.iter().any(|step| step.starts_with("SCAN")),
                            "{filter:?}: {plan:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn pages_by_phase_need_no_sort_and_are_counted_by_index() {
        let (_files, conn) = database();
        let tenant = TenantId::parse("acme").expect("a tenant");
        let run = RunId::parse("run_0000000000000000").expect("a run id");
        let cursor = PhaseCursor {
            since: Timestamp::from_millis(0),
            run,
        };
        let code = || "rejected".to_owned();
        let phases = [
            (vec![], None),
            (vec![RunStatus::Running, RunStatus::Paused], None),
            (vec![RunStatus::Failed], Some(Match::Is(code()))),
            (vec![RunStatus::Failed], Some(Match::IsNot(code()))),
        ];
        for group in [None, Some("ctx".to_owned())] {
            for (statuses, error_code) in &phases {
                for since in [None, Some(Timestamp::from_millis(5))] {
                    let filter = PhaseFilter {
                        group: group.clone(),
                        statuses: statuses.clone(),
                        error_code: error_code.clone(),
                        workflow: None,
                        since,
                        principal: None,
                    };
                    for after in [None, Some(&cursor)] {
                        let plan = plan(&conn, &phases_query(&tenant, &filter, after, 10));
                        assert!(
                            !plan.iter().any(|step| step.contains("TEMP B-TREE")),
                            "{filter:?}: {plan:?}"
                        );
                    }
                    if filter.group.is_none() {
                        let plan = plan(&conn, &phases_count(&tenant, &filter));
                        assert!(
                            plan.iter().all(|step| step.contains("COVERING")),
                            "{filter:?}: {plan:?}"
                        );
                    }
                }
            }
        }
    }
}
