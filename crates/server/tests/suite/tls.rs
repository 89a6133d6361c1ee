//! TLS and client certificates, with certificate authorities created by the tests.

use std::{path::Path, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use wopr_core::Timestamp;
use wopr_server::{
    config::{AgentPeer, Certificate, Config, PeerTlsFiles, Tls as Files},
    tls::{Tls, TlsError},
};

use crate::{
    client::Reply,
    server::{ALICE, Server},
    workflows::{chain, node},
};

struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    pem: String,
    /// In seconds since the epoch.
    not_after: i64,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn identity(&self, names: &[&str]) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) if name.contains("://") => SanType::URI((*name).try_into().unwrap()),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            });
        }
        let signed = params.signed_by(&key, &self.0).unwrap();
        Identity {
            not_after: params.not_after.unix_timestamp(),
            certificate: signed.der().clone(),
            pem: signed.pem(),
            key,
        }
    }
}

impl Identity {
    fn fingerprint(&self) -> String {
        Sha256::digest(&self.certificate)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn write(&self, files: &Files) {
        std::fs::write(&files.cert, &self.pem).unwrap();
        std::fs::write(&files.key, self.key.serialize_pem()).unwrap();
    }
}

/// Writes the TLS files of a server to a folder; the client authority is optional.
fn files(folder: &Path, server: &Identity, clients: Option<&Authority>) -> Files {
    let files = Files {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
        client_ca: clients.map(|_| folder.join("clients.pem")),
    };
    server.write(&files);
    if let (Some(path), Some(authority)) = (&files.client_ca, clients) {
        std::fs::write(path, authority.0.pem()).unwrap();
    }
    files
}

/// A TLS server and what its clients need.
struct Secure {
    server: Server,
    files: Files,
    authority: Authority,
    _folder: TempDir,
}

impl Secure {
    async fn start(clients: Option<&Authority>, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let files = files(folder.path(), &authority.identity(&["127.0.0.1"]), clients);
        let server = Server::start_with(|config| {
            config.server.tls = Some(files.clone());
            change(config);
        })
        .await;
        Self {
            server,
            files,
            authority,
            _folder: folder,
        }
    }

    async fn connect(
        &self,
        client: Option<&Identity>,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match client {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
                builder
                    .with_client_auth_cert(vec![identity.certificate.clone()], key)
                    .unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(self.server.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Requests a path, with an optional bearer credential. With TLS 1.3 a client learns only on reading that
    /// its certificate was refused.
    async fn get(
        &self,
        client: Option<&Identity>,
        bearer: Option<&str>,
        path: &str,
    ) -> std::io::Result<Reply> {
        let mut stream = self.connect(client, &[b"http/1.1"]).await?;
        let credential = bearer.map_or_else(String::new, |secret| {
            format!("authorization: Bearer {secret}\r\n")
        });
        let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\n{credential}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut bytes = Vec::new();
        // The server may close without `close_notify`; the bytes before that count.
        match stream.read_to_end(&mut bytes).await {
            Err(error) if bytes.is_empty() => Err(error),
            Ok(_) | Err(_) => Ok(Reply::parse(&bytes)),
        }
    }

    async fn status(&self, client: Option<&Identity>, bearer: Option<&str>) -> u16 {
        self.get(client, bearer, "/v1/runs").await.unwrap().status
    }
}

fn certificate(id: &str, san: Option<&str>, fingerprint: Option<String>, scopes: &[&str]) -> Certificate {
    Certificate {
        id: id.to_owned(),
        san: san.map(str::to_owned),
        fingerprint,
        tenant: serde_json::from_value(json!("acme")).unwrap(),
        principal: None,
        scopes: serde_json::from_value(json!(scopes)).unwrap(),
        roles: Vec::new(),
        groups: Vec::new(),
    }
}

#[tokio::test]
async fn everything_is_https_with_a_certificate() {
    let secure = Secure::start(None, |_| {}).await;
    assert_eq!(secure.status(None, Some(ALICE)).await, 200);
    assert_eq!(secure.status(None, None).await, 401);
    let card = secure
        .get(None, None, "/.well-known/agent-card.json")
        .await
        .unwrap()
        .ok(200);
    let origin = format!("https://{}", secure.server.address);
    for interface in card["supportedInterfaces"].as_array().unwrap() {
        let url = interface["url"].as_str().unwrap();
        let is_secure = url.starts_with(&origin) || interface["protocolBinding"] == "GRPC";
        assert!(is_secure, "{interface}");
    }
    assert!(card["securitySchemes"].get("mtls").is_none());
    let told = secure
        .get(None, None, "/.well-known/openwop")
        .await
        .unwrap()
        .ok(200);
    assert_eq!(
        told["a2a"]["agentCardUrl"],
        format!("{origin}/.well-known/agent-card.json")
    );
    // A client that speaks plain HTTP gets no plain response.
    let mut stream = TcpStream::connect(secure.server.address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
        .await
        .unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
    secure.server.stop().await;
}

#[tokio::test]
async fn both_http_versions_are_negotiated() {
    let secure = Secure::start(None, |_| {}).await;
    for (offered, agreed) in [
        (&[&b"h2"[..], b"http/1.1"][..], Some(&b"h2"[..])),
        (&[b"http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = secure.connect(None, offered).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed);
    }
    assert!(secure.connect(None, &[b"spdy/3"]).await.is_err());
    secure.server.stop().await;
}

#[tokio::test]
async fn client_certificate_authenticates_its_caller() {
    let (clients, strangers) = (Authority::new(), Authority::new());
    let by_dns = clients.identity(&["other.test", "robot.test"]);
    let by_uri = clients.identity(&["spiffe://acme/reader"]);
    let by_print = clients.identity(&["print.test"]);
    let unknown = clients.identity(&["robot.test.evil", "evil.robot.test", "*.test"]);
    let foreign = strangers.identity(&["robot.test"]);
    let listed = vec![
        certificate("robot", Some("robot.test"), None, &["*"]),
        certificate("reader", Some("spiffe://acme/reader"), None, &["runs:read"]),
        certificate("printed", None, Some(by_print.fingerprint()), &["manifest:read"]),
    ];
    let secure = Secure::start(Some(&clients), |config| config.auth.certificates = listed).await;
    for (client, bearer, wanted) in [
        (Some(&by_dns), None, 200),
        (Some(&by_uri), None, 200),
        (Some(&by_print), None, 403),
        (Some(&unknown), None, 401),
        (None, None, 401),
        (None, Some(ALICE), 200),
        (Some(&unknown), Some(ALICE), 200),
        // A credential in the request takes precedence over the certificate.
        (Some(&by_dns), Some("wrong"), 401),
        (Some(&by_print), Some(ALICE), 200),
    ] {
        assert_eq!(secure.status(client, bearer).await, wanted, "{bearer:?}");
    }
    assert!(secure.get(Some(&foreign), None, "/v1/runs").await.is_err());
    assert!(secure.get(Some(&foreign), Some(ALICE), "/v1/runs").await.is_err());
    let card = secure
        .get(None, None, "/.well-known/agent-card.json")
        .await
        .unwrap()
        .ok(200);
    let schemes: Vec<_> = card["securitySchemes"].as_object().unwrap().keys().collect();
    assert_eq!(schemes, ["bearer", "mtls"]);
    let required: Vec<&Value> = card["securityRequirements"].as_array().unwrap().iter().collect();
    assert_eq!(required.len(), 2);
    secure.server.stop().await;
}

#[tokio::test]
async fn host_runs_with_certificates_and_no_keys() {
    let clients = Authority::new();
    let robot = clients.identity(&["robot.test"]);
    let secure = Secure::start(Some(&clients), |config| {
        config.auth.keys.clear();
        config.auth.certificates = vec![certificate("robot", Some("robot.test"), None, &["*"])];
    })
    .await;
    assert_eq!(secure.status(Some(&robot), None).await, 200);
    let card = secure
        .get(None, None, "/.well-known/agent-card.json")
        .await
        .unwrap()
        .ok(200);
    assert!(
        card["securitySchemes"].get("bearer").is_none(),
        "{}",
        card["securitySchemes"]
    );
    secure.server.stop().await;
}

#[tokio::test]
async fn changed_files_are_reloaded_and_broken_ones_are_not() {
    let secure = Secure::start(None, |_| {}).await;
    let shown = async || {
        let stream = secure.connect(None, &[]).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let tls = Arc::clone(secure.server.host.tls().unwrap());
    let first = shown().await;
    assert!(!tls.reload().unwrap());
    let next = secure.authority.identity(&["127.0.0.1"]);
    next.write(&secure.files);
    assert_eq!(shown().await, first, "not before it is read");
    assert!(tls.reload().unwrap());
    assert_eq!(shown().await, next.certificate);

    // Half of a change: the certificate of one pair and the key of another.
    std::fs::write(&secure.files.cert, &secure.authority.identity(&["127.0.0.1"]).pem).unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Pair { .. })));
    assert!(!tls.reload().unwrap(), "told once");
    std::fs::remove_file(&secure.files.key).unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Read { .. })));
    assert_eq!(shown().await, next.certificate);
    let last = secure.authority.identity(&["127.0.0.1"]);
    last.write(&secure.files);
    assert!(tls.reload().unwrap());
    assert_eq!(shown().await, last.certificate);
    secure.server.stop().await;
}

#[tokio::test]
async fn silent_clients_do_not_block_others() {
    let secure = Secure::start(None, |_| {}).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(secure.server.address).await.unwrap());
    }
    assert_eq!(secure.status(None, Some(ALICE)).await, 200);
    // They do not delay shutdown either.
    secure.server.stop().await;
}

/// Sends a request on a connection that stays open.
async fn ask(stream: &mut TlsStream<TcpStream>, path: &str, fields: &str) -> u16 {
    exchange(stream, "GET", path, fields, "").await.0
}

async fn exchange(
    stream: &mut TlsStream<TcpStream>,
    method: &str,
    path: &str,
    fields: &str,
    body: &str,
) -> (u16, Vec<u8>) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{fields}\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap();
    let length = length.split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Opens a stream of a run's events that does not end by itself.
async fn follow(secure: &Secure, client: &Identity) -> TlsStream<TcpStream> {
    let mut stream = secure.connect(Some(client), &[b"http/1.1"]).await.unwrap();
    let body = json!({ "workflowId": "approval" }).to_string();
    let fields = format!(
        "content-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    let (status, created) = exchange(&mut stream, "POST", "/v1/runs", &fields, &body).await;
    assert_eq!(status, 201);
    let created: Value = serde_json::from_slice(&created).unwrap();
    let run = created["runId"].as_str().unwrap();
    let head = format!("GET /v1/runs/{run}/events HTTP/1.1\r\nhost: test\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

/// Waits for the last chunk of a body.
async fn ended(stream: &mut TlsStream<TcpStream>) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n0\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn expired_certificate_is_rejected_on_an_open_connection() {
    let clients = Authority::new();
    let robot = clients.identity(&["robot.test"]);
    let secure = Secure::start(Some(&clients), |config| {
        config.auth.certificates = vec![certificate("robot", Some("robot.test"), None, &["*"])];
    })
    .await;
    // Leaves two seconds until it expires, by the host's clock.
    let expires = Timestamp::from_millis(robot.not_after * 1_000);
    let now = secure.server.host.engine().now();
    secure
        .server
        .clock
        .advance(expires.millis() - now.millis() - 2_000);
    let mut open = secure.connect(Some(&robot), &[b"http/1.1"]).await.unwrap();
    assert_eq!(ask(&mut open, "/v1/runs", "").await, 200);
    let mut stream = follow(&secure, &robot).await;
    // The stream ends when the certificate expires.
    ended(&mut stream).await;
    assert_eq!(ask(&mut open, "/v1/runs", "").await, 401);
    // The connection now equals one without a certificate, and a new connection is no better.
    let key = format!("authorization: Bearer {ALICE}\r\n");
    assert_eq!(ask(&mut open, "/v1/runs", &key).await, 200);
    assert_eq!(ask(&mut open, "/healthz", "").await, 200);
    assert_eq!(secure.status(Some(&robot), None).await, 401);
    secure.server.stop().await;
}

#[tokio::test]
async fn certificate_of_a_removed_authority_is_rejected_on_an_open_connection() {
    let (clients, others) = (Authority::new(), Authority::new());
    let robot = clients.identity(&["robot.test"]);
    let secure = Secure::start(Some(&clients), |config| {
        config.auth.certificates = vec![certificate("robot", Some("robot.test"), None, &["*"])];
    })
    .await;
    let tls = Arc::clone(secure.server.host.tls().unwrap());
    let authorities = secure.files.client_ca.clone().unwrap();
    let mut open = secure.connect(Some(&robot), &[b"http/1.1"]).await.unwrap();
    let mut stream = follow(&secure, &robot).await;
    // The certificate stays valid if its authority remains among the new ones.
    std::fs::write(&authorities, clients.0.pem() + &others.0.pem()).unwrap();
    assert!(tls.reload().unwrap());
    assert_eq!(ask(&mut open, "/v1/runs", "").await, 200);

    std::fs::write(&authorities, others.0.pem()).unwrap();
    assert!(tls.reload().unwrap());
    assert_eq!(ask(&mut open, "/v1/runs", "").await, 401);
    ended(&mut stream).await;
    assert!(secure.get(Some(&robot), None, "/v1/runs").await.is_err());
    secure.server.stop().await;
}

#[tokio::test]
async fn cross_origin_page_cannot_use_the_browsers_certificate() {
    let clients = Authority::new();
    let robot = clients.identity(&["robot.test"]);
    let secure = Secure::start(Some(&clients), |config| {
        config.auth.certificates = vec![certificate("robot", Some("robot.test"), None, &["*"])];
        config.server.cors_origins = vec!["https://friend.test".parse().unwrap()];
    })
    .await;
    let mut browser = secure.connect(Some(&robot), &[b"http/1.1"]).await.unwrap();
    let own = format!("origin: {}\r\n", secure.server.host.public_url());
    let key = format!("origin: https://evil.test\r\nauthorization: Bearer {ALICE}\r\n");
    for (fields, wanted) in [
        ("", 200),
        (own.as_str(), 200),
        ("sec-fetch-site: same-origin\r\n", 200),
        ("origin: https://evil.test\r\n", 401),
        // An allowed CORS origin cannot use the browser's certificate either.
        ("origin: https://friend.test\r\n", 401),
        ("origin: null\r\n", 401),
        ("sec-fetch-site: cross-site\r\n", 401),
        // A page that sends a key holds it.
        (key.as_str(), 200),
    ] {
        for path in ["/v1/runs", "/a2a/tasks?A2A-Version=1.0"] {
            assert_eq!(ask(&mut browser, path, fields).await, wanted, "{path} {fields}");
        }
    }
    secure.server.stop().await;
}

#[test]
fn unusable_files_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let identity = authority.identity(&["127.0.0.1"]);
    let good = files(folder.path(), &identity, Some(&authority));
    assert!(Tls::load(&good).is_ok());
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (none, text) = (folder.path().join("none.pem"), write("text.pem", "no pem"));
    let broken = write(
        "broken.pem",
        "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
    );
    let stranger = write("stranger.pem", &other.identity(&["x.test"]).key.serialize_pem());
    type Check = fn(&TlsError) -> bool;
    let rows: [(&str, Files, Check); 8] = [
        (
            "no certificate file",
            Files {
                cert: none.clone(),
                ..good.clone()
            },
            |e| matches!(e, TlsError::Read { .. }),
        ),
        (
            "no certificate",
            Files {
                cert: text.clone(),
                ..good.clone()
            },
            |e| matches!(e, TlsError::NoCertificate(_)),
        ),
        (
            "a key for one",
            Files {
                cert: good.key.clone(),
                ..good.clone()
            },
            |e| matches!(e, TlsError::NoCertificate(_)),
        ),
        (
            "broken",
            Files {
                cert: broken.clone(),
                ..good.clone()
            },
            |e| matches!(e, TlsError::Read { .. }),
        ),
        (
            "no key file",
            Files {
                key: none.clone(),
                ..good.clone()
            },
            |e| matches!(e, TlsError::Read { .. }),
        ),
        (
            "no key",
            Files {
                key: text.clone(),
                ..good.clone()
            },
            |e| matches!(e, TlsError::Read { .. }),
        ),
        (
            "another's key",
            Files {
                key: stranger,
                ..good.clone()
            },
            |e| matches!(e, TlsError::Pair { .. }),
        ),
        (
            "no authority",
            Files {
                client_ca: Some(text),
                ..good.clone()
            },
            |e| matches!(e, TlsError::NoCertificate(_)),
        ),
    ];
    for (name, files, is_wanted) in rows {
        let error = Tls::load(&files).unwrap_err();
        assert!(is_wanted(&error), "{name}: {error:?}");
        assert!(error.to_string().contains(".pem"), "{name}: {error}");
    }
}

/// An agent that is called by a client certificate, and the host that calls it.
struct Pair {
    agent: Secure,
    caller: Server,
    tls: PeerTlsFiles,
    _folder: TempDir,
}

impl Pair {
    /// The agent knows the certificates of the authority by the name `caller.test`.
    async fn start(clients: &Authority, shown: &Identity) -> Self {
        let agent = Secure::start(Some(clients), |config| {
            config.auth.certificates = vec![certificate("caller", Some("caller.test"), None, &["*"])];
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, pem: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, pem).unwrap();
            Some(path)
        };
        let tls = PeerTlsFiles {
            ca: file("ca.pem", agent.authority.0.pem()),
            cert: file("cert.pem", shown.pem.clone()),
            key: file("key.pem", shown.key.serialize_pem()),
        };
        let origin = format!("https://{}", agent.server.address);
        let caller = Server::start_with(|config| {
            config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
            config.a2a.peers = vec![AgentPeer {
                tls: Some(tls.clone()),
                ..AgentPeer::new("default", origin.parse().unwrap())
            }];
        })
        .await;
        Self {
            agent,
            caller,
            tls,
            _folder: folder,
        }
    }

    /// Starts a run that calls the agent over a binding.
    async fn call(&self, binding: &str) -> String {
        let config = json!({ "skill": "letter", "data": { "name": binding }, "binding": binding });
        let mut document = chain("ask", &[node("ask", "core.a2a.invoke", config)]);
        document["settings"] = json!({ "maxRetries": 0 });
        document["id"] = json!(format!("ask-{binding}"));
        let registered = self.caller.post("/v1/workflows", &document).send().await;
        // It may be there from before.
        assert!([200, 201].contains(&registered.status), "{registered:?}");
        self.caller.run(&format!("ask-{binding}"), json!({})).await
    }

    async fn is_answered(&self, binding: &str) {
        let run = self.call(binding).await;
        self.caller.wait_for(&run, "completed").await;
        let path = format!("/v1/runs/{run}/events/poll?timeout=1");
        let events = self.caller.get(&path).send().await.ok(200).to_string();
        assert!(events.contains(&format!("Hello {binding}")), "{events}");
    }
}

#[tokio::test]
async fn agent_recognizes_a_host_by_its_client_certificate() {
    let clients = Authority::new();
    let pair = Pair::start(&clients, &clients.identity(&["caller.test"])).await;
    for binding in ["jsonrpc", "rest", "grpc"] {
        pair.is_answered(binding).await;
    }
}

#[tokio::test]
async fn renewed_certificate_of_a_peer_is_used_without_a_restart() {
    let clients = Authority::new();
    let pair = Pair::start(&clients, &clients.identity(&["somebody-else.test"])).await;
    let failed = pair.caller.wait_for(&pair.call("jsonrpc").await, "failed").await;
    let code = failed["error"]["code"].as_str().unwrap();
    assert_eq!(code, "remote_failed", "nobody has that name: {failed:#}");

    let renewed = clients.identity(&["caller.test"]);
    std::fs::write(pair.tls.cert.as_ref().unwrap(), &renewed.pem).unwrap();
    // Half of a renewal: the key does not belong to the certificate.
    pair.caller.host.reload_peers();
    pair.caller.wait_for(&pair.call("jsonrpc").await, "failed").await;
    std::fs::write(pair.tls.key.as_ref().unwrap(), renewed.key.serialize_pem()).unwrap();
    pair.caller.host.reload_peers();
    for binding in ["jsonrpc", "rest", "grpc"] {
        pair.is_answered(binding).await;
    }

    // The agent moves to another authority.
    let other = Authority::new();
    other.identity(&["127.0.0.1"]).write(&pair.agent.files);
    assert!(pair.agent.server.host.tls().unwrap().reload().unwrap());
    std::fs::write(pair.tls.ca.as_ref().unwrap(), other.0.pem()).unwrap();
    pair.caller.host.reload_peers();
    pair.is_answered("jsonrpc").await;
}
