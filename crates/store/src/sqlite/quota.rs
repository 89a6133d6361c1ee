//! Selection of rows to lease, within a [`Quota`].
//!
//! Without limits per tenant the rows come in the order of one index. With limits they are read tenant by
//! tenant, each by a seek, so that the cost for one tenant does not depend on how many rows of another wait.

use rusqlite::{Connection, Row, params_from_iter, types::Value};

use super::{fault::Fault, rows};
use crate::Quota;

pub(super) struct Found<T> {
    /// When the row became available.
    pub(super) since: i64,
    /// The size of the body, which is read later.
    pub(super) n_bytes: u64,
    pub(super) row: T,
}

/// A byte budget, which the last taker may exceed.
pub(super) struct Bytes(u64);

impl Bytes {
    pub(super) const fn new(most: usize) -> Self {
        Self(most as u64)
    }

    pub(super) const fn take(&mut self, n_bytes: u64) -> bool {
        let has_some = self.0 > 0;
        self.0 = self.0.saturating_sub(n_bytes);
        has_some
    }
}

/// The statements that find rows of one kind. Their parameters are the times, a limit and a tenant.
pub(super) struct Queries {
    /// Rows of all tenants.
    pub(super) all: &'static str,
    /// The next tenant with rows after the given one.
    pub(super) next_tenant: &'static str,
    /// Rows of one tenant.
    pub(super) of_tenant: &'static str,
    /// Suspects of all tenants.
    pub(super) suspects: &'static str,
}

/// Selects rows, with the suspects last.
pub(super) fn pick<T>(
    conn: &Connection,
    queries: &Queries,
    times: &[i64],
    quota: &Quota,
    read: impl Fn(&Row<'_>) -> Result<Found<T>, Fault>,
) -> Result<Vec<Found<T>>, Fault> {
    let mut picked = Vec::new();
    let most = (quota.rows, quota.bytes);
    if quota.is_plain() {
        find(conn, queries.all, times, most, None, &read, &mut picked)?;
    } else {
        let mut next_tenant = conn.prepare_cached(queries.next_tenant)?;
        // The empty string sorts before every id.
        let mut tenant = String::new();
        loop {
            {
                let mut found = next_tenant.query([&tenant])?;
                let Some(row) = found.next()? else { break };
                rows::text(row, 0)?.clone_into(&mut tenant);
            }
            if !quota.without.iter().any(|other| other.as_str() == tenant) {
                let most = (quota.per_tenant.min(quota.rows), quota.bytes_per_tenant);
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
        picked.sort_by_key(|found| found.since);
        picked.truncate(quota.rows);
        let mut left = Bytes::new(quota.bytes);
        picked.retain(|found| left.take(found.n_bytes));
    }
    if quota.suspects > 0 {
        find(
            conn,
            queries.suspects,
            times,
            (quota.suspects, quota.bytes),
            None,
            &read,
            &mut picked,
        )?;
    }
    Ok(picked)
}

fn find<T>(
    conn: &Connection,
    sql: &str,
    times: &[i64],
    (limit, most_bytes): (usize, usize),
    tenant: Option<&str>,
    read: impl Fn(&Row<'_>) -> Result<Found<T>, Fault>,
    into: &mut Vec<Found<T>>,
) -> Result<(), Fault> {
    let mut left = Bytes::new(most_bytes);
    let times = times.iter().map(|time| Value::Integer(*time));
    let values = times
        .chain([Value::Integer(rows::limit(limit))])
        .chain(tenant.map(|tenant| Value::Text(tenant.to_owned())));
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query(params_from_iter(values))?;
    while let Some(row) = found.next()? {
        match read(row) {
            Ok(found) => {
                if !left.take(found.n_bytes) {
                    break;
                }
                into.push(found);
            }
            // A damaged row must not block the others.
            Err(Fault::Damaged(why)) => tracing::error!(why, "work row passed over that cannot be read"),
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}
