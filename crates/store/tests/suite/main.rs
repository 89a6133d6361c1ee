//! One behaviour suite, run on every store.
//!
//! A behaviour is an `async fn(Arc<dyn Store>)` that starts from an empty store. [`behaviours!`] makes a test of
//! it per backend; a new backend is one more line there and one more arm in [`fixture`]. What only one backend
//! can do is tested in a module of its own.

mod appends;
mod damage;
mod database;
mod file;
mod lists;
mod make;
mod model;
mod reads;
mod registrations;
mod requests;
mod work;

use std::sync::Arc;

use wopr_store::{MemoryStore, SqliteStore, Store, sqlite};

/// An empty store and what has to live as long as it does.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    _files: Option<tempfile::TempDir>,
}

pub(crate) mod fixture {
    use super::{Arc, Fixture, MemoryStore, SqliteStore, sqlite};

    pub(crate) fn memory() -> Fixture {
        Fixture {
            store: Arc::new(MemoryStore::new()),
            _files: None,
        }
    }

    pub(crate) fn sqlite() -> Fixture {
        let files = tempfile::tempdir().expect("a directory");
        let store =
            SqliteStore::open(files.path().join("wopr.db"), sqlite::Options::default()).expect("open");
        Fixture {
            store: Arc::new(store),
            _files: Some(files),
        }
    }
}

/// Makes a test per behaviour and backend.
macro_rules! behaviours {
    ($($name:ident),+ $(,)?) => {
        $crate::behaviours!(@on memory: $($name),+);
        $crate::behaviours!(@on sqlite: $($name),+);
    };
    (@on $backend:ident: $($name:ident),+) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let fixture = $crate::fixture::$backend();
                    super::$name(fixture.store.clone()).await;
                }
            )+
        }
    };
}
pub(crate) use behaviours;
