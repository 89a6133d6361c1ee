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

/// What an agent says about itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCard {
    /// The version of the protocol, such as `0.3.0`.
    pub protocol_version: String,
    /// Its name for people.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The release of the agent.
    pub version: String,
    /// Where it can be reached by the preferred transport.
    pub url: String,
    /// The transport at `url`; absent means JSON-RPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_transport: Option<String>,
    /// Every way to reach it; should repeat the preferred one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_interfaces: Vec<AgentInterface>,
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
    pub security: Vec<SecurityRequirement>,
    /// The media types it takes.
    pub default_input_modes: Vec<String>,
    /// The media types it gives.
    pub default_output_modes: Vec<String>,
    /// What it can be asked to do.
    pub skills: Vec<AgentSkill>,
    /// Claims that authenticated clients can have a longer card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supports_authenticated_extended_card: Option<bool>,
    /// Signatures over the card without this field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<AgentCardSignature>,
}

impl Decode for AgentCard {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            protocol_version: fields.required("protocolVersion")?,
            name: fields.required("name")?,
            description: fields.required("description")?,
            version: fields.required("version")?,
            url: fields.required("url")?,
            preferred_transport: fields.optional_text("preferredTransport")?,
            additional_interfaces: fields.or_default("additionalInterfaces")?,
            provider: fields.optional("provider")?,
            documentation_url: fields.optional_text("documentationUrl")?,
            icon_url: fields.optional_text("iconUrl")?,
            capabilities: fields.required("capabilities")?,
            security_schemes: fields.or_default("securitySchemes")?,
            security: fields.or_default("security")?,
            default_input_modes: fields.required("defaultInputModes")?,
            default_output_modes: fields.required("defaultOutputModes")?,
            skills: fields.required("skills")?,
            supports_authenticated_extended_card: fields.optional("supportsAuthenticatedExtendedCard")?,
            signatures: fields.or_default("signatures")?,
        })
    }
}

/// One way to reach an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentInterface {
    /// The address.
    pub url: String,
    /// The transport.
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
    /// A history of status changes; 1.0 does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_transition_history: Option<bool>,
    /// Extensions of the protocol.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AgentExtension>,
}

impl Decode for AgentCapabilities {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            streaming: fields.optional("streaming")?,
            push_notifications: fields.optional("pushNotifications")?,
            state_transition_history: fields.optional("stateTransitionHistory")?,
            extensions: fields.or_default("extensions")?,
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
    pub security: Vec<SecurityRequirement>,
}

impl Decode for AgentSkill {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required("id")?,
            name: fields.required("name")?,
            description: fields.required("description")?,
            tags: fields.required("tags")?,
            examples: fields.or_default("examples")?,
            input_modes: fields.or_default("inputModes")?,
            output_modes: fields.or_default("outputModes")?,
            security: fields.or_default("security")?,
        })
    }
}

/// A way to authenticate, told apart by `type`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum SecurityScheme {
    /// A key in a header, query parameter or cookie.
    #[serde(rename = "apiKey")]
    ApiKey(ApiKeySecurityScheme),
    /// An HTTP authentication scheme.
    #[serde(rename = "http")]
    Http(HttpAuthSecurityScheme),
    /// OAuth 2.0.
    #[serde(rename = "oauth2")]
    OAuth2(Box<OAuth2SecurityScheme>),
    /// OpenID Connect.
    #[serde(rename = "openIdConnect")]
    OpenIdConnect(OpenIdConnectSecurityScheme),
    /// A client certificate.
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
    /// Where an API key goes.
    pub enum ApiKeyLocation: "header, query or cookie" {
        /// Into a header.
        Header = "header",
        /// Into a query parameter.
        Query = "query",
        /// Into a cookie.
        Cookie = "cookie",
    }
}

/// A key in a header, query parameter or cookie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApiKeySecurityScheme {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where the key goes.
    #[serde(rename = "in")]
    pub location: ApiKeyLocation,
    /// The name of the header, parameter or cookie.
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

/// OAuth 2.0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuth2SecurityScheme {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The flows.
    pub flows: OAuthFlows,
    /// Where the server describes itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth2_metadata_url: Option<String>,
}

impl Decode for OAuth2SecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            flows: fields.required("flows")?,
            oauth2_metadata_url: fields.optional_text("oauth2MetadataUrl")?,
        })
    }
}

/// The flows of an OAuth 2.0 scheme, any number of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuthFlows {
    /// Authorization code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_code: Option<AuthorizationCodeOAuthFlow>,
    /// Client credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_credentials: Option<ClientCredentialsOAuthFlow>,
    /// Implicit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implicit: Option<ImplicitOAuthFlow>,
    /// Password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordOAuthFlow>,
}

impl Decode for OAuthFlows {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            authorization_code: fields.optional("authorizationCode")?,
            client_credentials: fields.optional("clientCredentials")?,
            implicit: fields.optional("implicit")?,
            password: fields.optional("password")?,
        })
    }
}

/// The authorization code flow, which cannot require PKCE here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationCodeOAuthFlow {
    /// Where the user consents.
    pub authorization_url: String,
    /// Where tokens are given.
    pub token_url: String,
    /// Where tokens are renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Scopes and what they mean.
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
