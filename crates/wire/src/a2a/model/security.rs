//! Security schemes and requirements of an agent card (A2A 1.0 section 4.5).
//!
//! A scheme is an object whose only member names its kind, and so is an OAuth flow. Most types are shared
//! with 0.3, where only the wrapping differs.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::is_false;
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode};

/// Schemes that must all be satisfied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityRequirement {
    /// Scopes by scheme name.
    pub schemes: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
struct ScopeList<'a> {
    list: &'a [String],
}

impl Serialize for SecurityRequirement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let schemes: BTreeMap<&str, ScopeList<'_>> = self
            .schemes
            .iter()
            .map(|(name, list)| (name.as_str(), ScopeList { list }))
            .collect();
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("schemes", &schemes)?;
        map.end()
    }
}

struct Scopes(Vec<String>);

impl Decode for Scopes {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Fields::of(value)?.or_default("list").map(Self)
    }
}

impl Decode for SecurityRequirement {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let schemes: BTreeMap<String, Scopes> = Fields::of(value)?.or_default("schemes")?;
        Ok(Self {
            schemes: schemes
                .into_iter()
                .map(|(name, scopes)| (name, scopes.0))
                .collect(),
        })
    }
}

/// On the wire, an object with exactly one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SecurityScheme {
    #[serde(rename = "apiKeySecurityScheme")]
    ApiKey(ApiKeySecurityScheme),
    #[serde(rename = "httpAuthSecurityScheme")]
    HttpAuth(HttpAuthSecurityScheme),
    #[serde(rename = "oauth2SecurityScheme")]
    OAuth2(OAuth2SecurityScheme),
    #[serde(rename = "openIdConnectSecurityScheme")]
    OpenIdConnect(OpenIdConnectSecurityScheme),
    #[serde(rename = "mtlsSecurityScheme")]
    MutualTls(MutualTlsSecurityScheme),
}

impl Decode for SecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&[
            "apiKeySecurityScheme",
            "httpAuthSecurityScheme",
            "oauth2SecurityScheme",
            "openIdConnectSecurityScheme",
            "mtlsSecurityScheme",
        ])?;
        match name {
            "apiKeySecurityScheme" => ApiKeySecurityScheme::decode(value).map(Self::ApiKey),
            "httpAuthSecurityScheme" => HttpAuthSecurityScheme::decode(value).map(Self::HttpAuth),
            "oauth2SecurityScheme" => OAuth2SecurityScheme::decode(value).map(Self::OAuth2),
            "openIdConnectSecurityScheme" => {
                OpenIdConnectSecurityScheme::decode(value).map(Self::OpenIdConnect)
            }
            _ => MutualTlsSecurityScheme::decode(value).map(Self::MutualTls),
        }
        .map_err(|error| error.in_field(name))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeySecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `header`, `query` or `cookie`.
    pub location: String,
    pub name: String,
}

impl Decode for ApiKeySecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            location: fields.required("location")?,
            name: fields.required("name")?,
        })
    }
}

/// Identical in both versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpAuthSecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The scheme, such as `Bearer`.
    pub scheme: String,
    /// The format of the bearer token, such as `JWT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_format: Option<String>,
}

impl Decode for HttpAuthSecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            scheme: fields.required("scheme")?,
            bearer_format: fields.optional_text("bearerFormat")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuth2SecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `None` if the card has only unknown flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<OAuthFlow>,
    /// The authorization server metadata (RFC 8414).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth2_metadata_url: Option<String>,
}

impl Decode for OAuth2SecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            flows: fields.if_valid("flows"),
            oauth2_metadata_url: fields.optional_text("oauth2MetadataUrl")?,
        })
    }
}

/// Identical in both versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenIdConnectSecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub open_id_connect_url: String,
}

impl Decode for OpenIdConnectSecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            description: fields.optional_text("description")?,
            open_id_connect_url: fields.required("openIdConnectUrl")?,
        })
    }
}

/// Identical in both versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MutualTlsSecurityScheme {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl Decode for MutualTlsSecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self {
            description: Fields::of(value)?.optional_text("description")?,
        })
    }
}

/// On the wire, an object with exactly one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OAuthFlow {
    AuthorizationCode(AuthorizationCodeOAuthFlow),
    ClientCredentials(ClientCredentialsOAuthFlow),
    /// RFC 8628. Not in 0.3.
    DeviceCode(DeviceCodeOAuthFlow),
    /// Deprecated.
    Implicit(ImplicitOAuthFlow),
    /// Deprecated.
    Password(PasswordOAuthFlow),
}

impl Decode for OAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&[
            "authorizationCode",
            "clientCredentials",
            "deviceCode",
            "implicit",
            "password",
        ])?;
        match name {
            "authorizationCode" => AuthorizationCodeOAuthFlow::decode(value).map(Self::AuthorizationCode),
            "clientCredentials" => ClientCredentialsOAuthFlow::decode(value).map(Self::ClientCredentials),
            "deviceCode" => DeviceCodeOAuthFlow::decode(value).map(Self::DeviceCode),
            "implicit" => ImplicitOAuthFlow::decode(value).map(Self::Implicit),
            _ => PasswordOAuthFlow::decode(value).map(Self::Password),
        }
        .map_err(|error| error.in_field(name))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationCodeOAuthFlow {
    pub authorization_url: String,
    pub token_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Descriptions by scope.
    pub scopes: BTreeMap<String, String>,
    /// PKCE (RFC 7636) is required. Not in 0.3.
    #[serde(skip_serializing_if = "is_false")]
    pub pkce_required: bool,
}

impl Decode for AuthorizationCodeOAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            authorization_url: fields.required("authorizationUrl")?,
            token_url: fields.required("tokenUrl")?,
            refresh_url: fields.optional_text("refreshUrl")?,
            scopes: fields.or_default("scopes")?,
            pkce_required: fields.or_default("pkceRequired")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCredentialsOAuthFlow {
    pub token_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Descriptions by scope.
    pub scopes: BTreeMap<String, String>,
}

impl Decode for ClientCredentialsOAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            token_url: fields.required("tokenUrl")?,
            refresh_url: fields.optional_text("refreshUrl")?,
            scopes: fields.or_default("scopes")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCodeOAuthFlow {
    pub device_authorization_url: String,
    pub token_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Descriptions by scope.
    pub scopes: BTreeMap<String, String>,
}

impl Decode for DeviceCodeOAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            device_authorization_url: fields.required("deviceAuthorizationUrl")?,
            token_url: fields.required("tokenUrl")?,
            refresh_url: fields.optional_text("refreshUrl")?,
            scopes: fields.or_default("scopes")?,
        })
    }
}

/// Deprecated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImplicitOAuthFlow {
    pub authorization_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Descriptions by scope.
    pub scopes: BTreeMap<String, String>,
}

impl Decode for ImplicitOAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            authorization_url: fields.required("authorizationUrl")?,
            refresh_url: fields.optional_text("refreshUrl")?,
            scopes: fields.or_default("scopes")?,
        })
    }
}

/// Deprecated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PasswordOAuthFlow {
    pub token_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Descriptions by scope.
    pub scopes: BTreeMap<String, String>,
}

impl Decode for PasswordOAuthFlow {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            token_url: fields.required("tokenUrl")?,
            refresh_url: fields.optional_text("refreshUrl")?,
            scopes: fields.or_default("scopes")?,
        })
    }
}

deserialize_by_decode!(SecurityRequirement, SecurityScheme, OAuthFlow);
