//! A connection for the duration of one transaction, with the statements that every append needs.
//!
//! A group of appends runs the same few statements repeatedly. The connection's own cache would look each one
//! up by its text, take it out and put it back each time. A session keeps them until the group is done and
//! finds them by the address of their text. Less frequent statements still come from the connection.

use std::{cell::RefCell, ops::Deref};

use rusqlite::{CachedStatement, Connection};

/// A connection and its cached statements.
pub(super) struct Session<'c> {
    conn: &'c Connection,
    /// The statements not running now. They are few, so a linear search is enough.
    statements: RefCell<Vec<(&'static str, CachedStatement<'c>)>>,
}

impl<'c> Session<'c> {
    pub(super) const fn new(conn: &'c Connection) -> Self {
        Self {
            conn,
            statements: RefCell::new(Vec::new()),
        }
    }

    /// Runs a statement and keeps it for the next use.
    pub(super) fn with<T, E>(
        &self,
        sql: &'static str,
        run: impl FnOnce(&mut CachedStatement<'c>) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<rusqlite::Error>,
    {
        // Taken out while it runs, so that it may run another one.
        let known = {
            let mut statements = self.statements.borrow_mut();
            let place = statements.iter().position(|(known, _)| std::ptr::eq(*known, sql));
            place.map(|place| statements.swap_remove(place).1)
        };
        let mut statement = match known {
            Some(statement) => statement,
            None => self.conn.prepare_cached(sql)?,
        };
        let outcome = run(&mut statement);
        self.statements.borrow_mut().push((sql, statement));
        outcome
    }
}

impl Deref for Session<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.conn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_reused_and_may_run_another() {
        const NEXT: &str = "SELECT ?1 + 1";
        let conn = Connection::open_in_memory().expect("a database");
        let session = Session::new(&conn);
        let next = |n: i64, then: &dyn Fn(i64) -> i64| {
            let after = session.with(NEXT, |statement| {
                let after = statement.query_row([n], |row| row.get(0))?;
                Ok::<_, rusqlite::Error>(then(after))
            });
            after.expect("a number")
        };
        assert_eq!(next(1, &|after| next(after, &|after| after)), 3);
        assert_eq!(session.statements.borrow().len(), 2, "one for each level");
        assert_eq!(next(5, &|after| after), 6);
        assert_eq!(session.statements.borrow().len(), 2, "used again");
        let refused = session.with("SELECT nothing", |_| Ok::<_, rusqlite::Error>(()));
        assert!(refused.is_err());
    }
}
