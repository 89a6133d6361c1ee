use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use serde_json::{Map, Value, json};
use wopr_core::{
    Cap, ContentHash, CutAttempt, DialectEvent, Divergence, DrainPolicy, Event, Limits, MemoryWritten,
    NodeId, NodeTypes, Origin, Parent, Plan, PrincipalId, RunId, RunStarted, RunStatus, Seq, TenantId,
    Timestamp, WorkflowId, openwop,
};

use wopr_testkit::agent_events;

use super::*;

const RUN: &str = "run_0123456789abcdef";

fn key() -> RunKey {
    RunKey::new(TenantId::parse("acme").unwrap(), RunId::parse(RUN).unwrap())
}

fn step() -> StepId {
    StepId {
        node: NodeId::parse("gate").unwrap(),
        ordinal: 1,
    }
}

fn object(value: Value) -> Object {
    let Value::Object(object) = value else {
        panic!("an object");
    };
    object
}

fn failure() -> Failure {
    Failure::new("boom", "")
}

fn approval_data() -> Value {
    json!({
        "artifactId": "gate", "artifactType": "approval", "title": "Go on?",
        "actions": ["accept", "reject", "refine", "edit-accept", "ask"], "requiredApprovals": 2,
    })
}

fn resolved(kind: InterruptKind, value: Option<Value>, action: Option<ApprovalAction>) -> KernelEvent {
    KernelEvent::InterruptResolved {
        step: step(),
        kind,
        by: value.as_ref().map(|_| "alice".to_owned()),
        value,
        action,
        number: 0,
    }
}

/// One event of each kind, and several for kinds with different shapes.
fn child_ended(status: RunStatus, error: Option<Failure>) -> KernelEvent {
    KernelEvent::ChildEnded {
        step: step(),
        child: RunId::parse("run_child_0123456789").unwrap(),
        workflow: WorkflowId::parse("w").unwrap(),
        worker: None,
        is_handoff: true,
        status,
        outputs: Object::new(),
        report: Object::new(),
        error: error.map(Box::new),
    }
}

fn samples() -> Vec<Event> {
    let own = openwop_samples().into_iter().chain(agent_events(&step()));
    let own = own.map(DialectEvent::Openwop);
    let kernel = kernel_samples().into_iter().map(Event::Kernel);
    kernel.chain(own.map(Event::Dialect)).collect()
}

fn kernel_samples() -> Vec<KernelEvent> {
    let node = || NodeId::parse("gate").unwrap();
    let child = || RunId::parse("run_child_0123456789").unwrap();
    let workflow = || WorkflowId::parse("w").unwrap();
    let by = || Some(PrincipalId::parse("alice").unwrap());
    let reason = || Some("enough".to_owned());
    let started = RunStarted {
        dialect: "openwop".into(),
        workflow: workflow(),
        version: ContentHash::of(b"w"),
        tenant: key().tenant,
        principal: PrincipalId::parse("alice").unwrap(),
        origin: Origin::new("a2a"),
        inputs: object(json!({ "pin": "4711", "open": 1 })),
        configurable: Object::new(),
        tags: vec!["x".to_owned()],
        metadata: object(json!({ "k": 1 })),
        context: Some("ctx".to_owned()),
        trace: None,
        parent: Some(Parent {
            root: None,
            run: child(),
            node: node(),
            ordinal: 0,
            report: Vec::new(),
            ancestors: Vec::new(),
            unset: Vec::new(),
            memory: None,
        }),
        fork: None,
        limits: Limits {
            node_executions: 1,
            log_bytes: 64 << 20,
            run_duration_ms: None,
        },
    };
    vec![
        KernelEvent::RunStarted(Arc::new(started)),
        KernelEvent::RunCompleted {
            outputs: object(json!({ "pin": "4711", "open": 1 })),
        },
        KernelEvent::RunFailed {
            error: failure(),
            node: Some(node()),
        },
        KernelEvent::RunCancelled {
            reason: reason(),
            by: by(),
            parent: None,
        },
        KernelEvent::RunCancelled {
            reason: None,
            by: None,
            parent: Some(child()),
        },
        KernelEvent::CancelRequested {
            reason: reason(),
            by: by(),
            parent: None,
        },
        KernelEvent::RunPaused {
            reason: reason(),
            drain: DrainPolicy::Immediate,
            cut: vec![CutAttempt {
                step: step(),
                attempt: 1,
            }],
        },
        KernelEvent::RunResumed { reason: None },
        KernelEvent::NodeStarted {
            step: step(),
            type_id: "core.noop".to_owned(),
            attempt: 0,
        },
        KernelEvent::NodeCompleted {
            step: step(),
            outputs: object(json!({ "pin": "4711" })),
            routing: vec![1],
        },
        KernelEvent::NodeFailed {
            step: step(),
            error: failure(),
            attempts: 0,
            routing: Vec::new(),
        },
        KernelEvent::NodeRetried {
            step: step(),
            attempt: 1,
            delay_ms: 5,
            error: failure(),
        },
        KernelEvent::NodeSkipped {
            node: node(),
            reason: "untriggered".to_owned(),
        },
        KernelEvent::NodeCancelled {
            step: step(),
            reason: "run-cancelled".to_owned(),
        },
        KernelEvent::NodeSuspended {
            step: step(),
            interrupt: "gate:1".to_owned(),
            kind: InterruptKind::LowConfidence,
            child: None,
            details: object(json!({
                "reason": "low-confidence", "agentId": "acme.reader", "threshold": 0.7, "observed": 0.5,
            })),
        },
        KernelEvent::NodeSuspended {
            step: step(),
            interrupt: "ask:0".to_owned(),
            kind: InterruptKind::Clarification,
            child: Some(child()),
            details: Object::new(),
        },
        KernelEvent::MemoryWritten(Box::new(MemoryWritten {
            step: step(),
            scope: "acme/facts".to_owned(),
            id: "mem_1".to_owned(),
            content: "The sky is blue.".to_owned(),
            tags: vec!["sky".to_owned()],
            created_at: Timestamp::from_millis(1),
            expires_at: None,
            agent: Some("acme.reader".to_owned()),
        })),
        KernelEvent::MemoryCompacted {
            step: step(),
            scope: "acme/facts".to_owned(),
            output: "mem_1".to_owned(),
            sources: vec!["mem_2".to_owned()],
            n_bytes: 16,
        },
        KernelEvent::NodeResumed {
            step: step(),
            interrupt: "gate:1".to_owned(),
            value: Some(json!({ "action": "accept" })),
        },
        KernelEvent::NodeDispatched {
            step: step(),
            child: child(),
            workflow: workflow(),
        },
        child_ended(RunStatus::Completed, None),
        child_ended(RunStatus::Failed, Some(Failure::new("oops", "it broke"))),
        child_ended(RunStatus::Cancelled, None),
        // A child that is no handoff, as that of a tool.
        match child_ended(RunStatus::Failed, Some(Failure::new("oops", "it broke"))) {
            KernelEvent::ChildEnded {
                step,
                child,
                workflow,
                worker,
                status,
                outputs,
                report,
                error,
                ..
            } => KernelEvent::ChildEnded {
                step,
                child,
                workflow,
                worker,
                is_handoff: false,
                status,
                outputs,
                report,
                error,
            },
            other => other,
        },
        KernelEvent::InterruptRequested {
            step: step(),
            kind: InterruptKind::Approval,
            data: approval_data(),
            timeout_ms: Some(5),
            number: 0,
            remote: None,
        },
        KernelEvent::InterruptRequested {
            step: step(),
            kind: InterruptKind::ExternalEvent,
            data: json!({ "eventType": "paid", "correlation": {} }),
            timeout_ms: None,
            number: 0,
            remote: None,
        },
        resolved(
            InterruptKind::Approval,
            Some(json!({ "action": "accept" })),
            Some(ApprovalAction::Accept),
        ),
        resolved(InterruptKind::Approval, None, Some(ApprovalAction::Timeout)),
        resolved(InterruptKind::Clarification, None, None),
        resolved(InterruptKind::Custom, Some(Value::Null), None),
        KernelEvent::ApprovalRequested {
            step: step(),
            data: approval_data(),
        },
        KernelEvent::ApprovalVoted {
            step: step(),
            voter: "bob".to_owned(),
            action: ApprovalAction::Accept,
            feedback: None,
        },
        KernelEvent::ApprovalReceived {
            step: step(),
            action: ApprovalAction::Refine,
            by: Some("alice".to_owned()),
            feedback: Some("shorter".to_owned()),
            refine: Some(json!({ "scope": "whole" })),
            edited: None,
            decided_at: Timestamp::from_millis(1),
        },
        KernelEvent::ClarificationRequested {
            step: step(),
            questions: json!([{ "id": "q1", "question": "Which?" }]),
        },
        KernelEvent::ClarificationResolved {
            step: step(),
            answers: object(json!({ "q1": "blue" })),
            by: None,
        },
        KernelEvent::ArtifactCreated {
            step: step(),
            artifact: "gate-1".to_owned(),
            artifact_type: "letter".to_owned(),
            name: "Gate".to_owned(),
            content: json!("4711"),
        },
        KernelEvent::EffectEnded {
            step: step(),
            attempt: 0,
            call: 1,
            provider: "model".to_owned(),
            outcome: object(json!({ "text": "4711" })),
        },
        KernelEvent::CapBreached {
            kind: Cap::NodeExecutions,
            limit: 1,
            observed: 2,
            node: Some(node()),
        },
        KernelEvent::ReplayDiverged {
            source: child(),
            at: Seq(5),
            kind: Divergence::Missing,
            point: Some("gate:0".to_owned()),
        },
        KernelEvent::ForkResumed {
            depth: 1,
            calls_again: false,
            from: RunStatus::Running,
        },
    ]
}

fn openwop_samples() -> Vec<openwop::Event> {
    let node = || NodeId::parse("gate").unwrap();
    vec![
        openwop::Event::VariableChanged {
            name: "pin".to_owned(),
            previous: Some(json!("4711")),
            next: json!("4711"),
            appends: false,
            node: Some(node()),
        },
        openwop::Event::ChannelWritten {
            channel: "log".to_owned(),
            value: json!("x"),
            reducer: "append".to_owned(),
            ttl_ms: Some(1),
            max_size: Some(1),
            node: node(),
            written_at: Timestamp::from_millis(1),
        },
        openwop::Event::PromptComposed {
            step: step(),
            messages: vec![wopr_core::ModelMessage::User {
                content: "4711".to_owned(),
            }],
            hash: "abc".to_owned(),
            summarizing: None,
        },
        openwop::Event::ProviderUsage {
            step: step(),
            provider: "default".to_owned(),
            model: "m-1".to_owned(),
            usage: wopr_core::ModelUsage {
                input_tokens: 12,
                output_tokens: 3,
                cache_read_tokens: Some(8),
                cache_write_tokens: Some(2),
                cost_usd: Some(0.25),
                duration_ms: Some(1_500),
            },
        },
    ]
    .into_iter()
    .chain(envelope_samples())
    .chain(orchestration_samples())
    .collect()
}

/// The published schema of a decision has no inputs for each worker.
fn orchestration_samples() -> impl Iterator<Item = openwop::Event> {
    let has_inputs = |event: &openwop::Orchestration| {
        matches!(
            event,
            openwop::Orchestration::Decided {
                decision: openwop::Decision::NextWorker { inputs, .. },
                ..
            } if !inputs.is_empty()
        )
    };
    let orchestrations = wopr_testkit::orchestrations().into_iter();
    let orchestrations = orchestrations.filter(move |event| !has_inputs(event));
    orchestrations.map(openwop::Event::Orchestration)
}

fn envelope_samples() -> impl Iterator<Item = openwop::Event> {
    let names = || ("default".to_owned(), "m-1".to_owned());
    let (reason, error) = (openwop::EnvelopeFault::SchemaViolation, || "no title".to_owned());
    let (provider, model) = names();
    let refusal = EnvelopeEvent::Refusal {
        provider,
        model,
        text: Some("no".to_owned()),
    };
    let (provider, model) = names();
    let truncated = EnvelopeEvent::Truncated {
        provider,
        model,
        output_tokens: 50,
        is_retried: true,
    };
    let events = vec![
        EnvelopeEvent::RetryAttempted {
            attempt: 2,
            reason,
            error: error(),
        },
        EnvelopeEvent::RetryExhausted {
            total_attempts: 4,
            reason,
            error: error(),
        },
        refusal,
        truncated,
        EnvelopeEvent::NlToFormat {
            envelope_type: "Answer".to_owned(),
        },
        EnvelopeEvent::FenceStripped,
        EnvelopeEvent::BracesFound { offset: 7 },
    ];
    events
        .into_iter()
        .map(|event| openwop::Event::Envelope { step: step(), event })
}

fn rendered(event: impl Into<Event>, mask: &Mask) -> RunEventDoc {
    let recorded = Recorded {
        given: None,
        is_untrusted: false,
        seq: Seq(7),
        at: Timestamp::from_millis(0),
        cause: Some(Seq(3)),
        event: event.into(),
    };
    owned(Log::new(&key(), mask).event(&recorded))
}

fn mask() -> Mask {
    let document = json!({
        "id": "w", "name": "w", "version": "1", "edges": [], "triggers": [], "metadata": {}, "settings": {},
        "nodes": [{ "id": "n", "typeId": "core.noop", "name": "n", "position": { "x": 0, "y": 0 },
            "config": {}, "inputs": {} }],
        "variables": [{ "name": "pin", "type": "string", "sensitive": true },
            { "name": "open", "type": "number" }],
    });
    Mask::of(&Arc::new(Plan::admit(document, NodeTypes::default()).unwrap()))
}

#[test]
fn envelope_names_event_cause_and_node() {
    let doc = rendered(samples().swap_remove(9), &Mask::default());
    assert_eq!(doc.event_id, format!("{RUN}.7"));
    assert_eq!(doc.causation_id.as_deref(), Some(format!("{RUN}.3").as_str()));
    assert_eq!(doc.node_id.as_deref(), Some("gate"));
    assert_eq!(
        (doc.schema_version, doc.engine_version.as_deref()),
        (1, Some("1"))
    );
    assert_eq!(
        doc.payload,
        json!({ "nodeId": "gate", "outputs": { "pin": "4711" } })
    );
}

#[test]
fn payloads_hide_sensitive_variables() {
    let mask = mask();
    for event in samples() {
        // The event of an artifact does not contain its content.
        let doc = rendered(event, &mask);
        assert!(!doc.payload.to_string().contains("4711"), "{}", doc.payload);
    }
    let started = rendered(samples().swap_remove(0), &mask).payload;
    assert_eq!(started["inputs"], json!({ "pin": "[REDACTED]", "open": 1 }));
}

/// A workflow with sensitive outputs on the node `gate`, sensitive channels, or both.
fn marked(outputs: &Value, channels: &Value) -> Mask {
    let document = json!({
        "id": "w", "name": "w", "version": "1", "edges": [], "triggers": [], "metadata": {}, "settings": {},
        "nodes": [{ "id": "gate", "typeId": "core.noop", "name": "n", "outputSensitivity": outputs }],
        "variables": [], "channels": channels,
    });
    Mask::of(&Arc::new(Plan::admit(document, NodeTypes::default()).unwrap()))
}

#[test]
fn payloads_hide_sensitive_channels() {
    let event = || openwop::Event::ChannelWritten {
        channel: "pins".to_owned(),
        value: json!("4711"),
        reducer: "append".to_owned(),
        ttl_ms: None,
        max_size: None,
        node: NodeId::parse("gate").unwrap(),
        written_at: Timestamp::from_millis(1),
    };
    let shown = |is_sensitive: bool| {
        let mask = marked(
            &json!({}),
            &json!({ "pins": { "reducer": "append", "sensitive": is_sensitive } }),
        );
        let bag = mask.object(&object(json!({ "pins": ["4711"], "open": 1 })));
        (
            rendered(Event::Dialect(DialectEvent::Openwop(event())), &mask).payload["value"].clone(),
            Value::Object(bag),
        )
    };
    assert_eq!(
        shown(false),
        (json!("4711"), json!({ "pins": ["4711"], "open": 1 }))
    );
    assert_eq!(
        shown(true),
        (json!("[REDACTED]"), json!({ "pins": "[REDACTED]", "open": 1 }))
    );
}

#[test]
fn views_hide_sensitive_outputs() {
    let mask = marked(&json!({ "pin": true, "text": true, "open": false }), &json!({}));
    let outputs = || object(json!({ "pin": "4711", "text": "4711", "open": 1 }));
    let kept = json!({ "pin": "[REDACTED]", "text": "[REDACTED]", "open": 1 });
    let completed = KernelEvent::NodeCompleted {
        step: step(),
        outputs: outputs(),
        routing: Vec::new(),
    };
    assert_eq!(rendered(completed, &mask).payload["outputs"], kept);
    let ended = |outputs| rendered(KernelEvent::RunCompleted { outputs }, &mask).payload["outputs"].clone();
    assert_eq!(ended(outputs()), kept);
    assert_eq!(
        ended(object(json!({ "gate": outputs() }))),
        json!({ "gate": kept })
    );
    let bag = mask.object(&object(json!({ "gate": outputs(), "other": outputs() })));
    assert_eq!(Value::Object(bag), json!({ "gate": kept, "other": outputs() }));
    let chunk = KernelEvent::OutputChunk {
        step: step(),
        index: 2,
        chunk: "4711".to_owned(),
        is_last: true,
        number: 0,
        end: None,
    };
    let chunk = rendered(chunk, &mask).payload;
    assert_eq!(
        (&chunk["chunk"], &chunk["index"]),
        (&json!("[REDACTED]"), &json!(2))
    );
}

#[test]
fn payloads_hide_answers_that_become_sensitive_outputs() {
    let ports = [
        "answers",
        "event",
        "resumeValue",
        "feedback",
        "refineFeedback",
        "editedArtifactData",
    ];
    let marks: Object = ports
        .map(|port| (port.to_owned(), json!(true)))
        .into_iter()
        .collect();
    let mask = marked(&Value::Object(marks), &json!({}));
    let words = || Some("4711".to_owned());
    let answers = || json!({ "q": "4711" });
    for event in [
        resolved(
            InterruptKind::Clarification,
            Some(json!({ "answers": answers() })),
            None,
        ),
        resolved(InterruptKind::ExternalEvent, Some(json!("4711")), None),
        KernelEvent::NodeResumed {
            step: step(),
            interrupt: "gate:1".to_owned(),
            value: Some(answers()),
        },
        KernelEvent::ApprovalVoted {
            step: step(),
            voter: "alice".to_owned(),
            action: ApprovalAction::Reject,
            feedback: words(),
        },
        KernelEvent::ApprovalReceived {
            step: step(),
            action: ApprovalAction::EditAccept,
            by: None,
            feedback: words(),
            refine: Some(json!({ "scope": "whole", "text": "4711" })),
            edited: Some(json!("4711")),
            decided_at: Timestamp::from_millis(1),
        },
        KernelEvent::ClarificationResolved {
            step: step(),
            answers: object(answers()),
            by: None,
        },
    ] {
        let shown = rendered(event.clone(), &Mask::default()).payload.to_string();
        assert!(shown.contains("4711"), "{shown}");
        let shown = rendered(event, &mask).payload.to_string();
        assert!(!shown.contains("4711"), "{shown}");
    }
    let only_words = marked(&json!({ "feedback": true }), &json!({}));
    let value = json!({ "action": "reject", "feedback": "4711", "open": 1 });
    let event = resolved(InterruptKind::Approval, Some(value), Some(ApprovalAction::Reject));
    let shown = rendered(event, &only_words).payload;
    assert_eq!(
        shown["resumeValue"],
        json!({ "action": "reject", "feedback": "[REDACTED]", "open": 1 })
    );
}

#[test]
fn answer_has_action_and_decision() {
    for (value, action, wanted) in [
        (
            Some(json!({ "action": "accept" })),
            ApprovalAction::Accept,
            json!({ "action": "accept", "decision": "granted" }),
        ),
        (
            Some(json!({ "action": "edit-accept", "editedArtifactData": 1 })),
            ApprovalAction::EditAccept,
            json!({ "action": "edit-accept", "decision": "granted", "editedArtifactData": 1 }),
        ),
        (
            Some(json!({ "action": "reject" })),
            ApprovalAction::Reject,
            json!({ "action": "reject", "decision": "rejected" }),
        ),
        (
            Some(json!({ "decision": "rejected", "feedback": "no" })),
            ApprovalAction::Refine,
            json!({ "action": "refine", "refineFeedback": { "scope": "whole", "text": "no" } }),
        ),
        (
            None,
            ApprovalAction::Timeout,
            json!({ "action": "timeout", "decision": "rejected", "outcome": "rejected", "reason": "timeout" }),
        ),
    ] {
        let event = resolved(InterruptKind::Approval, value.clone(), Some(action));
        let mut wanted = object(wanted);
        let more = json!({ "nodeId": "gate", "interruptId": "gate:1", "kind": "approval" });
        wanted.extend(object(more));
        if let Some(value) = value {
            wanted.insert("resumeValue".to_owned(), value);
            wanted.insert("resolvedBy".to_owned(), json!("alice"));
        }
        assert_eq!(rendered(event, &Mask::default()).payload, Value::Object(wanted));
    }
}

/// A published schema, if the fixtures are available.
fn published(name: &str) -> Option<Value> {
    let folder = "../../../shared/fixtures/openwop/schemas/v1";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{folder}/{name}.schema.json"));
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// Inlines referenced documents, so that the validator fetches nothing.
fn inline(schema: &mut Value, within: &str, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            members.remove("$id");
            if let Some(Value::String(target)) = members.get_mut("$ref") {
                let path = target.trim_start_matches("https://openwop.dev/spec/v1/");
                if let Some(name) = path.strip_suffix(".schema.json") {
                    found.insert(name.to_owned());
                    *target = format!("#/$defs/{name}");
                } else if let Some(rest) = target.strip_prefix("#/$defs/") {
                    *target = format!("#{within}/$defs/{rest}");
                }
            }
            for member in members.values_mut() {
                inline(member, within, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                inline(item, within, found);
            }
        }
        _ => {}
    }
}

#[test]
fn payloads_match_published_schemas() {
    let Some(mut schemas) = published("run-event-payloads") else {
        println!("skipped: the published schemas are not beside the project");
        return;
    };
    let mut wanted = BTreeSet::new();
    inline(&mut schemas, "", &mut wanted);
    for name in wanted {
        let mut schema = published(&name).unwrap_or_else(|| json!({}));
        inline(&mut schema, &format!("/$defs/{name}"), &mut BTreeSet::new());
        schemas["$defs"][name] = schema;
    }
    let index = schemas["$defs"]["_typeIndex"]["properties"].clone();
    let mut types = BTreeSet::new();
    for event in samples() {
        let doc = rendered(event, &Mask::default());
        types.insert(doc.event_type.clone());
        let Some(reference) = index.get(&doc.event_type) else {
            let later = ["core.dispatch.fanOut", "core.dispatch.join", "context.summarized"];
            let is_later = later.contains(&doc.event_type.as_str());
            assert!(
                is_later || doc.event_type.starts_with("vendor.wopr."),
                "{}",
                doc.event_type
            );
            continue;
        };
        let mut schema = Map::new();
        schema.insert("$ref".to_owned(), reference["$ref"].clone());
        schema.insert("$defs".to_owned(), schemas["$defs"].clone());
        let validator = jsonschema::validator_for(&Value::Object(schema)).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&doc.payload)
            .map(|error| error.to_string())
            .collect();
        assert!(
            errors.is_empty(),
            "{}: {errors:?}\n{:#}",
            doc.event_type,
            doc.payload
        );
    }
    assert_eq!(types.len(), 59, "there is a sample of every event");
}

#[test]
fn errors_of_tools_are_hidden_with_the_outputs_of_their_agent() {
    let returned = || openwop::AgentEvent {
        step: step(),
        attempt: 0,
        agent: "lead".to_owned(),
        act: openwop::Act::ToolReturned {
            call: "call-1".to_owned(),
            tool: "look".to_owned(),
            status: openwop::CallStatus::Error,
            outcome: None,
            error: Some(openwop::CallError {
                code: "refused".to_owned(),
                message: "4711".to_owned(),
                details: Some(json!({ "pin": "4711" })),
            }),
            duration_ms: None,
        },
    };
    for is_marked in [true, false] {
        let mask = marked(&json!({ "text": is_marked }), &json!({}));
        let event = Event::Dialect(DialectEvent::Openwop(openwop::Event::Agent(Box::new(returned()))));
        let shown = rendered(event, &mask).payload["error"].clone();
        assert_eq!(shown["code"], "refused");
        assert_eq!(shown.to_string().contains("4711"), !is_marked, "{shown}");
    }
}
