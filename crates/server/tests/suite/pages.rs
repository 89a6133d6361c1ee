//! Interrupt links in a browser: pages and forms. JSON clients never get either.

use serde_json::{Value, json};
use url::form_urlencoded;

use crate::{
    client::{Call, Reply},
    server::Server,
    workflows::{chain, node},
};

/// The `Accept` header of Chromium.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8";

/// A draft and its approval gate, with every action.
fn review() -> Value {
    let mut draft = node(
        "draft",
        "core.template",
        json!({ "template": "# Draft\n\nFor **{{ who }}** <script>x</script>" }),
    );
    draft["artifactType"] = json!("note");
    let gate = node(
        "gate",
        "core.approvalGate",
        json!({
            "title": "Send it to {{ who }}?", "artifactId": "draft",
            "actions": ["accept", "reject", "refine", "edit-accept", "ask"],
        }),
    );
    let mut review = chain("review", &[draft, gate]);
    review["variables"] = json!([{ "name": "who", "type": "string" }]);
    review
}

fn order() -> Value {
    let questions = json!([
        { "id": "size", "question": "Which size?", "schema": { "enum": ["small", "large"] } },
        { "id": "count", "question": "How many?", "schema": { "type": "integer", "maximum": 9 } },
    ]);
    chain(
        "form-order",
        &[node(
            "ask",
            "core.clarificationGate",
            json!({ "questions": questions }),
        )],
    )
}

/// Starts a run that waits for a review; returns the run and the path of its link.
pub(crate) async fn link(server: &Server) -> (String, String) {
    link_of(server, &review(), "waiting-approval").await
}

/// Starts a run that waits for answers; returns the run and the path of its link.
pub(crate) async fn order_link(server: &Server) -> (String, String) {
    link_of(server, &order(), "waiting-input").await
}

async fn link_of(server: &Server, workflow: &Value, status: &str) -> (String, String) {
    let registered = server.post("/v1/workflows", workflow).send().await;
    assert!(matches!(registered.status, 200 | 201), "{registered:?}");
    let inputs = json!({ "who": "Ada" });
    let run = server.run(workflow["id"].as_str().unwrap(), inputs).await;
    let waiting = server.wait_for(&run, status).await;
    let token = waiting["interrupt"]["interruptToken"].as_str().unwrap();
    (run, format!("/v1/interrupts/{token}"))
}

fn browse(server: &Server, path: &str) -> Call {
    server.call("GET", path).header("accept", BROWSER)
}

fn fill(server: &Server, path: &str, fields: &[(&str, &str)]) -> Call {
    let body = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish();
    server
        .call("POST", path)
        .header("accept", BROWSER)
        .header("origin", "null")
        .header("sec-fetch-site", "same-origin")
        .form(body)
}

/// Returns the page of a response after checking its security headers.
fn page(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{reply:?}");
    for (name, wanted) in [
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("vary", "Accept"),
    ] {
        assert_eq!(reply.header(name), Some(wanted), "{name}");
    }
    let policy = reply.header("content-security-policy").unwrap();
    for wanted in [
        "default-src 'none'",
        "style-src 'sha256-",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(wanted), "{policy}");
    }
    let page = String::from_utf8(reply.body.clone()).unwrap();
    assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"), "{page}");
    for loads in ["<script", "src=", "<link", "<img", "<iframe", "style=", "onclick"] {
        assert!(!page.contains(loads), "{loads}: {page}");
    }
    page
}

#[tokio::test]
async fn a_browser_gets_the_question_with_its_artifact() {
    let server = Server::start().await;
    let (_, path) = link(&server).await;
    let shown = page(&browse(&server, &path).send().await, 200);
    for wanted in [
        "<h1 class=\"theirs\" dir=\"auto\">Send it to Ada?</h1>",
        "<h3>Draft</h3>",
        "<strong>Ada</strong> &lt;script&gt;x&lt;/script&gt;",
        "draft-0",
        "value=\"edit-accept\"",
        "This link works until",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let token = path.rsplit('/').next().unwrap();
    assert!(!shown.contains(token), "the credential is not in the page");
}

#[tokio::test]
async fn json_clients_get_no_page() {
    let server = Server::start().await;
    let (_, path) = link(&server).await;
    for accept in [
        None,
        Some("*/*"),
        Some("application/json"),
        Some("text/html, application/json"),
    ] {
        let call = server.call("GET", &path);
        let call = accept
            .into_iter()
            .fold(call, |call, accept| call.header("accept", accept));
        let reply = call.send().await;
        assert_eq!(reply.header("vary"), Some("Accept"), "{accept:?}");
        assert_eq!(
            reply.header("content-type"),
            Some("application/json"),
            "{accept:?}"
        );
        assert_eq!(reply.ok(200)["data"]["artifactId"], "draft-0");
    }
    let unknown = server.call("GET", "/v1/interrupts/x").send().await;
    assert_eq!(unknown.header("vary"), Some("Accept"));
    unknown.error(404, "interrupt_not_found");
    // Neither a JSON document labeled as a form nor another media type is accepted as an answer.
    let document = json!({ "resumeValue": { "action": "accept" } }).to_string();
    let reply = server.call("POST", &path).form(document).send().await;
    reply.error(415, "unsupported_media_type");
    // A form from a client that accepts JSON is answered in JSON.
    let reply = server.call("POST", &path).form("action=maybe").send().await;
    reply.error(400, "validation_error");
    let reply = server.call("POST", &path).form("action=accept").send().await;
    assert_eq!(reply.ok(200)["status"], "completed");
    let reply = server.call("POST", &path).form("action=accept").send().await;
    reply.error(409, "interrupt_already_resolved");
}

#[tokio::test]
async fn form_resolves_and_redirects_to_the_page() {
    for (fields, action, said) in [
        (
            &[("action", "accept"), ("feedback", "well done")][..],
            "accept",
            "It was accepted",
        ),
        (
            &[("action", "reject"), ("feedback", "")],
            "reject",
            "It was rejected",
        ),
        (
            &[("action", "refine"), ("feedback", "shorter")],
            "refine",
            "Changes were asked for",
        ),
        (
            &[
                ("action", "edit-accept"),
                ("feedback", ""),
                ("edited", "New\r\ntext"),
            ],
            "edit-accept",
            "accepted with edits",
        ),
    ] {
        let server = Server::start().await;
        let (run, path) = link(&server).await;
        let reply = fill(&server, &path, fields).send().await;
        assert_eq!(reply.status, 303, "{reply:?}");
        assert_eq!(reply.header("location"), path.rsplit('/').next());
        let shown = page(&browse(&server, &path).send().await, 409);
        assert!(shown.contains(said), "{shown}");
        let log = server
            .get(&format!("/v1/runs/{run}/events"))
            .header("accept", "application/json")
            .send()
            .await
            .ok(200);
        let events = log["events"].as_array().unwrap();
        let received = events
            .iter()
            .find(|event| event["type"] == "approval.received")
            .unwrap();
        assert_eq!(received["payload"]["action"], action, "{received}");
        if action == "edit-accept" {
            assert!(log.to_string().contains("New\\ntext"), "{log}");
        }
        // Submitting again changes nothing.
        let again = page(&fill(&server, &path, fields).send().await, 409);
        assert!(again.contains(said), "{again}");
    }
}

#[tokio::test]
async fn clarification_form_follows_its_schemas() {
    let server = Server::start().await;
    let (run, path) = order_link(&server).await;
    let shown = page(&browse(&server, &path).send().await, 200);
    for wanted in [
        "Which size?",
        "type=\"radio\"",
        "How many?",
        "type=\"number\"",
        "max=\"9\"",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    for (count, why) in [("many", "needs a number"), ("12", "does not match its schema")] {
        let fields = [("answers[size]", "large"), ("answers[count]", count)];
        let refused = page(&fill(&server, &path, &fields).send().await, 400);
        assert!(
            refused.contains("role=\"alert\"") && refused.contains(why),
            "{refused}"
        );
        // The input is kept.
        assert!(refused.contains("value=\"large\" required checked"), "{refused}");
        assert!(refused.contains(&format!("value=\"{count}\"")), "{refused}");
    }
    let fields = [("answers[size]", "large"), ("answers[count]", "3")];
    assert_eq!(fill(&server, &path, &fields).send().await.status, 303);
    let done = server.wait_for(&run, "completed").await;
    assert_eq!(
        done["variables"]["ask"]["answers"],
        json!({ "size": "large", "count": 3 })
    );
    let closed = page(&browse(&server, &path).send().await, 409);
    assert!(closed.contains("Answered"), "{closed}");
}

#[tokio::test]
async fn approvers_question_is_shown_and_keeps_the_gate_open() {
    let server = Server::start().await;
    let (_, path) = link(&server).await;
    let ask = [("action", "ask"), ("feedback", "Why <now>?")];
    assert_eq!(fill(&server, &path, &ask).send().await.status, 303);
    let shown = page(&browse(&server, &path).send().await, 200);
    assert!(
        shown.contains("Asked so far") && shown.contains("Why &lt;now&gt;?"),
        "{shown}"
    );
}

#[tokio::test]
async fn dead_links_show_the_reason() {
    let server = Server::start().await;
    let unknown = page(&browse(&server, "/v1/interrupts/nonsense").send().await, 404);
    assert!(unknown.contains("no such question"), "{unknown}");

    let (run, path) = link(&server).await;
    server
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    server.wait_for(&run, "cancelled").await;
    let json_status = server.call("GET", &path).send().await.status;
    let ended = page(&browse(&server, &path).send().await, json_status);
    assert!(
        ended.contains("The run has ended") && ended.contains("cancelled"),
        "{ended}"
    );
    let accept = [("action", "accept")];
    let late = page(&fill(&server, &path, &accept).send().await, json_status);
    assert!(late.contains("The run has ended"), "{late}");

    let (_, path) = link(&server).await;
    server.clock.advance(400 * 24 * 3_600_000);
    let expired = page(&browse(&server, &path).send().await, 410);
    assert!(expired.contains("has expired"), "{expired}");
    let late = page(&fill(&server, &path, &accept).send().await, 410);
    assert!(late.contains("has expired"), "{late}");
}

#[tokio::test]
async fn cross_site_form_is_refused() {
    let server = Server::start().await;
    let (run, path) = link(&server).await;
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
    ] {
        let call = server
            .call("POST", &path)
            .header("accept", BROWSER)
            .header(name, value)
            .form("action=accept");
        let refused = page(&call.send().await, 403);
        assert!(refused.contains("another site"), "{refused}");
    }
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    // A form is accepted under the host name it was requested by, and from clients that send no origin.
    let call = server.call("POST", &path).header("origin", "http://test");
    assert_eq!(call.form("action=accept").send().await.status, 200);
}

#[tokio::test]
async fn form_limits_apply_before_and_after_reading() {
    let server = Server::start_with(|config| config.server.max_body_bytes = 64 << 10).await;
    let (run, path) = link(&server).await;
    let too_large = fill(&server, &path, &[("feedback", &"x".repeat(100_000))]);
    page(&too_large.send().await, 413);
    let many: Vec<_> = (0..2_000).map(|_| ("answers[a]", "1")).collect();
    let too_many = page(&fill(&server, &path, &many).send().await, 400);
    assert!(too_many.contains("more than 1000 fields"), "{too_many}");
    let unknown = page(&fill(&server, &path, &[("voter", "boss")]).send().await, 400);
    assert!(unknown.contains("voter"), "{unknown}");
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
}

#[tokio::test]
async fn sensitive_questions_are_not_shown_again() {
    let server = Server::start().await;
    let mut gate = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Go?", "actions": ["accept", "ask"] }),
    );
    gate["outputSensitivity"] = json!({ "feedback": true });
    let document = chain("discreet", &[gate]);
    let (_, path) = link_of(&server, &document, "waiting-approval").await;
    let ask = [("action", "ask"), ("feedback", "Is it about Bo?")];
    assert_eq!(fill(&server, &path, &ask).send().await.status, 303);
    let shown = page(&browse(&server, &path).send().await, 200);
    assert!(!shown.contains("about Bo"), "{shown}");
}

#[tokio::test]
async fn page_reports_that_its_gate_requires_a_credential() {
    let server = Server::start().await;
    let run = server.run("signed", json!({})).await;
    let waiting = server.wait_for(&run, "waiting-approval").await;
    let token = waiting["interrupt"]["interruptToken"].as_str().unwrap();
    let path = format!("/v1/interrupts/{token}");
    let fields = [("action", "accept"), ("feedback", "as discussed")];
    // No form that could only be refused.
    let shown = page(&browse(&server, &path).send().await, 200);
    for text in ["<form", "whoever has it can answer"] {
        assert!(!shown.contains(text), "{text}: {shown}");
    }
    assert!(shown.contains("with a credential of their own"), "{shown}");
    let reply = fill(&server, &path, &fields).send().await;
    let refused = page(&reply, 401);
    assert!(refused.contains("authenticated approver"), "{refused}");
    assert!(reply.header("www-authenticate").is_some());
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
}

#[tokio::test]
async fn head_has_the_headers_of_the_page() {
    let server = Server::start().await;
    let (_, path) = link(&server).await;
    let reply = server.call("HEAD", &path).header("accept", BROWSER).send().await;
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
}
