//! Finding, keeping and verifying cards.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use wopr_connect::a2a::{Binding, Call, CardKeys, Client, Error, Peer, Wanted};
use wopr_wire::{
    a2a::{card_signature, method::Version},
    jws::{JwkSet, PublicKey, SigningKey},
};

use crate::{
    agent::{Agent, card, json_reply, open_gate, reply, rpc_reply, with_header},
    peer::{Peer as Scripted, Script},
};

const INTERFACES: &[(&str, &str, &str)] = &[("/rpc", "JSONRPC", "1.0")];

async fn paths_after(agent: &mut Agent, n_lookups: usize) -> Vec<String> {
    let client = Client::new(open_gate(), [agent.peer()]);
    for _ in 0..n_lookups {
        let _ = client.card("planner").await;
    }
    agent.seen().into_iter().map(|seen| seen.path).collect()
}

#[tokio::test]
async fn card_is_kept_while_it_is_fresh() {
    for (cache, n_fetched) in [("max-age=60", 1), ("no-cache", 3), ("max-age=0", 3), ("", 1)] {
        let mut agent = Agent::start(move |seen| {
            with_header(
                json_reply(&card(&seen.origin, INTERFACES)),
                "cache-control",
                cache,
            )
        })
        .await;
        assert_eq!(paths_after(&mut agent, 3).await.len(), n_fetched, "{cache}");
    }
}

#[tokio::test]
async fn stale_card_is_revalidated_by_its_etag() {
    let mut agent = Agent::start(|seen| {
        let reply = match seen.header("if-none-match") {
            "\"v1\"" => reply(304, "text/plain", ""),
            _ => with_header(json_reply(&card(&seen.origin, INTERFACES)), "etag", "\"v1\""),
        };
        with_header(reply, "cache-control", "max-age=0")
    })
    .await;
    let client = Client::new(open_gate(), [agent.peer()]);
    for _ in 0..3 {
        assert_eq!(client.card("planner").await.unwrap().model.name, "n");
    }
    let tags: Vec<_> = agent
        .seen()
        .iter()
        .map(|seen| seen.header("if-none-match").to_owned())
        .collect();
    assert_eq!(tags, ["", "\"v1\"", "\"v1\""]);
}

/// A card as agents of 0.3 write it.
fn old_card(origin: &str) -> Value {
    serde_json::json!({
        "name": "n", "description": "d", "version": "1", "capabilities": {}, "skills": [],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "protocolVersion": "0.3.0", "url": format!("{origin}/old"), "preferredTransport": "JSONRPC",
    })
}

fn versions_asked_for(agent: &mut Agent) -> Vec<String> {
    let seen = agent.seen();
    seen.iter()
        .map(|seen| seen.header("a2a-version").to_owned())
        .collect()
}

#[tokio::test]
async fn card_of_the_wanted_version_is_asked_for_and_kept() {
    let mut agent = Agent::start(|seen| match seen.header("a2a-version") {
        "1.0" => json_reply(&card(&seen.origin, INTERFACES)),
        _ => json_reply(&old_card(&seen.origin)),
    })
    .await;
    let client = Client::new(open_gate(), [agent.peer()]);
    for (version, spoken) in [
        (None, Version::V1_0),
        (Some(Version::V1_0), Version::V1_0),
        (Some(Version::V0_3), Version::V0_3),
    ] {
        let wanted = Wanted {
            version,
            binding: None,
        };
        for _ in 0..2 {
            let found = client.agent("planner", wanted, Call::default()).await.unwrap();
            assert_eq!(found.version(), spoken, "{version:?}");
        }
    }
    assert_eq!(versions_asked_for(&mut agent), ["1.0", "0.3"]);
}

#[tokio::test]
async fn agent_that_refuses_the_version_is_asked_without_it() {
    for (status, is_found) in [(400, true), (406, true), (403, false)] {
        let mut agent = Agent::start(move |seen| match seen.header("a2a-version") {
            "" => json_reply(&old_card(&seen.origin)),
            _ => reply(status, "text/plain", ""),
        })
        .await;
        let mut peer = agent.peer();
        peer.url = format!("{}/card.json", agent.origin()).parse().unwrap();
        let client = Client::new(open_gate(), [peer]);
        let found = client.agent("planner", Wanted::default(), Call::default()).await;
        assert_eq!(found.is_ok(), is_found, "{status}");
        let asked = versions_asked_for(&mut agent);
        match is_found {
            true => assert_eq!(asked, ["1.0", ""], "{status}"),
            false => assert!(asked.iter().all(|version| version == "1.0"), "{asked:?}"),
        }
    }
}

#[tokio::test]
async fn interface_that_only_the_older_card_names_is_found() {
    let mut agent = Agent::start(|seen| match seen.header("a2a-version") {
        "1.0" => json_reply(&card(&seen.origin, &[("/rest", "HTTP+JSON", "1.0")])),
        _ => json_reply(&old_card(&seen.origin)),
    })
    .await;
    let client = Client::new(open_gate(), [agent.peer()]);
    let wanted = |version| Wanted {
        version,
        binding: Some(Binding::JsonRpc),
    };
    let found = client
        .agent("planner", wanted(None), Call::default())
        .await
        .unwrap();
    assert_eq!(
        (found.version(), found.endpoint().path()),
        (Version::V0_3, "/old")
    );
    let error = client
        .agent("planner", wanted(Some(Version::V1_0)), Call::default())
        .await;
    assert!(matches!(error, Err(Error::NoInterface { .. })), "{error:?}");
    assert_eq!(versions_asked_for(&mut agent), ["1.0", "0.3"]);
}

#[tokio::test]
async fn interfaces_of_the_older_card_are_tried_if_none_of_the_newer_one_answers() {
    let mut agent = Agent::start(move |seen| match seen.path.as_str() {
        "/gone" | "/rest/tasks/t" => reply(404, "text/plain", "no such place"),
        "/old" => {
            let task = serde_json::json!({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}});
            rpc_reply(&task)
        }
        _ if seen.header("a2a-version") == "1.0" => {
            let mut card = card(&seen.origin, &[("/rest", "HTTP+JSON", "1.0")]);
            let first = serde_json::json!({
                "url": format!("{}/gone", seen.origin), "protocolBinding": "JSONRPC", "protocolVersion": "1.0",
            });
            let interfaces = card["supportedInterfaces"].as_array_mut().unwrap();
            interfaces.insert(0, first);
            json_reply(&card)
        }
        _ => json_reply(&old_card(&seen.origin)),
    })
    .await;
    let client = Client::new(open_gate(), [agent.peer()]);
    let ask = async |version| {
        let wanted = Wanted {
            version,
            binding: None,
        };
        let found = client.agent("planner", wanted, Call::default()).await.unwrap();
        (found.version(), found.get_task("t", None).await)
    };
    let paths = |agent: &mut Agent| -> Vec<String> {
        let seen = agent.seen();
        seen.iter().map(|seen| seen.path.clone()).collect()
    };
    const CARD: &str = "/.well-known/agent-card.json";
    assert_eq!(ask(None).await.1.unwrap().id, "t");
    assert_eq!(paths(&mut agent), [CARD, "/gone", "/rest/tasks/t", CARD, "/old"]);
    // The one that answered is used from then on.
    let (version, task) = ask(None).await;
    assert_eq!((version, task.unwrap().id.as_str()), (Version::V0_3, "t"));
    assert_eq!(paths(&mut agent), ["/old"]);
    // Not by a caller that wants the newer version.
    let (version, task) = ask(Some(Version::V1_0)).await;
    assert_eq!(version, Version::V1_0);
    assert!(task.is_err(), "{task:?}");
    assert_eq!(paths(&mut agent), ["/gone", "/rest/tasks/t"]);
}

#[tokio::test]
async fn broken_card_is_remembered_for_longer_than_a_failure_that_may_pass() {
    for document in ["", "[]", "{\"supportedInterfaces\": 7}"] {
        let mut agent = Agent::start(move |_| reply(200, "application/json", document)).await;
        let client = Client::new(open_gate(), [agent.peer()]);
        for _ in 0..2 {
            let error = client.card("planner").await.unwrap_err();
            assert!(matches!(error, Error::CardInvalid(_)), "{document}: {error:?}");
        }
        assert_eq!(agent.seen().len(), 1, "{document}");
    }
    for (status, n_seconds) in [(503, 1), (404, 60)] {
        let mut agent = Agent::start(move |_| reply(status, "text/plain", "")).await;
        let client = Client::new(open_gate(), [agent.peer()]);
        for _ in 0..3 {
            let error = client.card("planner").await.unwrap_err();
            assert!(
                matches!(&error, Error::CardMissing { status: found, .. } if found.as_u16() == status),
                "{error:?}"
            );
        }
        let n_seen = agent.seen().len();
        assert!((1..=2).contains(&n_seen), "{n_seen} requests for three lookups");
        pass(Duration::from_secs(n_seconds)).await;
        let _ = client.card("planner").await;
        assert_eq!(agent.seen().len(), n_seen, "after {n_seconds} s");
    }
}

/// Lets time pass without waiting for it.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn unreachable_card_is_not_asked_for_by_every_call() {
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", unused.local_addr().unwrap());
    let peer = Peer::new("planner", origin.parse().unwrap());
    drop(unused);
    let client = Client::new(open_gate(), [peer]);
    let first = client.card("planner").await.unwrap_err();
    assert!(matches!(first, Error::Unreachable { .. }), "{first:?}");
    let error = client.card("planner").await.unwrap_err();
    assert!(
        matches!(error, Error::CardNotFetched { .. }) && error.is_transient() && !error.may_have_been_sent(),
        "{error:?}"
    );
    assert_eq!(error.code(), first.code());
    assert_eq!(
        error.to_string(),
        format!("fetch the card: a moment ago it was not possible to connect to the peer ({origin})")
    );
    pass(Duration::from_secs(1)).await;
    let error = client.card("planner").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn message_is_not_sent_if_the_fetch_of_the_card_breaks_off() {
    for script in [
        Script::AnswerAndClose("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{".to_owned()),
        Script::AnswerAndClose("garbage\r\n\r\n".to_owned()),
        Script::AnswerAndClose(String::new()),
    ] {
        let broken = Scripted::start(script.clone()).await;
        let peer = Peer::new("planner", broken.url("/").parse().unwrap());
        let client = Client::new(open_gate(), [peer]);
        // The second failure is the remembered first one.
        for _ in 0..2 {
            let error = client.card("planner").await.unwrap_err();
            assert!(
                matches!(error, Error::CardNotFetched { .. }) && !error.may_have_been_sent(),
                "{script:?}: {error:?}"
            );
        }
    }
}

#[tokio::test]
async fn concurrent_calls_share_one_lookup_even_of_a_card_that_is_not_kept() {
    for (cache, most) in [("max-age=60", 1), ("no-store", 2)] {
        let mut agent = Agent::start(move |seen| {
            with_header(
                json_reply(&card(&seen.origin, INTERFACES)),
                "cache-control",
                cache,
            )
        })
        .await;
        let client = Client::new(open_gate(), [agent.peer()]);
        let lookups = (0..16).map(|_| client.card("planner"));
        for found in futures_util::future::join_all(lookups).await {
            found.unwrap();
        }
        assert!(agent.seen().len() <= most, "{cache}");
    }
}

#[tokio::test]
async fn card_of_older_agents_is_found_at_its_older_place() {
    let mut agent = Agent::start(|seen| match seen.path.as_str() {
        "/.well-known/agent.json" => json_reply(&card(&seen.origin, INTERFACES)),
        _ => reply(404, "text/plain", ""),
    })
    .await;
    let paths = paths_after(&mut agent, 2).await;
    assert_eq!(paths, ["/.well-known/agent-card.json", "/.well-known/agent.json"]);
}

#[tokio::test]
async fn missing_card_is_reported_by_its_most_telling_status() {
    let agent = Agent::start(|seen| match seen.path.as_str() {
        "/.well-known/agent-card.json" => reply(401, "text/plain", ""),
        _ => reply(404, "text/plain", ""),
    })
    .await;
    let client = Client::new(open_gate(), [agent.peer()]);
    let error = client.card("planner").await.unwrap_err();
    assert!(
        matches!(&error, Error::CardMissing { status, .. } if status.as_u16() == 401),
        "{error:?}"
    );
}

#[tokio::test]
async fn oversized_and_redirected_cards_are_refused() {
    let agent = Agent::start(|_| reply(200, "application/json", vec![b' '; (1 << 20) + 1])).await;
    let client = Client::new(open_gate(), [agent.peer()]);
    let error = client.card("planner").await.unwrap_err();
    assert!(
        matches!(&error, Error::CardInvalid(why) if why.contains("1048576 bytes")),
        "{error:?}"
    );
    assert_eq!((error.code(), error.is_transient()), ("card_invalid", false));
    let mut agent = Agent::start(|_| with_header(reply(302, "text/plain", ""), "location", "/x")).await;
    assert_eq!(paths_after(&mut agent, 1).await.len(), 1);
}

fn key() -> SigningKey {
    SigningKey::ed25519("k", &[1; 32]).unwrap()
}

fn signed(origin: &str, jku: Option<&str>) -> Value {
    let mut document = card(origin, INTERFACES);
    let signatures = card_signature::sign(&document, &[key()], jku).unwrap();
    document["signatures"] = serde_json::to_value(signatures).unwrap();
    document
}

fn keys() -> JwkSet {
    [PublicKey::from_jwk(&key().jwk()).unwrap()].into_iter().collect()
}

#[tokio::test]
async fn required_signature_is_verified() {
    let n_asked = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&n_asked);
    let agent = Agent::start(move |seen| {
        asked.fetch_add(1, Ordering::Relaxed);
        let own = format!("{}/jwks", seen.origin);
        match seen.path.as_str() {
            "/jwks" => json_reply(&serde_json::json!({"keys": [key().jwk()]})),
            "/unsigned.json" => json_reply(&card(&seen.origin, INTERFACES)),
            "/foreign.json" => json_reply(&signed(&seen.origin, Some("http://127.0.0.2:1/jwks"))),
            "/changed.json" => {
                let mut document = signed(&seen.origin, Some(&own));
                document["name"] = "other".into();
                json_reply(&document)
            }
            "/signed.json" => json_reply(&signed(&seen.origin, Some(&own))),
            _ => reply(404, "text/plain", ""),
        }
    })
    .await;
    let outcome = async |path: &str, keys: CardKeys| {
        let mut peer = agent.peer();
        peer.url = format!("{}{path}", agent.origin()).parse().unwrap();
        peer.require_signed_card = true;
        peer.card_keys = keys;
        Client::new(open_gate(), [peer]).card("planner").await
    };
    let url = || CardKeys::Url(format!("{}/jwks", agent.origin()).parse().unwrap());
    for trusted in [CardKeys::FromCard, CardKeys::These(keys()), url()] {
        outcome("/signed.json", trusted.clone()).await.unwrap();
        let error = outcome("/unsigned.json", trusted.clone()).await.unwrap_err();
        assert!(matches!(error, Error::CardUnsigned), "{error:?}");
        let error = outcome("/changed.json", trusted).await.unwrap_err();
        assert!(matches!(error, Error::CardInvalid(_)), "{error:?}");
    }
    // Keys of another origin are only used if the operator names them.
    let error = outcome("/foreign.json", CardKeys::FromCard).await.unwrap_err();
    assert!(matches!(error, Error::CardInvalid(_)), "{error:?}");
    outcome("/foreign.json", CardKeys::These(keys())).await.unwrap();
    assert!(n_asked.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn signature_is_verified_if_the_operator_names_the_keys() {
    let agent = Agent::start(|seen| match seen.path.as_str() {
        "/unsigned.json" => json_reply(&card(&seen.origin, INTERFACES)),
        "/signed.json" => json_reply(&signed(&seen.origin, None)),
        "/changed.json" => {
            let mut document = signed(&seen.origin, None);
            document["name"] = "other".into();
            json_reply(&document)
        }
        _ => reply(404, "text/plain", ""),
    })
    .await;
    for (path, keys, is_accepted) in [
        ("/signed.json", CardKeys::These(keys()), true),
        ("/changed.json", CardKeys::These(keys()), false),
        ("/unsigned.json", CardKeys::These(keys()), true),
        // Nobody vouches for the keys that a signature names itself.
        ("/changed.json", CardKeys::FromCard, true),
    ] {
        let mut peer = agent.peer();
        peer.url = format!("{}{path}", agent.origin()).parse().unwrap();
        peer.card_keys = keys;
        let found = Client::new(open_gate(), [peer]).card("planner").await;
        assert_eq!(found.is_ok(), is_accepted, "{path}");
    }
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that the log has after several lookups of the cards of two peers.
async fn warnings(document: fn(&str) -> Value) -> (usize, usize, String) {
    let logs = Logs::default();
    let writer = logs.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let agent = Agent::start(move |seen| {
        with_header(json_reply(&document(&seen.origin)), "cache-control", "no-cache")
    })
    .await;
    let other = Peer {
        name: "painter".to_owned(),
        ..agent.peer()
    };
    let client = Client::new(open_gate(), [agent.peer(), other]);
    for _ in 0..3 {
        client.card("planner").await.unwrap();
        client.card("painter").await.unwrap();
        let old = Wanted {
            version: Some(Version::V0_3),
            ..Wanted::default()
        };
        let _ = client.agent("planner", old, Call::default()).await;
    }
    let text = String::from_utf8(logs.0.lock().unwrap().clone()).unwrap();
    let n_warned = |peer: &str| {
        let lines = text.lines().filter(|line| line.contains("agent card is"));
        lines.filter(|line| line.contains(peer)).count()
    };
    (n_warned("planner"), n_warned("painter"), text)
}

#[tokio::test]
async fn card_that_nobody_vouches_for_is_warned_of_once_per_peer() {
    let (planner, painter, text) = warnings(|origin| card(origin, INTERFACES)).await;
    assert_eq!((planner, painter), (1, 1), "{text}");
    assert!(text.contains("agent card is not signed"), "{text}");
    let (planner, painter, text) = warnings(|origin| signed(origin, None)).await;
    assert_eq!((planner, painter), (1, 1), "{text}");
    assert!(text.contains("the signature is not verified"), "{text}");
}
