//! The server under load: a child of ours on a new store, or one that runs already.
//!
//! A child ends with its handle, however the bench ends, and its store with it. What it used (CPU, memory) is read
//! from `/proc`; of a server started by somebody else only its own metrics are known.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

/// How long a child may take until it says where it listens.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Clock ticks per second in `/proc`, the same on every architecture that Linux 6 and this program run on.
const TICKS_PER_SECOND: u64 = 100;

/// A server to put under load.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The key to call it with.
    pub(crate) key: String,
    child: Option<Spawned>,
}

#[derive(Debug)]
struct Spawned {
    process: Child,
    /// Holds the store; removed with the handle.
    folder: TempDir,
}

impl Drop for Spawned {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to be done about a failure here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts this program as a server on a new SQLite store in a new folder below `place`.
    pub(crate) fn spawn(place: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("wopr-bench-")
            .tempdir_in(place)
            .with_context(|| format!("make a folder in {}", place.display()))?;
        let key = format!("bench-{}", folder.path().display());
        let log = folder.path().join("server.log");
        let store = folder.path().join("bench.db");
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        // What is measured are the defaults, not what this terminal happens to be set up for.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("WOPR_") {
                command.env_remove(name);
            }
        }
        let mut process = command
            .args(["serve", "--listen", "127.0.0.1:0", "--while-stdin", "--store"])
            .arg(format!("sqlite:{}", store.display()))
            .current_dir(folder.path())
            .env("WOPR_API_KEY", &key)
            // Open as long as we live, so that the child ends even if we are killed.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).context("make the log of the server")?)
            .spawn()
            .context("start the server")?;
        let stdout = process.stdout.take().expect("the output was asked for");
        let spawned = Spawned { process, folder };
        let address = first_line(stdout).and_then(|line| announced(&line));
        let address = address.with_context(|| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            format!("start the server, which said {:?}", said.trim())
        })?;
        Ok(Self {
            address,
            key,
            child: Some(spawned),
        })
    }

    /// Uses a server that runs already.
    pub(crate) fn at(url: &str, key: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").with_context(|| {
            format!("use {url}: it has to begin with http://, load is not sent through TLS")
        })?;
        let rest = rest.trim_end_matches('/');
        ensure!(
            !rest.contains('/'),
            "use {url}: it has to end with the host and port"
        );
        let has_port = rest
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port {
            rest.to_owned()
        } else {
            format!("{rest}:80")
        };
        let address = authority
            .to_socket_addrs()
            .with_context(|| format!("resolve {authority}"))?
            .next()
            .with_context(|| format!("resolve {authority}"))?;
        Ok(Self {
            address,
            key: key.to_owned(),
            child: None,
        })
    }

    /// The folder of the store, if it is ours.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.child.as_ref().map(|child| child.folder.path().to_owned())
    }

    /// The process, if it is ours.
    pub(crate) fn process(&self) -> Option<Process> {
        self.child.as_ref().map(|child| Process(child.process.id()))
    }
}

/// The first line of an output. The rest is drained, since a full pipe would stop its writer.
fn first_line(output: impl std::io::Read + Send + 'static) -> Result<String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let read = output.read_line(&mut line);
        if sender.send(read.map(|_| line)).is_ok() {
            let _ = std::io::copy(&mut output, &mut std::io::sink());
        }
    });
    match receiver.recv_timeout(START_LIMIT) {
        Ok(Ok(line)) if line.is_empty() => bail!("it ended at once"),
        Ok(line) => line.context("read its output"),
        Err(_) => bail!("it did not say within {START_LIMIT:?} where it listens"),
    }
}

/// The address in the line a server prints when it listens: the first value that is one, or an origin with one.
fn announced(line: &str) -> Result<SocketAddr> {
    let value: Value =
        serde_json::from_str(line).with_context(|| format!("read the line {line:?} as JSON"))?;
    let address = |value: &Value| {
        let text = value.as_str()?;
        text.strip_prefix("http://").unwrap_or(text).parse().ok()
    };
    let members = value.as_object().map(|object| object.values());
    members
        .and_then(|mut values| values.find_map(address))
        .ok_or_else(|| anyhow!("find an address in the line {line:?}"))
}

/// A process of this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    /// The calling one.
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// The CPU time of all its threads so far.
    pub(crate) fn cpu(self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        cpu_in(&stat)
    }

    /// The memory it holds now, in bytes.
    pub(crate) fn resident(self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }
}

/// The name of the program, in parentheses, may contain anything; user and system time are the 12th and 13th
/// field after it.
fn cpu_in(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11);
    let ticks: u64 = ticks.next()?.parse::<u64>().ok()? + ticks.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_a_server_says() {
        let expected: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        for line in [
            r#"{"listening":"127.0.0.1:4711"}"#,
            r#"{"event":"listening","address":"127.0.0.1:4711","pid":7}"#,
            r#"{"url":"http://127.0.0.1:4711"}"#,
        ] {
            assert_eq!(announced(line).unwrap(), expected, "{line}");
        }
        assert!(announced("listening").is_err());
        assert!(announced(r#"{"pid":7}"#).is_err());
    }

    #[test]
    fn a_url_names_a_host_and_nothing_more() {
        for url in ["http://127.0.0.1:4711", "http://127.0.0.1:4711/"] {
            let server = Server::at(url, "k").unwrap();
            assert_eq!(server.address, "127.0.0.1:4711".parse().unwrap());
        }
        assert_eq!(Server::at("http://127.0.0.1", "k").unwrap().address.port(), 80);
        for url in ["https://127.0.0.1", "127.0.0.1:80", "http://127.0.0.1/a"] {
            assert!(Server::at(url, "k").is_err(), "{url}");
        }
    }

    #[test]
    fn cpu_time_counts_user_and_system() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 25 0 0 20 0 8 0 100 1 1";
        assert_eq!(cpu_in(stat), Some(Duration::from_millis(1_750)));
        assert!(Process::current().cpu().is_some());
        assert!(Process::current().resident().is_some_and(|bytes| bytes > 100_000));
    }
}
