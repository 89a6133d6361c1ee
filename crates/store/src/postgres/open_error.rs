//! Errors of opening a database.

use std::time::Duration;

use tokio_postgres::Error;

use super::fault;
use crate::Cause;

/// Why a database could not be opened. Messages never contain the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is invalid.
    #[error("read the database's url: {0}")]
    Url(#[source] Cause),
    #[error("set up tls for the database: {0}")]
    Tls(#[source] Cause),
    /// The server cannot be reached.
    #[error("connect to the database: {0}")]
    Connect(#[source] Cause),
    /// The server rejects the connection: the password, the database name or TLS is wrong.
    #[error("connect to the database: {0}")]
    Refused(#[source] Cause),
    /// The server does not answer. It may be stopped, overloaded, unreachable or not a PostgreSQL server.
    #[error("hear from the database: {server} did not answer within {} s", after.as_secs_f64())]
    Silent {
        /// The server, or all servers that were tried.
        server: String,
        /// How long each server was given to answer.
        after: Duration,
    },
    /// The database's encoding is not UTF-8.
    #[error("use a database that is encoded as {0}: it has to be UTF8")]
    Encoding(String),
    /// The connection has no schema to create tables in.
    #[error("use a database without a schema: the first of its search_path does not exist")]
    NoSchema,
    /// The server takes no writes: it is a standby, or the database is read-only.
    #[error("write to the database: its server is a standby, or read-only")]
    ReadOnly,
    /// A newer wopr wrote the schema. It was left untouched.
    #[error(
        "open a database of schema version {found}: this binary knows {known}, use the wopr that wrote it"
    )]
    NewerSchema {
        /// The version of the database.
        found: u32,
        /// The newest version this binary knows.
        known: u32,
    },
    /// The schema is older and migration was not allowed. It was left untouched.
    #[error("open a database of schema version {found}: this binary needs {known}, run the migration")]
    NeedsMigration {
        /// The version of the database.
        found: u32,
        /// The version this binary needs.
        known: u32,
    },
    /// The schema holds tables of another program with the names of ours. It was left untouched.
    #[error("use the schema {0}: it has tables, but not those of wopr")]
    Foreign(String),
    /// A migration failed; it was rolled back.
    #[error("migrate the database: {0}")]
    Migration(#[source] Cause),
}

impl OpenError {
    /// Returns `true` if opening may succeed later without any change to the configuration.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Silent { .. } | Self::ReadOnly => true,
            Self::Url(_)
            | Self::Tls(_)
            | Self::Refused(_)
            | Self::Encoding(_)
            | Self::NoSchema
            | Self::NewerSchema { .. }
            | Self::NeedsMigration { .. }
            | Self::Foreign(_)
            | Self::Migration(_) => false,
        }
    }
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        match fault::is_final(&error) {
            true => Self::Refused(fault::cause(error)),
            false => Self::Connect(fault::cause(error)),
        }
    }
}
