//! The elements of the tables.

/// The only message of another package.
pub(super) static EMPTY: Message = message("google.protobuf.Empty", &[]);

#[derive(Debug)]
pub struct Message {
    /// The name within the package; fully qualified if it belongs to another package.
    pub name: &'static str,
    /// In the order in which they are written.
    pub fields: &'static [Field],
}

#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub number: u32,
    /// The name in the `.proto` file.
    pub name: &'static str,
    pub json: &'static str,
    pub kind: Kind,
    pub shape: Shape,
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `string`
    Text,
    /// `bytes`, base64 in JSON
    Bytes,
    /// `bool`
    Bool,
    /// `int32`
    Int32,
    /// An enum, by name in JSON.
    Enum(&'static Enum),
    Message(&'static Message),
    /// `google.protobuf.Struct`, any JSON object
    Struct,
    /// `google.protobuf.Value`, any JSON value
    Value,
    /// `google.protobuf.Timestamp`, RFC 3339 in JSON
    Timestamp,
}

/// The cardinality and presence of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A single value; absent means the default.
    One,
    /// A single value with presence: absent differs from the default.
    Optional,
    /// `repeated`
    Many,
    /// `map<string, _>`, an object in JSON
    Map,
    /// A member of the named oneof: at most one of them is present.
    OneOf(&'static str),
}

#[derive(Debug)]
pub struct Enum {
    /// The name within the package.
    pub name: &'static str,
    /// The names of the values, numbered from 0.
    pub values: &'static [&'static str],
}

impl Enum {
    #[must_use]
    pub fn name_of(&self, number: i32) -> Option<&'static str> {
        let index = usize::try_from(number).ok()?;
        self.values.get(index).copied()
    }

    #[must_use]
    pub fn number_of(&self, name: &str) -> Option<i32> {
        let index = self.values.iter().position(|value| *value == name)?;
        i32::try_from(index).ok()
    }
}

impl Message {
    #[must_use]
    pub fn field(&self, number: u32) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.number == number)
    }

    /// Adds this message and its dependencies, each once.
    pub(super) fn collect(&'static self, all: &mut Vec<&'static Self>) {
        if all.iter().any(|known| known.name == self.name) {
            return;
        }
        for field in self.fields {
            if let Kind::Message(used) = field.kind {
                used.collect(all);
            }
        }
        all.push(self);
    }
}

pub(super) const fn message(name: &'static str, fields: &'static [Field]) -> Message {
    Message { name, fields }
}

/// A field whose JSON name differs from its name.
pub(super) const fn named(number: u32, name: &'static str, json: &'static str, kind: Kind) -> Field {
    Field {
        number,
        name,
        json,
        kind,
        shape: Shape::One,
    }
}

/// A field with the same name in JSON.
pub(super) const fn field(number: u32, name: &'static str, kind: Kind) -> Field {
    named(number, name, name, kind)
}

impl Field {
    pub(super) const fn optional(self) -> Self {
        Self {
            shape: Shape::Optional,
            ..self
        }
    }

    pub(super) const fn many(self) -> Self {
        Self {
            shape: Shape::Many,
            ..self
        }
    }

    pub(super) const fn map(self) -> Self {
        Self {
            shape: Shape::Map,
            ..self
        }
    }

    pub(super) const fn one_of(self, group: &'static str) -> Self {
        Self {
            shape: Shape::OneOf(group),
            ..self
        }
    }
}

/// Messages that are identical in both versions. Each version needs its own, because the messages they refer
/// to differ.
macro_rules! alike {
    () => {
        static ROLE: Enum = Enum {
            name: "Role",
            values: &["ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"],
        };
        static TASK: Message = message(
            "Task",
            &[
                field(1, "id", Kind::Text),
                named(2, "context_id", "contextId", Kind::Text),
                field(3, "status", Kind::Message(&TASK_STATUS)),
                field(4, "artifacts", Kind::Message(&ARTIFACT)).many(),
                field(5, "history", Kind::Message(&MESSAGE)).many(),
                field(6, "metadata", Kind::Struct),
            ],
        );
        static TASK_ARTIFACT_UPDATE_EVENT: Message = message(
            "TaskArtifactUpdateEvent",
            &[
                named(1, "task_id", "taskId", Kind::Text),
                named(2, "context_id", "contextId", Kind::Text),
                field(3, "artifact", Kind::Message(&ARTIFACT)),
                field(4, "append", Kind::Bool),
                named(5, "last_chunk", "lastChunk", Kind::Bool),
                field(6, "metadata", Kind::Struct),
            ],
        );
        static AGENT_PROVIDER: Message = message(
            "AgentProvider",
            &[
                field(1, "url", Kind::Text),
                field(2, "organization", Kind::Text),
            ],
        );
        static AGENT_EXTENSION: Message = message(
            "AgentExtension",
            &[
                field(1, "uri", Kind::Text),
                field(2, "description", Kind::Text),
                field(3, "required", Kind::Bool),
                field(4, "params", Kind::Struct),
            ],
        );
        static AGENT_CARD_SIGNATURE: Message = message(
            "AgentCardSignature",
            &[
                field(1, "protected", Kind::Text),
                field(2, "signature", Kind::Text),
                field(3, "header", Kind::Struct),
            ],
        );
        static STRING_LIST: Message = message("StringList", &[field(1, "list", Kind::Text).many()]);
        static SECURITY_SCHEME: Message = message(
            "SecurityScheme",
            &[
                named(
                    1,
                    "api_key_security_scheme",
                    "apiKeySecurityScheme",
                    Kind::Message(&API_KEY),
                )
                .one_of("scheme"),
                named(
                    2,
                    "http_auth_security_scheme",
                    "httpAuthSecurityScheme",
                    Kind::Message(&HTTP_AUTH),
                )
                .one_of("scheme"),
                named(
                    3,
                    "oauth2_security_scheme",
                    "oauth2SecurityScheme",
                    Kind::Message(&OAUTH2),
                )
                .one_of("scheme"),
                named(
                    4,
                    "open_id_connect_security_scheme",
                    "openIdConnectSecurityScheme",
                    Kind::Message(&OPEN_ID_CONNECT),
                )
                .one_of("scheme"),
                named(
                    5,
                    "mtls_security_scheme",
                    "mtlsSecurityScheme",
                    Kind::Message(&MUTUAL_TLS),
                )
                .one_of("scheme"),
            ],
        );
        static API_KEY: Message = message(
            "APIKeySecurityScheme",
            &[
                field(1, "description", Kind::Text),
                field(2, "location", Kind::Text),
                field(3, "name", Kind::Text),
            ],
        );
        static HTTP_AUTH: Message = message(
            "HTTPAuthSecurityScheme",
            &[
                field(1, "description", Kind::Text),
                field(2, "scheme", Kind::Text),
                named(3, "bearer_format", "bearerFormat", Kind::Text),
            ],
        );
        static OAUTH2: Message = message(
            "OAuth2SecurityScheme",
            &[
                field(1, "description", Kind::Text),
                field(2, "flows", Kind::Message(&OAUTH_FLOWS)),
                named(3, "oauth2_metadata_url", "oauth2MetadataUrl", Kind::Text),
            ],
        );
        static OPEN_ID_CONNECT: Message = message(
            "OpenIdConnectSecurityScheme",
            &[
                field(1, "description", Kind::Text),
                named(2, "open_id_connect_url", "openIdConnectUrl", Kind::Text),
            ],
        );
        static MUTUAL_TLS: Message = message(
            "MutualTlsSecurityScheme",
            &[field(1, "description", Kind::Text)],
        );
        static CLIENT_CREDENTIALS: Message = message(
            "ClientCredentialsOAuthFlow",
            &[
                named(1, "token_url", "tokenUrl", Kind::Text),
                named(2, "refresh_url", "refreshUrl", Kind::Text),
                field(3, "scopes", Kind::Text).map(),
            ],
        );
        static IMPLICIT: Message = message(
            "ImplicitOAuthFlow",
            &[
                named(1, "authorization_url", "authorizationUrl", Kind::Text),
                named(2, "refresh_url", "refreshUrl", Kind::Text),
                field(3, "scopes", Kind::Text).map(),
            ],
        );
        static PASSWORD: Message = message(
            "PasswordOAuthFlow",
            &[
                named(1, "token_url", "tokenUrl", Kind::Text),
                named(2, "refresh_url", "refreshUrl", Kind::Text),
                field(3, "scopes", Kind::Text).map(),
            ],
        );
    };
}

pub(super) use alike;
