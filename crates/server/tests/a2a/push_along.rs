//! Push configurations sent along with answers: they are stored if and only if the answer was accepted.

use serde_json::{Value, json};
use wopr_wire::a2a::method::Operation;

use crate::{
    push::{Pushed, Receivers, asks, reaching},
    speaker::Speaker,
    support::Server,
};

/// Adds a push configuration to a request.
fn with(mut request: Value, id: &str, url: &str) -> Value {
    request["configuration"] = json!({ "taskPushNotificationConfig": { "id": id, "url": url } });
    request
}

/// An answer that no approval accepts.
fn nonsense(speaker: &Speaker, id: &str, task: &Value) -> Value {
    let mut request = speaker.answer(id, "x", task.as_str().unwrap());
    request["message"]["metadata"] = json!({"openwop": {"action": "dance"}});
    request
}

async fn set(speaker: &Speaker, task: &Value, id: &str, url: &str) {
    let config = json!({ "taskId": task, "id": id, "url": url });
    speaker.ask(Operation::CreatePushConfig, config).await.unwrap();
}

/// The configurations of a task: their ids and URLs.
async fn all(speaker: &Speaker, task: &Value) -> Vec<(String, String)> {
    let list = json!({ "taskId": task });
    let all = speaker.ask(Operation::ListPushConfigs, list).await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = all.as_array().unwrap().iter();
    all.map(|config| (text(&config["id"]), text(&config["url"])))
        .collect()
}

fn one(id: &str, url: &str) -> Vec<(String, String)> {
    vec![(id.to_owned(), url.to_owned())]
}

#[tokio::test]
async fn refused_answer_leaves_the_existing_config_unchanged() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    for speaker in Speaker::all(&server) {
        let about = speaker.name();
        let (first, second) = (receivers.url("first"), receivers.url("second"));
        let task = asks(&speaker).await;
        set(&speaker, &task, "one", &first).await;
        let refused = with(nonsense(&speaker, "no", &task), "one", &second);
        speaker.send(refused).await.unwrap_err();
        assert_eq!(all(&speaker, &task).await, one("one", &first), "{about}");

        // An accepted answer replaces it; repeating the message, with any configuration, does not.
        let yes = speaker.answer("yes", "approve", task.as_str().unwrap());
        speaker.send(with(yes.clone(), "one", &second)).await.unwrap();
        assert_eq!(all(&speaker, &task).await, one("one", &second), "{about}");
        speaker.send(with(yes, "one", &first)).await.unwrap();
        assert_eq!(all(&speaker, &task).await, one("one", &second), "{about}");

        // Neither does an answer that comes too late.
        let late = speaker.answer("late", "approve", task.as_str().unwrap());
        speaker.send(with(late, "one", &first)).await.unwrap_err();
        assert_eq!(all(&speaker, &task).await, one("one", &second), "{about}");
    }
}

#[tokio::test]
async fn accepted_one_of_two_racing_answers_sets_the_config() {
    let receivers = Receivers::start().await;
    for server in Server::open_each(reaching()).await {
        let speakers = Speaker::all(&server);
        for round in 0..6 {
            for pair in speakers.chunks(2) {
                let [a, b] = pair else { unreachable!() };
                let task = a.send(a.text(&format!("race-{round}"), "it", "approve")).await;
                let task = task.unwrap()["id"].clone();
                let urls = ["a", "b"].map(|name| receivers.url(name));
                let answer = |speaker: &Speaker, url: &str| {
                    let yes = speaker.answer(&format!("yes-{round}"), "approve", task.as_str().unwrap());
                    with(yes, "one", url)
                };
                let taken = tokio::join!(a.send(answer(a, &urls[0])), b.send(answer(b, &urls[1])));
                let url = match (&taken.0, &taken.1) {
                    (Ok(_), Err(_)) => &urls[0],
                    (Err(_), Ok(_)) => &urls[1],
                    other => panic!("one answer is taken: {other:?}"),
                };
                assert_eq!(all(a, &task).await, one("one", url), "{}", a.name());
            }
        }
        drop(speakers);
        server.stop().await;
    }
}

#[tokio::test]
async fn config_beyond_the_limit_refuses_its_answer() {
    let receivers = Receivers::start().await;
    let mut config = reaching();
    config.a2a.push_configs = 2;
    for server in Server::open_each(config).await {
        for speaker in Speaker::all(&server) {
            let about = speaker.name();
            for workflow in ["approve", "child-asks"] {
                let url = receivers.url("many");
                let task = speaker
                    .send(speaker.text(workflow, "it", workflow))
                    .await
                    .unwrap();
                let task = task["id"].clone();
                for id in ["one", "two"] {
                    set(&speaker, &task, id, &url).await;
                }
                let before = all(&speaker, &task).await;
                let yes =
                    |id: &str| speaker.answer(&format!("{workflow}-{id}"), "approve", task.as_str().unwrap());
                let refused = speaker.send(with(yes("three"), "three", &url)).await;
                assert_eq!(
                    refused.unwrap_err(),
                    "UNSUPPORTED_OPERATION",
                    "{about} {workflow}"
                );
                assert_eq!(all(&speaker, &task).await, before, "{about} {workflow}");
                let asked = speaker.get(json!({ "id": task })).await.unwrap();
                let state = &asked["status"]["state"];
                assert_eq!(state, "TASK_STATE_INPUT_REQUIRED", "{about} {workflow}");
                // Without the configuration it is a different message, and is accepted.
                speaker.send(yes("none")).await.unwrap();
                assert_eq!(all(&speaker, &task).await, before, "{about} {workflow}");
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn answer_forwarded_to_a_child_sets_the_config_of_its_task() {
    let receivers = Receivers::start().await;
    for (n, server) in Server::open_each(reaching()).await.into_iter().enumerate() {
        for speaker in Speaker::all(&server) {
            let name = format!("{}-{n}", speaker.name());
            let url = receivers.url(&name);
            let task = speaker.send(speaker.text("parent", "it", "child-asks")).await;
            let task = task.unwrap()["id"].clone();
            let refused = with(nonsense(&speaker, "no", &task), "one", &url);
            speaker.send(refused).await.unwrap_err();
            assert_eq!(all(&speaker, &task).await, [], "{name}");
            let yes = speaker.answer("yes", "approve", task.as_str().unwrap());
            speaker.send(with(yes, "one", &url)).await.unwrap();
            assert_eq!(all(&speaker, &task).await, one("one", &url), "{name}");
            let told = receivers.told(&name, "completed").await;
            let states: Vec<_> = told.iter().filter_map(Pushed::state).collect();
            assert!(
                !states.contains(&"input-required".to_owned()),
                "{name}: {states:?}"
            );
        }
        server.stop().await;
    }
}
