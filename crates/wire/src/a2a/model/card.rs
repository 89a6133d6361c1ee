//! The agent card (A2A 1.0 section 4.4).
//!
//! Required fields are always written, even when empty, as signatures need; optional fields only when set.
//! This module does not sign cards.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{Metadata, SecurityRequirement, SecurityScheme, is_false};
use crate::json::{Decode, DecodeError, Fields, Object, deserialize_by_decode};

/// Names of the standard bindings; other names are allowed.
pub mod binding {
    pub const JSONRPC: &str = "JSONRPC";
    pub const GRPC: &str = "GRPC";
    pub const HTTP_JSON: &str = "HTTP+JSON";
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCard {
    pub name: String,
    pub description: String,
    /// The version of the agent, not of the protocol.
    pub version: String,
    /// In order of preference.
    pub supported_interfaces: Vec<AgentInterface>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<AgentProvider>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documentation_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icon_url: Option<String>,
    pub capabilities: AgentCapabilities,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_schemes: BTreeMap<String, SecurityScheme>,
    /// A client must satisfy any one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_requirements: Vec<SecurityRequirement>,
    /// Media types.
    pub default_input_modes: Vec<String>,
    /// Media types.
    pub default_output_modes: Vec<String>,
    pub skills: Vec<AgentSkill>,
    /// Signatures over the card without this field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<AgentCardSignature>,
}

impl Decode for AgentCard {
    /// Leaves out what cannot be read and is not needed to call the agent, such as security schemes of a later version.
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            name: fields.required("name")?,
            description: fields.if_valid("description").unwrap_or_default(),
            version: fields.if_valid("version").unwrap_or_default(),
            supported_interfaces: interfaces(&mut fields)?,
            provider: fields.if_valid("provider"),
            documentation_url: fields.valid_text("documentationUrl"),
            icon_url: fields.valid_text("iconUrl"),
            capabilities: fields.if_valid("capabilities").unwrap_or_default(),
            security_schemes: fields.valid_members("securitySchemes"),
            security_requirements: fields.valid_elements("securityRequirements"),
            default_input_modes: fields.valid_elements("defaultInputModes"),
            default_output_modes: fields.valid_elements("defaultOutputModes"),
            skills: fields.valid_elements("skills"),
            signatures: fields.valid_elements("signatures"),
        })
    }
}

/// Decodes the interfaces that can be read. If none can, the first one says why.
fn interfaces(fields: &mut Fields) -> Result<Vec<AgentInterface>, DecodeError> {
    const NAME: &str = "supportedInterfaces";
    let list: Vec<Value> = fields.required(NAME)?;
    let mut read = Vec::new();
    let mut refused = None;
    for (index, interface) in list.into_iter().enumerate() {
        match AgentInterface::decode(interface) {
            Ok(interface) => read.push(interface),
            Err(error) => {
                refused.get_or_insert_with(|| error.in_element(index).in_field(NAME));
            }
        }
    }
    match refused {
        Some(error) if read.is_empty() => Err(error),
        Some(_) | None => Ok(read),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentInterface {
    /// For gRPC `host:port`.
    pub url: String,
    /// One of [`binding`], or another name.
    pub protocol_binding: String,
    pub protocol_version: String,
    /// Clients must send this value as `tenant`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl Decode for AgentInterface {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            url: fields.required("url")?,
            protocol_binding: fields.required("protocolBinding")?,
            protocol_version: fields.required("protocolVersion")?,
            tenant: fields.optional_text("tenant")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentProvider {
    pub organization: String,
    pub url: String,
}

impl Decode for AgentProvider {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            organization: fields.if_valid("organization").unwrap_or_default(),
            url: fields.if_valid("url").unwrap_or_default(),
        })
    }
}

/// `None` means unsupported.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCapabilities {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_notifications: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AgentExtension>,
    /// A card with more details, for authenticated clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_agent_card: Option<bool>,
}

impl Decode for AgentCapabilities {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            streaming: fields.if_valid("streaming"),
            push_notifications: fields.if_valid("pushNotifications"),
            extensions: fields.valid_elements("extensions"),
            extended_agent_card: fields.if_valid("extendedAgentCard"),
        })
    }
}

/// Identical in both versions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentExtension {
    pub uri: String,
    /// How this agent uses the extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Clients must use the extension.
    #[serde(skip_serializing_if = "is_false")]
    pub required: bool,
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub params: Object,
}

impl Decode for AgentExtension {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            uri: fields.required("uri")?,
            description: fields.optional_text("description")?,
            required: fields.or_default("required")?,
            params: fields.or_default("params")?,
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSkill {
    pub id: String,
    pub name: String,
    pub description: String,
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// Overrides the input modes of the card.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input_modes: Vec<String>,
    /// Overrides the output modes of the card.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output_modes: Vec<String>,
    /// Overrides the requirements of the card.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_requirements: Vec<SecurityRequirement>,
}

impl Decode for AgentSkill {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required("id")?,
            name: fields.if_valid("name").unwrap_or_default(),
            description: fields.if_valid("description").unwrap_or_default(),
            tags: fields.valid_elements("tags"),
            examples: fields.valid_elements("examples"),
            input_modes: fields.valid_elements("inputModes"),
            output_modes: fields.valid_elements("outputModes"),
            security_requirements: fields.valid_elements("securityRequirements"),
        })
    }
}

/// A detached JSON Web Signature over a card. Identical in both versions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCardSignature {
    /// The protected header, in base64url.
    pub protected: String,
    /// The signature, in base64url.
    pub signature: String,
    /// The unprotected header.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub header: Metadata,
}

impl Decode for AgentCardSignature {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            protected: fields.required("protected")?,
            signature: fields.required("signature")?,
            header: fields.or_default("header")?,
        })
    }
}

deserialize_by_decode!(
    AgentCard,
    AgentInterface,
    AgentProvider,
    AgentCapabilities,
    AgentExtension,
    AgentSkill,
    AgentCardSignature,
);
