//! Peers with authorities of their own and peers that require a client certificate.

use rustls::pki_types::CertificateDer;
use serde_json::json;
use wopr_connect::{
    a2a::{Call, CardKeys, Client, Credential, Error, OAuth2, Peer, PeerTls, Wanted},
    egress::{CertificateProblem, ClientTls, EgressError, Identity},
};
use wopr_wire::{
    a2a::{
        card_signature,
        method::{Operation, Version},
        model::Secret,
    },
    jws::SigningKey,
};

use crate::{
    agent::{
        Agent, Reply, Seen, card, grpc_message, grpc_reply, json_reply, open_gate, reply, rpc_reply, task,
        with_header,
    },
    authority::Authority,
};

const HOST: &str = "127.0.0.1";
const INTERFACES: [(&str, &str, &str); 3] = [
    ("/rpc", "JSONRPC", "1.0"),
    ("/rest", "HTTP+JSON", "1.0"),
    ("", "GRPC", "1.0"),
];

fn trusting(authority: &Authority, identity: Option<Identity>) -> Option<PeerTls> {
    tls(vec![authority.certificate()], identity)
}

fn tls(authorities: Vec<CertificateDer<'static>>, identity: Option<Identity>) -> Option<PeerTls> {
    Some(
        PeerTls::new(&ClientTls {
            authorities,
            identity,
        })
        .unwrap(),
    )
}

/// An agent with a signed card, the keys, a token server and all bindings on one origin.
fn everything(seen: &Seen) -> Reply {
    let key = || SigningKey::ed25519("k", &[1; 32]).unwrap();
    match seen.path.as_str() {
        "/.well-known/agent-card.json" => {
            let mut document = card(&seen.origin, &INTERFACES);
            let jku = format!("{}/jwks", seen.origin);
            let signatures = card_signature::sign(&document, &[key()], Some(&jku)).unwrap();
            document["signatures"] = serde_json::to_value(signatures).unwrap();
            with_header(json_reply(&document), "cache-control", "no-cache")
        }
        "/jwks" => json_reply(&json!({"keys": [key().jwk()]})),
        "/token" => json_reply(&json!({"access_token": "token-1", "expires_in": 3600})),
        _ if seen.header("authorization") != "Bearer token-1" => reply(401, "text/plain", ""),
        "/rpc" => rpc_reply(&task()),
        "/rest/tasks/t" => json_reply(&task()),
        _ => grpc_reply(&[grpc_message(Version::V1_0, Operation::GetTask, &task())], "0"),
    }
}

fn peer_of(agent: &Agent) -> Peer {
    let mut peer = agent.peer();
    peer.require_signed_card = true;
    peer.credential = Credential::OAuth2(OAuth2 {
        token_url: format!("{}/token", agent.origin()).parse().unwrap(),
        client_id: "wopr".to_owned(),
        client_secret: Secret::new("a client secret").unwrap(),
        scope: None,
        audience: None,
    });
    peer
}

#[tokio::test]
async fn private_authority_and_client_certificate_serve_every_request_to_the_peer() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let mut agent = Agent::start_over(Some(authority.server(HOST, Some(&clients))), everything).await;
    let mut peer = peer_of(&agent);
    peer.tls = trusting(&authority, Some(clients.identity("wopr")));
    assert!(!format!("{peer:?}").contains("a client secret"));
    let client = Client::new(open_gate(), [peer]);
    for binding in ["jsonrpc", "rest", "grpc"] {
        let wanted = Wanted {
            binding: wopr_connect::a2a::Binding::from_name(binding),
            version: None,
        };
        let found = client.agent("planner", wanted, Call::default()).await.unwrap();
        assert_eq!(found.get_task("t", None).await.unwrap().id, "t", "{binding}");
    }
    let seen = agent.seen();
    for path in [
        "/jwks",
        "/token",
        "/rpc",
        "/rest/tasks/t",
        "/lf.a2a.v1.A2AService/GetTask",
    ] {
        assert!(seen.iter().any(|seen| seen.path == path), "{path}");
    }
}

#[tokio::test]
async fn certificate_problem_is_named_without_secrets() {
    let (authority, clients, stranger) = (Authority::new(), Authority::new(), Authority::new());
    let open = Agent::start_over(Some(authority.server(HOST, None)), everything).await;
    let strict = Agent::start_over(Some(authority.server(HOST, Some(&clients))), everything).await;
    let other = Agent::start_over(Some(authority.server("other.test", None)), everything).await;
    for (agent, tls, wanted) in [
        (
            &open,
            trusting(&stranger, None),
            CertificateProblem::UnknownIssuer,
        ),
        (&other, trusting(&authority, None), CertificateProblem::OtherName),
        (&strict, trusting(&authority, None), CertificateProblem::Required),
        (
            &strict,
            trusting(&authority, Some(stranger.identity("wopr"))),
            CertificateProblem::Refused,
        ),
    ] {
        let mut peer = agent.peer();
        let origin = peer.url.origin().ascii_serialization();
        peer.credential = Credential::Bearer(Secret::new("hunter22-x").unwrap());
        peer.tls = tls;
        let client = Client::new(open_gate(), [peer]);
        let error = client.card("planner").await.unwrap_err();
        assert!(
            matches!(&error, Error::Unreachable { cause: EgressError::Certificate { problem, .. }, .. } if *problem == wanted),
            "{wanted:?}: {error:?}"
        );
        assert_eq!(error.code(), "external_call_failed");
        assert!(!error.may_have_been_sent());
        assert_eq!(error.to_string(), format!("agree on tls: {wanted} ({origin})"));
        assert!(!format!("{error:?}").contains("hunter22"));
    }
    // The authorities of one peer are not those of the host.
    let client = Client::new(open_gate(), [open.peer()]);
    let error = client.card("planner").await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn place_that_only_the_card_names_gets_neither_certificate_nor_trust() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = || Some(authority.server(HOST, Some(&clients)));
    let elsewhere = Agent::start_over(server(), |_| rpc_reply(&task())).await;
    let there = elsewhere.origin();
    let agent = Agent::start_over(server(), move |seen| {
        json_reply(&card(&seen.origin, &[(&there, "JSONRPC", "1.0")]))
    })
    .await;
    let mut peer = agent.peer();
    peer.tls = trusting(&authority, Some(clients.identity("wopr")));
    let find = async |peer: Peer| {
        let client = Client::new(open_gate(), [peer]);
        client
            .agent("planner", Wanted::default(), Call::default())
            .await
            .unwrap()
    };
    let found = find(peer.clone()).await;
    assert!(!found.receives_credential());
    let error = found.get_task("t", None).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    // Unless the operator says that it is the peer as well.
    peer.origins = vec![elsewhere.origin().parse().unwrap()];
    let found = find(peer).await;
    assert!(found.receives_credential());
    found.get_task("t", None).await.unwrap();
}

#[tokio::test]
async fn token_server_elsewhere_may_have_the_peers_authority_and_gets_the_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = || Some(authority.server(HOST, Some(&clients)));
    let mut login = Agent::start_over(server(), everything).await;
    let mut keys = Agent::start_over(server(), everything).await;
    let agent = Agent::start_over(server(), everything).await;
    let mut peer = peer_of(&agent);
    peer.tls = trusting(&authority, Some(clients.identity("wopr")));
    peer.card_keys = CardKeys::Url(format!("{}/jwks", keys.origin()).parse().unwrap());
    if let Credential::OAuth2(oauth2) = &mut peer.credential {
        oauth2.token_url = format!("{}/token", login.origin()).parse().unwrap();
    }
    let client = Client::new(open_gate(), [peer]);
    let found = client
        .agent("planner", Wanted::default(), Call::default())
        .await
        .unwrap();
    found.get_task("t", None).await.unwrap();
    assert_eq!(login.seen().len(), 1);
    assert_eq!(keys.seen().len(), 1);
}

#[test]
fn certificate_without_its_key_is_refused() {
    let authority = Authority::new();
    let (one, other) = (authority.identity("one"), authority.identity("other"));
    let mixed = Identity {
        chain: one.chain,
        key: other.key,
    };
    let tls = ClientTls {
        authorities: vec![authority.certificate()],
        identity: Some(mixed),
    };
    let error = PeerTls::new(&tls).unwrap_err();
    assert!(
        error.to_string().starts_with("use the certificate with its key"),
        "{error}"
    );
    let nonsense = ClientTls {
        authorities: vec![CertificateDer::from(vec![1, 2, 3])],
        identity: None,
    };
    assert!(PeerTls::new(&nonsense).is_err());
}
