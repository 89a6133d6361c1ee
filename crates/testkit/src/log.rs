//! Prints events, one line each.

use serde_json::{Value, json};
use wopr_core::{
    ApprovalAction, DialectEvent, Event, Failure, KernelEvent, Object, Recorded, RunId, StepId, openwop,
};

/// Formats an event in one line: its position, its OpenWOP name and its distinguishing fields. `name` formats
/// run ids.
#[must_use]
pub fn line(recorded: &Recorded, name: impl Fn(&RunId) -> String) -> String {
    let (what, rest) = describe(&recorded.event, &name);
    let rest: Vec<_> = rest.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{} {what} {}", recorded.seq, rest.join(" "))
        .trim_end()
        .to_owned()
}

/// The name of an event's variant. Every variant has one.
#[must_use]
pub fn kind(event: &Event) -> &'static str {
    describe(event, &ToString::to_string).0
}

/// The number of names that [`kind`] returns.
pub const N_KINDS: usize = 62;

fn describe_openwop(event: &openwop::Event, name: &impl Fn(&RunId) -> String) -> (&'static str, Vec<String>) {
    use openwop::Event;
    match event {
        Event::VariableChanged {
            name,
            previous,
            next,
            appends,
            node: _,
        } => {
            let previous = previous.as_ref().map(|previous| format!("was {previous}"));
            (
                "variable.changed",
                vec![
                    format!("{name}{}={next}", if *appends { "+" } else { "" }),
                    previous.unwrap_or_default(),
                ],
            )
        }
        Event::ChannelWritten {
            channel,
            value,
            reducer,
            ..
        } => ("channel.written", vec![format!("{channel} {reducer} {value}")]),
        Event::Orchestration(event) => describe_orchestration(event, name),
        Event::PromptComposed { step, messages, .. } => (
            "prompt.composed",
            vec![step.key(), format!("{} messages", messages.len())],
        ),
        Event::ProviderUsage {
            step,
            provider,
            model,
            usage,
        } => (
            "provider.usage",
            vec![
                step.key(),
                format!("{provider}/{model}"),
                format!("{}+{}", usage.input_tokens, usage.output_tokens),
            ],
        ),
        Event::Envelope { step, event } => ("envelope", vec![step.key(), format!("{event:?}")]),
        Event::Agent(event) => describe_agent(event),
        Event::Conversation(event) => {
            let openwop::ConversationEvent { step, turn, change } = &**event;
            let said = format!(
                "{} {} {} {}",
                turn.index,
                turn.role.as_str(),
                turn.from,
                turn.content
            );
            let (name, rest) = match change {
                openwop::Change::Opened => ("conversation.opened", String::new()),
                openwop::Change::Exchanged => ("conversation.exchanged", String::new()),
                openwop::Change::Closed { outcome, reason } => (
                    "conversation.closed",
                    format!("{} {}", json_text(outcome), text("", reason)),
                ),
            };
            (name, vec![step.key(), said, rest.trim().to_owned()])
        }
    }
}

fn describe_orchestration(
    event: &openwop::Orchestration,
    name: &impl Fn(&RunId) -> String,
) -> (&'static str, Vec<String>) {
    use openwop::Orchestration;
    let step = at(event.step());
    match event {
        Orchestration::Decided {
            agent,
            decision,
            iteration,
            ..
        } => (
            "decided",
            vec![
                step,
                format!("{iteration} by {agent}"),
                decision.to_value().to_string(),
            ],
        ),
        Orchestration::ConfidenceEscalated {
            confidence,
            floor,
            worker,
            ..
        } => (
            "confidence.escalated",
            vec![step, format!("{confidence} < {floor}"), text("for ", worker)],
        ),
        Orchestration::HandoffBegan { worker, .. } => ("handoff.began", vec![step, worker.clone()]),
        Orchestration::HandoffSucceeded { worker, child, .. } => {
            ("handoff.succeeded", vec![step, worker.clone(), name(child)])
        }
        Orchestration::HandoffFailed { worker, error, .. } => {
            ("handoff.failed", vec![step, worker.clone(), failure(error)])
        }
        Orchestration::Harvested {
            child,
            keys,
            checksum,
            ..
        } => (
            "harvested",
            vec![step, name(child), keys.join(","), text("sha256 ", checksum)],
        ),
        Orchestration::FannedOut {
            n_children,
            max_concurrency,
            mode,
            ..
        } => (
            "fanned.out",
            vec![
                step,
                format!("{n_children} by {max_concurrency} {}", mode.as_str()),
            ],
        ),
        Orchestration::ContextSummarized {
            iteration,
            replaces,
            artifact,
            before,
            after,
            ..
        } => {
            let replaces: Vec<_> = replaces.iter().map(|seq| seq.0.to_string()).collect();
            let what = format!("before turn {iteration}: {} as {artifact}", replaces.join(","));
            (
                "context.summarized",
                vec![step, what, format!("{before} to {after}")],
            )
        }
        Orchestration::Joined {
            outcome,
            n_completed,
            n_failed,
            n_cancelled,
            order,
            ..
        } => {
            let order: Vec<_> = order.iter().map(name).collect();
            (
                "joined",
                vec![
                    step,
                    outcome.as_str().to_owned(),
                    format!("{n_completed}/{n_failed}/{n_cancelled}"),
                    order.join(","),
                ],
            )
        }
    }
}

fn describe_agent(event: &openwop::AgentEvent) -> (&'static str, Vec<String>) {
    use openwop::Act;
    let who = format!("{} {}", event.step.key(), event.agent);
    let value = |name: &str, value: &Option<Value>| {
        let value = value.as_ref();
        value.map_or_else(String::new, |value| format!("{name}{value}"))
    };
    let confidence = |confidence: &Option<f64>| text("confidence ", confidence);
    let (name, rest) = match &event.act {
        Act::Invoked(invocation) => ("agent.invoked", vec![text("", &invocation.model)]),
        Act::ReasoningDelta { delta, sequence, .. } => (
            "agent.reasoning.delta",
            vec![sequence.to_string(), format!("{delta:?}")],
        ),
        Act::Reasoned { reasoning, .. } => ("agent.reasoned", vec![format!("{reasoning:?}")]),
        Act::ToolCalled {
            call, tool, inputs, ..
        } => (
            "agent.tool.called",
            vec![call.clone(), tool.clone(), value("", inputs)],
        ),
        Act::ToolReturned {
            call,
            status,
            outcome,
            error,
            ..
        } => (
            "agent.tool.returned",
            vec![
                call.clone(),
                status.as_str().to_owned(),
                value("", outcome),
                text("", &error.as_ref().map(|error| error.code.as_str())),
            ],
        ),
        Act::HandedOff { to, reason, context } => (
            "agent.handed.off",
            vec![format!("to {to}"), text("", reason), value("", context)],
        ),
        Act::Decided {
            decision,
            confidence: sure,
            ..
        } => ("agent.decided", vec![decision.to_string(), confidence(sure)]),
        Act::Verified { target, verdict, .. } => {
            let target = match target {
                openwop::Target::Event(seq) => format!("event {seq}"),
                openwop::Target::Id(id) => id.clone(),
            };
            ("agent.verified", vec![target, verdict.as_str().to_owned()])
        }
        Act::Finished { outcome, .. } => ("agent.finished", vec![outcome.as_str().to_owned()]),
    };
    (name, std::iter::once(who).chain(rest).collect())
}

fn describe(event: &Event, name: &impl Fn(&RunId) -> String) -> (&'static str, Vec<String>) {
    let event = match event {
        Event::Kernel(event) => event,
        Event::Dialect(DialectEvent::Openwop(event)) => return describe_openwop(event, name),
    };
    match event {
        KernelEvent::RunStarted(started) => ("run.started", vec![object("", &started.inputs)]),
        KernelEvent::RunCompleted { outputs } => ("run.completed", vec![object("", outputs)]),
        KernelEvent::RunFailed { error, node } => {
            let node = node.as_ref().map(|node| format!("in {node}"));
            ("run.failed", vec![failure(error), node.unwrap_or_default()])
        }
        KernelEvent::RunCancelled { reason, by, parent } => (
            "run.cancelled",
            vec![
                text("", reason),
                text("by ", by),
                text("with ", &parent.as_ref().map(name)),
            ],
        ),
        KernelEvent::CancelRequested { reason, by, parent } => (
            "cancel.requested",
            vec![
                text("", reason),
                text("by ", by),
                text("with ", &parent.as_ref().map(name)),
            ],
        ),
        KernelEvent::RunPaused { reason, drain, cut } => {
            let cut = cut.iter().map(|cut| format!("cut {}", at(&cut.step)));
            let words = [drain.as_str().to_owned(), text("", reason)];
            ("run.paused", words.into_iter().chain(cut).collect())
        }
        KernelEvent::RunResumed { reason } => ("run.resumed", vec![text("", reason)]),
        KernelEvent::NodeStarted { step, attempt, .. } => {
            let attempt = (*attempt > 0).then(|| format!("attempt {attempt}"));
            ("node.started", vec![at(step), attempt.unwrap_or_default()])
        }
        KernelEvent::NodeCompleted {
            step,
            outputs,
            routing,
        } => (
            "node.completed",
            vec![at(step), object("", outputs), edges(routing)],
        ),
        KernelEvent::NodeFailed {
            step,
            error,
            attempts,
            routing,
        } => {
            let attempts = (*attempts > 1).then(|| format!("after {attempts} attempts"));
            (
                "node.failed",
                vec![
                    at(step),
                    failure(error),
                    attempts.unwrap_or_default(),
                    edges(routing),
                ],
            )
        }
        KernelEvent::NodeRetried {
            step,
            attempt,
            delay_ms,
            error,
        } => (
            "node.retried",
            vec![
                at(step),
                format!("attempt {attempt} in {delay_ms}"),
                failure(error),
            ],
        ),
        KernelEvent::NodeSkipped { node, reason } => ("node.skipped", vec![node.to_string(), reason.clone()]),
        KernelEvent::NodeCancelled { step, reason } => ("node.cancelled", vec![at(step), reason.clone()]),
        KernelEvent::NodeSuspended {
            step,
            interrupt,
            kind,
            child,
            details,
        } => (
            "node.suspended",
            vec![
                at(step),
                kind.as_str().to_owned(),
                interrupt.clone(),
                text("of ", &child.as_ref().map(name)),
                if details.is_empty() {
                    String::new()
                } else {
                    object("", details)
                },
            ],
        ),
        KernelEvent::NodeResumed {
            step,
            interrupt,
            value,
        } => (
            "node.resumed",
            vec![at(step), interrupt.clone(), json_text(value)],
        ),
        KernelEvent::NodeDispatched {
            step,
            child,
            workflow,
        } => (
            "node.dispatched",
            vec![at(step), name(child), workflow.to_string()],
        ),
        KernelEvent::ChildEnded {
            step,
            child,
            status,
            outputs,
            ..
        } => (
            "child.ended",
            vec![
                at(step),
                name(child),
                status.as_str().to_owned(),
                serde_json::to_string(outputs).unwrap_or_default(),
            ],
        ),
        KernelEvent::EffectScheduled {
            step,
            provider,
            activity,
            ..
        } => {
            let queue = activity
                .as_ref()
                .map(|activity| format!("for {}", activity.queue));
            (
                "effect.scheduled",
                vec![at(step), provider.clone(), queue.unwrap_or_default()],
            )
        }
        KernelEvent::EffectAccepted { step, handle, .. } => {
            ("effect.accepted", vec![at(step), handle.to_string()])
        }
        KernelEvent::EffectProgressed { step, details, .. } => {
            ("effect.progressed", vec![at(step), details.to_string()])
        }
        KernelEvent::EffectEnded {
            step, call, provider, ..
        } => (
            "effect.ended",
            vec![at(step), format!("call {call}"), provider.clone()],
        ),
        KernelEvent::InterruptRequested {
            step,
            kind,
            data: _,
            timeout_ms,
            number: _,
            remote,
        } => (
            "interrupt.requested",
            vec![
                at(step),
                kind.as_str().to_owned(),
                text("within ", timeout_ms),
                text("of its peer: ", remote),
            ],
        ),
        KernelEvent::InterruptResolved { step, by, action, .. } => (
            "interrupt.resolved",
            vec![
                at(step),
                text("", &action.map(ApprovalAction::as_str)),
                text("by ", by),
            ],
        ),
        KernelEvent::ApprovalRequested { step, .. } => ("approval.requested", vec![at(step)]),
        KernelEvent::ApprovalVoted {
            step, voter, action, ..
        } => (
            "approval.voted",
            vec![at(step), action.as_str().to_owned(), format!("by {voter}")],
        ),
        KernelEvent::ApprovalReceived {
            step,
            action,
            by,
            feedback,
            refine,
            edited,
            decided_at: _,
        } => (
            "approval.received",
            vec![
                at(step),
                action.as_str().to_owned(),
                text("by ", by),
                text("", feedback),
                json_text(refine),
                json_text(edited),
            ],
        ),
        KernelEvent::ClarificationRequested { step, .. } => ("clarification.requested", vec![at(step)]),
        KernelEvent::ClarificationResolved { step, answers, by } => (
            "clarification.resolved",
            vec![at(step), object("", answers), text("by ", by)],
        ),
        KernelEvent::ArtifactCreated {
            step,
            artifact,
            artifact_type,
            content,
            ..
        } => (
            "artifact.created",
            vec![
                at(step),
                artifact.clone(),
                artifact_type.clone(),
                content.to_string(),
            ],
        ),
        KernelEvent::MemoryWritten(written) => (
            "memory.written",
            vec![
                at(&written.step),
                format!("{} {} {:?}", written.scope, written.id, written.content),
                written.tags.join(","),
            ],
        ),
        KernelEvent::MemoryCompacted {
            step,
            scope,
            output,
            sources,
            n_bytes: _,
        } => (
            "memory.compacted",
            vec![at(step), format!("{scope} {output} for {}", sources.join(","))],
        ),
        KernelEvent::OutputChunk {
            step,
            index,
            chunk,
            is_last,
            number: _,
            end: _,
        } => (
            "output.chunk",
            vec![
                at(step),
                format!("{index} {chunk:?}{}", if *is_last { " last" } else { "" }),
            ],
        ),
        KernelEvent::CapBreached {
            kind,
            limit,
            observed,
            node,
        } => (
            "cap.breached",
            vec![
                format!("{} {observed} > {limit}", kind.as_str()),
                text("at ", node),
            ],
        ),
        KernelEvent::ReplayDiverged {
            source: _,
            at,
            kind,
            point,
        } => (
            "replay.diverged",
            vec![format!("{} at {at}", kind.as_str()), text("of ", point)],
        ),
        KernelEvent::RefusalDiverged {
            source: _,
            divergence,
        } => (
            "replay.diverged.refusal",
            vec![format!(
                "{} {} instead of {} at {}",
                divergence.step.key(),
                divergence.original.other().as_str(),
                divergence.original.as_str(),
                divergence.at
            )],
        ),
        KernelEvent::ForkResumed {
            depth,
            calls_again,
            from,
        } => (
            "fork.resumed",
            vec![
                format!("{depth} {}", from.as_str()),
                if *calls_again {
                    "calls again".to_owned()
                } else {
                    String::new()
                },
            ],
        ),
    }
}

fn at(step: &StepId) -> String {
    if step.ordinal == 0 {
        step.node.to_string()
    } else {
        format!("{}#{}", step.node, step.ordinal)
    }
}

fn failure(error: &Failure) -> String {
    format!("{}: {}", error.code, error.message)
}

fn text(before: &str, value: &Option<impl ToString>) -> String {
    value
        .as_ref()
        .map(|value| format!("{before}{}", value.to_string()))
        .unwrap_or_default()
}

fn json_text(value: &Option<Value>) -> String {
    value.as_ref().map(Value::to_string).unwrap_or_default()
}

fn object(before: &str, fields: &Object) -> String {
    if fields.is_empty() {
        String::new()
    } else {
        format!("{before}{}", json!(fields))
    }
}

fn edges(untaken: &[u32]) -> String {
    if untaken.is_empty() {
        String::new()
    } else {
        format!("untaken {untaken:?}")
    }
}
