//! What a route is: who may call it, what it reads, what it answers and by whom.

use http::Method;

use super::call::Handler;
use crate::auth::Scope;

/// Who may call a route.
#[derive(Debug, Clone, Copy)]
pub(super) enum Access {
    /// Anyone.
    Public,
    /// Whoever has the interrupt token that the path names.
    Token,
    /// Callers with all of these scopes.
    Scopes(&'static [Scope]),
}

/// What a route reads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input {
    /// Nothing; a body is not looked at.
    None,
    /// A document of this schema.
    Required(&'static str),
    /// The same, where a blank body means `{}`.
    Optional(&'static str),
}

/// When a route exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exists {
    /// Always.
    Always,
    /// In conformance mode; else the path is unknown.
    Conformance,
}

/// A query parameter or header field, for the document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) about: &'static str,
}

/// A successful answer, for the document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Success {
    pub(super) status: u16,
    pub(super) media: &'static str,
    /// A name in the document's schemas.
    pub(super) schema: Option<&'static str>,
}

/// A method of a route.
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

/// A route.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) access: Access,
    pub(super) input: Input,
    pub(super) exists: Exists,
    /// Whether browsers get it as a page, and may answer by a form.
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
