//! Picking what is handed out, within a [`Quota`].
//!
//! Without a share of tenants the rows come in the order of one index. With one they come tenant by tenant, each by a
//! seek: however many rows of one tenant wait, those of another are found at the same cost.

use rusqlite::{Connection, Row, params_from_iter, types::Value};

use super::{fault::Fault, rows};
use crate::Quota;

/// The statements that find rows of one kind. Each takes the times first, then a limit, then a tenant.
pub(super) struct Queries {
    /// The rows of all.
    pub(super) all: &'static str,
    /// The next tenant with rows, after one.
    pub(super) next_tenant: &'static str,
    /// The rows of a tenant.
    pub(super) of_tenant: &'static str,
    /// Rows that have one chance left, of all.
    pub(super) suspects: &'static str,
}

/// Reads rows, each with since when it waits.
pub(super) fn pick<T>(
    conn: &Connection,
    queries: &Queries,
    times: &[i64],
    quota: &Quota,
    read: impl Fn(&Row<'_>) -> Result<(i64, T), Fault>,
) -> Result<Vec<T>, Fault> {
    let mut picked = Vec::new();
    if quota.is_plain() {
        find(conn, queries.all, times, quota.rows, None, &read, &mut picked)?;
    } else {
        let mut next_tenant = conn.prepare_cached(queries.next_tenant)?;
        // The empty text sorts before every id.
        let mut tenant = String::new();
        loop {
            {
                let mut found = next_tenant.query([&tenant])?;
                let Some(row) = found.next()? else { break };
                rows::text(row, 0)?.clone_into(&mut tenant);
            }
            if !quota.without.iter().any(|other| other.as_str() == tenant) {
                let most = quota.per_tenant.min(quota.rows);
                find(
                    conn,
                    queries.of_tenant,
                    times,
                    most,
                    Some(&tenant),
                    &read,
                    &mut picked,
                )?;
            }
        }
        picked.sort_by_key(|(since, _)| *since);
        picked.truncate(quota.rows);
    }
    if quota.suspects > 0 {
        find(
            conn,
            queries.suspects,
            times,
            quota.suspects,
            None,
            &read,
            &mut picked,
        )?;
    }
    Ok(picked.into_iter().map(|(_, row)| row).collect())
}

fn find<T>(
    conn: &Connection,
    sql: &str,
    times: &[i64],
    limit: usize,
    tenant: Option<&str>,
    read: impl Fn(&Row<'_>) -> Result<(i64, T), Fault>,
    into: &mut Vec<(i64, T)>,
) -> Result<(), Fault> {
    let times = times.iter().map(|time| Value::Integer(*time));
    let values = times
        .chain([Value::Integer(rows::limit(limit))])
        .chain(tenant.map(|tenant| Value::Text(tenant.to_owned())));
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query(params_from_iter(values))?;
    while let Some(row) = found.next()? {
        match read(row) {
            Ok(picked) => into.push(picked),
            // The others must not wait for it.
            Err(Fault::Damaged(why)) => tracing::error!(why, "work row passed over that cannot be read"),
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}
