//! Tokens of an issuer on loopback that rotates its keys.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use wopr_engine::{Clock as _, SystemClock};
use wopr_server::config::Config;
use wopr_wire::jws::SigningKey;

use crate::{
    client::Reply,
    server::{ALICE, Server},
};

/// What the issuer serves, and how often its keys were fetched.
#[derive(Debug, Default)]
struct State {
    keys: Vec<Value>,
    is_down: bool,
    claimed: Option<String>,
    padding: usize,
    asked: usize,
}

struct Issuer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Issuer {
    async fn start(keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                let answer = shared
                    .lock()
                    .unwrap()
                    .answer(&String::from_utf8_lossy(&head), address);
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let issuer = Self {
            address,
            state,
            serving,
        };
        issuer.publish(keys);
        issuer
    }

    fn name(&self) -> String {
        format!("http://{}/realm", self.address)
    }

    fn publish(&self, keys: &[&SigningKey]) {
        let keys = keys.iter().map(|key| serde_json::to_value(key.jwk()).unwrap());
        self.change(|state| state.keys = keys.collect());
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    fn asked(&self) -> usize {
        self.state.lock().unwrap().asked
    }

    fn claims(&self) -> Value {
        // Tests advance their clock; the end of the century is later than all of them.
        json!({"iss": self.name(), "aud": "wopr", "sub": "ada", "exp": 4_102_444_800_u64, "scope": "runs:read"})
    }

    fn token(&self, key: &SigningKey) -> String {
        signed(&self.claims(), key)
    }

    async fn host(&self, change: impl FnOnce(&mut Config)) -> Server {
        let rules = format!(
            "issuer = \"{}\"\naudience = [\"wopr\"]\nalgorithms = [\"EdDSA\"]\ntenant = \"acme\"",
            self.name()
        );
        Server::start_with(|config| {
            config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
            config.auth.oidc = Some(toml::from_str(&rules).unwrap());
            change(config);
        })
        .await
    }
}

impl State {
    fn answer(&mut self, head: &str, address: SocketAddr) -> String {
        let body = if head.starts_with("GET /realm/.well-known/openid-configuration ") {
            let name = format!("http://{address}/realm");
            json!({"issuer": self.claimed.clone().unwrap_or(name), "jwks_uri": format!("http://{address}/keys")})
        } else if head.starts_with("GET /keys ") {
            self.asked += 1;
            json!({"keys": self.keys, "padding": "x".repeat(self.padding)})
        } else {
            json!("elsewhere")
        };
        let status = if self.is_down { "503 Down" } else { "200 OK" };
        let body = body.to_string();
        format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

fn key(n: u8) -> SigningKey {
    SigningKey::ed25519(format!("k{n}"), &[n; 32]).unwrap()
}

fn signed(claims: &Value, key: &SigningKey) -> String {
    let protected = key.header("at+jwt", None).encode();
    let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
    let signature = key.sign(&protected, &payload);
    format!("{protected}.{payload}.{signature}")
}

async fn list(server: &Server, token: &str) -> Reply {
    server.call("GET", "/v1/runs").key(token).send().await
}

async fn is_in(server: &Server, token: &str) -> bool {
    let reply = list(server, token).await;
    match reply.status {
        200 => true,
        401 => false,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn token_grants_its_scopes() {
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.host(|config| config.auth.keys.clear()).await;
    assert!(is_in(&server, &issuer.token(&key)).await);
    let body = json!({ "workflowId": "conformance-noop" });
    let create = |token: &str| server.call("POST", "/v1/runs").key(token).json(&body);
    create(&issuer.token(&key)).send().await.error(403, "forbidden");
    let mut claims = issuer.claims();
    claims["scope"] = json!("runs:create runs:read");
    create(&signed(&claims, &key)).send().await.ok(201);
    assert_eq!(issuer.asked(), 1, "keys are kept");
    // Neither a malformed token nor the secret of a removed key is accepted.
    assert!(!is_in(&server, "a.b.c").await && !is_in(&server, ALICE).await);
    server.stop().await;
}

#[tokio::test]
async fn gate_accepts_the_roles_and_groups_of_a_token() {
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let change = |config: &mut Config| {
        config.conformance = false;
        let rules = config.auth.oidc.as_mut().unwrap();
        rules.roles_claim = Some("/realm_access/roles".to_owned());
        rules.groups_claim = Some("groups".to_owned());
    };
    let server = issuer.host(change).await;
    let accept = json!({ "resumeValue": { "action": "accept" } });
    for (more, status) in [
        (json!({ "realm_access": { "roles": ["staff", "legal"] } }), 200),
        (json!({ "groups": "board" }), 200),
        // A role is not a group, and only the configured claims count.
        (json!({ "groups": ["legal"] }), 403),
        (json!({ "roles": ["legal"] }), 403),
        (json!({}), 403),
    ] {
        let run = server.run("legal", json!({})).await;
        let mut claims = issuer.claims();
        claims["scope"] = json!("runs:read approvals:respond");
        claims
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let token = signed(&claims, &key);
        let path = format!("/v1/runs/{run}/interrupts/gate");
        let answer = server.call("POST", &path).key(&token).json(&accept).send().await;
        assert_eq!(answer.status, status, "{more}: {answer:?}");
        let wanted = if status == 200 {
            "completed"
        } else {
            "waiting-approval"
        };
        assert_eq!(server.wait_for(&run, wanted).await["status"], wanted);
        // The token shown to such a caller has the same rights.
        let run = server.run("legal", json!({})).await;
        let path = format!("/v1/runs/{run}");
        let seen = server.call("GET", &path).key(&token).send().await.ok(200);
        let path = format!(
            "/v1/interrupts/{}",
            seen["interrupt"]["interruptToken"].as_str().unwrap()
        );
        let answer = server.call("POST", &path).json(&accept).send().await;
        assert_eq!(answer.status, status, "{more}: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn each_protocol_refuses_in_its_own_format() {
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.host(|_| {}).await;
    let mut old = issuer.claims();
    old["exp"] = json!(1);
    for (token, told) in [
        (
            signed(&old, &key),
            "error=\"invalid_token\", error_description=\"the token has expired\"",
        ),
        (issuer.token(&self::key(2)), "error=\"invalid_token\""),
    ] {
        let reply = list(&server, &token).await;
        assert!(
            reply.header("www-authenticate").unwrap().contains(told),
            "{reply:?}"
        );
        reply.error(401, "unauthenticated");
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}});
        for call in [
            server.call("POST", "/a2a").json(&request),
            server.call("GET", "/a2a/tasks/x"),
        ] {
            let reply = call.key(&token).header("a2a-version", "1.0").send().await;
            assert_eq!(reply.status, 401);
            assert!(
                reply.header("www-authenticate").unwrap().contains(told),
                "{reply:?}"
            );
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(body["error"]["status"], "UNAUTHENTICATED", "{body}");
            // Not an envelope of the other protocol.
            assert!(
                body["error"].is_object() && body.get("message").is_none(),
                "{body}"
            );
        }
    }
    // Public resources stay public, even with an invalid credential.
    let card = server.call("GET", "/.well-known/agent-card.json").key("a.b.c");
    let card = card.header("a2a-version", "1.0").send().await.ok(200);
    let schemes = card["securitySchemes"].as_object().unwrap();
    assert_eq!(schemes.keys().collect::<Vec<_>>(), ["bearer", "oidc"]);
    let url = format!("{}/.well-known/openid-configuration", issuer.name());
    assert_eq!(
        schemes["oidc"]["openIdConnectSecurityScheme"]["openIdConnectUrl"],
        url
    );
    assert_eq!(card["securityRequirements"].as_array().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn fetches_for_unknown_keys_are_rate_limited() {
    let (one, two) = (key(1), key(2));
    let issuer = Issuer::start(&[&one]).await;
    let server = issuer.host(|_| {}).await;
    assert!(is_in(&server, &issuer.token(&one)).await);
    for n in 10..40 {
        assert!(!is_in(&server, &issuer.token(&key(n))).await);
    }
    assert_eq!(issuer.asked(), 1, "a flood of unknown keys asked again at once");
    // The issuer rotates its key, which is found with the first token after the refresh period.
    issuer.publish(&[&two]);
    assert!(!is_in(&server, &issuer.token(&two)).await);
    server.clock.advance(10_000);
    assert!(is_in(&server, &issuer.token(&two)).await);
    assert!(!is_in(&server, &issuer.token(&one)).await, "a withdrawn key");
    assert_eq!(issuer.asked(), 2);
    server.stop().await;
}

/// An issuer that replaces a leaked key under its old name, or has a key without a name, locks the old key out and the new
/// one in with the first token that needs it.
#[tokio::test]
async fn a_key_replaced_under_its_name_is_found() {
    for is_named in [true, false] {
        let (one, two) = (key(1), SigningKey::ed25519("k1", &[2; 32]).unwrap());
        let issuer = Issuer::start(&[]).await;
        let publish = |key: &SigningKey| {
            issuer.publish(&[key]);
            if !is_named {
                issuer.change(|state| drop(state.keys[0].as_object_mut().unwrap().remove("kid")));
            }
        };
        publish(&one);
        let token = |key: &SigningKey| match is_named {
            true => issuer.token(key),
            false => {
                let protected = URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","typ":"at+jwt"}"#);
                let payload = URL_SAFE_NO_PAD.encode(issuer.claims().to_string());
                let signature = key.sign(&protected, &payload);
                format!("{protected}.{payload}.{signature}")
            }
        };
        let server = issuer.host(|_| {}).await;
        assert!(is_in(&server, &token(&one)).await);
        publish(&two);
        for _ in 0..3 {
            assert!(!is_in(&server, &token(&two)).await);
        }
        assert_eq!(issuer.asked(), 1, "within the refresh period");
        server.clock.advance(10_000);
        assert!(is_in(&server, &token(&two)).await, "named: {is_named}");
        for _ in 0..3 {
            assert!(!is_in(&server, &token(&one)).await, "named: {is_named}");
        }
        assert_eq!(issuer.asked(), 2, "forged signatures ask no more often");
        server.stop().await;
    }
}

/// The host's own time never goes back.
#[tokio::test]
async fn tokens_are_judged_by_the_time_of_day_after_the_clock_was_set_back() {
    const HOUR: i64 = 3_600_000;
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.host(|_| {}).await;
    let seconds = SystemClock.now().millis() / 1_000;
    let (mut early, mut ending) = (issuer.claims(), issuer.claims());
    early["nbf"] = json!(seconds + 1_800);
    ending["exp"] = json!(seconds + 1_800);
    let is_in_twice = async |claims: &Value| {
        let token = signed(claims, &key);
        // The first look may fetch keys; the second one need not wait for any.
        [is_in(&server, &token).await, is_in(&server, &token).await]
    };
    assert_eq!(is_in_twice(&issuer.claims()).await, [true; 2]);
    server.clock.advance(HOUR);
    assert_eq!(is_in_twice(&early).await, [true; 2]);
    assert_eq!(is_in_twice(&ending).await, [false; 2]);
    server.clock.advance(-HOUR);
    assert_eq!(is_in_twice(&early).await, [false; 2]);
    assert_eq!(is_in_twice(&ending).await, [true; 2]);
    server.stop().await;
}

#[tokio::test]
async fn concurrent_first_tokens_share_one_fetch() {
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.host(|_| {}).await;
    let token = issuer.token(&key);
    let all = futures_util::future::join_all((0..20).map(|_| is_in(&server, &token))).await;
    assert_eq!((all, issuer.asked()), (vec![true; 20], 1));
    server.stop().await;
}

#[tokio::test]
async fn last_good_keys_survive_an_issuer_outage() {
    let (one, two) = (key(1), key(2));
    let issuer = Issuer::start(&[&one]).await;
    let server = issuer.host(|_| {}).await;
    assert!(is_in(&server, &issuer.token(&one)).await);
    let breaks: [fn(&mut State); 4] = [
        |state| state.is_down = true,
        |state| state.claimed = Some("http://other.test/".to_owned()),
        |state| state.keys.clear(),
        |state| state.padding = 1 << 20,
    ];
    for change in breaks {
        issuer.change(change);
        // The keys are due for a refetch, which fails.
        server.clock.advance(4_000_000);
        assert!(is_in(&server, &issuer.token(&one)).await);
        assert!(!is_in(&server, &issuer.token(&two)).await);
        issuer.change(|state| {
            *state = State {
                asked: state.asked,
                ..State::default()
            };
        });
        issuer.publish(&[&one]);
    }
    issuer.publish(&[&one, &two]);
    server.clock.advance(10_000);
    assert!(is_in(&server, &issuer.token(&two)).await);
    server.stop().await;
}

/// Waits until the issuer's keys were fetched this many times.
async fn asked(issuer: &Issuer, times: usize) {
    let asked = async {
        while issuer.asked() < times {
            tokio::task::yield_now().await;
        }
    };
    let soon = std::time::Duration::from_secs(20);
    tokio::time::timeout(soon, asked)
        .await
        .expect("the issuer is asked");
}

#[tokio::test]
async fn keys_are_fetched_at_startup_and_renewed_in_time() {
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.host(|_| {}).await;
    asked(&issuer, 1).await;
    assert!(is_in(&server, &issuer.token(&key)).await);
    // The keys stay valid for ten more minutes.
    server.clock.advance(50 * 60_000);
    assert!(is_in(&server, &issuer.token(&key)).await);
    asked(&issuer, 2).await;
    server.stop().await;
}

#[tokio::test]
async fn keys_are_fetched_through_the_gate() {
    let key = key(1);
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.host(|config| config.egress.allow.clear()).await;
    assert!(!is_in(&server, &issuer.token(&key)).await);
    assert_eq!(issuer.asked(), 0, "loopback was reached without leave");
    server.stop().await;
}
