//! One SQLite database, shared by several processes of `wopr mcp`.
//!
//! One of them has the database: it runs the host, listens on the loopback interface, and notes its address beside the
//! database. The others forward to it. When its process ends, one of the others opens the database in its place, so that
//! runs go on even while no client asks for anything.
//!
//! ```text
//!   client <-> Shared --> Place::Here     the host of this process
//!                     |-> Place::There    a host of another process, while its note counts
//!                     |-> Place::Nowhere  requests wait for the next host
//!                     '-> Place::Broken   requests fail until the database can be opened
//! ```
//!
//! [`Keeper`] decides where the host is. Only it opens the database, so there is one attempt at a time however many requests
//! wait. A request that did not reach a host is sent to the next one. A request that may have reached a host is never sent
//! again: its answer is an error.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::Value;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use wopr_server::{
    Config, Host, ServeError, StartError,
    config::Secret,
    mcp::lines::{Busy, Held, Local, Notification, Out, Peer, Request},
};
use wopr_store::sqlite::OpenError;

use super::forward::{self, Handshake, NoAnswer, Remote};
use crate::{
    client::{Client, Trust},
    exit::{Exit, Failure},
    host::{self, Background, Opened},
    noted::{self, Note, Served},
};

/// How long the first search may take. The process that has the database notes its address once it has started.
const SEARCH: Duration = Duration::from_secs(10);
/// Interval at which a process looks for the host that it forwards to.
const LOOK: Duration = Duration::from_millis(250);
/// Pause after the first failed attempt to open the database. It doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long a request waits for a host. A host that ends in order may take ten seconds.
const WAIT: Duration = Duration::from_secs(15);
/// Maximum number of connections to the listener. Its clients are a few processes of one user.
const MAX_CONNECTIONS: usize = 256;
/// The id of the key of this process.
const KEY_ID: &str = "mcp";

/// What a process brings along.
#[derive(Debug)]
pub(super) struct Terms {
    /// For a host of this process.
    pub(super) config: Config,
    pub(super) database: PathBuf,
    /// The key that the user gave.
    pub(super) key: Option<String>,
    pub(super) trust: Trust,
    /// Settings that a host of another process does not get.
    pub(super) unused: Vec<&'static str>,
}

/// Where the host of the database is.
#[derive(Debug, Clone)]
enum Place {
    Here(Arc<Local>),
    There(Arc<Elsewhere>),
    /// Between two hosts. The text says why.
    Nowhere(Arc<str>),
    /// The database is free, and this process failed to open it. The text says why.
    Broken(Arc<str>),
}

/// The host of another process.
#[derive(Debug)]
struct Elsewhere {
    note: Note,
    remote: Remote,
}

/// What the notes say about a host of another process.
enum Standing {
    /// It still has the database.
    Stays,
    /// Another one has the database.
    Replaced,
    Gone,
}

impl Elsewhere {
    fn standing(&self, database: &Path) -> Standing {
        match noted::read(database) {
            Ok(Some(note)) if note == self.note => Standing::Stays,
            Ok(Some(_)) => Standing::Replaced,
            Ok(None) | Err(_) => Standing::Gone,
        }
    }
}

/// A host of this process.
#[derive(Debug)]
enum Own {
    Listening(Background),
    /// The system allows no listener.
    Silent(Arc<Host>),
}

/// Why a search found no host.
enum Missed {
    /// Another process has the database, and cannot be reached yet.
    Taken(Failure),
    Failed(Failure),
}

impl Missed {
    fn into_failure(self) -> Failure {
        match self {
            Self::Taken(failure) | Self::Failed(failure) => failure,
        }
    }
}

/// Keeps track of the host, and takes its place.
#[derive(Debug)]
pub(super) struct Keeper {
    terms: Terms,
    /// The caller's key at a host of this process.
    key: Secret,
    handshake: Arc<Handshake>,
    place: watch::Sender<Place>,
    /// A request could not be sent to the host.
    look: Arc<Notify>,
    own: Option<Own>,
}

impl Keeper {
    pub(super) fn new(mut terms: Terms) -> Result<Self> {
        let key = match &terms.key {
            Some(key) => Secret::new(key),
            None => {
                let secret = host::new_secret()?;
                terms.config.auth.keys.push(host::full_key(KEY_ID, &secret)?);
                Secret::new(secret)
            }
        };
        let config = &mut terms.config;
        // The address, the certificate and the openness are meant for `wopr serve` with the same configuration.
        config.server.listen = "127.0.0.1:0".parse().expect("it is an address");
        config.server.tls = None;
        config.server.max_connections = config.server.max_connections.min(MAX_CONNECTIONS);
        config.awp.listen = None;
        config.conformance_open = false;
        Ok(Self {
            terms,
            key,
            handshake: Arc::default(),
            place: watch::Sender::new(Place::Nowhere("the host has not started".into())),
            look: Arc::default(),
            own: None,
        })
    }

    /// The peer of this process's client.
    pub(super) fn shared(&self) -> Shared {
        Shared {
            database: self.terms.database.clone(),
            place: self.place.subscribe(),
            look: Arc::clone(&self.look),
            leaving: watch::Sender::new(false),
        }
    }

    /// Finds the host for the first time.
    pub(super) async fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut pause = MIN_PAUSE;
        loop {
            match self.find().await {
                Ok(()) => return Ok(()),
                Err(Missed::Taken(_)) if start.elapsed() < SEARCH => {
                    sleep(pause).await;
                    pause = (2 * pause).min(MAX_PAUSE);
                }
                Err(missed) => return Err(missed.into_failure().into()),
            }
        }
    }

    /// Follows the host from process to process.
    pub(super) async fn keep(&mut self) -> Infallible {
        let mut pause = MIN_PAUSE;
        loop {
            let place = self.place.borrow().clone();
            match place {
                Place::Here(_) => return std::future::pending().await,
                Place::There(elsewhere) => {
                    pause = MIN_PAUSE;
                    self.outlast(&elsewhere).await;
                }
                Place::Nowhere(_) | Place::Broken(_) => {
                    if let Err(missed) = self.find().await {
                        self.place.send_replace(match missed {
                            Missed::Taken(why) => Place::Nowhere(why.to_string().into()),
                            Missed::Failed(why) => Place::Broken(why.to_string().into()),
                        });
                        sleep(pause).await;
                        pause = (2 * pause).min(MAX_PAUSE);
                    }
                }
            }
        }
    }

    /// Waits until a host of another process has been replaced, or has ended and may be.
    async fn outlast(&self, elsewhere: &Elsewhere) {
        loop {
            let is_succeeded = match &elsewhere.note.served {
                Served::Together { .. } => {
                    // Whichever comes first: a request finds out at once.
                    let _ = timeout(LOOK, self.look.notified()).await;
                    true
                }
                // Its user starts it again, and finds the database free.
                Served::Alone => {
                    self.look.notified().await;
                    false
                }
            };
            match elsewhere.standing(&self.terms.database) {
                Standing::Gone if is_succeeded => break,
                Standing::Replaced => break,
                Standing::Stays | Standing::Gone => {}
            }
        }
        tracing::info!(host = elsewhere.remote.base(), "the host has ended");
        let why = format!("the host at {} has ended", elsewhere.remote.base());
        self.place.send_replace(Place::Nowhere(why.into()));
    }

    /// How the client of this process reaches another host: with its own key, or else with the one that is noted.
    fn elsewhere(&self, note: Note) -> Result<Elsewhere> {
        let (noted, is_shared) = match &note.served {
            Served::Alone => (None, false),
            Served::Together { key } => (key.as_ref(), true),
        };
        let noted = noted.map(|key| key.expose().to_owned());
        let key = self.terms.key.clone().or(noted);
        let client = Client::at(&note.address, key, &self.terms.trust)?;
        let settings = self.terms.unused.join(", ");
        match (settings.is_empty(), is_shared) {
            (true, _) => tracing::info!(host = client.base(), "another process has the store"),
            (false, true) => tracing::info!(
                host = client.base(),
                settings,
                "another process has the store: settings without effect while this is so"
            ),
            (false, false) => super::warn_of_unused(client.base(), &settings),
        }
        let remote = Remote::new(client, Arc::clone(&self.handshake));
        Ok(Elsewhere { note, remote })
    }

    /// Turns to the host that has the database, or opens it.
    async fn find(&mut self) -> Result<(), Missed> {
        if let Ok(Some(note)) = noted::read(&self.terms.database) {
            return self.turn_to(note);
        }
        match Box::pin(self.open()).await {
            Ok((own, local)) => {
                tracing::info!("this process has the store");
                self.own = Some(own);
                self.place.send_replace(Place::Here(Arc::new(local)));
                Ok(())
            }
            Err(NotOpened::Start(StartError::Store(OpenError::Locked(path)))) => {
                let why = match noted::read(&self.terms.database) {
                    Ok(Some(note)) => return self.turn_to(note),
                    Ok(None) => "it has noted no address".to_owned(),
                    Err(distrust) => format!("its address does not count: {distrust}"),
                };
                let locked = host::start_failure(&StartError::Store(OpenError::Locked(path)));
                let failure = Failure::new(Exit::Busy, format!("{locked}, and {why}"));
                Err(Missed::Taken(failure.hint(
                    "stop that process, or run `wopr serve` on this store and set WOPR_SERVER",
                )))
            }
            // A process that was killed has two locks on it, which the system frees one after the other.
            Err(NotOpened::Start(error @ StartError::Store(OpenError::OpenElsewhere(_)))) => {
                Err(Missed::Taken(host::start_failure(&error)))
            }
            Err(NotOpened::Start(error)) => Err(Missed::Failed(host::start_failure(&error))),
            Err(NotOpened::Key(failure)) => Err(Missed::Failed(failure)),
        }
    }

    /// Forwards to another host from now on.
    fn turn_to(&self, note: Note) -> Result<(), Missed> {
        let elsewhere = self.elsewhere(note);
        let elsewhere = elsewhere.map_err(|error| {
            let text = format!("cannot forward to the host that has the store: {error}");
            Missed::Failed(Failure::new(Exit::Usage, text))
        })?;
        self.place.send_replace(Place::There(Arc::new(elsewhere)));
        Ok(())
    }

    async fn open(&self) -> Result<(Own, Local), NotOpened> {
        let mut config = self.terms.config.clone();
        let alone = |error: ServeError| {
            tracing::warn!(%error, cause = ?error, "other processes cannot share the store");
        };
        let bound = wopr_server::bind(&mut config).map_err(alone).ok();
        host::allow_connections(config.server.max_connections);
        let origin = config.server.origin();
        let host = Box::pin(Host::open(config)).await.map_err(NotOpened::Start)?;
        let local = match Local::new(Arc::clone(&host), self.key.expose()).await {
            Ok(local) => local,
            Err(error) => {
                host.close().await;
                return Err(NotOpened::Key(Failure::cannot(Exit::Failed, &error)));
            }
        };
        let own = match bound.and_then(|bound| bound.listen().map_err(alone).ok()) {
            None => Own::Silent(host),
            Some(listener) => {
                // A key that the user gave stays with the user.
                let key = self.terms.key.is_none().then(|| self.key.clone());
                let opened = Opened::noted(host, listener, origin, Served::Together { key });
                Own::Listening(opened.in_background())
            }
        };
        Ok((own, local))
    }

    /// Closes the host of this process, if there is one.
    pub(super) async fn close(self) {
        match self.own {
            None => {}
            Some(Own::Listening(background)) => background.stop().await,
            Some(Own::Silent(host)) => host.finish().await,
        }
    }
}

/// The reason why this process could not open the database.
enum NotOpened {
    Start(StartError),
    Key(Failure),
}

/// The host, wherever it is, for the client of this process.
#[derive(Debug)]
pub(super) struct Shared {
    database: PathBuf,
    place: watch::Receiver<Place>,
    look: Arc<Notify>,
    /// The client is gone.
    leaving: watch::Sender<bool>,
}

impl Shared {
    async fn answer(&self, request: Request, text: Bytes, out: Out) -> Option<Value> {
        let start = Instant::now();
        loop {
            let place = self.place.borrow().clone();
            let why = match place {
                Place::Here(local) => return local.request(request, text.into(), out).await,
                Place::There(elsewhere) => {
                    match self.forward(&elsewhere, &request, text.clone(), &out).await {
                        Ok(answer) => return answer,
                        Err(NoAnswer::Failed(why)) => return Some(forward::failed(&request, &why)),
                        Err(NoAnswer::Undelivered(why)) => why,
                    }
                }
                Place::Nowhere(why) => why.to_string(),
                // It is tried again, but may need its user.
                Place::Broken(why) => return Some(forward::failed(&request, &why)),
            };
            if start.elapsed() >= WAIT || !self.wait().await {
                return Some(forward::failed(&request, &why));
            }
        }
    }

    /// Sends a request to a host of another process, unless that has ended: its key is for nobody else.
    async fn forward(
        &self,
        elsewhere: &Elsewhere,
        request: &Request,
        text: Bytes,
        out: &Out,
    ) -> Result<Option<Value>, NoAnswer> {
        let base = elsewhere.remote.base();
        let ended = || format!("cannot reach {base}: the host has ended");
        match (elsewhere.standing(&self.database), &elsewhere.note.served) {
            (Standing::Stays, _) => {}
            // Nobody takes its place.
            (Standing::Gone, Served::Alone) => return Err(NoAnswer::Failed(ended())),
            (Standing::Gone, Served::Together { .. }) | (Standing::Replaced, _) => {
                return Err(NoAnswer::Undelivered(ended()));
            }
        }
        match (
            elsewhere.remote.answer(request, text, out).await,
            &elsewhere.note.served,
        ) {
            // It runs behind an address that does not work.
            (Err(NoAnswer::Undelivered(why)), Served::Alone) => Err(NoAnswer::Failed(why)),
            // Its process is about to end: its port is free before its note is.
            (answer, Served::Alone | Served::Together { .. }) => answer,
        }
    }

    /// Waits until the host may be elsewhere. Returns `false` if the client is gone.
    async fn wait(&self) -> bool {
        let (mut place, mut leaving) = (self.place.clone(), self.leaving.subscribe());
        place.mark_unchanged();
        self.look.notify_one();
        tokio::select! {
            biased;
            _ = leaving.wait_for(|leaving| *leaving) => false,
            // The time limit is for a change between looking at the place and waiting for the next one.
            _ = timeout(LOOK, place.changed()) => true,
        }
    }
}

impl Peer for Shared {
    fn hold(&self, n_text: usize, n_parsed: usize) -> Result<Held, Busy> {
        match &*self.place.borrow() {
            Place::Here(local) => local.hold(n_text, n_parsed),
            Place::There(_) | Place::Nowhere(_) | Place::Broken(_) => Ok(Held::default()),
        }
    }

    fn request(
        self: Arc<Self>,
        request: Request,
        text: Vec<u8>,
        out: Out,
    ) -> BoxFuture<'static, Option<Value>> {
        async move { self.answer(request, text.into(), out).await }.boxed()
    }

    fn notification(self: Arc<Self>, notification: Notification, text: Vec<u8>) -> BoxFuture<'static, ()> {
        async move {
            let place = self.place.borrow().clone();
            match place {
                Place::Here(local) => local.notification(notification, text).await,
                Place::There(elsewhere) => {
                    let standing = elsewhere.standing(&self.database);
                    if let Standing::Stays = standing
                        && let Err(error) = elsewhere.remote.notify(&notification, text.into()).await
                    {
                        // Nothing answers a notification, and the next host need not know of it.
                        tracing::info!(%error, method = notification.method, "notification not forwarded");
                    }
                }
                // No host waits for one.
                Place::Nowhere(_) | Place::Broken(_) => {}
            }
        }
        .boxed()
    }

    fn leave(&self) {
        self.leaving.send_replace(true);
        if let Place::Here(local) = &*self.place.borrow() {
            local.leave();
        }
    }
}
