//! Complete requests to a complete host: all routes, headers and bodies of all protocols.
//!
//! The network is left out, because hyper parses the socket's bytes and has its own fuzz targets.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use wopr_core::{NodeId, PrincipalId, RunId, RunKey, TenantId};
use wopr_server::{Body, Claims, Faces, Holder, Intent};
use wopr_wire::sse::Decoder;

use crate::host;

/// Maximum response body in bytes; the rest is not read.
const MAX_BODY: usize = 8 << 20;
/// Longer than any request waits, in virtual time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Every request gets a response other than 500, whose body matches its content type.
///
/// The bytes are a request line, header lines, an empty line, and a body. In path and body, `~` stands for a
/// run that waits for an answer; in the path, `^` stands for a token that answers it; in a header value, `~`
/// stands for the key. Without an `authorization` header, the key is sent.
///
/// # Panics
/// If a property does not hold.
pub fn http(data: &[u8]) {
    let run = waiting_run();
    if let Some(request) = read(data, &run) {
        ask(request);
    }
}

/// Every cursor is accepted or rejected; none breaks a stream or a list. The bytes are used as a cursor in a
/// header, a query parameter and a page token.
///
/// # Panics
/// If a property does not hold.
pub fn cursor(data: &[u8]) {
    let run = waiting_run();
    let text = String::from_utf8_lossy(data);
    let query: String = url::form_urlencoded::byte_serialize(data).collect();
    let get = |path: String| Request::get(path).header(header::AUTHORIZATION, bearer());
    let mut requests = Vec::new();
    if let Ok(value) = HeaderValue::from_bytes(data) {
        let streamed = get(format!("/v1/runs/{run}/events")).header("last-event-id", value.clone());
        requests.push(streamed.body(Body::empty()));
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": { "id": run } });
        let subscribed = Request::post("/a2a")
            .header(header::AUTHORIZATION, bearer())
            .header(header::CONTENT_TYPE, "application/json")
            .header("a2a-version", "1.0")
            .header("last-event-id", value);
        requests.push(subscribed.body(Body::from(call.to_string())));
    }
    for path in [
        "events/poll?lastSequence=",
        "events?streamMode=",
        "events/poll?timeout=",
    ] {
        requests.push(get(format!("/v1/runs/{run}/{path}{query}")).body(Body::empty()));
    }
    for path in ["/v1/runs?cursor=", "/v1/runs?limit=", "/v1/workflows?cursor="] {
        requests.push(get(format!("{path}{query}")).body(Body::empty()));
    }
    let params = json!({ "pageToken": text });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": params });
    let listed = Request::post("/a2a")
        .header(header::AUTHORIZATION, bearer())
        .header(header::CONTENT_TYPE, "application/json")
        .header("a2a-version", "1.0");
    requests.push(listed.body(Body::from(call.to_string())));
    for request in requests.into_iter().flatten() {
        let (_, body) = ask(request);
        assert!(!is_unrouted(&body), "the path is not served");
    }
}

/// Returns `true` if a response says that its path is not served.
fn is_unrouted(body: &[u8]) -> bool {
    let answer = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let words = answer.get("message").or_else(|| answer.pointer("/error/message"));
    let words = words.and_then(Value::as_str);
    words.is_some_and(|words| words == "no such resource" || words == "there is no such operation")
}

/// Returns `true` if this `authorization` header is authenticated, regardless of its permissions.
pub(crate) fn admits(authorization: HeaderValue) -> bool {
    let call = Request::get("/v1/runs?limit=1").header(header::AUTHORIZATION, authorization);
    let (status, _) = ask(call.body(Body::empty()).unwrap());
    status != StatusCode::UNAUTHORIZED
}

fn bearer() -> String {
    format!("Bearer {}", host::KEY)
}

/// Starts a run that waits at a gate, and returns its id.
fn waiting_run() -> String {
    let call = Request::post("/v1/runs")
        .header(header::AUTHORIZATION, bearer())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(
            json!({ "workflowId": host::WORKFLOWS[1], "inputs": {} }).to_string(),
        ));
    let (_, body) = ask(call.unwrap());
    let answer: Value = serde_json::from_slice(&body).unwrap();
    answer["runId"].as_str().unwrap().to_owned()
}

fn read(data: &[u8], run: &str) -> Option<Request<Body>> {
    let end = data
        .windows(2)
        .position(|two| two == b"\n\n")
        .unwrap_or(data.len());
    let head = std::str::from_utf8(&data[..end]).ok()?;
    let body = data.get(end + 2..).unwrap_or_default();
    let mut lines = head.lines();
    let (method, path) = lines.next()?.split_once(' ')?;
    let path = path.replace('~', run).replace('^', &token(run));
    // A server only sees a path, whatever the client sent.
    let uri: Uri = path.parse().ok().filter(|_| path.starts_with('/'))?;
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).ok()?)
        .uri(uri);
    let mut has_key = false;
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        has_key |= name == header::AUTHORIZATION;
        let value = value.trim().replace('~', host::KEY);
        request = request.header(name, HeaderValue::from_str(&value).ok()?);
    }
    if !has_key {
        request = request.header(header::AUTHORIZATION, bearer());
    }
    let body = match std::str::from_utf8(body) {
        Ok(text) => Body::from(text.replace('~', run)),
        Err(_) => Body::from(body.to_vec()),
    };
    request.body(body).ok()
}

fn token(run: &str) -> String {
    let claims = Claims {
        number: 0,
        key: RunKey::new(TenantId::parse("default").unwrap(), RunId::parse(run).unwrap()),
        node: NodeId::parse("gate").unwrap(),
        ordinal: 0,
        intent: Intent::Resolve,
        holder: Holder {
            principal: PrincipalId::parse("fuzz").unwrap(),
            is_named: false,
            is_member: false,
            reads_artifacts: true,
        },
    };
    let host = host::the_host();
    host.tokens().mint(&claims, None, host.engine().now()).text
}

fn ask(request: Request<Body>) -> (StatusCode, Vec<u8>) {
    let host = host::the_host();
    let what = format!("{} {}", request.method(), request.uri());
    let (parts, body) = host::block_on(async {
        let response = Faces::new(&host).answer(request).await;
        let (parts, body) = response.into_parts();
        // A stream does not end; only the part received so far is checked.
        let read = tokio::time::timeout(TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
        let body = read
            .ok()
            .and_then(Result::ok)
            .map(|read| Vec::from(read.to_bytes()));
        (parts, body)
    });
    let status = parts.status;
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{what}");
    let body = body.unwrap_or_default();
    check_body(&what, &Response::from_parts(parts, ()), &body);
    (status, body)
}

/// Checks that the body matches its content type.
fn check_body(what: &str, response: &Response<()>, body: &[u8]) {
    let media_type = response.headers().get(header::CONTENT_TYPE);
    let media_type = media_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    if media_type.ends_with("json") && !body.is_empty() {
        assert!(serde_json::from_slice::<Value>(body).is_ok(), "{what}: no JSON");
    }
    if media_type == "text/event-stream" {
        let mut events = Vec::new();
        Decoder::new(MAX_BODY).feed(body, &mut events).unwrap();
        for event in events {
            let is_json = serde_json::from_str::<Value>(&event.data).is_ok();
            assert!(is_json, "{what}: an event that is no JSON: {}", event.data);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn kept_requests_have_paths_that_are_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/http");
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let request = read(&fs::read(&path).unwrap(), &waiting_run());
            let is_meant = path.file_name().is_some_and(|name| name == "unknown");
            if let Some(request) = request {
                let (_, body) = ask(request);
                assert_eq!(is_unrouted(&body), is_meant, "{}", path.display());
            }
        }
    }
}
