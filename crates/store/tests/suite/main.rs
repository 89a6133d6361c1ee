//! The store tests, run against every backend.
//!
//! A behavior is an `async fn(Arc<dyn Store>)` that starts with an empty store. [`behaviours!`] generates a
//! test of it per backend; a new backend needs one more line there and one more function in [`fixture`].
//! Behaviors after `one process:` only hold if a single process uses the store. Tests of a single backend are
//! in separate modules: `file`, `names` and `damage` for SQLite; `groups`, `replicas`, `turns`, `outages`,
//! `failover` and `migrations` for PostgreSQL.

mod agent_memory;
mod appends;
mod backup;
mod damage;
mod database;
mod deaths;
mod failover;
mod file;
mod groups;
mod lists;
mod make;
mod migrations;
mod model;
mod moving;
mod names;
mod offers;
mod outages;
mod parking;
mod proxy;
mod pushes;
mod reads;
mod registrations;
mod replicas;
mod requests;
mod retention;
mod schema;
mod secrets;
mod spending;
mod turns;
mod work;

use std::sync::Arc;

use wopr_store::{MemoryStore, SqliteStore, Store, sqlite};

/// An empty store, and the files that must live as long.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    _files: Option<tempfile::TempDir>,
}

pub(crate) mod fixture {
    use super::{Arc, Fixture, MemoryStore, SqliteStore, schema::Schema, sqlite};

    pub(crate) async fn memory() -> Fixture {
        Fixture {
            store: Arc::new(MemoryStore::new()),
            _files: None,
        }
    }

    pub(crate) async fn sqlite() -> Fixture {
        let files = tempfile::tempdir().expect("a directory");
        let store =
            SqliteStore::open(files.path().join("wopr.db"), sqlite::Options::default()).expect("open");
        Fixture {
            store: Arc::new(store),
            _files: Some(files),
        }
    }

    pub(crate) async fn postgres() -> Fixture {
        Fixture {
            store: Arc::new(Schema::new().await.open().await),
            _files: None,
        }
    }
}

/// Generates a test per behavior and backend.
macro_rules! behaviours {
    (@on $backend:ident: $($name:ident),+) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let fixture = $crate::fixture::$backend().await;
                    super::$name(fixture.store.clone()).await;
                }
            )+
        }
    };
    ($($name:ident),+ $(,)? $(; one process: $($alone:ident),+ $(,)?)?) => {
        $crate::behaviours!(@on memory: $($name),+ $(, $($alone),+)?);
        $crate::behaviours!(@on sqlite: $($name),+ $(, $($alone),+)?);
        $crate::behaviours!(@on postgres: $($name),+);
    };
}
pub(crate) use behaviours;
