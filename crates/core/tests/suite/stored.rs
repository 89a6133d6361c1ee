//! The stored form of events and snapshots.
//!
//! `corpus/v1` contains one body of each variant. Before the first release tag, update it with
//! `UPDATE_EXPECT=1`. After that, a failing test means that existing logs can no longer be read: give the
//! format a new version instead of changing the file.

use std::{collections::HashSet, sync::Arc};

use expect_test::expect_file;
use serde_json::{Value, json};
use wopr_core::{
    Activity, AnswerEnd, ApprovalAction, Authority, Cap, ContentHash, CutAttempt, DialectEvent, DialectId,
    Divergence, DrainPolicy, Event, Failure, Fork, ForkMode, Given, GivenAnswer, GivenEnd, GivenOutcome,
    GivenResult, InterruptKind, KernelEvent, Limits, MemoryWritten, ModelMessage, ModelStop, ModelUsage,
    NodeId, Object, Origin, Parent, PrincipalId, Recorded, Recorder, RefusalDivergence, ReplyKind, Run,
    RunId, RunMessage, RunStarted, RunStatus, Seq, StepId, TenantId, Timer, Timestamp, ToolCall, WorkflowId,
    format, openwop,
};
use wopr_testkit::{N_KINDS, Script, Workflow, agent_events, kind, orchestrations};

fn object(value: Value) -> Object {
    value.as_object().cloned().expect("object")
}

fn node() -> NodeId {
    NodeId::parse("gate: one").expect("id")
}

fn step() -> StepId {
    StepId {
        node: node(),
        ordinal: 3,
    }
}

fn run() -> RunId {
    RunId::parse("run_0123456789abcdef").expect("id")
}

fn ada() -> PrincipalId {
    PrincipalId::parse("ada@example").expect("principal")
}

fn failure() -> Failure {
    Failure {
        retryable: true,
        reason: None,
        ..Failure::new("busy", "try later")
    }
}

/// The file of an event's variant. A new variant needs a sample below and a file.
fn name(event: &Event) -> String {
    kind(event).replace('.', "_")
}

/// Every variant, with all fields set.
fn samples() -> Vec<Event> {
    let own = openwop_samples().into_iter().chain(agent_events(&step()));
    let own = own.map(DialectEvent::Openwop);
    let kernel = kernel_samples()
        .into_iter()
        .chain(effect_samples())
        .map(Event::Kernel);
    kernel.chain(own.map(Event::Dialect)).collect()
}

fn effect_samples() -> Vec<KernelEvent> {
    vec![
        KernelEvent::EffectScheduled {
            step: step(),
            deadline: Some(Timestamp::from_millis(9_000)),
            max_questions: Some(16),
            attempt: 2,
            call: 1,
            provider: "core.activity".to_owned(),
            activity: Some(Box::new(Activity {
                queue: "printers".to_owned(),
                input: json!({ "page": 1 }),
                timeout_ms: Some(60_000),
                heartbeat_ms: Some(5_000),
            })),
        },
        KernelEvent::EffectAccepted {
            step: step(),
            attempt: 2,
            handle: json!({ "task": "t1" }),
        },
        KernelEvent::EffectProgressed {
            step: step(),
            attempt: 2,
            details: json!({ "percent": 50 }),
        },
        KernelEvent::EffectEnded {
            step: step(),
            attempt: 2,
            call: 1,
            provider: "model".to_owned(),
            outcome: object(json!({ "text": "hello" })),
        },
    ]
}

fn kernel_samples() -> Vec<KernelEvent> {
    let workflow = WorkflowId::parse("campaign-brief").expect("id");
    let reason = || Some("because".to_owned());
    vec![
        KernelEvent::RunStarted(Arc::new(RunStarted {
            dialect: "openwop".into(),
            workflow: workflow.clone(),
            version: ContentHash::of(b"definition"),
            tenant: TenantId::parse("default").expect("tenant"),
            principal: ada(),
            origin: Origin::new("a2a"),
            inputs: object(json!({ "prompt": "hello \u{1F600}", "n": 1.5, "big": u64::MAX })),
            configurable: object(json!({ "recursionLimit": 5 })),
            tags: vec!["a".to_owned()],
            metadata: object(json!({ "k": null })),
            context: Some("context".to_owned()),
            trace: None,
            parent: Some(Parent {
                root: None,
                run: run(),
                node: node(),
                ordinal: 1,
                report: vec!["result".to_owned()],
                ancestors: vec![workflow.clone()],
                unset: vec!["gone".to_owned()],
                memory: Some("run:parent".to_owned()),
            }),
            fork: Some(Fork {
                source: run(),
                mode: ForkMode::Replay,
                from: Seq(4),
                since: Seq(3),
                until: Seq(9),
                depth: 1,
                recorders: vec![Recorder {
                    run: run(),
                    until: Seq(2),
                }],
                refusal: Some(Box::new(RefusalDivergence {
                    at: Seq(6),
                    step: step(),
                    original: ReplyKind::Refusal,
                    reason: None,
                })),
            }),
            limits: Limits {
                node_executions: 1_000,
                log_bytes: 64 << 20,
                run_duration_ms: Some(60_000),
            },
        })),
        KernelEvent::RunCompleted {
            outputs: object(json!({ "text": "done" })),
        },
        KernelEvent::RunFailed {
            error: failure(),
            node: Some(node()),
        },
        KernelEvent::RunCancelled {
            reason: reason(),
            by: Some(ada()),
            parent: Some(run()),
        },
        KernelEvent::CancelRequested {
            reason: reason(),
            by: Some(ada()),
            parent: Some(run()),
        },
        KernelEvent::RunPaused {
            reason: reason(),
            drain: DrainPolicy::Immediate,
            cut: vec![CutAttempt {
                step: step(),
                attempt: 1,
            }],
        },
        KernelEvent::RunResumed { reason: reason() },
        KernelEvent::NodeStarted {
            step: step(),
            type_id: "core.noop".to_owned(),
            attempt: 2,
        },
        KernelEvent::NodeCompleted {
            step: step(),
            outputs: object(json!({ "x": [1] })),
            routing: vec![0, 7],
        },
        KernelEvent::NodeFailed {
            step: step(),
            error: failure(),
            attempts: 4,
            routing: vec![1],
        },
        KernelEvent::NodeRetried {
            step: step(),
            attempt: 1,
            delay_ms: 2_000,
            error: failure(),
        },
        KernelEvent::NodeSkipped {
            node: node(),
            reason: "trigger-not-met".to_owned(),
        },
        KernelEvent::NodeCancelled {
            step: step(),
            reason: "run-cancelled".to_owned(),
        },
        KernelEvent::NodeSuspended {
            step: step(),
            interrupt: "gate:0".to_owned(),
            kind: InterruptKind::ExternalEvent,
            child: Some(run()),
            details: object(json!({ "reason": "low-confidence" })),
        },
        KernelEvent::MemoryWritten(Box::new(MemoryWritten {
            step: step(),
            scope: "acme/facts".to_owned(),
            id: "mem_1".to_owned(),
            content: "The sky is blue.".to_owned(),
            tags: vec!["sky".to_owned()],
            created_at: Timestamp::from_millis(1_700_000_000_001),
            expires_at: Some(Timestamp::from_millis(1_700_000_000_002)),
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
            interrupt: "gate:0".to_owned(),
            value: Some(json!({ "a": 1 })),
        },
        KernelEvent::NodeDispatched {
            step: step(),
            child: run(),
            workflow: workflow.clone(),
        },
        KernelEvent::ChildEnded {
            step: step(),
            child: run(),
            workflow,
            worker: Some("agent:acme/review".to_owned()),
            is_handoff: true,
            status: RunStatus::Failed,
            outputs: Object::new(),
            report: object(json!({ "n": 1 })),
            error: Some(Box::new(failure())),
        },
        KernelEvent::InterruptRequested {
            step: step(),
            kind: InterruptKind::Clarification,
            data: json!({ "questions": [] }),
            timeout_ms: Some(5_000),
            number: 2,
            remote: Some("message-1".to_owned()),
        },
        KernelEvent::InterruptResolved {
            step: step(),
            kind: InterruptKind::Approval,
            value: Some(json!(true)),
            by: Some("ada".to_owned()),
            action: Some(ApprovalAction::EditAccept),
            number: 2,
        },
        KernelEvent::ApprovalRequested {
            step: step(),
            data: json!({ "title": "t" }),
        },
        KernelEvent::ApprovalVoted {
            step: step(),
            voter: "ada".to_owned(),
            action: ApprovalAction::Accept,
            feedback: reason(),
        },
        KernelEvent::ApprovalReceived {
            step: step(),
            action: ApprovalAction::Timeout,
            by: Some("ada".to_owned()),
            feedback: reason(),
            refine: Some(json!({ "scope": "whole" })),
            edited: Some(json!({ "t": 1 })),
            decided_at: Timestamp::from_millis(1_700_000_000_000),
        },
        KernelEvent::ClarificationRequested {
            step: step(),
            questions: json!([{ "id": "q", "question": "?" }]),
        },
        KernelEvent::ClarificationResolved {
            step: step(),
            answers: object(json!({ "q": "blue" })),
            by: Some("ada".to_owned()),
        },
        KernelEvent::ArtifactCreated {
            step: step(),
            artifact: "gate-3".to_owned(),
            artifact_type: "doc".to_owned(),
            name: "Brief".to_owned(),
            content: json!("text"),
        },
        KernelEvent::OutputChunk {
            step: step(),
            index: 2,
            chunk: "piece".to_owned(),
            is_last: true,
            number: 1,
            end: Some(Box::new(AnswerEnd {
                model: "m".to_owned(),
                stop: ModelStop::End,
                usage: ModelUsage::default(),
            })),
        },
        KernelEvent::CapBreached {
            kind: Cap::RunDuration,
            limit: 1_000,
            observed: 1_001,
            node: Some(node()),
        },
        KernelEvent::ReplayDiverged {
            source: run(),
            at: Seq(5),
            kind: Divergence::Output,
            point: Some("gate:0".to_owned()),
        },
        KernelEvent::RefusalDiverged {
            source: run(),
            divergence: RefusalDivergence {
                at: Seq(6),
                step: step(),
                original: ReplyKind::Valid,
                reason: Some("not that".to_owned()),
            },
        },
        KernelEvent::ForkResumed {
            depth: 2,
            calls_again: true,
            from: RunStatus::Running,
        },
    ]
}

fn openwop_samples() -> Vec<openwop::Event> {
    let mut samples = vec![
        openwop::Event::VariableChanged {
            name: "x".to_owned(),
            previous: Some(json!(1)),
            next: json!(null),
            appends: false,
            node: Some(node()),
        },
        openwop::Event::ChannelWritten {
            channel: "events".to_owned(),
            value: json!("a"),
            reducer: "append".to_owned(),
            ttl_ms: Some(200),
            max_size: Some(10),
            node: node(),
            written_at: Timestamp::from_millis(1_700_000_000_001),
        },
        openwop::Event::PromptComposed {
            step: step(),
            messages: vec![
                ModelMessage::System {
                    content: "Be brief.".to_owned(),
                },
                ModelMessage::Assistant {
                    content: String::new(),
                    tool_calls: vec![ToolCall {
                        id: "call-1".to_owned(),
                        name: "search".to_owned(),
                        arguments: json!({ "q": "rust" }),
                        signature: None,
                    }],
                },
                ModelMessage::Tool {
                    call_id: "call-1".to_owned(),
                    name: "search".to_owned(),
                    content: "found".to_owned(),
                    is_error: true,
                },
                ModelMessage::User {
                    content: "Go on.".to_owned(),
                },
            ],
            hash: "abc".to_owned(),
            summarizing: Some(Box::new(openwop::Summarizing {
                messages: vec![ModelMessage::User {
                    content: "Sum it up.".to_owned(),
                }],
                at: 3,
                n_turns: 2,
                replaces: vec![Seq(1), Seq(4)],
                otherwise: "decisions".to_owned(),
                size: 20_000,
                kept: 9_000,
            })),
        },
        openwop::Event::ProviderUsage {
            step: step(),
            provider: "default".to_owned(),
            model: "m-1".to_owned(),
            usage: ModelUsage {
                input_tokens: 12,
                output_tokens: 3,
                cache_read_tokens: Some(8),
                cache_write_tokens: Some(2),
                cost_usd: Some(0.25),
                duration_ms: Some(1_500),
            },
        },
        openwop::Event::Envelope {
            step: step(),
            event: openwop::EnvelopeEvent::RetryAttempted {
                attempt: 2,
                reason: openwop::EnvelopeFault::SchemaViolation,
                error: "no title".to_owned(),
            },
        },
    ];
    // One of each kind.
    let mut known = HashSet::new();
    let orchestrations = orchestrations().into_iter().map(openwop::Event::Orchestration);
    samples.extend(orchestrations.filter(|event| {
        let event = Event::Dialect(DialectEvent::Openwop(event.clone()));
        known.insert(kind(&event))
    }));
    samples
}

fn recorded(event: Event) -> Recorded {
    Recorded {
        given: None,
        is_untrusted: false,
        seq: Seq(7),
        at: Timestamp::from_millis(1_700_000_000_002),
        cause: Some(Seq(6)),
        event,
    }
}

#[test]
fn stored_form_of_every_variant_is_unchanged() {
    let samples = samples();
    let mut names: Vec<_> = samples.iter().map(name).collect();
    for event in samples {
        let name = name(&event);
        let recorded = recorded(event);
        let body = format::encode_event(&recorded);
        let (version, json) = body.split_first().expect("not empty");
        assert_eq!(*version, 1);
        let pretty: Value = serde_json::from_slice(json).expect("JSON");
        expect_file![format!("../corpus/v1/{name}.json")].assert_eq(&format!("{pretty:#}\n"));
        let path = format!("{}/tests/corpus/v1/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let mut stored = vec![1];
        stored.extend(std::fs::read(path).expect("a file for each variant"));
        assert_eq!(format::decode_event(Seq(7), &stored).expect(&name), recorded);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), N_KINDS);
}

/// What decisions are given, as the envelope of the first event that follows has it.
#[test]
fn stored_form_of_what_decisions_are_given_is_unchanged() {
    let given: Vec<Given> = vec![
        Given::Cancel,
        Given::Pause,
        Given::Resume,
        Given::Answer(Box::new(GivenAnswer {
            node: node(),
            ordinal: Some(3),
            interrupt: Some("gate: one:3".to_owned()),
            value: json!({ "action": "accept" }),
            by: ada(),
            voter: Some("bob".to_owned()),
            authority: Authority::Token { is_member: true },
            is_untrusted: true,
        })),
        Given::Set(object(json!({ "x": 1 }))),
        Given::Timer(Timer::Retry(step(), 2).key()),
        Given::Effect {
            step: step(),
            attempt: 1,
            retry_after_ms: Some(5),
            outcome: Some(Box::new(GivenOutcome::Failed(failure()))),
        },
        Given::Effect {
            step: step(),
            attempt: 1,
            retry_after_ms: None,
            outcome: None,
        },
        Given::EffectCancelled {
            step: step(),
            attempt: 1,
            reason: "because".to_owned(),
        },
        Given::News,
        Given::Child(Box::new(RunMessage::ChildResumed {
            step: step(),
            child: run(),
        })),
        Given::ChildEnded(Box::new(GivenEnd {
            step: step(),
            child: run(),
            is_untrusted: true,
            end: Some(Box::new(GivenResult {
                status: RunStatus::Completed,
                outputs: object(json!({ "text": "done" })),
                report: object(json!({ "x": null })),
                error: None,
            })),
        })),
        Given::Live,
        Given::Abandoned(step()),
    ];
    let mut forms = String::new();
    for given in given {
        let recorded = Recorded {
            given: Some(Box::new(given)),
            ..recorded(Event::Kernel(KernelEvent::RunResumed { reason: None }))
        };
        let body = format::encode_event(&recorded);
        assert_eq!(format::decode_event(Seq(7), &body).expect("readable"), recorded);
        let json: Value = serde_json::from_slice(&body[1..]).expect("JSON");
        forms += &format!("{}\n", json["given"]);
    }
    expect_file!["../corpus/v1/given.jsonl"].assert_eq(&forms);
}

#[test]
fn absent_fields_are_read_as_absent() {
    let body = b"\x01{\"at\":5,\"event\":{\"node_completed\":{\"step\":{\"node\":\"a\"},\"outputs\":{}}}}";
    let read = format::decode_event(Seq(0), body).expect("readable");
    assert_eq!((read.cause, read.at), (None, Timestamp::from_millis(5)));
    assert_eq!(format::encode_event(&read), body);
}

#[test]
fn bodies_of_other_versions_and_damaged_bodies_are_refused() {
    let good = format::encode_event(&recorded(KernelEvent::RunResumed { reason: None }.into()));
    let mut newer = good.clone();
    newer[0] = 2;
    let cut = &good[..good.len() - 1];
    let unknown = b"\x01{\"at\":5,\"event\":{\"run_exploded\":{}}}";
    for (body, text) in [
        (&b""[..], "read an empty body"),
        (&newer, "read format 2, this binary knows up to 1"),
        (
            cut,
            "read a damaged body: EOF while parsing an object at line 1 column 69",
        ),
        (unknown, "read a damaged body: unknown variant `run_exploded`"),
        (b"\x01", "read a damaged body: EOF while parsing a value"),
        (b"\x01[]", "read a damaged body: invalid length 0"),
    ] {
        let error = format::decode_event(Seq(0), body).expect_err(text).to_string();
        assert!(error.starts_with(text), "{error}");
        assert!(format::decode_run(DialectId::Openwop, body).is_err());
    }
}

/// A log that contains every kind of event.
fn eventful() -> Script {
    let parent = Workflow::new("parent")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .set(
            "settings",
            json!({ "maxRetries": 1, "retryDelayMs": 5, "timeout": 100_000 }),
        )
        .node(
            "add",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .node("call", "core.subWorkflow", json!({ "workflowId": "child" }))
        .node(
            "gate",
            "core.approvalGate",
            json!({ "requiredApprovals": 2, "timeoutMs": 1_000 }),
        )
        .node(
            "write",
            "core.channelWrite",
            json!({ "channelName": "c", "value": 1, "ttlMs": 5 }),
        )
        .delay("wait", 3)
        .effect("work")
        .edges(
            "add -> call, call -> gate, gate -> add any_failed, gate -> write, write -> wait, wait -> work",
        );
    let mut script =
        Script::of(&[&parent, &Workflow::new("child").gate("gate")]).start(json!({ "extra": [1] }));
    script
        .answer_in(1, "gate", json!({ "approve": true }))
        .expect("open");
    script.answer("gate", json!({ "approve": false })).expect("open");
    script
        .answer_in(2, "gate", json!({ "approve": true }))
        .expect("open");
    script.answer("gate", json!({ "approve": true })).expect("open");
    let mut other = Script::resolve("gate", json!({ "approve": true }));
    other.voter = Some("bob".to_owned());
    script.tell(0, wopr_core::Command::Resolve(other)).expect("open");
    script.wait(3);
    script.pause().expect("running");
    script.outcome("work", Err(failure())).expect("under way");
    script.resume().expect("paused");
    script.wait(5);
    script.outcome("work", Ok(json!({ "x": 1 }))).expect("under way");
    assert_eq!(script.status(), "completed");
    script
}

#[test]
fn any_snapshot_and_its_tail_fold_to_the_same_run() {
    let script = eventful();
    let (plan, log) = (script.plan(0), script.events(0));
    for at in 0..=log.len() {
        let snapshot = Run::default().fold(plan, &log[..at]).expect("legal");
        let body = format::encode_run(DialectId::Openwop, &snapshot);
        let read = format::decode_run(DialectId::Openwop, &body).expect("readable");
        assert_eq!(read, snapshot);
        assert_eq!(&read.fold(plan, &log[at..]).expect("legal"), script.run(0));
    }
}

#[test]
fn snapshot_of_another_fold_is_not_read() {
    let run = eventful().run(0).clone();
    let body = format::encode_run(DialectId::Openwop, &run);
    assert!(format::is_of_this_fold(DialectId::Openwop, &body));
    // The kernel's fold, and then the language's.
    for at in [2, 4] {
        let mut other = body.clone();
        other[at] += 1;
        assert!(!format::is_of_this_fold(DialectId::Openwop, &other));
        let error = format::decode_run(DialectId::Openwop, &other).expect_err("another fold");
        assert_eq!(error.to_string(), "read a snapshot of another fold");
    }
    assert!(!format::is_of_this_fold(DialectId::Openwop, &[]));
}

#[test]
fn log_with_a_missing_repeated_or_swapped_event_does_not_fold() {
    let script = eventful();
    let (plan, log) = (script.plan(0), script.events(0));
    let renumbered = |events: Vec<Recorded>| {
        let mut events = events;
        for (at, event) in events.iter_mut().enumerate() {
            event.seq = Seq(0).plus(at);
        }
        Run::default().fold(plan, &events)
    };
    for at in 0..log.len() {
        let mut gap = log.to_vec();
        gap.remove(at);
        if at + 1 < log.len() {
            assert!(Run::default().fold(plan, &gap).is_err(), "without {at}");
        }
        // Even after renumbering, a start, an end or the first event must not be missing or repeated.
        let needed = matches!(
            log[at].event,
            Event::Kernel(
                KernelEvent::RunStarted(_)
                    | KernelEvent::NodeStarted { .. }
                    | KernelEvent::NodeCompleted { .. }
            )
        );
        if needed && at + 1 < log.len() {
            let mut twice = log.to_vec();
            twice.insert(at, log[at].clone());
            assert!(renumbered(twice).is_err(), "{at} twice: {:?}", log[at].event);
        }
    }
    let mut after = log.to_vec();
    after.push(log[1].clone());
    assert!(renumbered(after).is_err(), "after the end");
}

#[test]
fn timers_keep_their_names() {
    let step = step();
    let keys = [
        Timer::Delay(step.clone()).key(),
        Timer::Retry(step.clone(), 2).key(),
        Timer::Interrupt(step).key(),
        Timer::RunDuration.key(),
        Timer::Continue.key(),
    ];
    assert_eq!(
        keys,
        [
            "delay:3:gate: one",
            "retry:3:2:gate: one",
            "interrupt:3:gate: one",
            "run-duration",
            "continue"
        ]
    );
    for key in keys {
        assert_eq!(Timer::parse(&key).map(|timer| timer.key()), Some(key));
    }
    for key in [
        "",
        "delay",
        "delay:x:a",
        "delay:0:",
        "retry:0:a",
        "retry:0:x:a",
        "other:0:a",
    ] {
        assert_eq!(Timer::parse(key), None, "{key}");
    }
}
