//! The routes of the A2A API.
//!
//! ```text
//!   /.well-known/agent-card.json                  the card
//!   /.well-known/jwks.json                        the keys that verify it, if it is signed
//!   /a2a                 /a2a/w/{workflow}         an interface: JSON-RPC by POST
//!     /.well-known/agent-card.json                its card
//!     /message:send, /tasks/{id}, ...             HTTP+JSON, 1.0
//!     /{tenant}/message:send, ...                 the same; the tenant selects nothing
//!     /v1/message:send, ...                       HTTP+JSON, 0.3
//!   /v1/message:send, /v1/tasks/{id}, /v1/card     HTTP+JSON, 0.3, next to OpenWOP's runs
//! ```
//!
//! Paths are matched by hand because routing crates neither split a segment at its colon nor decode it
//! first. Paths that are not in this table belong to the OpenWOP API.

use std::borrow::Cow;

use http::Method;
use wopr_core::WorkflowId;
use wopr_wire::a2a::{
    method::{Operation, Version},
    paths::{self, Names, Verb},
};

use super::supported::{Binding, is_served};
use crate::path;

/// The path prefix of every interface.
const ROOT: &str = "a2a";
/// Precedes the workflow that has an interface of its own.
const WORKFLOW: &str = "w";
/// The path of a card, below an interface or the origin.
const CARD: [&str; 2] = [".well-known", "agent-card.json"];
/// The path of the keys that verify cards, below the origin.
const KEYS: [&str; 2] = [".well-known", "jwks.json"];

/// An address for agents: that of one workflow, or of all.
pub(super) type Interface = Option<WorkflowId>;

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Card(Interface),
    Keys,
    Rpc(Interface),
    Rest(Rest),
    /// An unknown path below an interface.
    Nothing,
    /// An interface whose name cannot be a workflow.
    NoAgent,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) interface: Interface,
    /// The version that defines this path.
    pub(super) version: Version,
    /// The tenant in the path.
    pub(super) tenant: Option<String>,
    /// The operation and the template of its path. `None` if the path does not support the verb.
    pub(super) operation: Option<(Operation, &'static str)>,
    pub(super) names: Names,
    pub(super) verbs: Vec<Verb>,
}

/// Finds the target of a path. `None` if the path does not belong to this API.
pub(super) fn find(method: &Method, path: &str) -> Option<Place> {
    if !may_be_one(path) {
        return None;
    }
    let segments = path::decode(path)?;
    let segments: Vec<&str> = segments.iter().map(Cow::as_ref).collect();
    let verb = Verb::from_name(method.as_str());
    match segments.as_slice() {
        card if card == CARD => Some(Place::Card(None)),
        keys if keys == KEYS => Some(Place::Keys),
        ["v1", "a2a", "agent.json"] => Some(Place::Card(None)),
        ["v1", "a2a"] => Some(Place::Rpc(None)),
        // Match only what exists: other paths with this prefix belong to OpenWOP.
        ["v1", rest @ ..] => old(None, verb, rest).map(Place::Rest),
        [ROOT, WORKFLOW, workflow, rest @ ..] => Some(match WorkflowId::parse(workflow) {
            Ok(workflow) => below(Some(workflow), verb, rest),
            Err(_) => Place::NoAgent,
        }),
        [ROOT, rest @ ..] => Some(below(None, verb, rest)),
        _ => None,
    }
}

/// Returns `false` if a path certainly belongs to another API, as most do.
fn may_be_one(path: &str) -> bool {
    let mut segments = path.split('/').skip(1);
    match segments.next() {
        _ if path.contains('%') => true,
        Some("v1") => segments.next().is_some_and(|next| {
            let is_call = paths::may_begin(Version::V0_3, next);
            is_call || next == ROOT
        }),
        Some(first) => first == ROOT || first == CARD[0],
        None => false,
    }
}

/// Finds the target of a path below an interface.
fn below(interface: Interface, verb: Option<Verb>, segments: &[&str]) -> Place {
    match segments {
        [] | [""] => return Place::Rpc(interface),
        card if card == CARD => return Place::Card(interface),
        _ => {}
    }
    let found = match segments {
        ["v1", rest @ ..] => old(interface, verb, rest),
        [tenant, rest @ ..] => {
            let direct = new(interface.clone(), None, verb, segments);
            direct.or_else(|| (!tenant.is_empty()).then(|| new(interface, Some(tenant), verb, rest))?)
        }
        [] => None,
    };
    found.map_or(Place::Nothing, Place::Rest)
}

fn old(interface: Interface, verb: Option<Verb>, segments: &[&str]) -> Option<Rest> {
    at(interface, Version::V0_3, None, verb, segments)
}

fn new(interface: Interface, tenant: Option<&str>, verb: Option<Verb>, segments: &[&str]) -> Option<Rest> {
    at(interface, Version::V1_0, tenant, verb, segments)
}

fn at(
    interface: Interface,
    version: Version,
    tenant: Option<&str>,
    verb: Option<Verb>,
    segments: &[&str],
) -> Option<Rest> {
    if !is_served(Binding::HttpJson, version) {
        return None;
    }
    let paths::Found {
        operation,
        names,
        verbs,
    } = paths::find(version, verb, segments)?;
    Some(Rest {
        interface,
        version,
        tenant: tenant.map(str::to_owned),
        operation,
        names,
        verbs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short form: interface, version, tenant, operation and its names.
    fn short(method: &Method, path: &str) -> String {
        let name = |interface: Interface| interface.map_or("-".to_owned(), |workflow| workflow.to_string());
        match find(method, path) {
            None => "other".to_owned(),
            Some(Place::Card(interface)) => format!("card {}", name(interface)),
            Some(Place::Rpc(interface)) => format!("rpc {}", name(interface)),
            Some(Place::Keys) => "keys".to_owned(),
            Some(Place::Nothing) => "nothing".to_owned(),
            Some(Place::NoAgent) => "no agent".to_owned(),
            Some(Place::Rest(rest)) => {
                let operation = match rest.operation {
                    Some((operation, _)) => format!("{operation:?}"),
                    None => format!("{:?}", rest.verbs),
                };
                let names = [rest.tenant, rest.names.task, rest.names.config];
                let names = names.map(Option::unwrap_or_default).join(",");
                format!("{} {} {operation} {names}", name(rest.interface), rest.version)
            }
        }
    }

    #[test]
    fn matches_paths() {
        let (get, post) = (Method::GET, Method::POST);
        for (method, path, wanted) in [
            (&get, "/.well-known/agent-card.json", "card -"),
            (&get, "/.well-known/jwks.json", "keys"),
            (&get, "/a2a/.well-known/jwks.json", "nothing"),
            (&get, "/v1/a2a/agent.json", "card -"),
            (&get, "/a2a/.well-known/agent-card.json", "card -"),
            (&get, "/a2a/w/x/.well-known/agent-card.json", "card x"),
            (&post, "/a2a", "rpc -"),
            (&post, "/a2a/", "rpc -"),
            (&post, "/v1/a2a", "rpc -"),
            (&get, "/a2a/w/x", "rpc x"),
            (&post, "/a2a/w/tasks/", "rpc tasks"),
            (&post, "/a2a/message:send", "- 1.0 SendMessage ,,"),
            (&post, "/a2a/message%3Asend", "- 1.0 SendMessage ,,"),
            (
                &post,
                "/a2a/acme/message%3astream",
                "- 1.0 SendStreamingMessage acme,,",
            ),
            (&get, "/a2a/tasks", "- 1.0 ListTasks ,,"),
            (&get, "/a2a/acme/tasks", "- 1.0 ListTasks acme,,"),
            (&get, "/a2a/tasks/t", "- 1.0 GetTask ,t,"),
            // A tenant named `tasks` must be given in the body.
            (&get, "/a2a/tasks/tasks", "- 1.0 GetTask ,tasks,"),
            (&post, "/a2a/tasks/t:cancel", "- 1.0 CancelTask ,t,"),
            (
                &get,
                "/a2a/a/tasks/t/pushNotificationConfigs/c",
                "- 1.0 GetPushConfig a,t,c",
            ),
            (&get, "/a2a/extendedAgentCard", "- 1.0 GetExtendedAgentCard ,,"),
            (&post, "/a2a/v1/message:send", "- 0.3 SendMessage ,,"),
            (&post, "/v1/message:send", "- 0.3 SendMessage ,,"),
            (&post, "/v1/message%3Asend", "- 0.3 SendMessage ,,"),
            (&get, "/v1/tasks/t", "- 0.3 GetTask ,t,"),
            (&get, "/v1/card", "- 0.3 GetExtendedAgentCard ,,"),
            (&get, "/a2a/v1/card", "- 0.3 GetExtendedAgentCard ,,"),
            (&post, "/a2a/w/x/v1/message:send", "x 0.3 SendMessage ,,"),
            (&post, "/a2a/w/x/message:send", "x 1.0 SendMessage ,,"),
            (&get, "/a2a/w/x/acme/tasks/t", "x 1.0 GetTask acme,t,"),
            (&get, "/a2a/message:send", "- 1.0 [Post] ,,"),
            (&Method::PATCH, "/v1/tasks/t", "- 0.3 [Get] ,t,"),
            (&get, "/a2a/nope", "nothing"),
            (&get, "/a2a/v1", "nothing"),
            (&get, "/a2a/v1/runs", "nothing"),
            (&get, "/a2a/a/b/tasks", "nothing"),
            (&get, "/a2a//tasks", "nothing"),
            (&get, "/a2a/w/No%20Id", "no agent"),
            (&get, "/v1/runs", "other"),
            (&get, "/v1/a2a/tasks/t", "other"),
            (&get, "/v1", "other"),
            (&get, "/a2ab", "other"),
            (&get, "/a2a/%ff", "other"),
            (&get, "/healthz", "other"),
        ] {
            assert_eq!(short(method, path), wanted, "{method} {path}");
        }
    }
}
