//! What a table is made of.

/// The one message that belongs to another package.
pub(super) static EMPTY: Message = message("google.protobuf.Empty", &[]);

/// A message type.
#[derive(Debug)]
pub struct Message {
    /// Its name within the package; with dots, if it is of another one.
    pub name: &'static str,
    /// Its fields, in the order they are written in.
    pub fields: &'static [Field],
}

/// A field of a message.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its number in bytes.
    pub number: u32,
    /// Its name in the protocol buffers.
    pub name: &'static str,
    /// Its name in JSON.
    pub json: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// How many of it there are, and what it means to be absent.
    pub shape: Shape,
}

/// What a field holds.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `string`
    Text,
    /// `bytes`, in JSON as base64
    Bytes,
    /// `bool`
    Bool,
    /// `int32`
    Int32,
    /// An enumeration, in JSON by name.
    Enum(&'static Enum),
    /// Another message.
    Message(&'static Message),
    /// `google.protobuf.Struct`, any JSON object
    Struct,
    /// `google.protobuf.Value`, any JSON
    Value,
    /// `google.protobuf.Timestamp`, in JSON as RFC 3339
    Timestamp,
}

/// How many values a field has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One; absent means the default.
    One,
    /// One or none, which differs from the default.
    Optional,
    /// A list.
    Many,
    /// An object whose members are of the kind.
    Map,
    /// One or none, and with it none of the others of the group.
    OneOf(&'static str),
}

/// An enumeration.
#[derive(Debug)]
pub struct Enum {
    /// Its name within the package.
    pub name: &'static str,
    /// Its values by their numbers, from 0 on.
    pub values: &'static [&'static str],
}

impl Enum {
    /// The name of a number.
    #[must_use]
    pub fn name_of(&self, number: i32) -> Option<&'static str> {
        let index = usize::try_from(number).ok()?;
        self.values.get(index).copied()
    }

    /// The number of a name.
    #[must_use]
    pub fn number_of(&self, name: &str) -> Option<i32> {
        let index = self.values.iter().position(|value| *value == name)?;
        i32::try_from(index).ok()
    }
}

impl Message {
    /// Finds a field by its number.
    #[must_use]
    pub fn field(&self, number: u32) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.number == number)
    }

    /// Adds this message and those it uses, each once.
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

/// A field under another name in JSON.
pub(super) const fn named(number: u32, name: &'static str, json: &'static str, kind: Kind) -> Field {
    Field {
        number,
        name,
        json,
        kind,
        shape: Shape::One,
    }
}

/// A field whose name is one word.
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

/// The messages that both versions have alike. They are made in each, because what they use differs.
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
