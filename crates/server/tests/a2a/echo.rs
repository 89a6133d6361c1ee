//! The example `a2a-echo`: every keyword, over every binding and version, without conformance mode.

use serde_json::{Value, json};
use wopr_wire::a2a::method::Operation;

use crate::{
    client::{shorts, state_of},
    speaker::Speaker,
    support::Server,
};

async fn server() -> Server {
    let server = Server::start().await;
    let document = include_str!("../../../../examples/a2a-echo.json");
    let document: Value = serde_json::from_str(document).unwrap();
    server.host.engine().register(None, document).await.unwrap();
    server
}

#[tokio::test]
async fn first_word_decides_how_a_task_ends() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        for (text, state, artifacts) in [
            ("hello there", "completed", vec!["hello there"]),
            ("complete", "completed", vec!["complete"]),
            ("", "completed", vec![""]),
            ("artifact a b", "completed", vec!["a b"]),
            ("FAIL", "failed", vec![]),
            ("reject", "rejected", vec![]),
        ] {
            let about = format!("{text:?} {}", speaker.name());
            let task = speaker
                .send(speaker.text(&format!("m-{text}"), text, "a2a-echo"))
                .await
                .unwrap();
            assert_eq!(state_of(&task), state, "{about}: {task}");
            let shown = task["artifacts"].as_array().cloned().unwrap_or_default();
            let texts: Vec<_> = shown
                .iter()
                .filter_map(|artifact| artifact["parts"][0]["text"].as_str())
                .collect();
            assert_eq!(texts, artifacts, "{about}");
            if text == "artifact a b" {
                assert_eq!(
                    shown[1]["parts"][0]["data"]["words"],
                    json!(["a", "b"]),
                    "{about}"
                );
                let file = &shown[2]["parts"][0];
                assert_eq!(
                    (&file["raw"], &file["filename"]),
                    (&json!("aGVsbG8K"), &json!("hello.txt"))
                );
            }
        }
        let failed = speaker
            .send(speaker.text("why-fail", "fail", "a2a-echo"))
            .await
            .unwrap();
        assert_eq!(failed["metadata"]["openwop"]["errorCode"], "asked_to_fail");
        let rejected = speaker
            .send(speaker.text("why-reject", "reject", "a2a-echo"))
            .await
            .unwrap();
        let why = &rejected["status"]["message"]["parts"][0]["text"];
        assert_eq!(why, "The message asked to be declined.");
        assert_eq!(rejected["metadata"]["openwop"]["errorCode"], "rejected");
        assert_eq!(rejected["metadata"]["openwop"]["status"], "failed");
        let listed = server
            .v1()
            .ok("ListTasks", json!({"status": "TASK_STATE_REJECTED"}))
            .await;
        assert!(listed["totalSize"].as_u64().unwrap() >= 2);
    }
}

#[tokio::test]
async fn it_asks_and_continues_with_the_answer() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        for (word, answer, artifact) in [("ask", "blue", Some("blue")), ("approve", "yes", None)] {
            let asked = speaker.send(speaker.text(word, word, "a2a-echo")).await.unwrap();
            assert_eq!(state_of(&asked), "input-required", "{word}");
            let id = asked["id"].as_str().unwrap();
            let done = speaker
                .send(speaker.answer(&format!("{word}-yes"), answer, id))
                .await
                .unwrap();
            assert_eq!(state_of(&done), "completed", "{word}");
            assert_eq!(done["artifacts"][0]["parts"][0]["text"].as_str(), artifact);
        }
    }
}

#[tokio::test]
async fn it_works_until_it_is_cancelled() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        let mut request = speaker.text("work", "work", "a2a-echo");
        request["configuration"] = json!({"returnImmediately": true});
        let task = speaker.send(request).await.unwrap();
        assert_eq!(state_of(&task), "working");
        let id = task["id"].as_str().unwrap();
        let mut seen = speaker
            .stream(Operation::SubscribeToTask, json!({ "id": id }))
            .await;
        assert_eq!(seen.next().await.unwrap().short(), "task:working");
        assert_eq!(state_of(&speaker.cancel(id).await.unwrap()), "canceled");
        let last = shorts(&seen.all().await).concat();
        // The protocol buffers of 0.3 spell it with two ls.
        assert_eq!(
            last.replace("cancelled", "canceled"),
            "status:canceled",
            "{}",
            speaker.name()
        );
    }
}

#[tokio::test]
async fn late_subscribers_miss_nothing_of_the_stream() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let request = speaker.text("stream", "stream a b c d", "a2a-echo");
        let mut updates = speaker.stream(Operation::SendStreamingMessage, request).await;
        let first = updates.next().await.unwrap();
        assert_eq!(updates.next().await.unwrap().short(), "status:working");
        let piece = updates.next().await.unwrap();
        assert_eq!(piece.value["artifact"]["parts"][0]["text"], "a ", "{name}");
        assert!(
            piece.value["append"] != true && piece.value["lastChunk"] != true,
            "{name}"
        );

        // A late subscriber first gets the text so far, then the rest.
        let id = first.value["id"].clone();
        let mut late = speaker
            .stream(Operation::SubscribeToTask, json!({ "id": id }))
            .await;
        let task = late.next().await.unwrap().value;
        let mut text = task["artifacts"][0]["parts"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(!text.is_empty(), "{name}");
        let rest = late.all().await;
        let (last, pieces) = rest.split_last().unwrap();
        assert_eq!(last.short(), "status:completed", "{name}");
        for (n, piece) in pieces.iter().enumerate() {
            assert_eq!(
                piece.value["artifact"]["artifactId"],
                task["artifacts"][0]["artifactId"]
            );
            assert_eq!(piece.value["append"], true, "{name}");
            assert_eq!(piece.value["lastChunk"] == true, n + 1 == pieces.len(), "{name}");
            text.push_str(piece.value["artifact"]["parts"][0]["text"].as_str().unwrap());
        }
        assert_eq!(text, "a b c d", "{name}");
        let left = updates.all().await;
        assert_eq!(left.last().unwrap().short(), "status:completed", "{name}");
        let done = speaker.get(json!({ "id": id })).await.unwrap();
        assert_eq!(done["artifacts"][0]["parts"], json!([{ "text": text }]), "{name}");
    }
}

#[tokio::test]
async fn it_returns_files_unchanged() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let files = json!([
            {"raw": "iVBORw0KGgo=", "mediaType": "image/png", "filename": "a.png"},
            {"url": "https://files.example/b.pdf", "mediaType": "application/pdf", "filename": "b.pdf"},
        ]);
        let mut request = speaker.text("file", "file", "a2a-echo");
        let parts = request["message"]["parts"].as_array_mut().unwrap();
        parts.extend(files.as_array().unwrap().clone());
        let task = speaker.send(request).await.unwrap();
        assert_eq!(state_of(&task), "completed", "{name}");
        assert_eq!(task["artifacts"][0]["parts"], files, "{name}");
        assert_eq!(task["history"][0]["parts"].as_array().unwrap().len(), 3);
        // The bytes are stored beside the log, which only has a reference.
        let run = server
            .v1()
            .get(&format!("/v1/runs/{}", task["id"].as_str().unwrap()))
            .await;
        assert!(
            !String::from_utf8(run.body).unwrap().contains("iVBORw0KGgo"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn parts_and_accepted_modes_are_checked_against_the_skill() {
    let server = server().await;
    let card = server.v1().get("/.well-known/agent-card.json").await.json();
    let skill = |id: &str| {
        let skills = card["skills"].as_array().unwrap();
        skills.iter().find(|skill| skill["id"] == id).unwrap().clone()
    };
    assert_eq!(skill("a2a-echo")["inputModes"], json!(["*/*"]));
    assert!(skill("hello").get("inputModes").is_none());
    for speaker in Speaker::all(&server) {
        let png = json!({"raw": "iVBORw0KGgo=", "mediaType": "image/png"});
        for (skill, part, accepted, wanted) in [
            ("a2a-echo", Some(&png), json!(["image/png"]), Ok("completed")),
            ("a2a-echo", None, json!(["audio/ogg"]), Ok("completed")),
            ("hello", Some(&png), json!([]), Err("CONTENT_TYPE_NOT_SUPPORTED")),
            (
                "hello",
                None,
                json!(["image/png"]),
                Err("CONTENT_TYPE_NOT_SUPPORTED"),
            ),
            ("hello", None, json!(["image/png", "text/*"]), Ok("completed")),
        ] {
            let about = format!("{skill} {part:?} {accepted} {}", speaker.name());
            let mut request = speaker.text(&about, "hi", skill);
            if let Some(part) = part {
                request["message"]["parts"]
                    .as_array_mut()
                    .unwrap()
                    .push(part.clone());
            }
            request["configuration"] = json!({ "acceptedOutputModes": accepted });
            let done = speaker.send(request).await.map(|task| state_of(&task));
            assert_eq!(done.as_deref().map_err(|reason| *reason), wanted, "{about}");
        }
        // The same holds for an answer, which changes nothing.
        let asked = speaker.send(speaker.text("gate", "x", "approve")).await.unwrap();
        let id = asked["id"].as_str().unwrap();
        let mut yes = speaker.answer("gate-yes", "yes", id);
        yes["message"]["parts"].as_array_mut().unwrap().push(png.clone());
        assert_eq!(speaker.send(yes).await, Err("CONTENT_TYPE_NOT_SUPPORTED"));
        let read = speaker.get(json!({ "id": id })).await.unwrap();
        assert_eq!(state_of(&read), "input-required");
    }
}

#[tokio::test]
async fn observers_of_every_binding_see_the_same_in_the_same_order() {
    let server = server().await;
    let speakers = Speaker::all(&server);
    let asked = speakers[0]
        .send(speakers[0].text("seen", "ask", "a2a-echo"))
        .await
        .unwrap();
    let id = asked["id"].as_str().unwrap();
    let mut observers = Vec::new();
    for speaker in &speakers {
        let mut seen = speaker
            .stream(Operation::SubscribeToTask, json!({ "id": id }))
            .await;
        assert_eq!(
            seen.next().await.unwrap().short(),
            "task:input-required",
            "{}",
            speaker.name()
        );
        observers.push(seen);
    }
    // One observer leaves without affecting the others.
    drop(observers.swap_remove(2));
    speakers[3]
        .send(speakers[3].answer("seen-yes", "blue", id))
        .await
        .unwrap();
    for seen in observers {
        let shorts = shorts(&seen.all().await);
        assert_eq!(
            shorts,
            ["status:working", "artifact:answer-0", "status:completed"]
        );
    }
}
