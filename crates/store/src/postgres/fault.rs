//! Mapping of PostgreSQL errors to store errors.
//!
//! The deciding question is whether it is certain that nothing was written. It is before COMMIT was sent, and
//! after the server has reported that the transaction failed. It is not if COMMIT was sent and no such report
//! arrived.

use tokio_postgres::{
    Error,
    error::{Severity, SqlState},
};

use crate::{AppendError, ReadError, WriteError};

/// A failed statement or an invalid stored value.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The server rolled the transaction back in favor of another one. It can be retried unchanged.
    Again(String),
    /// Another transaction inserted or removed a row that no guard had seen. A retry sees its result.
    Taken(String),
    /// Another transaction held a required row lock for too long.
    Held(String),
    /// The connection was lost. Everything it sent before COMMIT is rolled back.
    Lost(String),
    /// There is no connection, or the server refuses the statement now.
    Refused(String),
    /// COMMIT was sent and its outcome is unknown.
    InDoubt(String),
    /// A stored value violates its format, or a statement is invalid.
    Damaged(String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let text = text(&error);
        let Some(said) = error.as_db_error() else {
            return Self::Lost(text);
        };
        let code = said.code();
        if *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED {
            return Self::Again(text);
        }
        if *code == SqlState::UNIQUE_VIOLATION {
            return Self::Taken(text);
        }
        if *code == SqlState::LOCK_NOT_AVAILABLE {
            return Self::Held(text);
        }
        // A server that became a standby accepts no writes; another connection may reach the new primary.
        if ends_connection(said.parsed_severity()) || *code == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Self::Lost(text);
        }
        match code.code().get(..2) {
            // Data, integrity and syntax errors: this program or the stored rows are wrong, and a retry
            // cannot help.
            Some("22" | "23" | "42") => Self::Damaged(text),
            _ => Self::Refused(text),
        }
    }
}

impl Fault {
    /// Names the column whose value cannot be decoded.
    pub(super) fn damaged(row: &tokio_postgres::Row, column: usize, why: impl std::fmt::Display) -> Self {
        let name = row
            .columns()
            .get(column)
            .map_or("an unnamed column", tokio_postgres::Column::name);
        Self::Damaged(format!("{name}: {why}"))
    }

    /// Interprets a failed COMMIT. Only an error of the transaction itself proves that it was not committed.
    /// A server that is shutting down or waits for its standby may report an error after the commit.
    pub(super) fn at_commit(error: Error) -> Self {
        let is_undone = error.as_db_error().is_some_and(|said| {
            let is_verdict = matches!(said.code().code().get(..2), Some("23" | "40" | "53"));
            let is_open = *said.code() == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN;
            is_verdict && !is_open && !ends_connection(said.parsed_severity())
        });
        if is_undone {
            Self::from(error)
        } else {
            Self::InDoubt(text(&error))
        }
    }

    /// Returns `true` if a retry may succeed, given that nothing was written.
    pub(super) const fn is_passing(&self) -> bool {
        match self {
            Self::Again(_) | Self::Taken(_) | Self::Held(_) | Self::Lost(_) => true,
            Self::Refused(_) | Self::InDoubt(_) | Self::Damaged(_) => false,
        }
    }
}

/// Returns `true` if connecting will fail until the configuration changes: the server rejects the login, or
/// TLS fails.
pub(super) fn is_final(error: &Error) -> bool {
    if let Some(code) = error.code() {
        // Authentication, database, schema, and privileges.
        return matches!(code.code().get(..2), Some("28" | "3D" | "3F" | "42" | "0A"));
    }
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        let is_of_tls = inner
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .is_some();
        if is_of_tls || error.is::<rustls::Error>() {
            return true;
        }
        cause = error.source();
    }
    // The driver reports this only as text.
    text(error).contains("does not support TLS")
}

fn ends_connection(severity: Option<Severity>) -> bool {
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// An error with its causes; the driver's own message names only the outermost.
pub(super) fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

impl From<Fault> for AppendError {
    fn from(fault: Fault) -> Self {
        match fault {
            // Other transactions won each time, so the rows are contended, not damaged.
            Fault::Again(text)
            | Fault::Taken(text)
            | Fault::Held(text)
            | Fault::Lost(text)
            | Fault::Refused(text) => Self::Unavailable(text),
            Fault::InDoubt(text) => Self::Unknown(text),
            Fault::Damaged(text) => Self::Corrupt(text),
        }
    }
}

impl From<Fault> for WriteError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Again(text)
            | Fault::Taken(text)
            | Fault::Held(text)
            | Fault::Lost(text)
            | Fault::Refused(text)
            | Fault::InDoubt(text) => Self::Unavailable(text),
            Fault::Damaged(text) => Self::Corrupt(text),
        }
    }
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Again(text)
            | Fault::Taken(text)
            | Fault::Held(text)
            | Fault::Lost(text)
            | Fault::Refused(text)
            | Fault::InDoubt(text) => Self::Unavailable(text),
            Fault::Damaged(text) => Self::Corrupt(text),
        }
    }
}
