//! `wopr bench`: how fast runs are, and what each costs, with the disk's own cost beside it.
//!
//! The server is a process of its own, a child on a new SQLite store unless `--server` names another. Load is
//! closed-loop over HTTP: from the request that starts a one-node run until the client has read that it
//! completed. Nothing here tunes the server: it syncs as it always does.
//!
//! ```text
//!   run ── spawns ──> wopr serve (child)           report: table | JSON
//!    |                    ^    ^  /metrics, /proc     ^
//!    +── load thread ─────+────+──────────────────────+
//!          rounds of N clients, each followed by probes of the disk
//! ```

mod disk;
mod http;
mod latency;
mod load;
mod metrics;
mod report;
mod scenario;
mod server;

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result};
use clap::value_parser;
use tokio::sync::oneshot;

use self::{
    load::{Plan, Target},
    report::{Cell, Report},
    scenario::Scenario,
    server::Server,
};
use crate::{exit::Exit, output, signals::Signals};

/// Measure start-to-completed of one-node runs over HTTP.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// A server that runs already; otherwise one is started on a new store and stopped afterwards
    #[arg(long, value_name = "URL", requires = "key")]
    server: Option<String>,
    /// The key for `--server`
    #[arg(long, env = "WOPR_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// What clients do
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["rest", "a2a-1.0", "a2a-0.3"])]
    scenario: Vec<Scenario>,
    /// How many clients at once; each number is measured by itself
    #[arg(long, value_delimiter = ',', default_values = ["1", "32", "256"],
          value_parser = value_parser!(u16).range(1..=4096))]
    concurrency: Vec<u16>,
    /// Seconds of each measurement
    #[arg(long, default_value = "5", value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The most runs of each measurement
    #[arg(long, value_parser = value_parser!(u64).range(1..=100_000_000))]
    runs: Option<u64>,
    /// Seconds of runs before each measurement that do not count
    #[arg(long, default_value = "1", value_parser = value_parser!(u32).range(0..=60))]
    warm_up: u32,
    /// Where the new store and the raw file go; they are removed afterwards
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures and prints the report. What was measured is printed even if runs failed.
///
/// # Errors
/// The server does not start or does not answer.
pub(crate) async fn run(args: Args) -> Result<Exit> {
    let mut signals = Signals::catch()?;
    let server = match (&args.server, &args.key) {
        (Some(url), Some(key)) => Server::at(url, key)?,
        // On a thread that may wait: for the child's first line.
        _ => {
            let folder = args.folder.clone();
            tokio::task::spawn_blocking(move || Server::spawn(&folder))
                .await
                .context("start the server")??
        }
    };
    let (sender, mut receiver) = oneshot::channel();
    let bench = Bench::prepare(&args, &server)?;
    // A thread of its own with a runtime of its own: one thread for all clients disturbs the server least.
    let load = thread::Builder::new().name("load".to_owned());
    load.spawn(move || {
        // Nobody listens any more if we were interrupted.
        let _ = sender.send(bench.measure());
    })
    .context("start the load")?;
    let report = tokio::select! {
        report = &mut receiver => report.context("measure")??,
        () = signals.next() => return Ok(Exit::Interrupted),
    };
    drop(server);
    if args.json {
        output::json(&report)?;
    } else {
        output::line(report.table().trim_end())?;
    }
    Ok(if report.failures() == 0 {
        Exit::Ok
    } else {
        Exit::Failed
    })
}

struct Bench {
    target: Target,
    address: std::net::SocketAddr,
    key: String,
    plans: Vec<Plan>,
    report: Report,
    /// Says what is going on; not where a machine reads.
    is_quiet: bool,
    /// Holds the raw file where there is no child's folder; removed in the end.
    _scratch: Option<tempfile::TempDir>,
}

impl Bench {
    fn prepare(args: &Args, server: &Server) -> Result<Self> {
        let scratch = match server.folder() {
            Some(_) => None,
            None => Some(tempfile::tempdir_in(&args.folder).context("make a folder for the raw file")?),
        };
        let folder = scratch
            .as_ref()
            .map(|scratch| scratch.path().to_owned())
            .or(server.folder());
        let folder = folder.expect("either is there");
        let mut plans = Vec::new();
        for scenario in &args.scenario {
            for concurrency in &args.concurrency {
                plans.push(Plan {
                    scenario: *scenario,
                    concurrency: usize::from(*concurrency),
                    time: Duration::from_secs(args.seconds.into()),
                    runs: args.runs.unwrap_or(u64::MAX),
                    warm_up: Duration::from_secs(args.warm_up.into()),
                });
            }
        }
        Ok(Self {
            target: Target::new(server, &folder)?,
            address: server.address,
            key: server.key.clone(),
            plans,
            report: Report {
                version: env!("CARGO_PKG_VERSION"),
                is_debug_build: cfg!(debug_assertions),
                n_cpus: thread::available_parallelism().map_or(1, usize::from),
                file_system: disk::kind(&folder),
                has_own_server: server.folder().is_some(),
                cells: Vec::new(),
            },
            is_quiet: args.json,
            _scratch: scratch,
        })
    }

    /// Measures everything, on the calling thread.
    fn measure(self) -> Result<Report> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start the load")?;
        runtime.block_on(self.measure_all())
    }

    async fn measure_all(mut self) -> Result<Report> {
        scenario::register(self.address, &self.key).await?;
        self.warn();
        for plan in &self.plans {
            let (name, n_clients, time) = (plan.scenario.name(), plan.concurrency, plan.time.as_secs());
            self.say(&format!("{name}, {n_clients} clients, up to {time} s"));
            let outcome = self.target.measure(*plan).await?;
            self.report.cells.push(Cell::new(*plan, outcome));
        }
        Ok(self.report)
    }

    fn warn(&self) {
        if self.report.is_debug_build {
            self.say("this is a debug build; its figures say little");
        }
        if self.report.file_system.as_deref().is_some_and(disk::is_in_memory) {
            self.say("this file system is in memory; choose another with --folder");
        }
    }

    fn say(&self, line: &str) {
        if !self.is_quiet {
            // Progress is a courtesy; a closed terminal is no reason to stop.
            let _ = output::note(line);
        }
    }
}
