//! Finding, keeping and verifying cards.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;
use wopr_connect::a2a::{CardKeys, Client, Error};
use wopr_wire::{
    a2a::card_signature,
    jws::{JwkSet, PublicKey, SigningKey},
};

use crate::agent::{Agent, card, json_reply, open_gate, reply, with_header};

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

#[tokio::test]
async fn broken_card_is_remembered_and_an_unreachable_one_is_not() {
    for document in ["", "[]", "{\"supportedInterfaces\": 7}"] {
        let mut agent = Agent::start(move |_| reply(200, "application/json", document)).await;
        let client = Client::new(open_gate(), [agent.peer()]);
        for _ in 0..2 {
            let error = client.card("planner").await.unwrap_err();
            assert!(matches!(error, Error::CardInvalid(_)), "{document}: {error:?}");
        }
        assert_eq!(agent.seen().len(), 1, "{document}");
    }
    let mut agent = Agent::start(|_| reply(503, "text/plain", "")).await;
    assert_eq!(paths_after(&mut agent, 2).await.len(), 2);
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
        matches!(error, Error::TooLarge { limit } if limit == 1 << 20),
        "{error:?}"
    );
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
