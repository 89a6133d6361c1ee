//! Mapping of SQLite errors to store errors.

use std::error::Error;

use rusqlite::{ErrorCode, types::FromSqlError};

use crate::{AppendError, Cause, ReadError, WriteError};

/// A failed statement or an invalid stored value.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    /// A stored value violates its format.
    Damaged(Cause),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Fault {
    /// Names the column whose value cannot be decoded, and the error that says why.
    pub(super) fn damaged(
        row: &rusqlite::Row<'_>,
        column: usize,
        why: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self::Damaged(Cause::about(format!("{}: {why}", name(row, column)), why))
    }

    /// Names the column whose value is not one of ours.
    pub(super) fn invalid(row: &rusqlite::Row<'_>, column: usize, why: impl std::fmt::Display) -> Self {
        Self::Damaged(format!("{}: {why}", name(row, column)).into())
    }

    /// The error for the caller if the surrounding transaction is known not to have committed.
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Damaged(cause) => Failure {
                kind: FailureKind::Damaged,
                cause,
            },
            Self::Sql(error) => {
                let kind = if is_damage(&error) {
                    FailureKind::Damaged
                } else if is_full(&error) {
                    FailureKind::Full
                } else {
                    FailureKind::NotWritten
                };
                Failure {
                    kind,
                    cause: Cause::of(error),
                }
            }
        }
    }
}

fn name<'r>(row: &'r rusqlite::Row<'_>, column: usize) -> &'r str {
    row.as_ref().column_name(column).unwrap_or("an unnamed column")
}

/// Returns `true` if an error means that stored data is damaged.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => matches!(
            failure.code,
            // A constraint can fail only on a row that should not exist: the guards were checked first.
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ConstraintViolation
        ),
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => true,
        _ => false,
    }
}

/// Returns `true` if an error means that no space is left.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// The state after a failed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// Nothing was written.
    NotWritten,
    /// Nothing was written, because no space is left.
    Full,
    /// Unknown until the file is read again.
    InDoubt,
    /// Nothing was written, because stored data is damaged.
    Damaged,
}

/// The failure of a write, passed to every caller it affects.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    pub(super) cause: Cause,
}

impl Failure {
    pub(super) fn not_written(cause: impl Into<Cause>) -> Self {
        Self {
            kind: FailureKind::NotWritten,
            cause: cause.into(),
        }
    }

    /// The write was refused before it began.
    pub(super) fn full() -> Self {
        Self {
            kind: FailureKind::Full,
            cause: "the disk of the database is full".into(),
        }
    }

    pub(super) fn in_doubt(cause: impl Into<Cause>) -> Self {
        Self {
            kind: FailureKind::InDoubt,
            cause: cause.into(),
        }
    }
}

impl From<Failure> for AppendError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            FailureKind::InDoubt => Self::Unknown(failure.cause),
            FailureKind::NotWritten | FailureKind::Full | FailureKind::Damaged => {
                ReadError::from(failure).into()
            }
        }
    }
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            FailureKind::NotWritten | FailureKind::Full | FailureKind::InDoubt => {
                Self::Unavailable(failure.cause)
            }
            FailureKind::Damaged => Self::Corrupt(failure.cause),
        }
    }
}

impl From<Failure> for WriteError {
    fn from(failure: Failure) -> Self {
        ReadError::from(failure).into()
    }
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        fault.failure().into()
    }
}

impl From<FromSqlError> for Fault {
    fn from(error: FromSqlError) -> Self {
        Self::Damaged(Cause::of(error))
    }
}
