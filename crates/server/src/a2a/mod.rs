//! The A2A face: runs as tasks, in versions 0.3 and 1.0, over JSON-RPC.
//!
//! ```text
//!   jsonrpc --- decodes, encodes ---.
//!                                   v
//!   card      service (get, list, cancel) . send . stream
//!    |              |          |        |         |
//!    |           render     history   select    projection      views of a run, and messages as commands;
//!    |              '--- question ---'  inputs, answer          all but `question` and `history` pure
//!    v                         v
//!   Engine: workflows       Engine: views, events, commands
//! ```
//!
//! A task is a view of a run under the same id, so nothing here survives, or has to survive, a restart. Which
//! message was taken already, what clients said and the bytes they sent commit with the run's own events.

mod answer;
mod card;
mod card_security;
mod extended;
mod history;

mod inputs;
mod jsonrpc;
mod metadata;
mod page;
mod projection;
mod question;
mod render;
mod select;
mod send;
mod service;
mod stream;
mod transport;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, Uri};
use wopr_core::WorkflowId;
use wopr_wire::a2a::method::Version;

use crate::Host;

/// The versions spoken, the preferred one first. The capability registry tells them, to discovery and to the cards.
pub const VERSIONS: [Version; 2] = [Version::V1_0, Version::V0_3];
/// Whether tasks can be streamed.
pub const STREAMING: bool = true;
/// Whether updates are pushed.
pub const PUSH_NOTIFICATIONS: bool = false;
/// Whether authenticated callers get a card of their own.
pub const EXTENDED_CARD: bool = true;
/// What tasks take.
pub(crate) const INPUT_MODES: [&str; 2] = ["text/plain", "application/json"];
/// What tasks give.
pub(crate) const OUTPUT_MODES: [&str; 2] = ["text/plain", "application/json"];
/// Where the card is, in both versions.
pub const CARD_PATH: &str = "/.well-known/agent-card.json";

#[derive(Debug, Clone)]
struct Face {
    host: Arc<Host>,
    freshness: Arc<card::Freshness>,
}

/// The routes of the face.
pub fn router(host: Arc<Host>) -> Router {
    let face = Face {
        host,
        freshness: Arc::default(),
    };
    Router::new()
        .route(CARD_PATH, get(host_card))
        .route("/v1/a2a/agent.json", get(host_card))
        .route("/a2a/.well-known/agent-card.json", get(host_card))
        .route(
            "/a2a/w/{workflow}/.well-known/agent-card.json",
            get(workflow_card),
        )
        .route("/a2a", post(host_rpc).fallback(only_post))
        .route("/a2a/", post(host_rpc).fallback(only_post))
        .route("/v1/a2a", post(host_rpc).fallback(only_post))
        .route("/a2a/w/{workflow}", post(workflow_rpc).fallback(only_post))
        .with_state(face)
}

async fn host_card(State(face): State<Face>, headers: HeaderMap) -> Response {
    card::respond(&face.host, &face.freshness, None, &headers)
}

async fn workflow_card(
    State(face): State<Face>,
    Path(workflow): Path<String>,
    headers: HeaderMap,
) -> Response {
    match WorkflowId::parse(&workflow) {
        Ok(workflow) => card::respond(&face.host, &face.freshness, Some(&workflow), &headers),
        Err(_) => no_agent(),
    }
}

async fn host_rpc(State(face): State<Face>, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    jsonrpc::respond(face.host, None, &uri, &headers, body).await
}

async fn workflow_rpc(
    State(face): State<Face>,
    Path(workflow): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match WorkflowId::parse(&workflow) {
        Ok(workflow) => jsonrpc::respond(face.host, Some(workflow), &uri, &headers, body).await,
        Err(_) => no_agent(),
    }
}

async fn only_post() -> Response {
    transport::only_post()
}

fn no_agent() -> Response {
    transport::status_response(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such agent")
}
