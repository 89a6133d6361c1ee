//! One behaviour suite, run on every store.
//!
//! A behaviour is an `async fn(Arc<dyn Store>)` that starts from an empty store. [`behaviours!`] makes a test of
//! it per backend; a new backend is one more line there and one more arm in [`fixture`]. Behaviours behind
//! `one process:` hold where nobody else uses the store. What only one backend can do is tested in a module of
//! its own: `file`, `names` and `damage` for SQLite, `groups`, `replicas`, `turns`, `outages`, `failover` and `migrations` for
//! PostgreSQL.

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
mod names;
mod outages;
mod proxy;
mod pushes;
mod reads;
mod registrations;
mod replicas;
mod requests;
mod retention;
mod schema;
mod turns;
mod work;

use std::sync::Arc;

use wopr_store::{MemoryStore, SqliteStore, Store, sqlite};

/// An empty store and what has to live as long as it does.
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

/// Makes a test per behaviour and backend.
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
