//! `wopr bench`: measures the throughput, latency and cost of runs.

use anyhow::Result;

use crate::{exit::Exit, open_files, output, signals::Signals};

/// Measures and prints the report, even if runs failed.
pub(super) async fn run(args: wopr_bench::Args) -> Result<Exit> {
    let mut signals = Signals::catch()?;
    let is_json = args.is_json();
    // Studies open many connections, each of which is a file descriptor.
    let max_files = open_files::raise();
    let interrupted = async move {
        signals.next().await;
        // A second signal exits without waiting for the cleanup.
        signals.end_at(1);
    };
    let Some(report) = wopr_bench::run(args, max_files, interrupted).await? else {
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
