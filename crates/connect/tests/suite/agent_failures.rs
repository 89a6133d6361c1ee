//! What an agent says and asks for when it refuses a call.

use std::time::Duration;

use serde_json::json;
use wopr_engine::{Executor as _, Outcome, Report};

use crate::{
    agent::{Agent, reply, rpc_reply, with_header},
    agent_calls::{agent, answering, asked, asking, call, executors, sent},
};

#[tokio::test]
async fn delay_that_an_agent_asks_for_instead_of_its_card_is_kept() {
    for status in [429, 503] {
        let agent =
            Agent::start(move |_| with_header(reply(status, "text/plain", ""), "retry-after", "9")).await;
        let executors = executors(&agent, |_| {});
        // The second failure may be the remembered first one.
        for _ in 0..2 {
            let report = executors.run(call()).await;
            let Report::Ended(Outcome::Failed {
                retryable,
                retry_after,
                ..
            }) = report
            else {
                panic!("{report:?}")
            };
            assert_eq!(
                (retryable, retry_after),
                (true, Some(Duration::from_secs(9))),
                "{status}"
            );
        }
    }
}

#[tokio::test]
async fn failure_says_what_the_agent_said_with_its_status() {
    for (status, body, words) in [
        (
            403,
            json!({ "error": { "code": 403, "message": "lacks the scope runs:create" } }),
            "lacks the scope runs:create",
        ),
        (
            400,
            json!({ "detail": "skill must be one of a, b" }),
            "skill must be one of a, b",
        ),
        (500, json!({ "message": "database is down" }), "database is down"),
        (
            401,
            json!({ "error": "invalid_token", "error_description": "expired" }),
            "expired",
        ),
        (400, json!({ "error": "too long" }), "too long"),
    ] {
        let agent = agent("1.0", move |_, _| {
            reply(status, "application/json", body.to_string())
        })
        .await;
        let report = executors(&agent, |_| {}).run(call()).await;
        let Report::Ended(Outcome::Failed { message, .. }) = report else {
            panic!("{report:?}")
        };
        assert!(
            message.contains(&status.to_string()) && message.ends_with(words),
            "{message}"
        );
    }
}

#[tokio::test]
async fn answer_that_cannot_be_told_says_why() {
    let agent = agent("1.0", |seen, method| match method {
        "SendMessage" if seen.json()["params"]["message"]["taskId"] == "t" => {
            let body = json!({ "error": { "code": 503, "message": "closed for lunch" } });
            reply(503, "application/json", body.to_string())
        }
        "SendMessage" => sent("1.0", &asking("m", "Sure?")),
        _ => rpc_reply(&asking("m", "Sure?")),
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, _) = asked(&executors, None).await;
    let error = executors.answer(answering(&handle)).await.unwrap_err();
    assert!(error.to_string().ends_with("closed for lunch"), "{error}");
}
