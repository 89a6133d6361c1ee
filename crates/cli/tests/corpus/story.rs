//! Writes a corpus, and checks it later.
//!
//! First a host creates runs in every state. Then its engine stops and further runs are started, whose work
//! remains as rows. This state is dumped. A later version must show the same views and then finish all runs.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use wopr_core::{RunStatus, Seq};
use wopr_store::{Epoch, Queue, Removal, RunFilter, Times};
use wopr_testkit::{N_KINDS, kind};

use crate::{
    dump::{Backend, Database},
    flows, views,
    world::{ADAM, ALICE, TIMEOUT, World, tenant},
};

/// Start time of a corpus: 2026-01-01.
const BEGIN: i64 = 1_767_225_600_000;
/// Longer than every delay and backoff of the workflows, but shorter than their timeouts.
const LATER: Duration = Duration::from_secs(2 * 3_600);

/// The stored data of one version, and its API views.
pub(crate) struct Corpus {
    dump: String,
    shown: Shown,
}

#[derive(Debug, Serialize, Deserialize)]
struct Shown {
    /// Time of the dump, in milliseconds.
    now: i64,
    /// Run ids by purpose.
    runs: Map<String, Value>,
    /// A secret created in the store.
    made_key: String,
    /// API responses by path.
    views: Map<String, Value>,
}

impl Shown {
    fn run(&self, name: &str) -> &str {
        self.runs[name].as_str().unwrap()
    }
}

impl Corpus {
    pub(crate) fn read(folder: &Path, backend: Backend) -> Self {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        Self {
            dump: text(backend.file()),
            shown: serde_json::from_str(&text(backend.views())).unwrap(),
        }
    }

    pub(crate) fn write(&self, folder: &Path, backend: Backend) {
        let shown = serde_json::to_string_pretty(&self.shown).unwrap();
        fs::write(folder.join(backend.file()), &self.dump).unwrap();
        fs::write(folder.join(backend.views()), shown + "\n").unwrap();
    }
}

pub(crate) async fn cut(backend: Backend) -> Corpus {
    let database = Database::new(backend).await;
    let world = World::open(database.url(), BEGIN, false).await;
    let mut runs = Map::new();
    let gone = live(&world, &mut runs).await;
    world.host.engine().stop().await;
    leave(&world, &mut runs).await;
    let key = json!({ "scopes": ["runs:read"], "id": "made" });
    let made = world.post("/v1/host/wopr/keys", &key).await;
    let secret = json!({ "name": "crm", "value": "known to the tenant" });
    world.post("/v1/host/wopr/secrets", &secret).await;
    let removal = Removal {
        run: world.key(&gone).run,
        root: world.key(&gone).run,
    };
    world
        .host
        .engine()
        .store()
        .remove(&tenant(), &[removal])
        .await
        .unwrap();
    check_coverage(&world).await;

    let mut shown = Shown {
        now: world.now(),
        runs,
        made_key: made["secret"].as_str().unwrap().to_owned(),
        views: Map::new(),
    };
    shown.views = views(&world, &shown).await;
    shown.runs.insert("gone".to_owned(), gone.into());
    world.close().await;
    let (dump, empty) = database.dump().await;
    // SQLite only indexes idempotency records beyond tens of thousands; the store's own tests cover that.
    let empty: Vec<_> = empty
        .iter()
        .filter(|table| *table != "idempotency_index")
        .collect();
    assert_eq!(empty, [""; 0], "every table holds something");
    Corpus { dump, shown }
}

async fn views(world: &World, shown: &Shown) -> Map<String, Value> {
    let runs: Vec<_> = shown
        .runs
        .iter()
        .filter(|(name, _)| *name != "gone")
        .map(|(_, run)| run.as_str().unwrap())
        .collect();
    views::read(world, &runs, &[shown.run("long")]).await
}

/// Creates runs while the engine works. Returns the run that is removed.
async fn live(world: &World, runs: &mut Map<String, Value>) -> String {
    for workflow in flows::all() {
        world.post("/v1/workflows", &workflow).await;
    }
    let mut keep = |name: &str, run: &str| runs.insert(name.to_owned(), run.into());
    let nothing = || json!({});

    let task = world.a2a("SendMessage", message()).await;
    let brief = task["task"]["id"].as_str().unwrap().to_owned();
    for by in [ALICE, ADAM] {
        world.advance(Duration::from_secs(1));
        world
            .answer(&brief, "gate", by, json!({ "action": "accept" }))
            .await;
    }
    world.reaches(&brief, "completed").await;
    has_deliveries(world, &brief).await;
    keep("brief", &brief);

    let asked = world.run("ask", None, nothing()).await;
    world
        .answer(&asked, "ask", ALICE, json!({ "answers": { "q": "blue" } }))
        .await;
    world.reaches(&asked, "completed").await;
    keep("asked", &asked);

    let fenced = json!({ "content": "```json\n{}\n```", "stopReason": "end_turn", "inputTokens": 7, "outputTokens": 3 });
    let program = json!({ "nodeId": "think", "program": [fenced] });
    world.post("/v1/host/sample/test/mock-ai/program", &program).await;
    for (name, workflow, status) in [
        ("gate", "gate", "waiting-approval"),
        ("ask", "ask", "waiting-input"),
        ("order", "order", "waiting-external"),
        ("parent", "parent", "waiting-approval"),
        ("cancelling", "parent", "waiting-approval"),
        ("changes", "changes", "waiting-approval"),
        ("crew", "crew", "waiting-approval"),
        ("fails", "fails", "failed"),
        ("thought", "think", "completed"),
        ("agents", "agents", "completed"),
    ] {
        let run = world.run(workflow, None, nothing()).await;
        world.reaches(&run, status).await;
        keep(name, &run);
    }
    world.post("/v1/workflows", &flows::changed()).await;

    let work = world.run("work", None, nothing()).await;
    let beat = format!("{}:heartbeat", activity(world, &work).await);
    world.post(&beat, &json!({ "details": { "pages": 2 } })).await;
    keep("work", &work);

    let cancelled = world.run("gate", None, nothing()).await;
    world
        .post(
            &format!("/v1/runs/{cancelled}/cancel"),
            &json!({ "reason": "not needed" }),
        )
        .await;
    keep("cancelled", &cancelled);
    let (paused, resumed) = (
        world.run("delay", None, nothing()).await,
        world.run("delay", None, nothing()).await,
    );
    for run in [&paused, &resumed] {
        world.post(&format!("/v1/runs/{run}:pause"), &json!({})).await;
    }
    world
        .post(&format!("/v1/runs/{resumed}:resume"), &json!({}))
        .await;
    keep("paused", &paused);
    keep("resumed", &resumed);
    let capped = world
        .run("three", None, json!({ "configurable": { "recursionLimit": 2 } }))
        .await;
    world.reaches(&capped, "failed").await;
    keep("capped", &capped);
    let keyed = world.run("noop", Some("order-1"), nothing()).await;
    keep("keyed", &keyed);
    let fork = json!({ "mode": "branch", "fromSeq": 1 });
    let fork = world.post(&format!("/v1/runs/{keyed}:fork"), &fork).await;
    let branched = fork["runId"].as_str().unwrap();
    world.reaches(branched, "completed").await;
    keep("branched", branched);
    // A replay asks the scripted model again, which then refuses.
    let answer = json!({ "content": "{}", "stopReason": "end_turn" });
    let refusal = json!({ "refusalText": "no", "stopReason": "safety" });
    let program = json!({ "nodeId": "think", "program": [answer, refusal] });
    world.post("/v1/host/sample/test/mock-ai/program", &program).await;
    let thought = world.run("think", None, nothing()).await;
    world.reaches(&thought, "completed").await;
    let fork = json!({ "mode": "replay" });
    let fork = world.post(&format!("/v1/runs/{thought}:fork"), &fork).await;
    let refused = fork["runId"].as_str().unwrap();
    world.reaches(refused, "failed").await;
    keep("refused", refused);

    let retry = world.run("call", None, nothing()).await;
    sees(world, &retry, "node.retried").await;
    keep("retry", &retry);
    world.run("noop", None, nothing()).await
}

/// Starts runs while the engine is stopped.
async fn leave(world: &World, runs: &mut Map<String, Value>) {
    world.advance(Duration::from_secs(1));
    let cancelling = runs["cancelling"].as_str().unwrap();
    let push = json!({ "taskId": cancelling, "id": "late", "url": NOBODY });
    world.a2a("CreateTaskPushNotificationConfig", push).await;
    world
        .post(&format!("/v1/runs/{cancelling}/cancel"), &json!({}))
        .await;
    for (name, workflow) in [
        ("effect", "call"),
        ("delay", "delay"),
        ("pending", "parent"),
        ("long", "long"),
    ] {
        let run = world.run(workflow, None, json!({})).await;
        runs.insert(name.to_owned(), run.into());
    }
}

/// A message with text and a file.
fn message() -> Value {
    json!({
        "message": {
            "messageId": "m-1", "role": "ROLE_USER", "contextId": "c-1",
            "parts": [{ "text": "spring" }, { "raw": "aGVsbG8=", "filename": "a.txt", "mediaType": "text/plain" }],
            "metadata": { "openwop.workflowId": "brief" },
        },
        "configuration": { "taskPushNotificationConfig": {
            "url": NOBODY, "token": "a token", "authentication": { "scheme": "Bearer", "credentials": "secret" },
        } },
    })
}

/// A push URL that refuses connections.
const NOBODY: &str = "http://127.0.0.1:1/push";

/// Waits until a run has deliveries.
async fn has_deliveries(world: &World, run: &str) {
    let give_up = tokio::time::Instant::now() + TIMEOUT;
    let path = format!("/v1/host/wopr/deliveries?runId={run}");
    loop {
        assert!(
            tokio::time::Instant::now() < give_up,
            "nothing of {run} is pushed"
        );
        let listed = world.get(&path).await;
        if !listed["deliveries"].as_array().unwrap().is_empty() {
            return;
        }
        // sleep: the delivery loop sends no notification
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a run waits for a worker, and returns where its outcome is submitted.
async fn activity(world: &World, run: &str) -> String {
    sees(world, run, "vendor.wopr.effect.scheduled").await;
    let snapshot = world.get(&format!("/v1/runs/{run}")).await;
    let token = snapshot["activities"][0]["token"].as_str().unwrap();
    format!("/v1/activities/{token}")
}

/// Waits until a run's log contains an event.
async fn sees(world: &World, run: &str, kind: &str) {
    let mut tail = world.host.engine().tail(&world.key(run));
    let give_up = tokio::time::Instant::now() + TIMEOUT;
    loop {
        assert!(tokio::time::Instant::now() < give_up, "{run} never shows {kind}");
        let log = world.get(&format!("/v1/runs/{run}/events/poll?timeout=1")).await;
        let events = log["events"].as_array().unwrap();
        if events.iter().any(|event| event["type"] == kind) {
            return;
        }
        tail.changed().await;
    }
}

/// Checks that every status, event and kind of timer occurs.
async fn check_coverage(world: &World) {
    let engine = world.host.engine();
    let page = engine
        .store()
        .list_runs(&tenant(), &RunFilter::default(), None, 1_000)
        .await
        .unwrap();
    let (mut statuses, mut events) = (BTreeSet::new(), BTreeSet::new());
    for (run, summary, _) in &page.runs {
        statuses.insert(summary.status.as_str());
        let log = engine.events(&world.key(run.as_str()), Seq(0), 10_000).await;
        for recorded in log.unwrap().unwrap().events {
            events.insert(kind(&recorded.event));
        }
    }
    let all: BTreeSet<_> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
    assert_eq!(statuses, all);
    // No executor of this host leaves work with its peer yet, so nothing is accepted, and no agent of this host is
    // invoked, finishes, judges another one or sums up its turns. No replay of this version differs from its source.
    assert_eq!(events.len(), N_KINDS - 6, "{events:?}");
    let far = engine.now().plus_millis(u64::try_from(i64::MAX / 2).unwrap());
    let times = Times {
        due: far,
        now: far,
        until: far,
    };
    let leased = engine
        .store()
        .lease(Queue::Timers, Epoch(0), times, &1_000.into())
        .await;
    let timers = leased.unwrap();
    for timer in &timers {
        let released = engine
            .store()
            .release(&timer.run, &timer.key, timer.fence, timer.since)
            .await;
        released.unwrap();
    }
    let kinds: BTreeSet<_> = timers
        .iter()
        .map(|timer| timer.key.name.split(':').next().unwrap())
        .collect();
    assert_eq!(
        kinds,
        BTreeSet::from([
            "continue",
            "delay",
            "interrupt",
            "overdue",
            "retry",
            "run-duration"
        ])
    );
}

/// Checks that this code reads a corpus.
pub(crate) async fn hold(corpus: &Corpus, backend: Backend) {
    let Corpus { dump, shown } = corpus;
    let database = Database::new(backend).await;
    database.load(dump).await;

    let world = World::open(database.url(), shown.now, true).await;
    let is = views(&world, shown).await;
    let lost: Vec<_> = shown
        .views
        .iter()
        .flat_map(|(path, was)| views::lost(path, was, &is[path]))
        .collect();
    assert!(lost.is_empty(), "views changed:\n{}", lost.join("\n"));
    let gone = format!("/v1/runs/{}", shown.run("gone"));
    assert_eq!(world.status(&gone, ALICE).await, 404, "it was removed");
    world.close().await;

    let world = World::open(database.url(), shown.now, false).await;
    go_on(&world, shown).await;
    let swept = world.host.engine().store().sweep(1).await.unwrap();
    assert_eq!(swept.runs, 0, "what was removed is swept");
    world.close().await;
}

/// Continues all unfinished runs to their end.
async fn go_on(world: &World, shown: &Shown) {
    // Runs that only need a host.
    world.reaches(shown.run("cancelling"), "cancelled").await;
    has_deliveries(world, shown.run("cancelling")).await;
    let accept = || json!({ "action": "accept" });
    for name in ["pending", "long", "gate", "parent", "changes"] {
        let run = shown.run(name);
        world.reaches(run, "waiting-approval").await;
        let node = if ["pending", "parent"].contains(&name) {
            "sub"
        } else {
            "gate"
        };
        world.answer(run, node, ALICE, accept()).await;
        world.reaches(run, "completed").await;
    }
    // The run ended with the version it started with.
    let changes = world.get(&format!("/v1/runs/{}", shown.run("changes"))).await;
    assert!(changes["nodeStates"].get("then").is_some(), "{changes}");
    world.answer(shown.run("crew"), "dispatch", ALICE, accept()).await;
    world.reaches(shown.run("crew"), "completed").await;
    let answers = json!({ "answers": { "q": "red" } });
    world.answer(shown.run("ask"), "ask", ALICE, answers).await;
    world
        .answer(shown.run("order"), "order", ALICE, json!({ "orderId": "o-1" }))
        .await;
    for name in ["ask", "order"] {
        world.reaches(shown.run(name), "completed").await;
    }
    world
        .post(&format!("/v1/runs/{}:resume", shown.run("paused")), &json!({}))
        .await;
    let work = activity(world, shown.run("work")).await;
    let outcome = json!({ "outcome": { "ok": true, "result": { "pages": 3 } } });
    world.post(&work, &outcome).await;
    world.reaches(shown.run("work"), "completed").await;
    // A pending call is made, and fails as expected.
    sees(world, shown.run("effect"), "node.retried").await;

    // Runs that wait for time; those that just started waiting need some more.
    world.advance(LATER);
    for (name, status) in [
        ("delay", "completed"),
        ("resumed", "completed"),
        ("retry", "failed"),
        ("effect", "failed"),
        ("paused", "completed"),
    ] {
        world.reaches(shown.run(name), status).await;
    }

    // Completed work is not repeated.
    assert_eq!(
        world.run("noop", Some("order-1"), json!({})).await,
        shown.run("keyed"),
        "the key is remembered"
    );
    let task = world.a2a("SendMessage", message()).await;
    assert_eq!(
        task["task"]["id"],
        shown.run("brief"),
        "the message is remembered"
    );
    assert_eq!(task["task"]["artifacts"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        world.status("/v1/runs", &shown.made_key).await,
        200,
        "the key opens"
    );
    // New work is possible.
    let new = world
        .run("brief", None, json!({ "inputs": { "prompt": "autumn" } }))
        .await;
    world.reaches(&new, "waiting-approval").await;
}
