//! The agent card of 0.3, with security schemes in the style of OpenAPI.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::super::model::{
    AgentCardSignature, AgentExtension, AgentProvider, ClientCredentialsOAuthFlow, HttpAuthSecurityScheme,
    ImplicitOAuthFlow, MutualTlsSecurityScheme, OpenIdConnectSecurityScheme, PasswordOAuthFlow,
};
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode, named};

/// Schemes that must all be satisfied, each with its scopes.
pub type SecurityRequirement = BTreeMap<String, Vec<String>>;

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCard {
    /// Such as `0.3.0`.
    pub protocol_version: String,
    pub name: String,
    pub description: String,
    /// The version of the agent.
    pub version: String,
    /// The endpoint of the preferred transport.
    pub url: String,
    /// The transport at `url`; absent means JSON-RPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_transport: Option<String>,
    /// All interfaces; should include the preferred one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_interfaces: Vec<AgentInterface>,
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
    pub security: Vec<SecurityRequirement>,
    /// Media types.
    pub default_input_modes: Vec<String>,
    /// Media types.
    pub default_output_modes: Vec<String>,
    pub skills: Vec<AgentSkill>,
    /// Authenticated clients can fetch a card with more details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supports_authenticated_extended_card: Option<bool>,
    /// Signatures over the card without this field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<AgentCardSignature>,
}

impl Decode for AgentCard {
    /// Leaves out what cannot be read and is not needed to call the agent.
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            protocol_version: fields.required("protocolVersion")?,
            name: fields.required("name")?,
            description: fields.if_valid("description").unwrap_or_default(),
            version: fields.if_valid("version").unwrap_or_default(),
            url: fields.required("url")?,
            preferred_transport: fields.optional_text("preferredTransport")?,
            additional_interfaces: fields.valid_elements("additionalInterfaces"),
            provider: fields.if_valid("provider"),
            documentation_url: fields.valid_text("documentationUrl"),
            icon_url: fields.valid_text("iconUrl"),
            capabilities: fields.if_valid("capabilities").unwrap_or_default(),
            security_schemes: fields.valid_members("securitySchemes"),
            security: fields.valid_elements("security"),
            default_input_modes: fields.valid_elements("defaultInputModes"),
            default_output_modes: fields.valid_elements("defaultOutputModes"),
            skills: fields.valid_elements("skills"),
            supports_authenticated_extended_card: fields.if_valid("supportsAuthenticatedExtendedCard"),
            signatures: fields.valid_elements("signatures"),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentInterface {
    pub url: String,
    pub transport: String,
}

impl Decode for AgentInterface {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            url: fields.required("url")?,
            transport: fields.required("transport")?,
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
    /// Not in 1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_transition_history: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AgentExtension>,
}

impl Decode for AgentCapabilities {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            streaming: fields.if_valid("streaming"),
            push_notifications: fields.if_valid("pushNotifications"),
            state_transition_history: fields.if_valid("stateTransitionHistory"),
            extensions: fields.valid_elements("extensions"),
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
    pub security: Vec<SecurityRequirement>,
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
            security: fields.valid_elements("security"),
        })
    }
}

/// Distinguished by `type`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum SecurityScheme {
    #[serde(rename = "apiKey")]
    ApiKey(ApiKeySecurityScheme),
    #[serde(rename = "http")]
    Http(HttpAuthSecurityScheme),
    #[serde(rename = "oauth2")]
    OAuth2(Box<OAuth2SecurityScheme>),
    #[serde(rename = "openIdConnect")]
    OpenIdConnect(OpenIdConnectSecurityScheme),
    #[serde(rename = "mutualTLS")]
    MutualTls(MutualTlsSecurityScheme),
}

impl Decode for SecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let object = value
            .as_object()
            .ok_or_else(|| DecodeError::wrong_type("an object"))?;
        let kind = object
            .get("type")
            .ok_or_else(|| DecodeError::missing().in_field("type"))?;
        match kind.as_str() {
            Some("apiKey") => ApiKeySecurityScheme::decode(value).map(Self::ApiKey),
            Some("http") => HttpAuthSecurityScheme::decode(value).map(Self::Http),
            Some("oauth2") => {
                OAuth2SecurityScheme::decode(value).map(|scheme| Self::OAuth2(Box::new(scheme)))
            }
            Some("openIdConnect") => OpenIdConnectSecurityScheme::decode(value).map(Self::OpenIdConnect),
            Some("mutualTLS") => MutualTlsSecurityScheme::decode(value).map(Self::MutualTls),
            Some(_) | None => {
                let rule = "must be apiKey, http, oauth2, openIdConnect or mutualTLS";
                Err(DecodeError::invalid(rule).in_field("type"))
            }
        }
    }
}

named! {
    pub enum ApiKeyLocation: "header, query or cookie" {
        Header = "header",
        Query = "query",
        Cookie = "cookie",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApiKeySecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(rename = "in")]
    pub location: ApiKeyLocation,
    /// The name of the header, query parameter or cookie.
    pub name: String,
}

impl Decode for ApiKeySecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            location: fields.required("in")?,
            name: fields.required("name")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuth2SecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub flows: OAuthFlows,
    /// The authorization server metadata (RFC 8414).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth2_metadata_url: Option<String>,
}

impl Decode for OAuth2SecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            flows: fields.if_valid("flows").unwrap_or_default(),
            oauth2_metadata_url: fields.optional_text("oauth2MetadataUrl")?,
        })
    }
}

/// The flows of an OAuth 2.0 scheme; any number may be set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuthFlows {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_code: Option<AuthorizationCodeOAuthFlow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_credentials: Option<ClientCredentialsOAuthFlow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implicit: Option<ImplicitOAuthFlow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordOAuthFlow>,
}

impl Decode for OAuthFlows {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            authorization_code: fields.if_valid("authorizationCode"),
            client_credentials: fields.if_valid("clientCredentials"),
            implicit: fields.if_valid("implicit"),
            password: fields.if_valid("password"),
        })
    }
}

/// Unlike in 1.0, it cannot require PKCE.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationCodeOAuthFlow {
    pub authorization_url: String,
    pub token_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Descriptions by scope.
    pub scopes: BTreeMap<String, String>,
}

impl Decode for AuthorizationCodeOAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            authorization_url: fields.required("authorizationUrl")?,
            token_url: fields.required("tokenUrl")?,
            refresh_url: fields.optional_text("refreshUrl")?,
            scopes: fields.or_default("scopes")?,
        })
    }
}

deserialize_by_decode!(
    AgentCard,
    AgentInterface,
    AgentCapabilities,
    AgentSkill,
    SecurityScheme
);
