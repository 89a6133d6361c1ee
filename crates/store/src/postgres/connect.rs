//! Connecting: one server after another, each with a timeout.
//!
//! A URL may name several servers, and a host name may have several addresses. They are tried in that order,
//! except that the one that answered last comes first, so that a dead server does not delay every new
//! connection. Each gets the same time until its session is usable: connecting, TLS, login and the first
//! statements. The driver only limits connecting, but a stopped server still accepts connections and would
//! never answer. A caller waits at most for the sum.
//!
//! Timeouts of later statements are not set here, except for the small ones at startup.

use std::{error::Error as StdError, fmt, future::Future, net::IpAddr, sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;
use parking_lot::Mutex;
use rand::seq::SliceRandom as _;
use tokio::{net, time::timeout};
use tokio_postgres::{
    Client, Config, Error, Row,
    config::{Host, LoadBalanceHosts},
    error::SqlState,
    types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{fault, open_error::OpenError};
use crate::Cause;

/// Attempts per startup statement that the server rolls back in favor of other transactions.
pub(super) const TRIES: u32 = 5;

/// Time limit of a small statement, as a multiple of the connect timeout.
const ANSWERING: u32 = 3;

#[derive(Clone)]
pub(super) struct Connector {
    /// One configuration per server.
    pub(super) servers: Arc<[Config]>,
    tls: MakeRustlsConnect,
    /// Time limit per address of a server.
    pub(super) timeout: Duration,
    is_shuffled: bool,
    /// Connections cross a network without TLS.
    pub(super) is_exposed: bool,
    last_good: Arc<Mutex<Option<Place>>>,
}

/// A server by its index in the URL, and its address if that was resolved from a host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    server: usize,
    address: Option<IpAddr>,
}

/// Why no server could be reached: the failure of each one that was tried.
#[derive(Debug)]
pub(super) struct Unreached {
    failures: Vec<Failure>,
    timeout: Duration,
}

#[derive(Debug)]
struct Failure {
    server: String,
    why: Why,
}

#[derive(Debug)]
enum Why {
    /// The server did not answer in time.
    Silent,
    /// The server cannot be reached, or does not match `target_session_attrs`.
    Refused(Cause),
    /// The server rejects the login, and retrying will not help.
    Final(Cause),
}

/// The stream of a connection, with or without TLS.
type Stream = <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream;

/// The message side of a connection, which must be polled.
pub(super) type Messages = tokio_postgres::Connection<tokio_postgres::Socket, Stream>;

impl Connector {
    /// Splits the parameters of a URL by server.
    pub(super) fn new(
        config: &Config,
        tls: MakeRustlsConnect,
        timeout: Duration,
        is_exposed: bool,
    ) -> Result<Self, OpenError> {
        let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
        let (n, ports) = (hosts.max(addresses), config.get_ports().len());
        if n == 0 {
            return Err(OpenError::Url("it names no host".into()));
        }
        if hosts != addresses && hosts.min(addresses) > 0 {
            return Err(OpenError::Url(
                format!("{hosts} hosts have {addresses} hostaddrs").into(),
            ));
        }
        if ports > 1 && ports != n {
            return Err(OpenError::Url(format!("{n} hosts have {ports} ports").into()));
        }
        Ok(Self {
            servers: (0..n).map(|server| only(config, server)).collect(),
            tls,
            timeout,
            is_shuffled: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
            is_exposed,
            last_good: Arc::default(),
        })
    }

    /// Time limit of a small statement.
    pub(super) fn answering(&self) -> Duration {
        self.timeout * ANSWERING
    }

    /// Connects, and runs `told` as the first statements of the session; it may be empty.
    pub(super) async fn connect(&self, told: &'static str) -> Result<Session, Unreached> {
        let reach = |config: Config| carried(config, self.tls.clone(), told);
        let (client, server) = self.in_turn(reach).await?;
        let answering = self.answering();
        Ok(Session {
            client,
            server,
            answering,
        })
    }

    /// Asks the server to cancel the current statement of a connection. The cancellation may arrive late. Has
    /// no timeout of its own.
    pub(super) async fn stop(&self, client: &Client) -> Result<(), Error> {
        client.cancel_token().cancel_query(self.tls.clone()).await
    }

    /// Connects, and leaves it to the caller to read the messages.
    pub(super) async fn listen(&self) -> Result<(Client, Messages), Unreached> {
        let reach = |config: Config| {
            let tls = self.tls.clone();
            async move { config.connect(tls).await }
        };
        let (connection, _) = self.in_turn(reach).await?;
        Ok(connection)
    }

    /// Tries the addresses in order, and returns the name of the server that was reached.
    async fn in_turn<T, F>(&self, reach: impl Fn(Config) -> F) -> Result<(T, String), Unreached>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut failures = Vec::new();
        for (server, config) in self.order() {
            let addresses = match self.addresses(server, config).await {
                Ok(addresses) => addresses,
                Err(why) => {
                    let server = name(config, None);
                    failures.push(Failure { server, why });
                    continue;
                }
            };
            for address in addresses {
                let name = name(config, address);
                let mut config = config.clone();
                if let Some(address) = address {
                    // Keep the host name, which TLS verifies.
                    config.hostaddr(address);
                }
                // Boxed because it is large and rarely used, so that callers waiting for a connection stay
                // small.
                let reaching = Box::pin(reach(config));
                let why = match timeout(self.timeout, reaching).await {
                    Ok(Ok(reached)) => {
                        self.found(Place { server, address }, &name, failures);
                        return Ok((reached, name));
                    }
                    Ok(Err(error)) if fault::is_final(&error) => Why::Final(fault::cause(error)),
                    Ok(Err(error)) => Why::Refused(fault::cause(error)),
                    Err(_) => Why::Silent,
                };
                failures.push(Failure { server: name, why });
            }
        }
        let timeout = self.timeout;
        Err(Unreached { failures, timeout })
    }

    /// The servers in the order to try.
    fn order(&self) -> Vec<(usize, &Config)> {
        let mut order: Vec<_> = self.servers.iter().enumerate().collect();
        if self.is_shuffled {
            order.shuffle(&mut rand::rng());
        } else if let Some(last) = *self.last_good.lock() {
            // The sort is stable: the others keep the order of the URL.
            order.sort_by_key(|(server, _)| *server != last.server);
        }
        order
    }

    /// The addresses of a server in the order to try; `None` if no lookup is needed.
    async fn addresses(&self, server: usize, config: &Config) -> Result<Vec<Option<IpAddr>>, Why> {
        let Some(Host::Tcp(host)) = config.get_hosts().first() else {
            return Ok(vec![None]);
        };
        if !config.get_hostaddrs().is_empty() || host.parse::<IpAddr>().is_ok() {
            return Ok(vec![None]);
        }
        let found = match timeout(self.timeout, net::lookup_host((host.as_str(), 0))).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(Why::Refused(Cause::of(error))),
            Err(_) => return Err(Why::Refused("its name is not resolved in time".into())),
        };
        let mut addresses: Vec<_> = found.map(|address| Some(address.ip())).collect();
        if addresses.is_empty() {
            return Err(Why::Refused("its name has no address".into()));
        }
        if self.is_shuffled {
            addresses.shuffle(&mut rand::rng());
        } else if let Some(last) = *self.last_good.lock() {
            let is_other = |address: &Option<IpAddr>| last.server != server || last.address != *address;
            addresses.sort_by_key(is_other);
        }
        Ok(addresses)
    }

    /// Remembers the server that answered, and logs the change if others failed.
    fn found(&self, place: Place, name: &str, failures: Vec<Failure>) {
        let before = self.last_good.lock().replace(place);
        if before != Some(place) && !failures.is_empty() {
            let timeout = self.timeout;
            let others = Unreached { failures, timeout };
            tracing::warn!(server = name, %others, "another database server is used");
        }
    }
}

/// Connects, spawns the task that drives the connection, and runs the first statements of the session.
async fn carried(config: Config, tls: MakeRustlsConnect, told: &'static str) -> Result<ClientWrapper, Error> {
    let (client, connection) = config.connect(tls).await?;
    let carrying = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(error = fault::text(&error), "connection to the database lost");
        }
    });
    // Created before the first statements, so that the task ends with the client even if the server is
    // silent.
    let client = ClientWrapper::new(client, carrying);
    if !told.is_empty() {
        client.batch_execute(told).await?;
    }
    Ok(client)
}

/// The configuration of one server. The connect timeout is left out, because the connector applies its own.
fn only(config: &Config, server: usize) -> Config {
    let mut one = Config::new();
    if let Some(host) = config.get_hosts().get(server) {
        match host {
            Host::Tcp(name) => one.host(name),
            Host::Unix(folder) => one.host_path(folder),
        };
    }
    if let Some(address) = config.get_hostaddrs().get(server) {
        one.hostaddr(*address);
    }
    let ports = config.get_ports();
    if let Some(port) = ports.get(server).or(ports.first()) {
        one.port(*port);
    }
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(database) = config.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(application) = config.get_application_name() {
        one.application_name(application);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

/// The name of a server in messages.
fn name(config: &Config, address: Option<IpAddr>) -> String {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match (config.get_hosts().first(), config.get_hostaddrs().first()) {
        (Some(Host::Unix(folder)), _) => format!("{}:{port}", folder.display()),
        (Some(Host::Tcp(host)), given) => match address.as_ref().or(given) {
            Some(address) => format!("{host}:{port} ({address})"),
            None => format!("{host}:{port}"),
        },
        (None, Some(address)) => format!("{address}:{port}"),
        (None, None) => "the database".to_owned(),
    }
}

impl Unreached {
    /// Returns `true` if every server answered, and may accept a connection later.
    pub(super) fn is_refusal(&self) -> bool {
        let is_refused = |failure: &Failure| match failure.why {
            Why::Refused(_) => true,
            Why::Silent | Why::Final(_) => false,
        };
        self.failures.iter().all(is_refused)
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Failure { server, why }) in self.failures.iter().enumerate() {
            let separator = if n == 0 { "" } else { "; " };
            match why {
                Why::Silent => {
                    let seconds = self.timeout.as_secs_f64();
                    write!(f, "{separator}{server} did not answer within {seconds} s")?;
                }
                Why::Refused(why) | Why::Final(why) => write!(f, "{separator}{server}: {why}")?,
            }
        }
        Ok(())
    }
}

impl StdError for Unreached {
    /// The first of the failures that is an error.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.failures.iter().find_map(|failure| match &failure.why {
            Why::Silent => None,
            Why::Refused(why) | Why::Final(why) => why.source(),
        })
    }
}

impl From<Unreached> for OpenError {
    fn from(unreached: Unreached) -> Self {
        let is_final = |failure: &Failure| matches!(failure.why, Why::Final(_));
        if unreached.failures.iter().any(is_final) {
            return Self::Refused(Cause::of(unreached));
        }
        let is_silent = |failure: &Failure| matches!(failure.why, Why::Silent);
        if !unreached.failures.iter().all(is_silent) {
            return Self::Connect(Cause::of(unreached));
        }
        let names = unreached.failures.into_iter().map(|failure| failure.server);
        Self::Silent {
            server: names.collect::<Vec<_>>().join(", "),
            after: unreached.timeout,
        }
    }
}

/// A connection used at startup, with the name of its server. Its statements have a time limit, except those
/// on [`Session::client`].
pub(super) struct Session {
    client: ClientWrapper,
    server: String,
    answering: Duration,
}

impl Session {
    pub(super) fn into_client(self) -> ClientWrapper {
        self.client
    }

    /// The connection, for statements without a time limit.
    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs a small query, with retries if the server rolls it back in favor of other transactions.
    pub(super) async fn read(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OpenError> {
        let mut attempt = 1;
        loop {
            let asked = self.client.query(sql, values);
            match self.within(self.answering, asked).await? {
                Ok(rows) => return Ok(rows),
                Err(error) if attempt < TRIES && is_undone_by_others(&error) => {
                    super::pause(attempt).await;
                    attempt += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs a small query that returns one row.
    pub(super) async fn read_one(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, OpenError> {
        let rows = self.read(sql, values).await?;
        let row = rows.into_iter().next();
        row.ok_or_else(|| OpenError::Connect(format!("{} answered without a row", self.server).into()))
    }

    /// Runs statements. Their time limit is extended by `waiting`, for those that wait for locks.
    pub(super) async fn tell(&self, sql: &str, waiting: Duration) -> Result<Result<(), Error>, OpenError> {
        let told = self.client.batch_execute(sql);
        self.within(self.answering + waiting, told).await
    }

    async fn within<T>(&self, after: Duration, answer: impl Future<Output = T>) -> Result<T, OpenError> {
        timeout(after, answer).await.map_err(|_| OpenError::Silent {
            server: self.server.clone(),
            after,
        })
    }
}

/// Returns `true` if the server rolled a statement back in favor of another transaction.
pub(super) fn is_undone_by_others(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED)
    )
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, RootCertStore, crypto::ring};

    use super::*;

    fn connector(url: &str) -> Result<Connector, OpenError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let tls = builder
            .with_safe_default_protocol_versions()
            .expect("what the provider has")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = url.parse().expect("a url");
        Connector::new(
            &config,
            MakeRustlsConnect::new(tls),
            Duration::from_secs(5),
            false,
        )
    }

    #[test]
    fn every_parameter_reaches_the_only_server() {
        let url = "postgres://ada:secret@db.internal:5433/wopr?hostaddr=127.0.0.9&options=-cx%3Dy\
                   &application_name=x&sslmode=require&sslnegotiation=direct&tcp_user_timeout=7&keepalives=0\
                   &keepalives_idle=8&keepalives_interval=9&keepalives_retries=10\
                   &target_session_attrs=read-only&channel_binding=require&load_balance_hosts=random";
        let config: Config = url.parse().expect("a url");
        assert_eq!(only(&config, 0), config);
        let config: Config = "postgres://%2Frun%2Fpostgresql/wopr".parse().expect("a url");
        assert_eq!(only(&config, 0), config);
    }

    #[test]
    fn each_server_has_its_own_host_and_port() {
        let found = connector("postgres://ada@one:1,two,[::3]:3/db").expect("a url");
        let names: Vec<_> = found.servers.iter().map(|server| name(server, None)).collect();
        assert_eq!(names, ["one:1", "two:5432", "::3:3"]);
        let found = connector("host=one,two port=7 hostaddr=127.0.0.1,127.0.0.2").expect("a url");
        let names: Vec<_> = found.servers.iter().map(|server| name(server, None)).collect();
        assert_eq!(names, ["one:7 (127.0.0.1)", "two:7 (127.0.0.2)"]);
    }

    #[test]
    fn mismatched_hosts_addresses_and_ports_are_refused() {
        for url in [
            "user=ada",
            "host=one,two hostaddr=127.0.0.1",
            "host=one,two,three port=1,2",
        ] {
            let refused = connector(url).err();
            assert!(matches!(refused, Some(OpenError::Url(_))), "{url}: {refused:?}");
        }
    }

    #[test]
    fn the_last_good_server_is_tried_first() {
        let connector = connector("postgres://one,two,three/db").expect("a url");
        let order = || connector.order().iter().map(|(n, _)| *n).collect::<Vec<_>>();
        assert_eq!(order(), [0, 1, 2]);
        let place = Place {
            server: 2,
            address: None,
        };
        connector.found(place, "three", Vec::new());
        assert_eq!(order(), [2, 0, 1]);
    }
}
