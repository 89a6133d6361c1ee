//! The routes of the control plane over REST: one table, for matching and for the description.
//!
//! Ids of executions contain colons, so the verb of a path is what follows its last one.

use http::Method;

use crate::path::decode;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Describe,
    Register,
    Workflow(String),
    Start(String),
    List,
    Import,
    Status(String),
    Events(String),
    Checkpoint(String),
    Resume(String),
    Submit(String),
    Signal(String),
    Cancel(String),
}

impl Route {
    /// The route of a path below the root of the protocol, such as `/v1/executions/x`.
    pub(super) fn find(method: &Method, path: &str) -> Option<Self> {
        let segments = decode(path)?;
        let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        let is = |wanted: Method| *method == wanted || wanted == Method::GET && *method == Method::HEAD;
        let id = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        match *segments.as_slice() {
            ["v1", "openapi.json"] if is(Method::GET) => Some(Self::Describe),
            ["v1", "workflows"] if is(Method::POST) => Some(Self::Register),
            ["v1", "workflows", workflow] if is(Method::GET) => id(workflow).map(Self::Workflow),
            ["v1", "workflows", workflow, "executions"] if is(Method::POST) => id(workflow).map(Self::Start),
            ["v1", "executions"] if is(Method::GET) => Some(Self::List),
            ["v1", "executions:import"] if is(Method::POST) => Some(Self::Import),
            ["v1", "executions", execution] if is(Method::GET) => id(execution).map(Self::Status),
            ["v1", "executions", execution, "events"] if is(Method::GET) => id(execution).map(Self::Events),
            ["v1", "executions", execution, "checkpoint"] if is(Method::GET) => {
                id(execution).map(Self::Checkpoint)
            }
            ["v1", "executions", execution] if is(Method::POST) => {
                let (execution, verb) = execution.rsplit_once(':')?;
                let execution = id(execution)?;
                match verb {
                    "resume" => Some(Self::Resume(execution)),
                    "submit_activity" => Some(Self::Submit(execution)),
                    "signal" => Some(Self::Signal(execution)),
                    "cancel" => Some(Self::Cancel(execution)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The path as logs and metrics name it.
    pub(super) const fn template(&self) -> &'static str {
        match self {
            Self::Describe => "/awp/v1/openapi.json",
            Self::Register => "/awp/v1/workflows",
            Self::Workflow(_) => "/awp/v1/workflows/{wf_id}",
            Self::Start(_) => "/awp/v1/workflows/{wf_id}/executions",
            Self::List => "/awp/v1/executions",
            Self::Import => "/awp/v1/executions:import",
            Self::Status(_) => "/awp/v1/executions/{exec_id}",
            Self::Events(_) => "/awp/v1/executions/{exec_id}/events",
            Self::Checkpoint(_) => "/awp/v1/executions/{exec_id}/checkpoint",
            Self::Resume(_) => "/awp/v1/executions/{exec_id}:resume",
            Self::Submit(_) => "/awp/v1/executions/{exec_id}:submit_activity",
            Self::Signal(_) => "/awp/v1/executions/{exec_id}:signal",
            Self::Cancel(_) => "/awp/v1/executions/{exec_id}:cancel",
        }
    }

    /// Whether the request has a body.
    pub(super) const fn has_body(&self) -> bool {
        match self {
            Self::Register
            | Self::Start(_)
            | Self::Import
            | Self::Resume(_)
            | Self::Submit(_)
            | Self::Signal(_)
            | Self::Cancel(_) => true,
            Self::Describe
            | Self::Workflow(_)
            | Self::List
            | Self::Status(_)
            | Self::Events(_)
            | Self::Checkpoint(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &Method, path: &str) -> Option<Route> {
        Route::find(method, path)
    }

    #[test]
    fn the_verb_is_what_follows_the_last_colon() {
        let child = || "a:sub:b".to_owned();
        assert_eq!(
            found(&Method::POST, "/v1/executions/a:sub:b:cancel"),
            Some(Route::Cancel(child()))
        );
        assert_eq!(
            found(&Method::POST, "/v1/executions/a%3Asub%3Ab%3Acancel"),
            Some(Route::Cancel(child()))
        );
        assert_eq!(
            found(&Method::GET, "/v1/executions/a:sub:b"),
            Some(Route::Status(child()))
        );
        assert_eq!(
            found(&Method::GET, "/v1/executions/a:cancel"),
            Some(Route::Status("a:cancel".to_owned()))
        );
        for path in [
            "/v1/executions/a",
            "/v1/executions/:cancel",
            "/v1/executions/a:retry",
            "/v1/executions",
        ] {
            assert_eq!(found(&Method::POST, path), None, "{path}");
        }
    }
}
