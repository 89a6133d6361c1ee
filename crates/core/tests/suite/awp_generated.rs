//! Agent Workflow documents of any shape, and what is true of all their runs: replays equal their source, branches go on
//! from any event, and a cancel leaves no living child.
//!
//! Nodes are named as those of generated workflows, so the same commands reach them.

use std::sync::Arc;

use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::{Value, json};
use wopr_core::{
    AwpHistory, Entropy, Event, Given, HostBounds, KernelEvent, NodeTypes, Object, Origin, Plan, PrincipalId,
    Recorded, RunId, TenantId, Timestamp,
    awp::{ActivityMode, GivenRows, Import, ImportError, Row, Wanted},
    import_awp,
};
use wopr_testkit::{Script, Workflow};

use crate::{
    check_branches, check_replays,
    generated::{Told, bring_to_an_end, tell, told},
};

/// A part of a document with one way in and one way out.
#[derive(Debug, Clone)]
enum Block {
    Node(u8),
    /// Branches, how they join, and what all of them go through in the end.
    Fork(u8, Vec<Vec<Block>>, Vec<Block>),
    /// A switch between two ways.
    Choose(Vec<Block>, Vec<Block>),
    /// Goes around until a counter says otherwise.
    Loop(Vec<Block>),
}

fn block() -> impl Strategy<Value = Block> {
    let node = (0..12_u8).prop_map(Block::Node);
    node.prop_recursive(2, 8, 3, |inner| {
        let part = vec(inner, 1..3);
        prop_oneof![
            3 => (0..3_u8, vec(part.clone(), 2..4), prop_oneof![3 => Just(Vec::new()), 1 => part.clone()])
                .prop_map(|(join, branches, shared)| Block::Fork(join, branches, shared)),
            2 => (part.clone(), part.clone()).prop_map(|(one, other)| Block::Choose(one, other)),
            2 => part.prop_map(Block::Loop),
        ]
    })
}

#[derive(Default)]
struct Writer {
    nodes: Vec<Value>,
    edges: Vec<Value>,
    n: usize,
}

impl Writer {
    fn id(&mut self) -> String {
        self.n += 1;
        format!("n{}", self.n - 1)
    }

    fn edge(&mut self, source: &str, target: &str) {
        self.edges.push(json!({ "source": source, "target": target }));
    }

    fn node(&mut self, mut node: Value, next: &str) -> String {
        let id = self.id();
        node["id"] = id.clone().into();
        self.nodes.push(node);
        self.edge(&id, next);
        id
    }

    fn count(&mut self, next: &str) -> String {
        let config = json!({ "assignments": { "n": { "jq": "(.n // 0) + 1" }, "log": { "jq": "[.n]" } } });
        self.node(json!({ "type": "set_state", "config": config }), next)
    }

    /// Writes blocks that go on at `next`, and returns where they begin.
    fn blocks(&mut self, blocks: &[Block], next: &str, in_branch: bool) -> String {
        let mut next = next.to_owned();
        for block in blocks.iter().rev() {
            next = self.block(block, &next, in_branch);
        }
        next
    }

    fn block(&mut self, block: &Block, next: &str, in_branch: bool) -> String {
        match block {
            Block::Node(kind) => self.simple(*kind, next, in_branch),
            Block::Fork(join, branches, shared) => {
                // What the branches reach is a node of their own.
                let next = self.count(next);
                let shared = self.blocks(shared, &next, true);
                let entries: Vec<_> = branches
                    .iter()
                    .enumerate()
                    .map(|(n, blocks)| {
                        let entry = self.blocks(blocks, &shared, true);
                        json!({ "name": format!("branch {n}"), "entry": entry })
                    })
                    .collect();
                let config = match join {
                    0 => json!({ "join": "all", "branches": entries }),
                    1 => json!({ "join": "any", "branches": entries }),
                    _ => json!({ "join": "n_of_m", "n": 2, "branches": entries }),
                };
                self.node(json!({ "type": "parallel", "config": config }), &next)
            }
            Block::Choose(one, other) => {
                let (one, other) = (
                    self.blocks(one, next, in_branch),
                    self.blocks(other, next, in_branch),
                );
                let id = self.id();
                let cases = json!([{ "when": "(.n // 0) % 2 == 0", "target": one }]);
                self.nodes.push(
                    json!({ "id": id, "type": "switch", "config": { "cases": cases, "default": other } }),
                );
                id
            }
            // The static walk of a branch refuses a cycle.
            Block::Loop(body) if in_branch => self.blocks(body, next, in_branch),
            Block::Loop(body) => {
                let switch = self.id();
                let body = self.blocks(body, &switch, in_branch);
                let entry = self.count(&body);
                let cases = json!([{ "when": "(.n // 0) < 3", "target": entry }]);
                self.nodes.push(
                    json!({ "id": switch, "type": "switch", "config": { "cases": cases, "default": next } }),
                );
                entry
            }
        }
    }

    fn simple(&mut self, kind: u8, next: &str, in_branch: bool) -> String {
        let retry = json!({ "max_attempts": 2, "initial_interval": "7ms" });
        let delegate = |protocol: &str| {
            json!({ "type": "agent_delegate", "retry": retry, "config": {
                "agent_id": "coder", "protocol": protocol, "input_mapping": { "n": "${ .n }" },
            } })
        };
        let node = match kind {
            0 => json!({ "type": "tool_call", "retry": retry, "config": { "server": "s", "tool": "t" } }),
            1 => json!({ "type": "llm_call", "retry": retry, "timeout": "30ms", "config": {
                "prompt": "?", "output_schema": { "type": "object", "required": ["done"] },
            } }),
            2 => delegate("a2a"),
            3 => delegate("mcp"),
            4 => json!({ "type": "wait", "config": { "kind": "duration", "duration_ms": 10 } }),
            5 => json!({ "type": "wait", "config": { "kind": "signal", "signal": "go" } }),
            6 if !in_branch => json!({ "type": "interrupt", "config": {
                "prompt": "?", "resume_schema": { "type": "object" }, "timeout": "25ms",
            } }),
            7 => json!({ "type": "subworkflow", "config": { "workflow_ref": "gated", "input_mapping": {} } }),
            8 => {
                json!({ "type": "subworkflow", "config": { "workflow_ref": "small", "input_mapping": { "n": "${ .n }" } } })
            }
            9 => json!({ "type": "set_state", "config": { "assignments": {
                "log": { "jq": "if (.n // 0) > 1 then error(\"no\") else [\"fine\"] end" },
            } } }),
            _ => return self.count(next),
        };
        self.node(node, next)
    }
}

fn document(name: &str, blocks: &[Block]) -> Value {
    let mut writer = Writer::default();
    let first = writer.blocks(blocks, "end", false);
    writer.edge("__start__", "start");
    writer.edge("start", &first);
    writer.nodes.push(json!({ "id": "start", "type": "start" }));
    writer
        .nodes
        .push(json!({ "id": "end", "type": "end", "config": { "output_mapping": "{n, log}" } }));
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1" },
        "state_schema": { "type": "object", "properties": { "n": { "type": ["integer", "null"] }, "log": { "type": "array", "reducer": "append" } } },
        "nodes": writer.nodes, "edges": writer.edges,
    })
}

/// The plans of a generated document and of all whose runs it starts.
fn plans(blocks: &[Block]) -> [Arc<Plan>; 3] {
    let admit = |document: Value| {
        let plan = Plan::admit(document.clone(), NodeTypes::default());
        Arc::new(plan.unwrap_or_else(|problems| panic!("{problems}\n{document:#}")))
    };
    let small = [Block::Node(0), Block::Node(2)];
    [
        admit(document("parent", blocks)),
        Workflow::new("gated").gate("gate").plan(),
        admit(document("small", &small)),
    ]
}

fn rows(script: &Script, run: usize) -> Vec<Row> {
    let wanted = Wanted::Rows {
        numbers: 1..u64::MAX,
        most_bytes: usize::MAX,
    };
    let mut history = AwpHistory::new(script.plan(run), script.id(run), wanted).expect("of this language");
    script.events(run).iter().for_each(|event| history.record(event));
    history.finish().rows
}

/// The rows of all runs in the language.
fn all_rows(script: &Script) -> Vec<Vec<Row>> {
    let runs = (0..script.n_runs()).filter(|run| script.plan(*run).awp().is_some());
    runs.map(|run| rows(script, run)).collect()
}

fn written(rows: &[Row]) -> Vec<Value> {
    let row = |row: &Row| {
        json!({ "seq": row.seq, "kind": row.kind.as_str(), "name": row.name, "payload": row.payload,
            "created_at": row.created_at.to_text() })
    };
    rows.iter().map(row).collect()
}

/// Rows without what has another name in a copy.
fn unnamed(rows: &[Row]) -> Vec<(u64, &'static str, Timestamp, Object)> {
    let names = [
        "executionId",
        "delegateCorrelationId",
        "externalTaskId",
        "childExecutionId",
        "parentExecutionId",
    ];
    let row = |row: &Row| {
        let mut payload = row.payload.clone();
        payload.retain(|name, _| !names.contains(&name.as_str()));
        (row.seq, row.name, row.created_at, payload)
    };
    rows.iter().map(row).collect()
}

/// Imports the histories of all runs, and gives the copies the clock of their source.
fn imported(
    script: &Script,
    limit: u32,
    mode: ActivityMode,
    is_parallel: Option<bool>,
) -> Result<Script, ImportError> {
    let given = GivenRows::read(written(&rows(script, 0)))?;
    let children = (1..script.n_runs()).filter(|run| script.plan(*run).awp().is_some());
    let children = children.map(|run| {
        let rows = GivenRows::read(written(&rows(script, run)))?;
        Ok((script.plan(run).clone(), rows))
    });
    let children: Vec<_> = children.collect::<Result<_, ImportError>>()?;
    let id = RunId::from_parts(Timestamp::from_millis(7), [7; 10]);
    let mut options = json!({ "recursionLimit": limit, "runTimeoutMs": 2_000 });
    if let Some(is_parallel) = is_parallel {
        options["parallelActivities"] = is_parallel.into();
    }
    let import = Import {
        run: id.clone(),
        now: script.now(),
        entropy: Entropy([3; 16]),
        tenant: TenantId::parse("tenant").expect("valid"),
        principal: PrincipalId::parse("ada").expect("valid"),
        origin: Origin::new("rest"),
        trace: None,
        bounds: HostBounds {
            node_executions: 100_000,
            log_bytes: 64 << 20,
            run_duration_ms: None,
        },
        name: None,
        input: None,
        configurable: options.as_object().expect("an object").clone(),
        mode: Some(mode),
        in_process: None,
    };
    let plan = script.plan(0).clone();
    let imported = import_awp(&plan, &given, &children, &import).expect("of this language")?;
    let plans = std::iter::once(plan).chain(children.into_iter().map(|(plan, _)| plan));
    let mut copy = Script::of_plans(plans);
    copy.skip(u64::try_from(script.now().millis() - copy.now().millis()).expect("later"));
    copy.hold_mail();
    copy.adopt_all(id, &imported);
    Ok(copy)
}

/// Whether histories do not say why a run has ended, or how it goes on.
fn says_too_little(script: &Script) -> bool {
    let breached = |event: &Recorded| matches!(event.event, Event::Kernel(KernelEvent::CapBreached { .. }));
    let is_other = |run: usize| script.plan(run).awp().is_none() || script.events(run).iter().any(breached);
    (0..script.n_runs()).any(is_other)
}

/// How activities are done: in process, and with branches that are under way at once.
type Mode = (bool, bool);

fn mode() -> impl Strategy<Value = Mode> {
    any::<Mode>()
}

fn started(blocks: &[Block], (in_process, is_parallel): Mode, limit: u32, told: &[Told]) -> Script {
    let mut options = json!({ "recursionLimit": limit, "runTimeoutMs": 2_000 });
    if is_parallel {
        options["parallelActivities"] = true.into();
    }
    // A branch drops the name, a replay keeps it. Either follows its source with or without one.
    if limit.is_multiple_of(2) {
        options["executionId"] = "named".into();
    }
    if in_process {
        options["activityExecutionMode"] = "in_process".into();
    }
    let mut script = Script::of_plans(plans(blocks)).start_configured(json!({}), options);
    for told in told {
        tell(&mut script, told);
    }
    script
}

fn is_cancelled(script: &Script, run: usize) -> bool {
    let is_cancel = |event: &Recorded| event.given.as_deref() == Some(&Given::Cancel);
    script.events(run).iter().any(is_cancel)
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, cases: 48, ..Config::default() })]

    #[test]
    fn a_replay_of_any_document_equals_its_source(
        blocks in vec(block(), 1..4), told in vec(told(), 0..25), limit in 5..60_u32, mode in mode(),
    ) {
        let mut script = started(&blocks, mode, limit, &told);
        bring_to_an_end(&mut script, 0);
        for run in 0..script.n_runs() {
            if !is_cancelled(&script, run) && script.run(run).status.is_terminal() {
                check_replays(&mut script, run);
            }
        }
        // Its history follows from the log alone, dense from 1, whatever happened.
        let wanted = Wanted::Rows { numbers: 1..u64::MAX, most_bytes: usize::MAX };
        let mut history = AwpHistory::new(script.plan(0), script.id(0), wanted).unwrap();
        script.events(0).iter().for_each(|event| history.record(event));
        let history = history.finish();
        prop_assert_eq!(history.n_rows, history.rows.len() as u64);
        // It may be read on from any place.
        for (n, event) in script.events(0).iter().enumerate().step_by(3) {
            let wanted = || Wanted::Rows { numbers: 1..u64::MAX, most_bytes: usize::MAX };
            let mut first = AwpHistory::new(script.plan(0), script.id(0), wanted()).unwrap();
            script.events(0)[..=n].iter().for_each(|event| first.record(event));
            let position = first.position();
            prop_assert_eq!((position.next_event(), position.n_rows()), (event.seq.plus(1), first.n_rows()));
            let mut rest = AwpHistory::from_position(script.plan(0), script.id(0), wanted(), position).unwrap();
            script.events(0)[n + 1..].iter().for_each(|event| rest.record(event));
            let (first, rest) = (first.finish(), rest.finish());
            prop_assert_eq!((rest.n_rows, rest.last_checkpoint), (history.n_rows, history.last_checkpoint));
            prop_assert_eq!([first.rows, rest.rows].concat(), history.rows.clone());
        }
    }

    #[test]
    fn histories_of_any_document_are_those_of_equal_runs_which_go_on_alike(
        blocks in vec(block(), 1..4), told in vec(told(), 0..25), limit in 5..60_u32, mode in mode(), says_order in any::<bool>(),
    ) {
        // No history says that a run is paused.
        let told: Vec<_> = told.into_iter().filter(|told| !matches!(told, Told::Pause | Told::Stop)).collect();
        let mut script = started(&blocks, mode, limit, &told);
        script.deliver();
        let (in_process, is_parallel) = mode;
        let mode = if in_process { ActivityMode::InProcess } else { ActivityMode::HostMediated };
        let order = (says_order || is_parallel).then_some(is_parallel);
        match imported(&script, limit, mode, order) {
            Ok(mut copy) => {
                let given: Vec<_> = all_rows(&script).iter().map(|rows| unnamed(rows)).collect();
                let mut made: Vec<_> = all_rows(&copy).iter().map(|rows| unnamed(rows)).collect();
                prop_assert_eq!(&made[0], &given[0]);
                // Children come in the order of their parents.
                let n_given = given.len();
                for rows in given {
                    let same = made.iter().position(|made| *made == rows);
                    prop_assert!(same.is_some(), "{:#?}\nis none of {:#?}", rows, made);
                    made.remove(same.expect("found"));
                }
                prop_assert!(made.is_empty(), "{} of {n_given}: {made:#?}", made.len());
                copy.deliver();
                // A call in process may be the second one of its step, which no history says either.
                if !in_process {
                    bring_to_an_end(&mut script, 0);
                    bring_to_an_end(&mut copy, 0);
                    if script.n_runs() == 1 {
                        prop_assert_eq!(unnamed(&rows(&copy, 0)), unnamed(&rows(&script, 0)));
                    }
                }
            }
            Err(error) => prop_assert!(says_too_little(&script), "{}\n{}", error, script.log(0)),
        }
    }

    #[test]
    fn a_branch_of_any_document_goes_on_from_any_event(
        blocks in vec(block(), 1..3), told in vec(told(), 0..15), limit in 5..40_u32, mode in mode(),
    ) {
        let mut script = started(&blocks, mode, limit, &told);
        bring_to_an_end(&mut script, 0);
        check_branches(&mut script, 0);
    }

    #[test]
    fn a_cancel_of_any_document_leaves_one_terminal_event_and_no_living_child(
        blocks in vec(block(), 1..4), told in vec(told(), 0..25), limit in 5..60_u32, mode in mode(),
    ) {
        let mut script = started(&blocks, mode, limit, &told);
        // Refused if the run has ended.
        let _ = script.cancel();
        script.deliver();
        for run in 0..script.n_runs() {
            prop_assert!(script.run(run).status.is_terminal(), "run {run} lives\n{}", script.log(run));
            let n_ends = script.events(run).iter().filter(|event| event.event.terminal().is_some()).count();
            prop_assert_eq!(n_ends, 1);
        }
    }
}
