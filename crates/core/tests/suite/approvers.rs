//! Who may answer a gate, and how a gate that times out is reported.

use serde_json::{Value, json};
use wopr_core::{Authority, Command, Membership};
use wopr_testkit::{Script, Workflow};

fn gate(config: Value) -> Script {
    Script::started(&Workflow::new("w").node("gate", "core.approvalGate", config))
}

fn try_as(gate: &Script, voter: &str, authority: Authority) -> String {
    let mut script = gate.clone();
    let mut resolve = Script::resolve("gate", json!({ "action": "accept" }));
    resolve.voter = Some(voter.to_owned());
    resolve.authority = authority;
    match script.tell(0, Command::Resolve(resolve)) {
        Ok(()) => script.status().to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn references_restrict_who_answers_a_gate() {
    let none = || Authority::default();
    let of = |roles: &[&str], groups: &[&str]| {
        Authority::Credential(Membership {
            roles: roles.iter().map(|&role| role.to_owned()).collect(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
        })
    };
    let token = |is_member| Authority::Token { is_member };
    let refs = json!({ "approverRefs": ["bob"], "approverRoleRefs": ["legal"], "approverGroupRefs": ["eu"] });
    let role = json!({ "approverRoleRefs": ["legal"] });
    let group = json!({ "approverGroupRefs": ["eu"] });
    let both = json!({ "approversList": ["ann", "bob"], "approverRoleRefs": ["legal"] });
    for kind in ["core.approvalGate", "core.interrupt"] {
        for (config, voter, authority, may) in [
            (&refs, "bob", none(), true),
            (&refs, "ann", none(), false),
            (&refs, "ann", of(&["legal"], &[]), true),
            (&refs, "ann", of(&["sales"], &["eu"]), true),
            (&refs, "ann", of(&["eu"], &["legal"]), false),
            (&refs, "bob", token(false), true),
            (&refs, "ann", token(false), false),
            (&refs, "ann", token(true), true),
            (&role, "ann", none(), false),
            (&role, "legal", none(), false),
            (&role, "ann", of(&["legal"], &[]), true),
            (&group, "ann", of(&["eu"], &[]), false),
            (&group, "ann", of(&[], &["eu"]), true),
            (&both, "ann", none(), false),
            (&both, "ann", of(&["legal"], &[]), true),
            (&both, "eve", of(&["legal"], &[]), false),
            (&both, "eve", token(true), false),
        ] {
            let config = match kind {
                "core.interrupt" => json!({ "kind": "approval", "data": config }),
                _ => config.clone(),
            };
            let script = Script::started(&Workflow::new("w").node("gate", kind, config.clone()));
            let outcome = try_as(&script, voter, authority.clone());
            assert_eq!(
                outcome == "completed",
                may,
                "{config} {voter} {authority:?}: {outcome}"
            );
            let open = script.run(0).interrupt(script.plan(0)).expect("open");
            let wopr_core::Asked::Here(asked) = open.asked else {
                panic!("{open:?}")
            };
            assert!(
                asked.data.to_string().contains("approver"),
                "who is asked is in the question"
            );
        }
    }
}

#[test]
fn timed_out_gate_is_distinguished_from_a_rejected_one() {
    for on_timeout in ["approve", "accept", "reject"] {
        let config = json!({ "timeoutMs": 5, "onTimeout": on_timeout });
        let workflow = Workflow::new("w")
            .node("gate", "core.approvalGate", config)
            .node(
                "tell",
                "core.template",
                json!({ "template": "{{ nodes.gate.error.code }} {{ nodes.gate.error.reason }}" }),
            )
            .edges("gate -> tell any_failed");
        let mut script = Script::started(&workflow);
        script.wait(5);
        assert_eq!(
            script.variable("tell"),
            json!({ "text": "approval_rejected timeout" })
        );
    }
    let mut alone = gate(json!({ "timeoutMs": 5, "onTimeout": "approve" }));
    alone.wait(5);
    let (failure, node) = alone.run(0).error.clone().expect("failed");
    assert_eq!(
        (failure.code.as_str(), failure.reason.as_deref(), node.is_some()),
        ("approval_rejected", Some("timeout"), true)
    );
    let mut rejected = gate(json!({}));
    rejected
        .answer("gate", json!({ "action": "reject" }))
        .expect("open");
    let (failure, _) = rejected.run(0).error.clone().expect("failed");
    assert_eq!(
        (failure.code.as_str(), failure.reason),
        ("approval_rejected", None)
    );
}

#[test]
fn unenforced_restriction_is_rejected_with_the_definition() {
    let refused = |type_id: &str, config: Value| {
        let workflow = Workflow::new("w").node("gate", type_id, config.clone());
        match workflow.compile() {
            Err(problems) => problems.to_string(),
            Ok(_) => panic!("{config} is accepted"),
        }
    };
    let question = json!([{ "id": "q", "question": "?" }]);
    let approval = |data: Value| json!({ "kind": "approval", "data": data });
    for (type_id, config, names) in [
        (
            "core.approvalGate",
            json!({ "onTimeout": "escalate" }),
            "onTimeout",
        ),
        (
            "core.approvalGate",
            json!({ "profile": "openwop-interrupt-auth-requird" }),
            "profile",
        ),
        (
            "core.approvalGate",
            json!({ "approverRefs": "bob" }),
            "approverRefs",
        ),
        (
            "core.approvalGate",
            json!({ "approverRoleRefs": [1] }),
            "approverRoleRefs",
        ),
        (
            "core.approvalGate",
            json!({ "approverGroupRefs": {} }),
            "approverGroupRefs",
        ),
        ("core.approvalGate", json!({ "audience": {} }), "audience"),
        (
            "core.interrupt",
            approval(json!({ "audience": { "roles": ["legal"] } })),
            "audience",
        ),
        (
            "core.interrupt",
            approval(json!({ "aproversList": ["bob"] })),
            "aproversList",
        ),
        (
            "core.interrupt",
            approval(json!({ "onTimeout": "escalate" })),
            "onTimeout",
        ),
        (
            "core.clarificationGate",
            json!({ "questions": question, "approversList": ["bob"] }),
            "approversList",
        ),
        (
            "core.interrupt",
            json!({ "kind": "clarification", "data": { "questions": question, "approverRefs": ["bob"] } }),
            "approverRefs",
        ),
        (
            "core.interrupt",
            json!({ "kind": "custom", "data": { "customKind": "x", "approverRoleRefs": ["legal"] } }),
            "approverRoleRefs",
        ),
        (
            "core.interrupt",
            json!({ "kind": "external-event", "data": { "eventType": "x", "correlation": {}, "timeoutMs": 1 } }),
            "timeoutMs",
        ),
    ] {
        let problems = refused(type_id, config.clone());
        assert!(problems.contains(names), "{config}: {problems}");
    }
}
