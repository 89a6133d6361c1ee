//! Reads the credentials and keys of the agents that workflows may call.
//!
//! A credential that is not where the configuration says does not keep the host from starting: calls to that agent
//! fail with `credential_missing`, and the log names the place once.

use std::{collections::HashSet, fs, time::Duration};

use http::HeaderName;
use wopr_app::{App, RegisterError};
use wopr_connect::{
    NamedSecret, SecretSource,
    a2a::{self, Binding, CardKeys, Credential, OAuth2, OnQuestion, Peer, PeerTls, Polling, Wanted},
    egress::{ClientTls, ClientTlsError, Identity},
};
use wopr_core::openwop;
use wopr_wire::{a2a::model::Secret, jws::JwkSet};

use crate::{
    config::{
        AgentPeer, CardKeySource, DEFAULT_PEER, DEFAULT_TOKEN, OnInputRequired, PeerTlsFiles, Transport,
    },
    tls::{self, TlsError},
};

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("read the name of the header of the A2A peer {0}")]
    Header(String),
    #[error("read the card keys of the A2A peer {peer}: {reason}")]
    CardKeys { peer: String, reason: String },
    #[error("read the TLS files of the A2A peer {peer}")]
    TlsFiles { peer: String, source: TlsError },
    #[error("use the TLS files of the A2A peer {peer}")]
    Tls { peer: String, source: ClientTlsError },
    #[error("read the credential of the A2A peer {peer} from {source_name}")]
    Credential { peer: String, source_name: String },
}

/// The peers with their credentials, which are read now.
pub(crate) fn read(
    peers: &[AgentPeer],
    secrets: &[NamedSecret],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Peer>, PeerError> {
    peers.iter().map(|peer| read_one(peer, secrets, env)).collect()
}

/// Says which peers have no credential where the configuration says.
pub(crate) fn without_credential(peers: &[Peer]) -> impl Iterator<Item = String> {
    peers.iter().filter_map(|peer| match &peer.credential {
        Credential::Missing { source } => Some(format!(
            "the credential of the agent {} is missing: {source}",
            peer.name
        )),
        Credential::None | Credential::Bearer(_) | Credential::Header { .. } | Credential::OAuth2(_) => None,
    })
}

/// The names of the peers whose questions fail a call.
pub(crate) fn silent(peers: &[AgentPeer]) -> HashSet<String> {
    let silent = peers
        .iter()
        .filter(|peer| peer.on_input_required == OnInputRequired::Fail);
    silent.map(|peer| peer.name.clone()).collect()
}

/// Registers the workflows by which agents are workers of supervisors.
///
/// # Errors
/// If the store rejects a workflow.
pub(crate) async fn register(app: &App, names: &[String]) -> Result<(), RegisterError> {
    for name in names {
        match app.register_for_all(openwop::agent_workflow(name)).await {
            Err(RegisterError::Full(limit)) => {
                tracing::warn!(peer = name, error = %limit, "agent not offered as a worker");
            }
            registered => drop(registered?),
        }
    }
    Ok(())
}

/// One peer, as [`read`] reads it.
pub(crate) fn read_one(
    peer: &AgentPeer,
    secrets: &[NamedSecret],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Peer, PeerError> {
    let credential = credential(peer, secrets, env)?;
    if let Credential::Missing { source } = &credential {
        tracing::warn!(
            peer = peer.name,
            source,
            "the credential of an A2A peer is missing; calls to it will fail"
        );
    }
    let (transport, binding) = match peer.transport {
        Transport::Auto => (a2a::Transport::A2a, None),
        Transport::JsonRpc => (a2a::Transport::A2a, Some(Binding::JsonRpc)),
        Transport::Rest => (a2a::Transport::A2a, Some(Binding::HttpJson)),
        Transport::Grpc => (a2a::Transport::A2a, Some(Binding::Grpc)),
        Transport::TasksHttp => (a2a::Transport::TasksHttp(polling(peer)), None),
    };
    let tls = peer.tls.as_ref().map(|files| tls_of(&peer.name, files));
    Ok(Peer {
        origins: peer.origins.clone(),
        transport,
        tls: tls.transpose()?,
        wanted: Wanted {
            version: None,
            binding,
        },
        credential,
        require_signed_card: peer.require_signed_card,
        card_keys: card_keys(peer)?,
        ..Peer::new(peer.name.clone(), peer.url.clone())
    })
}

fn polling(peer: &AgentPeer) -> Polling {
    let default = Polling::default();
    Polling {
        interval: peer
            .poll_interval_ms
            .map_or(default.interval, Duration::from_millis),
        timeout: peer
            .poll_timeout_ms
            .map_or(default.timeout, Duration::from_millis),
        on_question: match peer.on_input_required {
            OnInputRequired::Ask => OnQuestion::Park,
            OnInputRequired::ByTransport | OnInputRequired::Fail => OnQuestion::Fail,
        },
    }
}

fn tls_of(peer: &str, files: &PeerTlsFiles) -> Result<PeerTls, PeerError> {
    let unreadable = |source| PeerError::TlsFiles {
        peer: peer.to_owned(),
        source,
    };
    let authorities = match &files.ca {
        None => Vec::new(),
        Some(path) => tls::certificates("authorities", path).map_err(unreadable)?,
    };
    let identity = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => Some(Identity {
            chain: tls::certificates("client certificate", cert).map_err(unreadable)?,
            key: tls::private_key(key).map_err(unreadable)?,
        }),
        (Some(_) | None, _) => None,
    };
    PeerTls::new(&ClientTls {
        authorities,
        identity,
    })
    .map_err(|source| PeerError::Tls {
        peer: peer.to_owned(),
        source,
    })
}

fn credential(
    peer: &AgentPeer,
    secrets: &[NamedSecret],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Credential, PeerError> {
    // A text that no header can carry is as good as none.
    let secret = |text: String| {
        Some(text.trim())
            .filter(|text| !text.is_empty())
            .and_then(|text| Secret::new(text).ok())
    };
    let of = |name: &str| env(name).and_then(secret);
    let or_missing = |found: Option<Credential>, source: &str| {
        found.unwrap_or_else(|| Credential::Missing {
            source: source.to_owned(),
        })
    };
    if let Some(name) = &peer.token_env {
        return Ok(or_missing(of(name).map(Credential::Bearer), name));
    }
    if let Some(name) = &peer.token_secret_ref {
        let named = secrets.iter().find(|secret| secret.name == *name);
        let token = named.and_then(|secret| match &secret.source {
            SecretSource::Value(value) => Some(Credential::Bearer(value.clone())),
            // The configuration refuses a stored one: a peer is asked for all tenants with one credential.
            SecretSource::Stored | SecretSource::Missing { .. } => None,
        });
        return Ok(or_missing(token, &format!("the secret {name}")));
    }
    if let Some(path) = &peer.token_file {
        let token = fs::read_to_string(path).ok().and_then(secret);
        return Ok(or_missing(
            token.map(Credential::Bearer),
            &path.display().to_string(),
        ));
    }
    if let Some(header) = &peer.header {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let name = name.map_err(|_| PeerError::Header(peer.name.clone()))?;
        let value = of(&header.value_env);
        let value = value.map(|value| Credential::Header { name, value });
        return Ok(or_missing(value, &header.value_env));
    }
    if let Some(oauth2) = &peer.oauth2 {
        let client = of(&oauth2.client_secret_env).map(|client_secret| OAuth2 {
            token_url: oauth2.token_url.clone(),
            client_id: oauth2.client_id.clone(),
            client_secret,
            scope: oauth2.scope.clone(),
            audience: oauth2.audience.clone(),
        });
        return Ok(or_missing(
            client.map(Credential::OAuth2),
            &oauth2.client_secret_env,
        ));
    }
    let token = of(DEFAULT_TOKEN).filter(|_| peer.name == DEFAULT_PEER);
    Ok(token.map_or(Credential::None, Credential::Bearer))
}

fn card_keys(peer: &AgentPeer) -> Result<CardKeys, PeerError> {
    let wrong = |reason: String| PeerError::CardKeys {
        peer: peer.name.clone(),
        reason,
    };
    Ok(match &peer.card_keys {
        None => CardKeys::FromCard,
        Some(CardKeySource::JwksUrl(url)) => CardKeys::Url(url.clone()),
        Some(CardKeySource::JwksFile(path)) => {
            let text = fs::read(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
            CardKeys::These(JwkSet::parse(&text).map_err(|error| wrong(error.to_string()))?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(toml: &str) -> AgentPeer {
        toml::from_str(&format!(
            "name = \"planner\"\nurl = \"https://planner.example.com\"\n{toml}"
        ))
        .unwrap()
    }

    fn env(name: &str) -> Option<String> {
        let known = [
            ("TOKEN", " t0ken\n"),
            ("EMPTY", ""),
            (DEFAULT_TOKEN, "of the default"),
        ];
        let found = known.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| text.to_owned())
    }

    #[test]
    fn credential_is_read_from_where_the_peer_says() {
        let read = |toml: &str| credential(&peer(toml), &[], &env).unwrap();
        assert!(matches!(read(""), Credential::None));
        assert!(
            matches!(read("token_env = \"TOKEN\""), Credential::Bearer(token) if token.expose() == "t0ken")
        );
        for missing in [
            "token_env = \"EMPTY\"",
            "token_env = \"NONE\"",
            "token_file = \"/nowhere\"",
        ] {
            assert!(matches!(read(missing), Credential::Missing { .. }), "{missing}");
        }
        let header = read("header = { name = \"x-api-key\", value_env = \"TOKEN\" }");
        assert!(matches!(header, Credential::Header { value, .. } if value.expose() == "t0ken"));
        let oauth2 = "[oauth2]\ntoken_url = \"https://login.example.com\"\nclient_id = \"c\"\nclient_secret_env = \"TOKEN\"";
        assert!(matches!(read(oauth2), Credential::OAuth2(_)));
    }

    #[test]
    fn default_peer_has_a_token_in_the_environment() {
        let default = AgentPeer::new(DEFAULT_PEER, "http://127.0.0.1:1".parse().unwrap());
        let read = credential(&default, &[], &env).unwrap();
        assert!(matches!(read, Credential::Bearer(token) if token.expose() == "of the default"));
    }

    #[test]
    fn unknown_settings_of_a_peer_are_refused() {
        for wrong in [
            "transport = \"tasks\"",
            "token = \"x\"",
            "[tls]\nca_path = \"x\"",
            "card_keys = { jwks = \"x\" }",
        ] {
            let text = format!("name = \"p\"\nurl = \"https://p.example.com\"\n{wrong}");
            assert!(toml::from_str::<AgentPeer>(&text).is_err(), "{wrong}");
        }
        let keys = peer("card_keys = { jwks_file = \"/nowhere\" }");
        assert!(card_keys(&keys).is_err());
    }
}
