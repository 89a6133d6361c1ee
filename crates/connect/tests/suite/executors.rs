//! Effects executed through the engine's port.

use std::{fs, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use wopr_connect::{
    Executors, Options,
    egress::{Limits, Resolver},
};
use wopr_core::{NodeId, RunId, RunKey, StepId, TenantId, TraceContext};
use wopr_engine::{Attempt, Blobs, Executor, HttpCall, Keep, Outcome, Progress, Report, Request, Wake};

use crate::peer::{Answers, Peer, Script, answer, gate, gate_with, limits};

const LOOPBACK: &str = "127.0.0.0/8";
pub(crate) const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
pub(crate) const STATE: &str = "vendor=1,other=2";

/// The outcome of an attempt; these executors end every attempt.
async fn ended(executors: &Executors, attempt: Attempt) -> Outcome {
    match executors.run(attempt).await {
        Report::Ended(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn attempt(request: Request) -> Attempt {
    Attempt {
        run: RunKey::new(
            TenantId::parse("t").unwrap(),
            RunId::parse("run_0123456789abcdef").unwrap(),
        ),
        step: StepId {
            node: NodeId::parse("call").unwrap(),
            ordinal: 0,
        },
        attempt: 0,
        number: 0,
        is_repeat: false,
        is_interrupted: false,
        idempotency_key: "key-1".to_owned(),
        trace: TraceContext::parse(TRACE.as_bytes(), [STATE.as_bytes()]),
        request,
        handle: None,
        cursor: None,
        wake: Wake::none(),
        progress: Progress::none(),
        blobs: Blobs::none(),
        keep: Keep::default(),
    }
}

fn call(method: &str, url: &str) -> HttpCall {
    HttpCall {
        method: method.to_owned(),
        url: url.to_owned(),
        headers: vec![],
        secret_headers: Vec::new(),
        body: None,
        timeout_ms: 20_000,
    }
}

async fn run(executors: &Executors, call: HttpCall) -> Outcome {
    ended(executors, attempt(Request::Http(call))).await
}

/// Returns the error code and whether it is retryable. Asserts that clients may see the message.
fn failure(outcome: Outcome) -> (String, bool) {
    let Outcome::Failed {
        code,
        message,
        retryable,
        retry_after: _,
        may_go_on: _,
        is_timeout: _,
    } = outcome
    else {
        panic!("done: {outcome:?}")
    };
    for leak in ["SECRET", "127.0.0", "10.0.0", "reqwest", "hyper", "os error"] {
        assert!(!message.contains(leak), "{message}");
    }
    (code, retryable)
}

fn failed(code: &str, retryable: bool) -> (String, bool) {
    (code.to_owned(), retryable)
}

#[tokio::test]
async fn call_carries_key_trace_and_body() {
    let json = answer(
        201,
        &[
            "content-type: application/json",
            "etag: \"1\"",
            "set-cookie: SECRET",
        ],
        r#"{"id":7}"#,
    );
    let mut peer = Peer::start(Script::Answer(json)).await;
    let executors = Executors::new(gate(LOOPBACK), Options::default());

    let mut post = call("POST", &peer.url("/items"));
    post.headers = vec![
        ("X-Api-Key".to_owned(), "k".to_owned()),
        ("traceparent".to_owned(), "mine".to_owned()),
        ("tracestate".to_owned(), "mine=1".to_owned()),
    ];
    post.body = Some(json!({"name": "ä"}).to_string());
    let expected = json!({
        "status": 201,
        "headers": {"content-type": "application/json", "etag": "\"1\""},
        "body": {"id": 7},
        "contentTrust": "untrusted",
    });
    assert_eq!(run(&executors, post).await, Outcome::Done(expected));

    let request = peer.next_request().await;
    assert!(request.starts_with("POST /items HTTP/1.1\r\n"), "{request}");
    for line in [
        "idempotency-key: key-1",
        "x-api-key: k",
        "content-type: application/json",
        &format!("traceparent: {TRACE}"),
        &format!("tracestate: {STATE}"),
        &format!("user-agent: wopr/{}", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(
            request.lines().filter(|found| *found == line).count(),
            1,
            "{line} in {request}"
        );
    }
    assert!(!request.contains("mine"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"name\":\"ä\"}"), "{request}");
}

#[tokio::test]
async fn workflow_headers_take_precedence() {
    let mut peer = Peer::start(Script::Answer(answer(200, &[], ""))).await;
    let executors = Executors::new(gate(LOOPBACK), Options::default());
    let mut put = call("PUT", &peer.url("/"));
    put.headers = [
        ("IDEMPOTENCY-KEY", "own"),
        ("Content-Type", "application/merge-patch+json"),
        ("User-Agent", "me"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    put.body = Some(json!(null).to_string());
    assert!(matches!(run(&executors, put).await, Outcome::Done(_)));
    let request = peer.next_request().await;
    for line in [
        "idempotency-key: own",
        "content-type: application/merge-patch+json",
        "user-agent: me",
    ] {
        assert!(request.contains(line), "{line} in {request}");
    }
    assert!(
        !request.contains("key-1") && request.ends_with("\r\n\r\nnull"),
        "{request}"
    );
}

#[tokio::test]
async fn error_responses_fail_by_status() {
    for (status, expected) in [
        (301, failed("redirect_refused", false)),
        (307, failed("redirect_refused", false)),
        (400, failed("external_call_rejected", false)),
        (401, failed("external_call_rejected", false)),
        (408, failed("external_call_failed", true)),
        (429, failed("external_call_failed", true)),
        (503, failed("external_call_failed", true)),
    ] {
        let peer = Peer::start(Script::Answer(answer(
            status,
            &["location: http://127.0.0.1/SECRET"],
            "SECRET",
        )))
        .await;
        let executors = Executors::new(gate(LOOPBACK), Options::default());
        assert_eq!(
            failure(run(&executors, call("GET", &peer.url("/"))).await),
            expected,
            "{status}"
        );
    }
}

#[tokio::test]
async fn refused_connection_is_retryable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let url = format!("{origin}/path?token=SECRET");
    drop(listener);
    let executors = Executors::new(gate(LOOPBACK), Options::default());
    let outcome = run(&executors, call("GET", &url)).await;
    // The origin is that of the definition, not an address to which a name resolved.
    assert!(
        matches!(
            &outcome,
            Outcome::Failed { code, message, retryable: true, .. }
                if code == "external_call_failed"
                    && *message == format!("failed to connect to the peer ({origin})")
        ),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn attempt_ends_within_its_timeout() {
    let peer = Peer::start(Script::Silence).await;
    let executors = Executors::new(gate(LOOPBACK), Options::default());
    let mut get = call("GET", &peer.url("/"));
    get.timeout_ms = 50;
    assert_eq!(
        failure(run(&executors, get).await),
        failed("external_call_failed", true)
    );
}

#[tokio::test]
async fn failed_lookup_is_retryable() {
    let executors = Executors::new(gate(""), Options::default());
    let outcome = run(&executors, call("GET", "https://example.test/")).await;
    assert_eq!(failure(outcome), failed("external_call_failed", true));
}

#[tokio::test]
async fn oversized_response_is_not_retried() {
    let peer = Peer::start(Script::Answer(answer(200, &[], "SECRET"))).await;
    let gate = gate_with(
        LOOPBACK,
        Limits {
            response_body: 5,
            ..limits()
        },
        Answers::new(&[]),
    );
    let executors = Executors::new(gate, Options::default());
    assert_eq!(
        failure(run(&executors, call("GET", &peer.url("/"))).await),
        failed("response_too_large", false)
    );
}

#[tokio::test]
async fn response_with_too_many_values_is_not_retried() {
    let body = format!("[{}0]", "{\"\":0},".repeat(100_000));
    let peer = Peer::start(Script::Answer(answer(
        200,
        &["content-type: application/json"],
        &body,
    )))
    .await;
    let executors = Executors::new(gate(LOOPBACK), Options::default());
    assert_eq!(
        failure(run(&executors, call("GET", &peer.url("/"))).await),
        failed("response_too_large", false)
    );
}

#[tokio::test]
async fn gate_refusals_name_only_the_rule() {
    let resolver: Arc<dyn Resolver> = Answers::new(&[&["10.0.0.7"]]);
    let executors = Executors::new(gate_with("", limits(), resolver), Options::default());
    for (url, rule, can_be_allowed) in [
        (
            "https://internal.test/",
            "refused to reach a private address",
            true,
        ),
        ("https://127.0.0.1/", "refused to reach a loopback address", true),
        (
            "http://example.test/",
            "refused to use plain http outside the allow-list",
            true,
        ),
        (
            "https://localhost/",
            "refused to reach a host name reserved for this machine or its cloud",
            true,
        ),
        (
            "https://u:SECRET@example.test/",
            "refused to use a url that carries credentials",
            false,
        ),
        ("nonsense", "refused to use a malformed url", false),
    ] {
        let outcome = run(&executors, call("GET", url)).await;
        let hint = "; WOPR_EGRESS_ALLOW (egress.allow) can allow its address";
        let told = format!("{rule}{}", if can_be_allowed { hint } else { "" });
        assert!(
            matches!(&outcome, Outcome::Failed { message, .. } if *message == told),
            "{outcome:?}"
        );
        assert_eq!(failure(outcome), failed("egress_refused", false));
    }
}

#[tokio::test]
async fn sealed_gate_refuses_every_call() {
    let mut peer = Peer::start(Script::Silence).await;
    let executors = Executors::new(gate(LOOPBACK).sealed(), Options::default());
    let outcome = run(&executors, call("GET", &peer.url("/"))).await;
    assert_eq!(failure(outcome), failed("egress_refused", false));
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn response_memory_is_held_until_the_outcome_is_recorded() {
    let json = answer(
        200,
        &["content-type: application/json"],
        &format!("\"{}\"", "x".repeat(900)),
    );
    let peer = Peer::start(Script::Answer(json)).await;
    let limits = Limits {
        held: 10_000,
        ..limits()
    };
    let gate = gate_with(LOOPBACK, limits, Answers::new(&[]));
    let executors = Executors::new(gate, Options::default());
    let ask = async || {
        let attempt = attempt(Request::Http(call("GET", &peer.url("/"))));
        let keep = attempt.keep.clone();
        (ended(&executors, attempt).await, keep)
    };
    let mut kept = Vec::new();
    let refused = loop {
        match ask().await {
            (Outcome::Done(_), keep) => kept.push(keep),
            (outcome, _) => break outcome,
        }
        assert!(kept.len() < 20, "nothing is kept");
    };
    assert_eq!(failure(refused), failed("external_call_failed", true));
    kept.clear();
    assert!(matches!(ask().await, (Outcome::Done(_), _)));
}

fn side_effect(payload: Value) -> Attempt {
    attempt(Request::SideEffect { payload })
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn side_effect_writes_one_line_per_attempt() {
    let dir = TempDir::new().unwrap();
    let ledger = dir.path().join("ledger.jsonl");
    let executors = Executors::new(
        gate(""),
        Options {
            ledger: Some(ledger.clone()),
            ..Options::default()
        },
    );
    let done = Outcome::Done(json!({"performed": true, "key": "key-1"}));
    assert_eq!(
        ended(&executors, side_effect(json!({"line": "a\nb"}))).await,
        done
    );
    assert_eq!(ended(&executors, side_effect(Value::Null)).await, done);
    let line = |payload| json!({"key": "key-1", "runId": "run_0123456789abcdef", "payload": payload});
    let text = fs::read_to_string(&ledger).unwrap();
    assert_eq!(lines(&text), [line(json!({"line": "a\nb"})), line(Value::Null)]);
    assert!(text.ends_with('\n'));
    assert_eq!(executors.side_effect().n_performed(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_side_effects_do_not_interleave() {
    let dir = TempDir::new().unwrap();
    let ledger = dir.path().join("ledger.jsonl");
    let executors = Executors::new(
        gate(""),
        Options {
            ledger: Some(ledger.clone()),
            ..Options::default()
        },
    );
    let attempts: Vec<_> = (0..32)
        .map(|n| {
            let executors = executors.clone();
            tokio::spawn(async move { ended(&executors, side_effect(json!(n))).await })
        })
        .collect();
    for attempt in attempts {
        assert!(matches!(attempt.await.unwrap(), Outcome::Done(_)));
    }
    let mut found: Vec<u64> = lines(&fs::read_to_string(&ledger).unwrap())
        .iter()
        .map(|line| line["payload"].as_u64().unwrap())
        .collect();
    found.sort_unstable();
    assert_eq!(found, (0..32).collect::<Vec<_>>());
}

#[tokio::test]
async fn torn_line_does_not_swallow_the_next() {
    let dir = TempDir::new().unwrap();
    let ledger = dir.path().join("ledger.jsonl");
    fs::write(&ledger, "{\"key\":\"ha").unwrap();
    let executors = Executors::new(
        gate(""),
        Options {
            ledger: Some(ledger.clone()),
            ..Options::default()
        },
    );
    ended(&executors, side_effect(json!(1))).await;
    let text = fs::read_to_string(&ledger).unwrap();
    let (torn, whole) = text.split_once('\n').unwrap();
    assert_eq!(torn, "{\"key\":\"ha");
    assert_eq!(lines(whole).len(), 1);
}

#[tokio::test]
async fn without_a_ledger_side_effects_are_counted() {
    let executors = Executors::new(gate(""), Options::default());
    assert!(matches!(
        ended(&executors, side_effect(json!(1))).await,
        Outcome::Done(_)
    ));
    assert_eq!(executors.side_effect().n_performed(), 1);
}

#[tokio::test]
async fn unwritable_ledger_fails_the_attempt() {
    let dir = TempDir::new().unwrap();
    let executors = Executors::new(
        gate(""),
        Options {
            ledger: Some(dir.path().to_owned()),
            ..Options::default()
        },
    );
    let outcome = ended(&executors, side_effect(json!(1))).await;
    assert_eq!(failure(outcome), failed("external_call_failed", true));
    assert_eq!(executors.side_effect().n_performed(), 0);
}

#[tokio::test]
async fn dropping_an_attempt_closes_its_connection() {
    let mut peer = Peer::start(Script::Drip(answer(200, &[], "").replace(" 0\r\n", " 99999\r\n"))).await;
    let executors = Executors::new(gate(LOOPBACK), Options::default());
    let running = run(&executors, call("GET", &peer.url("/")));
    let outcome = tokio::time::timeout(Duration::from_millis(50), running).await;
    assert!(outcome.is_err(), "{outcome:?}");
    while peer.next().await != crate::peer::Seen::Cut {}
}
