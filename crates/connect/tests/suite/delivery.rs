//! Delivery targets: which connections the gate makes, and which it refuses.

use http::{HeaderValue, Method};
use wopr_connect::{
    Push,
    egress::{EgressError, Reason, Refusal, Seam, Seams, client_config},
};

use crate::peer::{Answers, Peer, Script, Seen, answer, gate, gate_with, get, limits};

const LOOPBACK: &str = "127.0.0.0/8,::1";

fn ok() -> Script {
    Script::Answer(answer(200, &[], "hi"))
}

fn ok_and_close() -> Script {
    Script::AnswerAndClose(answer(200, &["connection: close"], "hi"))
}

#[tokio::test]
async fn allowed_address_is_reached_over_plain_http() {
    let mut peer = Peer::start(ok()).await;
    let response = gate(LOOPBACK)
        .request(Seam::HttpNode, get(&peer.url("/a?b=c")))
        .await
        .unwrap();
    assert_eq!((response.status.as_u16(), &response.body[..]), (200, &b"hi"[..]));
    let request = peer.next_request().await;
    assert!(request.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains(&format!("host: {}\r\n", peer.address)),
        "{request}"
    );
    assert!(
        request.contains(&format!("user-agent: wopr/{}\r\n", env!("CARGO_PKG_VERSION"))),
        "{request}"
    );
}

#[tokio::test]
async fn allowed_ipv6_address_is_reached() {
    // The machine may not support IPv6.
    let Ok(mut peer) = Peer::start_at("[::1]:0", ok()).await else {
        return;
    };
    gate(LOOPBACK)
        .request(Seam::HttpNode, get(&peer.url("/")))
        .await
        .unwrap();
    peer.next_request().await;
}

#[tokio::test]
async fn private_address_is_not_dialed() {
    let mut peer = Peer::start(ok()).await;
    let port = peer.address.port();
    for host in ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"] {
        for scheme in ["http", "https"] {
            let error = gate("")
                .request(Seam::HttpNode, get(&format!("{scheme}://{host}:{port}/")))
                .await;
            let error = error.unwrap_err();
            assert!(
                matches!(error, EgressError::Refused(Refusal::Address(Reason::Loopback))),
                "{host} {error:?}"
            );
        }
    }
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn forbidden_names_are_not_resolved() {
    let resolver = Answers::new(&[&["127.0.0.1"]]);
    let gate = gate_with("", limits(), resolver.clone());
    for (url, refusal) in [
        ("https://localhost/", Refusal::LocalName),
        ("https://a.localhost/", Refusal::LocalName),
        ("https://metadata.google.internal./", Refusal::LocalName),
        ("http://example.test/", Refusal::PlainHttp),
        ("https://user@example.test/", Refusal::UserInfo),
        ("ftp://example.test/", Refusal::Scheme),
    ] {
        let error = gate.request(Seam::HttpNode, get(url)).await.unwrap_err();
        assert!(
            matches!(error, EgressError::Refused(found) if found == refusal),
            "{url} {error:?}"
        );
    }
    assert_eq!(resolver.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn allowed_name_keeps_its_host_header() {
    let mut peer = Peer::start(ok()).await;
    let resolver = Answers::new(&[&["127.0.0.1"]]);
    let gate = gate_with(LOOPBACK, limits(), resolver.clone());
    gate.request(Seam::HttpNode, get(&peer.named_url("http", "peer.test")))
        .await
        .unwrap();
    let request = peer.next_request().await;
    assert!(
        request.contains(&format!("host: peer.test:{}\r\n", peer.address.port())),
        "{request}"
    );
    assert_eq!(resolver.asked(), ["peer.test"]);
}

#[tokio::test]
async fn one_forbidden_address_refuses_the_name() {
    let mut peer = Peer::start(ok()).await;
    for (allow, scheme, answers, refusal) in [
        (
            LOOPBACK,
            "http",
            &["127.0.0.1", "10.0.0.1"][..],
            Refusal::PlainHttp,
        ),
        (
            LOOPBACK,
            "https",
            &["127.0.0.1", "10.0.0.1"],
            Refusal::Address(Reason::Loopback),
        ),
        (LOOPBACK, "http", &["127.0.0.1", "8.8.8.8"], Refusal::PlainHttp),
        (
            "",
            "https",
            &["8.8.8.8", "127.0.0.1"],
            Refusal::Address(Reason::Loopback),
        ),
        (
            "",
            "https",
            &["2606:4700::1", "::ffff:169.254.169.254"],
            Refusal::Address(Reason::LinkLocal),
        ),
        ("", "https", &["127.0.0.1"], Refusal::Address(Reason::Loopback)),
        ("", "https", &[], Refusal::NoAddress),
    ] {
        let resolver = Answers::new(&[answers]);
        let gate = gate_with(allow, limits(), resolver.clone());
        let error = gate
            .request(Seam::Push, get(&peer.named_url(scheme, "mixed.test")))
            .await
            .unwrap_err();
        assert!(
            matches!(error, EgressError::Refused(found) if found == refusal),
            "{answers:?} {error:?}"
        );
        assert!(!error.is_transient());
        assert_eq!(resolver.asked().len(), 1);
    }
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn rebinding_name_is_resolved_and_checked_once_per_connection() {
    let mut peer = Peer::start(ok_and_close()).await;
    let resolver = Answers::new(&[&["127.0.0.1"], &["10.0.0.1"]]);
    let gate = gate_with("127.0.0.0/8", limits(), resolver.clone());
    let url = peer.named_url("http", "rebind.test");

    gate.request(Seam::HttpNode, get(&url)).await.unwrap();
    assert_eq!(
        resolver.asked().len(),
        1,
        "the private second answer was asked for"
    );
    peer.next_request().await;

    let error = gate.request(Seam::HttpNode, get(&url)).await.unwrap_err();
    assert!(
        matches!(error, EgressError::Refused(Refusal::PlainHttp)),
        "{error:?}"
    );
    assert_eq!(resolver.asked().len(), 2);
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn failed_connection_does_not_resolve_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let resolver = Answers::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let gate = gate_with(LOOPBACK, limits(), resolver.clone());
    let error = gate
        .request(Seam::HttpNode, get(&format!("http://gone.test:{port}/")))
        .await
        .unwrap_err();
    assert!(
        matches!(error, EgressError::Connect(_)) && error.is_transient(),
        "{error:?}"
    );
    assert_eq!(resolver.asked().len(), 1);
}

#[tokio::test]
async fn https_dials_the_checked_address_and_sends_the_name() {
    // Without root certificates there is no HTTPS to test.
    if client_config().is_err() {
        return;
    }
    let mut peer = Peer::start(Script::AnswerAndClose("not tls".to_owned())).await;
    let resolver = Answers::new(&[&["127.0.0.1"]]);
    let gate = gate_with("127.0.0.1", limits(), resolver.clone());
    let error = gate
        .request(Seam::A2a, get(&peer.named_url("https", "named.test")))
        .await
        .unwrap_err();
    assert!(
        matches!(error, EgressError::Connect(_)) && error.is_transient(),
        "{error:?}"
    );
    assert!(
        peer.next_request().await.contains("named.test"),
        "no server name in the handshake"
    );
    assert_eq!(resolver.asked(), ["named.test"]);
}

#[tokio::test]
async fn redirect_is_returned_not_followed() {
    let mut peer = Peer::start(Script::Answer(answer(302, &["location: /next"], ""))).await;
    let response = gate(LOOPBACK)
        .request(Seam::Webhook, get(&peer.url("/")))
        .await
        .unwrap();
    assert_eq!(response.status.as_u16(), 302);
    assert_eq!(peer.next().await, Seen::Connection);
    assert!(matches!(peer.next().await, Seen::Request(text) if text.starts_with("GET / ")));
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn connections_are_kept_alive() {
    let mut peer = Peer::start(ok()).await;
    let gate = gate(LOOPBACK);
    for _ in 0..3 {
        gate.request(Seam::HttpNode, get(&peer.url("/"))).await.unwrap();
    }
    let seen = peer.rest();
    assert_eq!(
        seen.iter().filter(|seen| **seen == Seen::Connection).count(),
        1,
        "{seen:?}"
    );
    assert_eq!(seen.len(), 4);
}

#[tokio::test]
async fn every_delivery_is_checked_again() {
    let mut peer = Peer::start(ok()).await;
    for seam in [Seam::Push, Seam::Webhook] {
        let resolver = Answers::new(&[&["127.0.0.1"], &["127.0.0.1"], &["10.0.0.1"]]);
        let gate = gate_with("127.0.0.0/8", limits(), resolver.clone());
        let url = peer.named_url("http", "rebind.test");
        for _ in 0..2 {
            gate.request(seam, get(&url)).await.unwrap();
        }
        // The peer keeps its connections open, but none is reused.
        let error = gate.request(seam, get(&url)).await.unwrap_err();
        assert!(
            matches!(error, EgressError::Refused(Refusal::PlainHttp)),
            "{error:?}"
        );
        assert_eq!(resolver.asked().len(), 3);
        let seen = peer.rest();
        let n_connections = seen.iter().filter(|seen| **seen == Seen::Connection).count();
        assert_eq!((n_connections, seen.len()), (2, 4), "{seen:?}");
    }
}

#[tokio::test]
async fn push_succeeds_by_status_alone() {
    let push = |url: &str| Push {
        url: url.parse().unwrap(),
        token: None,
        authorization: None,
        content_type: HeaderValue::from_static("application/json"),
        body: "{}".into(),
        trace: None,
    };
    for (script, refused) in [
        // Bodies that are truncated, never end, or exceed the size limit.
        (
            Script::AnswerAndClose(head(200, "content-length: 100") + "cut"),
            None,
        ),
        (Script::AnswerAndClose(head(204, "content-length: 100")), None),
        (
            Script::AnswerAndClose(head(202, "transfer-encoding: chunked") + "ff\r\ncut"),
            None,
        ),
        (Script::Drip(head(200, "content-length: 1000000000")), None),
        (Script::Flood(head(200, "transfer-encoding: chunked")), None),
        (
            Script::AnswerAndClose(head(500, "content-length: 100") + "cut"),
            Some("answered 500"),
        ),
        (
            Script::AnswerAndClose("HTTP/1.1 2".to_owned()),
            Some("could not exchange the request for an answer"),
        ),
    ] {
        let peer = Peer::start(script.clone()).await;
        let pushed = wopr_connect::push(&gate(LOOPBACK), push(&peer.url("/"))).await;
        let reason = pushed.err().map(|refused| refused.reason);
        assert_eq!(reason.as_deref(), refused, "{script:?}");
    }
}

/// The head of a response without a body.
fn head(status: u16, field: &str) -> String {
    format!("HTTP/1.1 {status} whatever\r\n{field}\r\n\r\n")
}

#[tokio::test]
async fn closed_seam_dials_nothing() {
    let mut peer = Peer::start(ok()).await;
    let resolver = Answers::new(&[&["127.0.0.1"], &["127.0.0.1"]]);
    let gate = gate_with(LOOPBACK, limits(), resolver.clone());
    for seam in Seam::ALL {
        for url in [peer.url("/"), peer.named_url("http", "peer.test")] {
            let error = gate.sealed().request(seam, get(&url)).await.unwrap_err();
            assert!(
                matches!(error, EgressError::Closed(found) if found == seam),
                "{error:?}"
            );
        }
    }
    assert_eq!((resolver.asked(), peer.rest()), (vec![], vec![]));

    let without_push = gate.with_seams(Seams::open().without(Seam::Push));
    assert!(
        without_push
            .request(Seam::Push, get(&peer.url("/")))
            .await
            .is_err()
    );
    without_push
        .request(Seam::HttpNode, get(&peer.url("/")))
        .await
        .unwrap();
    gate.request(Seam::Push, get(&peer.url("/"))).await.unwrap();
    assert_eq!(without_push.seams().iter().filter(|(_, open)| !open).count(), 1);
}

#[tokio::test]
async fn forbidden_headers_and_methods_are_refused() {
    let mut peer = Peer::start(ok()).await;
    let gate = gate(LOOPBACK);
    for name in [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "proxy-authorization",
    ] {
        let mut request = get(&peer.url("/"));
        request.headers.insert(name, HeaderValue::from_static("SECRET"));
        let error = gate.request(Seam::HttpNode, request).await.unwrap_err();
        assert!(
            matches!(&error, EgressError::Header(found) if found == name),
            "{error:?}"
        );
        assert!(!format!("{error} {error:?}").contains("SECRET"));
    }
    for method in [Method::CONNECT, Method::TRACE] {
        let mut request = get(&peer.url("/"));
        request.method = method;
        assert!(matches!(
            gate.request(Seam::HttpNode, request).await,
            Err(EgressError::Method)
        ));
    }
    assert_eq!(peer.rest(), []);
}

#[tokio::test]
async fn registration_resolves_names_only_if_needed() {
    async fn check(allow: &str, url: &str, answers: &[&[&str]], expected: Result<(), Refusal>, asked: usize) {
        let resolver = Answers::new(answers);
        let gate = gate_with(allow, limits(), resolver.clone());
        assert_eq!(
            gate.check_registration_resolving(&url.parse().unwrap()).await,
            expected,
            "{url}"
        );
        assert_eq!(resolver.asked().len(), asked, "{url}");
    }
    let plain = Err(Refusal::PlainHttp);
    check(LOOPBACK, "https://example.test/", &[], Ok(()), 0).await;
    check(LOOPBACK, "http://127.0.0.1:1/", &[], Ok(()), 0).await;
    check(
        LOOPBACK,
        "http://10.0.0.1/",
        &[],
        Err(Refusal::Address(Reason::Private)),
        0,
    )
    .await;
    check("", "http://example.test/", &[], plain, 0).await;
    check(LOOPBACK, "http://in.test/", &[&["127.0.0.9", "::1"]], Ok(()), 1).await;
    check(LOOPBACK, "http://out.test/", &[&["8.8.8.8"]], plain, 1).await;
    check(LOOPBACK, "http://none.test/", &[], plain, 1).await;
    check("127.0.0.0/8", "http://localhost/", &[&["127.0.0.1"]], Ok(()), 1).await;
}
