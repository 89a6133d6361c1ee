//! One server: its connection, which is opened when it is needed and again when it is lost, and its list of tools.
//!
//! A server that cannot be reached, or whose process dies, is tried again after a pause that doubles with each failure.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex as SyncMutex;

use rmcp::{
    ClientHandler, ErrorData, RoleClient, ServiceError, ServiceExt as _,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, Implementation,
        ListRootsRequestMethod, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult,
    },
    service::{
        ClientCacheConfig, ClientInitializeError, NotificationContext, RequestContext, RunningService,
    },
};
use serde_json::{Map, Value};
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout, timeout_at},
};
use wopr_core::{TenantId, ToolRequest};
use wopr_engine::Outcome;

use super::{
    Asked, Reached, ToolServer,
    answer::{Answered, cut},
    http,
    listing::{Listed, MAX_PAGES, Page, TooMuch, Tool},
    secrets, stdio,
};
use crate::{egress::Gate, http::failed, redact::Secrets};

/// The most calls at one server at a time.
pub(super) const MAX_CALLS: usize = 64;
/// The most of them that one tenant makes.
const MAX_CALLS_OF_TENANT: usize = 48;
/// How many calls in a row may pass their time, without any answer between them, before the connection is given up.
const MAX_SILENCE: u32 = 5;
/// How long a server may take to start and to greet.
const GREETING: Duration = Duration::from_secs(60);
/// How long a list of tools is used.
const LIST_AGE: Duration = Duration::from_secs(300);
/// How old a list is at least that is read again for a tool that it does not have.
const LIST_AGAIN: Duration = Duration::from_secs(2);
/// The pause after the first failure, and the longest one.
const PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The reason given for a server that this host has reached and whose connection has ended.
const BROKEN: &str = "its connection has ended";

#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: Arc<ToolServer>,
    pub(super) secrets: Secrets,
    turns: Arc<Semaphore>,
    /// The turns of each tenant that calls.
    shares: SyncMutex<HashMap<TenantId, Arc<Semaphore>>>,
    gate: Gate,
    groups: Arc<stdio::Groups>,
    line: Mutex<Line>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.groups.close();
    }
}

#[derive(Debug, Default)]
struct Line {
    session: Option<Arc<Session>>,
    /// The connection that is being opened, if one is, and when that ended. It goes on if the caller that began it has no
    /// more time: a call with a short one must not end, again and again, what all others wait for.
    opening: JoinSet<(Instant, Result<Session, Unavailable>)>,
    n_failures: u32,
    /// Why it failed last.
    why: Option<String>,
    /// When the server may be tried again.
    next: Option<Instant>,
}

/// How the opening of a connection ended.
type Opened = Result<(Instant, Result<Session, Unavailable>), JoinError>;

/// Why a server could not be asked. Nothing was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unavailable {
    #[error("its credential is missing: {0}")]
    Credential(String),
    #[error("its process could not be started: {0}")]
    Process(std::io::ErrorKind),
    #[error("{why}; {}it is tried again in {} ms", count(*.n_failures), .again.as_millis())]
    Pausing {
        why: String,
        n_failures: u32,
        again: Duration,
    },
    #[error("it could not be reached or did not greet")]
    Greeting,
    /// It was reached.
    #[error("it refused the greeting: {0}")]
    Unwilling(String),
    #[error("{0}")]
    Refused(String),
    #[error("it did not answer in time")]
    Timeout,
    #[error("it speaks version {0}, which this host does not")]
    Version(String),
    #[error("it gave no list of tools: {0}")]
    NoList(String),
    #[error("its list is too long: {0}")]
    TooMuch(#[from] TooMuch),
}

/// How often a server has failed, as the middle of a sentence.
fn count(n_failures: u32) -> String {
    match n_failures {
        0 => String::new(),
        1 => "it failed once; ".to_owned(),
        n => format!("it failed {n} times; "),
    }
}

impl Unavailable {
    pub(super) fn outcome(&self, server: &str) -> Outcome {
        let message = format!("the tool server '{server}' is not available: {self}");
        match self {
            Self::Credential(_) => failed("credential_missing", message, false),
            Self::TooMuch(_) | Self::Refused(_) | Self::Version(_) => {
                failed("tool_server_unavailable", message, false)
            }
            Self::Pausing { again, .. } => Outcome::Failed {
                code: "tool_server_unavailable".to_owned(),
                message,
                retryable: true,
                retry_after: Some(*again),
                may_go_on: false,
                is_timeout: false,
            },
            Self::Process(_) | Self::Greeting | Self::Unwilling(_) | Self::NoList(_) => {
                failed("tool_server_unavailable", message, true)
            }
            Self::Timeout => failed("tool_server_unavailable", message, true).timed_out(),
        }
    }
}

impl Server {
    pub(super) fn new(gate: Gate, config: ToolServer) -> Self {
        Self {
            secrets: secrets(&config.reached),
            config: Arc::new(config),
            turns: Arc::new(Semaphore::new(MAX_CALLS)),
            shares: SyncMutex::default(),
            gate,
            groups: Arc::default(),
            line: Mutex::default(),
        }
    }

    pub(super) fn is_for(&self, tenant: &TenantId) -> bool {
        self.config.tenants.is_empty() || self.config.tenants.contains(tenant)
    }

    /// Whether the operator lets workflows call the tool.
    pub(super) fn offers(&self, tool: &str) -> bool {
        self.config.tools.is_empty() || self.config.tools.iter().any(|offered| offered == tool)
    }

    /// A place among the calls: first among those of the tenant, so that its calls wait for each other.
    pub(super) async fn turn(&self, tenant: Option<&TenantId>) -> Option<Turn> {
        let share = match tenant {
            Some(tenant) => {
                let share = match self.shares.lock().entry(tenant.clone()) {
                    Entry::Occupied(share) => Arc::clone(share.get()),
                    Entry::Vacant(place) => {
                        Arc::clone(place.insert(Arc::new(Semaphore::new(MAX_CALLS_OF_TENANT))))
                    }
                };
                Some(share.acquire_owned().await.ok()?)
            }
            None => None,
        };
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        // Those of tenants that do not call any more.
        self.shares.lock().retain(|_, share| Arc::strong_count(share) > 1);
        Some(Turn {
            _share: share,
            _turn: turn,
        })
    }

    /// The connection, and when the time of a call over it is over.
    ///
    /// A process has its own time to start and to greet, which is not that of a call. A server at a url has nothing to
    /// start, so waiting for it takes the call's time.
    pub(super) async fn session_within(
        &self,
        time: Duration,
    ) -> Result<(Arc<Session>, Instant), Unavailable> {
        let waits_until = Instant::now() + time;
        match &self.config.reached {
            Reached::Process(_) => {
                let session = self.session(waits_until).await?;
                Ok((session, Instant::now() + time))
            }
            Reached::Http { .. } => {
                let session = timeout_at(waits_until, self.session(waits_until)).await;
                Ok((session.map_err(|_| Unavailable::Timeout)??, waits_until))
            }
        }
    }

    /// The connection, also of a server whose last one has broken and that may not be tried again at once: the call that
    /// broke it must not fail those of others, so they wait as long as they have time.
    ///
    /// A server that fails again and again is not waited for. Its callers would take the turns of all others.
    pub(super) async fn session(&self, waits_until: Instant) -> Result<Arc<Session>, Unavailable> {
        loop {
            match self.session_now().await {
                Err(Unavailable::Pausing {
                    again, n_failures: 0, ..
                }) if Instant::now() + again < waits_until => sleep(again).await,
                ended => return ended,
            }
        }
    }

    /// The connection. It is opened once, while all callers wait.
    ///
    /// # Cancel safety
    /// A caller that gives up ends nothing: the next one finds the connection as far as it is open.
    async fn session_now(&self) -> Result<Arc<Session>, Unavailable> {
        let mut line = self.line.lock().await;
        // It may have ended while nobody waited for it. What failed then is a reason to pause, not this caller's error.
        if let Some(ended) = line.opening.try_join_next() {
            drop(self.opened(&mut line, ended));
        }
        if let Some(session) = line
            .session
            .as_ref()
            .filter(|session| !session.service.is_transport_closed())
        {
            return Ok(Arc::clone(session));
        }
        if line.session.take().is_some() {
            line.why = Some(BROKEN.to_owned());
        }
        if line.opening.is_empty() {
            if let Some(again) = line
                .next
                .and_then(|next| next.checked_duration_since(Instant::now()))
            {
                let why = || Unavailable::Greeting.to_string();
                return Err(Unavailable::Pausing {
                    why: line.why.clone().unwrap_or_else(why),
                    n_failures: line.n_failures,
                    again,
                });
            }
            let (gate, config) = (self.gate.clone(), Arc::clone(&self.config));
            let groups = Arc::clone(&self.groups);
            line.opening.spawn(async move {
                let opened = timeout(GREETING, open(&gate, &config, &groups)).await;
                (Instant::now(), opened.unwrap_or(Err(Unavailable::Timeout)))
            });
        }
        match line.opening.join_next().await {
            Some(ended) => self.opened(&mut line, ended),
            None => Err(Unavailable::Greeting),
        }
    }

    /// Notes how the opening of a connection ended.
    fn opened(&self, line: &mut Line, ended: Opened) -> Result<Arc<Session>, Unavailable> {
        // The runtime ends, or the opening panicked.
        let (at, opened) = ended.unwrap_or_else(|_| (Instant::now(), Err(Unavailable::Greeting)));
        match opened {
            Ok(session) => {
                let session = Arc::new(session);
                line.session = Some(Arc::clone(&session));
                line.n_failures = 0;
                line.why = None;
                // A process that dies at once is not started again without a pause.
                line.next = Some(at + PAUSE);
                Ok(session)
            }
            Err(error) => {
                let pause = PAUSE.saturating_mul(1 << line.n_failures.min(16)).min(MAX_PAUSE);
                line.n_failures = line.n_failures.saturating_add(1);
                line.next = Some(at + pause);
                line.why = Some(error.to_string());
                tracing::warn!(server = self.config.name, %error, "a tool server is not available");
                Err(error)
            }
        }
    }
}

/// Opens the connection and reads the list, without which no tool can be called.
async fn open(gate: &Gate, config: &ToolServer, groups: &Arc<stdio::Groups>) -> Result<Session, Unavailable> {
    let is_stale = Arc::new(AtomicBool::new(false));
    let client = Client {
        is_stale: Arc::clone(&is_stale),
    };
    let name = &config.name;
    let secrets = secrets(&config.reached);
    let greeting = |error: ClientInitializeError| {
        tracing::debug!(server = name, %error, "a tool server did not greet");
        let unsent = match &error {
            ClientInitializeError::TransportError { error, .. } => http::Unsent::of(&*error.error),
            ClientInitializeError::JsonRpcError(error) => {
                return Unavailable::Unwilling(cut(&error.message, &secrets));
            }
            _ => None,
        };
        match unsent {
            Some(http::Unsent::Never { why }) => Unavailable::Refused(cut(&why, &secrets)),
            Some(http::Unsent::Later { .. }) | None => Unavailable::Greeting,
        }
    };
    let service = match &config.reached {
        Reached::Process(command) => {
            let process = stdio::Process::start(name, command, groups)?;
            client.serve(process).await.map_err(greeting)?
        }
        Reached::Http {
            url,
            header,
            credential,
        } => {
            let transport = http::HttpServer::open(gate, url, header.as_ref(), credential)?;
            client.serve(transport).await.map_err(greeting)?
        }
    };
    // This host decides how long it keeps a list, whatever age the server states.
    let peer = service.peer();
    peer.set_response_cache_config(ClientCacheConfig::disabled())
        .await;
    // For later versions the client would keep all that a server ever listed.
    let spoken = peer.peer_info().map(|info| info.protocol_version.clone());
    let is_accepted = |version: &ProtocolVersion| {
        version.has_initialize() && ProtocolVersion::KNOWN_VERSIONS.contains(version)
    };
    if let Some(version) = spoken.filter(|version| !is_accepted(version)) {
        let version: String = version.as_str().chars().take(32).collect();
        return Err(Unavailable::Version(version));
    }
    let session = Session {
        name: name.clone(),
        secrets,
        service,
        is_stale,
        n_late: AtomicU32::new(0),
        listed: Mutex::new(None),
    };
    session.listed(false).await?;
    Ok(session)
}

/// A place among the calls of a server.
#[derive(Debug)]
pub(super) struct Turn {
    _share: Option<OwnedSemaphorePermit>,
    _turn: OwnedSemaphorePermit,
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Session {
    name: String,
    secrets: Secrets,
    service: RunningService<RoleClient, Client>,
    /// The server says that its tools have changed.
    is_stale: Arc<AtomicBool>,
    /// How many calls in a row had no answer in their time.
    n_late: AtomicU32,
    listed: Mutex<Option<Arc<Listed>>>,
}

impl Session {
    /// The tools, from memory if they are known and `is_new` does not ask for newer ones.
    pub(super) async fn listed(&self, is_new: bool) -> Result<Arc<Listed>, Unavailable> {
        let mut listed = self.listed.lock().await;
        let most = if is_new { LIST_AGAIN } else { LIST_AGE };
        let is_stale = self.is_stale.load(Ordering::Acquire);
        if let Some(known) = listed
            .as_ref()
            .filter(|known| !is_stale && known.at.elapsed() < most)
        {
            return Ok(Arc::clone(known));
        }
        // A change that is told meanwhile counts for the next reader.
        self.is_stale.store(false, Ordering::Release);
        *listed = None;
        let read = Arc::new(self.read_list().await?);
        *listed = Some(Arc::clone(&read));
        Ok(read)
    }

    /// A tool by its name, which may be new.
    pub(super) async fn tool(&self, name: &str) -> Result<Option<Arc<Tool>>, Unavailable> {
        match self.listed(false).await?.get(name) {
            Some(tool) => Ok(Some(tool)),
            None => Ok(self.listed(true).await?.get(name)),
        }
    }

    async fn read_list(&self) -> Result<Listed, Unavailable> {
        let mut listed = Listed::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let page = self.page(params).await.map_err(|error| {
                tracing::debug!(server = self.name, %error, "a tool server gave no list");
                Unavailable::NoList(match error {
                    ServiceError::McpError(error) => cut(&error.message, &self.secrets),
                    ServiceError::UnexpectedResponse => "what it sent is no list".to_owned(),
                    ServiceError::TransportSend(error) => cut(&http::broken(&*error.error), &self.secrets),
                    _ => "its connection has ended".to_owned(),
                })
            })?;
            let next_cursor = page.next_cursor.clone();
            listed.add(page)?;
            match next_cursor {
                None => {
                    listed.tell_left_out(&self.name);
                    return Ok(listed);
                }
                next if next == cursor => return Err(TooMuch::Pages.into()),
                next => cursor = next,
            }
        }
        Err(TooMuch::Pages.into())
    }

    async fn page(&self, params: PaginatedRequestParams) -> Result<Page, ServiceError> {
        match self.service.list_tools(Some(params.clone())).await {
            Ok(page) => return Ok(page.into()),
            Err(ServiceError::UnexpectedResponse) => {}
            Err(error) => return Err(error),
        }
        // The client refuses a whole page for one tool that breaks the protocol, so this reads each tool alone.
        let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
        let page = match self.service.send_request(request).await {
            Ok(ServerResult::ListToolsResult(page)) => Some(page.into()),
            Ok(ServerResult::CustomResult(result)) => Page::of(result.0),
            // What the server sent first says more than how the second request ended.
            Ok(_) | Err(_) => None,
        };
        page.ok_or(ServiceError::UnexpectedResponse)
    }

    /// Calls a tool. If the time is over, the server is told that nobody waits any more.
    pub(super) async fn ask(
        &self,
        request: &ToolRequest,
        asked: Option<&Asked<'_>>,
        deadline: Instant,
    ) -> Answered {
        let mut params = CallToolRequestParams::new(request.tool.clone());
        params.arguments = Some(request.arguments.clone());
        params.meta = asked.map(|asked| {
            let mut meta = Map::new();
            if let Some(trace) = asked.trace {
                meta.insert("traceparent".to_owned(), Value::from(trace.parent()));
                let state = trace.state().map(Value::from);
                meta.extend(state.map(|state| ("tracestate".to_owned(), state)));
            }
            meta.insert("idempotencyKey".to_owned(), Value::from(asked.key));
            serde_json::from_value(Value::Object(meta)).unwrap_or_default()
        });
        let answer = timeout_at(deadline, self.service.peer().call_tool_once(params)).await;
        match answer {
            Ok(_) => self.n_late.store(0, Ordering::Relaxed),
            // It may hang: the next caller opens another connection.
            Err(_) if self.n_late.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_SILENCE => {
                tracing::warn!(
                    server = self.name,
                    "a tool server is silent; its connection is given up"
                );
                self.service.cancellation_token().cancel();
            }
            Err(_) => {}
        }
        match answer {
            Ok(Ok(answer)) => Answered::Result(answer),
            Ok(Err(error)) => {
                tracing::debug!(server = self.name, %error, "a tool server gave no result");
                Answered::Error(error)
            }
            Err(_) => Answered::Late,
        }
    }
}

/// What this host is to a server: a client that gives nothing.
#[derive(Debug)]
struct Client {
    is_stale: Arc<AtomicBool>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let about = Implementation::new("wopr", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), about)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    #[expect(deprecated, reason = "servers of older versions still ask for them")]
    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.is_stale.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_says_why_and_how_often_the_server_failed() {
        let pause = |why: &str, n_failures| {
            let why = why.to_owned();
            let again = Duration::from_millis(250);
            Unavailable::Pausing {
                why,
                n_failures,
                again,
            }
            .to_string()
        };
        assert_eq!(
            pause(BROKEN, 0),
            "its connection has ended; it is tried again in 250 ms"
        );
        assert_eq!(pause("x", 1), "x; it failed once; it is tried again in 250 ms");
        assert_eq!(pause("x", 3), "x; it failed 3 times; it is tried again in 250 ms");
    }
}
