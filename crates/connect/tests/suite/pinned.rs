//! TLS deliveries to a checked public address, which a peer in this process answers.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_rustls::TlsAcceptor;
use wopr_connect::egress::{
    CertificateProblem, Channel, Dial, EgressError, Gate, Network, Policy, Refusal, Request, Seam,
};

use crate::{
    authority::Authority,
    peer::{Answers, answer, limits},
};

/// Buffer of a peer in this process, in bytes.
const BUFFER: usize = 64 << 10;

/// Peers in this process, by address. Other addresses refuse the connection.
#[derive(Default)]
struct World {
    peers: BTreeMap<IpAddr, (TlsAcceptor, String)>,
    dialed: Mutex<Vec<SocketAddr>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl World {
    fn with(mut self, address: &str, acceptor: TlsAcceptor, answer: String) -> Self {
        self.peers.insert(address.parse().unwrap(), (acceptor, answer));
        self
    }

    fn dialed(&self) -> Vec<String> {
        let dialed = self.dialed.lock().unwrap();
        dialed.iter().map(ToString::to_string).collect()
    }
}

#[async_trait]
impl Dial for World {
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Channel>> {
        self.dialed.lock().unwrap().push(address);
        let peer = self.peers.get(&address.ip()).cloned();
        let (acceptor, answer) = peer.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (here, there) = duplex(BUFFER);
        tokio::spawn(async move {
            let Ok(mut stream) = acceptor.accept(there).await else {
                return;
            };
            let mut request = Vec::new();
            while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.flush().await;
            // Open until the client closes the connection.
            let _ = stream.read_buf(&mut request).await;
        });
        Ok(Box::new(here))
    }
}

async fn deliver(
    authority: &Authority,
    world: &Arc<World>,
    answers: &[&[&str]],
    url: &str,
) -> Result<u16, EgressError> {
    let network = Network {
        resolver: Answers::new(answers),
        dial: world.clone(),
        tls: Ok(authority.client()),
    };
    let gate = Gate::over(Policy::default(), limits(), network);
    let request = Request::new(Method::POST, url.parse().unwrap());
    gate.request(Seam::Push, request)
        .await
        .map(|response| response.status.as_u16())
}

fn ok() -> String {
    answer(200, &[], "taken")
}

#[tokio::test]
async fn checked_address_is_dialed_and_the_name_is_verified() {
    let authority = Authority::new();
    let world = Arc::new(World::default().with("8.8.8.8", authority.server("peer.test", None), ok()));
    for url in [
        "https://peer.test/hook",
        "https://PEER.test./hook",
        "https://peer.test:8443/",
    ] {
        assert_eq!(
            deliver(&authority, &world, &[&["8.8.8.8"]], url).await.unwrap(),
            200,
            "{url}"
        );
    }
    assert_eq!(world.dialed(), ["8.8.8.8:443", "8.8.8.8:443", "8.8.8.8:8443"]);
}

#[tokio::test]
async fn literal_address_needs_its_own_certificate() {
    let authority = Authority::new();
    let world = World::default()
        .with("1.1.1.1", authority.server("1.1.1.1", None), ok())
        .with("8.8.8.8", authority.server("peer.test", None), ok())
        .with("2606:4700::1", authority.server("2606:4700::1", None), ok());
    let world = Arc::new(world);
    for url in [
        "https://1.1.1.1/",
        "https://0x01010101/",
        "https://[2606:4700::1]/",
    ] {
        assert_eq!(deliver(&authority, &world, &[], url).await.unwrap(), 200, "{url}");
    }
    let error = deliver(&authority, &world, &[], "https://8.8.8.8/")
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "agree on tls: the peer's certificate is for another name"
    );
}

#[tokio::test]
async fn peer_without_a_certificate_for_the_name_receives_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let world = World::default()
        .with("8.8.8.8", authority.server("other.test", None), ok())
        .with("8.8.4.4", stranger.server("peer.test", None), ok());
    let world = Arc::new(world);
    for (address, wanted) in [
        ("8.8.8.8", CertificateProblem::OtherName),
        ("8.8.4.4", CertificateProblem::UnknownIssuer),
    ] {
        let error = deliver(&authority, &world, &[&[address]], "https://peer.test/")
            .await
            .unwrap_err();
        assert!(
            matches!(error, EgressError::Certificate { problem, .. } if problem == wanted)
                && error.is_transient(),
            "{address} {error:?}"
        );
    }
}

#[tokio::test]
async fn next_checked_address_is_tried_if_one_does_not_answer() {
    let authority = Authority::new();
    let world = Arc::new(World::default().with("8.8.4.4", authority.server("peer.test", None), ok()));
    let answers: &[&[&str]] = &[&["8.8.8.8", "8.8.4.4", "1.1.1.1"]];
    let status = deliver(&authority, &world, answers, "https://peer.test/")
        .await
        .unwrap();
    assert_eq!(status, 200);
    assert_eq!(world.dialed(), ["8.8.8.8:443", "8.8.4.4:443"]);
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let authority = Authority::new();
    for status in [301, 302, 303, 307, 308] {
        for place in [
            "http://127.0.0.1/",
            "https://169.254.169.254/latest/meta-data/",
            "https://peer.test/elsewhere",
            "//localhost/",
            "file:///etc/passwd",
        ] {
            let redirect = answer(status, &[&format!("location: {place}")], "");
            let world = World::default().with("8.8.8.8", authority.server("peer.test", None), redirect);
            let world = Arc::new(world);
            // The resolver has a single answer, so a second lookup would fail.
            let answered = deliver(&authority, &world, &[&["8.8.8.8"]], "https://peer.test/").await;
            assert_eq!(answered.unwrap(), status, "{place}");
            assert_eq!(world.dialed(), ["8.8.8.8:443"], "{status} {place}");
        }
    }
}

#[tokio::test]
async fn name_that_no_certificate_can_contain_is_refused() {
    let authority = Authority::new();
    let world = Arc::new(World::default());
    for url in ["https://-peer.test/", "https://peer-.test/"] {
        let error = deliver(&authority, &world, &[&["8.8.8.8"]], url)
            .await
            .unwrap_err();
        assert!(
            matches!(error, EgressError::Refused(Refusal::Host)),
            "{url} {error:?}"
        );
    }
    assert_eq!(world.dialed(), [""; 0]);
}
