//! `wopr bench`: how fast runs are, and what each costs, with the disk's own cost beside it.
//!
//! The server is a process of its own, a child on a new store unless `--server` names another. Load is closed-loop
//! over HTTP. Nothing here tunes the server: it syncs as it always does. However a bench ends, its servers have
//! ended and their stores are gone before it returns.
//!
//! ```text
//!   run ── spawns ──> load thread ── journeys: rounds of N clients, each followed by probes of the disk ──> cells
//!    |                   |        '─ studies:  a store is filled, a server started, looked at ───────────> figures
//!    |                   '── owns ──> places (files, schemas) and servers (children)
//!    '── Ctrl-C: the load thread drops what it owns, and only then the process ends
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

use self::{
    disk::Probe,
    load::{Plan, Target},
    place::{Place, Store},
    report::{Cell, Report, StudyReport},
    scenario::{Kind, Scenario},
    server::Server,
    talk::Talk,
};
use crate::{exit::Exit, open_files, output, signals::Signals};

/// Measure how fast runs are, and what each costs.
///
/// Journeys (rest, poll, a2a-1.0, a2a-0.3, chain, fan, waiting, resume) are made again and again by each number of clients
/// and reported per run. Studies (subscribers, followers, children, list, parked, streams, flat) set up a situation of
/// some size, on a store of their own, and tell named figures. Everything is removed afterwards, also after Ctrl-C.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// What is measured; several may be given with commas between them
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["rest", "a2a-1.0", "a2a-0.3"])]
    scenario: Vec<Scenario>,
    /// Where runs are kept: sqlite, in a new file, or a postgres://… URL, in a new schema of that database
    #[arg(long, default_value = "sqlite", value_name = "STORE")]
    store: Store,
    /// How many clients of a journey at once; each number is measured by itself
    #[arg(long, value_delimiter = ',', default_values = ["1", "32", "256"],
          value_parser = value_parser!(u16).range(1..=4096))]
    concurrency: Vec<u16>,
    /// Seconds of each measurement
    #[arg(long, default_value = "5", value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The most runs of each measurement
    #[arg(long, value_parser = value_parser!(u64).range(1..=100_000_000))]
    runs: Option<u64>,
    /// How large a study is: its subscribers, children, streams, or stored runs [default: as each says above]
    #[arg(long, value_parser = value_parser!(u32).range(1..=100_000_000))]
    size: Option<u32>,
    /// Seconds of runs before each measurement of a journey that do not count
    #[arg(long, default_value = "1", value_parser = value_parser!(u32).range(0..=60))]
    warm_up: u32,
    /// Where new files go; they are removed afterwards
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// A server that runs already, for journeys; otherwise one is started on a new store and stopped afterwards
    #[arg(long, value_name = "URL", requires = "key", conflicts_with = "store")]
    server: Option<String>,
    /// The key for `--server`
    #[arg(long, env = "WOPR_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures and prints the report. What was measured is printed even if runs failed.
///
/// # Errors
/// A server does not start or does not answer, or a study cannot be set up.
pub(crate) async fn run(args: Args) -> Result<Exit> {
    let mut signals = Signals::catch()?;
    // Studies hold many connections, each a descriptor; one that needs more than there are says so.
    open_files::raise();
    let is_json = args.json;
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, mut receiver) = oneshot::channel();
    // A thread of its own with a runtime of its own: one thread for all clients disturbs the server least.
    let load = thread::Builder::new().name("load".to_owned());
    load.spawn(move || {
        // Nobody listens any more if the process is on its way out.
        let _ = sender.send(measure(args, stopped));
    })
    .context("start the load")?;
    let report = tokio::select! {
        report = &mut receiver => report.context("measure")??,
        () = signals.next() => {
            // A second signal does not wait for what is removed after the first.
            signals.end_at(1);
            drop(stop);
            let _ = receiver.await;
            return Ok(Exit::Interrupted);
        }
    };
    let Some(report) = report else {
        return Ok(Exit::Interrupted);
    };
    if is_json {
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

/// Measures everything, on the calling thread; `None` if it was stopped. Either way nothing is left behind.
fn measure(args: Args, stopped: oneshot::Receiver<()>) -> Result<Option<Report>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the load")?;
    runtime.block_on(async {
        tokio::select! {
            biased;
            // The sender never sends; it is dropped.
            _ = stopped => Ok(None),
            report = Box::pin(Bench::new(args).measure()) => report.map(Some),
        }
    })
}

struct Bench {
    args: Args,
    talk: Talk,
    report: Report,
}

impl Bench {
    fn new(args: Args) -> Self {
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
        Self { args, talk, report }
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

/// Of the last minute.
fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}
