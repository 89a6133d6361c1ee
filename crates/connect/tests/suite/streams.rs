//! Streamed responses of the gate, over HTTP/1.1 and HTTP/2.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use http_body_util::BodyExt as _;
use hyper::{body::Frame, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use wopr_connect::egress::{EgressError, Gate, LimitedBody, Network, Protocol, Seam, StreamLimits};

use crate::{
    agent::{Agent, chunked, endless, open_gate, reply, stalled, streamed, with_header},
    peer::{Peer, Script, Seen, gate, get, limits},
};

const MEDIA: &str = "text/plain";
const SHORT: Duration = Duration::from_millis(50);
const PROTOCOLS: [Protocol; 3] = [Protocol::Http1, Protocol::Negotiated, Protocol::Http2];

/// Long enough that only tests about timeouts hit them.
fn ample() -> StreamLimits {
    StreamLimits {
        headers: Duration::from_secs(20),
        idle: Duration::from_secs(20),
        total: Duration::from_secs(20),
        body: 1 << 20,
    }
}

async fn open(
    agent: &Agent,
    protocol: Protocol,
    limits: StreamLimits,
) -> Result<http::Response<LimitedBody>, EgressError> {
    let mut request = get(&agent.origin());
    request.protocol = protocol;
    open_gate().stream(Seam::A2a, request, limits).await
}

/// Reads a body to its end, or to its error.
async fn read(mut body: LimitedBody) -> (usize, Option<EgressError>) {
    let mut n_read = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => n_read += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => {
                assert!(body.frame().await.is_none(), "an error ends the body");
                return (n_read, Some(error));
            }
        }
    }
    (n_read, None)
}

#[tokio::test]
async fn plain_http_speaks_http1_or_http2_with_prior_knowledge() {
    let mut agent = Agent::start(|_| chunked(MEDIA, vec![Bytes::from_static(b"hi"); 3])).await;
    for (protocol, version, te) in [
        (Protocol::Http1, Version::HTTP_11, ""),
        (Protocol::Negotiated, Version::HTTP_11, ""),
        (Protocol::Http2, Version::HTTP_2, "trailers"),
    ] {
        let response = open(&agent, protocol, ample()).await.unwrap();
        assert!(matches!(read(response.into_body()).await, (6, None)));
        let seen = agent.seen().remove(0);
        assert_eq!((seen.version, seen.header("te")), (version, te));
    }
}

#[tokio::test]
async fn stalled_stream_ends_at_the_idle_timeout() {
    let agent = Agent::start(|_| stalled(MEDIA, vec![Bytes::from_static(b"hi")])).await;
    let limits = StreamLimits {
        idle: SHORT,
        ..ample()
    };
    for protocol in PROTOCOLS {
        let response = open(&agent, protocol, limits).await.unwrap();
        let (n_read, error) = read(response.into_body()).await;
        assert!(matches!(error, Some(EgressError::Stalled)), "{error:?}");
        assert_eq!(n_read, 2);
    }
}

#[tokio::test]
async fn endless_stream_is_cut_off_at_its_size_and_its_time() {
    let agent = Agent::start(|_| endless(MEDIA, Bytes::from(vec![b'x'; 1000]))).await;
    for protocol in PROTOCOLS {
        let limits = StreamLimits {
            body: 10_000,
            ..ample()
        };
        let response = open(&agent, protocol, limits).await.unwrap();
        let (n_read, error) = read(response.into_body()).await;
        assert!(
            matches!(error, Some(EgressError::ResponseTooLarge { limit: 10_000 })),
            "{error:?}"
        );
        assert!(n_read <= 10_000);
        let limits = StreamLimits {
            total: SHORT,
            body: usize::MAX,
            ..ample()
        };
        let error = match open(&agent, protocol, limits).await {
            Ok(response) => read(response.into_body()).await.1.unwrap(),
            Err(error) => error,
        };
        assert!(matches!(error, EgressError::Timeout), "{error:?}");
    }
}

#[tokio::test]
async fn silence_before_the_headers_times_out() {
    let mut peer = Peer::start(Script::Silence).await;
    let limits = StreamLimits {
        headers: SHORT,
        ..ample()
    };
    let request = get(&peer.url("/"));
    let error = gate("127.0.0.0/8")
        .stream(Seam::A2a, request, limits)
        .await
        .unwrap_err();
    assert!(matches!(error, EgressError::Timeout) && error.may_have_been_sent());
    while !matches!(peer.next().await, Seen::Request(_)) {}
}

#[tokio::test]
async fn header_and_trailer_floods_are_refused() {
    let many = |reply: &mut HeaderMap| {
        for n in 0..80 {
            let name = HeaderName::try_from(format!("x-{n}")).unwrap();
            reply.insert(name, HeaderValue::try_from("y".repeat(1000)).unwrap());
        }
    };
    let agent = Agent::start(move |_| {
        let mut reply = reply(200, MEDIA, "");
        many(reply.headers_mut());
        reply
    })
    .await;
    for protocol in PROTOCOLS {
        // HTTP/2 refuses the headers itself.
        let error = open(&agent, protocol, ample()).await.unwrap_err();
        assert!(
            matches!(
                error,
                EgressError::HeadersTooLarge { .. } | EgressError::Exchange(_)
            ),
            "{error:?}"
        );
    }
    let agent = Agent::start(move |_| {
        let mut trailers = HeaderMap::new();
        many(&mut trailers);
        let data = stream::iter([Ok(Frame::data(Bytes::from_static(b"hi")))]);
        streamed(MEDIA, data.chain(stream::iter([Ok(Frame::trailers(trailers))])))
    })
    .await;
    // HTTP/2 drops the trailers over the limit, if it does not refuse all of them.
    let mut body = open(&agent, Protocol::Http2, ample()).await.unwrap().into_body();
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.trailers_ref().map_or(0, |trailers| {
            trailers
                .iter()
                .map(|(name, value)| name.as_str().len() + value.len())
                .sum()
        });
        assert!(size <= 64 << 10, "{size}");
    }
}

#[tokio::test]
async fn streamed_redirect_is_returned_not_followed() {
    let mut agent = Agent::start(|_| with_header(reply(307, MEDIA, ""), "location", "/elsewhere")).await;
    for protocol in PROTOCOLS {
        let response = open(&agent, protocol, ample()).await.unwrap();
        assert_eq!(response.status().as_u16(), 307);
        assert_eq!(agent.seen().len(), 1);
    }
}

#[tokio::test]
async fn streams_are_checked_against_the_policy() {
    let mut agent = Agent::start(|_| reply(200, MEDIA, "")).await;
    for protocol in PROTOCOLS {
        let mut request = get(&agent.origin());
        request.protocol = protocol;
        let error = gate("")
            .stream(Seam::A2a, request.clone(), ample())
            .await
            .unwrap_err();
        assert!(matches!(error, EgressError::Refused(_)) && !error.may_have_been_sent());
        let error = gate("127.0.0.0/8")
            .sealed()
            .stream(Seam::A2a, request, ample())
            .await;
        assert!(matches!(error.unwrap_err(), EgressError::Closed(Seam::A2a)));
    }
    assert!(agent.seen().is_empty());
}

/// A TLS server that offers these protocols and answers each request with the HTTP version it came by; and a
/// gate that trusts it.
async fn tls_server(protocols: &[&str]) -> (String, Gate) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let provider = Arc::new(ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap(),
        )
        .unwrap();
    server.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                    let version = format!("{:?}", request.version());
                    Ok::<_, std::convert::Infallible>(reply(200, MEDIA, version))
                });
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let network = Network {
        tls: Ok(Arc::new(client)),
        ..Network::default()
    };
    let gate = Gate::over("127.0.0.0/8".parse().unwrap(), limits(), network);
    (origin, gate)
}

#[tokio::test]
async fn tls_negotiates_the_protocol() {
    for (offered, protocol, version) in [
        (&["h2", "http/1.1"][..], Protocol::Http1, Some("HTTP/1.1")),
        (&["h2", "http/1.1"], Protocol::Negotiated, Some("HTTP/2.0")),
        (&["h2", "http/1.1"], Protocol::Http2, Some("HTTP/2.0")),
        (&["http/1.1"], Protocol::Negotiated, Some("HTTP/1.1")),
        (&["http/1.1"], Protocol::Http2, None),
        (&[], Protocol::Negotiated, Some("HTTP/1.1")),
        (&[], Protocol::Http2, None),
    ] {
        let (origin, gate) = tls_server(offered).await;
        let mut request = get(&origin);
        request.protocol = protocol;
        let response = gate.stream(Seam::A2a, request, ample()).await;
        let Some(version) = version else {
            let error = response.unwrap_err();
            assert!(matches!(error, EgressError::Connect(_)), "{offered:?}: {error:?}");
            assert!(!error.may_have_been_sent());
            continue;
        };
        let (body, _) = response.unwrap().into_body().collect(false).await.unwrap();
        assert_eq!(body, version, "{offered:?} {protocol:?}");
    }
}
