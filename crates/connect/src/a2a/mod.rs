//! A client of remote A2A agents, behind the egress gate.
//!
//! A [`Client`] knows the configured [`Peer`]s, finds their cards, and returns an [`Agent`] to call. All bindings
//! (JSON-RPC, HTTP+JSON, gRPC) and versions (1.0, 0.3) map to the 1.0 model of `wopr_wire`, so a task looks the
//! same through each of them. The task API of the Agent Workflow Protocol is one more transport, with tasks of its
//! own form ([`TaskApi`]). Cards and answers are untrusted: their sizes are limited, a credential is only
//! sent to the place it was given for, and is replaced where it comes back. The client never repeats a message
//! that may have been accepted; retries are up to the caller, as is receiving push notifications.

mod card;
mod cards;
mod client;
mod error;
mod first_item;
mod grpc;
mod http_json;
mod json_rpc;
mod known;
mod line;
mod peer;

mod tasks_http;
mod token;

pub use card::is_same_place;
pub use cards::Card;
pub use client::{Agent, Client};
pub use error::{Error, RemoteError, Status};
pub use line::{Call, Item, Items};
pub use peer::{
    Binding, CardKeys, Credential, OAuth2, OnQuestion, Peer, PeerTls, Polling, Transport, Wanted,
};
pub use tasks_http::{RemoteTask, TaskApi, TaskStatus, read_task};
