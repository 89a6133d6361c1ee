//! Conversions of the agent card, and a card that clients of both versions can read.

use serde_json::Value;

use super::{
    super::model::{self, OAuthFlow, binding},
    AgentCapabilities, AgentCard, AgentInterface, AgentSkill, ApiKeyLocation, ApiKeySecurityScheme,
    AuthorizationCodeOAuthFlow, OAuth2SecurityScheme, OAuthFlows, SecurityScheme,
    proto::Proto,
};

/// The protocol version of a converted card.
const CARD_VERSION: &str = "0.3.0";

fn speaks_v03(interface: &model::AgentInterface) -> bool {
    interface.protocol_version.starts_with("0.")
}

impl From<model::AgentCard> for AgentCard {
    /// Takes the interfaces of version 0.x, or all if there are none. The first one is the preferred one.
    fn from(card: model::AgentCard) -> Self {
        let has_old = card.supported_interfaces.iter().any(speaks_v03);
        let interfaces: Vec<AgentInterface> = card
            .supported_interfaces
            .into_iter()
            .filter(|interface| !has_old || speaks_v03(interface))
            .map(|interface| AgentInterface {
                url: interface.url,
                transport: interface.protocol_binding,
            })
            .collect();
        let first = interfaces.first().cloned();
        Self {
            protocol_version: CARD_VERSION.to_owned(),
            name: card.name,
            description: card.description,
            version: card.version,
            url: first.as_ref().map(|first| first.url.clone()).unwrap_or_default(),
            preferred_transport: first.map(|first| first.transport),
            additional_interfaces: interfaces,
            provider: card.provider,
            documentation_url: card.documentation_url,
            icon_url: card.icon_url,
            capabilities: AgentCapabilities {
                streaming: card.capabilities.streaming,
                push_notifications: card.capabilities.push_notifications,
                state_transition_history: None,
                extensions: card.capabilities.extensions,
            },
            security_schemes: card
                .security_schemes
                .into_iter()
                .map(|(name, scheme)| (name, scheme.into()))
                .collect(),
            security: card
                .security_requirements
                .into_iter()
                .map(|requirement| requirement.schemes)
                .collect(),
            default_input_modes: card.default_input_modes,
            default_output_modes: card.default_output_modes,
            skills: card.skills.into_iter().map(Into::into).collect(),
            supports_authenticated_extended_card: card.capabilities.extended_agent_card,
            signatures: card.signatures,
        }
    }
}

impl From<AgentCard> for model::AgentCard {
    /// The preferred interface comes first, followed by the additional ones that differ from it.
    fn from(card: AgentCard) -> Self {
        let version = major_minor(&card.protocol_version);
        let preferred = AgentInterface {
            url: card.url,
            transport: card
                .preferred_transport
                .unwrap_or_else(|| binding::JSONRPC.to_owned()),
        };
        let mut interfaces = vec![preferred];
        for interface in card.additional_interfaces {
            if !interfaces.contains(&interface) {
                interfaces.push(interface);
            }
        }
        Self {
            name: card.name,
            description: card.description,
            version: card.version,
            supported_interfaces: interfaces
                .into_iter()
                .map(|interface| model::AgentInterface {
                    url: interface.url,
                    protocol_binding: interface.transport,
                    protocol_version: version.clone(),
                    tenant: None,
                })
                .collect(),
            provider: card.provider,
            documentation_url: card.documentation_url,
            icon_url: card.icon_url,
            capabilities: model::AgentCapabilities {
                streaming: card.capabilities.streaming,
                push_notifications: card.capabilities.push_notifications,
                extensions: card.capabilities.extensions,
                extended_agent_card: card.supports_authenticated_extended_card,
            },
            security_schemes: card
                .security_schemes
                .into_iter()
                .map(|(name, scheme)| (name, scheme.into()))
                .collect(),
            security_requirements: requirements(card.security),
            default_input_modes: card.default_input_modes,
            default_output_modes: card.default_output_modes,
            skills: card.skills.into_iter().map(Into::into).collect(),
            signatures: card.signatures,
        }
    }
}

/// Strips the patch number of a version.
fn major_minor(version: &str) -> String {
    match version.match_indices('.').nth(1) {
        Some((dot, _)) => version[..dot].to_owned(),
        None => version.to_owned(),
    }
}

fn requirements(list: Vec<super::SecurityRequirement>) -> Vec<model::SecurityRequirement> {
    list.into_iter()
        .map(|schemes| model::SecurityRequirement { schemes })
        .collect()
}

impl From<model::AgentSkill> for AgentSkill {
    fn from(skill: model::AgentSkill) -> Self {
        Self {
            id: skill.id,
            name: skill.name,
            description: skill.description,
            tags: skill.tags,
            examples: skill.examples,
            input_modes: skill.input_modes,
            output_modes: skill.output_modes,
            security: skill
                .security_requirements
                .into_iter()
                .map(|one| one.schemes)
                .collect(),
        }
    }
}

impl From<AgentSkill> for model::AgentSkill {
    fn from(skill: AgentSkill) -> Self {
        Self {
            id: skill.id,
            name: skill.name,
            description: skill.description,
            tags: skill.tags,
            examples: skill.examples,
            input_modes: skill.input_modes,
            output_modes: skill.output_modes,
            security_requirements: requirements(skill.security),
        }
    }
}

impl From<model::SecurityScheme> for SecurityScheme {
    fn from(scheme: model::SecurityScheme) -> Self {
        match scheme {
            model::SecurityScheme::ApiKey(key) => Self::ApiKey(ApiKeySecurityScheme {
                description: key.description,
                // 1.0 allows any text here; a value that 0.3 does not define most likely means a header.
                location: ApiKeyLocation::from_name(&key.location).unwrap_or(ApiKeyLocation::Header),
                name: key.name,
            }),
            model::SecurityScheme::HttpAuth(http) => Self::Http(http),
            model::SecurityScheme::OAuth2(oauth2) => Self::OAuth2(Box::new(OAuth2SecurityScheme {
                description: oauth2.description,
                flows: oauth2.flows.map(Into::into).unwrap_or_default(),
                oauth2_metadata_url: oauth2.oauth2_metadata_url,
            })),
            model::SecurityScheme::OpenIdConnect(connect) => Self::OpenIdConnect(connect),
            model::SecurityScheme::MutualTls(tls) => Self::MutualTls(tls),
        }
    }
}

impl From<SecurityScheme> for model::SecurityScheme {
    fn from(scheme: SecurityScheme) -> Self {
        match scheme {
            SecurityScheme::ApiKey(key) => Self::ApiKey(model::ApiKeySecurityScheme {
                description: key.description,
                location: key.location.as_str().to_owned(),
                name: key.name,
            }),
            SecurityScheme::Http(http) => Self::HttpAuth(http),
            SecurityScheme::OAuth2(oauth2) => Self::OAuth2(model::OAuth2SecurityScheme {
                description: oauth2.description,
                flows: oauth2.flows.into_first(),
                oauth2_metadata_url: oauth2.oauth2_metadata_url,
            }),
            SecurityScheme::OpenIdConnect(connect) => Self::OpenIdConnect(connect),
            SecurityScheme::MutualTls(tls) => Self::MutualTls(tls),
        }
    }
}

impl From<OAuthFlow> for OAuthFlows {
    fn from(flow: OAuthFlow) -> Self {
        let mut flows = Self::default();
        match flow {
            OAuthFlow::AuthorizationCode(flow) => {
                flows.authorization_code = Some(AuthorizationCodeOAuthFlow {
                    authorization_url: flow.authorization_url,
                    token_url: flow.token_url,
                    refresh_url: flow.refresh_url,
                    scopes: flow.scopes,
                });
            }
            OAuthFlow::ClientCredentials(flow) => flows.client_credentials = Some(flow),
            OAuthFlow::DeviceCode(_) => {}
            OAuthFlow::Implicit(flow) => flows.implicit = Some(flow),
            OAuthFlow::Password(flow) => flows.password = Some(flow),
        }
        flows
    }
}

impl OAuthFlows {
    fn into_first(self) -> Option<OAuthFlow> {
        let code = self.authorization_code.map(|flow| {
            OAuthFlow::AuthorizationCode(model::AuthorizationCodeOAuthFlow {
                authorization_url: flow.authorization_url,
                token_url: flow.token_url,
                refresh_url: flow.refresh_url,
                scopes: flow.scopes,
                pkce_required: false,
            })
        });
        code.or_else(|| self.client_credentials.map(OAuthFlow::ClientCredentials))
            .or_else(|| self.implicit.map(OAuthFlow::Implicit))
            .or_else(|| self.password.map(OAuthFlow::Password))
    }
}

/// The 0.3 card for HTTP+JSON: the card of JSON-RPC, whose security schemes additionally have the wrapped
/// form of the protocol buffers. Some 0.3 SDKs read one form over this binding, some the other.
///
/// # Errors
/// Never fails in practice: a card consists of strings, numbers and maps with string keys.
/// Never in practice: a card consists of text, numbers and maps by text.
pub fn http_card(card: &model::AgentCard) -> Result<Value, serde_json::Error> {
    let mut document = serde_json::to_value(AgentCard::from(card.clone()))?;
    let mut wrapped = serde_json::to_value(Proto(card))?;
    if let (Some(schemes), Some(wrapped)) = (
        document.get_mut("securitySchemes"),
        wrapped.get_mut("securitySchemes"),
    ) {
        merge(schemes, wrapped.take());
    }
    Ok(document)
}

/// Merges the cards of both versions into one document that clients of either version can read.
///
/// Objects are merged by member and arrays by element, because the versions share some names (`capabilities`,
/// `securitySchemes`, `skills`) with different members inside. If both have a value, the value of 1.0 wins.
/// Signatures are left out, because they would cover only one of the two readings.
///
/// # Errors
/// Never fails in practice: both cards consist of strings, numbers and maps with string keys.
pub fn union_card(card: &model::AgentCard, old: &AgentCard) -> Result<Value, serde_json::Error> {
    let mut union = serde_json::to_value(card)?;
    merge(&mut union, serde_json::to_value(old)?);
    if let Some(members) = union.as_object_mut() {
        members.remove("signatures");
    }
    Ok(union)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match into.get_mut(&name) {
                    Some(present) => merge(present, value),
                    None => {
                        into.insert(name, value);
                    }
                }
            }
        }
        (Value::Array(into), Value::Array(from)) if into.len() == from.len() => {
            for (present, value) in into.iter_mut().zip(from) {
                merge(present, value);
            }
        }
        // Neither two objects nor two arrays of the same length: keep the value of 1.0.
        _ => {}
    }
}
