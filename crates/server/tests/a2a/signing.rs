//! Signed cards, verified with fetched keys as a client would.

use serde_json::{Value, json};
use wopr_server::{
    Config,
    config::{CardAlgorithm, Secret},
};
use wopr_wire::{
    a2a::card_signature::{self, Reading},
    jws::JwkSet,
};

use crate::support::{self, Server};

const CARD: &str = "/.well-known/agent-card.json";
const KEYS: &str = "/.well-known/jwks.json";

/// Always uses the same master key, like the replicas of one host.
fn config(keys: &[u32]) -> Config {
    let mut config = support::config();
    let master = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    config.secrets.master_key = Some(Secret::new(master));
    config.server.public_url = Some("https://agents.example.test".parse().unwrap());
    config.a2a.card_signing = vec![CardAlgorithm::EdDsa, CardAlgorithm::Es256];
    config.a2a.card_keys = keys.to_vec();
    config
}

async fn keys(server: &Server) -> JwkSet {
    let answer = server.v1().get(KEYS).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.header("cache-control").unwrap().contains("max-age="));
    JwkSet::parse(&answer.body).unwrap()
}

fn readings(card: &Value, keys: &JwkSet) -> Vec<Reading> {
    let checked = card_signature::verify(card, keys).unwrap();
    checked
        .into_iter()
        .map(|checked| checked.outcome.unwrap())
        .collect()
}

#[tokio::test]
async fn every_form_of_every_card_verifies() {
    let server = Server::open(config(&[1])).await;
    let keys = keys(&server).await;
    for path in [CARD, "/a2a/w/hello/.well-known/agent-card.json"] {
        for version in ["", "1.0", "0.3"] {
            let card = server.client(version).get(path).await.json();
            let readings = readings(&card, &keys);
            assert_eq!(readings[..2], [Reading::Document; 2], "{path} {version}");
            // In the union, the embedded 1.0 card has its own signature.
            let within: &[Reading] = if version.is_empty() {
                &[Reading::Model; 2]
            } else {
                &[]
            };
            assert_eq!(readings[2..], *within, "{path} {version}");
        }
    }
    for (client, path) in [
        (server.v1(), "/a2a/extendedAgentCard"),
        (server.v03(), "/v1/card"),
    ] {
        let card = client.get(path).await.json();
        assert_eq!(readings(&card, &keys), [Reading::Document; 2], "{path}");
    }
    for (client, method) in [
        (server.v1(), "GetExtendedAgentCard"),
        (server.v03(), "agent/getAuthenticatedExtendedCard"),
    ] {
        for key in ["alice", "carol", "starter"] {
            let card = client.clone().by(key).ok(method, json!({})).await;
            assert_eq!(readings(&card, &keys), [Reading::Document; 2], "{method} {key}");
        }
        // A caller without skills gets a card with an empty list.
        let card = client.clone().by("reader").ok(method, json!({})).await;
        assert_eq!(readings(&card, &keys)[..2], [Reading::Document; 2], "{method}");
    }
}

#[tokio::test]
async fn signature_names_its_key_and_key_url() {
    let server = Server::open(config(&[1])).await;
    let card = server.v1().get(CARD).await.json();
    let published = server.v1().get(KEYS).await.json();
    let checked = card_signature::verify(&card, &keys(&server).await).unwrap();
    let kids: Vec<_> = published["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["kid"].clone())
        .collect();
    assert_eq!(kids.len(), 2);
    for (checked, kid) in checked.into_iter().zip(kids) {
        let header = checked.header.unwrap();
        assert_eq!(json!(header.kid), kid);
        assert_eq!(header.typ.as_deref(), Some("JOSE"));
        assert_eq!(
            header.jku.as_deref(),
            Some("https://agents.example.test/.well-known/jwks.json")
        );
    }
    for key in published["keys"].as_array().unwrap() {
        assert_eq!(key["use"], "sig");
        assert!(key.get("d").is_none(), "{key}");
    }
}

#[tokio::test]
async fn replicas_and_restarts_produce_the_same_signature() {
    let (one, two) = (Server::open(config(&[1])).await, Server::open(config(&[1])).await);
    let path = "/a2a/w/hello/.well-known/agent-card.json";
    let (a, b) = (one.v1().get(path).await, two.v1().get(path).await);
    assert_eq!(a.header("etag"), b.header("etag"));
    assert_eq!(a.body, b.body);
    let again = one
        .v1()
        .with("if-none-match", a.header("etag").unwrap())
        .get(path)
        .await;
    assert_eq!(again.status, 304);
}

#[tokio::test]
async fn keys_rotate_with_overlap() {
    let mut cards = Vec::new();
    let mut sets = Vec::new();
    for generations in [&[1][..], &[2, 1], &[2]] {
        let server = Server::open(config(generations)).await;
        cards.push(server.v1().get(CARD).await.json());
        sets.push(keys(&server).await);
    }
    for (n, card) in cards.iter().enumerate() {
        for (m, set) in sets.iter().enumerate() {
            let checked = card_signature::verify(card, set).unwrap();
            let holds = checked.iter().any(|checked| checked.outcome.is_ok());
            // Adjacent generations verify; a client that missed the overlap has to fetch the keys again.
            assert_eq!(holds, n.abs_diff(m) < 2, "card {n}, keys {m}");
        }
    }
}

#[tokio::test]
async fn an_unsigned_host_publishes_no_keys() {
    let server = Server::start().await;
    let card = server.v1().get(CARD).await.json();
    assert!(card.get("signatures").is_none());
    assert_eq!(server.v1().get(KEYS).await.status, 404);
    let server = Server::open(config(&[1])).await;
    assert_eq!(server.v1().at(KEYS).raw("POST", b"{}").await.status, 405);
}
