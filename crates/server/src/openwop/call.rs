//! A request that passed the door, as handlers see it.

use std::{borrow::Cow, sync::Arc};

use axum::body::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Uri};
use url::form_urlencoded;
use wopr_core::{RunId, RunKey};
use wopr_wire::json::{self, Decode};

use super::{
    answer::Answer,
    problem::{Problem, no_run},
    route::{Input, Route},
};
use crate::{Host, auth::Caller};

/// A handler.
pub(super) type Handler = fn(Call) -> BoxFuture<'static, Answer>;

/// A request that passed the door.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) host: Arc<Host>,
    pub(super) route: &'static Route,
    /// What the face says of its routes.
    pub(super) openapi: Bytes,
    /// Present on every route that is not public, and on a public one if the request has a valid credential.
    pub(super) caller: Option<Caller>,
    pub(super) params: Vec<String>,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Call {
    /// Who calls.
    pub(super) fn caller(&self) -> &Caller {
        self.caller
            .as_ref()
            .expect("only public routes are called without a caller")
    }

    /// The path parameter at a place.
    pub(super) fn param(&self, index: usize) -> &str {
        self.params.get(index).map_or("", String::as_str)
    }

    /// Path parameters, in order.
    pub(super) fn params(&self) -> &[String] {
        &self.params
    }

    /// The run the path names, as the caller's: what cannot be a run's id is an unknown run.
    fn run(&self) -> Result<RunKey, Problem> {
        let run = RunId::parse(self.param(0)).map_err(|_| no_run())?;
        Ok(RunKey::new(self.caller().tenant.clone(), run))
    }

    /// The run the path names, if the caller sees it: one of others looks like an unknown one where runs are private.
    pub(super) async fn visible_run(&self) -> Result<RunKey, Problem> {
        let key = self.run()?;
        if self.host.app().sees(self.caller(), &key).await? {
            Ok(key)
        } else {
            Err(no_run())
        }
    }

    /// The first value of a query parameter.
    pub(super) fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        self.queries()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// Every query parameter.
    pub(super) fn queries(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        form_urlencoded::parse(self.uri.query().unwrap_or("").as_bytes())
    }

    /// A header field that is plain text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body as the wanted document; a blank one counts as `{}` where the route allows it.
    pub(super) fn decode<T: Decode>(&self) -> Result<T, Problem> {
        let value = match self.route.input {
            Input::None | Input::Optional(_) => json::from_slice_or_empty(&self.body),
            Input::Required(_) => json::from_slice(&self.body),
        };
        Ok(value?)
    }

    /// Whether the request names this version of what it asks for already.
    pub(super) fn has_current(&self, etag: &str) -> bool {
        let Some(known) = self.header("if-none-match") else {
            return false;
        };
        known
            .split(',')
            .map(|tag| tag.trim().trim_start_matches("W/"))
            .any(|tag| tag == "*" || tag == etag)
    }
}
