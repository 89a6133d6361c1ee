//! Runs of a document that one client starts through `wopr mcp`, on standard input and output.
//!
//! Each call of `workflow_start` carries the document, as the protocol wants it, and is answered when the run has ended.

use std::{
    collections::HashMap,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::context::Context;
use crate::{
    figure::{Bar, Figure, Figures},
    latency::Latencies,
    place::Place,
    process::Process,
    report::DOCUMENTS_PER_SECOND,
    server, workflow,
};

/// The most calls at the same time.
const CALLS: usize = 32;
/// One run in this many is started while no other is under way.
const ALONE: usize = 10;
/// Timeout of one answer.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let place = context.place().await?;
    let mut session = Session::start(&place).await?;
    let mut figures = Figures::default();
    let n = context.size;
    figures.add("runs", n as f64, "");
    for (n_runs, n_calls) in [(n.div_ceil(ALONE), 1), (n, CALLS)] {
        let before = session.process.and_then(Process::cpu);
        let start = Instant::now();
        let latencies = session.run(n_runs, n_calls).await?;
        let per_second = n_runs as f64 / start.elapsed().as_secs_f64();
        let after = session.process.and_then(Process::cpu);
        let calls = match n_calls {
            1 => "one call at a time".to_owned(),
            n => format!("{n} calls at a time"),
        };
        let name = format!("runs per second, {calls}");
        if n_calls == CALLS {
            figures.hold(name, Some(per_second), "", Bar::AtLeast(DOCUMENTS_PER_SECOND));
        } else {
            figures.add(name, per_second, "");
        }
        figures.add_latencies(&format!("a run, {calls}"), latencies.summarize());
        let cpu = after
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        let cpu = cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / n_runs as f64);
        figures.add_known(format!("CPU per run, {calls}"), cpu, "us");
    }
    Ok(figures.0)
}

/// A client of `wopr mcp`, whose process ends with it.
struct Session {
    _child: Child,
    process: Option<Process>,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// The next request, also the number of the next run.
    next: u64,
    definition: Value,
}

impl Session {
    async fn start(place: &Place) -> Result<Self> {
        let mut command = Command::from(server::program()?);
        let mut child = command
            .args(["mcp", "--store", &place.url()])
            .env("WOPR_MASTER_KEY", server::master_key())
            .current_dir(place.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("start wopr mcp")?;
        let input = child.stdin.take().context("write to wopr mcp")?;
        let output = child.stdout.take().context("read from wopr mcp")?;
        let mut session = Self {
            process: child.id().map(Process),
            _child: child,
            input,
            output: BufReader::new(output).lines(),
            next: 0,
            definition: workflow::three_nodes(),
        };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "wopr-bench", "version": env!("CARGO_PKG_VERSION") },
        });
        session.send("initialize", params).await?;
        let (_, answer) = session.answer().await?;
        ensure!(answer["result"].is_object(), "begin a session: {answer}");
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        session.write(&initialized).await?;
        Ok(session)
    }

    /// Starts runs, so many calls at a time, until all have completed.
    async fn run(&mut self, n_runs: usize, n_calls: usize) -> Result<Latencies> {
        let mut latencies = Latencies::default();
        let mut under_way = HashMap::new();
        let mut n_started = 0;
        while latencies.len() < n_runs {
            while n_started < n_runs && under_way.len() < n_calls {
                let arguments = json!({
                    "execution_id": format!("bench-{}", self.next), "definition": self.definition,
                    "input": { "name": "Ada" },
                });
                let params = json!({ "name": "workflow_start", "arguments": arguments });
                let start = Instant::now();
                let id = self.send("tools/call", params).await?;
                under_way.insert(id, start);
                n_started += 1;
            }
            let (id, answer) = self.answer().await?;
            let status = &answer["result"]["structuredContent"]["status"];
            ensure!(*status == "completed", "complete a run: {answer}");
            let start = under_way.remove(&id).context("find the call that was answered")?;
            latencies.add(start.elapsed());
        }
        Ok(latencies)
    }

    async fn send(&mut self, method: &str, params: Value) -> Result<u64> {
        self.next += 1;
        let id = self.next;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(&request).await?;
        Ok(id)
    }

    async fn write(&mut self, message: &Value) -> Result<()> {
        let line = format!("{message}\n");
        let written = self.input.write_all(line.as_bytes()).await;
        written.context("write to wopr mcp")
    }

    /// The next answer; notifications are skipped.
    async fn answer(&mut self) -> Result<(u64, Value)> {
        loop {
            let line = tokio::time::timeout(LIMIT, self.output.next_line()).await;
            let line = line.context("wait for wopr mcp")?.context("read from wopr mcp")?;
            let line = line.context("read from wopr mcp, which has ended")?;
            let message: Value =
                serde_json::from_str(&line).with_context(|| format!("read {line:?} as JSON"))?;
            if let Some(id) = message["id"].as_u64() {
                return Ok((id, message));
            }
        }
    }
}
