//! `wopr bench` with small sizes: it exits, leaves nothing behind and prints JSON, and the targets that do
//! not depend on the machine are met: appends, disk and memory usage. Times are never checked.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// More than the cleanup after a signal takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Next to the binary, because the system's temporary folder may be in memory, where nothing is synced.
fn folder() -> TempDir {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(place).unwrap();
    tempfile::tempdir_in(place).unwrap()
}

fn bench(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
    command
        .args(["bench", "--json", "--folder"])
        .arg(folder)
        .args(args);
    command.env_remove("WOPR_API_KEY");
    command
}

fn interrupt(running: &Child) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-INT", &running.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn left_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// Runs a benchmark that must succeed and leave nothing behind. Returns its report.
fn report(args: &[&str]) -> Value {
    let folder = folder();
    let Output {
        status,
        stdout,
        stderr,
    } = bench(folder.path(), args).output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{args:?}: {status}: {said}");
    assert_eq!(left_in(folder.path()), Vec::<String>::new(), "{args:?}");
    serde_json::from_slice(&stdout).unwrap()
}

/// A figure of the report's only study.
fn figure(report: &Value, name: &str) -> f64 {
    find(report, name)["value"].as_f64().unwrap()
}

/// Returns `true` if the figure meets its target.
fn holds(report: &Value, name: &str) -> bool {
    find(report, name)["holds"].as_bool().unwrap()
}

fn find<'a>(report: &'a Value, name: &str) -> &'a Value {
    let figures = report["studies"][0]["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not among {figures:#?}"))
}

#[test]
fn a_run_that_need_not_wait_is_one_append() {
    let scenarios = "rest,poll,a2a-1.0,a2a-0.3,chain,turn,document,waiting,resume";
    let runs = ["--runs", "50", "--concurrency", "1,8", "--warm-up", "0"];
    let report = report(&[&["--scenario", scenarios][..], &runs].concat());
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 18, "{report:#}");
    for cell in cells {
        assert_eq!(cell["runs"], 50, "{cell:#}");
        assert_eq!(cell["failures"], 0, "{cell:#}");
        assert_eq!(cell["appends_per_run"], 1.0, "{cell:#}");
        // Occasionally one of the server's own writes is included.
        assert!(cell["fsyncs_per_run"].as_f64().unwrap() <= 1.1, "{cell:#}");
        assert!(cell["server_cpu_per_run"].as_f64().is_some(), "{cell:#}");
        let is_pure = ["rest", "poll", "a2a-1.0", "a2a-0.3"].contains(&cell["scenario"].as_str().unwrap());
        let has_bar = is_pure && cell["concurrency"] == 1;
        assert_eq!(cell["p50_bar"].is_f64(), has_bar, "{cell:#}");
        for times in ["latency", "raw"] {
            let p50 = cell[times]["p50"].as_f64().unwrap();
            let p99 = cell[times]["p99"].as_f64().unwrap();
            assert!(0.0 < p50 && p50 <= p99, "{cell:#}");
        }
    }
}

#[test]
fn replays_of_a_long_run_complete() {
    let runs = ["--runs", "5", "--concurrency", "1", "--warm-up", "0"];
    let report = report(&[&["--scenario", "fork"][..], &runs].concat());
    let cell = &report["cells"][0];
    assert_eq!(
        (&cell["runs"], &cell["failures"]),
        (&5.into(), &0.into()),
        "{cell:#}"
    );
    assert!(cell["appends_per_run"].as_f64().unwrap() >= 1.0, "{cell:#}");
}

#[test]
fn fan_of_ten_that_never_waits_is_one_append() {
    let runs = ["--runs", "20", "--concurrency", "4"];
    let report = report(&[&["--scenario", "fan"][..], &runs].concat());
    let cell = &report["cells"][0];
    assert_eq!(
        (&cell["runs"], &cell["failures"]),
        (&20.into(), &0.into()),
        "{cell:#}"
    );
    assert_eq!(cell["appends_per_run"], 1.0, "{cell:#}");
}

#[test]
fn many_children_take_few_appends_of_their_parent() {
    // Two rounds of concurrent children.
    let report = report(&["--scenario", "children", "--size", "1200"]);
    assert_eq!(figure(&report, "children"), 1_200.0);
    assert!(figure(&report, "appends") <= 60.0, "{report:#}");
    assert!(figure(&report, "children that wait") >= 1_000.0, "{report:#}");
}

#[test]
fn every_subscriber_receives_every_end() {
    for scenario in ["subscribers", "followers"] {
        let report = report(&["--scenario", scenario, "--size", "40", "--seconds", "1"]);
        let rounds = figure(&report, "rounds");
        assert!(rounds >= 3.0, "{report:#}");
        assert_eq!(figure(&report, "deliveries"), 40.0 * rounds);
    }
}

#[test]
fn lists_of_a_filled_store_are_measured() {
    let report = report(&["--scenario", "list", "--size", "400"]);
    assert_eq!(figure(&report, "tasks that wait"), 4.0);
    for name in [
        "first page, p50",
        "a page anywhere, max",
        "A2A tasks that wait, p99",
    ] {
        assert!(figure(&report, name) > 0.0, "{report:#}");
    }
}

#[test]
fn twenty_thousand_parked_runs_stay_within_targets() {
    let report = report(&["--scenario", "parked"]);
    assert_eq!(report["studies"][0]["size"], 20_000);
    assert_eq!(figure(&report, "runs resumed"), 1_000.0);
    for name in ["bytes on disk per run", "RSS when ready", "RSS afterwards"] {
        assert!(holds(&report, name), "{report:#}");
    }
}

#[test]
fn five_thousand_streams_stay_within_targets() {
    let report = report(&["--scenario", "streams", "--seconds", "1"]);
    assert_eq!(figure(&report, "streams"), 5_000.0);
    // The bar of 512 MiB is for a release build. Here a stream takes some 12 KiB more, because its futures are larger.
    for name in ["RSS with all of them open", "RSS in the end"] {
        assert!(figure(&report, name) <= 600.0, "{report:#}");
    }
}

#[test]
fn stores_of_two_sizes_are_compared() {
    let report = report(&["--scenario", "flat", "--size", "2000", "--seconds", "1"]);
    assert!(figure(&report, "runs measured on each") > 0.0);
    for name in ["CPU per run", "KiB written per run", "fsyncs per run"] {
        assert!(
            figure(&report, &format!("{name}, many by few")) > 0.0,
            "{report:#}"
        );
    }
}

#[test]
fn bench_of_calls_to_another_host_counts_appends_and_connections() {
    let report = report(&["--scenario", "remote", "--size", "40", "--seconds", "1"]);
    assert!(figure(&report, "calls, 256 clients") > 0.0, "{report:#}");
    // One to start the run, and one for its end.
    let appends = figure(&report, "appends of the caller per call");
    assert!((2.0..=3.0).contains(&appends), "{report:#}");
    assert_eq!(
        figure(&report, "appends of the callee per call"),
        1.0,
        "{report:#}"
    );
    assert_eq!(figure(&report, "tasks parked"), 40.0);
    assert!(
        holds(&report, "connections to the callee, all parked"),
        "{report:#}"
    );
    for name in [
        "call, 1 client, p95",
        "CPU of the caller per call",
        "CPU, call by run",
    ] {
        assert!(figure(&report, name) > 0.0, "{report:#}");
    }
    assert!(
        figure(&report, "CPU while all are parked, of a core") >= 0.0,
        "{report:#}"
    );
}

#[test]
fn bench_of_workers_ends_all_activities() {
    let report = report(&["--scenario", "workers", "--size", "300"]);
    assert_eq!(figure(&report, "activities"), 300.0);
    for name in ["activities per second", "a lease that found activities, p50"] {
        assert!(figure(&report, name) > 0.0, "{report:#}");
    }
}

#[test]
fn bench_of_mcp_completes_its_runs() {
    let report = report(&["--scenario", "mcp", "--size", "100"]);
    for name in [
        "runs per second, one call at a time",
        "runs per second, 32 calls at a time",
    ] {
        assert!(figure(&report, name) > 0.0, "{report:#}");
    }
}

#[test]
fn interrupted_bench_leaves_nothing_behind() {
    let folder = folder();
    let mut running = bench(folder.path(), &["--scenario", "rest", "--seconds", "600"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The probe file is created once the server is running.
    let start = Instant::now();
    while !left_in(folder.path())
        .iter()
        .any(|place| folder.path().join(place).join("raw").exists())
    {
        assert!(start.elapsed() < LIMIT, "the bench does not begin");
        thread::yield_now();
    }
    interrupt(&running);
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert_eq!(left_in(folder.path()), Vec::<String>::new());
}

/// The URL of the PostgreSQL server of the test setup.
fn postgres() -> String {
    env::var("WOPR_TEST_POSTGRES").expect(
        "WOPR_TEST_POSTGRES is set: run `cargo xtask test`, or a few tests with `cargo xtask pg -- cargo nextest run …`",
    )
}

/// The schemas that this benchmark created.
async fn schemas_of(bench: u32) -> Vec<String> {
    let (client, connection) = tokio_postgres::connect(&postgres(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let named = format!("wopr\\_bench\\_{bench}\\_%");
    let select = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE $1";
    let rows = client.query(select, &[&named]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn runs_in_postgres_take_one_append_too() {
    let runs = [
        "--runs",
        "50",
        "--concurrency",
        "8",
        "--scenario",
        "rest,resume,fan",
    ];
    let report = report(&[&["--store", &postgres()][..], &runs].concat());
    assert_eq!(report["store"], "postgres");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3, "{report:#}");
    for cell in cells {
        assert_eq!(
            (&cell["runs"], &cell["failures"]),
            (&50.into(), &0.into()),
            "{cell:#}"
        );
        assert_eq!(cell["appends_per_run"], 1.0, "{cell:#}");
        for what in ["fsyncs_per_run", "bytes_written_per_run"] {
            assert!(cell[what].as_f64().unwrap() > 0.0, "{what}: {cell:#}");
        }
        // Reported even if so few runs take less than a clock tick.
        assert!(cell["database_cpu_per_run"].is_number(), "{cell:#}");
    }
}

#[tokio::test]
async fn interrupted_bench_leaves_no_schema_behind() {
    let folder = folder();
    let store = postgres();
    let mut running = bench(
        folder.path(),
        &["--store", &store, "--scenario", "parked", "--size", "10000000"],
    )
    .stdout(Stdio::null())
    .spawn()
    .unwrap();
    let start = Instant::now();
    while schemas_of(running.id()).await.is_empty() {
        assert!(start.elapsed() < LIMIT, "the bench does not begin");
    }
    interrupt(&running);
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert_eq!(schemas_of(running.id()).await, Vec::<String>::new());
    assert_eq!(left_in(folder.path()), Vec::<String>::new());
}

#[test]
fn invalid_benchmarks_are_refused() {
    let folder = folder();
    for (args, reason) in [
        (
            &[
                "--scenario",
                "parked",
                "--server",
                "http://127.0.0.1:1",
                "--key",
                "k",
            ][..],
            "it needs one of its own",
        ),
        (&["--store", "sqlite:x.db"], "must be sqlite or postgres://"),
        (
            &["--store", "postgres://127.0.0.1:1/none?options=-cx"],
            "must not set options",
        ),
        (
            &["--scenario", "subscribers", "--size", "100000000"],
            "ulimit -Hn",
        ),
    ] {
        let Output { status, stderr, .. } = bench(folder.path(), args).output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(!status.success() && said.contains(reason), "{args:?}: {said}");
        assert_eq!(left_in(folder.path()), Vec::<String>::new(), "{args:?}");
    }
}
