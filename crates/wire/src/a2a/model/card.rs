//! The agent card (A2A 1.0 section 4.4).
//!
//! Required fields are always written, even when empty, which is also what signing needs; the rest only
//! when set. Signing itself is not here.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{Metadata, SecurityRequirement, SecurityScheme, is_false};
use crate::json::{Decode, DecodeError, Fields, Object, deserialize_by_decode};

/// The names of the bindings; others are allowed.
pub mod binding {
    /// JSON-RPC 2.0 over HTTP.
    pub const JSONRPC: &str = "JSONRPC";
    /// gRPC.
    pub const GRPC: &str = "GRPC";
    /// HTTP with JSON bodies.
    pub const HTTP_JSON: &str = "HTTP+JSON";
}

/// What an agent says about itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCard {
    /// Its name for people.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The release of the agent, not of the protocol.
    pub version: String,
    /// Where it can be reached, preferred first.
    pub supported_interfaces: Vec<AgentInterface>,
    /// Who runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<AgentProvider>,
    /// Where it is documented.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documentation_url: Option<String>,
    /// Where its icon is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icon_url: Option<String>,
    /// What it can do beyond the minimum.
    pub capabilities: AgentCapabilities,
    /// The ways to authenticate, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_schemes: BTreeMap<String, SecurityScheme>,
    /// What is required: any one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_requirements: Vec<SecurityRequirement>,
    /// The media types it takes.
    pub default_input_modes: Vec<String>,
    /// The media types it gives.
    pub default_output_modes: Vec<String>,
    /// What it can be asked to do.
    pub skills: Vec<AgentSkill>,
    /// Signatures over the card without this field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<AgentCardSignature>,
}

impl Decode for AgentCard {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            name: fields.required("name")?,
            description: fields.or_default("description")?,
            version: fields.or_default("version")?,
            supported_interfaces: fields.required("supportedInterfaces")?,
            provider: fields.optional("provider")?,
            documentation_url: fields.optional_text("documentationUrl")?,
            icon_url: fields.optional_text("iconUrl")?,
            capabilities: fields.or_default("capabilities")?,
            security_schemes: fields.or_default("securitySchemes")?,
            security_requirements: fields.or_default("securityRequirements")?,
            default_input_modes: fields.or_default("defaultInputModes")?,
            default_output_modes: fields.or_default("defaultOutputModes")?,
            skills: fields.or_default("skills")?,
            signatures: fields.or_default("signatures")?,
        })
    }
}

/// One way to reach an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentInterface {
    /// The address; for gRPC `host:port`.
    pub url: String,
    /// The binding, see [`binding`].
    pub protocol_binding: String,
    /// The protocol version, such as `1.0`.
    pub protocol_version: String,
    /// What the client must put into `tenant`.
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

/// Who runs an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentProvider {
    /// The organisation.
    pub organization: String,
    /// Its site.
    pub url: String,
}

impl Decode for AgentProvider {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            organization: fields.or_default("organization")?,
            url: fields.or_default("url")?,
        })
    }
}

/// What an agent can do beyond the minimum. Absent means no.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCapabilities {
    /// Streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<bool>,
    /// Push notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_notifications: Option<bool>,
    /// Extensions of the protocol.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AgentExtension>,
    /// A longer card for authenticated clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_agent_card: Option<bool>,
}

impl Decode for AgentCapabilities {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            streaming: fields.optional("streaming")?,
            push_notifications: fields.optional("pushNotifications")?,
            extensions: fields.or_default("extensions")?,
            extended_agent_card: fields.optional("extendedAgentCard")?,
        })
    }
}

/// An extension of the protocol. The same in both versions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentExtension {
    /// Names it.
    pub uri: String,
    /// How this agent uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Claims that clients must use it.
    #[serde(skip_serializing_if = "is_false")]
    pub required: bool,
    /// Its settings.
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

/// Something an agent can be asked to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSkill {
    /// Names it.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// What it does.
    pub description: String,
    /// Keywords.
    pub tags: Vec<String>,
    /// Example requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// The media types it takes, instead of the card's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input_modes: Vec<String>,
    /// The media types it gives, instead of the card's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output_modes: Vec<String>,
    /// What it requires, instead of what the card requires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_requirements: Vec<SecurityRequirement>,
}

impl Decode for AgentSkill {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required("id")?,
            name: fields.or_default("name")?,
            description: fields.or_default("description")?,
            tags: fields.or_default("tags")?,
            examples: fields.or_default("examples")?,
            input_modes: fields.or_default("inputModes")?,
            output_modes: fields.or_default("outputModes")?,
            security_requirements: fields.or_default("securityRequirements")?,
        })
    }
}

/// A detached JSON Web Signature over a card. The same in both versions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCardSignature {
    /// The protected header, base64url.
    pub protected: String,
    /// The signature, base64url.
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
