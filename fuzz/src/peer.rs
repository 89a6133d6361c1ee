//! Responses of called peers: heads, bodies, `Retry-After`, and the tasks of `tasks-http`.

use wopr_connect::{
    Executors, Http, ModelKind, Options, Provider, ProviderKey,
    a2a::read_task,
    egress::{Gate, Limits, Policy},
};
use wopr_core::{ModelCall, ModelMessage, ModelReply, NodeId, RunId, RunKey, StepId, TenantId};
use wopr_engine::{
    Attempt, Blobs, Executor as _, HttpCall, Keep, Outcome, Progress, Report, Request as AnyRequest, Wake,
};

use crate::host;

/// Maximum response body in bytes.
const MAX_BODY: usize = 64 << 10;

/// Whatever a peer sends, the call succeeds with a matching status and a body within the limit, or fails with
/// an error code. The bytes are the response as sent over the connection.
///
/// # Panics
/// If a property does not hold.
pub fn peer(data: &[u8]) {
    if let Ok(document) = serde_json::from_slice(data)
        && let Ok(task) = read_task(document)
    {
        let is_segment = !task.id.trim().is_empty() && ![".", ".."].contains(&task.id.as_str());
        assert!(is_segment && task.id.len() <= data.len(), "{:?}", task.id);
    }
    let limits = Limits {
        response_body: MAX_BODY,
        ..Limits::default()
    };
    let policy = Policy {
        allow: vec![host::PEERS.parse().unwrap()],
    };
    let call = HttpCall {
        method: "GET".to_owned(),
        url: format!("http://{}/", host::PEER),
        headers: Vec::new(),
        secret_headers: Vec::new(),
        body: None,
        timeout_ms: 1_000,
    };
    let answer = data.to_vec();
    let tenant = TenantId::parse("default").unwrap();
    let outcome = host::block_on(async {
        let gate = Gate::over(policy, limits, host::answering(answer));
        Http::new(gate, wopr_connect::NamedSecrets::default())
            .call(&tenant, "key", None, call, &Keep::default())
            .await
    });
    match outcome {
        Outcome::Done(done) => {
            let status = done["status"].as_u64().unwrap();
            assert!((200..300).contains(&status), "done with {status}");
            assert_eq!(done["contentTrust"], "untrusted");
            // Bodies that are neither text nor JSON are encoded as base64, and invalid UTF-8 is replaced by
            // three bytes per byte.
            let size = done["body"].to_string().len();
            assert!(size <= 8 * MAX_BODY, "a body of {size} bytes");
        }
        Outcome::Failed { code, retryable, .. } => {
            assert!(!code.is_empty());
            assert!(
                !retryable || code != "egress_refused",
                "refused here, and tried again"
            );
        }
        Outcome::GivenUp { code, .. } => assert_eq!(code, "", "nobody goes on with an HTTP call"),
        Outcome::Cancelled { reason } => assert_eq!(reason, "", "nobody cancels an HTTP call"),
    }
    for kind in [ModelKind::OpenAi, ModelKind::Anthropic, ModelKind::Gemini] {
        for streams in [false, true] {
            model(data, kind, streams);
        }
    }
}

/// Whatever a model provider sends, the call succeeds with a reply within the limits, or fails with an error code.
fn model(data: &[u8], kind: ModelKind, streams: bool) {
    let provider = Provider {
        name: "default".to_owned(),
        kind,
        base_url: format!("http://{}/", host::PEER).parse().unwrap(),
        key: ProviderKey::None,
        model: Some("m".to_owned()),
        tenants: Vec::new(),
        price: None,
    };
    let call = ModelCall {
        provider: "default".to_owned(),
        model: None,
        messages: vec![ModelMessage::User {
            content: "?".to_owned(),
        }],
        tools: Vec::new(),
        temperature: None,
        max_tokens: None,
        schema: None,
        streams,
        script: None,
        timeout_ms: 1_000,
        granted: Vec::new(),
        has_run_budget: false,
    };
    let policy = Policy {
        allow: vec![host::PEERS.parse().unwrap()],
    };
    let answer = data.to_vec();
    let outcome = host::block_on(async {
        let gate = Gate::over(policy, Limits::default(), host::answering(answer));
        let options = Options {
            models: vec![provider],
            ..Options::default()
        };
        let attempt = Attempt {
            run: RunKey::new(
                TenantId::parse("default").unwrap(),
                RunId::parse("run_0123456789abcdef").unwrap(),
            ),
            step: StepId {
                node: NodeId::parse("ask").unwrap(),
                ordinal: 0,
            },
            attempt: 0,
            number: 0,
            is_repeat: false,
            is_interrupted: false,
            idempotency_key: "key".to_owned(),
            trace: None,
            request: AnyRequest::Model(Box::new(call)),
            handle: None,
            cursor: None,
            wake: Wake::none(),
            progress: Progress::none(),
            blobs: Blobs::none(),
            keep: Keep::default(),
        };
        match Executors::new(gate, options).run(attempt).await {
            Report::Ended(outcome) => outcome,
            Report::Produced { then, .. } => match *then {
                Report::Ended(outcome) => outcome,
                other => goes_on(&other),
            },
            other => goes_on(&other),
        }
    });
    match outcome {
        Outcome::Done(reply) => {
            let reply: ModelReply = serde_json::from_value(reply).unwrap();
            assert!(reply.text.len() <= 1 << 20 && reply.tool_calls.len() <= 64);
        }
        Outcome::Failed { code, .. } => assert!(!code.is_empty()),
        Outcome::GivenUp { code, .. } => assert_eq!(code, "", "a model goes on with nothing"),
        Outcome::Cancelled { reason } => assert_eq!(reason, "", "a model goes on with nothing"),
    }
}

fn goes_on(report: &Report) -> Outcome {
    Outcome::Cancelled {
        reason: format!("{report:?}"),
    }
}
