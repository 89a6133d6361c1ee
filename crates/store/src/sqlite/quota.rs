//! Selection of rows to lease, within a [`Quota`].
//!
//! Without limits per tenant the rows come in the order of one index. With limits they are read tenant by
//! tenant, each by a seek, so that the cost for one tenant does not depend on how many rows of another wait.
//! Rows whose lease has expired are few: no more than what processes held at once.

use rusqlite::{Connection, Params, Row, params};

use super::{fault::Fault, retention::listed, rows};
use crate::{Queue, Quota, Times, work::Candidate};

/// Selects rows of the queue in parameter 1.
macro_rules! select {
    ($index:literal, $condition:literal, $order:literal) => {
        concat!(
            "SELECT tenant, run, key, due, deaths, length(body), fence FROM work INDEXED BY ",
            $index,
            " WHERE queue = ?1 AND due IS NOT NULL AND ",
            $condition,
            listed!("work"),
            " ORDER BY ",
            $order,
            " LIMIT "
        )
    };
}

/// Rows of all tenants.
const FREE: &str = concat!(
    select!(
        "work_free",
        "due <= ?2 AND epoch IS NULL AND deaths < 2",
        "due, tenant, run, key"
    ),
    "?3"
);

/// The next tenant with rows after the given one.
const NEXT_TENANT: &str = "SELECT tenant FROM work INDEXED BY work_free_by_tenant
     WHERE queue = ?1 AND tenant > ?2 AND due IS NOT NULL AND epoch IS NULL AND deaths < 2
     ORDER BY tenant LIMIT 1";

/// Rows of one tenant.
const OF_TENANT: &str = concat!(
    select!(
        "work_free_by_tenant",
        "due <= ?2 AND epoch IS NULL AND deaths < 2 AND tenant = ?4",
        "due, run, key"
    ),
    "?3"
);

/// Rows of all tenants whose lease has expired.
const EXPIRED: &str = concat!(
    select!(
        "work_held",
        "due <= ?2 AND epoch IS NOT NULL AND deaths < 2",
        "due, tenant, run, key"
    ),
    "?3"
);

/// Suspects of all tenants, free or with an expired lease.
const SUSPECTS: &str = concat!(
    select!(
        "work_suspect",
        "due <= max(?2, ?3) AND due <= CASE WHEN epoch IS NULL THEN ?2 ELSE ?3 END
             AND (deaths = 2 OR deaths > 2 AND queue = 2)",
        "due, tenant, run, key"
    ),
    "?4"
);

/// When the first rows can be leased.
pub(super) const NEXT_DUE: [&str; 3] = [
    concat!(
        "SELECT due FROM work INDEXED BY work_free
         WHERE queue = ?1 AND due IS NOT NULL AND epoch IS NULL AND deaths < 2",
        listed!("work"),
        " ORDER BY due LIMIT 1"
    ),
    concat!(
        "SELECT due FROM work INDEXED BY work_held
         WHERE queue = ?1 AND due IS NOT NULL AND epoch IS NOT NULL AND deaths < 2",
        listed!("work"),
        " ORDER BY due LIMIT 1"
    ),
    concat!(
        "SELECT due FROM work INDEXED BY work_suspect
         WHERE queue = ?1 AND due IS NOT NULL AND (deaths = 2 OR deaths > 2 AND queue = 2)",
        listed!("work"),
        " ORDER BY due LIMIT 1"
    ),
];

/// Selects the rows to lease, with the suspects last.
pub(super) fn pick(
    conn: &Connection,
    queue: Queue,
    times: Times,
    quota: &Quota,
) -> Result<Vec<Candidate>, Fault> {
    let (queue, due, now) = (queue.number(), times.due.millis(), times.now.millis());
    let mut found = Vec::new();
    let expired = if quota.is_plain() {
        let limit = rows::limit(quota.rows);
        find(conn, FREE, params![queue, due, limit], quota.bytes, &mut found)?;
        limit
    } else {
        let mut next_tenant = conn.prepare_cached(NEXT_TENANT)?;
        let limit = rows::limit(quota.per_tenant.min(quota.rows));
        // The empty string sorts before every id.
        let mut tenant = String::new();
        loop {
            {
                let mut found = next_tenant.query(params![queue, tenant])?;
                let Some(row) = found.next()? else { break };
                rows::text(row, 0)?.clone_into(&mut tenant);
            }
            if !quota.without.iter().any(|other| other.as_str() == tenant) {
                let key = params![queue, due, limit, tenant];
                find(conn, OF_TENANT, key, quota.bytes_per_tenant, &mut found)?;
            }
        }
        // How many of a tenant are admitted depends on the rows found before.
        rows::limit(usize::MAX)
    };
    find(
        conn,
        EXPIRED,
        params![queue, now, expired],
        usize::MAX,
        &mut found,
    )?;
    let suspects = params![queue, due, now, rows::limit(quota.suspects)];
    find(conn, SUSPECTS, suspects, quota.bytes, &mut found)?;
    Ok(quota.admit(found))
}

/// Adds rows until their bodies reach a number of bytes.
fn find(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    most_bytes: usize,
    into: &mut Vec<Candidate>,
) -> Result<(), Fault> {
    let mut n_bytes = 0;
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    while n_bytes < most_bytes
        && let Some(row) = found.next()?
    {
        match candidate(row) {
            Ok(found) => {
                n_bytes += found.n_bytes;
                into.push(found);
            }
            // A damaged row must not block the others.
            Err(Fault::Damaged(why)) => tracing::error!(%why, "work row passed over that cannot be read"),
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

fn candidate(row: &Row<'_>) -> Result<Candidate, Fault> {
    // Only to learn whether it is damaged.
    let _ = rows::fence(row, 6)?;
    Ok(Candidate {
        run: rows::run_key(row, 0)?,
        name: rows::text(row, 2)?.to_owned(),
        since: rows::time(row, 3)?,
        deaths: rows::deaths(row, 4)?,
        n_bytes: usize::try_from(rows::count(row, 5)?).unwrap_or(usize::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::{assert_indexed, database};

    #[test]
    fn leasing_reads_only_matching_rows() {
        let (_files, conn) = database();
        let picks = [FREE, NEXT_TENANT, OF_TENANT, EXPIRED, SUSPECTS];
        assert_indexed(&conn, picks.into_iter().chain(NEXT_DUE));
    }
}
