//! Responses of called peers: heads, bodies, `Retry-After`, and the tasks of `tasks-http`.

use wopr_connect::{
    Http,
    a2a::read_task,
    egress::{Gate, Limits, Policy},
};
use wopr_core::TenantId;
use wopr_engine::{HttpCall, Keep, Outcome};

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
        body: None,
        timeout_ms: 1_000,
    };
    let answer = data.to_vec();
    let tenant = TenantId::parse("default").unwrap();
    let outcome = host::block_on(async {
        let gate = Gate::over(policy, limits, host::answering(answer));
        Http::new(gate)
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
}
