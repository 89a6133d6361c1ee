//! An authenticated request, as handlers see it.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Uri};
use url::form_urlencoded;
use wopr_app::VisibleRun;
use wopr_core::TraceContext;
use wopr_wire::json::{self, Decode};

use super::{
    answer::Answer,
    problem::Problem,
    route::{Input, Route},
};
use crate::{
    Host,
    auth::{Caller, Scope},
    telemetry,
};

pub(super) type Handler = fn(Call) -> BoxFuture<'static, Answer>;

/// A request that passed authentication and the scope check.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) host: Arc<Host>,
    pub(super) route: &'static Route,
    /// The OpenAPI document of this API.
    pub(super) openapi: Bytes,
    /// Present on every route that is not public, and on a public route if the request has a valid
    /// credential.
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) params: Vec<String>,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Call {
    pub(super) fn caller(&self) -> &Caller {
        self.caller
            .as_ref()
            .expect("only public routes are called without a caller")
    }

    pub(super) fn param(&self, index: usize) -> &str {
        self.params.get(index).map_or("", String::as_str)
    }

    pub(super) fn params(&self) -> &[String] {
        &self.params
    }

    /// The run named by the path, if the caller may see it. If runs are private, runs of others look like
    /// unknown ones.
    pub(super) async fn visible_run(&self, scope: Scope) -> Result<VisibleRun, Problem> {
        let found = self.host.app().find_run(self.caller(), self.param(0), scope);
        Ok(found.await?)
    }

    /// The first value of a query parameter.
    pub(super) fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        self.queries()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// A list: its members are joined by commas, or in several parameters of the name.
    pub(super) fn query_list(&self, name: &str) -> Option<String> {
        let given = self.queries().filter(|(key, _)| key == name);
        given
            .map(|(_, value)| value.into_owned())
            .reduce(|all, more| format!("{all},{more}"))
    }

    pub(super) fn queries(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        form_urlencoded::parse(self.uri.query().unwrap_or("").as_bytes())
    }

    /// A header value, if it is visible ASCII.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The trace context that a run of this request passes on.
    pub(super) fn trace(&self) -> Option<TraceContext> {
        telemetry::trace_of(&self.headers)
    }

    /// Decodes the body. If the route's body is optional, a blank one counts as `{}`.
    pub(super) fn decode<T: Decode>(&self) -> Result<T, Problem> {
        let value = match self.route.input {
            Input::None | Input::Optional(_) => json::from_slice_or_empty(&self.body),
            Input::Required(_) => json::from_slice(&self.body),
        };
        Ok(value?)
    }

    /// Returns `true` if `If-None-Match` contains the tag.
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
