//! After the last start: everything the API tells about every run is held against what was acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    caller::{Caller, Request},
    ledger::{Ledger, Run},
    peer::Peer,
};

/// Everything that can go on has ended after this long: delays are short, retries are few.
const LIMIT: Duration = Duration::from_secs(60);
/// Clients that ask at once.
const WORKERS: usize = 8;

/// What was checked, in numbers.
#[derive(Debug, Default)]
pub(super) struct Account {
    acknowledged: usize,
    runs: usize,
    events: usize,
    answered: usize,
    calls: usize,
    by_workflow: BTreeMap<String, BTreeMap<String, usize>>,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            acknowledged,
            runs,
            events,
            answered,
            calls,
            by_workflow,
        } = self;
        writeln!(
            f,
            "{acknowledged} runs acknowledged, {runs} there with {events} events, {answered} were still to be \
             answered, {calls} effects performed"
        )?;
        for (workflow, statuses) in by_workflow {
            writeln!(f, "  {workflow}: {statuses:?}")?;
        }
        Ok(())
    }
}

/// A run as it ended.
#[derive(Debug)]
struct Ended {
    id: String,
    snapshot: Value,
    events: Vec<Value>,
    was_answered: bool,
}

/// Finishes everything that can be finished, and checks it.
pub(super) async fn check(caller: impl Fn() -> Caller, ledger: &Arc<Ledger>, peer: &Peer) -> Account {
    let told = ledger.runs();
    let listed = list(&mut caller()).await;
    for run in told.keys() {
        ledger.hold(listed.contains(run), || {
            format!("run {run} was acknowledged and is gone")
        });
    }
    let ended = finish_all(&caller, ledger, listed).await;

    let mut account = Account {
        acknowledged: told.len(),
        runs: ended.len(),
        ..Account::default()
    };
    let nothing = Run::default();
    for run in &ended {
        check_log(ledger, run);
        check_told(ledger, run, told.get(&run.id).unwrap_or(&nothing));
        account.events += run.events.len();
        account.answered += usize::from(run.was_answered);
        let workflow = run.snapshot["workflowId"].as_str().unwrap_or("?").to_owned();
        let status = run.snapshot["status"].as_str().unwrap_or("?").to_owned();
        *account
            .by_workflow
            .entry(workflow)
            .or_default()
            .entry(status)
            .or_default() += 1;
    }
    check_keys(ledger, &ended);
    account.calls = check_calls(ledger, peer, &ended);
    account
}

/// Every run, page by page.
async fn list(caller: &mut Caller) -> BTreeSet<String> {
    let mut runs = BTreeSet::new();
    let mut path = "/v1/runs?limit=100".to_owned();
    loop {
        let answer = caller.ask(&Request::get(path)).await;
        assert_eq!(answer.status, 200, "list runs: {}", answer.body);
        let page = answer.body["runs"].as_array().expect("a page of runs");
        for run in page {
            let id = run["runId"].as_str().expect("a run with an id");
            assert!(runs.insert(id.to_owned()), "run {id} is listed twice");
        }
        match answer.text("/nextCursor") {
            Some(cursor) if !cursor.is_empty() => path = format!("/v1/runs?limit=100&cursor={cursor}"),
            _ => return runs,
        }
    }
}

async fn finish_all(
    caller: &impl Fn() -> Caller,
    ledger: &Arc<Ledger>,
    runs: BTreeSet<String>,
) -> Vec<Ended> {
    let deadline = Instant::now() + LIMIT;
    // Answers first, all of them: what waits for a child could hold every worker while the child waits for one.
    let mut answered = BTreeSet::new();
    let mut ended = Vec::new();
    let mut left: Vec<String> = runs.into_iter().collect();
    while !left.is_empty() && Instant::now() < deadline {
        let answers = share(caller, ledger, &left, |mut caller, ledger, run| async move {
            answer_if_asked(&mut caller, &ledger, &run).await.then_some(run)
        });
        answered.extend(answers.await);
        let done = share(caller, ledger, &left, |mut caller, _, run| async move {
            finished(&mut caller, &run).await
        });
        for (id, snapshot, events) in done.await {
            let was_answered = answered.contains(&id);
            left.retain(|other| *other != id);
            ended.push(Ended {
                id,
                snapshot,
                events,
                was_answered,
            });
        }
    }
    for run in left {
        let answer = caller().ask(&Request::get(format!("/v1/runs/{run}"))).await;
        ledger.violated(format!("run {run} cannot be finished: {}", answer.body));
    }
    ended
}

/// Does something for every run, a few at a time.
async fn share<T: Send + 'static, F>(
    caller: &impl Fn() -> Caller,
    ledger: &Arc<Ledger>,
    runs: &[String],
    work: impl Fn(Caller, Arc<Ledger>, String) -> F,
) -> Vec<T>
where
    F: Future<Output = Option<T>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut results = Vec::new();
    for run in runs {
        if tasks.len() == WORKERS {
            results.extend(tasks.join_next().await.and_then(Result::unwrap));
        }
        tasks.spawn(work(caller(), Arc::clone(ledger), run.clone()));
    }
    while let Some(result) = tasks.join_next().await {
        results.extend(result.unwrap());
    }
    results
}

/// Whatever a run asks is answered, and whatever is paused goes on.
async fn answer_if_asked(caller: &mut Caller, ledger: &Ledger, run: &str) -> bool {
    let snapshot = caller.ask(&Request::get(format!("/v1/runs/{run}"))).await;
    let status = snapshot.text("/status").unwrap_or_default().to_owned();
    let request = if status == "paused" {
        Request::post(format!("/v1/runs/{run}:resume"), json!({}))
    } else if !status.starts_with("waiting-") || is_asked_elsewhere(run, &snapshot.body) {
        return false;
    } else if let Some(node) = snapshot.text("/interrupt/nodeId") {
        let value = match status.as_str() {
            "waiting-input" => json!({"answers": [{"id": "colour", "answer": "red"}]}),
            _ => json!({"action": "accept"}),
        };
        let body = json!({"resumeValue": value});
        Request::post(format!("/v1/runs/{run}/interrupts/{node}"), body)
    } else {
        ledger.violated(format!(
            "run {run} is {status} and shows no interrupt: {}",
            snapshot.body
        ));
        return false;
    };
    let answer = caller.ask(&request).await;
    ledger.hold((200..300).contains(&answer.status), || {
        format!(
            "run {run} is {status}; its answer was answered by {} {}",
            answer.status, answer.body
        )
    });
    true
}

/// A parent shows what its child asks, and may be answered in its place. Each question is asked in one of both places
/// only, so that no answer comes too late: of every other parent, and else of the child.
fn is_asked_elsewhere(run: &str, snapshot: &Value) -> bool {
    let asks_parent = |parent: &str| parent.ends_with(['0', '2', '4', '6', '8', 'a', 'c', 'e']);
    match (snapshot["workflowId"].as_str(), snapshot["parentRunId"].as_str()) {
        (Some("parent-gate"), _) => !asks_parent(run),
        (_, Some(parent)) => asks_parent(parent),
        (_, None) => false,
    }
}

/// The run with its whole log, once it has ended.
async fn finished(caller: &mut Caller, run: &str) -> Option<(String, Value, Vec<Value>)> {
    let mut events = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/runs/{run}/events/poll?timeout=2{cursor}");
        let page = caller.ask(&Request::get(path)).await.body;
        let new = page["events"].as_array().cloned().unwrap_or_default();
        let is_new = !new.is_empty();
        events.extend(new);
        if page["isComplete"] == true {
            break;
        }
        if !is_new {
            return None;
        }
        cursor = format!("&lastSequence={}", page["lastEventSeq"]);
    }
    let snapshot = caller.ask(&Request::get(format!("/v1/runs/{run}"))).await.body;
    Some((run.to_owned(), snapshot, events))
}

fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap_or_default()
}

fn is_terminal(kind: &str) -> bool {
    matches!(kind, "run.completed" | "run.failed" | "run.cancelled")
}

/// What holds for every log.
fn check_log(ledger: &Ledger, run: &Ended) {
    let Ended {
        id, events, snapshot, ..
    } = run;
    for (sequence, event) in events.iter().enumerate() {
        ledger.hold(event["sequence"] == sequence, || {
            format!("run {id} has {event} where {sequence} belongs")
        });
        ledger.hold(event["runId"] == id.as_str(), || {
            format!("run {id} has the event {event}")
        });
    }
    let ids: BTreeSet<&str> = events
        .iter()
        .filter_map(|event| event["eventId"].as_str())
        .collect();
    ledger.hold(ids.len() == events.len(), || {
        format!("run {id} has two events of one id")
    });
    let ends = events.iter().filter(|event| is_terminal(kind(event))).count();
    let last = events.last().map_or("", kind);
    ledger.hold(ends == 1 && is_terminal(last), || {
        format!("run {id} has {ends} terminal events and {last} last")
    });
    let status = snapshot["status"].as_str().unwrap_or_default();
    ledger.hold(last.strip_prefix("run.") == Some(status), || {
        format!("run {id} is {status} after {last}")
    });
}

/// What was acknowledged about this run.
fn check_told(ledger: &Ledger, run: &Ended, told: &Run) {
    let Ended {
        id, events, snapshot, ..
    } = run;
    let status = snapshot["status"].as_str().unwrap_or_default();
    if !told.marker.is_empty() {
        let expected = match told {
            Run {
                is_cancelled: true, ..
            } => "cancelled",
            Run {
                is_accepted: Some(false),
                ..
            } => "failed",
            Run { .. } => "completed",
        };
        ledger.hold(status == expected, || {
            format!(
                "run {id} ({}) is {status}, not {expected}: {}",
                told.marker, snapshot["error"]
            )
        });
    }
    if let Some(accepted) = told.is_accepted
        && snapshot["workflowId"] == "approval"
    {
        let action = if accepted { "accept" } else { "reject" };
        let is_recorded = |event: &Value| {
            kind(event) == "approval.received" && event.pointer("/payload/action") == Some(&json!(action))
        };
        ledger.hold(
            events.iter().filter(|event| is_recorded(event)).count() == 1,
            || format!("run {id} does not have the {action} it acknowledged"),
        );
    }
    for (sequence, (event, shown)) in &told.seen {
        let stored = usize::try_from(*sequence).ok().and_then(|at| events.get(at));
        let is_stored =
            stored.is_some_and(|stored| stored["eventId"] == event.as_str() && kind(stored) == shown);
        ledger.hold(is_stored, || {
            format!("run {id} showed {shown} {event} at {sequence}, and has {stored:?}")
        });
    }
}

/// One run for each key, acknowledged or not.
fn check_keys(ledger: &Ledger, ended: &[Ended]) {
    let mut by_marker: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for run in ended {
        if run.snapshot["parentRunId"].is_string() {
            continue;
        }
        let input = |name: &str| run.snapshot["inputs"][name].as_str();
        match input("marker").or_else(|| input("prompt")) {
            Some(marker) => by_marker.entry(marker).or_default().push(&run.id),
            None => ledger.violated(format!(
                "run {} has no marker: {}",
                run.id, run.snapshot["inputs"]
            )),
        }
    }
    for (marker, runs) in &by_marker {
        ledger.hold(runs.len() == 1, || {
            format!("the key {marker} made the runs {runs:?}")
        });
    }
    for marker in ledger.markers() {
        ledger.hold(by_marker.contains_key(marker.as_str()), || {
            format!("no run has the marker {marker}")
        });
    }
}

/// Each effect was attempted with one key, whatever happened to the host; and a run that completed had each
/// performed at least once.
fn check_calls(ledger: &Ledger, peer: &Peer, ended: &[Ended]) -> usize {
    let calls = peer.calls();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, (keys, _)) in &calls {
        ledger.hold(keys.len() == 1, || {
            format!("the effect {path} was called with the keys {keys:?}")
        });
        for key in keys {
            if let Some(other) = owners.insert(key, path) {
                ledger.violated(format!("the effects {other} and {path} share the key {key}"));
            }
        }
    }
    for run in ended.iter().filter(|run| run.snapshot["workflowId"] == "effects") {
        let marker = run.snapshot["inputs"]["marker"].as_str().unwrap_or_default();
        for effect in ["one", "two"] {
            let performed = calls
                .get(&format!("/{marker}/{effect}"))
                .map_or(0, |(_, performed)| *performed);
            ledger.hold(performed > 0, || {
                format!(
                    "run {} completed and the effect {effect} was not performed",
                    run.id
                )
            });
        }
    }
    calls
        .values()
        .map(|(_, performed)| usize::try_from(*performed).expect("a count"))
        .sum()
}
