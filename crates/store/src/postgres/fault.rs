//! Mapping of PostgreSQL errors to store errors.
//!
//! The deciding question is whether it is certain that nothing was written. It is before COMMIT was sent, and
//! after the server has reported that the transaction failed. It is not if COMMIT was sent and no such report
//! arrived.

use std::error::Error as StdError;

use tokio_postgres::{
    Column, Error, Row,
    error::{Severity, SqlState},
};

use crate::{AppendError, Cause, ReadError, WriteError};

/// A failed statement or an invalid stored value.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The server rolled the transaction back in favor of another one. It can be retried unchanged.
    Again(Cause),
    /// Another transaction inserted or removed a row that no guard had seen. A retry sees its result.
    Taken(Cause),
    /// Another transaction held a required row lock for too long.
    Held(Cause),
    /// The connection was lost. Everything it sent before COMMIT is rolled back.
    Lost(Cause),
    /// There is no connection, or the server refuses the statement now.
    Refused(Cause),
    /// COMMIT was sent and its outcome is unknown.
    InDoubt(Cause),
    /// A stored value violates its format, or a statement is invalid.
    Damaged(Cause),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let Some(said) = error.as_db_error() else {
            return Self::Lost(cause(error));
        };
        let (code, ends_connection) = (said.code().clone(), ends_connection(said.parsed_severity()));
        let cause = cause(error);
        if code == SqlState::T_R_SERIALIZATION_FAILURE || code == SqlState::T_R_DEADLOCK_DETECTED {
            return Self::Again(cause);
        }
        if code == SqlState::UNIQUE_VIOLATION {
            return Self::Taken(cause);
        }
        if code == SqlState::LOCK_NOT_AVAILABLE {
            return Self::Held(cause);
        }
        // A server that became a standby accepts no writes; another connection may reach the new primary.
        if ends_connection || code == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Self::Lost(cause);
        }
        match code.code().get(..2) {
            // Data, integrity and syntax errors: this program or the stored rows are wrong, and a retry
            // cannot help.
            Some("22" | "23" | "42") => Self::Damaged(cause),
            _ => Self::Refused(cause),
        }
    }
}

impl Fault {
    /// Names the column whose value cannot be decoded, and the error that says why.
    pub(super) fn damaged(row: &Row, column: usize, why: impl StdError + Send + Sync + 'static) -> Self {
        let text = format!("{}: {}", name(row, column), text(&why));
        Self::Damaged(Cause::about(text, why))
    }

    /// Names the column whose value is not one of ours.
    pub(super) fn invalid(row: &Row, column: usize, why: impl std::fmt::Display) -> Self {
        Self::Damaged(format!("{}: {why}", name(row, column)).into())
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
            Self::InDoubt(cause(error))
        }
    }

    /// Returns `true` if a retry may succeed, given that nothing was written.
    pub(super) const fn is_passing(&self) -> bool {
        match self {
            Self::Again(_) | Self::Taken(_) | Self::Held(_) | Self::Lost(_) => true,
            Self::Refused(_) | Self::InDoubt(_) | Self::Damaged(_) => false,
        }
    }

    pub(super) fn into_cause(self) -> Cause {
        match self {
            Self::Again(cause)
            | Self::Taken(cause)
            | Self::Held(cause)
            | Self::Lost(cause)
            | Self::Refused(cause)
            | Self::InDoubt(cause)
            | Self::Damaged(cause) => cause,
        }
    }
}

fn name(row: &Row, column: usize) -> &str {
    let column = row.columns().get(column);
    column.map_or("an unnamed column", Column::name)
}

/// Returns `true` if connecting will fail until the configuration changes: the server rejects the login, or
/// TLS fails.
pub(super) fn is_final(error: &Error) -> bool {
    if let Some(code) = error.code() {
        // Authentication, database, schema, and privileges.
        return matches!(code.code().get(..2), Some("28" | "3D" | "3F" | "42" | "0A"));
    }
    let mut cause = error.source();
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
pub(super) fn text(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
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

/// An error of the driver, with its full text.
pub(super) fn cause(error: Error) -> Cause {
    Cause::about(text(&error), error)
}

impl From<Fault> for AppendError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::InDoubt(cause) => Self::Unknown(cause),
            fault @ (Fault::Again(_)
            | Fault::Taken(_)
            | Fault::Held(_)
            | Fault::Lost(_)
            | Fault::Refused(_)
            | Fault::Damaged(_)) => ReadError::from(fault).into(),
        }
    }
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        match fault {
            // Other transactions won each time, so the rows are contended, not damaged.
            Fault::Again(cause)
            | Fault::Taken(cause)
            | Fault::Held(cause)
            | Fault::Lost(cause)
            | Fault::Refused(cause)
            | Fault::InDoubt(cause) => Self::Unavailable(cause),
            Fault::Damaged(cause) => Self::Corrupt(cause),
        }
    }
}

impl From<Fault> for WriteError {
    fn from(fault: Fault) -> Self {
        ReadError::from(fault).into()
    }
}
