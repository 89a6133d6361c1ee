//! Tables over every status and event, and equality of a folded log with its run.

use serde_json::{Value, json};
use wopr_core::{
    Command, DialectEvent, DrainPolicy, Failure, InterruptKind, NodeId, Object, Origin, PrincipalId, Resolve,
    RunId, RunKey, Seq, WorkflowId, openwop,
};
use wopr_engine::{Create, SideRows, Start};

use super::*;
use crate::{
    Host,
    config::{Config, StoreUrl},
};

fn step(node: &str) -> StepId {
    StepId {
        node: NodeId::parse(node).unwrap(),
        ordinal: 0,
    }
}

fn child() -> RunId {
    RunId::parse("run_0123456789abcdef").unwrap()
}

fn begun() -> TaskProjection {
    TaskProjection {
        has_begun: true,
        ..TaskProjection::default()
    }
}

fn asks(node: &str, kind: InterruptKind) -> KernelEvent {
    KernelEvent::InterruptRequested {
        step: step(node),
        kind,
        data: json!({}),
        timeout_ms: None,
        number: 0,
        remote: None,
    }
}

fn answered(node: &str) -> KernelEvent {
    KernelEvent::InterruptResolved {
        step: step(node),
        kind: InterruptKind::Approval,
        value: None,
        by: None,
        action: None,
        number: 0,
    }
}

fn mirrors(node: &str) -> KernelEvent {
    KernelEvent::NodeSuspended {
        step: step(node),
        interrupt: format!("{node}:0/ask:0"),
        kind: InterruptKind::Clarification,
        child: Some(child()),
        details: Object::new(),
    }
}

fn resumed(node: &str) -> KernelEvent {
    KernelEvent::NodeResumed {
        step: step(node),
        interrupt: String::new(),
        value: None,
    }
}

fn paused() -> KernelEvent {
    KernelEvent::RunPaused {
        reason: None,
        drain: DrainPolicy::default(),
        cut: Vec::new(),
    }
}

#[test]
fn maps_every_status_to_a_state() {
    let table = [
        ("pending", TaskState::Submitted),
        ("running", TaskState::Working),
        ("paused", TaskState::Working),
        ("waiting-approval", TaskState::InputRequired),
        ("waiting-input", TaskState::InputRequired),
        ("waiting-external", TaskState::InputRequired),
        ("completed", TaskState::Completed),
        ("failed", TaskState::Failed),
        ("cancelling", TaskState::Working),
        ("cancelled", TaskState::Canceled),
    ];
    assert_eq!(table.len(), RunStatus::ALL.len());
    for (status, state) in table {
        let status = RunStatus::parse(status).unwrap();
        assert_eq!(state_of(status, None), state, "{status:?}");
        assert_eq!(state_of(status, Some("no_luck")), state, "{status:?}");
    }
}

#[test]
fn only_declined_runs_are_rejected() {
    let mut projection = begun();
    let declined = KernelEvent::RunFailed {
        error: Failure::new(REJECTED, "no"),
        node: None,
    };
    assert_eq!(projection.apply(&declined.into()), Change::Status);
    assert_eq!(projection.status(), RunStatus::Failed);
    assert_eq!(projection.state(), TaskState::Rejected);
    for status in RunStatus::ALL
        .iter()
        .filter(|status| **status != RunStatus::Failed)
    {
        assert_ne!(
            state_of(*status, Some(REJECTED)),
            TaskState::Rejected,
            "{status:?}"
        );
    }
}

#[test]
fn streamed_text_is_not_sent_again_as_artifact() {
    let piece = |index, is_last| KernelEvent::OutputChunk {
        step: step("say"),
        index,
        chunk: "a".to_owned(),
        is_last,
        number: 0,
        end: None,
    };
    let made = |node: &str| KernelEvent::ArtifactCreated {
        step: step(node),
        artifact: format!("{node}-0"),
        artifact_type: "text".to_owned(),
        name: node.to_owned(),
        content: json!("aa"),
    };
    let mut projection = begun();
    assert_eq!(projection.apply(&piece(0, false).into()), Change::Piece);
    assert_eq!(projection.apply(&made("other").into()), Change::Artifact);
    assert_eq!(projection.apply(&piece(1, true).into()), Change::Piece);
    assert_eq!(projection.apply(&made("say").into()), Change::None);
    assert_eq!(projection, begun());
    assert_eq!(projection.apply(&made("say").into()), Change::Artifact);
    // The end of a node ends its stream, too.
    let cancelled = KernelEvent::NodeCancelled {
        step: step("say"),
        reason: String::new(),
    };
    projection.apply(&piece(0, false).into());
    projection.apply(&cancelled.into());
    assert_eq!(projection, begun());
}

#[test]
fn every_run_is_in_the_list_of_its_state_only() {
    let workflow = |name: &str| WorkflowId::parse(name).unwrap();
    let auth = crate::a2a::conformance::authentication();
    let principal = PrincipalId::parse("ada").unwrap();
    let version = wopr_core::ContentHash::of(b"w");
    let created_at = Timestamp::from_millis(0);
    for has_auth in [false, true] {
        for (status, code, id) in RunStatus::ALL.into_iter().flat_map(|status| {
            [None, Some("no_luck"), Some(REJECTED)]
                .into_iter()
                .flat_map(move |code| ["greet", "a2a-conformance-auth"].map(|id| (status, code, id)))
        }) {
            let run = wopr_app::Summary {
                status,
                error_code: code.map(str::to_owned),
                ..wopr_app::Summary::new(workflow(id), version.clone(), principal.clone(), created_at)
            };
            let lists: Vec<_> = TaskState::ALL
                .iter()
                .filter(|state| **state != TaskState::Unspecified)
                .filter(|state| {
                    let mut filter = PhaseFilter::default();
                    only(&mut filter, **state, has_auth.then(|| auth.clone())) && filter.accepts(&run)
                })
                .collect();
            let expected = match state_of(status, code) {
                TaskState::InputRequired if has_auth && run.workflow == auth => TaskState::AuthRequired,
                state => state,
            };
            assert_eq!(lists, [&expected], "{status:?} {code:?} {id}");
        }
    }
}

#[test]
fn event_causes_at_most_one_update() {
    let quiet = |event: KernelEvent| (event, Change::None, RunStatus::Running);
    let table: Vec<(KernelEvent, Change, RunStatus)> = vec![
        (
            KernelEvent::RunCompleted {
                outputs: Object::new(),
            },
            Change::Status,
            RunStatus::Completed,
        ),
        (
            KernelEvent::RunFailed {
                error: Failure::new("x", "y"),
                node: None,
            },
            Change::Status,
            RunStatus::Failed,
        ),
        (
            KernelEvent::RunCancelled {
                reason: None,
                by: None,
                parent: None,
            },
            Change::Status,
            RunStatus::Cancelled,
        ),
        (
            KernelEvent::CancelRequested {
                reason: None,
                by: None,
                parent: None,
            },
            Change::Status,
            RunStatus::Cancelling,
        ),
        (paused(), Change::Status, RunStatus::Paused),
        (
            KernelEvent::RunResumed { reason: None },
            Change::Status,
            RunStatus::Running,
        ),
        (
            asks("a", InterruptKind::Approval),
            Change::Status,
            RunStatus::WaitingApproval,
        ),
        (
            asks("a", InterruptKind::Clarification),
            Change::Status,
            RunStatus::WaitingInput,
        ),
        (
            asks("a", InterruptKind::Custom),
            Change::Status,
            RunStatus::WaitingInput,
        ),
        (
            asks("a", InterruptKind::ExternalEvent),
            Change::Status,
            RunStatus::WaitingExternal,
        ),
        (mirrors("a"), Change::Status, RunStatus::WaitingInput),
        (answered("a"), Change::Status, RunStatus::Running),
        (
            KernelEvent::ArtifactCreated {
                step: step("a"),
                artifact: "a-0".to_owned(),
                artifact_type: "t".to_owned(),
                name: "n".to_owned(),
                content: json!("text"),
            },
            Change::Artifact,
            RunStatus::Running,
        ),
        quiet(resumed("a")),
        quiet(KernelEvent::NodeStarted {
            step: step("a"),
            type_id: "core.noop".to_owned(),
            attempt: 0,
        }),
        quiet(KernelEvent::NodeCompleted {
            step: step("a"),
            outputs: Object::new(),
            routing: Vec::new(),
        }),
        quiet(KernelEvent::NodeFailed {
            step: step("a"),
            error: Failure::new("x", "y"),
            attempts: 1,
            routing: Vec::new(),
        }),
        quiet(KernelEvent::NodeRetried {
            step: step("a"),
            attempt: 1,
            delay_ms: 1,
            error: Failure::new("x", "y"),
        }),
        quiet(KernelEvent::NodeSkipped {
            node: step("a").node,
            reason: String::new(),
        }),
        quiet(KernelEvent::NodeCancelled {
            step: step("a"),
            reason: String::new(),
        }),
        quiet(KernelEvent::NodeSuspended {
            step: step("a"),
            interrupt: "a:0".to_owned(),
            kind: InterruptKind::Approval,
            child: None,
            details: Object::new(),
        }),
        quiet(KernelEvent::NodeDispatched {
            step: step("a"),
            child: child(),
            workflow: WorkflowId::parse("w").unwrap(),
        }),
        (
            KernelEvent::ChildEnded {
                step: step("a"),
                child: child(),
                workflow: WorkflowId::parse("w").unwrap(),
                worker: None,
                is_handoff: true,
                status: RunStatus::Completed,
                outputs: Object::new(),
                report: Object::new(),
                error: None,
            },
            Change::Handoff,
            RunStatus::Running,
        ),
        quiet(KernelEvent::ApprovalRequested {
            step: step("a"),
            data: Value::Null,
        }),
        quiet(KernelEvent::ClarificationRequested {
            step: step("a"),
            questions: Value::Null,
        }),
    ];
    let own = openwop::Event::VariableChanged {
        name: "v".to_owned(),
        previous: None,
        next: Value::Null,
        appends: false,
        node: None,
    };
    let own = (
        Event::Dialect(DialectEvent::Openwop(own)),
        Change::None,
        RunStatus::Running,
    );
    let kernel = table
        .into_iter()
        .map(|(event, change, status)| (Event::Kernel(event), change, status));
    for (event, change, status) in kernel.chain([own]) {
        let mut projection = begun();
        assert_eq!(projection.apply(&event), change, "{event:?}");
        assert_eq!(projection.status(), status, "{event:?}");
    }
}

#[test]
fn open_interrupt_keeps_run_waiting() {
    let mut projection = begun();
    projection.apply(&asks("a", InterruptKind::Approval).into());
    projection.apply(&asks("b", InterruptKind::Clarification).into());
    assert_eq!(projection.status(), RunStatus::WaitingApproval);
    assert_eq!(projection.apply(&answered("a").into()), Change::Status);
    assert_eq!(projection.status(), RunStatus::WaitingInput);
    assert_eq!(projection.asked()[0].id(), "b:0");
    projection.apply(&answered("b").into());
    assert_eq!(projection.status(), RunStatus::Running);
    assert!(projection.asked().is_empty());
}

#[test]
fn pause_hides_interrupts_until_resume() {
    let mut projection = begun();
    projection.apply(&asks("a", InterruptKind::Approval).into());
    projection.apply(&paused().into());
    assert_eq!(projection.state(), TaskState::Working);
    assert!(projection.asked().is_empty());
    projection.apply(&KernelEvent::RunResumed { reason: None }.into());
    assert_eq!(projection.state(), TaskState::InputRequired);
}

#[tokio::test]
async fn folded_log_equals_projection_of_run() {
    let mut config = Config {
        store: StoreUrl::Memory,
        ..Config::default()
    };
    let key = json!({"id": "k", "secret": "a-secret-of-a-test", "tenant": "t", "scopes": ["*"]});
    config.auth.keys = vec![serde_json::from_value(key).unwrap()];
    let host = Host::open(config).await.unwrap();
    let engine = host.engine();
    let node = |id: &str, type_id: &str, config: Value| {
        json!({
            "id": id, "typeId": type_id, "name": id, "position": {"x": 0, "y": 0},
            "config": config, "inputs": {},
        })
    };
    let question = json!({"questions": [{"id": "q", "question": "q?"}]});
    let document = |id: &str, nodes: Value| {
        json!({
            "id": id, "name": id, "version": "1", "nodes": nodes, "edges": [], "triggers": [],
            "variables": [], "metadata": {}, "settings": {},
        })
    };
    let gates = json!([
        node("left", "core.approvalGate", json!({})),
        node("right", "core.clarificationGate", question),
    ]);
    engine.register(None, document("gates", gates)).await.unwrap();
    let sub = json!([node("sub", "core.subWorkflow", json!({"workflowId": "gates"}))]);
    engine.register(None, document("parent", sub)).await.unwrap();

    for (workflow, answers) in [
        (
            "gates",
            &[
                ("left", json!({"action": "accept"})),
                ("right", json!({"answers": {"q": 1}})),
            ][..],
        ),
        (
            "gates",
            &[
                ("right", json!({"answers": {"q": 1}})),
                ("left", json!({"action": "reject"})),
            ][..],
        ),
        (
            "gates",
            &[("left", json!({"action": "accept"})), ("", Value::Null)][..],
        ),
        ("parent", &[("", Value::Null)][..]),
    ] {
        let run = engine.new_run_id();
        let key = RunKey::new(serde_json::from_value(json!("t")).unwrap(), run.clone());
        let principal = PrincipalId::parse("p").unwrap();
        let create = Create {
            run,
            workflow: engine
                .workflow(&key.tenant, &WorkflowId::parse(workflow).unwrap())
                .unwrap(),
            start: Start {
                tenant: key.tenant.clone(),
                principal: principal.clone(),
                origin: Origin::new("a2a"),
                inputs: Object::new(),
                configurable: Object::new(),
                tags: Vec::new(),
                metadata: Object::new(),
                context: None,
                trace: None,
            },
            side_rows: SideRows::default(),
        };
        engine.create(create).await.unwrap();
        let mut tail = engine.tail(&key);
        while !engine.view(&key).await.unwrap().unwrap().run.status.is_waiting() {
            tail.changed().await;
        }
        for (node, value) in answers {
            let command = match *node {
                "" => Command::Cancel {
                    reason: None,
                    by: None,
                },
                node => Command::Resolve(Resolve {
                    node: NodeId::parse(node).unwrap(),
                    ordinal: None,
                    interrupt: None,
                    value: value.clone(),
                    by: principal.clone(),
                    voter: None,
                    authority: wopr_core::Authority::default(),
                    is_untrusted: false,
                }),
            };
            engine.command(&key, command, SideRows::default()).await.unwrap();
        }
        let plan = engine.view(&key).await.unwrap().unwrap().plan;
        let log = engine.events(&key, Seq(0), 1_000).await.unwrap().unwrap().events;
        let (mut run, mut projection) = (Run::default(), TaskProjection::default());
        for recorded in &log {
            run.apply(&plan, recorded).unwrap();
            projection.apply(&recorded.event);
            let shown = TaskProjection::of(&run, &plan);
            assert_eq!(projection.status(), run.status, "{workflow} {recorded:?}");
            assert_eq!(projection.status(), shown.status(), "{workflow} {recorded:?}");
            assert_eq!(projection.asked(), shown.asked(), "{workflow} {recorded:?}");
        }
    }
    host.close().await;
}

#[test]
fn interrupt_of_child_closes_with_its_answer() {
    let mut projection = begun();
    projection.apply(&mirrors("sub").into());
    assert_eq!(projection.asked()[0].id(), "sub:0/ask:0");
    projection.apply(&mirrors("sub").into());
    assert_eq!(projection.asked().len(), 1);
    let resumed = KernelEvent::NodeResumed {
        step: step("sub"),
        interrupt: "sub:0/ask:0".to_owned(),
        value: None,
    };
    assert_eq!(projection.apply(&resumed.into()), Change::Status);
    assert_eq!(projection.status(), RunStatus::Running);
}
