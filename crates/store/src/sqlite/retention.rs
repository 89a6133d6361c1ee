//! Retention in SQL.
//!
//! Every statement about runs excludes removed ones: [`present!`] for a single run, [`listed!`] in lists. The
//! table of marks is almost always empty, and then either costs one lookup in an empty tree.
//!
//! Sweep steps are limited by pages rather than rows, so that a step with large bodies takes no longer than
//! others: the only writer is blocked meanwhile.

use rusqlite::{Connection, params};
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use super::{fault::Fault, rows};
use crate::{Child, EndedRoots, PhaseCursor, Removal, Swept};

/// The condition that the run in parameters 1 and 2 is not removed.
macro_rules! present {
    () => {
        " AND NOT EXISTS (SELECT 1 FROM removals AS m JOIN removals AS r ON r.tenant = m.tenant AND r.run = m.root
             WHERE m.tenant = ?1 AND m.run = ?2)"
    };
}
pub(super) use present;

/// The condition that the run of a row of this table is not removed.
macro_rules! listed {
    ($table:literal) => {
        concat!(
            " AND (NOT EXISTS (SELECT 1 FROM removals) OR NOT EXISTS (
                 SELECT 1 FROM removals AS m JOIN removals AS r ON r.tenant = m.tenant AND r.run = m.root
                 WHERE m.tenant = ",
            $table,
            ".tenant AND m.run = ",
            $table,
            ".run))"
        )
    };
}
pub(super) use listed;

const IS_GONE: &str =
    "SELECT 1 FROM removals AS m JOIN removals AS r ON r.tenant = m.tenant AND r.run = m.root
     WHERE m.tenant = ?1 AND m.run = ?2";

const NEXT_TENANT: &str = "SELECT tenant FROM runs WHERE tenant > ?1 ORDER BY tenant LIMIT 1";

const OLD_RUNS: &str = concat!(
    "SELECT run, phase_since, status IN ('completed', 'failed', 'cancelled') AND parent_run IS NULL
     FROM runs INDEXED BY runs_by_phase
     WHERE tenant = ?1 AND (phase_since, run) > (?2, ?3) AND phase_since < ?4",
    listed!("runs"),
    " ORDER BY phase_since, run LIMIT ?5"
);

const CHILDREN: &str = "SELECT run, status, updated_at FROM runs INDEXED BY runs_by_parent
     WHERE tenant = ?1 AND parent_run IS NOT NULL AND parent_run = ?2 AND run > ?3 ORDER BY run LIMIT ?4";

const MARK: &str = "INSERT INTO removals (tenant, run, root)
     SELECT tenant, run, ?3 FROM runs
     WHERE tenant = ?1 AND run = ?2 AND status IN ('completed', 'failed', 'cancelled')
     ON CONFLICT DO NOTHING";

const BEGUN: &str = "SELECT DISTINCT m.tenant, m.root FROM removals AS m INDEXED BY removals_by_root
     WHERE m.run <> m.root AND NOT EXISTS (
         SELECT 1 FROM removals AS r WHERE r.tenant = m.tenant AND r.run = m.root)
     ORDER BY m.tenant, m.root LIMIT ?1";

/// A root of a removed tree.
const GONE_ROOT: &str = "SELECT tenant, run FROM removals WHERE run = root LIMIT 1";

/// A remaining run of a removed tree, other than the root.
const GONE_RUN: &str = "SELECT run FROM removals INDEXED BY removals_by_root
     WHERE tenant = ?1 AND root = ?2 AND run <> root LIMIT 1";

const UNMARK: &str = "DELETE FROM removals WHERE tenant = ?1 AND run = ?2";

/// A table with rows owned by runs.
struct Owned {
    /// Selects at most parameter 3 rows of the run in parameters 1 and 2: (rowid, bytes of the body).
    pick: &'static str,
    /// Deletes one of the rows.
    delete: &'static str,
}

/// Tables with a body, of which a run may have any number of rows.
const WITH_BODY: [Owned; 9] = [
    Owned {
        pick: "SELECT rowid, length(bodies) FROM events WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM events WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT rowid, length(body) FROM snapshots WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM snapshots WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT rowid, length(body) FROM messages WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM messages WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT rowid, length(bytes) FROM blobs WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM blobs WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT rowid, length(body) FROM work WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM work WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT rowid, length(body) FROM deliveries WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM deliveries WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT rowid, length(body) FROM pushes WHERE tenant = ?1 AND run = ?2 LIMIT ?3",
        delete: "DELETE FROM pushes WHERE rowid = ?1",
    },
    Owned {
        pick: "SELECT place, length(body) FROM inbox WHERE tenant = ?1 AND target = ?2 LIMIT ?3",
        delete: "DELETE FROM inbox WHERE place = ?1",
    },
    // What the run wrote to scopes that it shares outlives it.
    Owned {
        pick: "SELECT rowid, size FROM agent_memory WHERE tenant = ?1 AND scope = 'run:' || ?2 LIMIT ?3",
        delete: "DELETE FROM agent_memory WHERE rowid = ?1",
    },
];

/// Tables without a body, of which an ended run has at most one row each.
const PLAIN: [&str; 2] = [
    "DELETE FROM outbox WHERE tenant = ?1 AND run = ?2",
    "DELETE FROM runs WHERE tenant = ?1 AND run = ?2",
];

/// Body bytes per unit of cost: a row costs one unit, plus one for each full page of its body.
const PAGE: u64 = 8192;

pub(super) fn is_gone(conn: &Connection, run: &RunKey) -> Result<bool, Fault> {
    let mut statement = conn.prepare_cached(IS_GONE)?;
    Ok(statement.exists(params![run.tenant.as_str(), run.run.as_str()])?)
}

pub(super) fn next_tenant(conn: &Connection, after: Option<&TenantId>) -> Result<Option<TenantId>, Fault> {
    let mut statement = conn.prepare_cached(NEXT_TENANT)?;
    // The empty string sorts before every tenant.
    let mut found = statement.query([after.map_or("", TenantId::as_str)])?;
    found
        .next()?
        .map(|row| rows::id(row, 0, TenantId::parse))
        .transpose()
}

pub(super) fn ended_roots(
    conn: &Connection,
    tenant: &TenantId,
    before: Timestamp,
    after: Option<&PhaseCursor>,
    limit: usize,
) -> Result<EndedRoots, Fault> {
    let (from, run) = after.map_or((i64::MIN, ""), |after| (after.since.millis(), after.run.as_str()));
    let mut statement = conn.prepare_cached(OLD_RUNS)?;
    let mut found = statement.query(params![
        tenant.as_str(),
        from,
        run,
        before.millis(),
        rows::limit(limit)
    ])?;
    let (mut roots, mut last, mut seen) = (Vec::new(), None, 0);
    while let Some(row) = found.next()? {
        let run = rows::id(row, 0, RunId::parse)?;
        last = Some(PhaseCursor {
            since: rows::time(row, 1)?,
            run: run.clone(),
        });
        seen += 1;
        if row.get::<_, Option<bool>>(2)? == Some(true) {
            roots.push(run);
        }
    }
    Ok(EndedRoots {
        roots,
        next: last.filter(|_| seen == limit),
    })
}

pub(super) fn children(
    conn: &Connection,
    tenant: &TenantId,
    parents: &[RunId],
    after: Option<&Child>,
    limit: usize,
) -> Result<Vec<Child>, Fault> {
    let mut parents: Vec<_> = parents.iter().collect();
    parents.sort_unstable();
    parents.dedup();
    let mut statement = conn.prepare_cached(CHILDREN)?;
    let mut children = Vec::new();
    for parent in parents {
        let from = match after {
            Some(after) if *parent < after.parent => continue,
            Some(after) if *parent == after.parent => after.run.as_str(),
            Some(_) | None => "",
        };
        let left = rows::limit(limit - children.len());
        let mut found = statement.query(params![tenant.as_str(), parent.as_str(), from, left])?;
        while let Some(row) = found.next()? {
            let ended = rows::status(row, 1)?.is_terminal();
            children.push(Child {
                parent: parent.clone(),
                run: rows::id(row, 0, RunId::parse)?,
                ended: ended.then(|| rows::time(row, 2)).transpose()?,
            });
        }
        if children.len() == limit {
            break;
        }
    }
    Ok(children)
}

pub(super) fn remove(conn: &Connection, tenant: &TenantId, removals: &[Removal]) -> Result<(), Fault> {
    let mut statement = conn.prepare_cached(MARK)?;
    for Removal { run, root } in removals {
        statement.execute(params![tenant.as_str(), run.as_str(), root.as_str()])?;
    }
    Ok(())
}

pub(super) fn begun_removals(conn: &Connection, limit: usize) -> Result<Vec<RunKey>, Fault> {
    let mut statement = conn.prepare_cached(BEGUN)?;
    let mut found = statement.query([rows::limit(limit)])?;
    let mut roots = Vec::new();
    while let Some(row) = found.next()? {
        roots.push(rows::run_key(row, 0)?);
    }
    Ok(roots)
}

/// Deletes rows up to the cost of `limit` small ones.
pub(super) fn sweep(conn: &Connection, limit: usize) -> Result<Swept, Fault> {
    let mut swept = Swept::default();
    let mut budget = limit as u64;
    while budget > 0
        && let Some(run) = next_gone(conn)?
    {
        for owned in &WITH_BODY {
            swept.rows += empty(conn, owned, &run, &mut budget)?;
        }
        if budget == 0 {
            // There may be more; the next sweep continues.
            break;
        }
        let key = (run.tenant.as_str(), run.run.as_str());
        for delete in PLAIN {
            swept.rows += conn.prepare_cached(delete)?.execute(key)?;
        }
        conn.prepare_cached(UNMARK)?.execute(key)?;
        swept.runs += 1;
        budget = budget.saturating_sub(PLAIN.len() as u64);
    }
    Ok(swept)
}

/// Returns a removed run; the root of a tree only if no other run of the tree is left.
fn next_gone(conn: &Connection) -> Result<Option<RunKey>, Fault> {
    let root = {
        let mut statement = conn.prepare_cached(GONE_ROOT)?;
        let mut found = statement.query([])?;
        match found.next()? {
            Some(row) => rows::run_key(row, 0)?,
            None => return Ok(None),
        }
    };
    let mut statement = conn.prepare_cached(GONE_RUN)?;
    let mut found = statement.query((root.tenant.as_str(), root.run.as_str()))?;
    match found.next()? {
        Some(row) => Ok(Some(root.sibling(rows::id(row, 0, RunId::parse)?))),
        None => Ok(Some(root)),
    }
}

/// Deletes a run's rows of one table within the budget and returns how many.
fn empty(conn: &Connection, owned: &Owned, run: &RunKey, budget: &mut u64) -> Result<usize, Fault> {
    let mut picked = Vec::new();
    {
        let mut statement = conn.prepare_cached(owned.pick)?;
        let most = i64::try_from(*budget).unwrap_or(i64::MAX);
        let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str(), most])?;
        while *budget > 0
            && let Some(row) = found.next()?
        {
            picked.push(row.get::<_, i64>(0)?);
            *budget = budget.saturating_sub(1 + rows::count(row, 1)? / PAGE);
        }
    }
    let mut delete = conn.prepare_cached(owned.delete)?;
    for row in &picked {
        delete.execute([row])?;
    }
    Ok(picked.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::{assert_indexed, database};

    /// The tables that have a column of this name.
    fn tables_with(conn: &Connection, column: &str) -> Vec<String> {
        let sql = "SELECT t.name FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
             WHERE t.type = 'table' AND c.name = ?1 ORDER BY t.name";
        let mut statement = conn.prepare(sql).expect("our own statement");
        let names = statement.query_map([column], |row| row.get(0)).expect("names");
        names.collect::<Result<_, _>>().expect("readable names")
    }

    #[test]
    fn every_table_with_rows_of_runs_is_swept() {
        let (_files, conn) = database();
        let mut owners = tables_with(&conn, "run");
        owners.extend(tables_with(&conn, "target"));
        // Idempotency records have their own expiry, and marks are deleted last.
        let others = ["idempotency", "removals"];
        owners.retain(|table| !others.contains(&table.as_str()));
        for table in owners {
            let delete = format!("DELETE FROM {table} ");
            let swept = WITH_BODY.iter().map(|owned| owned.delete).chain(PLAIN);
            assert_eq!(swept.filter(|sql| sql.starts_with(&delete)).count(), 1, "{table}");
        }
    }

    #[test]
    fn polling_for_removals_reads_only_matching_rows() {
        let (_files, conn) = database();
        let picks = WITH_BODY.iter().map(|owned| owned.pick);
        let owned = [NEXT_TENANT, OLD_RUNS, CHILDREN, GONE_RUN];
        assert_indexed(&conn, owned.into_iter().chain(picks));
    }
}
