//! Keeping the stored keys current, whoever changes them.
//!
//! Keys are looked up in memory. What another process of the store created or revoked is read on a hint, or with the
//! next poll, and when a secret is not known: a key works everywhere as soon as it exists, and a revoked one
//! nowhere for longer than a second. While the store does not answer, the keys are those it last told of.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::{broadcast::error::RecvError, watch};
use wopr_store::{Hint, ReadError, Store};

use crate::auth::{Auth, AuthError, Caller};

/// The longest a change of another process goes unnoticed.
const POLL: Duration = Duration::from_secs(1);
/// Unknown secrets make the store be asked no more often than this, so that guessing them costs it nothing.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The keys of a host, and where they come from.
#[derive(Debug)]
pub struct Keyring {
    auth: Auth,
    store: Arc<dyn Store>,
    asked: Mutex<Option<Instant>>,
}

impl Keyring {
    pub(crate) fn new(auth: Auth, store: Arc<dyn Store>) -> Self {
        Self {
            auth,
            store,
            asked: Mutex::new(None),
        }
    }

    /// The keys as they are known now.
    #[must_use]
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Finds the caller of a request; a key that is not known may have been created a moment ago by another process.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError> {
        match self.auth.authenticate(headers) {
            Err(AuthError::Unknown) if self.may_ask() => {
                if let Err(error) = self.refresh().await {
                    tracing::warn!(%error, "cannot read keys");
                }
                self.auth.authenticate(headers)
            }
            answer => answer,
        }
    }

    fn may_ask(&self) -> bool {
        let mut asked = self.asked.lock();
        let may = asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
        if may {
            *asked = Some(Instant::now());
        }
        may
    }

    /// Reads the keys that have changed.
    ///
    /// # Errors
    /// The store does not answer; the keys are as before.
    pub async fn refresh(&self) -> Result<(), ReadError> {
        let news = self.store.keys_since(self.auth.seen()).await?;
        self.auth.learn(news);
        Ok(())
    }

    /// Reads what has changed on hints and now and then, until the host closes.
    pub(crate) async fn follow(self: Arc<Self>, mut closing: watch::Receiver<bool>) {
        let mut hints = self.store.hints();
        loop {
            let told = async {
                let Some(hints) = &mut hints else {
                    return std::future::pending().await;
                };
                loop {
                    match hints.recv().await {
                        Ok(Hint::Run(_)) => {}
                        Ok(Hint::Registry | Hint::Any) | Err(RecvError::Lagged(_)) => return,
                        // A store that is closed hints no more; the host closes too.
                        Err(RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = told => {}
                () = tokio::time::sleep(POLL) => {}
            }
            if let Err(error) = self.refresh().await {
                tracing::warn!(%error, "cannot read keys");
            }
        }
    }
}
