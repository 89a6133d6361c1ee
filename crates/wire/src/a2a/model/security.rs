//! Security schemes and requirements of an agent card (A2A 1.0 section 4.5).
//!
//! A scheme is an object with one member that names its kind; a flow likewise. The flows are shared with
//! 0.3, where only the wrapping differs.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::is_false;
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode};

/// Schemes that must all be satisfied, each with its scopes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityRequirement {
    /// Scopes by the name of the scheme.
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

/// A way to authenticate; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SecurityScheme {
    /// A key in a header, query parameter or cookie.
    #[serde(rename = "apiKeySecurityScheme")]
    ApiKey(ApiKeySecurityScheme),
    /// An HTTP authentication scheme.
    #[serde(rename = "httpAuthSecurityScheme")]
    HttpAuth(HttpAuthSecurityScheme),
    /// OAuth 2.0.
    #[serde(rename = "oauth2SecurityScheme")]
    OAuth2(OAuth2SecurityScheme),
    /// OpenID Connect.
    #[serde(rename = "openIdConnectSecurityScheme")]
    OpenIdConnect(OpenIdConnectSecurityScheme),
    /// A client certificate.
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

/// A key in a header, query parameter or cookie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeySecurityScheme {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `header`, `query` or `cookie`.
    pub location: String,
    /// The name of the header, parameter or cookie.
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

/// An HTTP authentication scheme. The same in both versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpAuthSecurityScheme {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The scheme, such as `Bearer`.
    pub scheme: String,
    /// What a bearer token looks like, such as `JWT`.
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

/// OAuth 2.0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuth2SecurityScheme {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The flow; absent when the card names none that is known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<OAuthFlow>,
    /// Where the server describes itself (RFC 8414).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth2_metadata_url: Option<String>,
}

impl Decode for OAuth2SecurityScheme {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let flows = fields.present("flows").filter(|flows| !is_empty_object(flows));
        Ok(Self {
            description: fields.optional_text("description")?,
            flows: flows
                .map(OAuthFlow::decode)
                .transpose()
                .map_err(|error| error.in_field("flows"))?,
            oauth2_metadata_url: fields.optional_text("oauth2MetadataUrl")?,
        })
    }
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// OpenID Connect. The same in both versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenIdConnectSecurityScheme {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The discovery document.
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

/// A client certificate. The same in both versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MutualTlsSecurityScheme {
    /// What it is for.
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

/// An OAuth 2.0 flow; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OAuthFlow {
    /// Authorization code.
    AuthorizationCode(AuthorizationCodeOAuthFlow),
    /// Client credentials.
    ClientCredentials(ClientCredentialsOAuthFlow),
    /// Device code (RFC 8628); 0.3 does not know it.
    DeviceCode(DeviceCodeOAuthFlow),
    /// Implicit; deprecated.
    Implicit(ImplicitOAuthFlow),
    /// Password; deprecated.
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

/// The authorization code flow.
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
    /// Claims that PKCE (RFC 7636) is required; 0.3 does not know it.
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

/// The client credentials flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCredentialsOAuthFlow {
    /// Where tokens are given.
    pub token_url: String,
    /// Where tokens are renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Scopes and what they mean.
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

/// The device code flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCodeOAuthFlow {
    /// Where a device asks for its code.
    pub device_authorization_url: String,
    /// Where tokens are given.
    pub token_url: String,
    /// Where tokens are renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Scopes and what they mean.
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

/// The implicit flow; deprecated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImplicitOAuthFlow {
    /// Where the user consents.
    pub authorization_url: String,
    /// Where tokens are renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Scopes and what they mean.
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

/// The password flow; deprecated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PasswordOAuthFlow {
    /// Where tokens are given.
    pub token_url: String,
    /// Where tokens are renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<String>,
    /// Scopes and what they mean.
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
