//! Reads the secrets that the configuration names, and the models with their keys.
//!
//! A value that is not where the configuration says does not keep the host from starting: calls that need it fail with
//! `credential_missing`, and the log names the place once.

use std::fs;

use wopr_connect::{ModelKind, NamedSecret, Price, Provider, ProviderKey, SecretSource};
use wopr_wire::a2a::model::Secret;

use crate::config::{self, DEFAULT_MODEL, DEFAULT_MODEL_KEY, ModelProvider};

/// Largest value of a secret, in bytes.
const MAX_SECRET: usize = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("read the address of the model provider {name}: {reason}")]
    Address { name: String, reason: url::ParseError },
}

/// Says which secrets are not where the configuration says.
pub(crate) fn missing(secrets: &[NamedSecret]) -> impl Iterator<Item = String> {
    secrets.iter().filter_map(|secret| match &secret.source {
        SecretSource::Missing { place } => Some(format!("the secret {} is missing: {place}", secret.name)),
        SecretSource::Value(_) | SecretSource::Stored => None,
    })
}

/// The secrets with their values, which are read now.
pub(crate) fn secrets(
    secrets: &[config::NamedSecret],
    env: &dyn Fn(&str) -> Option<String>,
) -> Vec<NamedSecret> {
    let read = |secret: &config::NamedSecret| {
        if secret.stored {
            return NamedSecret {
                name: secret.name.clone(),
                source: SecretSource::Stored,
                hosts: secret.hosts.clone(),
                tenants: secret.tenants.clone(),
            };
        }
        let (value, place) = match (&secret.env, &secret.file) {
            (Some(variable), _) => (env(variable), variable.clone()),
            (None, Some(path)) => (fs::read_to_string(path).ok(), path.display().to_string()),
            (None, None) => (None, "nowhere".to_owned()),
        };
        let value = value.and_then(|value| text(&value));
        let source = match value {
            Some(value) => SecretSource::Value(value),
            None => {
                tracing::warn!(
                    secret = secret.name,
                    place,
                    "a secret is missing; calls that need it will fail"
                );
                SecretSource::Missing { place }
            }
        };
        NamedSecret {
            name: secret.name.clone(),
            source,
            hosts: secret.hosts.clone(),
            tenants: secret.tenants.clone(),
        }
    };
    secrets.iter().map(read).collect()
}

/// A text that a header can carry.
pub(crate) fn text(value: &str) -> Option<Secret> {
    let value = value.trim();
    let is_short = !value.is_empty() && value.len() <= MAX_SECRET;
    Secret::new(value.to_owned()).ok().filter(|_| is_short)
}

pub(crate) fn providers(
    models: &[ModelProvider],
    secrets: &[NamedSecret],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Provider>, ModelError> {
    let read = |model: &ModelProvider| {
        let base_url = match &model.base_url {
            Some(url) => url.clone(),
            None => model
                .kind
                .base_url()
                .parse()
                .map_err(|reason| ModelError::Address {
                    name: model.name.clone(),
                    reason,
                })?,
        };
        let key = match &model.secret {
            Some(name) => key_of(secrets.iter().find(|secret| secret.name == *name), name),
            None if model.name == DEFAULT_MODEL => {
                let key = env(DEFAULT_MODEL_KEY).and_then(|value| text(&value));
                key.map_or(ProviderKey::None, ProviderKey::Secret)
            }
            None => ProviderKey::None,
        };
        Ok(Provider {
            name: model.name.clone(),
            kind: match model.kind {
                config::ModelKind::OpenAi | config::ModelKind::Ollama => ModelKind::OpenAi,
                config::ModelKind::Anthropic => ModelKind::Anthropic,
                config::ModelKind::Gemini => ModelKind::Gemini,
            },
            base_url,
            key,
            model: model.model.clone(),
            tenants: model.tenants.clone(),
            price: model.price.map(|price| Price {
                input: price.input,
                output: price.output,
            }),
        })
    };
    models.iter().map(read).collect()
}

pub(crate) fn key_of(secret: Option<&NamedSecret>, name: &str) -> ProviderKey {
    match secret.map(|secret| &secret.source) {
        Some(SecretSource::Value(value)) => ProviderKey::Secret(value.clone()),
        Some(SecretSource::Stored) => ProviderKey::Stored(name.to_owned()),
        Some(SecretSource::Missing { place }) => ProviderKey::Missing {
            source: place.clone(),
        },
        None => ProviderKey::Missing {
            source: format!("the secret {name}"),
        },
    }
}
