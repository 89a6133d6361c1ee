//! Measures the throughput, latency and cost of runs, next to the raw cost of the disk: `wopr bench`.
//!
//! The server is a child process on a new store unless `--server` names another one. Load is closed-loop over
//! HTTP. The server is not tuned: it syncs as always. However a benchmark ends, its servers have stopped and
//! their stores are deleted before it returns.
//!
//! ```text
//!   run ── spawns ──> load thread ── journeys: rounds of N clients, each followed by probes of the disk ──> cells
//!    |                   |        '─ studies:  a store is filled, a server started, looked at ───────────> figures
//!    |                   '── owns ──> places (files, schemas) and servers (children)
//!    '── interrupted: the load thread drops what it owns, and only then `run` returns
//! ```

mod call;
mod client;
mod disk;
mod figure;
mod http;
mod latency;
mod load;
mod meter;
mod metrics;
mod place;
mod process;
mod report;
mod scenario;
mod seed;
mod server;
mod study;
mod subscriber;
mod talk;
mod workflow;

use std::{fs, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::value_parser;
use tokio::sync::oneshot;

pub use self::report::Report;
use self::{
    disk::Probe,
    load::{Plan, Target},
    place::{Place, Store},
    report::{Cell, StudyReport},
    scenario::{Kind, Scenario},
    server::Server,
    talk::Talk,
};

/// Measure the throughput, latency and cost of runs.
///
/// Journeys (rest, poll, a2a-1.0, a2a-0.3, chain, fan, turn, fork, document, waiting, resume) are repeated with each
/// number of clients and reported per run. Studies (subscribers, followers, children, list, parked, streams, flat,
/// remote, workers, mcp) set up a scenario of a given size on a store of their own, and report named figures.
/// Everything is removed afterwards, even after Ctrl-C.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to measure; separate several with commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["rest", "a2a-1.0", "a2a-0.3"])]
    scenario: Vec<Scenario>,
    /// The store: sqlite for a new file, or a postgres://… URL for a new schema in that database
    #[arg(long, default_value = "sqlite", value_name = "STORE")]
    store: Store,
    /// Numbers of concurrent clients of a journey; each is measured separately
    #[arg(long, value_delimiter = ',', default_values = ["1", "32", "256"],
          value_parser = value_parser!(u16).range(1..=4096))]
    concurrency: Vec<u16>,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value = "5", value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Maximum number of runs of each measurement
    #[arg(long, value_parser = value_parser!(u64).range(1..=100_000_000))]
    runs: Option<u64>,
    /// Size of a study: its subscribers, children, streams, or stored runs [default: as each says above]
    #[arg(long, value_parser = value_parser!(u32).range(1..=100_000_000))]
    size: Option<u32>,
    /// Warm-up before each measurement of a journey, in seconds
    #[arg(long, default_value = "1", value_parser = value_parser!(u32).range(0..=60))]
    warm_up: u32,
    /// The folder for new files, which are removed afterwards
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// A running server, for journeys; otherwise one is started on a new store and stopped afterwards
    #[arg(long, value_name = "URL", requires = "key", conflicts_with = "store")]
    server: Option<String>,
    /// The key for `--server`
    #[arg(long, env = "WOPR_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the report is to be JSON.
    #[must_use]
    pub const fn is_json(&self) -> bool {
        self.json
    }
}

/// Measures on a thread of its own. Returns the report, even if runs failed, or `None` if interrupted, after everything
/// was cleaned up.
///
/// `max_files` is the number of files that this process may open; `None` means without limit. A study that needs more
/// fails.
pub async fn run(
    args: Args,
    max_files: Option<u64>,
    interrupted: impl Future<Output = ()>,
) -> Result<Option<Report>> {
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, mut receiver) = oneshot::channel();
    // All clients run on a single thread with its own runtime, which disturbs the server least.
    let load = thread::Builder::new().name("load".to_owned());
    load.spawn(move || {
        // Fails if the process is exiting.
        let _ = sender.send(measure(args, max_files, stopped));
    })
    .context("start the load")?;
    tokio::select! {
        report = &mut receiver => report.context("measure")?,
        () = interrupted => {
            drop(stop);
            let _ = receiver.await;
            Ok(None)
        }
    }
}

/// Measures everything on the calling thread. Returns `None` if stopped. Cleans up in either case.
fn measure(args: Args, max_files: Option<u64>, stopped: oneshot::Receiver<()>) -> Result<Option<Report>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the load")?;
    runtime.block_on(async {
        tokio::select! {
            biased;
            // The sender never sends; dropping it signals the stop.
            _ = stopped => Ok(None),
            report = Box::pin(Bench::new(args, max_files).measure()) => report.map(Some),
        }
    })
}

struct Bench {
    args: Args,
    max_files: Option<u64>,
    talk: Talk,
    report: Report,
}

impl Bench {
    fn new(args: Args, max_files: Option<u64>) -> Self {
        let talk = Talk::new(args.json);
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            is_debug_build: cfg!(debug_assertions),
            n_cpus: thread::available_parallelism().map_or(1, usize::from),
            load_average: load_average(),
            store: args.server.is_none().then(|| args.store.name()),
            file_system: disk::kind(&args.folder),
            cells: Vec::new(),
            studies: Vec::new(),
            bars: Vec::new(),
        };
        Self {
            args,
            max_files,
            talk,
            report,
        }
    }

    async fn measure(mut self) -> Result<Report> {
        let mut journeys = Vec::new();
        let mut studies = Vec::new();
        for scenario in self.args.scenario.clone() {
            match scenario.kind() {
                Kind::Journey(journey) => journeys.push((scenario, journey)),
                Kind::Study(study) => studies.push((scenario, study)),
            }
        }
        if let (Some(_), Some((scenario, _))) = (&self.args.server, studies.first()) {
            bail!(
                "measure {} on a server that runs already: it needs one of its own",
                scenario.name()
            );
        }
        self.warn();
        if !journeys.is_empty() {
            let mut plans = Vec::new();
            for (scenario, journey) in journeys {
                for concurrency in &self.args.concurrency {
                    plans.push(Plan {
                        scenario,
                        journey,
                        concurrency: usize::from(*concurrency),
                        time: Duration::from_secs(self.args.seconds.into()),
                        runs: self.args.runs.unwrap_or(u64::MAX),
                        warm_up: Duration::from_secs(self.args.warm_up.into()),
                    });
                }
            }
            self.journeys(&plans).await?;
        }
        for (scenario, study) in studies {
            let size = self.args.size.map_or(study.usual_size(), |size| size as usize);
            self.talk.say(&format!("{}, {size}", scenario.name()));
            let context = study::Context {
                store: &self.args.store,
                folder: &self.args.folder,
                seconds: Duration::from_secs(self.args.seconds.into()),
                talk: self.talk,
                size,
                max_files: self.max_files,
            };
            let figures = study::run(study, &context)
                .await
                .with_context(|| format!("measure {}", scenario.name()))?;
            self.report.studies.push(StudyReport {
                scenario,
                size,
                figures,
            });
        }
        self.report.compare();
        Ok(self.report)
    }

    async fn journeys(&mut self, plans: &[Plan]) -> Result<()> {
        let place;
        let scratch;
        let (server, place, folder) = if let (Some(url), Some(key)) = (&self.args.server, &self.args.key) {
            scratch = tempfile::tempdir_in(&self.args.folder).context("make a folder for the raw file")?;
            (Server::at(url, key)?, None, scratch.path())
        } else {
            place = Place::make(&self.args.store, &self.args.folder).await?;
            (Server::start(&place, &[]).await?, Some(&place), place.folder())
        };
        for document in workflow::all() {
            server.register(&document).await?;
        }
        let mut probe = Probe::create(folder).context("probe the disk")?;
        let mut target = Target::new(&server, place, &mut probe)?;
        for plan in plans {
            let (name, n_clients, time) = (plan.scenario.name(), plan.concurrency, plan.time.as_secs());
            self.talk
                .say(&format!("{name}, {n_clients} clients, up to {time} s"));
            let outcome = target.measure(*plan).await?;
            self.report.cells.push(Cell::new(*plan, outcome));
        }
        Ok(())
    }

    fn warn(&self) {
        if self.report.is_debug_build {
            self.talk.say("this is a debug build; its figures say little");
        }
        if self.report.file_system.as_deref().is_some_and(disk::is_in_memory) {
            self.talk
                .say("this file system is in memory; choose another with --folder");
        }
    }
}

/// The load average of the last minute.
fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}
