//! Renders a run as one document (section 8.3), without the parts that depend on the caller.

use serde_json::{Value, json};
use wopr_app::{Summary, View};
use wopr_core::{CONTENT_TRUST, ForkMode, Object, Plan, Run, RunKey, UNTRUSTED};
use wopr_wire::openwop::{
    control,
    run::{ForkedFrom, Owner, RunError, RunSnapshot},
};

use super::{EVENT_LOG_SCHEMA_VERSION, Mask, status, time};

/// Renders a run. The handler adds interrupts, which depend on the caller, and the statuses of children,
/// which are not in the run's log.
#[must_use]
pub fn snapshot(view: &View, mask: &Mask) -> RunSnapshot {
    let View {
        key,
        plan,
        run,
        summary,
        ..
    } = view;
    let mut snapshot = RunSnapshot::new(key.run.as_str(), summary.workflow.as_str(), status(run.status));
    snapshot.owner = Some(owner(key, summary));
    if let Some((parent, node)) = &summary.parent {
        snapshot.parent_run_id = Some(parent.to_string());
        snapshot.parent_node_id = Some(node.to_string());
    }
    if !run.status.is_terminal() {
        snapshot.current_node_id = run.current_node(plan).map(ToString::to_string);
    }
    snapshot.started_at = run.started_at.map(time);
    snapshot.completed_at = run.ended_at.map(time);
    snapshot.variables = mask.object(run.variables());
    snapshot.channels = mask.object(run.channels());
    snapshot.node_states = node_states(view);
    snapshot.agent = agent(run, plan);
    snapshot.untrusted = untrusted(run);
    snapshot.error = error(run, plan);
    snapshot.metrics = metrics(run);
    snapshot.forked_from = run.fork().map(|fork| ForkedFrom {
        source_run_id: fork.source.to_string(),
        mode: match fork.mode {
            ForkMode::Replay => control::ForkMode::Replay,
            ForkMode::Branch => control::ForkMode::Branch,
        },
        from_seq: fork.from.0,
        diverged_at_seq: run.forked.and_then(|forked| forked.diverged_at).map(|at| at.0),
    });
    snapshot.run_orchestrator = view.run.orchestrator(&view.plan);
    snapshot.event_log_schema_version = Some(EVENT_LOG_SCHEMA_VERSION);
    if let Some(started) = &run.started {
        snapshot.inputs = mask.inputs(&started.inputs).into_owned();
        snapshot.tags.clone_from(&started.tags);
        snapshot.metadata = mask.members(&started.metadata);
        snapshot.configurable = mask.inputs(&started.configurable).into_owned();
    }
    snapshot
}

/// What the models that the run asked took.
fn metrics(run: &Run) -> Option<Object> {
    let (usage, (provider, model)) = run.model_usage()?;
    let mut cost = json!({
        "tokens": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
        },
        "provider": provider,
        "model": model,
    });
    if let Some(usd) = usage.cost_usd {
        cost["usd"] = json!(usd);
    }
    Some(Object::from_iter([("openwopCost".to_owned(), cost)]))
}

/// The agent that the run is at.
fn agent(run: &Run, plan: &Plan) -> Option<Object> {
    match serde_json::to_value(run.agent(plan)?) {
        Ok(Value::Object(agent)) => Some(agent),
        Ok(_) | Err(_) => None,
    }
}

/// Names of inputs, variables and so on that hold content from outside, by kind.
fn untrusted(run: &Run) -> Object {
    match serde_json::to_value(run.untrusted()) {
        Ok(Value::Object(names)) => names,
        Ok(_) | Err(_) => Object::new(),
    }
}

fn owner(key: &RunKey, summary: &Summary) -> Owner {
    Owner {
        tenant: key.tenant.to_string(),
        workspace: None,
        principal: Some(summary.principal.to_string()),
    }
}

fn node_states(view: &View) -> Object {
    view.run
        .node_states(&view.plan)
        .map(|(node, state, executions)| {
            let state = json!({ "status": state, "executions": executions });
            (node.to_string(), state)
        })
        .collect()
}

fn error(run: &Run, plan: &Plan) -> Option<RunError> {
    let (failure, node) = run.error.as_ref()?;
    let mut details = super::event::failure_details(failure);
    if let Some(node) = node {
        details.insert("failedNodeId".to_owned(), Value::String(node.to_string()));
    }
    if run.is_untrusted_failure(plan, failure, node.as_ref()) {
        details.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
    }
    // The published schema requires a non-empty message.
    let message = if failure.message.is_empty() {
        failure.code.clone()
    } else {
        failure.message.clone()
    };
    Some(RunError {
        code: failure.code.clone(),
        message,
        details: Some(details).filter(|details| !details.is_empty()),
    })
}
