//! Tools that start, list, show, follow and cancel runs.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wopr_app::{Done, Error as AppError, Idempotency, Mask, NewRun, RunFilter, SideRows, View, VisibleRun};
use wopr_core::{Origin, Refusal, RunId, RunStatus, WorkflowId};
use wopr_wire::json::{DecodeError, Fields, Object};

use super::{
    Ask, Failure, Hints, Outcome, Output, Tool,
    answers::SHAPES,
    quoted_size,
    schema::{self, arguments, result},
};
use crate::{
    auth::{Scope, hash_hex},
    hex,
    openwop::{
        Problem,
        problem::no_run,
        render,
        runs::{self, Item},
        waiting::InterruptTokens,
    },
};

const DEFAULT_PAGE: u64 = 20;
const MAX_PAGE: u64 = 100;
/// Maximum size of a run in a result in bytes. A result holds it twice, as text and as structured content, and both
/// count.
const MAX_RUN: usize = 512 << 10;
/// What of a larger run is left out, in this order.
const OMITTED_FIRST: [&str; 8] = [
    "channels",
    "nodeStates",
    "configurable",
    "inputs",
    "variables",
    "childRuns",
    "activities",
    "interrupts",
];
/// Maximum size of an idempotency key in bytes.
const MAX_KEY: usize = 255;
/// The operation of a start, in records of requests.
const START: &str = "mcp wopr_start_run";

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "wopr_start_run",
        title: "Start a run",
        description: "Start a run of a registered workflow and wait until it ends or needs an answer. If that takes \
                      longer than the call may wait, the run goes on and is answered as it is: follow it with wopr_watch_run.",
        hints: Hints::Adds { repeats: false },
        input: || {
            arguments(
                json!({
                    "workflowId": {
                        "type": "string", "minLength": 1,
                        "description": "The id of the workflow; wopr_list_workflows lists them",
                    },
                    "inputs": { "type": "object", "description": "The inputs of the run, by name" },
                    "configurable": { "type": "object", "description": "Overrides for this run" },
                    "tags": { "type": "array", "items": { "type": "string" } },
                    "metadata": { "type": "object" },
                    "idempotencyKey": {
                        "type": "string", "minLength": 1, "maxLength": MAX_KEY,
                        "description": "Calls with the same key and arguments start one run only",
                    },
                    "waitMs": schema::wait_ms(),
                }),
                &["workflowId"],
            )
        },
        output: schema::run,
        call: start,
    },
    Tool {
        name: "wopr_list_runs",
        title: "List runs",
        description: "List runs, newest first, by status, workflow or parent run.",
        hints: Hints::Reads,
        input: || {
            arguments(
                json!({
                    "status": {
                        "type": "array", "items": { "type": "string", "enum": RunStatus::ALL.map(RunStatus::as_str) },
                        "description": "Only runs with one of these statuses",
                    },
                    "workflowId": { "type": "string", "minLength": 1 },
                    "parentRunId": { "type": "string", "minLength": 1 },
                    "limit": { "type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE },
                    "cursor": { "type": "string", "minLength": 1, "description": "The nextCursor of the page before" },
                }),
                &[],
            )
        },
        output: || {
            result(
                json!({
                    "runs": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "runId": { "type": "string" },
                                "workflowId": { "type": "string" },
                                "status": { "type": "string" },
                            },
                            "required": ["runId", "workflowId", "status"],
                        },
                    },
                    "nextCursor": { "type": "string" },
                }),
                &["runs"],
            )
        },
        call: list,
    },
    Tool {
        name: "wopr_get_run",
        title: "Show a run",
        description: "Show a run: its status, inputs, variables, node states, open questions and error. Does not wait.",
        hints: Hints::Reads,
        input: || arguments(json!({ "runId": schema::run_id() }), &["runId"]),
        output: schema::run,
        call: get,
    },
    Tool {
        name: "wopr_watch_run",
        title: "Wait for a run",
        description: "Wait until a run ends or needs an answer, and show it. With a progress token, the call notifies of \
                      every step meanwhile. A call that waited long enough answers the run as it is; call again to go on.",
        hints: Hints::Reads,
        input: || {
            arguments(
                json!({
                    "runId": schema::run_id(),
                    "after": {
                        "type": "integer", "minimum": 0,
                        "description": "The eventCount that is known already. A run that waits for an answer then counts only \
                                        once it has more events.",
                    },
                    "waitMs": schema::wait_ms(),
                }),
                &["runId"],
            )
        },
        output: schema::run,
        call: watch,
    },
    Tool {
        name: "wopr_cancel_run",
        title: "Cancel a run",
        description: "Cancel a run and everything below it. A run that has ended stays as it is.",
        hints: Hints::Ends,
        input: || {
            arguments(
                json!({
                    "runId": schema::run_id(),
                    "reason": { "type": "string", "description": "Why, for the run's log" },
                }),
                &["runId"],
            )
        },
        output: || {
            result(
                json!({
                    "runId": { "type": "string" },
                    "status": { "type": "string" },
                }),
                &["runId", "status"],
            )
        },
        call: cancel,
    },
];

fn start(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let permit = ask.caller.permit_start()?;
        let digest = digest(&arguments);
        let mut fields = Fields::of(Value::Object(arguments))?;
        let workflow = fields.required_text("workflowId")?;
        let wait = wait(&ask, &mut fields)?;
        let once = fields.optional::<String>("idempotencyKey")?;
        let inputs = fields.or_default("inputs")?;
        let mut configurable: Object = fields.or_default("configurable")?;
        let tags = fields.or_default("tags")?;
        let metadata = fields.or_default("metadata")?;
        fields.refuse_unknown()?;
        runs::check_overrides_of(&mut configurable, &ask.host, &ask.caller)?;
        let workflow = WorkflowId::parse(&workflow).map_err(|_| AppError::NoWorkflow)?;
        let side_rows = SideRows {
            idempotency: once.map(|key| once_by(&ask, &key, digest)).transpose()?,
            ..SideRows::default()
        };
        let new = NewRun {
            inputs,
            configurable,
            tags,
            metadata,
            side_rows,
            trace: ask.trace.clone(),
            ..NewRun::new(ask.app().new_run_id(), Origin::new("mcp"))
        };
        let run = match ask.app().start_run(permit, &workflow, new).await? {
            Done::Fresh(view) => VisibleRun::from(&view),
            Done::Replayed(record) => VisibleRun::of_record(&record).ok_or_else(no_run)?,
        };
        followed(&ask, &run, wait, |_| true).await
    }
    .boxed()
}

fn once_by(ask: &Ask, key: &str, digest: String) -> Result<Idempotency, Failure> {
    if key.is_empty() || key.len() > MAX_KEY {
        let rule = DecodeError::invalid("must have 1 to 255 bytes").in_field("idempotencyKey");
        return Err(rule.into());
    }
    Ok(Idempotency {
        key: ask.caller.idempotency_key(START.to_owned(), hash_hex(key)),
        digest,
        expires_at: ask.app().idempotency_expiry(),
        // A repeat shows the run as it is then.
        respond: Arc::new(|_| Vec::new()),
    })
}

/// A hash of what a call starts. How long it waits does not belong to that.
fn digest(arguments: &Object) -> String {
    let mut hasher = Sha256::new();
    for (name, value) in arguments {
        if name != "waitMs" && name != "idempotencyKey" {
            // Members are sorted and strings have one encoding, so equal arguments have equal bytes.
            hasher.update(name.as_bytes());
            hasher.update([0]);
            hasher.update(value.to_string().as_bytes());
            hasher.update([0]);
        }
    }
    hex(&hasher.finalize())
}

fn list(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let mut filter = RunFilter::default();
        for status in fields.or_default::<Vec<String>>("status")? {
            filter
                .statuses
                .push(RunStatus::parse(&status).ok_or_else(runs::unknown_status)?);
        }
        if let Some(workflow) = fields.optional::<String>("workflowId")? {
            let parsed = WorkflowId::parse(&workflow);
            filter.workflow =
                Some(parsed.map_err(|_| Problem::field("workflowId", "must be a workflow's id"))?);
        }
        if let Some(parent) = fields.optional::<String>("parentRunId")? {
            let parsed = RunId::parse(&parent);
            filter.parent = Some(parsed.map_err(|_| Problem::field("parentRunId", "must be a run's id"))?);
        }
        let limit = fields.optional("limit")?.unwrap_or(DEFAULT_PAGE);
        let after = match fields.optional::<String>("cursor")? {
            None => None,
            Some(cursor) => Some(
                runs::read_cursor(&cursor)
                    .ok_or_else(|| Problem::field("cursor", "must be a nextCursor of this list"))?,
            ),
        };
        fields.refuse_unknown()?;
        let limit = usize::try_from(limit)
            .ok()
            .filter(|_| (1..=MAX_PAGE).contains(&limit))
            .ok_or_else(|| Problem::field("limit", "must be a whole number from 1 to 100"))?;
        let document = listed(&ask, filter, after.as_ref(), limit).await?;
        let n_runs = document["runs"].as_array().map_or(0, Vec::len);
        Ok(Output {
            headline: format!("Listed {n_runs} run(s)."),
            document,
        })
    }
    .boxed()
}

/// A page of runs, newest first.
pub(in crate::mcp) async fn listed(
    ask: &Ask,
    filter: RunFilter,
    after: Option<&RunId>,
    limit: usize,
) -> Result<Value, AppError> {
    let page = ask.app().list_runs(&ask.caller, filter, after, limit).await?;
    let next = page.runs.last().filter(|_| page.has_more);
    let next = next.map(|(run, _, _)| runs::cursor(&run.run));
    let listed = page.runs.into_iter();
    let listed: Vec<_> = listed
        .map(|(run, summary, head)| Item::new(&run.run, summary, head.0))
        .collect();
    let mut document = json!({ "runs": listed });
    if let Some(next) = next {
        document["nextCursor"] = next.into();
    }
    Ok(document)
}

fn get(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let run = fields.required_text("runId")?;
        fields.refuse_unknown()?;
        let view = ask.app().read_run(&ask.caller, &run, Scope::RunsRead).await?;
        shown(&ask, &view).await
    }
    .boxed()
}

fn watch(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let run = fields.required_text("runId")?;
        let after: Option<u64> = fields.optional("after")?;
        let wait = wait(&ask, &mut fields)?;
        fields.refuse_unknown()?;
        let run = ask.app().find_run(&ask.caller, &run, Scope::RunsRead).await?;
        // Without this, a run that does not exist would be waited for.
        ask.app().head(&run).await?.ok_or_else(no_run)?;
        let is_fresh =
            |view: &View| view.run.status.is_terminal() || after.is_none_or(|after| view.run.head.0 > after);
        followed(&ask, &run, wait, is_fresh).await
    }
    .boxed()
}

fn cancel(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let run = fields.required_text("runId")?;
        let reason = fields.optional("reason")?;
        fields.refuse_unknown()?;
        let run = ask.app().find_run(&ask.caller, &run, Scope::RunsCancel).await?;
        let cancelling = ask
            .app()
            .cancel_run(&ask.caller, &run, reason, SideRows::default());
        let status = match cancelling.await {
            Ok(Done::Fresh(view)) => view.run.status,
            // No record was asked for, so none is replayed.
            Ok(Done::Replayed(_)) => return Err(Problem::internal().into()),
            Err(AppError::Refused(Refusal::Terminal(status))) => status,
            Err(error) => return Err(error.into()),
        };
        Ok(Output {
            headline: format!("Run {} is {}.", run.run, status.as_str()),
            document: json!({ "runId": run.run.as_str(), "status": status.as_str() }),
        })
    }
    .boxed()
}

/// Reads how long a call waits. It is cut to the longest that the host allows.
pub(super) fn wait(ask: &Ask, fields: &mut Fields) -> Result<Duration, DecodeError> {
    let most = ask.most_wait();
    let wait = fields.optional::<u64>("waitMs")?.map(Duration::from_millis);
    Ok(wait.map_or(most, |wait| wait.min(most)))
}

/// Waits for a run and shows it. A caller that may not read it learns only its status.
pub(super) async fn followed(
    ask: &Ask,
    run: &VisibleRun,
    wait: Duration,
    is_fresh: impl Fn(&View) -> bool,
) -> Outcome {
    let view = ask.settled(run, wait, is_fresh).await?;
    shown(ask, &view).await
}

async fn shown(ask: &Ask, view: &View) -> Outcome {
    let mut run = match ask.caller.may(Scope::RunsRead) {
        true => document(ask, view).await?,
        false => Object::new(),
    };
    let omitted = shortened(&mut run);
    let (id, status) = (&view.key.run, render::status_word(view.run.status));
    let shows = Shows {
        questions: run.contains_key("interrupts"),
        work: run.contains_key("activities") || omitted.contains(&"activities"),
    };
    let mut document = json!({
        "runId": id.as_str(),
        "workflowId": view.summary.workflow.as_str(),
        "status": status,
        "eventCount": view.run.head.0,
        "next": next(view.run.status, (id.as_str(), view.run.head.0), shows, |scope| ask.caller.may(scope)),
        "run": run,
    });
    if !omitted.is_empty() {
        document["omitted"] = json!(omitted);
    }
    Ok(Output {
        headline: format!("Run {id} is {status}."),
        document,
    })
}

/// A run as the caller sees it, without tokens that answer its questions: they would stay in a model's context.
pub(in crate::mcp) async fn document(ask: &Ask, view: &View) -> Result<Object, Failure> {
    let mask = Mask::for_caller(view, &ask.caller);
    let tokens = InterruptTokens::LeftOut;
    let mut snapshot = runs::document(&ask.host, &ask.caller, view, &mask, tokens).await?;
    // It is the first of the list.
    snapshot.interrupt = None;
    match serde_json::to_value(&snapshot) {
        Ok(Value::Object(document)) => Ok(document),
        Ok(_) | Err(_) => Err(Problem::internal().into()),
    }
}

/// Leaves members out until the run is small enough for a result.
pub(in crate::mcp) fn shortened(run: &mut Object) -> Vec<&'static str> {
    let size = |value: &Value| {
        let text = value.to_string();
        text.len() + quoted_size(&text)
    };
    let mut total: usize = run.values().map(size).sum();
    let mut omitted = Vec::new();
    for name in OMITTED_FIRST {
        if total <= MAX_RUN {
            break;
        }
        if let Some(value) = run.remove(name) {
            total -= size(&value);
            omitted.push(name);
            // Nobody could answer the run without the names of its questions.
            if name == "interrupts"
                && let Value::Array(mut questions) = value
            {
                questions.iter_mut().for_each(keep_name);
                run.insert(name.to_owned(), questions.into());
            }
        }
    }
    omitted
}

/// Leaves of a question what says where its answer goes.
fn keep_name(question: &mut Value) {
    if let Some(members) = question.as_object_mut() {
        members.retain(|member, _| matches!(member.as_str(), "nodeId" | "interruptId" | "kind"));
    }
}

/// What the result shows of a run.
#[derive(Debug, Clone, Copy)]
struct Shows {
    questions: bool,
    work: bool,
}

/// What the caller can do with a run now.
fn next(status: RunStatus, (id, head): (&str, u64), shows: Shows, may: impl Fn(Scope) -> bool) -> String {
    let is_asking = match status {
        RunStatus::Completed | RunStatus::Cancelled => return "The run has ended.".to_owned(),
        RunStatus::Failed if may(Scope::RunsRead) => {
            return format!(
                "The run has failed: see run.error, and the resource wopr://runs/{id}/events for its log."
            );
        }
        RunStatus::Failed => return "The run has failed. To see why takes the scope runs:read.".to_owned(),
        RunStatus::Paused => return "The run is paused until an operator resumes it.".to_owned(),
        // People do not answer the other external waits.
        RunStatus::WaitingExternal => shows.questions,
        RunStatus::WaitingApproval | RunStatus::WaitingInput => true,
        RunStatus::Pending | RunStatus::Running | RunStatus::Cancelling => false,
    };
    match (is_asking, may(Scope::ApprovalsRespond)) {
        (true, true) if shows.questions => {
            return format!(
                "The run waits for an answer to a question of run.interrupts: give it with wopr_answer. Its value, by the \
                 kind of the question: {SHAPES}."
            );
        }
        (true, true) if !may(Scope::RunsRead) => {
            return "The run waits for an answer. To see its question takes the scope runs:read; wopr_answer answers it."
                .to_owned();
        }
        (true, false) => {
            return "The run waits for an answer, which takes the scope approvals:respond.".to_owned();
        }
        (true, true) | (false, _) => {}
    }
    let wait = match may(Scope::RunsRead) {
        true => format!("wait for it with wopr_watch_run, runId {id}, after {head}."),
        false => "to follow it takes the scope runs:read.".to_owned(),
    };
    let workers = match shows.work && may(Scope::ActivitiesWork) {
        true => {
            " It waits for workers: wopr_lease_activities leases its work, wopr_complete_activity ends it."
        }
        false => "",
    };
    format!("The run goes on: {wait}{workers}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_runs_are_shortened_and_small_ones_are_whole() {
        let run = |size: usize| {
            let text = Value::String("x".repeat(size));
            Object::from_iter([
                ("runId".to_owned(), "run_1".into()),
                ("channels".to_owned(), json!({ "c": 1 })),
                ("inputs".to_owned(), json!({ "text": text })),
            ])
        };
        let mut small = run(1_000);
        assert!(shortened(&mut small).is_empty());
        assert_eq!(small, run(1_000));
        let mut large = run(MAX_RUN);
        assert_eq!(shortened(&mut large), ["channels", "inputs"]);
        assert_eq!(large.keys().collect::<Vec<_>>(), ["runId"]);
    }

    #[test]
    fn a_shortened_run_can_still_be_answered() {
        let question =
            json!({ "nodeId": "gate", "interruptId": "i1", "kind": "approval", "data": "x".repeat(MAX_RUN) });
        let mut run = Object::from_iter([("interrupts".to_owned(), json!([question]))]);
        assert_eq!(shortened(&mut run), ["interrupts"]);
        let named = json!([{ "nodeId": "gate", "interruptId": "i1", "kind": "approval" }]);
        assert_eq!(run["interrupts"], named);
    }

    #[test]
    fn a_caller_is_told_only_what_it_may_do() {
        let told = |status, questions, scopes: &[Scope]| {
            let shows = Shows {
                questions,
                work: true,
            };
            next(status, ("run_1", 3), shows, |scope| scopes.contains(&scope))
        };
        let (read, answer) = (Scope::RunsRead, Scope::ApprovalsRespond);
        for (said, tool, is_named) in [
            (
                told(RunStatus::WaitingApproval, true, &[read, answer]),
                "wopr_answer",
                true,
            ),
            (
                told(RunStatus::WaitingApproval, true, &[read]),
                "wopr_answer",
                false,
            ),
            (
                told(RunStatus::WaitingApproval, false, &[]),
                "wopr_watch_run",
                false,
            ),
            (
                told(RunStatus::WaitingExternal, false, &[read]),
                "wopr_watch_run",
                true,
            ),
            (
                told(RunStatus::Running, false, &[read]),
                "wopr_lease_activities",
                false,
            ),
            (
                told(RunStatus::Running, false, &[Scope::ActivitiesWork]),
                "wopr_lease_activities",
                true,
            ),
            (told(RunStatus::Running, false, &[]), "wopr_watch_run", false),
            (told(RunStatus::Failed, false, &[]), "wopr://", false),
        ] {
            assert_eq!(said.contains(tool), is_named, "{said}");
        }
    }

    #[test]
    fn a_start_is_the_same_however_long_it_waits() {
        let of = |wait: u64, name: &str| {
            let arguments = json!({ "workflowId": name, "waitMs": wait, "idempotencyKey": "k" });
            digest(arguments.as_object().unwrap())
        };
        assert_eq!(of(1, "a"), of(2, "a"));
        assert_ne!(of(1, "a"), of(1, "b"));
    }
}
