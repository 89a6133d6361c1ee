//! Histories of Agent Workflow runs become runs again: equal ones that go on alike, or none.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use wopr_core::{
    AwpHistory, Call, Command, Decision, Effect, Entropy, Event, Failure, ForkMode, HostBounds, Imported,
    InProcess, KernelEvent, NodeTypes, Object, Origin, Plan, PrincipalId, Recorded, RunId, TenantId,
    Timestamp,
    awp::{ActivityMode, GivenRows, Import, ImportError, RECORD_SCHEMA_VERSION, Row, Wanted},
    import_awp,
};
use wopr_testkit::Script;

use crate::{
    awp::{document, set, tool},
    awp_in_process::replays_equally,
};

pub(crate) fn plan(document: Value) -> Arc<Plan> {
    Arc::new(Plan::admit(document, NodeTypes::default()).unwrap_or_else(|problems| panic!("{problems}")))
}

pub(crate) fn object(value: Value) -> Object {
    value.as_object().cloned().expect("an object")
}

pub(crate) fn terms() -> Import {
    Import {
        run: id(),
        now: Timestamp::from_millis(4_000_000_000_000),
        entropy: Entropy([3; 16]),
        trace: None,
        tenant: TenantId::parse("tenant").expect("valid"),
        principal: PrincipalId::parse("ada").expect("valid"),
        origin: Origin::new("rest"),
        bounds: HostBounds {
            node_executions: 100_000,
            log_bytes: 64 << 20,
            run_duration_ms: None,
        },
        name: Some("copy".to_owned()),
        input: None,
        configurable: Object::new(),
        mode: None,
        in_process: None,
    }
}

pub(crate) fn id() -> RunId {
    RunId::from_parts(Timestamp::from_millis(7), [7; 10])
}

pub(crate) fn import(plan: &Plan, rows: Vec<Value>, terms: &Import) -> Result<Decision, ImportError> {
    let imported = import_all(plan, rows, Vec::new(), terms)?;
    assert!(imported.children.is_empty(), "there are no histories of children");
    Ok(imported.decision)
}

/// Imports rows with those of children, each with its plan. Workers do the work where nothing says who does it.
pub(crate) fn import_all(
    plan: &Plan,
    rows: Vec<Value>,
    children: Vec<(Arc<Plan>, Vec<Value>)>,
    terms: &Import,
) -> Result<Imported, ImportError> {
    match import_as_said(plan, rows.clone(), children.clone(), terms) {
        Err(error) if error.to_string().contains(UNSAID) => {
            let mode = Some(ActivityMode::HostMediated);
            let terms = Import {
                mode,
                ..terms.clone()
            };
            import_as_said(plan, rows, children, &terms)
        }
        imported => imported,
    }
}

const UNSAID: &str = "choose an activity_execution_mode";

fn import_as_said(
    plan: &Plan,
    rows: Vec<Value>,
    children: Vec<(Arc<Plan>, Vec<Value>)>,
    terms: &Import,
) -> Result<Imported, ImportError> {
    let rows = GivenRows::read(rows)?;
    let children = children
        .into_iter()
        .map(|(plan, rows)| Ok((plan, GivenRows::read(rows)?)));
    let children: Vec<_> = children.collect::<Result<_, ImportError>>()?;
    import_awp(plan, &rows, &children, terms).expect("of this language")
}

fn rows_of<'e>(plan: &Plan, run: &RunId, events: impl IntoIterator<Item = &'e Recorded>) -> Vec<Row> {
    let wanted = Wanted::Rows {
        numbers: 1..u64::MAX,
        most_bytes: usize::MAX,
    };
    let mut history = AwpHistory::new(plan, run, wanted).expect("of this language");
    for event in events {
        history.record(event);
    }
    history.finish().rows
}

fn export(script: &Script) -> Vec<Value> {
    export_run(script, 0)
}

pub(crate) fn export_run(script: &Script, run: usize) -> Vec<Value> {
    let rows = rows_of(script.plan(run), script.id(run), script.events(run));
    rows.iter().map(written).collect()
}

fn written(row: &Row) -> Value {
    json!({
        "execution_id": row.payload["executionId"], "seq": row.seq, "kind": row.kind.as_str(), "name": row.name,
        "payload": row.payload, "created_at": row.created_at.to_text(),
        "record_schema_version": RECORD_SCHEMA_VERSION,
    })
}

/// Rows without what has another name in a copy.
pub(crate) fn unnamed(rows: &[Value]) -> Vec<Value> {
    let strip = |row: &Value| {
        let mut payload = object(row["payload"].clone());
        let names = [
            "executionId",
            "delegateCorrelationId",
            "externalTaskId",
            "childExecutionId",
            "parentExecutionId",
        ];
        for name in names {
            payload.remove(name);
        }
        json!([row["kind"], row["name"], payload])
    };
    rows.iter().map(strip).collect()
}

pub(crate) fn rows(plan: &Plan, decision: &Decision) -> Vec<Value> {
    rows_of(plan, &id(), &decision.events)
        .iter()
        .map(written)
        .collect()
}

pub(crate) fn read_error(error: ImportError) -> String {
    match error {
        ImportError::Differs { expected, actual, .. } => {
            format!("{error} expected {expected}, actual {actual}", error = "differs:")
        }
        error => error.to_string(),
    }
}

/// A document with one node of each kind that waits.
pub(crate) fn everything() -> Value {
    let nodes = [
        json!({ "id": "ask", "type": "llm_call", "retry": { "max_attempts": 3, "initial_interval": "1s" },
            "config": { "prompt": "?", "output_schema": { "type": "object", "required": ["done"] } } }),
        set("count", json!({ "n": { "jq": "(.n // 0) + 1" } })),
        json!({ "id": "again", "type": "switch", "config": {
            "cases": [{ "when": ".n < 2", "target": "ask" }], "default": "fork",
        } }),
        json!({ "id": "fork", "type": "parallel", "config": { "join": "n_of_m", "n": 2, "branches": [
            { "name": "one", "entry": "one" }, { "name": "two", "entry": "two" }, { "name": "three", "entry": "three" },
        ] } }),
        tool("one"),
        tool("two"),
        tool("three"),
        json!({ "id": "code", "type": "agent_delegate", "config": {
            "agent_id": "coder", "protocol": "a2a", "input_mapping": { "task": "${ .task }" },
        } }),
        json!({ "id": "nap", "type": "wait", "config": { "kind": "duration", "duration_ms": 500 } }),
        json!({ "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "go" } }),
        json!({ "id": "review", "type": "interrupt", "config": { "prompt": "Good?", "resume_schema": { "type": "object" } } }),
    ];
    let edges = [
        ("start", "ask"),
        ("ask", "count"),
        ("count", "again"),
        ("fork", "code"),
        ("one", "code"),
        ("two", "code"),
        ("three", "code"),
        ("code", "nap"),
        ("nap", "go"),
        ("go", "review"),
        ("review", "end"),
    ];
    document(
        "everything",
        json!({ "log": { "reducer": "append" } }),
        &nodes,
        &edges,
    )
}

/// Gives the run the next thing that it waits for. Returns `false` if it has ended.
pub(crate) fn step(script: &mut Script, n: usize) -> bool {
    if script.run(0).status.is_terminal() {
        return false;
    }
    let plan = script.plan(0).clone();
    let awaited = script.run(0).activities(&plan).next();
    if let Some((step, attempt)) = awaited.map(|(step, attempt, _)| (step, attempt)) {
        let node = step.node.to_string();
        let outcome = match (node.as_str(), attempt) {
            ("ask", 0) => Err(Failure {
                retryable: true,
                ..Failure::new("BUSY", "not now")
            }),
            ("one", _) => Err(Failure {
                retryable: true,
                ..Failure::new("BROKEN", "it broke")
            }),
            ("ask", 1) => Ok(json!({ "log": "no member done" })),
            _ => Ok(json!({ "done": n, "log": node, "half": 0.5 })),
        };
        if node == "code" {
            let details = json!({ "externalTaskId": "task-1" });
            let progressed = Command::Progressed {
                step: step.clone(),
                attempt,
                details,
                then: None,
            };
            script.tell(0, progressed).expect("under way");
        }
        let outcome = outcome.map(object);
        let command = Command::Effect {
            step,
            attempt,
            outcome,
            retry_after_ms: None,
        };
        script.tell(0, command).expect("under way");
        return true;
    }
    let open = script
        .run(0)
        .interrupts(&plan)
        .next()
        .map(|open| open.node.clone());
    match open {
        Some(node) => script.answer(node.as_str(), json!({ "said": n })).expect("open"),
        None => {
            let (due, ..) = script.next_timer().expect("it waits for something");
            let ms = u64::try_from(due.millis() - script.now().millis()).unwrap_or(0);
            script.wait(ms);
        }
    }
    true
}

pub(crate) fn started(document: Value) -> Script {
    let script = Script::of_plans([plan(document)]);
    script.start_configured(
        json!({ "task": "mend it", "x": [1, { "y": null }] }),
        json!({ "executionId": "first" }),
    )
}

pub(crate) fn finished(document: Value) -> Script {
    let mut script = started(document);
    let mut n = 0;
    while step(&mut script, n) {
        n += 1;
    }
    script
}

#[test]
fn a_run_is_imported_wherever_it_waits_and_goes_on_alike() {
    let whole = export(&finished(everything()));
    let (mut script, mut n) = (started(everything()), 0);
    loop {
        let plan = script.plan(0).clone();
        let given = export(&script);
        let decision = import(&plan, given.clone(), &terms()).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(unnamed(&rows(&plan, &decision)), unnamed(&given), "step {n}");
        let started = decision.run.started.clone().expect("it has started");
        assert_eq!(started.configurable["executionId"], "copy");
        assert_eq!(started.metadata["imported"]["executionId"], "first");
        assert_eq!(
            decision.run.updated_at,
            script.run(0).updated_at,
            "at the recorded times"
        );
        let mut copy = Script::of_plans([plan]);
        copy.skip(u64::try_from(script.now().millis() - copy.now().millis()).expect("later"));
        copy.adopt(id(), &decision);
        let mut at = n;
        while step(&mut copy, at) {
            at += 1;
        }
        assert_eq!(unnamed(&export(&copy)), unnamed(&whole), "step {n}");
        if !step(&mut script, n) {
            break;
        }
        n += 1;
    }
    assert!(n > 8, "{n} steps");
}

#[test]
fn a_cancelled_run_is_imported_as_cancelled() {
    let mut script = started(everything());
    step(&mut script, 0);
    script.cancel().expect("it runs");
    let decision = import(script.plan(0), export(&script), &terms()).expect("imported");
    assert_eq!(decision.run.status.as_str(), "cancelled");
    assert_eq!(decision.work, wopr_core::Work::default(), "nothing is left to do");
    assert_eq!(
        unnamed(&rows(script.plan(0), &decision)),
        unnamed(&export(&script))
    );
    // The reference engine names the node.
    let mut theirs = export(&script);
    let n = theirs
        .iter()
        .position(|row| row["name"] == "CancelExecution")
        .expect("cancelled");
    theirs[n]["payload"]["nodeId"] = "ask".into();
    import(script.plan(0), theirs, &terms()).expect("imported");
}

#[test]
fn a_run_that_nobody_has_named_gets_the_name_of_its_new_host() {
    let edges = [("start", "work"), ("work", "end")];
    let script =
        Script::of_plans([plan(document("unnamed", json!({}), &[tool("work")], &edges))]).start(json!({}));
    let mut terms = terms();
    terms.name = None;
    let decision = import(script.plan(0), export(&script), &terms).expect("imported");
    let started = decision.run.started.clone().expect("it has started");
    assert!(!started.configurable.contains_key("executionId"), "{started:?}");
    assert_eq!(
        rows(script.plan(0), &decision)[0]["execution_id"],
        id().to_string()
    );
    assert_eq!(
        started.metadata["imported"]["executionId"],
        script.id(0).to_string()
    );
}

#[test]
fn a_history_in_process_is_imported_in_process() {
    let nodes = [
        tool("work"),
        json!({ "id": "review", "type": "interrupt", "config": { "prompt": "?", "resume_schema": { "type": "object" } } }),
        tool("more"),
    ];
    let edges = [
        ("start", "work"),
        ("work", "review"),
        ("review", "more"),
        ("more", "end"),
    ];
    let document = document("mocked", json!({ "out": {} }), &nodes, &edges);
    let mocks = json!({ "work": { "out": 1 }, "more": { "out": 2 } });
    let options = json!({ "activityExecutionMode": "in_process", "mockOutputs": mocks });
    let script = Script::of_plans([plan(document)]).start_configured(json!({}), options);
    let given = export(&script);
    let mut terms = terms();
    terms.configurable = object(json!({ "mockOutputs": { "more": { "out": 2 } } }));
    let decision = import(script.plan(0), given.clone(), &terms).expect("imported");
    assert_eq!(unnamed(&rows(script.plan(0), &decision)), unnamed(&given));
    let started = decision.run.started.clone().expect("it has started");
    assert_eq!(started.configurable["activityExecutionMode"], "in_process");
    assert_eq!(
        started.configurable["mockOutputs"],
        json!({ "more": { "out": 2 } }),
        "the caller's alone"
    );
    assert_eq!(
        started.metadata["imported"]["activities"],
        json!({ "work": [[{ "completed": { "out": 1 } }]] })
    );
    // By a worker, the same rows are a run all the same.
    terms.mode = Some(ActivityMode::HostMediated);
    let decision = import(script.plan(0), given, &terms).expect("imported");
    assert_eq!(decision.run.status.as_str(), "waiting-input");
}

/// A loop around a tool that may fail, and a question.
fn asking_loop() -> Script {
    let mut work = tool("work");
    work["retry"] = json!({ "max_attempts": 2, "initial_interval": "1s" });
    let nodes = [
        work,
        set("count", json!({ "n": { "jq": "(.n // 0) + 1" } })),
        json!({ "id": "review", "type": "interrupt", "config": { "prompt": "?", "resume_schema": { "type": "object" } } }),
        json!({ "id": "again", "type": "switch", "config": {
            "cases": [{ "when": ".n < 3", "target": "work" }], "default": "end",
        } }),
    ];
    let edges = [
        ("start", "work"),
        ("work", "count"),
        ("count", "review"),
        ("review", "again"),
    ];
    let document = document(
        "asking",
        json!({ "text": { "reducer": "append" } }),
        &nodes,
        &edges,
    );
    let options = json!({ "activityExecutionMode": "in_process", "inProcess": { "tools": true } });
    Script::of_plans([plan(document)]).start_configured(json!({}), options)
}

/// Does what the host of a run in process does, or answers it.
fn serve(script: &mut Script, n: usize) -> bool {
    let is_tool = |effect: &Effect| matches!(effect.call, Call::Tool(_));
    assert!(script.effects().iter().all(is_tool));
    let outcome = match n == 0 {
        true => Err(Failure::new("tool_failed", "not now")),
        false => Ok(json!({ "content": [], "text": n.to_string() })),
    };
    // Stale where nothing is under way.
    if !script.effects().is_empty() && script.outcome("work", outcome).is_ok() {
        return true;
    }
    if script.run(0).status.is_terminal() {
        return false;
    }
    match script.status() {
        "waiting-input" => script.answer("review", json!({ "said": n })).expect("open"),
        _ => script.wait(1_000),
    }
    true
}

#[test]
fn a_history_in_process_goes_on_with_what_the_host_has() {
    let mut script = asking_loop();
    let mut n = 0;
    loop {
        let given = export(&script);
        let mut terms = terms();
        terms.mode = Some(ActivityMode::InProcess);
        terms.now = script.now();
        terms.in_process = Some(Arc::new(InProcess {
            tools: true,
            ..InProcess::default()
        }));
        let decision =
            import(script.plan(0), given.clone(), &terms).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(unnamed(&rows(script.plan(0), &decision)), unnamed(&given), "{n}");
        // The rows say the mode as soon as an activity has ended.
        let unsaid = Import {
            mode: None,
            ..terms.clone()
        };
        match import_as_said(script.plan(0), given.clone(), Vec::new(), &unsaid) {
            Ok(imported) => assert_eq!(imported.decision, decision, "{n}"),
            Err(error) => {
                assert!(error.to_string().contains(UNSAID), "{n}: {error}");
                assert!(n < 3, "{n}");
            }
        }
        let mut copy = Script::of_plans([script.plan(0).clone()]);
        copy.skip(u64::try_from(script.now().millis() - copy.now().millis()).expect("later"));
        copy.adopt(id(), &decision);
        // A replay decides it all again, and a branch takes from the rows only what comes before it.
        let mut whole = copy.clone();
        let mut m = n;
        while serve(&mut whole, m) {
            m += 1;
        }
        replays_equally(&mut whole);
        let mut from_there = whole.clone();
        from_there.skip(1);
        if n > 0 {
            let begins = |event: &Recorded| matches!(&event.event, Event::Kernel(KernelEvent::NodeStarted { step, .. }) if step.node.as_str() == "work");
            let first = copy.events(0).iter().position(begins).expect("it has begun") as u64;
            let branch = from_there.fork(0, ForkMode::Branch, first).expect("forked");
            let effects = from_there.effects_of(branch);
            let is_call = effects.iter().any(|effect| matches!(effect.call, Call::Tool(_)));
            assert!(is_call, "{n} {effects:?}");
        }
        let mut source = script.clone();
        let mut m = n;
        while serve(&mut source, m) {
            m += 1;
        }
        assert_eq!(unnamed(&export(&whole)), unnamed(&export(&source)), "{n}");
        if !serve(&mut script, n) {
            break;
        }
        n += 1;
    }
    assert!(n > 6, "{n} steps");
}

/// A row as the reference engine writes it.
fn row(kind: &str, name: &str, payload: Value) -> Value {
    let mut payload = object(payload);
    payload.insert("executionId".to_owned(), "theirs".into());
    json!({
        "execution_id": "theirs", "kind": kind, "name": name, "payload": payload,
        "created_at": "2026-06-24T12:00:00.000Z", "record_schema_version": 1,
    })
}

pub(crate) fn numbered(rows: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut rows: Vec<_> = rows.into_iter().collect();
    for (n, row) in rows.iter_mut().enumerate() {
        row["seq"] = (n + 1).into();
    }
    rows
}

fn c(name: &str, payload: Value) -> Value {
    row("command", name, payload)
}

fn e(name: &str, payload: Value) -> Value {
    row("event", name, payload)
}

/// Two branches with an activity each, by a host: the reference goes through the whole history again after each outcome.
pub(crate) fn repeated() -> (Value, Vec<Value>) {
    let nodes = [
        json!({ "id": "fork", "type": "parallel", "config": { "join": "all", "branches": [
            { "name": "l", "entry": "l" }, { "name": "r", "entry": "r" },
        ] } }),
        tool("l"),
        tool("r"),
    ];
    let edges = [("start", "fork"), ("fork", "end"), ("l", "end"), ("r", "end")];
    let document = document("branches", json!({ "a": {}, "b": {} }), &nodes, &edges);
    let span = |name: &str| json!({ "parallelNodeId": "fork", "joinTargetId": "end", "branchName": name, "branchEntryNodeId": name });
    let node = |node: &str| json!({ "nodeId": node });
    let state = |node: &str, state: Value| e("StateUpdated", json!({ "nodeId": node, "state": state }));
    let asked = |node: &str| {
        e(
            "ActivityRequested",
            json!({ "nodeId": node, "nodeType": "tool_call", "parallelSpan": span(node), "attempt": 1 }),
        )
    };
    let forked = || {
        e(
            "ParallelForked",
            json!({ "nodeId": "fork", "join": "all", "branchNames": ["l", "r"] }),
        )
    };
    let done = |node: &str, result: Value| {
        e(
            "ActivityCompleted",
            json!({ "nodeId": node, "nodeType": "tool_call", "parallelSpan": span(node), "result": result }),
        )
    };
    let complete = |node: &str, output: Value| c("CompleteNode", json!({ "nodeId": node, "output": output }));
    let again = || {
        [
            e("NodeScheduled", node("start")),
            state("start", json!({ "k": 1 })),
            e("NodeScheduled", node("fork")),
            forked(),
            e("NodeScheduled", node("l")),
        ]
    };
    let mut rows = vec![
        e(
            "ExecutionStarted",
            json!({ "workflowName": "branches", "workflowVersion": "1", "inputKeys": ["k"] }),
        ),
        c("ScheduleNode", node("start")),
        e("NodeScheduled", node("start")),
        complete("start", json!({})),
        state("start", json!({ "k": 1 })),
        c("ScheduleNode", node("fork")),
        e("NodeScheduled", node("fork")),
        c(
            "StartParallel",
            json!({ "nodeId": "fork", "join": "all", "branchNames": ["l", "r"] }),
        ),
        forked(),
        c("ScheduleNode", node("l")),
        e("NodeScheduled", node("l")),
        asked("l"),
        done("l", json!({ "a": 1.0 })),
    ];
    rows.extend(again());
    rows.extend([
        complete("l", json!({ "a": 1 })),
        state("l", json!({ "k": 1, "a": 1 })),
    ]);
    rows.extend([
        c("ScheduleNode", node("r")),
        e("NodeScheduled", node("r")),
        asked("r"),
        done("r", json!({ "b": 2 })),
    ]);
    rows.extend(again());
    let replayed = json!({ "nodeId": "l", "result": { "a": 1 }, "replayed": true });
    rows.extend([
        e("ActivityCompleted", replayed),
        state("l", json!({ "k": 1, "a": 1 })),
        e("NodeScheduled", node("r")),
    ]);
    let whole = json!({ "k": 1, "a": 1, "b": 2 });
    rows.extend([
        complete("r", json!({ "b": 2 })),
        state("r", whole.clone()),
        c("JoinParallel", json!({ "nodeId": "fork", "join": "all" })),
        e("ParallelJoined", json!({ "nodeId": "fork", "join": "all" })),
        complete("fork", json!({})),
        state("fork", whole.clone()),
        c("ScheduleNode", node("end")),
        e("NodeScheduled", node("end")),
        complete("end", json!({})),
        e("ExecutionCompleted", json!({ "result": whole })),
    ]);
    (document, numbered(rows))
}

#[test]
fn repeated_events_of_the_reference_engine_are_passed_over() {
    let (document, rows) = repeated();
    let plan = plan(document);
    let decision = import(&plan, rows.clone(), &terms()).expect("imported");
    assert_eq!(decision.run.status.as_str(), "completed");
    assert_eq!(
        decision.run.outputs.as_ref().expect("outputs")["result"],
        json!({ "k": 1, "a": 1.0, "b": 2 })
    );
    // While the second branch waits for its host, the run does.
    let decision = import(&plan, rows[..23].to_vec(), &terms()).expect("imported");
    let waiting: Vec<_> = decision
        .run
        .activities(&plan)
        .map(|(step, ..)| step.node.to_string())
        .collect();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert!(waiting[0].starts_with('r'), "{waiting:?}");
    assert_eq!(decision.work.effects.len(), 1);
}

#[test]
fn a_history_of_another_decision_names_both_commands() {
    let (document, mut rows) = repeated();
    rows[9]["payload"]["nodeId"] = "r".into();
    let error = import(&plan(document), rows, &terms()).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "Deterministic replay mismatch at command index 5 (history seq 10)."
    );
    let ImportError::Differs { expected, actual, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        expected,
        json!({ "name": "ScheduleNode", "seq": 10, "nodeId": "r" })
    );
    assert_eq!(actual, json!({ "name": "ScheduleNode", "nodeId": "l" }));
}

/// What one row alone says: nothing contradicts another value.
const ALONE: [&str; 5] = ["error", "message", "code", "reason", "timeoutMs"];

fn comparable(rows: &[Value]) -> Vec<Value> {
    let mut rows = unnamed(rows);
    for row in &mut rows {
        let payload = row[2].as_object_mut().expect("an object");
        payload.retain(|name, _| !ALONE.contains(&name.as_str()));
    }
    rows
}

/// What came of changed histories.
#[derive(Default)]
struct Met {
    refusals: BTreeSet<String>,
    /// Imported as another run than the genuine one.
    others: Vec<String>,
}

/// Imports changed rows. The import must fail, or make the same run as the original rows.
fn check_changed(what: &str, plan: &Plan, changed: Vec<Value>, genuine: &[Value], met: &mut Met) {
    let mut terms = terms();
    terms.mode = Some(ActivityMode::HostMediated);
    match import(plan, changed, &terms) {
        Err(error) => {
            let text = read_error(error);
            met.refusals
                .insert(text.chars().filter(|c| !c.is_ascii_digit()).collect());
        }
        Ok(decision) => {
            let made = comparable(&rows(plan, &decision));
            let mut both = made.iter().zip(genuine);
            if let Some((made, genuine)) = both.find(|(made, genuine)| made != genuine) {
                met.others.push(format!("{what}: {made}, not {genuine}"));
            }
        }
    }
}

/// Changes a member of an object to a value of another type, or removes it: to another one for each `n`.
fn change(object: &mut Value, name: &str, n: usize) {
    let others = [
        json!(null),
        json!(7),
        json!("x"),
        json!({ "x": 1 }),
        json!("[REDACTED]"),
        json!([]),
    ];
    match others.get(n % (others.len() + 1)) {
        Some(other) => object[name] = other.clone(),
        None => drop(object.as_object_mut().expect("an object").remove(name)),
    }
}

#[test]
fn changed_histories_are_refused_or_are_the_genuine_run() {
    let cancelled = {
        let mut script = started(everything());
        script.cancel().expect("it runs");
        script
    };
    let failing = document(
        "failing",
        json!({}),
        &[tool("one")],
        &[("start", "one"), ("one", "end")],
    );
    let mut met = Met::default();
    let mut histories: Vec<_> = [finished(everything()), finished(failing), cancelled]
        .iter()
        .map(|script| (script.plan(0).clone(), export(script)))
        .collect();
    let (document, theirs) = repeated();
    histories.push((plan(document), theirs));
    for (plan, given) in histories {
        let decision = import(&plan, given.clone(), &terms()).expect("genuine");
        let genuine = comparable(&rows(&plan, &decision));
        for n in 0..given.len() {
            check_changed(
                &format!("row {n} truncated"),
                &plan,
                given[..n].to_vec(),
                &genuine,
                &mut met,
            );
            let mut dropped = given.clone();
            dropped.remove(n);
            let is_last = n + 1 == given.len();
            assert!(
                is_last || import(&plan, dropped.clone(), &terms()).is_err(),
                "a gap before row {n}"
            );
            check_changed(
                &format!("row {n} dropped"),
                &plan,
                numbered(dropped),
                &genuine,
                &mut met,
            );
            let mut twice = given.clone();
            twice.insert(n, given[n].clone());
            assert!(import(&plan, twice.clone(), &terms()).is_err(), "row {n} twice");
            check_changed(
                &format!("row {n} twice"),
                &plan,
                numbered(twice),
                &genuine,
                &mut met,
            );
            for m in n + 1..given.len().min(n + 3) {
                let mut swapped = given.clone();
                swapped.swap(n, m);
                assert!(
                    import(&plan, swapped.clone(), &terms()).is_err(),
                    "rows {n} and {m} swapped"
                );
                check_changed(
                    &format!("row {n} swapped"),
                    &plan,
                    numbered(swapped),
                    &genuine,
                    &mut met,
                );
            }
            for (m, name) in object(given[n].clone()).keys().enumerate() {
                let mut changed = given.clone();
                change(&mut changed[n], name, n + m);
                check_changed(&format!("row {n} {name}"), &plan, changed, &genuine, &mut met);
            }
            for (m, name) in object(given[n]["payload"].clone()).keys().enumerate() {
                let mut changed = given.clone();
                change(&mut changed[n]["payload"], name, n + m);
                let what = format!("row {n} {name} {}", changed[n]);
                check_changed(&what, &plan, changed, &genuine, &mut met);
            }
        }
    }
    assert!(met.others.is_empty(), "{:#?}", met.others);
    assert!(met.refusals.len() > 30, "{:#?}", met.refusals);
}

#[test]
fn rows_that_are_none_are_refused() {
    let (document, rows) = repeated();
    let plan = plan(document);
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let cases: [(&str, Value, &str); 10] = [
        (
            "record_schema_version",
            json!(2),
            "row 5: record_schema_version must be 1, the only one there is",
        ),
        (
            "seq",
            json!(6),
            "row 5: seq must be 5: rows are in the order of seq, from 1 without gaps",
        ),
        ("kind", json!("fact"), "row 5: kind must be command or event"),
        (
            "name",
            json!("EmitSignal"),
            "row 5: name must be that of a known event",
        ),
        (
            "name",
            json!("ExecutionStarted"),
            "row 5: a history begins with ExecutionStarted, and has no other row of that name",
        ),
        (
            "created_at",
            json!("yesterday"),
            "row 5: created_at must be a time such as 2026-01-31T12:00:00.000Z",
        ),
        ("payload", json!([]), "row 5: payload must be an object"),
        (
            "payload",
            json!({ "executionId": "theirs", "state": deep }),
            "row 5: payload nests too deep",
        ),
        (
            "execution_id",
            json!("mine"),
            "row 5: execution_id must be that of the payload",
        ),
        ("extra", json!(1), "row 5: extra is not a member of a row"),
    ];
    for (name, value, expected) in cases {
        let mut changed = rows.clone();
        changed[4][name] = value;
        assert_eq!(
            import(&plan, changed, &terms()).expect_err("refused").to_string(),
            expected
        );
    }
    let mut other = rows.clone();
    other[4]["payload"]["executionId"] = "mine".into();
    other[4]["execution_id"] = "mine".into();
    let error = import(&plan, other, &terms()).expect_err("refused").to_string();
    assert_eq!(error, "row 5: payload.executionId must be that of the first row");
    let error = import(&plan, Vec::new(), &terms())
        .expect_err("refused")
        .to_string();
    assert_eq!(error, "row 1: a history has at least one row");
    let many = numbered(vec![rows[1].clone(); wopr_core::awp::MAX_ROWS + 1]);
    let error = import(&plan, many, &terms()).expect_err("refused").to_string();
    assert_eq!(
        error,
        "row 10001: a history that is imported has at most 10000 rows"
    );
}

#[test]
fn a_history_of_another_definition_is_refused() {
    let mut script = finished(everything());
    let mut other = everything();
    other["document"]["description"] = "another one".into();
    let error = import(&plan(other), export(&script), &terms())
        .expect_err("refused")
        .to_string();
    assert!(
        error.ends_with("definitionHash is that of another definition"),
        "{error}"
    );
    let mut other = everything();
    other["document"]["version"] = "2".into();
    let error = import(&plan(other), export(&script), &terms())
        .expect_err("refused")
        .to_string();
    assert_eq!(error, "row 1: workflowVersion is that of another definition");
    script = started(everything());
    let (document, _) = repeated();
    let error = import(&plan(document), export(&script), &terms())
        .expect_err("refused")
        .to_string();
    assert_eq!(error, "row 1: workflowName is that of another definition");
}

#[test]
fn hidden_values_are_asked_for_or_refused() {
    let nodes = [tool("work"), tool("more")];
    let edges = [("start", "work"), ("work", "more"), ("more", "end")];
    let document = document("secrets", json!({ "out": {} }), &nodes, &edges);
    let mut script = Script::of_plans([plan(document)]).start(json!({ "Token": "s3cret", "n": 1 }));
    script.outcome("work", Ok(json!({ "out": 1 }))).expect("asked");
    let plan = script.plan(0).clone();
    let hide = |rows: Vec<Value>| -> Vec<Value> {
        let text = Value::Array(rows).to_string().replace("s3cret", "[REDACTED]");
        serde_json::from_str(&text).expect("JSON")
    };
    let given = hide(export(&script));
    let error = import(&plan, given.clone(), &terms())
        .expect_err("refused")
        .to_string();
    assert_eq!(
        error,
        "row 5: the history hides the input \"Token\": send the input along"
    );
    let mut with = terms();
    with.input = Some(object(json!({ "Token": "s3cret", "n": 1 })));
    let decision = import(&plan, given.clone(), &with).expect("imported");
    assert_eq!(unnamed(&hide(rows(&plan, &decision))), unnamed(&given));
    with.input = Some(object(json!({ "Token": "s3cret", "n": 2 })));
    let error = import(&plan, given.clone(), &with)
        .expect_err("refused")
        .to_string();
    assert_eq!(error, "row 5: state is not the input that comes with the history");
    with.input = Some(object(json!({ "n": 1 })));
    let error = import(&plan, given, &with).expect_err("refused").to_string();
    assert_eq!(
        error,
        "row 1: inputKeys are not those of the input that comes with the history"
    );
    // The state has what an activity gave; nobody else does.
    script
        .outcome("more", Ok(json!({ "out": { "password": "s3cret" } })))
        .expect("asked");
    with.input = Some(object(json!({ "Token": "s3cret", "n": 1 })));
    let error = import(&plan, hide(export(&script)), &with)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("the history hides a value of this row"), "{error}");
}

#[test]
fn input_that_a_run_would_not_start_with_is_refused() {
    let mut document = document(
        "strict",
        json!({ "n": { "type": "integer" } }),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    let script = Script::of_plans([plan(document.clone())]).start(json!({ "n": 1 }));
    document["state_schema"]["properties"]["n"]["type"] = "string".into();
    let error = import(&plan(document), export(&script), &terms())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("Initial state invalid"), "{error}");
    let mut terms = terms();
    terms.configurable = object(json!({ "unknown": 1 }));
    let error = import(script.plan(0), export(&script), &terms)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("configurable.unknown"), "{error}");
}
