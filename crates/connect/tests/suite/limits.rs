//! Slow, endless and broken peers.

use std::{io, net::IpAddr, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use wopr_connect::egress::{EgressError, Limits, Resolver, Seam};
use wopr_core::TenantId;

use crate::peer::{Answers, Peer, Script, Seen, answer, gate, gate_with, get, limits};

const LOOPBACK: &str = "127.0.0.0/8";
const SHORT: Duration = Duration::from_millis(50);

/// Calls a scripted peer and expects an error.
async fn ask(script: Script, limits: Limits) -> (Peer, EgressError) {
    let peer = Peer::start(script).await;
    let gate = gate_with(LOOPBACK, limits, Answers::new(&[]));
    let error = gate
        .request(Seam::HttpNode, get(&peer.url("/")))
        .await
        .unwrap_err();
    (peer, error)
}

fn short() -> Limits {
    Limits {
        total: SHORT,
        ..limits()
    }
}

#[tokio::test]
async fn silent_peer_times_out() {
    let (mut peer, error) = ask(Script::Silence, short()).await;
    assert!(
        matches!(error, EgressError::Timeout) && error.is_transient(),
        "{error:?}"
    );
    peer.next_request().await;
}

#[tokio::test]
async fn request_can_shorten_but_not_extend_the_timeout() {
    let peer = Peer::start(Script::Silence).await;
    for (limit, asked) in [(Duration::from_secs(20), SHORT), (SHORT, Duration::from_secs(20))] {
        let gate = gate_with(
            LOOPBACK,
            Limits {
                total: limit,
                ..limits()
            },
            Answers::new(&[]),
        );
        let mut request = get(&peer.url("/"));
        request.timeout = Some(asked);
        let started = std::time::Instant::now();
        let error = gate.request(Seam::HttpNode, request).await.unwrap_err();
        assert!(matches!(error, EgressError::Timeout), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(15));
    }
}

#[tokio::test]
async fn dripping_body_hits_the_total_timeout() {
    let (mut peer, error) = ask(
        Script::Drip(answer(200, &[], "").replace(" 0\r\n", " 99999\r\n")),
        short(),
    )
    .await;
    assert!(matches!(error, EgressError::Timeout), "{error:?}");
    while peer.next().await != Seen::Cut {}
}

#[tokio::test]
async fn dripping_head_hits_the_total_timeout() {
    let (mut peer, error) = ask(Script::Drip("HTTP/1.1 200 OK\r\nx: ".to_owned()), short()).await;
    assert!(matches!(error, EgressError::Timeout), "{error:?}");
    while peer.next().await != Seen::Cut {}
}

#[derive(Debug)]
struct Hung;

#[async_trait]
impl Resolver for Hung {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn hung_resolver_hits_the_total_timeout() {
    let gate = gate_with(LOOPBACK, short(), std::sync::Arc::new(Hung));
    let error = gate
        .request(Seam::HttpNode, get("https://example.test/"))
        .await
        .unwrap_err();
    assert!(matches!(error, EgressError::Timeout), "{error:?}");
}

#[tokio::test]
async fn announced_oversized_body_is_not_read() {
    let limits = Limits {
        response_body: 10,
        ..limits()
    };
    let (_, error) = ask(Script::Answer(answer(200, &[], "12345678901")), limits).await;
    assert!(
        matches!(error, EgressError::ResponseTooLarge { limit: 10 }),
        "{error:?}"
    );
    assert!(!error.is_transient());
}

#[tokio::test]
async fn endless_body_is_cut() {
    let limits = Limits {
        response_body: 100_000,
        ..limits()
    };
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    let (mut peer, error) = ask(Script::Flood(head), limits).await;
    assert!(
        matches!(error, EgressError::ResponseTooLarge { limit: 100_000 }),
        "{error:?}"
    );
    while peer.next().await != Seen::Cut {}
}

/// Small objects, which take a hundred times their text size once parsed.
fn weighty(n_bytes: usize) -> String {
    format!("[{}0]", "{\"\":0},".repeat(n_bytes / 7))
}

#[tokio::test]
async fn response_that_is_huge_in_memory_is_refused_before_parsing() {
    let body = weighty(1 << 20);
    let typed = |media: &str| Script::Answer(answer(200, &[&format!("content-type: {media}")], &body));
    for media in ["application/json", "Application/A2A+JSON; charset=utf-8"] {
        let (_, error) = ask(typed(media), limits()).await;
        assert!(
            matches!(error, EgressError::TooManyValues(_)) && !error.is_transient(),
            "{media}: {error:?}"
        );
    }
    // Plain text takes only its own size.
    let peer = Peer::start(typed("text/plain")).await;
    let text = gate(LOOPBACK).request(Seam::HttpNode, get(&peer.url("/"))).await;
    assert_eq!(text.unwrap().body, body);
    // With `expects_json`, the body is parsed on every seam, whatever its content type.
    for seam in Seam::ALL {
        let mut request = get(&peer.url("/"));
        request.expects_json = true;
        let error = gate(LOOPBACK).request(seam, request).await.unwrap_err();
        assert!(
            matches!(error, EgressError::TooManyValues(_)),
            "{seam}: {error:?}"
        );
    }
}

#[tokio::test]
async fn tenants_share_response_memory_until_responses_are_dropped() {
    let limits = Limits {
        held: 10_000,
        ..limits()
    };
    let peer = Peer::start(Script::Answer(answer(200, &[], &"x".repeat(1_000)))).await;
    let gate = gate_with(LOOPBACK, limits, Answers::new(&[]));
    let ask = async |tenant: &str| {
        let mut request = get(&peer.url("/"));
        request.tenant = Some(TenantId::parse(tenant).unwrap());
        gate.request(Seam::HttpNode, request).await
    };
    let mut held = Vec::new();
    let error = loop {
        match ask("acme").await {
            Ok(answer) => held.push(answer),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, EgressError::Busy) && error.is_transient(),
        "{error:?}"
    );
    assert_eq!(held.len(), 7);
    let _other = ask("other").await.unwrap();
    let copy = held[0].body.slice(..1);
    held.clear();
    assert_eq!(copy.len(), 1);
    let _again = ask("acme").await.unwrap();
}

#[tokio::test]
async fn body_of_exactly_the_limit_is_accepted() {
    let peer = Peer::start(Script::Answer(answer(200, &[], "1234567890"))).await;
    let mut request = get(&peer.url("/"));
    request.max_response = Some(10);
    assert_eq!(
        gate(LOOPBACK)
            .request(Seam::HttpNode, request)
            .await
            .unwrap()
            .body,
        "1234567890"
    );

    let mut request = get(&peer.url("/"));
    request.max_response = Some(9);
    let error = gate(LOOPBACK).request(Seam::HttpNode, request).await.unwrap_err();
    assert!(
        matches!(error, EgressError::ResponseTooLarge { limit: 9 }),
        "{error:?}"
    );
}

#[tokio::test]
async fn oversized_headers_are_refused() {
    let field = format!("x: {}", "y".repeat(2000));
    let limits = Limits {
        response_headers: 1000,
        ..limits()
    };
    let (_, error) = ask(Script::Answer(answer(200, &[&field], "")), limits).await;
    assert!(
        matches!(error, EgressError::HeadersTooLarge { limit: 1000 }),
        "{error:?}"
    );

    // Beyond the parser's own limits: the total size, and the number of fields.
    let (_, error) = ask(
        Script::Drip(format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(1 << 20))),
        limits,
    )
    .await;
    assert!(matches!(error, EgressError::Exchange(_)), "{error:?}");
    let (_, error) = ask(Script::Answer(answer(200, &["a: b"; 200], "")), limits).await;
    assert!(matches!(error, EgressError::Exchange(_)), "{error:?}");
}

#[tokio::test]
async fn oversized_request_is_not_sent() {
    let mut peer = Peer::start(Script::Silence).await;
    let gate = gate_with(
        LOOPBACK,
        Limits {
            request_body: 3,
            ..limits()
        },
        Answers::new(&[]),
    );
    let mut request = get(&peer.url("/"));
    request.body = Bytes::from_static(b"1234");
    let error = gate.request(Seam::HttpNode, request).await.unwrap_err();
    assert!(
        matches!(error, EgressError::RequestTooLarge { limit: 3 }),
        "{error:?}"
    );
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn broken_responses_are_transient() {
    for bytes in [
        "",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
    ] {
        let (_, error) = ask(Script::AnswerAndClose(bytes.to_owned()), limits()).await;
        assert!(
            matches!(error, EgressError::Exchange(_)) && error.is_transient(),
            "{bytes:?} {error:?}"
        );
    }
}
