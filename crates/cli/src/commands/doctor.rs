//! `wopr doctor`: finds problems of a host's environment before they matter.
//!
//! Without `--server` it examines what `serve` would use with the same flags; it changes nothing, apart from
//! a temporary file. With `--server` it asks the server whether it is ready, which needs no key.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use wopr_server::{
    Host, Secrets,
    config::{self, Config, Listen, StoreUrl},
};
use wopr_store::{
    PostgresStore, Registry as _, SqliteStore, StoredSecrets, postgres,
    sqlite::{self, OpenError},
};

use super::workflows::{self, Survey};
use crate::{
    args::Format,
    client::{Client, Trust},
    exit::{Exit, Failure},
    host::HostArgs,
    output::{self, Paint},
    render,
};

/// Number of disk syncs measured.
const PROBES: usize = 16;
/// Data written before each sync: about one small transaction.
const PAGE: [u8; 4096] = [0x5a; 4096];
/// A slower sync makes every run slow.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// The first second of 2025. An earlier time means that the clock was never set.
const EARLIEST: u64 = 1_735_689_600;

/// Check what a host needs: configuration, files, store, disk, keys, addresses and clock.
///
/// Takes the flags of `serve`. Warnings do not fail the command. If no host has the SQLite database open, all
/// its pages are checked. With --server, only asks that server whether it is ready.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Only ask this server whether it is ready
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Error,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    text: String,
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, verdict: Verdict, text: impl Into<String>) {
        self.0.push(Finding {
            check,
            verdict,
            text: text.into(),
        });
    }
}

impl Doctor {
    pub(crate) async fn run(self) -> Result<Exit> {
        let mut findings = Findings::default();
        let exit = match &self.server {
            Some(server) => ask(server, &mut findings).await?,
            None => {
                // Configuration errors have their own exit code.
                let config = self.host.load()?;
                examine(&config, &mut findings).await;
                let has_error = findings.0.iter().any(|finding| finding.verdict == Verdict::Error);
                if has_error { Exit::Failed } else { Exit::Ok }
            }
        };
        self.show(&findings, exit)?;
        Ok(exit)
    }

    fn show(&self, Findings(findings): &Findings, exit: Exit) -> Result<()> {
        if self.format.json {
            return output::json(&json!({ "healthy": exit == Exit::Ok, "checks": findings }));
        }
        let paint = Paint::stdout();
        for finding in findings {
            let verdict = match finding.verdict {
                Verdict::Ok => paint.green("ok  "),
                Verdict::Warning => paint.yellow("warn"),
                Verdict::Error => paint.red("bad "),
            };
            let check = paint.bold(format!("{:<14}", finding.check));
            output::line(format!("{verdict} {check} {}", output::plain(&finding.text)))?;
        }
        Ok(())
    }
}

async fn ask(server: &str, findings: &mut Findings) -> Result<Exit> {
    let client = Client::at(server, None, &Trust::default())?;
    match client.get_with("/readyz", "status").await {
        Ok(answer) => {
            let status = render::text(&answer, "status");
            let status = if status.is_empty() { "ready" } else { status };
            findings.add("server", Verdict::Ok, format!("{}: {status}", client.base()));
            Ok(Exit::Ok)
        }
        Err(error) => {
            let exit = error
                .downcast_ref::<Failure>()
                .map_or(Exit::Failed, Failure::exit);
            findings.add("server", Verdict::Error, format!("{error:#}"));
            Ok(exit)
        }
    }
}

/// Checks everything that a host with this configuration would use.
async fn examine(config: &Config, findings: &mut Findings) {
    findings.add("configuration", Verdict::Ok, "it is valid");
    clock(findings);
    match Host::check(config) {
        Ok(missing) if missing.is_empty() => findings.add(
            "files",
            Verdict::Ok,
            "certificates, keys and credentials can be read",
        ),
        Ok(missing) => findings.add("files", Verdict::Warning, missing.join("; ")),
        Err(error) => findings.add("files", Verdict::Error, format!("cannot {error}")),
    }
    let stored = store(config, findings).await;
    keys(config, stored, findings);
    workflows(config, findings);
    address("address", config.server.listen, findings).await;
    if let Some(listen) = config.awp.listen {
        address("awp address", listen, findings).await;
    }
    public_url(config, findings);
    if config.conformance {
        let text = "conformance mode is on: its seams bypass what a production host protects";
        findings.add("conformance", Verdict::Warning, text);
    }
}

fn clock(findings: &mut Findings) {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs());
    match since {
        Ok(seconds) if seconds >= EARLIEST => {
            let millis = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
            let now = wopr_wire::time::Timestamp::from_millis(millis);
            findings.add("clock", Verdict::Ok, format!("it is {now}"));
        }
        Ok(_) | Err(_) => findings.add("clock", Verdict::Error, "the system's clock is not set"),
    }
}

/// Checks the store. Returns the number of keys, if known.
async fn store(config: &Config, findings: &mut Findings) -> Option<usize> {
    let path = match &config.store {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Memory => {
            findings.add(
                "store",
                Verdict::Warning,
                "in memory: no run survives the process",
            );
            return Some(0);
        }
        StoreUrl::Postgres(url) => return shared_store(config, url.expose(), findings).await,
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.map_or_else(|| PathBuf::from("."), Path::to_owned);
    disk(&folder, findings);
    let shown = path.display();
    // One that exists is not read before it is known to be writable: SQLite would leave files beside it.
    if !path.exists() {
        if let Err(error @ OpenError::Orphaned { .. }) = sqlite::schema_version(path) {
            findings.add("store", Verdict::Error, format!("cannot {error}"));
            return None;
        }
        let text = format!("{shown} does not exist yet; serve makes it");
        findings.add(
            "store",
            if folder.is_dir() {
                Verdict::Ok
            } else {
                Verdict::Error
            },
            text,
        );
        return Some(0);
    }
    let options = sqlite::Options {
        readers: 1,
        migrate: false,
        ..sqlite::Options::default()
    };
    match SqliteStore::open(path, options) {
        Ok(store) => {
            let keys = store.keys().await;
            master_key(config, &store, findings).await;
            store.close().await;
            match keys {
                Ok(keys) => {
                    let version = sqlite::schema_version(path).unwrap_or_default();
                    pages(path, Verdict::Ok, format!("{shown}, schema {version}"), findings);
                    Some(keys.iter().filter(|key| key.revoked_at.is_none()).count())
                }
                Err(error) => {
                    findings.add("store", Verdict::Error, format!("cannot {error}"));
                    None
                }
            }
        }
        Err(OpenError::NeedsMigration { found, known }) => {
            let text = format!("{shown} has schema {found}; serve, or `wopr migrate`, brings it to {known}");
            pages(path, Verdict::Warning, text, findings);
            None
        }
        Err(OpenError::Locked(_)) => {
            let text = format!("{shown} is in use by another process, probably a host that runs");
            findings.add("store", Verdict::Warning, text);
            if let Ok(guest) = sqlite::Guest::open(path) {
                master_key(config, &guest, findings).await;
            }
            None
        }
        Err(error) => {
            findings.add("store", Verdict::Error, format!("cannot {error}"));
            None
        }
    }
}

/// Checks that the master key is the one that the hosts of the store have.
async fn master_key(config: &Config, store: &dyn StoredSecrets, findings: &mut Findings) {
    let known = match store.key_check().await {
        Ok(Some(known)) => known,
        // There was no host yet.
        Ok(None) => return,
        Err(error) => return findings.add("master key", Verdict::Error, format!("cannot {error}")),
    };
    let secrets = config::Secrets {
        replace_key: false,
        ..config.secrets.clone()
    };
    match Secrets::open_for(&secrets, &config.store, Some(&known)) {
        Ok(_) => findings.add("master key", Verdict::Ok, "it is the one of this database"),
        Err(_) if config.secrets.replace_key => {
            let text = "another one replaces it: what was made under the old one is void";
            findings.add("master key", Verdict::Warning, text);
        }
        Err(error) => findings.add("master key", Verdict::Error, format!("cannot {error}")),
    }
}

/// Checks all pages of a SQLite database that could be opened; adds `text` if they are sound.
fn pages(path: &Path, verdict: Verdict, text: String, findings: &mut Findings) {
    let damage = match sqlite::first_damage(path) {
        Ok(None) => return findings.add("store", verdict, text),
        Ok(Some(damage)) => format!("{} is damaged: {damage}", path.display()),
        Err(error) => format!("cannot {error}"),
    };
    findings.add("store", Verdict::Error, damage);
}

/// Checks a PostgreSQL database. Returns the number of keys, if known.
async fn shared_store(config: &Config, url: &str, findings: &mut Findings) -> Option<usize> {
    let options = postgres::Options {
        connections: 1,
        migrate: false,
        needs_writes: true,
        hints: false,
        ..postgres::Options::default()
    };
    let store = match PostgresStore::open(url, options).await {
        Ok(store) => store,
        Err(postgres::OpenError::NeedsMigration { found, known }) => {
            let text =
                format!("PostgreSQL has schema {found}; serve, or `wopr migrate`, brings it to {known}");
            findings.add("store", Verdict::Warning, text);
            return None;
        }
        Err(error) => {
            findings.add("store", Verdict::Error, format!("cannot {error}"));
            return None;
        }
    };
    durability(url, findings).await;
    let keys = store.keys().await;
    master_key(config, &store, findings).await;
    store.close().await;
    match keys {
        Ok(keys) => {
            let version = postgres::schema_version(url).await.unwrap_or_default();
            findings.add("store", Verdict::Ok, format!("PostgreSQL, schema {version}"));
            Some(keys.iter().filter(|key| key.revoked_at.is_none()).count())
        }
        Err(error) => {
            findings.add("store", Verdict::Error, format!("cannot {error}"));
            None
        }
    }
}

/// Checks that the database server syncs what it commits.
async fn durability(url: &str, findings: &mut Findings) {
    match postgres::risks(url).await {
        Ok(risks) if risks.is_empty() => {
            findings.add(
                "durability",
                Verdict::Ok,
                "the database server syncs what it commits",
            );
        }
        Ok(risks) => {
            for risk in risks {
                findings.add("durability", Verdict::Warning, risk);
            }
        }
        Err(error) => findings.add("durability", Verdict::Error, format!("cannot {error}")),
    }
}

/// Measures the latency of a sync, which every acknowledged write waits for.
fn disk(folder: &Path, findings: &mut Findings) {
    match probe(folder) {
        Ok(median) => {
            let millis = median.as_secs_f64() * 1_000.0;
            let text = format!("a sync takes {millis:.2} ms");
            if median > SLOW_SYNC {
                let text = format!("{text}: every write waits for one, so runs will be slow");
                findings.add("disk", Verdict::Warning, text);
            } else {
                findings.add("disk", Verdict::Ok, text);
            }
        }
        Err(error) => {
            let text = format!("cannot write to {}: {error:#}", folder.display());
            findings.add("disk", Verdict::Error, text);
        }
    }
}

fn probe(folder: &Path) -> Result<Duration> {
    let scratch = tempfile::Builder::new()
        .prefix(".wopr-doctor-")
        .tempfile_in(folder)?;
    let mut file: &File = scratch.as_file();
    let mut times = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let begun = Instant::now();
        file.write_all(&PAGE)?;
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times.get(PROBES / 2).copied().context("measure the disk")
}

fn keys(config: &Config, stored: Option<usize>, findings: &mut Findings) {
    let n_configured = config.auth.keys.len();
    if n_configured == 0 && stored.unwrap_or_default() == 0 && config.auth.has_others() {
        let text = "none; callers come by [auth.oidc] or [[auth.certificates]]";
        return findings.add("keys", Verdict::Ok, text);
    }
    match (n_configured, stored) {
        (0, Some(0)) => {
            let text = "there are none, so serve refuses to start: `wopr keys create`, WOPR_API_KEY or [[auth.keys]]";
            findings.add("keys", Verdict::Error, text);
        }
        (0, None) => {
            let text = "none is configured, and those of the store cannot be counted now";
            findings.add("keys", Verdict::Warning, text);
        }
        (configured, stored) => {
            let stored = stored.map_or_else(|| "an unknown number".to_owned(), |n| n.to_string());
            findings.add(
                "keys",
                Verdict::Ok,
                format!("{configured} configured, {stored} in the store"),
            );
        }
    }
}

fn workflows(config: &Config, findings: &mut Findings) {
    for folder in &config.workflows {
        if folder.is_dir() {
            continue;
        }
        let text = format!(
            "the folder {} does not exist, so serve refuses to start",
            folder.display()
        );
        findings.add("workflows", Verdict::Error, text);
        return;
    }
    let Survey {
        n_files,
        skipped,
        doubled,
    } = match workflows::survey(config) {
        Ok(survey) => survey,
        Err(error) => return findings.add("workflows", Verdict::Error, format!("{error:#}")),
    };
    let n_skipped = skipped.len();
    let (verdict, text) = match (config.workflows.is_empty(), n_skipped) {
        (true, _) => (Verdict::Ok, "no folder is configured".to_owned()),
        (false, 0) => (Verdict::Ok, format!("{n_files} files hold")),
        (false, _) => (
            Verdict::Warning,
            format!("{n_skipped} of {n_files} files will be skipped"),
        ),
    };
    findings.add("workflows", verdict, text);
    for file in skipped.into_iter().chain(doubled) {
        findings.add("workflows", Verdict::Warning, file);
    }
}

async fn address(check: &'static str, listen: Listen, findings: &mut Findings) {
    match TcpListener::bind(listen.0).await {
        Ok(_) if listen.0.port() == 0 => {
            findings.add(
                check,
                Verdict::Ok,
                format!("the system chooses a port of {}", listen.0.ip()),
            );
        }
        Ok(_) => findings.add(check, Verdict::Ok, format!("{listen} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let text = format!("{listen} is in use, perhaps by a host that runs");
            findings.add(check, Verdict::Warning, text);
        }
        Err(error) => findings.add(
            check,
            Verdict::Error,
            format!("cannot listen on {listen}: {error}"),
        ),
    }
}

fn public_url(config: &Config, findings: &mut Findings) {
    let url = config.public_url();
    if config.server.public_url.is_none() && !config.server.listen.0.ip().is_loopback() {
        let shown = if config.server.listen.0.port() == 0 {
            "localhost and a port that the system chooses"
        } else {
            &url
        };
        let text = format!("not set, so links say {shown}: others need --public-url");
        findings.add("public url", Verdict::Warning, text);
    } else if config.server.public_url.is_none() && config.server.listen.0.port() == 0 {
        let text = "not set, so links name the port that the system chooses at each start";
        findings.add("public url", Verdict::Ok, text);
    } else {
        findings.add("public url", Verdict::Ok, url);
    }
}
