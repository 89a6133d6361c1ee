//! Test hooks of conformance mode for supervisors and their workers.
//!
//! Each registers a workflow for the caller's tenant, such as a loop of a supervisor and a dispatch, runs it on the
//! engine like any other, and answers with what the log of the run says. Nothing here decides anything by itself.

use std::time::Duration;

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use wopr_app::{Mask, NewRun, NodeAnswer, SideRows, View, VisibleRun};
use wopr_core::{ContentHash, Object, Origin, RunStatus, Seq};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    openwop::event::RunEventDoc,
};

use super::super::{
    answer::{Answer, json_response},
    call::Call,
    problem::{Problem, no_run},
    render,
    workflows::offers,
};
use crate::auth::{self, Scope};

/// The workflow of each hook.
const FAN_OUT: &str = "conformance-sample-fanout";
const LOOP: &str = "conformance-sample-agentloop";
const ATTESTED: &str = "conformance-sample-attest";
const SUB: &str = "sub";
const SUPERVISOR: &str = "supervisor";
const DISPATCH: &str = "dispatch";
/// The worker of a loop's turns. A host without it records a failed handoff, and the loop goes on.
const WORKER: &str = "conformance-noop";
/// Most turns of a loop.
const MAX_TURNS: u32 = 64;
/// Most events that are looked at. The largest loop has fewer.
const MAX_EVENTS: usize = 2_000;
/// The longest that a request waits for its run.
const PATIENCE: Duration = Duration::from_secs(20);

/// The body of `POST /v1/host/sample/dispatch/fanout`.
#[derive(Debug)]
struct FanOut {
    workers: Vec<Value>,
    config: Object,
}

impl Decode for FanOut {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            workers: fields.required("nextWorkerIds")?,
            config: fields.or_default("config")?,
        })
    }
}

/// `POST /v1/host/sample/dispatch/fanout`
pub(in super::super) fn fan_out(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let FanOut { workers, mut config } = call.decode()?;
        config
            .entry("fanOutPolicy")
            .or_insert_with(|| Value::from("parallel"));
        let plan = json!([
            { "kind": "next-worker", "nextWorkerIds": workers },
            { "kind": "terminate", "reason": "goal-reached" },
        ]);
        let supervisor = json!({ "mockDispatchPlan": plan });
        let (_, view) = run(&call, definition(FAN_OUT, &supervisor, &config.into())).await?;
        let events = events(&call, &view).await?;
        let mut shown = json!({ "runId": view.key.run.as_str(), "status": view.run.status.as_str() });
        if let Some((failure, _)) = &view.run.error {
            shown["error"] = json!({ "code": failure.code, "message": failure.message });
        }
        if let Some(join) = of(&events, "core.dispatch.join").next() {
            for member in ["joinOutcome", "mergeOrder"] {
                shown[member] = join.payload[member].clone();
            }
        }
        let dispatched =
            of(&events, "node.completed").find(|event| event.node_id.as_deref() == Some(DISPATCH));
        if let Some(dispatched) = dispatched {
            shown["children"] = dispatched.payload["outputs"]["children"].clone();
        }
        json_response(StatusCode::OK, &shown)
    }
    .boxed()
}

/// The body of `POST /v1/host/sample/agentloop/run`.
#[derive(Debug)]
struct AgentLoop {
    turns: u32,
    max_turns: Option<u64>,
    suspend_at: Option<u32>,
    resumes: bool,
}

impl Decode for AgentLoop {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let request = Self {
            turns: fields.required("turns")?,
            max_turns: fields.optional("maxLoopIterations")?,
            suspend_at: fields.optional("suspendAtTurn")?,
            resumes: fields.or_default("resume")?,
        };
        if !(1..=MAX_TURNS).contains(&request.turns) {
            return Err(DecodeError::invalid("must be within 1 to 64").in_field("turns"));
        }
        if request
            .suspend_at
            .is_some_and(|turn| !(1..request.turns).contains(&turn))
        {
            return Err(DecodeError::invalid("must be a turn before the last").in_field("suspendAtTurn"));
        }
        // This host has no workspace that turns could write to.
        if fields.has("workspaceWriteAtTurn") {
            return Err(DecodeError::invalid("is not offered").in_field("workspaceWriteAtTurn"));
        }
        Ok(request)
    }
}

/// `POST /v1/host/sample/agentloop/run`
pub(in super::super) fn agent_loop(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let AgentLoop {
            turns,
            max_turns,
            suspend_at,
            resumes,
        } = call.decode()?;
        let decision = |turn: u32| match turn {
            turn if suspend_at == Some(turn) => json!({ "kind": "ask-user", "prompt": "Go on?" }),
            turn if turn == turns => json!({ "kind": "terminate", "reason": "goal-reached" }),
            _ => json!({ "kind": "next-worker", "nextWorkerIds": [WORKER] }),
        };
        let mut supervisor = json!({ "mockDispatchPlan": (1..=turns).map(decision).collect::<Value>() });
        if let Some(most) = max_turns {
            supervisor["maxLoopIterations"] = most.into();
        }
        let (key, mut view) = run(&call, definition(LOOP, &supervisor, &json!({}))).await?;
        let mut resumed = None;
        if resumes && view.run.status == RunStatus::WaitingInput {
            resumed = view.run.supervision().map(|known| known.n_decisions);
            let answer = json!({ "answers": { "answer": "yes" } });
            view = answered(&call, &key, &view, (DISPATCH, answer)).await?;
        }
        let events = events(&call, &view).await?;
        let decisions: Vec<_> = of(&events, "runOrchestrator.decided")
            .map(|event| event.payload.clone())
            .collect();
        let iterations: Vec<_> = decisions
            .iter()
            .map(|decision| decision["iteration"].clone())
            .collect();
        let mut shown = json!({
            "runId": view.key.run.as_str(),
            "status": view.run.status.as_str(),
            "decisions": decisions,
            "iterations": iterations,
        });
        if let Some(turn) = resumed {
            shown["resumedIteration"] = turn.into();
        }
        if let Some((failure, _)) = &view.run.error {
            shown["error"] = json!({ "code": failure.code, "message": failure.message });
        }
        json_response(StatusCode::OK, &shown)
    }
    .boxed()
}

/// The body of `POST /v1/host/sample/subrun/attest`.
#[derive(Debug)]
struct Attest {
    outputs: Object,
    attestation: Value,
    action: Option<String>,
}

impl Decode for Attest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            outputs: fields.required("childOutputs")?,
            attestation: fields.required("outputAttestation")?,
            action: fields.optional_text("approvalAction")?,
        })
    }
}

/// `POST /v1/host/sample/subrun/attest`
pub(in super::super) fn attest(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let Attest {
            outputs,
            attestation,
            action,
        } = call.decode()?;
        // A child of its own for each set of outputs: another request could register another one meanwhile.
        let of_outputs = ContentHash::of(Value::Object(outputs.clone()).to_string().as_bytes());
        let child = format!("{ATTESTED}-child-{}", &of_outputs.as_str()[..16]);
        let variables = outputs
            .iter()
            .map(|(name, value)| json!({ "name": name, "type": type_of(value), "defaultValue": value }));
        let mut worker = workflow(&child, &[node("work", "core.noop", &json!({}))], &[]);
        worker["variables"] = variables.collect();
        let mapping: Object = outputs
            .keys()
            .map(|name| (name.clone(), name.as_str().into()))
            .collect();
        let config = json!({
            "workflowId": child,
            "outputMapping": mapping,
            "outputAttestation": attestation,
            // A rejected merge ends neither the node nor the run.
            "onChildFailure": "absorb",
        });
        let parent = workflow(ATTESTED, &[node(SUB, "core.subWorkflow", &config)], &[]);
        let app = call.host.app();
        app.register_workflow(call.caller(), worker).await?;
        let (key, mut view) = run(&call, parent).await?;
        let is_asked = view.run.status == RunStatus::WaitingApproval;
        match action {
            Some(action) if is_asked => {
                let mut answer = json!({ "action": action });
                if action == "edit-accept" {
                    answer["editedArtifactData"] = Value::Object(outputs.clone());
                }
                view = answered(&call, &key, &view, (SUB, answer)).await?;
            }
            // Nobody decides, and the run ends: nothing is merged.
            None if is_asked => {
                let reason = Some("nobody approved".to_owned());
                app.cancel_run(call.caller(), &key, reason, SideRows::default())
                    .await?;
                view = app.view(&key).await?.ok_or_else(no_run)?;
            }
            Some(_) | None => {}
        }
        let events = events(&call, &view).await?;
        let mut chain = of(&events, "core.workflowChain.event");
        let harvested = chain.find(|event| event.payload["phase"] == "output.harvested");
        let mut completed = of(&events, "node.completed");
        let completed = completed.find(|event| event.node_id.as_deref() == Some(SUB));
        let mut shown = json!({
            "runId": view.key.run.as_str(),
            "status": view.run.status.as_str(),
            "merged": harvested.is_some(),
        });
        let attested = harvested.map(|event| &event.payload["attestation"]);
        let attested = attested.or_else(|| completed.map(|event| &event.payload["outputs"]["attestation"]));
        if let Some(attested) = attested.filter(|attested| attested.is_object()) {
            shown["attestation"] = attested.clone();
        }
        if let Some(harvested) = harvested {
            let variables = Mask::for_caller(&view, call.caller()).object(view.run.variables());
            let merged = variables
                .into_iter()
                .filter(|(name, _)| outputs.contains_key(name));
            shown["mergedValues"] = Value::Object(merged.collect());
            shown["harvestedEvent"] = json!({ "type": harvested.event_type, "payload": harvested.payload });
        }
        json_response(StatusCode::OK, &shown)
    }
    .boxed()
}

/// The type of a variable with this value.
const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Null | Value::Object(_) => "object",
    }
}

fn node(id: &str, type_id: &str, config: &Value) -> Value {
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    })
}

fn workflow(id: &str, nodes: &[Value], edges: &[Value]) -> Value {
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges,
        "triggers": [], "variables": [], "metadata": {}, "settings": {},
    })
}

/// A supervisor and a dispatch, each leading to the other.
fn definition(id: &str, supervisor: &Value, dispatch: &Value) -> Value {
    let edge = |id: &str, source: &str, target: &str| json!({ "id": id, "sourceNodeId": source, "targetNodeId": target });
    workflow(
        id,
        &[
            node(SUPERVISOR, "core.orchestrator.supervisor", supervisor),
            node(DISPATCH, "core.dispatch", dispatch),
        ],
        &[
            edge("on", SUPERVISOR, DISPATCH),
            edge("back", DISPATCH, SUPERVISOR),
        ],
    )
}

/// Registers and runs a workflow, until it ends or asks somebody.
async fn run(call: &Call, document: Value) -> Result<(VisibleRun, View), Problem> {
    let (app, caller) = (call.host.app(), call.caller());
    offers(call, &document)?;
    let registered = app.register_workflow(caller, document).await?;
    let run = app.new_run_id();
    let new = NewRun::new(run.clone(), Origin::new("openwop"));
    app.start_run_of(caller.permit_start()?, registered.plan, new)
        .await?;
    let key = app.find_run(caller, run.as_str(), Scope::RunsRead).await?;
    let view = auth::wait(app.wait_run(&key, |_| true, tokio::time::sleep(PATIENCE))).await?;
    Ok((key, view))
}

/// Answers what a node asks, and waits for what follows.
async fn answered(
    call: &Call,
    key: &VisibleRun,
    asked: &View,
    (node, value): (&str, Value),
) -> Result<View, Problem> {
    let answer = NodeAnswer {
        node: node.to_owned(),
        interrupt: None,
        value,
    };
    let app = call.host.app();
    app.answer_at_node(call.caller(), key, answer, SideRows::default())
        .await?;
    let head = asked.run.head;
    let is_fresh = |view: &View| view.run.head > head;
    Ok(auth::wait(app.wait_run(key, is_fresh, tokio::time::sleep(PATIENCE))).await?)
}

async fn events(call: &Call, view: &View) -> Result<Vec<RunEventDoc>, Problem> {
    let app = call.host.app();
    let page = app.events_of(view, Seq(0), MAX_EVENTS).await?;
    if page.is_empty() {
        return Err(no_run());
    }
    let mask = Mask::for_caller(view, call.caller());
    Ok(page
        .iter()
        .map(|recorded| render::owned(render::Log::of(view, &mask).event(recorded)))
        .collect())
}

fn of<'e>(events: &'e [RunEventDoc], kind: &str) -> impl Iterator<Item = &'e RunEventDoc> {
    events.iter().filter(move |event| event.event_type == kind)
}
