//! Answers read from messages, by interrupt kind.

use wopr_wire::json::Decode as _;

use super::*;

fn message(parts: &Value, metadata: &Value) -> Message {
    let document = json!({
        "messageId": "m", "role": "ROLE_USER", "parts": parts, "metadata": metadata,
    });
    Message::decode(document).unwrap()
}

fn check(kind: InterruptKind, data: &Value, table: Vec<(Value, Value, Result<Value, &str>)>) {
    for (parts, metadata, wanted) in table {
        let message = message(&parts, &metadata);
        let read = read(&message, Asked { kind, data });
        match (read, wanted) {
            (Ok(value), Ok(wanted)) => assert_eq!(value, wanted, "{parts} {metadata}"),
            (Err(error), Err(wanted)) => {
                let text = error.to_string();
                assert!(text.contains(wanted), "{parts} {metadata}: {text}");
            }
            (read, wanted) => panic!("{parts} {metadata}: {read:?}, wanted {wanted:?}"),
        }
    }
}

#[test]
fn reads_approval_answers() {
    let data = json!({"actions": ["accept", "reject", "refine"]});
    let text = |text: &str| json!([{ "text": text }]);
    let none = json!({});
    check(
        InterruptKind::Approval,
        &data,
        vec![
            (text("Accept"), none.clone(), Ok(json!({"action": "accept"}))),
            (text(" approve\n"), none.clone(), Ok(json!({"action": "accept"}))),
            (text("YES"), none.clone(), Ok(json!({"action": "accept"}))),
            (text("no"), none.clone(), Ok(json!({"action": "reject"}))),
            (text("reject"), none.clone(), Ok(json!({"action": "reject"}))),
            (
                text("yes, but shorter"),
                none.clone(),
                Err("the actions offered are accept, reject, refine"),
            ),
            (text(""), none.clone(), Err("the actions offered are")),
            (
                json!([{"data": {"approve": true, "feedback": "looks good"}}]),
                none.clone(),
                Ok(json!({"approve": true, "feedback": "looks good"})),
            ),
            (
                json!([{"text": "too long"}, {"data": {"action": "reject"}}]),
                none.clone(),
                Ok(json!({"action": "reject", "feedback": "too long"})),
            ),
            (
                json!([{"data": {"unrelated": 1}}]),
                none.clone(),
                Err("has data without action or approve"),
            ),
            (
                json!([{"data": true}]),
                none.clone(),
                Err("has data that is no object"),
            ),
            (
                json!([{"url": "https://x.example/"}]),
                none.clone(),
                Err("neither text nor data"),
            ),
            (
                text("fine"),
                json!({"openwop": {"action": "accept"}}),
                Ok(json!({"action": "accept", "feedback": "fine"})),
            ),
            (
                text(""),
                json!({"openwop.action": {"action": "refine", "refineFeedback": {"scope": "whole"}}}),
                Ok(json!({"action": "refine", "refineFeedback": {"scope": "whole"}})),
            ),
            (
                json!([{"data": {"refineFeedback": {"scope": "whole"}}}]),
                json!({"openwop": {"interrupt": {"action": "refine", "interruptId": "gate:0"}}}),
                Ok(json!({"action": "refine", "refineFeedback": {"scope": "whole"}})),
            ),
            (
                text("yes"),
                json!({"openwop": {"interrupt": {"interruptId": "gate:0"}}}),
                Ok(json!({"action": "accept"})),
            ),
            (
                text("yes"),
                json!({"openwop": {"action": 7}}),
                Err("must be an action"),
            ),
        ],
    );
}

#[test]
fn contradicting_answer_is_rejected() {
    let none = json!({});
    let actions = json!({"actions": ["accept", "reject"]});
    check(
        InterruptKind::Approval,
        &actions,
        vec![
            (
                json!([{"data": {"action": "accept"}}, {"data": {"action": "reject"}}]),
                none.clone(),
                Err("has several values for 'action'; the actions offered are accept, reject"),
            ),
            (
                json!([{"data": {"approve": true}}, {"data": {"approve": true, "feedback": "fine"}}]),
                none.clone(),
                Ok(json!({"approve": true, "feedback": "fine"})),
            ),
            (
                json!([{"data": {"action": "accept"}}]),
                json!({"openwop": {"action": "reject"}}),
                Err("has several values for 'action'"),
            ),
            (
                json!([{"text": "so be it"}]),
                json!({"openwop": {"action": "accept", "interrupt": {"action": "reject"}}}),
                Err("has several values for 'action'"),
            ),
            (
                json!([{"data": {"action": "accept"}}]),
                json!({"openwop": {"action": "accept"}}),
                Ok(json!({"action": "accept"})),
            ),
            (
                json!([{"text": "no"}, {"data": {"approve": true}}]),
                none.clone(),
                Err("says one thing in its text and another in its data"),
            ),
            (
                json!([{"text": "no"}, {"data": {"action": "reject"}}]),
                none.clone(),
                Ok(json!({"action": "reject", "feedback": "no"})),
            ),
            (
                json!([{"data": {"action": "accept"}}, {"data": false}]),
                none.clone(),
                Err("has data beside the answer that is no object"),
            ),
        ],
    );
    let one = json!({"questions": [{"id": "n", "question": "which?"}]});
    check(
        InterruptKind::Clarification,
        &one,
        vec![
            (
                json!([{"text": "these"}, {"data": [1, 2]}]),
                none.clone(),
                Ok(json!({"answers": {"n": [1, 2]}})),
            ),
            (
                json!([{"data": 1}, {"data": 1}]),
                none.clone(),
                Ok(json!({"answers": {"n": 1}})),
            ),
            (
                json!([{"data": 1}, {"data": 2}]),
                none.clone(),
                Err("has several values for one answer; the questions are n"),
            ),
            (
                json!([{"data": {"n": 1}}, {"data": 2}]),
                none,
                Err("has data beside the answer that is no object"),
            ),
        ],
    );
}

#[test]
fn free_text_becomes_a_question_if_ask_is_offered() {
    let data = json!({"actions": ["accept", "ask"]});
    check(
        InterruptKind::Approval,
        &data,
        vec![(
            json!([{"text": "why is it blue?"}]),
            json!({}),
            Ok(json!({"action": "ask", "question": "why is it blue?"})),
        )],
    );
}

#[test]
fn reads_clarification_answers() {
    let one = json!({"questions": [{"id": "n", "question": "how many?", "schema": {"type": "integer"}}]});
    let two = json!({"questions": [
        {"id": "a", "question": "a?"}, {"id": "b", "question": "b?"},
    ]});
    let none = json!({});
    check(
        InterruptKind::Clarification,
        &one,
        vec![
            (
                json!([{"text": "3"}]),
                none.clone(),
                Ok(json!({"answers": {"n": 3}})),
            ),
            (
                json!([{"text": "a few"}]),
                none.clone(),
                Ok(json!({"answers": {"n": "a few"}})),
            ),
            (
                json!([{"data": 3}]),
                none.clone(),
                Ok(json!({"answers": {"n": 3}})),
            ),
            (
                json!([{"data": {"n": 3}}]),
                none.clone(),
                Ok(json!({"answers": {"n": 3}})),
            ),
        ],
    );
    // What answers the question of another agent, that agent knows.
    let remote = json!({"source": "remote", "questions": [{"id": "answer", "question": "?"}]});
    check(
        InterruptKind::Clarification,
        &remote,
        vec![
            (
                json!([{"text": "blue"}]),
                none.clone(),
                Ok(json!({"answers": {"answer": "blue"}})),
            ),
            (
                json!([{"data": {"approve": true}}]),
                none.clone(),
                Ok(json!({"approve": true})),
            ),
            (
                json!([{"text": "with a note"}, {"data": {"approve": true}}]),
                none.clone(),
                Ok(json!({"text": "with a note", "data": {"approve": true}})),
            ),
            (
                json!([]),
                json!({"openwop": {"action": "accept"}}),
                Ok(json!({"action": "accept"})),
            ),
        ],
    );
    check(
        InterruptKind::Clarification,
        &two,
        vec![
            (
                json!([{"data": {"answers": {"a": 1, "b": 2}}}]),
                none.clone(),
                Ok(json!({"answers": {"a": 1, "b": 2}})),
            ),
            (
                json!([{"text": "3"}]),
                none.clone(),
                Err("the questions are a, b; send data with answers by id"),
            ),
            (
                json!([{"data": {"c": 1}}]),
                none.clone(),
                Err("answers something else"),
            ),
            (
                json!([{"text": "x"}]),
                json!({"openwop": {"interrupt": {"answers": {"a": 1, "b": 2}}}}),
                Ok(json!({"answers": {"a": 1, "b": 2}})),
            ),
        ],
    );
}

#[test]
fn events_and_custom_values_pass_unchanged() {
    let none = json!({});
    check(
        InterruptKind::ExternalEvent,
        &json!({"eventType": "paid", "correlation": {"order": 7}}),
        vec![
            (
                json!([{"data": {"order": 7, "amount": 3}}]),
                none.clone(),
                Ok(json!({"order": 7, "amount": 3})),
            ),
            (
                json!([{"text": "paid"}]),
                none.clone(),
                Err("send the event as a data part"),
            ),
        ],
    );
    check(
        InterruptKind::Custom,
        &json!({"customKind": "x"}),
        vec![
            (json!([{"text": " words "}]), none.clone(), Ok(json!(" words "))),
            (json!([{"data": [1]}]), none.clone(), Ok(json!([1]))),
            (json!([{"data": {"a": 1}}]), none.clone(), Ok(json!({"a": 1}))),
            (
                json!([{"text": "{\"a\": 1}"}]),
                none.clone(),
                Ok(json!("{\"a\": 1}")),
            ),
        ],
    );
    check(
        InterruptKind::Custom,
        &json!({"resumeSchema": {"type": "object"}}),
        vec![
            (
                json!([{"text": " {\"a\": 1}\n"}]),
                none.clone(),
                Ok(json!({"a": 1})),
            ),
            (json!([{"text": "[1]"}]), none.clone(), Ok(json!("[1]"))),
            (json!([{"text": "{\"a\""}]), none, Ok(json!("{\"a\""))),
        ],
    );
}

#[test]
fn metadata_selects_an_interrupt() {
    let text = json!([{"text": "yes"}]);
    let read = |metadata: Value| selector(&message(&text, &metadata));
    assert_eq!(read(json!({})).unwrap(), Selector::default());
    assert_eq!(
        read(json!({"openwop": {"interrupt": {"interruptId": "a:0"}}}))
            .unwrap()
            .interrupt
            .as_deref(),
        Some("a:0")
    );
    assert_eq!(
        read(json!({"openwop.interrupt.nodeId": "a"}))
            .unwrap()
            .node
            .as_deref(),
        Some("a")
    );
    assert!(read(json!({"openwop.interrupt.nodeId": 1})).is_err());
}

#[test]
fn reads_verdicts_on_held_decisions() {
    let text = |text: &str| json!([{ "text": text }]);
    let data = |data: Value| json!([{ "data": data }]);
    let none = json!({});
    check(
        InterruptKind::LowConfidence,
        &json!({"agentId": "acme.reader"}),
        vec![
            (
                data(json!({"approve": true, "voter": "zed"})),
                none.clone(),
                Ok(json!({"ratified": true, "voter": "zed"})),
            ),
            (text("yes"), none.clone(), Ok(json!({"ratified": true}))),
            (text("Reject"), none.clone(), Ok(json!({"rejected": true}))),
            (text("perhaps"), none.clone(), Err("none of the words")),
            (
                data(json!({"ratified": true})),
                none.clone(),
                Ok(json!({"ratified": true})),
            ),
            (
                data(json!({"decision": {"next": "b"}})),
                none.clone(),
                Ok(json!({"decision": {"next": "b"}})),
            ),
            (
                data(json!({"action": "accept"})),
                none.clone(),
                Ok(json!({"ratified": true})),
            ),
            (
                data(json!({"approve": false})),
                none.clone(),
                Ok(json!({"rejected": true})),
            ),
            (
                data(json!({"action": "edit-accept", "editedArtifactData": {"next": "b"}})),
                none.clone(),
                Ok(json!({"decision": {"next": "b"}})),
            ),
            (
                data(json!({"action": "edit-accept"})),
                none.clone(),
                Err("no editedArtifactData"),
            ),
            (data(json!({"next": "b"})), none.clone(), Err("no verdict")),
            (data(json!(true)), none.clone(), Err("no object")),
            (
                text("fine"),
                json!({"openwop": {"action": "accept"}}),
                Ok(json!({"ratified": true})),
            ),
        ],
    );
}

#[test]
fn reads_turns_of_a_conversation() {
    let none = json!({});
    check(
        InterruptKind::Conversation,
        &json!({"conversationId": "talk:0"}),
        vec![
            (
                json!([{"text": "Tea."}]),
                none.clone(),
                Ok(json!({"content": "Tea."})),
            ),
            (json!([{"text": " "}]), none.clone(), Err("is empty")),
            (
                json!([{"data": {"tea": "green"}}]),
                none.clone(),
                Ok(json!({"content": {"tea": "green"}})),
            ),
            (json!([{"data": [1]}]), none.clone(), Ok(json!({"content": [1]}))),
            (
                json!([{"text": "Bye."}, {"data": {"operation": "close", "outcome": 1}}]),
                none.clone(),
                Ok(json!({"operation": "close", "outcome": 1, "content": "Bye."})),
            ),
        ],
    );
}
