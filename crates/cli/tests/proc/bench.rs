//! `wopr bench`, small: it ends by itself, its report is JSON, and the promises that do not depend on the machine
//! hold.

use std::{path::Path, process::Command};

use serde_json::Value;

#[test]
fn a_small_bench_ends_and_finds_one_append_per_run() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).unwrap();
    let folder = tempfile::tempdir_in(folder).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wopr"))
        .args([
            "bench",
            "--json",
            "--runs",
            "50",
            "--concurrency",
            "1,8",
            "--warm-up",
            "0",
            "--folder",
        ])
        .arg(folder.path())
        .env_remove("WOPR_API_KEY")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6, "{report:#}");
    for cell in cells {
        assert_eq!(cell["runs"], 50, "{cell:#}");
        assert_eq!(cell["failures"], 0, "{cell:#}");
        assert_eq!(cell["appends_per_run"], 1.0, "{cell:#}");
        assert!(cell["fsyncs_per_run"].as_f64().unwrap() <= 1.0, "{cell:#}");
        assert!(cell["server_cpu_per_run"].as_f64().is_some(), "{cell:#}");
        for times in ["latency", "raw"] {
            let p50 = cell[times]["p50"].as_f64().unwrap();
            let p99 = cell[times]["p99"].as_f64().unwrap();
            assert!(0.0 < p50 && p50 <= p99, "{cell:#}");
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
