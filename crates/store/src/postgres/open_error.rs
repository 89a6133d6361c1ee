//! What keeps a database from being opened.

use std::time::Duration;

use tokio_postgres::Error;

use super::fault;

/// Why a database could not be opened. No text holds the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not one.
    #[error("read the database's url: {0}")]
    Url(String),
    /// TLS cannot be set up.
    #[error("set up tls for the database: {0}")]
    Tls(String),
    /// The server is not reached.
    #[error("connect to the database: {0}")]
    Connect(String),
    /// The server does not let us in: the password, the name of the database, or TLS is wrong.
    #[error("connect to the database: {0}")]
    Refused(String),
    /// The server does not answer. It may be stopped, overloaded, out of reach or no PostgreSQL server at all.
    #[error("hear from the database: {server} did not answer within {} s", after.as_secs_f64())]
    Silent {
        /// The server, or all that were tried.
        server: String,
        /// How long each was waited for.
        after: Duration,
    },
    /// The database does not hold text as UTF-8.
    #[error("use a database that is encoded as {0}: it has to be UTF8")]
    Encoding(String),
    /// The connection has no schema to put tables in.
    #[error("use a database without a schema: the first of its search_path does not exist")]
    NoSchema,
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
    /// The schema is older and migrating was not allowed. It was left untouched.
    #[error("open a database of schema version {found}: this binary needs {known}, run the migration")]
    NeedsMigration {
        /// The version of the database.
        found: u32,
        /// The version this binary needs.
        known: u32,
    },
    /// The schema holds tables of something else by the names of ours. It was left untouched.
    #[error("use the schema {0}: it has tables, but not those of wopr")]
    Foreign(String),
    /// A migration failed; it was rolled back.
    #[error("migrate the database: {0}")]
    Migration(String),
}

impl OpenError {
    /// Whether the server may be reached by itself a little later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Silent { .. } => true,
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
        let text = fault::text(&error);
        if fault::is_final(&error) {
            Self::Refused(text)
        } else {
            Self::Connect(text)
        }
    }
}
