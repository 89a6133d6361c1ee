//! Budgets that runs share: what a run does when its host says that one is used up.

use serde_json::{Value, json};
use wopr_core::{
    Asked, Authority, BudgetKey, BudgetPeriod, BudgetScope, BudgetUnit, Call, Command, ForkMode, Membership,
    ModelCall, MoreMoney, OnOverBudget, OverBudget,
};
use wopr_testkit::{Script, Workflow};

const PROMPT: &str = "core.ai.callPrompt";
/// How long the window lasts from the start of a script on.
const WINDOW_MS: u64 = 60_000;

fn asking(nodes: &str) -> Script {
    let ids: Vec<_> = nodes.split(' ').collect();
    let mut workflow = Workflow::new("w");
    for id in &ids {
        workflow = workflow.node(id, PROMPT, json!({ "prompt": "?" }));
    }
    let edges: Vec<_> = ids
        .windows(2)
        .map(|pair| format!("{} -> {}", pair[0], pair[1]))
        .collect();
    if !edges.is_empty() {
        workflow = workflow.edges(&edges.join(", "));
    }
    Script::started(&workflow)
}

fn key(script: &Script) -> BudgetKey {
    BudgetKey {
        scope: BudgetScope::Tenant,
        per: BudgetPeriod::Day,
        unit: BudgetUnit::Tokens,
        until: script.now().plus_millis(WINDOW_MS),
    }
}

fn more(grant: u64, roles: &[&str]) -> OnOverBudget {
    OnOverBudget::Ask(MoreMoney {
        grant,
        approver_roles: roles.iter().map(|&role| role.to_owned()).collect(),
        approver_groups: Vec::new(),
    })
}

/// Ends the call of a node: its host did not ask the model.
fn is_over(script: &mut Script, node: &str, key: BudgetKey, on_breach: OnOverBudget) {
    let over = OverBudget {
        key,
        spent: 1_000,
        limit: 900,
        on_breach,
    };
    script
        .outcome(node, Ok(Value::Object(over.outcome())))
        .expect("the node waits for its call");
}

fn replies(script: &mut Script, node: &str) {
    let reply = json!({
        "provider": "p", "model": "m", "text": "so", "stop": "end",
        "usage": { "inputTokens": 10, "outputTokens": 4, "costUsd": 0.5 },
    });
    script
        .outcome(node, Ok(reply))
        .expect("the node waits for a reply");
}

/// The latest request.
fn asked(script: &Script) -> ModelCall {
    match script.effects().last().map(|effect| &effect.call) {
        Some(Call::Model(call)) => (**call).clone(),
        other => panic!("{other:?}\n{}", script.log(0)),
    }
}

fn failure(script: &Script) -> String {
    let (failure, _) = script.run(0).error.clone().expect("the run has failed");
    format!("{}: {}", failure.code, failure.message)
}

/// The data of the open approval.
fn question(script: &Script) -> Value {
    let open = script.run(0).interrupts(script.plan(0)).next().expect("it asks");
    match open.asked {
        Asked::Here(open) => open.data.clone(),
        Asked::Child(..) => panic!("it asks itself"),
    }
}

#[test]
fn used_up_budget_parks_the_run_at_an_approval_that_says_so() {
    let mut script = asking("n");
    let key = key(&script);
    is_over(&mut script, "n", key, more(100, &[]));
    assert_eq!(script.status(), "waiting-approval");
    let data = question(&script);
    assert_eq!(
        data["title"],
        "Spend 100 tokens more than the tenant's budget for the day?"
    );
    let until = key.until.to_text();
    assert_eq!(
        data["description"],
        format!("The tenant's budget for the day is used up: 1000 tokens of 900 tokens until {until}.")
    );
    assert_eq!(data["budget"]["until"], until);
    assert!(!script.log(0).contains("cap.breached"), "{}", script.log(0));

    script
        .answer("n", json!({ "action": "accept" }))
        .expect("it may go on");
    assert_eq!(asked(&script).granted, [key]);
    replies(&mut script, "n");
    assert_eq!(script.status(), "completed");
    let (usage, _) = script.run(0).model_usage().expect("one answer");
    assert_eq!(usage.total_tokens(), 14, "a call that was not made takes nothing");
}

#[test]
fn grant_ends_when_the_run_has_taken_it() {
    let mut script = asking("a b c");
    let key = key(&script);
    replies(&mut script, "a");
    is_over(&mut script, "b", key, more(14, &[]));
    script
        .answer("b", json!({ "action": "accept" }))
        .expect("it may go on");
    assert_eq!(asked(&script).granted, [key]);
    replies(&mut script, "b");
    assert_eq!(asked(&script).granted, [], "14 tokens were granted, and 14 taken");
    is_over(&mut script, "c", key, more(14, &[]));
    assert_eq!(script.status(), "waiting-approval", "each grant is asked for");
}

#[test]
fn a_branch_has_none_of_what_its_source_was_granted() {
    let mut script = asking("a");
    let key = key(&script);
    is_over(&mut script, "a", key, more(1_000, &[]));
    script
        .answer("a", json!({ "action": "accept" }))
        .expect("it may go on");
    assert_eq!(asked(&script).granted, [key]);
    let n_asked = script.events(0).len() as u64;
    let granted = |script: &Script, run: usize| match script.effects_of(run).last().map(|effect| &effect.call)
    {
        Some(Call::Model(call)) => call.granted.clone(),
        other => panic!("{other:?}\n{}", script.log(run)),
    };
    for from in 1..=n_asked {
        let branch = script.fork(0, ForkMode::Branch, from).expect("within the log");
        // One that begins before the answer waits for its own.
        if script.status_of(branch) != "waiting-approval" {
            assert_eq!(granted(&script, branch), [], "from {from}");
        }
    }
}

#[test]
fn grant_ends_with_its_window() {
    let mut script = asking("a b");
    let key = key(&script);
    is_over(&mut script, "a", key, more(1_000, &[]));
    script
        .answer("a", json!({ "action": "accept" }))
        .expect("it may go on");
    script.wait(WINDOW_MS);
    replies(&mut script, "a");
    assert_eq!(asked(&script).granted, []);
}

#[test]
fn run_goes_on_by_itself_when_the_window_turns() {
    let mut script = asking("n");
    let key = key(&script);
    is_over(&mut script, "n", key, more(100, &[]));
    script.wait(WINDOW_MS - 1);
    assert_eq!(script.status(), "waiting-approval");
    script.wait(1);
    assert_eq!(script.status(), "running", "{}", script.log(0));
    assert_eq!(asked(&script).granted, []);
    replies(&mut script, "n");
    assert_eq!(script.status(), "completed");
}

#[test]
fn rejection_fails_the_node() {
    let mut script = asking("n");
    let key = key(&script);
    is_over(&mut script, "n", key, more(100, &[]));
    script
        .answer("n", json!({ "action": "reject" }))
        .expect("it is refused");
    assert_eq!(
        failure(&script),
        "budget_exhausted: the run may not spend more on models"
    );
}

#[test]
fn budget_that_fails_runs_says_which_one_it_is() {
    for (unit, taken, cap) in [
        (BudgetUnit::CostMicros, "0.001 USD of 0.0009 USD", "budget-cost"),
        (
            BudgetUnit::TimeMs,
            "1 s of model time of 0 s of model time",
            "run-duration",
        ),
    ] {
        let mut script = asking("n");
        let key = BudgetKey {
            scope: BudgetScope::Workflow,
            unit,
            ..key(&script)
        };
        is_over(&mut script, "n", key, OnOverBudget::Fail);
        let until = key.until.to_text();
        assert_eq!(
            failure(&script),
            format!("budget_exhausted: the workflow's budget for the day is used up: {taken} until {until}")
        );
        let said = format!("cap.breached {cap}");
        assert!(script.log(0).contains(&said), "{}", script.log(0));
    }
}

#[test]
fn only_those_whom_the_budget_names_grant_more() {
    let of = |role: &str| {
        Authority::Credential(Membership {
            roles: vec![role.to_owned()],
            groups: Vec::new(),
        })
    };
    for (authority, may) in [
        (Authority::default(), false),
        (of("sales"), false),
        (of("finance"), true),
        (Authority::Token { is_member: true }, false),
    ] {
        let mut script = asking("n");
        let key = key(&script);
        is_over(&mut script, "n", key, more(100, &["finance"]));
        let mut resolve = Script::resolve("n", json!({ "action": "accept" }));
        resolve.authority = authority.clone();
        let answered = script.tell(0, Command::Resolve(resolve));
        assert_eq!(answered.is_ok(), may, "{authority:?}: {answered:?}");
    }
}

#[test]
fn budget_of_the_run_and_a_shared_one_are_granted_apart() {
    let workflow = Workflow::new("w")
        .node("a", PROMPT, json!({ "prompt": "?" }))
        .node("b", PROMPT, json!({ "prompt": "?" }))
        .edges("a -> b")
        .set("settings", json!({ "budget": { "maxTokens": 14 } }));
    let mut script = Script::started(&workflow);
    let key = key(&script);
    is_over(&mut script, "a", key, more(1_000, &[]));
    script
        .answer("a", json!({ "action": "accept" }))
        .expect("it may go on");
    replies(&mut script, "a");
    assert_eq!(
        script.status(),
        "waiting-approval",
        "that was not for the run's own budget"
    );
    assert!(question(&script).get("budget").is_none());
    script
        .answer("b", json!({ "action": "accept" }))
        .expect("it may go on");
    assert_eq!(asked(&script).granted, [key]);
    replies(&mut script, "b");
    assert_eq!(script.status(), "completed");
}

#[test]
fn model_of_a_supervisor_keeps_to_shared_budgets() {
    let workflow = Workflow::new("led").node(
        "lead",
        "core.orchestrator.supervisor",
        json!({ "model": { "prompt": "Do it." }, "workers": [{ "id": "worker", "description": "works" }] }),
    );
    let mut script = Script::started(&workflow);
    let key = key(&script);
    is_over(&mut script, "lead", key, more(100, &[]));
    assert_eq!(script.status(), "waiting-approval");
    script
        .answer("lead", json!({ "action": "accept" }))
        .expect("it may go on");
    assert_eq!(asked(&script).granted, [key]);
}

#[test]
fn grant_is_not_a_branchs() {
    let mut script = asking("a b");
    let key = key(&script);
    is_over(&mut script, "a", key, more(1_000, &[]));
    script
        .answer("a", json!({ "action": "accept" }))
        .expect("it may go on");
    replies(&mut script, "a");
    assert_eq!(asked(&script).granted, [key]);
    let n = script.events(0).len() as u64;
    let branch = script.fork(0, ForkMode::Branch, n).expect("it branches");
    let calls = script.effects_of(branch);
    let granted = calls.iter().map(|effect| match &effect.call {
        Call::Model(call) => call.granted.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(granted.collect::<Vec<_>>(), [0], "{}", script.log(branch));
}
