//! Agents that answer with nonsense, with nothing, or without end.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::body::Frame;
use serde_json::json;
use wopr_connect::a2a::{Call, Error};
use wopr_wire::a2a::{
    method::{Operation, Version},
    model::TaskState,
};

use crate::agent::{
    Agent, Reply, Seen, chunked, endless, grpc_message, grpc_reply, json_reply, message, reply, rpc_reply,
    stalled, streamed, task,
};

const BINDINGS: [(&str, &str); 3] = [("/rpc", "JSONRPC"), ("/rest", "HTTP+JSON"), ("", "GRPC")];
const SSE: &str = "text/event-stream";
const SHORT: Duration = Duration::from_millis(50);
const LONGER: Duration = Duration::from_millis(1_000);

async fn agent(
    (path, binding): (&'static str, &'static str),
    handle: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
) -> Agent {
    Agent::with_card(Vec::leak(vec![(path, binding, "1.0")]), handle).await
}

/// The errors of a unary call and of a stream.
async fn errors(agent: &Agent, call: Call) -> [Error; 2] {
    let found = agent.call(call).await.unwrap();
    let unary = found.send_message(message()).await.unwrap_err();
    let streamed = match found.subscribe("t", None).await {
        Err(error) => error,
        Ok(items) => {
            let last = items.collect::<Vec<_>>().await.pop();
            last.expect("the stream has an item")
                .expect_err("the last item is an error")
        }
    };
    [unary, streamed]
}

#[tokio::test]
async fn nonsense_is_an_undecodable_answer() {
    for binding in BINDINGS {
        let media = if binding.1 == "GRPC" {
            "application/grpc"
        } else {
            "application/json"
        };
        let nonsense = ["<html>", "[]", "7", "\0\0\0\0\u{3}xyz", "{\"jsonrpc\": \"1.0\"}"];
        for body in nonsense {
            let agent = agent(binding, move |_| reply(200, media, body)).await;
            for error in errors(&agent, Call::default()).await {
                let is_expected = matches!(
                    error,
                    Error::Undecodable(_) | Error::NoStream | Error::Interrupted(_) | Error::TooLarge { .. }
                );
                assert!(
                    is_expected && error.may_have_been_sent(),
                    "{binding:?} {body:?}: {error:?}"
                );
            }
        }
    }
    let agent = agent(BINDINGS[0], |_| {
        chunked(SSE, vec![Bytes::from_static(b"data: {}\n\n")])
    })
    .await;
    let [_, error] = errors(&agent, Call::default()).await;
    assert!(matches!(error, Error::Undecodable(_)), "{error:?}");
}

#[tokio::test]
async fn answer_to_another_request_is_refused() {
    let agent = agent(BINDINGS[0], |seen| {
        let other = json!({ "jsonrpc": "2.0", "id": "another", "result": { "task": task() } }).to_string();
        match seen.header("accept") {
            SSE => chunked(SSE, vec![format!("data: {other}\n\n").into()]),
            _ => reply(200, "application/json", other),
        }
    })
    .await;
    for error in errors(&agent, Call::default()).await {
        assert!(matches!(error, Error::Undecodable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn silent_agent_times_out() {
    for binding in BINDINGS {
        let media = if binding.1 == "GRPC" {
            "application/grpc"
        } else {
            SSE
        };
        let agent = agent(binding, move |_| {
            stalled(media, vec![Bytes::from_static(b": hi")])
        })
        .await;
        let call = Call {
            send_timeout: SHORT,
            idle_timeout: SHORT,
            ..Call::default()
        };
        let found = agent.call(call).await.unwrap();
        let error = found.send_message(message()).await.unwrap_err();
        assert!(
            matches!(error, Error::TimedOut(_)) && error.may_have_been_sent(),
            "{error:?}"
        );
        let error = match found.subscribe("t", None).await {
            Err(error) => error,
            Ok(mut items) => items.next().await.unwrap().unwrap_err(),
        };
        // The bytes are no frame of gRPC, which is another way to end.
        let is_expected = matches!(error, Error::TimedOut(_) | Error::Undecodable(_));
        assert!(is_expected, "{binding:?}: {error:?}");
    }
}

#[tokio::test]
async fn huge_answers_events_and_frames_are_cut_off() {
    for binding in &BINDINGS[..2] {
        let agent = agent(*binding, |seen| {
            let chunk = Bytes::from(vec![b'x'; 64 << 10]);
            match seen.header("accept") {
                SSE => endless(SSE, chunk),
                _ => endless("application/json", chunk),
            }
        })
        .await;
        let [unary, streamed] = errors(&agent, Call::default()).await;
        assert!(
            matches!(unary, Error::TooLarge { limit } if limit == 16 << 20),
            "{unary:?}"
        );
        assert!(
            matches!(streamed, Error::TooLarge { limit } if limit == 8 << 20),
            "{streamed:?}"
        );
    }
    // The length alone is refused: the frame is not waited for.
    let agent = agent(BINDINGS[2], |_| {
        stalled("application/grpc", vec![Bytes::from_static(b"\0\x7f\0\0\0")])
    })
    .await;
    let [unary, streamed] = errors(&agent, Call::default()).await;
    assert!(
        matches!(unary, Error::TooLarge { limit } if limit == 16 << 20),
        "{unary:?}"
    );
    assert!(
        matches!(streamed, Error::TooLarge { limit } if limit == 8 << 20),
        "{streamed:?}"
    );
}

#[tokio::test]
async fn grpc_status_after_a_message_invalidates_it() {
    let sent = || grpc_message(Version::V1_0, Operation::SendMessage, &json!({"task": task()}));
    let agent = agent(BINDINGS[2], move |_| grpc_reply(&[sent()], "14")).await;
    let found = agent.call(Call::default()).await.unwrap();
    let error = found.send_message(message()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Status(status) if status.label == "UNAVAILABLE"),
        "{error:?}"
    );
    assert!(error.is_transient());
}

#[tokio::test]
async fn first_item_of_an_answer_has_a_limit_that_comments_do_not_extend() {
    for binding in &BINDINGS[..2] {
        let agent = agent(*binding, |_| {
            endless(SSE, Bytes::from_static(b": still here\n\n"))
        })
        .await;
        let call = Call {
            first_timeout: SHORT,
            ..Call::default()
        };
        let found = agent.call(call).await.unwrap();
        let error = match found.send_streaming_message(message()).await {
            // A busy machine may not get as far as the headers in time.
            Err(error) => error,
            Ok(mut items) => {
                let error = items.next().await.unwrap().unwrap_err();
                assert!(items.next().await.is_none());
                error
            }
        };
        assert!(
            matches!(error, Error::TimedOut(_)) && error.may_have_been_sent() && error.is_transient(),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn later_items_may_take_longer_than_the_first() {
    let agent = agent(BINDINGS[0], |_| {
        let item = json!({"jsonrpc": "2.0", "id": 1, "result": {"task": task()}});
        let first = stream::iter([Ok(Frame::data(Bytes::from(format!("data: {item}\n\n"))))]);
        let second = Bytes::from(format!("data: {item}\n\n"));
        let later = stream::once(async move {
            // sleep: the time is what is tested.
            tokio::time::sleep(2 * LONGER).await;
            Ok(Frame::data(second))
        });
        streamed(SSE, first.chain(later))
    })
    .await;
    let call = Call {
        first_timeout: LONGER,
        ..Call::default()
    };
    let found = agent.call(call).await.unwrap();
    let items: Vec<_> = found
        .send_streaming_message(message())
        .await
        .unwrap()
        .collect()
        .await;
    assert!(items.len() == 2 && items.iter().all(Result::is_ok), "{items:?}");
}

#[tokio::test]
async fn unknown_state_and_invalid_time_do_not_hide_a_task() {
    let odd = json!({"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_DREAMING", "timestamp": "now"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": "kept"}]}]});
    let old = json!({"kind": "task", "id": "t", "contextId": "c",
        "status": {"state": "dreaming", "timestamp": 7},
        "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": "kept"}]}]});
    for (path, name, version, document) in [
        (
            "/rpc",
            "JSONRPC",
            "1.0",
            json!({"jsonrpc": "2.0", "id": 1, "result": odd}),
        ),
        ("/rest", "HTTP+JSON", "1.0", odd),
        (
            "/rpc",
            "JSONRPC",
            "0.3",
            json!({"jsonrpc": "2.0", "id": 1, "result": old}),
        ),
    ] {
        let agent = Agent::with_card(Vec::leak(vec![(path, name, version)]), move |_| {
            json_reply(&document)
        })
        .await;
        let found = agent.call(Call::default()).await.unwrap();
        let task = found.get_task("t", None).await.unwrap();
        assert_eq!(task.status.state, TaskState::Unspecified, "{name} {version}");
        assert_eq!(task.status.timestamp, None);
        assert_eq!(task.artifacts.len(), 1);
    }
}

#[tokio::test]
async fn task_that_was_not_asked_for_is_refused() {
    for (path, name) in &BINDINGS[..2] {
        let agent = agent((path, name), |seen| match seen.path.as_str() {
            "/rpc" => rpc_reply(&task()),
            _ => json_reply(&task()),
        })
        .await;
        let found = agent.call(Call::default()).await.unwrap();
        assert!(found.get_task("t", None).await.is_ok());
        let error = found.get_task("u", None).await.unwrap_err();
        assert!(matches!(error, Error::OtherTask), "{error:?}");
        assert_eq!((error.code(), error.is_transient()), ("remote_failed", false));
    }
}
