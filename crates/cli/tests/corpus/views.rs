//! Reads API views of a host, and compares them with earlier ones.
//!
//! A later version may add to the views, but everything shown before must remain: all members with their
//! values, and lists with their length.

use serde_json::{Map, Value};

use crate::world::World;

/// Members that differ on every read.
const FRESH: [&str; 3] = ["interruptToken", "callbackUrl", "expiresAt"];

/// Reads all views of these runs, by path. The logs of runs in `without_log` are too long to be stored.
pub(crate) async fn read(world: &World, runs: &[&str], without_log: &[&str]) -> Map<String, Value> {
    let mut paths = vec![
        "/v1/runs?limit=100".to_owned(),
        "/v1/workflows".to_owned(),
        "/v1/interrupts".to_owned(),
        "/v1/host/wopr/keys".to_owned(),
        "/v1/host/wopr/secrets".to_owned(),
        "/v1/host/wopr/budgets".to_owned(),
    ];
    for run in runs {
        paths.push(format!("/v1/runs/{run}"));
        paths.push(format!("/v1/runs/{run}/artifacts"));
        paths.push(format!("/v1/a2a/tasks/{run}"));
        if !without_log.contains(run) {
            paths.push(format!("/v1/runs/{run}/events/poll?timeout=1"));
        }
    }
    let mut views = Map::new();
    for path in paths {
        let mut view = world.get(&path).await;
        drop_fresh(&mut view);
        views.insert(path, view);
    }
    for run in runs {
        let params = serde_json::json!({ "id": run, "historyLength": 10 });
        let mut task = world.a2a("GetTask", params).await;
        drop_fresh(&mut task);
        views.insert(format!("GetTask {run}"), task);
    }
    views
}

fn drop_fresh(view: &mut Value) {
    match view {
        Value::Object(members) => {
            members.retain(|name, _| !FRESH.contains(&name.as_str()));
            members.values_mut().for_each(drop_fresh);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_fresh),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Lists the differences that lose information.
pub(crate) fn lost(path: &str, was: &Value, is: &Value) -> Vec<String> {
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => was
            .iter()
            .flat_map(|(name, was)| match is.get(name) {
                Some(is) => lost(&format!("{path}.{name}"), was, is),
                None => vec![format!("{path}.{name} is gone, it was {was}")],
            })
            .collect(),
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => was
            .iter()
            .zip(is)
            .enumerate()
            .flat_map(|(n, (was, is))| lost(&format!("{path}[{n}]"), was, is))
            .collect(),
        (was, is) if was == is => Vec::new(),
        (was, is) => vec![format!("{path} is {is}, it was {was}")],
    }
}

#[test]
fn additions_are_allowed_and_changes_are_not() {
    use serde_json::json;

    let was = json!({ "a": 1, "b": [{ "c": "x" }], "d": null });
    let more = json!({ "a": 1, "b": [{ "c": "x", "new": 1 }], "d": null, "e": 2 });
    assert_eq!(lost("v", &was, &more), [""; 0]);
    for is in [
        json!({ "a": 2, "b": [{ "c": "x" }], "d": null }),
        json!({ "a": 1, "b": [{ "c": "x" }, {}], "d": null }),
        json!({ "a": 1, "b": [{}], "d": null }),
        json!({ "a": 1, "b": [{ "c": "x" }] }),
    ] {
        assert_eq!(lost("v", &was, &is).len(), 1, "{is}");
    }
}
