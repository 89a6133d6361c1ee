//! Final checks: compares everything that the API returns about every run with what was acknowledged, and
//! compares the replicas with each other.

mod finish;
mod pushes;
mod runs;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::task::JoinSet;

use self::runs::Ended;
use super::{
    a2a::{self, Version},
    caller::{Caller, Request},
    observe::{self, View},
    peer::Peer,
    receiver::Receiver,
};

/// Number of concurrent clients.
const WORKERS: usize = 8;
/// Number of runs that are read from every replica.
const SAMPLE: usize = 150;
/// Time limit for a replica to answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Counts of what was checked.
#[derive(Debug, Default)]
pub(super) struct Account {
    acknowledged: usize,
    runs: usize,
    events: usize,
    answered: usize,
    calls: usize,
    frames: usize,
    sightings: usize,
    receivers: usize,
    pushes: usize,
    by_workflow: BTreeMap<String, BTreeMap<String, usize>>,
    /// A sample of runs with their events, to be read again.
    sample: Vec<(String, Vec<Value>)>,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            acknowledged,
            runs,
            events,
            answered,
            calls,
            frames,
            sightings,
            receivers,
            pushes,
            by_workflow,
            sample: _,
        } = self;
        writeln!(
            f,
            "{acknowledged} runs acknowledged, {runs} there with {events} events, {answered} were still to be \
             answered, {calls} effects performed, {frames} frames seen by {sightings} observers, {pushes} pushes \
             heard by {receivers} receivers"
        )?;
        for (workflow, statuses) in by_workflow {
            writeln!(f, "  {workflow}: {statuses:?}")?;
        }
        Ok(())
    }
}

/// Finishes all runs and checks them.
pub(super) async fn check(caller: &mut Caller, peer: &Peer) -> Account {
    let ledger = &Arc::clone(caller.ledger());
    let told = ledger.runs();
    let listed = list(caller).await;
    for run in told.keys() {
        ledger.hold(listed.contains(run), || {
            format!("run {run} was acknowledged and is gone")
        });
    }
    let ended = finish::all(caller).await;

    let mut account = Account {
        acknowledged: told.len(),
        runs: ended.len(),
        ..Account::default()
    };
    for run in &ended {
        runs::check_log(ledger, run);
        if let Some(told) = told.get(&run.id) {
            runs::check_told(ledger, run, told);
        }
        account.events += run.events.len();
        account.answered += usize::from(run.was_answered);
        let statuses = account.by_workflow.entry(run.workflow().to_owned()).or_default();
        *statuses.entry(run.status().to_owned()).or_default() += 1;
    }
    runs::check_trees(ledger, &ended);
    runs::check_keys(ledger, &ended);
    account.calls = runs::check_calls(ledger, peer, &ended);
    (account.sightings, account.frames) = check_sightings(caller).await;

    let step = ended.len().div_ceil(SAMPLE).max(1);
    let sample = ended.into_iter().step_by(step);
    account.sample = sample.map(|Ended { id, events, .. }| (id, events)).collect();
    check_agreement(caller, &account).await;
    account
}

/// Checks that also apply after another restart, and waits for the last pushes.
pub(super) async fn check_restarted(caller: &mut Caller, receiver: &Receiver, account: &mut Account) {
    check_agreement(caller, account).await;
    check_repeats(caller, account).await;
    account.receivers = pushes::check(caller, receiver).await;
    account.pushes = receiver.n_heard();
}

/// Lists all runs, page by page.
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

/// Processes many items, a few at a time.
async fn share<I, T, F>(
    caller: &mut Caller,
    items: impl IntoIterator<Item = I>,
    work: impl Fn(Caller, I) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut results = Vec::new();
    for item in items {
        if tasks.len() == WORKERS {
            results.extend(tasks.join_next().await.and_then(Result::unwrap));
        }
        tasks.spawn(work(caller.another(), item));
    }
    while let Some(result) = tasks.join_next().await {
        results.extend(result.unwrap());
    }
    results
}

/// Compares what observers saw with the log.
async fn check_sightings(caller: &mut Caller) -> (usize, usize) {
    let ledger = &Arc::clone(caller.ledger());
    let sightings = ledger.sightings();
    let views = observe::views(&sightings);
    let replayed = share(
        caller,
        views,
        |mut caller, (run, view): (String, View)| async move {
            let frames = observe::replay(&mut caller, &run, view).await?;
            Some(((run, view), frames))
        },
    );
    let replayed: BTreeMap<_, _> = replayed.await.into_iter().collect();
    for sighting in &sightings {
        match replayed.get(&(sighting.run.clone(), sighting.view)) {
            Some(replay) => observe::compare(ledger, sighting, replay),
            None => ledger.violated(format!("run {} was seen and shows nothing now", sighting.run)),
        }
    }
    let frames = sightings.iter().map(observe::Sighting::n_frames).sum();
    (sightings.len(), frames)
}

/// Checks that each replica knows every sampled run, as run and as task, with the same log.
async fn check_agreement(caller: &mut Caller, account: &Account) {
    let lives = caller.lives();
    let asked = lives
        .iter()
        .flat_map(|life| account.sample.iter().map(|run| (*life, run.clone())));
    let asked: Vec<_> = asked.collect();
    share(caller, asked, |mut caller, (life, (run, events))| async move {
        let ledger = Arc::clone(caller.ledger());
        let path = format!("/v1/runs/{run}/events/poll?timeout=1");
        let page = ask_one(&mut caller, life, &Request::get(path)).await;
        ledger.hold(page["events"] == Value::Array(events), || {
            format!("run {run} has another log at the replica of life {life}: {page}")
        });
        let snapshot = ask_one(&mut caller, life, &Request::get(format!("/v1/runs/{run}"))).await;
        let task = ask_one(&mut caller, life, &Version::V1.get(&run)).await;
        let state = a2a::task(&task).map(|(_, state)| state.replace("canceled", "cancelled"));
        ledger.hold(state.as_deref() == snapshot["status"].as_str(), || {
            format!(
                "run {run} is {} and its task {task} at the replica of life {life}",
                snapshot["status"]
            )
        });
        Some(())
    })
    .await;
}

/// Resends messages after all kills and a restart: each must return its original task, and another message
/// with the same id must be refused.
async fn check_repeats(caller: &mut Caller, account: &Account) {
    let ledger = &Arc::clone(caller.ledger());
    let messages = ledger.runs().into_iter();
    let messages = messages.filter_map(|(run, told)| Some((run, told.message?)));
    let messages: Vec<_> = messages.collect();
    let step = messages.len().div_ceil(SAMPLE).max(1);
    let sample = messages.into_iter().step_by(step);
    share(caller, sample, |mut caller, (run, message)| async move {
        let ledger = Arc::clone(caller.ledger());
        let again = caller.ask(&message).await;
        let found = a2a::task(&again.body).map(|(found, _)| found);
        ledger.hold(found.as_ref() == Some(&run), || {
            format!("the message of {run} was answered by {}", again.body)
        });
        let refused = caller.ask(&a2a::said_otherwise(&message)).await;
        let code = refused.body.pointer("/error/code");
        ledger.hold(code == Some(&(-32602).into()), || {
            format!(
                "another message under the id of that of {run} was answered by {}",
                refused.body
            )
        });
        Some(())
    })
    .await;
    let n_runs = list(caller).await.len();
    ledger.hold(n_runs == account.runs, || {
        format!("{} runs became {n_runs} by repeated messages", account.runs)
    });
}

/// Repeats a request to one replica until it is answered.
async fn ask_one(caller: &mut Caller, life: u32, request: &Request) -> Value {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Ok(answer) = caller.call_one(life, request).await
            && answer.status != 503
        {
            return answer.body;
        }
    }
    caller
        .ledger()
        .violated(format!("the replica of life {life} does not answer {request:?}"));
    Value::Null
}
