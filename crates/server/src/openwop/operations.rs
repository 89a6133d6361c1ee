//! Public endpoints: discovery, the OpenAPI document, health and metrics.

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::{
    answer::{Answer, PUBLIC, bytes_response, json_response, of_everybody, tagged},
    call::Call,
    problem::Problem,
};
use crate::telemetry::{self, METRICS_TYPE, Metrics};

use crate::message::{Body, Response};

/// `GET /.well-known/openwop`
pub(super) fn discovery(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let document = call.host.discovery().document(call.host.app());
        let mut response = tagged(&call, &document.etag, of_everybody(), || {
            Ok(bytes_response(StatusCode::OK, document.bytes.clone()))
        })?;
        response
            .headers_mut()
            .insert("capabilities-etag", document.etag.clone());
        Ok(response)
    }
    .boxed()
}

/// `GET /v1/openapi.json`
pub(super) fn openapi(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let mut response = bytes_response(StatusCode::OK, call.openapi);
        response.headers_mut().insert(header::CACHE_CONTROL, PUBLIC);
        Ok(response)
    }
    .boxed()
}

/// `GET /healthz`
pub(super) fn health(_: Call) -> BoxFuture<'static, Answer> {
    async { json_response(StatusCode::OK, &json!({ "status": "ok" })) }.boxed()
}

/// `GET /readyz`
pub(super) fn ready(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        if call.host.is_leaving() {
            return Err(Problem::unavailable(1));
        }
        if let Err(why) = call.host.app().ready().await {
            // Report damage as unavailable, too, so that another instance can take the requests.
            telemetry::not_ready(&why);
            return Err(Problem::unavailable(1));
        }
        json_response(StatusCode::OK, &json!({ "status": "ready" }))
    }
    .boxed()
}

/// `GET /metrics`
pub(super) fn metrics(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let host = &call.host;
        let render = |metrics: &Metrics| metrics.render(&host.app().stats(), host.store_stats().as_ref());
        // Rendering is CPU-bound, so unauthenticated clients share a recently rendered text.
        let text = match call.caller {
            Some(_) => Bytes::from(render(host.metrics())),
            None => host.metrics().rendered(render),
        };
        let mut response = Response::new(Body::from(text));
        let media = HeaderValue::from_static(METRICS_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, media);
        Ok(response)
    }
    .boxed()
}
