//! One task through every binding and version.

use serde_json::{Value, json};
use wopr_wire::a2a::method::{Operation, Version};

use crate::{
    client::{shorts, state_of},
    speaker::{Binding, Speaker},
    support::Server,
};

/// Removes what is created anew on each read.
fn lasting(mut task: Value) -> Value {
    if let Some(about) = task["metadata"]["openwop"].as_object_mut() {
        about.remove("interruptToken");
    }
    task
}

#[tokio::test]
async fn task_is_the_same_in_every_binding() {
    let server = Server::start().await;
    let speakers = Speaker::all(&server);
    for maker in &speakers {
        for skill in ["hello", "approve", "fail", "slow"] {
            let mut request = maker.text(skill, "x", skill);
            request["configuration"] = json!({"returnImmediately": skill == "slow"});
            let made = maker.send(request).await.unwrap();
            let id = made["id"].as_str().unwrap();
            for reader in &speakers {
                let read = reader.get(json!({ "id": id })).await.unwrap();
                let about = format!("{skill}: made by {}, read by {}", maker.name(), reader.name());
                assert_eq!(lasting(read), lasting(made.clone()), "{about}");
            }
        }
    }
}

#[tokio::test]
async fn a_journey_is_the_same_in_every_binding() {
    let server = Server::start().await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let asked = speaker
            .send(speaker.text("ask", "launch", "approve"))
            .await
            .unwrap();
        assert_eq!(state_of(&asked), "input-required", "{name}");
        assert_eq!(
            asked["metadata"]["openwop"]["interrupt"]["kind"], "approval",
            "{name}"
        );
        let id = asked["id"].as_str().unwrap();

        // A subscription opened while the task waits sees it continue.
        let mut seen = speaker
            .stream(Operation::SubscribeToTask, json!({ "id": id }))
            .await;
        assert_eq!(
            seen.next().await.unwrap().short(),
            "task:input-required",
            "{name}"
        );
        let done = speaker.send(speaker.answer("yes", "approve", id)).await.unwrap();
        assert_eq!(state_of(&done), "completed", "{name}");
        assert_eq!(
            done["artifacts"][0]["parts"][0]["text"], "approved launch",
            "{name}"
        );
        let rest = seen.all().await;
        assert_eq!(
            shorts(&rest),
            ["status:working", "artifact:brief-0", "status:completed"],
            "{name}"
        );
        // SSE events have ids to resume from; gRPC messages have none.
        let has_ids = speaker.binding != Binding::Grpc;
        assert!(rest.iter().all(|frame| frame.id.is_some() == has_ids), "{name}");

        for (length, n) in [(json!(null), 3), (json!(2), 2), (json!(0), 0)] {
            // In the protocol buffers of 0.3, a 0 and an absent number have the same encoding.
            if length == 0 && (speaker.binding, speaker.version) == (Binding::Grpc, Version::V0_3) {
                continue;
            }
            let mut request = json!({ "id": id });
            if !length.is_null() {
                request["historyLength"] = length.clone();
            }
            let task = speaker.get(request).await.unwrap();
            let shown = task["history"].as_array().map_or(0, Vec::len);
            assert_eq!(shown, n, "{name} {length}");
        }

        let stream = speaker.text("stream", "world", "hello");
        let frames = speaker
            .stream(Operation::SendStreamingMessage, stream)
            .await
            .all()
            .await;
        assert_eq!(
            shorts(&frames),
            [
                "task:submitted",
                "status:working",
                "artifact:greet-0",
                "status:completed"
            ],
            "{name}"
        );
        if speaker.version == Version::V0_3 {
            assert_eq!(frames[3].value["final"], true, "{name}");
        }

        let mut slow = speaker.text("slow", "x", "slow");
        slow["configuration"] = json!({"returnImmediately": true});
        let slow = speaker.send(slow).await.unwrap();
        assert_eq!(state_of(&slow), "working", "{name}");
        let cancelled = speaker.cancel(slow["id"].as_str().unwrap()).await.unwrap();
        assert_eq!(state_of(&cancelled), "canceled", "{name}");

        if (speaker.binding, speaker.version) == (Binding::Rest, Version::V0_3)
            || speaker.version == Version::V1_0
        {
            let context = done["contextId"].as_str().unwrap();
            let request = json!({"contextId": context, "includeArtifacts": true, "pageSize": 5});
            let page = speaker.ask(Operation::ListTasks, request).await.unwrap();
            assert_eq!(page["totalSize"], 1, "{name}");
            assert_eq!(page["nextPageToken"], "", "{name}");
            assert_eq!(page["tasks"][0]["id"], id, "{name}");
            assert_eq!(page["tasks"][0]["artifacts"], done["artifacts"], "{name}");
            let name_of = match speaker.version {
                Version::V1_0 => "TASK_STATE_CANCELED",
                Version::V0_3 => "TASK_STATE_CANCELLED",
            };
            let page = speaker
                .ask(Operation::ListTasks, json!({"status": name_of}))
                .await
                .unwrap();
            assert!(
                page["tasks"].as_array().unwrap().contains(&json!({
                    "id": cancelled["id"], "contextId": cancelled["contextId"], "status": cancelled["status"],
                    "metadata": cancelled["metadata"],
                })),
                "{name} {page}"
            );
        }
    }
}

#[tokio::test]
async fn errors_have_the_same_reason_in_every_binding() {
    let server = Server::start().await;
    let gone = "run_00000000000000000000000000000000";
    for speaker in Speaker::all(&server) {
        let done = speaker.send(speaker.text("done", "x", "hello")).await.unwrap();
        let done = done["id"].as_str().unwrap();
        let mut wrong_modes = speaker.text("modes", "x", "hello");
        wrong_modes["configuration"] = json!({"acceptedOutputModes": ["image/png"]});
        for (operation, request, wanted) in [
            (Operation::GetTask, json!({"id": gone}), "TASK_NOT_FOUND"),
            (Operation::GetTask, json!({"id": "short"}), "TASK_NOT_FOUND"),
            (
                Operation::GetTask,
                json!({"id": done, "historyLength": -1}),
                "INVALID_PARAMS",
            ),
            (Operation::CancelTask, json!({"id": gone}), "TASK_NOT_FOUND"),
            (Operation::CancelTask, json!({"id": done}), "TASK_NOT_CANCELABLE"),
            (Operation::SubscribeToTask, json!({"id": gone}), "TASK_NOT_FOUND"),
            (
                Operation::SubscribeToTask,
                json!({"id": done}),
                "UNSUPPORTED_OPERATION",
            ),
            (
                Operation::SendMessage,
                speaker.text("none", "x", "nowhere"),
                "INVALID_PARAMS",
            ),
            (
                Operation::SendMessage,
                speaker.answer("gone", "x", gone),
                "TASK_NOT_FOUND",
            ),
            (
                Operation::SendMessage,
                speaker.answer("over", "x", done),
                "UNSUPPORTED_OPERATION",
            ),
            (Operation::SendMessage, wrong_modes, "CONTENT_TYPE_NOT_SUPPORTED"),
            (
                Operation::SendStreamingMessage,
                speaker.answer("g", "x", gone),
                "TASK_NOT_FOUND",
            ),
            (
                Operation::ListPushConfigs,
                json!({"taskId": gone}),
                "TASK_NOT_FOUND",
            ),
        ] {
            let about = format!("{} {operation:?} {request}", speaker.name());
            assert_eq!(
                speaker.ask(operation, request).await.unwrap_err(),
                wanted,
                "{about}"
            );
        }
    }
}

#[tokio::test]
async fn only_advertised_interfaces_are_served() {
    let server = Server::start().await;
    for (card, workflow) in [
        ("/.well-known/agent-card.json", None),
        ("/a2a/w/approve/.well-known/agent-card.json", Some("approve")),
    ] {
        let card = server.v1().get(card).await.json();
        let mut named: Vec<_> = (card["supportedInterfaces"].as_array().unwrap().iter())
            .map(|interface| {
                let text = |name: &str| interface[name].as_str().unwrap().to_owned();
                (text("protocolBinding"), text("protocolVersion"), text("url"))
            })
            .collect();
        assert!(
            named.is_sorted_by_key(|(_, version, _)| std::cmp::Reverse(version.clone())),
            "{named:?}"
        );
        for speaker in Speaker::all(&server) {
            // A gRPC address has no path, so there are none per workflow.
            if speaker.binding == Binding::Grpc && workflow.is_some() {
                continue;
            }
            let place = named
                .iter()
                .position(|(binding, version, _)| {
                    binding == speaker.binding.as_str() && version == speaker.version.as_str()
                })
                .unwrap_or_else(|| panic!("{} is not on the card", speaker.name()));
            let (.., url) = named.remove(place);
            let speaker = speaker.at(&url);
            // If the message names no workflow, the URL decides.
            let mut request = speaker.text(&format!("m-{workflow:?}"), "x", "-");
            request["message"]["metadata"] = json!({});
            let task = speaker.send(request).await.unwrap();
            let wanted = workflow.unwrap_or("hello");
            assert_eq!(
                task["metadata"]["openwop"]["workflowId"],
                wanted,
                "{}",
                speaker.name()
            );
        }
        assert_eq!(named, [], "the card names what is not served");
    }
}
