//! Opening a database: the URL, TLS, and the checks before first use.

use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    Options,
    connect::{Connector, Session},
    fault,
    open_error::OpenError,
};
use crate::Cause;

/// Default time limit for connecting to each server and address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default time after which a silent peer counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// The oldest server version in the test matrix.
const OLDEST_SERVER: i64 = 140_000;

/// Parses a URL: the driver's parameters, and our own, which change the options.
pub(super) fn parse(url: &str, options: &mut Options) -> Result<Connector, OpenError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut others = Vec::new();
    let mut wants_tls = false;
    let mut roots = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (name, value) {
            ("connections", count) => match count.parse() {
                Ok(count) if count > 0 => options.connections = count,
                Ok(_) | Err(_) => return Err(wrong("connections is a number above 0")),
            },
            ("hints", "on") => options.hints = true,
            ("hints", "off") => options.hints = false,
            ("hints", _) => return Err(wrong("hints is on or off")),
            ("sslmode", "disable") => wants_tls = false,
            ("sslmode", "require" | "verify-full") => wants_tls = true,
            ("sslmode", _) => {
                // Refuse `prefer` and `allow`: an active attacker can strip TLS.
                return Err(wrong(
                    "sslmode is disable, or require, which checks the certificate",
                ));
            }
            ("sslrootcert", path) => roots = Some(path.to_owned()),
            ("connect_timeout", seconds) => match seconds.parse::<u64>() {
                Ok(seconds) if seconds > 0 => others.push(parameter),
                Ok(_) | Err(_) => return Err(wrong("connect_timeout is a number of seconds above 0")),
            },
            _ => others.push(parameter),
        }
    }
    if roots.is_some() && !wants_tls {
        // Whoever names a certificate wants TLS.
        return Err(wrong("sslrootcert is used with sslmode=require only"));
    }
    let mut text = base.to_owned();
    if !others.is_empty() {
        text.push('?');
        text.push_str(&others.join("&"));
    }
    // The driver's error does not quote the text, which may hold a password.
    let mut config: Config = text
        .parse()
        .map_err(|error| OpenError::Url(fault::cause(error)))?;
    config.ssl_mode(if wants_tls {
        SslMode::Require
    } else {
        SslMode::Disable
    });
    let timeout = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(PEER_TIMEOUT);
        config.keepalives_idle(PEER_TIMEOUT);
    }
    if config.get_hosts().len().max(config.get_hostaddrs().len()) > 1 {
        // After a failover the first server that answers may be a standby.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    if config.get_application_name().is_none() {
        config.application_name("wopr");
    }
    let is_exposed = !wants_tls && !is_on_this_machine(&config);
    let tls = MakeRustlsConnect::new(client_config(wants_tls, roots.as_deref().map(Path::new))?);
    Connector::new(&config, tls, timeout, is_exposed)
}

/// Warns of connections that others can read. Called once the database is open, as a start that waits for it tries again
/// and again.
pub(super) fn warn_if_exposed(connector: &Connector) {
    if connector.is_exposed {
        tracing::warn!("the connection to the database is not encrypted, sslmode=require would");
    }
}

fn wrong(rule: &str) -> OpenError {
    OpenError::Url(rule.into())
}

fn is_on_this_machine(config: &Config) -> bool {
    config.get_hostaddrs().iter().all(IpAddr::is_loopback)
        && config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
        })
}

fn client_config(wants_tls: bool, roots: Option<&Path>) -> Result<ClientConfig, OpenError> {
    let failed = |error: rustls::Error| OpenError::Tls(Cause::of(error));
    // Name the provider, because the process may have no default.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match roots {
        Some(path) if wants_tls => builder.with_root_certificates(read_roots(path)?),
        None if wants_tls => builder.with_platform_verifier().map_err(failed)?,
        // Not used without TLS. An empty store lets a machine without certificates connect.
        Some(_) | None => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

fn read_roots(path: &Path) -> Result<RootCertStore, OpenError> {
    let text = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let unread = |error| OpenError::Tls(Cause::about(text(&error), error));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unread)? {
        let added = roots.add(certificate.map_err(unread)?);
        added.map_err(|error| OpenError::Tls(Cause::about(text(&error), error)))?;
    }
    if roots.is_empty() {
        return Err(OpenError::Tls(text(&"it holds no certificate").into()));
    }
    Ok(roots)
}

/// Server settings that risk losing acknowledged writes, and their consequences.
const RISKS: [(&str, &str); 3] = [
    (
        "fsync",
        "the database server has fsync off: when its machine goes down, acknowledged runs are lost and its files may be damaged",
    ),
    (
        "full_page_writes",
        "the database server has full_page_writes off: when its machine goes down, its files may be damaged",
    ),
    (
        "synchronous_commit",
        "the database server has synchronous_commit off: wopr turns it on for what it writes itself, but nobody else does",
    ),
];

/// Returns a sentence for each setting of a server that risks losing data.
pub async fn risks(url: &str) -> Result<Vec<&'static str>, OpenError> {
    let connector = parse(url, &mut Options::default())?;
    risks_of(&connector.connect("").await?).await
}

async fn risks_of(session: &Session) -> Result<Vec<&'static str>, OpenError> {
    let mut risks = Vec::new();
    for (setting, risk) in RISKS {
        // Databases that are merely compatible with PostgreSQL may lack the setting.
        let row = session
            .read_one("SELECT current_setting($1, true) = 'off'", &[&setting])
            .await?;
        if row.try_get::<_, Option<bool>>(0)? == Some(true) {
            risks.push(risk);
        }
    }
    Ok(risks)
}

/// Checks the server before anything is written to it, and returns the schema that tables are created in.
pub(super) async fn examine(session: &Session) -> Result<String, OpenError> {
    const SETTINGS: &str = "SELECT current_schema()::text, current_setting('server_encoding'),
        current_setting('server_version_num')::bigint";
    let row = session.read_one(SETTINGS, &[]).await?;
    let encoding: &str = row.try_get(1)?;
    if encoding != "UTF8" {
        return Err(OpenError::Encoding(encoding.to_owned()));
    }
    let version: i64 = row.try_get(2)?;
    if version < OLDEST_SERVER {
        tracing::warn!(
            version,
            "the database server is older than PostgreSQL 14 and untested"
        );
    }
    for risk in risks_of(session).await? {
        tracing::warn!("{risk}");
    }
    row.try_get::<_, Option<String>>(0)?.ok_or(OpenError::NoSchema)
}

/// Checks that the server takes writes. With several servers, the driver chooses one that does.
pub(super) async fn takes_writes(session: &Session) -> Result<(), OpenError> {
    const IS_READ_ONLY: &str = "SELECT current_setting('transaction_read_only')::boolean";
    match session.read_one(IS_READ_ONLY, &[]).await?.try_get(0)? {
        true => Err(OpenError::ReadOnly),
        false => Ok(()),
    }
}

/// Checks a URL and the files that it names, without connecting.
pub fn check_url(url: &str) -> Result<(), OpenError> {
    parse(url, &mut Options::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<(Connector, Options), OpenError> {
        let mut options = Options::default();
        let connector = parse(
            &format!("postgres://ada:hunter2@127.0.0.1/db{query}"),
            &mut options,
        )?;
        Ok((connector, options))
    }

    #[test]
    fn our_parameters_are_removed_and_the_drivers_kept() {
        let (connector, options) =
            parsed("?connections=3&application_name=x&hints=off&sslmode=disable").expect("a url");
        assert_eq!((options.connections, options.hints), (3, false));
        assert_eq!(connector.servers[0].get_application_name(), Some("x"));
        assert_eq!(connector.servers[0].get_ssl_mode(), SslMode::Disable);
        let (connector, options) = parsed("").expect("a url");
        assert_eq!(options.connections, Options::default().connections);
        assert_eq!(connector.servers[0].get_application_name(), Some("wopr"));
        assert_eq!(connector.timeout, CONNECT_TIMEOUT);
        let (connector, _) = parsed("?connect_timeout=7").expect("a url");
        assert_eq!(connector.timeout, Duration::from_secs(7));
    }

    #[test]
    fn errors_for_unknown_parameters_do_not_quote_the_url() {
        for query in [
            "?sslmode=prefer",
            "?connections=0",
            "?connections=many",
            "?hints=maybe",
            "?unknown=1",
            "?connect_timeout=soon",
            "?connect_timeout=0",
            "?connect_timeout=-1",
            "?sslrootcert=ca.pem",
            "?sslmode=disable&sslrootcert=ca.pem",
        ] {
            let Err(error) = parsed(query) else {
                panic!("{query} was accepted")
            };
            let text = error.to_string();
            assert!(matches!(error, OpenError::Url(_)), "{query}: {text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_missing_root_certificate_is_reported() {
        let missing = parsed("?sslmode=require&sslrootcert=missing.pem");
        assert!(matches!(missing, Err(OpenError::Tls(cause)) if cause.to_string().contains("missing.pem")));
    }
}
