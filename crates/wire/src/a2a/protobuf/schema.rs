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

/// A field with the same name in JSON.
pub(super) const fn field(number: u32, name: &'static str, kind: Kind) -> Field {
    Field {
        number,
        name,
        json: name,
        kind,
        shape: Shape::One,
    }
}

impl Field {
    pub(super) const fn json(self, json: &'static str) -> Self {
        Self { json, ..self }
    }

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

/// Defines messages, one line per field: `number "name" as "json name": kind shape`. The JSON name is left out
/// where it is the same.
macro_rules! messages {
    ($($id:ident = $message:literal {$(
        $number:literal $name:literal $(as $json:literal)?: $kind:ident $(($of:ident))? $($shape:ident $(($group:literal))?)?,
    )*})+) => {$(
        static $id: Message = message($message, &[
            $(field($number, $name, Kind::$kind $((&$of))?) $(.json($json))? $(.$shape($($group)?))?,)*
        ]);
    )+};
}

/// Messages that are identical in both versions. Each version needs its own, because the messages they refer
/// to differ.
macro_rules! alike {
    () => {
        static ROLE: Enum = Enum {
            name: "Role",
            values: &["ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"],
        };
        messages! {
            TASK = "Task" {
                1 "id": Text,
                2 "context_id" as "contextId": Text,
                3 "status": Message(TASK_STATUS),
                4 "artifacts": Message(ARTIFACT) many,
                5 "history": Message(MESSAGE) many,
                6 "metadata": Struct,
            }
            TASK_ARTIFACT_UPDATE_EVENT = "TaskArtifactUpdateEvent" {
                1 "task_id" as "taskId": Text,
                2 "context_id" as "contextId": Text,
                3 "artifact": Message(ARTIFACT),
                4 "append": Bool,
                5 "last_chunk" as "lastChunk": Bool,
                6 "metadata": Struct,
            }
            AGENT_PROVIDER = "AgentProvider" {
                1 "url": Text,
                2 "organization": Text,
            }
            AGENT_EXTENSION = "AgentExtension" {
                1 "uri": Text,
                2 "description": Text,
                3 "required": Bool,
                4 "params": Struct,
            }
            AGENT_CARD_SIGNATURE = "AgentCardSignature" {
                1 "protected": Text,
                2 "signature": Text,
                3 "header": Struct,
            }
            STRING_LIST = "StringList" {
                1 "list": Text many,
            }
            SECURITY_SCHEME = "SecurityScheme" {
                1 "api_key_security_scheme" as "apiKeySecurityScheme": Message(API_KEY) one_of("scheme"),
                2 "http_auth_security_scheme" as "httpAuthSecurityScheme": Message(HTTP_AUTH) one_of("scheme"),
                3 "oauth2_security_scheme" as "oauth2SecurityScheme": Message(OAUTH2) one_of("scheme"),
                4 "open_id_connect_security_scheme" as "openIdConnectSecurityScheme": Message(OPEN_ID_CONNECT) one_of("scheme"),
                5 "mtls_security_scheme" as "mtlsSecurityScheme": Message(MUTUAL_TLS) one_of("scheme"),
            }
            API_KEY = "APIKeySecurityScheme" {
                1 "description": Text,
                2 "location": Text,
                3 "name": Text,
            }
            HTTP_AUTH = "HTTPAuthSecurityScheme" {
                1 "description": Text,
                2 "scheme": Text,
                3 "bearer_format" as "bearerFormat": Text,
            }
            OAUTH2 = "OAuth2SecurityScheme" {
                1 "description": Text,
                2 "flows": Message(OAUTH_FLOWS),
                3 "oauth2_metadata_url" as "oauth2MetadataUrl": Text,
            }
            OPEN_ID_CONNECT = "OpenIdConnectSecurityScheme" {
                1 "description": Text,
                2 "open_id_connect_url" as "openIdConnectUrl": Text,
            }
            MUTUAL_TLS = "MutualTlsSecurityScheme" {
                1 "description": Text,
            }
            CLIENT_CREDENTIALS = "ClientCredentialsOAuthFlow" {
                1 "token_url" as "tokenUrl": Text,
                2 "refresh_url" as "refreshUrl": Text,
                3 "scopes": Text map,
            }
            IMPLICIT = "ImplicitOAuthFlow" {
                1 "authorization_url" as "authorizationUrl": Text,
                2 "refresh_url" as "refreshUrl": Text,
                3 "scopes": Text map,
            }
            PASSWORD = "PasswordOAuthFlow" {
                1 "token_url" as "tokenUrl": Text,
                2 "refresh_url" as "refreshUrl": Text,
                3 "scopes": Text map,
            }
        }
    };
}

pub(super) use {alike, messages};
