//! The definition of a route: access, input, responses and handler.

use http::Method;

use super::call::Handler;
use crate::auth::Scope;

#[derive(Debug, Clone, Copy)]
pub(super) enum Access {
    /// Requires no credential.
    Public,
    /// Requires the interrupt token in the path.
    Token,
    /// Requires all of these scopes.
    Scopes(&'static [Scope]),
}

/// The request body of a route.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input {
    /// No body; one that is sent is ignored.
    None,
    /// A document of this schema.
    Required(&'static str),
    /// A document of this schema, or a blank body for `{}`.
    Optional(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exists {
    Always,
    /// Exists only in conformance mode; otherwise the path is unknown.
    Conformance,
}

/// A query parameter or header field, for the OpenAPI document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) about: &'static str,
}

/// A successful response, for the OpenAPI document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Success {
    pub(super) status: u16,
    /// Another status with the same body, if there is one.
    pub(super) or: Option<u16>,
    pub(super) media: &'static str,
    /// The name of a schema in the OpenAPI document.
    pub(super) schema: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Get,
    Post,
    Delete,
}

impl Verb {
    pub(super) const fn method(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Post => Method::POST,
            Self::Delete => Method::DELETE,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) access: Access,
    pub(super) input: Input,
    pub(super) exists: Exists,
    /// Browsers get an HTML page and may submit a form.
    pub(super) is_page: bool,
    pub(super) params: &'static [Param],
    pub(super) success: Success,
    pub(super) errors: &'static [u16],
    pub(super) handler: Handler,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb.method(), self.path)
    }
}
