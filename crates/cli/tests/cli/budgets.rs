//! Budgets that runs share, over crashes of their host: `wopr mock-model`, a host that is killed, and `wopr budgets`.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{binary::Place, models::Model};

/// What each answer of the scripted model takes.
const TOKENS: u64 = 15;
/// More than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
/// The pace of asking.
const PAUSE: Duration = Duration::from_millis(20);

fn configured(place: &mut Place, model: &Model, budgets: &str) {
    place.write(
        "wopr.toml",
        &format!(
            "[[models]]\nname = \"default\"\nbase_url = \"{}/v1\"\nmodel = \"small\"\nprice = {{ input = 1.0, output = 2.0 }}\n\
             {budgets}[egress]\nallow = [\"127.0.0.1/32\"]\n[effects]\nlease = \"2s\"\n",
            model.origin
        ),
    );
    place.set("WOPR_CONFIG", "wopr.toml");
}

/// A workflow that asks a model so many times.
fn asking(place: &Place, times: usize) {
    let ids: Vec<_> = (0..times).map(|n| format!("n{n}")).collect();
    let node = |id: &String| {
        json!({ "id": id, "typeId": "core.ai.callPrompt", "name": id, "position": { "x": 0, "y": 0 },
            "config": { "prompt": "?", "stream": false }, "inputs": {} })
    };
    let edge = |pair: &[String]| json!({ "id": pair[0], "sourceNodeId": pair[0], "targetNodeId": pair[1] });
    let document = json!({
        "id": "asking", "name": "asking", "version": "1", "variables": [], "metadata": {}, "settings": {},
        "nodes": ids.iter().map(node).collect::<Vec<_>>(),
        "edges": ids.windows(2).map(edge).collect::<Vec<_>>(),
        "triggers": [{ "id": "manual", "type": "manual" }],
    });
    place.write("asking.json", &document.to_string());
}

fn script() -> Value {
    json!({ "replies": [{ "text": "so", "delayMs": 150, "usage": { "input": 10, "output": 5 } }] })
}

fn n_asked(place: &Place) -> usize {
    let text = fs::read_to_string(place.path().join("asked.ndjson")).unwrap_or_default();
    text.lines().count()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < LIMIT, "not in time: {what}");
        // sleep: the pace of asking
        thread::sleep(PAUSE);
    }
}

fn status(place: &Place, run: &str) -> String {
    place.json(&["runs", "show", run, "--json"])["status"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn start(place: &Place) -> String {
    let started = place.json(&["run", "asking.json", "--detach", "--json"]);
    started["runId"].as_str().unwrap().to_owned()
}

#[test]
fn count_is_that_of_the_logs_whenever_the_host_dies() {
    const RUNS: usize = 4;
    const TIMES: usize = 3;
    let mut place = Place::new();
    let model = Model::start(&place, &script());
    let budgets = "[[budgets]]\nper = \"month\"\nmax_tokens = 1000000\n\
         [[budgets]]\nworkflow = \"asking\"\nper = \"month\"\nmax_cost_usd = 100.0\non_breach = \"fail\"\n";
    configured(&mut place, &model, budgets);
    asking(&place, TIMES);
    let mut host = place.serve();
    let runs: Vec<_> = (0..RUNS).map(|_| start(&place)).collect();
    // In the middle of calls, between their answers and what is appended of them. A third death would quarantine runs.
    for n in [2, 9] {
        until("the model is asked", || n_asked(&place) >= n);
        thread::sleep(Duration::from_millis(145)); // sleep: about as long as an answer takes
        host.kill();
        host = place.serve();
    }
    for run in &runs {
        until("the run ends", || status(&place, run) == "completed");
    }
    let mut taken = 0;
    for run in &runs {
        let shown = place.json(&["runs", "events", run, "--json"]);
        let events = shown["events"].as_array().unwrap();
        let usage = events.iter().filter(|event| event["type"] == "provider.usage");
        for event in usage {
            let tokens = |name: &str| event["payload"][name].as_u64().unwrap();
            taken += tokens("inputTokens") + tokens("outputTokens");
        }
    }
    assert_eq!(taken, (RUNS * TIMES) as u64 * TOKENS);
    let shown = place.json(&["budgets", "--json"]);
    let budgets = shown["budgets"].as_array().unwrap();
    assert_eq!(budgets.len(), 2, "{shown}");
    for budget in budgets {
        assert_eq!(budget["tokens"], taken, "{shown}");
        assert_eq!(
            budget["costUsd"], 0.000_24,
            "twelve answers of 20 millionths: {shown}"
        );
    }
    assert_eq!(budgets[1]["workflow"], "asking");
    // The operator reads the database itself, while the host has it open.
    let read = place.json(&["budgets", "--store", "sqlite:wopr.db", "--json"]);
    assert_eq!(read, shown);
    let said = place.ends(0, &["budgets"]);
    assert!(
        said.out.contains("180 of 1000000") && said.out.contains("0.00024 of 100"),
        "{said:#?}"
    );
    host.kill();
}

#[test]
fn runs_at_once_do_not_go_beyond_a_budget_together() {
    const RUNS: usize = 6;
    let mut place = Place::new();
    let model = Model::start(&place, &script());
    configured(
        &mut place,
        &model,
        "[[budgets]]\nper = \"month\"\nmax_tokens = 40\n",
    );
    asking(&place, 1);
    let _host = place.serve();
    let runs: Vec<_> = (0..RUNS).map(|_| start(&place)).collect();
    for run in &runs {
        until("the run ends or asks", || {
            ["completed", "waiting-approval"].contains(&status(&place, run).as_str())
        });
    }
    // Each call has 4,096 tokens reserved, so they are made one after the other until forty tokens are taken.
    assert_eq!(n_asked(&place), 3);
    let budgets = place.json(&["budgets", "--json"]);
    assert_eq!(budgets["budgets"][0]["tokens"], 3 * TOKENS, "{budgets}");
}

#[test]
fn time_of_answers_is_bounded_for_all_runs_of_a_workflow() {
    let mut place = Place::new();
    let slow =
        json!({ "replies": [{ "text": "so", "delayMs": 600, "usage": { "input": 10, "output": 5 } }] });
    let model = Model::start(&place, &slow);
    configured(
        &mut place,
        &model,
        "[[budgets]]\nworkflow = \"asking\"\nper = \"month\"\nmax_time = \"1s\"\ngrant_time = \"2m\"\n",
    );
    asking(&place, 1);
    let _host = place.serve();
    for expected in ["completed", "completed", "waiting-approval"] {
        let run = start(&place);
        until("the run ends or asks", || status(&place, &run) == expected);
    }
    assert_eq!(n_asked(&place), 2);
    let shown = place.json(&["budgets", "--json"]);
    let taken = shown["budgets"][0]["timeMs"].as_u64().unwrap();
    assert!(taken >= 1_200, "{shown}");
    assert_eq!(shown["budgets"][0]["maxTimeMs"], 1_000);
    let waiting = place.json(&["runs", "list", "--status", "waiting-approval", "--json"]);
    let run = waiting["runs"][0]["runId"].as_str().unwrap();
    let asked = place.ends(0, &["runs", "show", run]);
    assert!(asked.out.contains("Spend 120 s of model time more"), "{asked:#?}");
    place.ends(0, &["interrupts", "resolve", run, "n0", "--accept"]);
    until("the run goes on", || status(&place, run) == "completed");
}

#[test]
fn wrong_budgets_keep_a_host_from_starting() {
    let mut place = Place::new();
    place.set("WOPR_CONFIG", "wopr.toml");
    for (budget, said) in [
        ("per = \"week\"\nmax_tokens = 1\n", "week"),
        ("per = \"day\"\n", "budgets[0].max_tokens"),
        ("per = \"day\"\nmax_tokens = 0\n", "budgets[0].max_tokens"),
        ("per = \"day\"\nmax_time = \"10ms\"\n", "budgets[0].max_time"),
        (
            "per = \"day\"\nmax_tokens = 1\ngrant_time = \"1m\"\n",
            "budgets[0].grant_time",
        ),
        (
            "per = \"day\"\nmax_cost_usd = 1.0\n",
            "none of [[models]] has a price",
        ),
        (
            "per = \"day\"\nmax_tokens = 1\ngrant_cost_usd = 1.0\n",
            "budgets[0].grant_cost_usd",
        ),
        (
            "per = \"day\"\nmax_tokens = 1\non_breach = \"fail\"\napprover_roles = [\"cfo\"]\n",
            "asks nobody",
        ),
        (
            "per = \"day\"\nmax_tokens = 1\n[[budgets]]\ntenant = \"*\"\nper = \"day\"\nmax_tokens = 2\n",
            "budgets[1]",
        ),
    ] {
        place.write("wopr.toml", &format!("[[budgets]]\n{budget}"));
        let refused = place.ends(3, &["config", "check"]);
        assert!(refused.err.contains(said), "{budget}: {refused:#?}");
    }
    place.write(
        "wopr.toml",
        "[[budgets]]\ntenant = \"acme\"\nper = \"day\"\nmax_tokens = 1\n",
    );
    let shown = place.ends(0, &["config", "print"]);
    assert!(
        shown
            .out
            .contains("[[budgets]]\ntenant = \"acme\"\nper = \"day\""),
        "{shown:#?}"
    );
}
