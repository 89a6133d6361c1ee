//! Histories that somebody has changed, or made up: an import refuses them with a reason, or makes a run that is sound.
//!
//! Whatever the rows say, an import takes a bounded amount of work, and makes all of its runs or none.

use std::sync::Arc;

use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::{Value, json};
use wopr_core::{
    Imported, Plan, Timer,
    awp::{ActivityMode, GivenRows, ImportError},
};
use wopr_testkit::Script;

use crate::{
    awp::{document, set, tool},
    awp_import::{
        everything, export_run, finished, id, import_all, numbered, object, plan, repeated, rows, terms,
        unnamed,
    },
    awp_import_branches as branches, awp_import_children as family,
};

/// Histories that belong together.
#[derive(Debug, Clone)]
struct Histories {
    name: &'static str,
    plan: Arc<Plan>,
    rows: Vec<Value>,
    children: Vec<(Arc<Plan>, Vec<Value>)>,
}

impl Histories {
    fn of(name: &'static str, script: &Script) -> Self {
        Self {
            name,
            plan: script.plan(0).clone(),
            rows: export_run(script, 0),
            children: family::children(script),
        }
    }

    fn n_executions(&self) -> usize {
        1 + self.children.len()
    }

    fn of_execution(&mut self, execution: usize) -> &mut Vec<Value> {
        match execution.checked_sub(1) {
            None => &mut self.rows,
            Some(child) => &mut self.children[child].1,
        }
    }

    fn import(&self) -> Result<Imported, ImportError> {
        let mut terms = terms();
        terms.mode = Some(ActivityMode::HostMediated);
        import_all(&self.plan, self.rows.clone(), self.children.clone(), &terms)
    }

    /// Imports the histories, and has the host of a test check what comes of them, unless it is the `genuine` runs. Returns
    /// whether there is a run.
    fn check(&self, what: &str, genuine: Option<&Imported>) -> bool {
        let imported = match self.import() {
            Ok(imported) => imported,
            Err(error) => {
                let text = error.to_string();
                assert!(!text.is_empty() && text.len() < 2_000, "{what}: {text}");
                return false;
            }
        };
        if genuine.is_some_and(|genuine| are_same(&imported, genuine)) {
            return true;
        }
        let plans = std::iter::once(self.plan.clone());
        let plans = plans.chain(self.children.iter().map(|(plan, _)| plan.clone()));
        let mut host = Script::of_plans(plans);
        host.skip(10_000_000_000_000);
        host.hold_mail();
        // Checks all logs and all that is left to do.
        host.adopt_all(id(), &imported);
        // What it writes is the history of the same run.
        let again = Self {
            rows: export_run(&host, 0),
            children: family::children(&host),
            ..self.clone()
        };
        let twin = again.import().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            unnamed(&rows(&self.plan, &twin.decision)),
            unnamed(&again.rows),
            "{what}"
        );
        true
    }
}

/// Whether all logs are the same, but for what their first events say of the histories.
fn are_same(one: &Imported, other: &Imported) -> bool {
    let logs = |imported: &Imported| {
        let children = imported
            .children
            .iter()
            .map(|child| child.decision.events[1..].to_vec());
        std::iter::once(imported.decision.events[1..].to_vec())
            .chain(children)
            .collect::<Vec<_>>()
    };
    logs(one) == logs(other)
}

/// A loop that turns so often.
fn looped(turns: usize) -> Script {
    let nodes = [
        set("count", json!({ "n": { "jq": "(.n // 0) + 1" } })),
        tool("work"),
        json!({ "id": "again", "type": "switch", "config": {
            "cases": [{ "when": format!(".n < {turns}"), "target": "count" }], "default": "end",
        } }),
    ];
    let edges = [("start", "count"), ("count", "work"), ("work", "again")];
    finished(document("looped", json!({ "n": {} }), &nodes, &edges))
}

fn genuine() -> Vec<Histories> {
    let mut all = vec![
        Histories::of("everything", &finished(everything())),
        Histories::of("a loop", &looped(4)),
    ];
    let (document, theirs) = repeated();
    all.push(Histories {
        name: "repeated",
        plan: plan(document),
        rows: theirs,
        children: Vec::new(),
    });
    let mut script = family::started();
    for n in 0..20 {
        if n == 4 {
            all.push(Histories::of("a family under way", &script));
        }
        if !family::step(&mut script, n) {
            break;
        }
    }
    all.push(Histories::of("a family", &script));
    let mut cancelled = family::started();
    cancelled.cancel().expect("it runs");
    all.push(Histories::of("a cancelled family", &cancelled));
    let mut script = branches::started(&json!({ "join": "all" }));
    for what in ["a!", "b", "go", "time", "d", "time", "a"] {
        if what == "d" {
            all.push(Histories::of("branches under way", &script));
        }
        branches::happen(&mut script, what);
    }
    all.push(Histories::of("branches", &script));
    all
}

/// Values that no member of a row expects, or that look like those of another one.
fn strangers() -> Vec<Value> {
    let mut deep = json!("deep");
    for _ in 0..100 {
        deep = json!([deep]);
    }
    vec![
        Value::Null,
        json!(true),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(0.1),
        json!(""),
        json!("\u{0}\u{1f600}[REDACTED]"),
        json!("x".repeat(20_000)),
        json!("run_0123456789abcdef0123456789abcdef"),
        json!("first:sub:outer"),
        json!("0".repeat(64)),
        json!("1970-01-01T00:00:00.000Z"),
        json!("9999-12-31T23:59:59.999Z"),
        json!([]),
        json!({}),
        json!({ "x": 1 }),
        json!("[REDACTED]"),
        json!({ "token": "[REDACTED]" }),
        deep,
    ]
}

/// A change of a history.
#[derive(Debug, Clone)]
enum Change {
    Truncate,
    Drop,
    Double,
    Swap(usize),
    /// Puts in the row of another place.
    Copy(usize),
    /// Changes a member of the row, or of its payload, to the value.
    Forge(usize, usize),
    /// Takes a value of the same member of another row.
    Borrow(usize, usize),
    /// Takes a history away, or has it twice.
    Lose,
    Twice,
}

/// Names of the members of a row, those of its payload included.
fn members(row: &Value) -> Vec<(bool, String)> {
    let own = object(row.clone()).into_iter().map(|(name, _)| (false, name));
    let payload = row["payload"].as_object().cloned().unwrap_or_default();
    own.chain(payload.into_iter().map(|(name, _)| (true, name)))
        .collect()
}

fn place<'r>(row: &'r mut Value, (is_payload, name): &(bool, String)) -> &'r mut Value {
    match *is_payload && row["payload"].is_object() {
        true => &mut row["payload"][name],
        false => &mut row[name],
    }
}

/// Changes an execution at a row. Returns `false` if there is nothing to change.
fn apply(
    histories: &mut Histories,
    execution: usize,
    at: usize,
    change: &Change,
    strangers: &[Value],
) -> bool {
    let execution = execution % histories.n_executions();
    if let (Change::Lose | Change::Twice, Some(child)) = (change, execution.checked_sub(1)) {
        match change {
            Change::Lose => drop(histories.children.remove(child)),
            _ => histories.children.push(histories.children[child].clone()),
        }
        return true;
    }
    let rows = histories.of_execution(execution);
    if rows.is_empty() {
        return false;
    }
    let n = rows.len();
    let at = at % n;
    match *change {
        Change::Truncate => rows.truncate(at),
        Change::Drop => drop(rows.remove(at)),
        Change::Double => rows.insert(at, rows[at].clone()),
        Change::Swap(other) => rows.swap(at, other % n),
        Change::Copy(other) => rows.insert(at, rows[other % n].clone()),
        Change::Forge(member, value) => {
            let all = members(&rows[at]);
            let member = &all[member % all.len()];
            let value = &strangers[value % strangers.len()];
            *place(&mut rows[at], member) = value.clone();
        }
        Change::Borrow(member, other) => {
            let all = members(&rows[at]);
            let member = &all[member % all.len()];
            let value = place(&mut rows[other % n].clone(), member).clone();
            *place(&mut rows[at], member) = value;
        }
        Change::Lose | Change::Twice => return false,
    }
    // Their numbers are dense again, so that the rows themselves are what is wrong.
    if !matches!(change, Change::Forge(..) | Change::Borrow(..)) {
        *rows = numbered(std::mem::take(rows));
    }
    true
}

#[test]
fn every_history_that_is_cut_or_reordered_is_refused_or_a_sound_run() {
    for genuine in genuine() {
        assert!(
            genuine.check(genuine.name, None),
            "{}: {:?}",
            genuine.name,
            genuine.import().err()
        );
        let runs = genuine.import().expect("genuine");
        let (mut n_runs, mut n) = (0, 0);
        for execution in 0..genuine.n_executions() {
            let n_rows = genuine.clone().of_execution(execution).len();
            for at in 0..n_rows {
                let changes = [
                    Change::Truncate,
                    Change::Drop,
                    Change::Double,
                    Change::Swap(at + 1),
                    Change::Copy(at + n_rows / 2),
                ];
                for change in changes {
                    // Other rows in between are all refused for a few reasons.
                    if matches!(change, Change::Copy(_)) && at % 3 > 0 {
                        continue;
                    }
                    let mut changed = genuine.clone();
                    apply(&mut changed, execution, at, &change, &[]);
                    let what = format!("{}: {change:?} of execution {execution} at {at}", genuine.name);
                    n_runs += usize::from(changed.check(&what, Some(&runs)));
                    n += 1;
                }
            }
        }
        // Engines repeat events, and leave some out, so a part of these is the genuine run.
        assert!(
            n_runs > 0 && n_runs < n * 3 / 4,
            "{}: {n_runs} of {n} are runs",
            genuine.name
        );
    }
}

#[test]
fn every_forged_member_is_refused_or_changes_nothing_that_matters() {
    let strangers = strangers();
    let mut n = 0;
    for genuine in genuine() {
        let runs = genuine.import().expect("genuine");
        for execution in 0..genuine.n_executions() {
            for at in 0..genuine.clone().of_execution(execution).len() {
                let n_members = members(&genuine.clone().of_execution(execution)[at]).len();
                for member in 0..n_members {
                    n += 1;
                    let mut changed = genuine.clone();
                    let change = Change::Forge(member, n * 7);
                    apply(&mut changed, execution, at, &change, &strangers);
                    let what = format!("{}: {change:?} of execution {execution} at {at}", genuine.name);
                    changed.check(&what, Some(&runs));
                }
            }
        }
    }
}

#[test]
fn times_that_go_back_or_lie_ahead_make_a_log_whose_times_do_not() {
    let times = [
        "0001-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.000Z",
        "9999-12-31T23:59:59.999Z",
        "2026-06-24T12:00:00.000Z",
    ];
    for genuine in genuine() {
        let mut changed = genuine.clone();
        for execution in 0..genuine.n_executions() {
            for (n, row) in changed.of_execution(execution).iter_mut().enumerate() {
                row["created_at"] = times[n % times.len()].into();
            }
        }
        let imported = changed
            .import()
            .unwrap_or_else(|error| panic!("{}: {error}", genuine.name));
        let logs = std::iter::once(&imported.decision);
        for decision in logs.chain(imported.children.iter().map(|child| &child.decision)) {
            let times: Vec<_> = decision.events.iter().map(|event| event.at).collect();
            assert!(times.is_sorted(), "{}: {times:?}", genuine.name);
            assert!(
                times.iter().all(|at| *at <= terms().now),
                "{}: {times:?}",
                genuine.name
            );
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let any = 0..1_000_usize;
    prop_oneof![
        1 => Just(Change::Truncate),
        2 => Just(Change::Drop),
        1 => Just(Change::Double),
        2 => any.clone().prop_map(Change::Swap),
        1 => any.clone().prop_map(Change::Copy),
        4 => (any.clone(), any.clone()).prop_map(|(member, value)| Change::Forge(member, value)),
        4 => (any.clone(), any).prop_map(|(member, other)| Change::Borrow(member, other)),
        1 => Just(Change::Lose),
        1 => Just(Change::Twice),
    ]
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, cases: 24, ..Config::default() })]

    #[test]
    fn histories_with_any_changes_are_refused_or_sound_runs(
        changes in vec((0..9_usize, 0..4_usize, 0..1_000_usize, change()), 1..24),
    ) {
        let (genuine, strangers) = (genuine(), strangers());
        // Each alone, and those of one history after each other.
        for (of, execution, at, change) in &changes {
            let mut histories = genuine[of % genuine.len()].clone();
            apply(&mut histories, *execution, *at, change, &strangers);
            histories.check(&format!("{}: {change:?} of {execution} at {at}", histories.name), None);
        }
        for (index, histories) in genuine.iter().enumerate() {
            let mut histories = histories.clone();
            let mut applied = Vec::new();
            for (of, execution, at, change) in &changes {
                if of % genuine.len() == index && apply(&mut histories, *execution, *at, change, &strangers) {
                    applied.push((execution, at, change));
                    if histories.rows.is_empty() {
                        break;
                    }
                    histories.check(&format!("{}: {applied:?}", histories.name), None);
                }
            }
        }
    }
}

/// The rows of a document that sets `y` with a filter, and counts in `n`, so many times in a loop.
fn turns(turns: usize, y: &Value) -> Vec<Value> {
    let row = |kind: &str, name: &str, payload: Value| {
        let mut payload = object(payload);
        payload.insert("executionId".to_owned(), "theirs".into());
        json!({ "kind": kind, "name": name, "payload": payload, "created_at": "2026-06-24T12:00:00.000Z" })
    };
    let mut rows = vec![row(
        "event",
        "ExecutionStarted",
        json!({ "workflowName": "turns", "workflowVersion": "1", "inputKeys": [] }),
    )];
    let mut visit = |node: &str, output: Value, state: Value| {
        rows.extend([
            row("command", "ScheduleNode", json!({ "nodeId": node })),
            row("event", "NodeScheduled", json!({ "nodeId": node })),
            row(
                "command",
                "CompleteNode",
                json!({ "nodeId": node, "output": output }),
            ),
            row("event", "StateUpdated", json!({ "nodeId": node, "state": state })),
        ]);
    };
    visit("start", json!({}), json!({}));
    for n in 1..=turns {
        let state = json!({ "n": n, "y": y });
        visit("set", state.clone(), state.clone());
        visit("again", json!({}), state);
    }
    numbered(rows)
}

/// The document of [`turns`], which turns so often, or for ever.
fn turning(filter: &str, until: Option<usize>) -> Arc<Plan> {
    let when = until.map_or("true".to_owned(), |until| format!(".n < {until}"));
    let nodes = [
        set(
            "set",
            json!({ "n": { "jq": "(.n // 0) + 1" }, "y": { "jq": filter } }),
        ),
        json!({ "id": "again", "type": "switch", "config": {
            "cases": [{ "when": when, "target": "set" }], "default": "end",
        } }),
    ];
    plan(document(
        "turns",
        json!({}),
        &nodes,
        &[("start", "set"), ("set", "again")],
    ))
}

#[test]
fn a_history_of_more_work_than_an_import_may_do_is_refused_as_that() {
    let heavy = "[range(20000)] | length";
    let few = import_all(
        &turning(heavy, None),
        turns(2, &json!(20_000)),
        Vec::new(),
        &terms(),
    );
    few.expect("little work");
    let error = import_all(
        &turning(heavy, None),
        turns(1_000, &json!(20_000)),
        Vec::new(),
        &terms(),
    );
    assert_eq!(
        error.expect_err("refused").to_string(),
        "deciding the history again is more work than an import may do"
    );
}

#[test]
fn a_loop_without_an_end_is_imported_as_far_as_its_rows_go() {
    for rows in [1, 2, 4, 5, 9, 400] {
        let mut given = turns(60, &json!(1));
        given.truncate(rows);
        let imported = import_all(&turning("1", None), given, Vec::new(), &terms()).expect("imported");
        assert!(!imported.decision.run.status.is_terminal());
        // The rest is for the decisions that follow.
        let timers = &imported.decision.work.timers_set;
        assert!(
            timers.iter().any(|(timer, _)| *timer == Timer::Continue),
            "{timers:?}"
        );
        assert!(
            imported.decision.events.len() < 2_000,
            "{}",
            imported.decision.events.len()
        );
    }
}

#[test]
fn a_history_with_as_many_turns_as_rows_allow_is_imported_and_one_with_more_is_none() {
    let n_turns = 1_249;
    let given = turns(n_turns, &json!(1));
    assert!(given.len() <= wopr_core::awp::MAX_ROWS);
    let imported = import_all(&turning("1", None), given, Vec::new(), &terms()).expect("imported");
    assert!(imported.decision.events.len() > 4 * n_turns);
    let million = turns(2_000, &json!(1));
    let error = GivenRows::read(million).expect_err("refused").to_string();
    assert_eq!(
        error,
        "row 10001: a history that is imported has at most 10000 rows"
    );
    // Nor in several executions together.
    let mut script = family::started();
    family::step(&mut script, 0);
    let (rows, mut children) = (export_run(&script, 0), family::children(&script));
    let (filler, n) = (children[0].1[2].clone(), children[0].1.len());
    let added = vec![filler; wopr_core::awp::MAX_ROWS - n];
    children[0].1 = numbered(std::mem::take(&mut children[0].1).into_iter().chain(added));
    let error = import_all(script.plan(0), rows, children, &terms());
    let error = error.expect_err("refused").to_string();
    assert!(
        error.starts_with("histories that are imported together have at most 10000 rows, not "),
        "{error}"
    );
}
