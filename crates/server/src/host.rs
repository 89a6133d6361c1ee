//! The composition root: builds everything the faces need from a configuration.
//!
//! A host owns one store and one engine. Everything that can refuse a start is checked before the store is
//! opened, so a refused start changes nothing there. One check needs the store: whether the master key is that of
//! its other hosts. A later failure closes what was opened before. Invalid
//! workflow files are skipped, logged and listed, so that one bad file does not keep a host down.
//!
//! The file is long because it is the one place that knows every part and the order in which they are built.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, OptionFuture};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use wopr_app::{App, RegisterError, Registered};
use wopr_connect::{Executors, egress};
use wopr_core::{ContentHash, HostBounds, NodeTypes, Problems, WorkflowId, locate};
use wopr_engine::{Clock, Engine, Prepared, SteadyClock, SystemClock};
use wopr_store::{MemoryStore, PostgresStore, ReadError, SqliteStore, Store, postgres, sqlite};

use crate::{
    a2a::{
        CardSigner,
        push::{Notifier, SubscriptionCipher},
    },
    activity_tokens::ActivityTokens,
    admission::Admission,
    auth::Auth,
    awp,
    callbacks::Callbacks,
    config::{CidrText, Config, Keep, Period, StoreUrl, default_tenant},
    known_secrets::KnownSecrets,
    mcp,
    models::{self, ModelError},
    openwop::Discovery,
    paging::Paging,
    peer_files::PeerFiles,
    peers::{self, PeerError},
    secrets::{Secrets, SecretsError, key_beside},
    stored_secrets::{SecretCipher, StoredValues},
    telemetry::{Metrics, StoreStats},
    tls::{Tls, TlsError},
    tokens::{Token, Tokens},
    tools,
    waiting::Waiting,
};

/// Part of the grace period reserved for the engine and the store; at most a fifth of it.
const CLOSING: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("start without any api key: set WOPR_API_KEY or add [[auth.keys]] to the configuration")]
    NoKeys,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("open the store")]
    Store(#[from] sqlite::OpenError),
    #[error("open the store")]
    Postgres(#[from] postgres::OpenError),
    #[error("read the store")]
    Read(#[from] ReadError),
    #[error("write to the store")]
    Write(#[from] wopr_store::WriteError),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error("make the keys that sign agent cards")]
    CardKeys(#[from] wopr_wire::jws::JwsError),
    #[error(transparent)]
    Peers(#[from] PeerError),
    #[error(transparent)]
    Models(#[from] ModelError),
    #[error("start the engine")]
    Engine(#[from] wopr_engine::StartError),
    #[error("read the workflow folder {}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("register workflows: {0}")]
    Workflows(#[source] RegisterError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub file: PathBuf,
    /// Every broken rule, with its position.
    pub problems: Vec<String>,
}

#[derive(Debug)]
pub struct Host {
    config: Config,
    public_url: String,
    host_id: String,
    app: App,
    engine: Engine,
    store: Opened,
    auth: Arc<Auth>,
    following_keys: Mutex<Option<JoinHandle<()>>>,
    secrets: Secrets,
    tokens: Tokens,
    activity_tokens: ActivityTokens,
    callbacks: Callbacks,
    cipher: SubscriptionCipher,
    card_signer: Option<CardSigner>,
    gate: egress::Gate,
    executors: Executors,
    peer_files: PeerFiles,
    metrics: Metrics,
    discovery: Discovery,
    admission: Admission,
    rejected: Vec<Rejected>,
    closing: watch::Sender<bool>,
    tls: Option<Arc<Tls>>,
    is_draining: AtomicBool,
    history_positions: awp::Positions,
}

/// The store by its concrete type, for operations outside the `Store` trait.
#[derive(Debug)]
enum Opened {
    Memory(Arc<MemoryStore>),
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
    /// The caller that passed the store closes it.
    Given(Arc<dyn Store>),
}

impl Opened {
    async fn open(url: &StoreUrl) -> Result<Self, StartError> {
        match url {
            StoreUrl::Memory => Ok(Self::Memory(Arc::new(MemoryStore::new()))),
            StoreUrl::Postgres(url) => {
                let options = postgres::Options {
                    needs_writes: true,
                    ..postgres::Options::default()
                };
                let store = PostgresStore::open(url.expose(), options).await?;
                Ok(Self::Postgres(Arc::new(store)))
            }
            StoreUrl::Sqlite(path) => {
                let path = path.clone();
                let open = move || {
                    let is_new = matches!(sqlite::schema_version(&path), Ok(0));
                    let key = key_beside(&path);
                    let opened = SqliteStore::open(&path, sqlite::Options::default());
                    if is_new && opened.is_ok() && key.exists() {
                        tracing::warn!(
                            database = %path.display(),
                            key = %key.display(),
                            "a new database was made beside the master key of one that is not there"
                        );
                    }
                    opened
                };
                // Opening waits for the disk and may migrate.
                let opened = tokio::task::spawn_blocking(open).await;
                Ok(Self::Sqlite(Arc::new(
                    opened.expect("opening a store does not panic")?,
                )))
            }
        }
    }

    fn port(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Sqlite(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Postgres(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Given(store) => Arc::clone(store),
        }
    }

    /// Returns `true` if the disk has been full for every write since the store was opened.
    fn is_full(&self) -> bool {
        match self {
            Self::Sqlite(store) => store.is_full(),
            Self::Memory(_) | Self::Postgres(_) | Self::Given(_) => false,
        }
    }

    async fn close(&self) {
        match self {
            Self::Memory(_) | Self::Given(_) => {}
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.close().await,
        }
    }
}

/// The extensions that an embedding program gives to a host.
#[derive(Debug, Default)]
pub struct Embedding {
    pub network: egress::Network,
    /// Agents that workflows may call, reached by code of that program, by name.
    pub transports: wopr_connect::Transports,
}

impl Host {
    /// Opens the store, starts the engine and loads the workflow folders.
    pub async fn open(config: Config) -> Result<Arc<Self>, StartError> {
        Self::open_with(config, steady()).await
    }

    /// Like [`Host::open`], but retries with backoff while the PostgreSQL server is unreachable.
    ///
    /// # Errors
    /// Returns errors that a retry cannot fix.
    pub async fn open_when_reached(config: Config) -> Result<Arc<Self>, StartError> {
        let mut waiting = Waiting::new();
        loop {
            match Box::pin(Self::open(config.clone())).await {
                Err(StartError::Postgres(error)) if error.is_passing() => waiting.after(&error).await,
                opened => {
                    waiting.is_over();
                    return opened;
                }
            }
        }
    }

    /// Like [`Host::open`], with another clock.
    pub async fn open_with(config: Config, clock: Arc<dyn Clock>) -> Result<Arc<Self>, StartError> {
        Self::open_on(config, clock, egress::Network::default()).await
    }

    /// Like [`Host::open_with`], on another network.
    pub async fn open_on(
        config: Config,
        clock: Arc<dyn Clock>,
        network: egress::Network,
    ) -> Result<Arc<Self>, StartError> {
        let embedding = Embedding {
            network,
            ..Embedding::default()
        };
        Self::open_embedded(config, clock, embedding).await
    }

    /// Like [`Host::open_with`], with what the program around the host brings along.
    pub fn open_embedded(
        config: Config,
        clock: Arc<dyn Clock>,
        embedding: Embedding,
    ) -> BoxFuture<'static, Result<Arc<Self>, StartError>> {
        // A trait object, so the code of a host is compiled in this crate and not in each program that opens one.
        Box::pin(Self::opened(config, clock, embedding))
    }

    async fn opened(
        config: Config,
        clock: Arc<dyn Clock>,
        embedding: Embedding,
    ) -> Result<Arc<Self>, StartError> {
        let tls = read_settings(&config)?;
        let files = read_folders(&config.workflows)?;
        let has_callers = !config.auth.keys.is_empty() || config.auth.has_others();
        if !has_callers && !holds_keys(&config.store).await? {
            return Err(StartError::NoKeys);
        }
        let store = Opened::open(&config.store).await?;
        Box::pin(Self::open_opened(config, store, files, tls, clock, embedding)).await
    }

    /// Checks what a start would read besides the store and the workflows: certificates, keys, credentials and the
    /// form of the store's URL. Creates nothing and connects to nothing. Returns what a start would warn of: credentials
    /// that are not where the configuration says.
    ///
    /// # Errors
    /// Those that a start would end with.
    pub fn check(config: &Config) -> Result<Vec<String>, StartError> {
        read_settings(config)?;
        if let StoreUrl::Postgres(url) = &config.store {
            postgres::check_url(url.expose())?;
        }
        let env = |name: &str| std::env::var(name).ok();
        let named_secrets = models::secrets(&config.secrets.named, &env);
        let peers = peers::read(&config.a2a.peers, &named_secrets, &env)?;
        models::providers(&config.models, &named_secrets, &env)?;
        let missing_secrets = models::missing(&named_secrets);
        Ok(missing_secrets.chain(peers::without_credential(&peers)).collect())
    }

    /// Like [`Host::open_with`], but on a store that is already open; the configured URL is ignored.
    pub fn open_over(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'static, Result<Arc<Self>, StartError>> {
        Box::pin(async move {
            let tls = config.server.tls.as_ref().map(Tls::load).transpose()?;
            let files = read_folders(&config.workflows)?;
            let embedding = Embedding::default();
            Self::open_opened(config, Opened::Given(store), files, tls, clock, embedding).await
        })
    }

    async fn open_opened(
        config: Config,
        store: Opened,
        files: Vec<WorkflowFile>,
        tls: Option<Tls>,
        clock: Arc<dyn Clock>,
        embedding: Embedding,
    ) -> Result<Arc<Self>, StartError> {
        match Box::pin(Self::build(config, &store, files, clock, embedding)).await {
            Ok(built) => {
                let host = built.finish(store, tls);
                tracing::info!(
                    workflows = host.engine.workflows(&default_tenant()).len(),
                    rejected = host.rejected.len(),
                    conformance = host.config.conformance,
                    "host opened"
                );
                Ok(Arc::new(host))
            }
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    async fn build(
        config: Config,
        store: &Opened,
        files: Vec<WorkflowFile>,
        clock: Arc<dyn Clock>,
        embedding: Embedding,
    ) -> Result<Built, StartError> {
        let Embedding { network, transports } = embedding;
        let port = store.port();
        let auth = Auth::new(&config.auth.keys).with_store(&port).await?;
        if auth.is_empty() && !config.auth.has_others() {
            return Err(StartError::NoKeys);
        }
        let secrets = secrets_of(&config, &port).await?;
        let card_signer = CardSigner::new(&config.a2a, &secrets, &config.public_url())?;
        let policy = egress::Policy {
            allow: config.egress.allow.iter().map(CidrText::cidr).collect(),
        };
        let gate = egress::Gate::over(policy, egress::Limits::default(), network);
        let auth = auth.with_certificates(&config.auth.certificates).with_issuer(
            mcp::token_rules(&config).as_ref(),
            &gate,
            &clock,
        );
        let auth = Arc::new(auth);
        let ledger = config.conformance_ledger.clone();
        let names: Vec<_> = config.a2a.peers.iter().map(|peer| peer.name.clone()).collect();
        let silent_peers = peers::silent(&config.a2a.peers);
        let callbacks = Callbacks::new(secrets.subkey("call-push"), config.public_url());
        let env = |name: &str| std::env::var(name).ok();
        let named_secrets = models::secrets(&config.secrets.named, &env);
        let secrets_of_peers = named_secrets.clone();
        let peer_files = PeerFiles::new(&config.a2a.peers, move |peer| {
            peers::read_one(peer, &secrets_of_peers, &env)
        });
        let peers = peers::read(&config.a2a.peers, &named_secrets, &env)?;
        let tool_servers = tools::servers(&config.mcp.servers, &named_secrets);
        let has_tool_servers = !tool_servers.is_empty();
        let models = models::providers(&config.models, &named_secrets, &env)?;
        let known_secrets = Arc::new(KnownSecrets::new(
            named_secrets.clone(),
            port.clone(),
            SecretCipher::new(&secrets),
            config.conformance,
        ));
        let executors = Executors::new(
            gate.clone(),
            wopr_connect::Options {
                ledger,
                peers,
                silent_peers,
                // The default is an address that other hosts need not reach.
                callbacks: (config.server.public_url.is_some())
                    .then(|| Arc::new(callbacks.clone()) as Arc<dyn wopr_connect::Callbacks>),
                poll_interval: config.a2a.poll_interval.map(Period::as_duration),
                models,
                tool_servers,
                tool_agents: tools::agents(&config.mcp.agents),
                transports,
                mock: config.conformance.then(wopr_connect::Mock::default),
                secrets: wopr_connect::NamedSecrets::new(named_secrets).with_values(Arc::new(
                    StoredValues::new(port.clone(), SecretCipher::new(&secrets)),
                )),
                origin: Some(wopr_connect::CallingHost {
                    id: secrets.host_id(),
                    // The default is an address that other hosts need not reach.
                    well_known_url: (config.server.public_url.is_some())
                        .then(|| format!("{}/.well-known/openwop", config.public_url())),
                }),
            },
        );
        let cipher = SubscriptionCipher::new(&secrets);
        let notifier = Notifier::new(cipher.clone(), gate.clone(), config.public_url());
        let options = wopr_engine::Options {
            notifier: Some(Arc::new(notifier)),
            push: wopr_engine::PushOptions {
                timeout: config.a2a.push_timeout.as_duration(),
                give_up_after: config.a2a.push_give_up.as_duration(),
                ..wopr_engine::PushOptions::default()
            },
            bounds: HostBounds {
                node_executions: config.limits.max_node_executions,
                log_bytes: config.limits.max_log_bytes,
                run_duration_ms: config.max_run_duration().map(Period::as_millis),
            },
            node_types: NodeTypes {
                conformance: config.conformance,
            },
            in_process: config.awp.in_process().map(Arc::new),
            signatures: Arc::new(config.awp.trust()),
            max_descendants: config.limits.max_descendants,
            max_workflows: config.limits.max_workflows,
            max_workflow_bytes: config.limits.max_workflow_bytes,
            secrets: known_secrets,
            lease: config.effects.lease.as_duration(),
            workers: config.workers.options(),
            retention: match config.retention.terminal_runs {
                Keep::Forever => None,
                Keep::For(period) => Some(period.as_duration()),
            },
            budgets: config.budgets.iter().map(crate::config::Budget::shared).collect(),
            ..wopr_engine::Options::default()
        };
        let prepared = Engine::prepare(port, Arc::new(executors.clone()), clock, options).await?;
        let engine = prepared.engine();
        let options = wopr_app::Options {
            private_runs: config.a2a.private_tasks,
            // The conformance suite has a single credential for all of its voters.
            open_voting: config.conformance,
            idempotency_retention_ms: config.idempotency.retention.as_millis(),
            max_subscriptions: config.a2a.push_configs,
        };
        let app = App::new(engine.clone(), options, Arc::<Auth>::clone(&auth));
        if config.conformance
            && let Err(error) = crate::a2a::conformance::register(&app).await
        {
            engine.stop().await;
            return Err(StartError::Workflows(error));
        }
        // Each agent is a worker that supervisors can name.
        if let Err(error) = peers::register(&app, &names).await {
            engine.stop().await;
            return Err(StartError::Workflows(error));
        }
        if has_tool_servers && let Err(error) = tools::register(&app).await {
            engine.stop().await;
            return Err(StartError::Workflows(error));
        }
        let rejected = match register_files(engine, store, files).await {
            Ok(rejected) => rejected,
            Err(error) => {
                engine.stop().await;
                return Err(error);
            }
        };
        Ok(Built {
            config,
            app,
            prepared,
            auth,
            secrets,
            callbacks,
            cipher,
            card_signer,
            gate,
            executors,
            peer_files,
            rejected,
        })
    }

    pub(crate) const fn history_positions(&self) -> &awp::Positions {
        &self.history_positions
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The origin used in every link, without a trailing slash.
    #[must_use]
    pub fn public_url(&self) -> &str {
        &self.public_url
    }

    /// The stable name of this installation, the same for all processes over one database.
    #[must_use]
    pub fn host_id(&self) -> &str {
        &self.host_id
    }

    /// The URL that resolves an interrupt by its token.
    #[must_use]
    pub fn interrupt_url(&self, token: &Token) -> String {
        format!("{}/v1/interrupts/{}", self.public_url, token.text)
    }

    /// Encrypts the secrets of tenants.
    #[must_use]
    pub(crate) fn secret_cipher(&self) -> SecretCipher {
        SecretCipher::new(&self.secrets)
    }

    #[must_use]
    pub const fn app(&self) -> &App {
        &self.app
    }

    /// The engine, for code that opens or measures hosts. Faces go through [`Host::app`].
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    #[must_use]
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    #[must_use]
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    #[must_use]
    pub(crate) const fn activity_tokens(&self) -> &ActivityTokens {
        &self.activity_tokens
    }

    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The callbacks of calls to agents.
    #[must_use]
    pub(crate) const fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// The signer of agent cards, if signing is configured.
    #[must_use]
    pub fn card_signer(&self) -> Option<&CardSigner> {
        self.card_signer.as_ref()
    }

    #[must_use]
    pub(crate) const fn cipher(&self) -> &SubscriptionCipher {
        &self.cipher
    }

    /// The limits that the requests of this host share.
    #[must_use]
    pub(crate) const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The turns to read logs, and the frames that streams share.
    #[must_use]
    pub(crate) const fn paging(&self) -> &Paging {
        &self.admission.paging
    }

    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    #[must_use]
    pub fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// The gate for all outgoing connections.
    #[must_use]
    pub fn gate(&self) -> &egress::Gate {
        &self.gate
    }

    #[must_use]
    pub fn executors(&self) -> &Executors {
        &self.executors
    }

    /// Whether files of agents that workflows may call can change.
    pub(crate) fn has_peer_files(&self) -> bool {
        !self.peer_files.is_empty()
    }

    /// Reads the files of agents that workflows may call again, if they have changed. Blocks on the disk.
    pub fn reload_peers(&self) {
        for (peer, read) in self.peer_files.changed() {
            match read {
                Ok(read) => {
                    self.executors.agents().replace(read);
                    tracing::info!(peer, "files of an a2a peer read again");
                }
                Err(error) => {
                    tracing::warn!(peer, %error, cause = ?error, "files of an a2a peer are of no use, the last ones stay");
                }
            }
        }
    }

    /// Workflow files that were skipped at startup.
    #[must_use]
    pub fn rejected(&self) -> &[Rejected] {
        &self.rejected
    }

    /// Statistics of the database, if there is one.
    #[must_use]
    pub fn store_stats(&self) -> Option<StoreStats> {
        match &self.store {
            Opened::Memory(_) | Opened::Given(_) => None,
            Opened::Sqlite(store) => Some(StoreStats::Sqlite(store.stats())),
            Opened::Postgres(store) => Some(StoreStats::Postgres(store.stats())),
        }
    }

    #[must_use]
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Becomes `true` when the host starts closing; streams end then.
    #[must_use]
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Ends streams and makes the host report that it is not ready.
    pub fn begin_close(&self) {
        self.closing.send_replace(true);
    }

    #[must_use]
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Says that the host is not ready, and waits for as long as load balancers are given to see it. It serves as
    /// before meanwhile.
    pub async fn drain(&self) {
        let delay = self.config.server.shutdown_delay.as_duration();
        if !delay.is_zero() {
            tracing::info!(?delay, "not ready any more, stopping after the delay");
            self.is_draining.store(true, Ordering::Relaxed);
            tokio::time::sleep(delay).await;
        }
    }

    /// Returns `true` if load balancers are to send requests elsewhere.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_closing() || self.is_draining.load(Ordering::Relaxed)
    }

    /// The ends of an orderly stop that begins now: until when what is under way may finish, and until when all is
    /// closed.
    pub(crate) fn deadlines(&self) -> (Instant, Instant) {
        let grace = self.config.server.shutdown_grace.as_duration();
        let end = Instant::now() + grace;
        (end - CLOSING.min(grace / 5), end)
    }

    /// Takes up no more work, and waits for the calls of steps and the pushes that are under way.
    pub(crate) async fn finish_work(&self, until: Instant) {
        if timeout_at(until, self.engine.finish_work()).await.is_err() {
            tracing::warn!("calls cut off after the grace period");
        }
    }

    /// Stops like a server without connections: what is under way may finish within the grace period.
    pub async fn finish(&self) {
        self.begin_close();
        let (until, end) = self.deadlines();
        self.finish_work(until).await;
        if timeout_at(end, self.close()).await.is_err() {
            tracing::warn!("not closed in order within the grace period");
        }
    }

    /// Stops the engine and closes the store. Acknowledged writes are already durable.
    pub async fn close(&self) {
        self.begin_close();
        let following = self.following_keys.lock().take();
        if let Some(Err(error)) = OptionFuture::from(following).await {
            tracing::error!(%error, "keys were not followed to the end");
        }
        self.engine.stop().await;
        self.store.close().await;
        tracing::info!("host closed");
    }
}

/// The system clock, made monotonic.
fn steady() -> Arc<dyn Clock> {
    Arc::new(SteadyClock::over(Arc::new(SystemClock)))
}

/// Returns `true` if a store holds API keys.
async fn holds_keys(url: &StoreUrl) -> Result<bool, StartError> {
    match url {
        StoreUrl::Memory => Ok(false),
        StoreUrl::Sqlite(path) => {
            let path = path.clone();
            let holds = tokio::task::spawn_blocking(move || sqlite::holds_keys(&path)).await;
            // Reading without the lock may fail where opening succeeds, for instance on a full disk. Opening
            // reports errors, and the keys are checked again afterwards.
            Ok(holds.expect("reading a store does not panic").unwrap_or(true))
        }
        StoreUrl::Postgres(url) => Ok(postgres::holds_keys(url.expose()).await?),
    }
}

struct Built {
    config: Config,
    app: App,
    prepared: Prepared,
    auth: Arc<Auth>,
    secrets: Secrets,
    callbacks: Callbacks,
    cipher: SubscriptionCipher,
    card_signer: Option<CardSigner>,
    gate: egress::Gate,
    executors: Executors,
    peer_files: PeerFiles,
    rejected: Vec<Rejected>,
}

impl Built {
    fn finish(self, store: Opened, tls: Option<Tls>) -> Host {
        let Self {
            config,
            app,
            prepared,
            auth,
            secrets,
            callbacks,
            cipher,
            card_signer,
            gate,
            executors,
            peer_files,
            rejected,
        } = self;
        let public_url = config.public_url();
        let tokens = Tokens::new(secrets.subkey("interrupt-token"), config.interrupts.token_ttl);
        let activity_tokens = ActivityTokens::new(secrets.subkey("activity-token"));
        let host_id = secrets.host_id();
        let discovery = Discovery::new(&config, &public_url, host_id.clone(), &app);
        let admission = Admission::new(config.server.max_connections);
        let closing = watch::Sender::new(false);
        let following = tokio::spawn(Arc::clone(&auth).follow(closing.subscribe()));
        Host {
            config,
            public_url,
            host_id,
            app,
            // Nothing can fail from here on: a host that cannot start must not take up work.
            engine: prepared.begin(),
            store,
            auth,
            following_keys: Mutex::new(Some(following)),
            secrets,
            tokens,
            activity_tokens,
            callbacks,
            cipher,
            card_signer,
            gate,
            executors,
            peer_files,
            metrics: Metrics::default(),
            discovery,
            admission,
            rejected,
            closing,
            tls: tls.map(Arc::new),
            is_draining: AtomicBool::new(false),
            history_positions: awp::Positions::default(),
        }
    }
}

/// A file of a workflow folder, as read at startup.
struct WorkflowFile {
    path: PathBuf,
    /// The text and the parsed document, or the error.
    document: Result<(String, Value), String>,
}

/// Reads the certificates of the server, and checks that there is a master key or that one may be created.
fn read_settings(config: &Config) -> Result<Option<Tls>, StartError> {
    let tls = config.server.tls.as_ref().map(Tls::load).transpose()?;
    Secrets::check(&config.secrets, &config.store)?;
    Ok(tls)
}

/// Finds the master key, and sees to it that all hosts of a store have the same.
async fn secrets_of(config: &Config, store: &Arc<dyn Store>) -> Result<Secrets, StartError> {
    let is_temporary = matches!(config.store, StoreUrl::Memory)
        && config.secrets.master_key.is_none()
        && config.secrets.key_file.is_none();
    if is_temporary {
        return Ok(Secrets::open(&config.secrets, &config.store)?);
    }
    let known = store.key_check().await?;
    let secrets = Secrets::open_for(&config.secrets, &config.store, known.as_deref())?;
    let own = secrets.check_value();
    if known.as_ref() == Some(&own) {
        return Ok(secrets);
    }
    if known.is_some() {
        tracing::warn!(
            "the master key is another one than before: what was made under that one cannot be read"
        );
    }
    store.put_key_check(&own, known.is_some()).await?;
    // Another replica may have been first.
    match store.key_check().await? {
        Some(stored) if stored == own => Ok(secrets),
        Some(_) | None => Err(SecretsError::OtherKey.into()),
    }
}

/// Reads every `*.json`, folder by folder, sorted by name.
fn read_folders(folders: &[PathBuf]) -> Result<Vec<WorkflowFile>, StartError> {
    let mut files = Vec::new();
    for folder in folders {
        let failed = |source| StartError::Folder {
            path: folder.clone(),
            source,
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        files.extend(paths.into_iter().map(|path| {
            let document = read_file(&path);
            WorkflowFile { path, document }
        }));
    }
    Ok(files)
}

fn read_file(path: &Path) -> Result<(String, Value), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("file: {error}"))?;
    let document = serde_json::from_str(&text).map_err(|error| format!("file: {error}"))?;
    Ok((text, document))
}

/// Registers the files as workflows of every tenant and returns those that were skipped.
async fn register_files(
    engine: &Engine,
    store: &Opened,
    files: Vec<WorkflowFile>,
) -> Result<Vec<Rejected>, StartError> {
    let mut rejected = Vec::new();
    let mut loaded: HashMap<WorkflowId, (PathBuf, ContentHash)> = HashMap::new();
    for WorkflowFile { path: file, document } in files {
        let problems = match register_file(engine, store, document).await {
            Ok(Registered { plan, .. }) => {
                let before = loaded.insert(plan.id().clone(), (file.clone(), plan.version().clone()));
                if let Some((other, version)) = before
                    && version != *plan.version()
                {
                    let (file, other, workflow) = (file.display(), other.display(), plan.id());
                    tracing::warn!(%file, %other, %workflow, "workflow takes the place of another file's");
                }
                continue;
            }
            Err(Skip::Fatal(error)) => return Err(error),
            Err(Skip::Problems(problems)) => problems,
        };
        let problem = problems.first().map_or("", String::as_str);
        tracing::warn!(file = %file.display(), %problem, problems = problems.len(), "workflow skipped");
        rejected.push(Rejected { file, problems });
    }
    Ok(rejected)
}

enum Skip {
    Problems(Vec<String>),
    Fatal(StartError),
}

async fn register_file(
    engine: &Engine,
    store: &Opened,
    document: Result<(String, Value), String>,
) -> Result<Registered, Skip> {
    let (text, document) = document.map_err(|problem| Skip::Problems(vec![problem]))?;
    match engine.register(None, document).await {
        Ok(registered) => Ok(registered),
        Err(RegisterError::Invalid(Problems(problems))) => {
            let places = locate(&text, &problems);
            let lines = problems.iter().zip(places).map(|(problem, place)| match place {
                Some(place) => format!("{}:{}: {problem}", place.line, place.column),
                None => problem.to_string(),
            });
            Err(Skip::Problems(lines.collect()))
        }
        Err(RegisterError::Full(limit)) => Err(Skip::Problems(vec![format!("workflow: {limit}")])),
        // The stored version is served; this one is registered at the next start.
        Err(RegisterError::Unavailable(why)) if store.is_full() => {
            Err(Skip::Problems(vec![format!("store: {why}")]))
        }
        Err(error @ (RegisterError::Unavailable(_) | RegisterError::Busy(_))) => {
            Err(Skip::Fatal(StartError::Workflows(error)))
        }
    }
}
