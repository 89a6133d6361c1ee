//! Tools of MCP servers: one call of one tool, on a server that the operator has configured, and how servers describe
//! their tools.
//!
//! A workflow names a server and a tool. The command, the address and the credentials are the operator's alone, and
//! so is the list of tools that may be called. Only this module knows `rmcp`.
//!
//! A call of a tool has no idempotency key that servers know. So a call that may have been made is made again only if
//! the node or the server says that this is harmless; else it fails with `outcome_unknown`. What a server sends is
//! untrusted: it is bounded before it is parsed, and it becomes outputs and nothing else. What a server asks for,
//! such as answers of a model or of a person, is refused.

mod answer;
mod blocks;
mod describe;
mod http;
mod listing;
mod server;
mod stdio;
mod unreadable;

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use url::Url;
use wopr_core::{TenantId, ToolRequest, TraceContext};
use wopr_engine::Outcome;

use crate::{egress::Gate, http::failed, model::ProviderKey, redact::Secrets};

pub use listing::Tool;
pub use stdio::{Command, Setting};

use answer::{Ended, refused, unknown};
use server::{Server, Unavailable};

/// The most servers of a host, each of which may be a process.
pub const MAX_TOOL_SERVERS: usize = 64;

/// A server with tools.
#[derive(Debug, Clone)]
pub struct ToolServer {
    /// The name by which workflows find it.
    pub name: String,
    pub reached: Reached,
    /// The tenants whose workflows may use it; all where empty.
    pub tenants: Vec<TenantId>,
    /// The tools that may be called; all where empty.
    pub tools: Vec<String>,
    /// Time limit of a call whose node has none.
    pub timeout: Duration,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub enum Reached {
    /// A process of this host, spoken to by its standard input and output.
    Process(Command),
    /// By streamable HTTP.
    Http {
        url: Url,
        /// The name of the header that carries the credential; `Authorization` with `Bearer` where absent.
        header: Option<::http::HeaderName>,
        credential: ProviderKey,
    },
}

/// One attempt at a call.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) key: &'a str,
    pub(crate) trace: Option<&'a TraceContext>,
    /// An earlier process began this attempt, and may have made the call.
    pub(crate) is_interrupted: bool,
}

/// The servers whose tools workflows may call. Clones share their connections, which end with the last clone.
#[derive(Debug, Clone)]
pub struct ToolServers(Arc<[Server]>);

impl ToolServers {
    #[must_use]
    pub fn new(gate: &Gate, servers: Vec<ToolServer>) -> Self {
        let servers = servers.into_iter().take(MAX_TOOL_SERVERS);
        Self(servers.map(|server| Server::new(gate.clone(), server)).collect())
    }

    fn find(&self, name: &str) -> Option<&Server> {
        self.0.iter().find(|server| server.config.name == name)
    }

    /// The names of the servers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|server| server.config.name.as_str())
    }

    /// The tools of a server that may be called.
    ///
    /// # Errors
    /// Says why the server is not available.
    pub async fn list(&self, name: &str) -> Result<Vec<Tool>, String> {
        let server = self.find(name);
        let server = server.ok_or_else(|| format!("no tool server is named '{name}'"))?;
        let deadline = Instant::now() + server.config.timeout;
        let listed = timeout_at(deadline, async {
            let session = server
                .session(deadline)
                .await
                .map_err(|error| error.to_string())?;
            session.listed(false).await.map_err(|error| error.to_string())
        });
        let listed = listed
            .await
            .map_err(|_| "it did not answer in time".to_owned())??;
        let mut tools: Vec<_> = listed
            .tools()
            .filter(|tool| server.offers(&tool.name))
            .cloned()
            .collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tools)
    }

    /// Calls a tool outside of any run.
    ///
    /// # Errors
    /// Returns code and message of the failure.
    pub async fn call_alone(&self, request: &ToolRequest) -> Result<serde_json::Value, (String, String)> {
        let server = self.find(&request.server);
        let Some(server) = server else {
            let message = format!("no tool server is named '{}'", request.server);
            return Err(("tool_server_unknown".to_owned(), message));
        };
        match server.call(request, None).await {
            Outcome::Done(outputs) => Ok(outputs),
            Outcome::Failed { code, message, .. } | Outcome::GivenUp { code, message, .. } => {
                Err((code, message))
            }
            Outcome::Cancelled { reason } => Err(("cancelled".to_owned(), reason)),
        }
    }

    pub(crate) async fn call(&self, request: &ToolRequest, asked: Asked<'_>) -> Outcome {
        let server = self.find(&request.server);
        // A server of other tenants looks like none.
        let Some(server) = server.filter(|server| server.is_for(asked.tenant)) else {
            let message = format!("no tool server is named '{}'", request.server);
            return failed("tool_server_unknown", message, false);
        };
        server.call(request, Some(&asked)).await
    }
}

impl Server {
    /// Makes one attempt.
    async fn call(&self, request: &ToolRequest, asked: Option<&Asked<'_>>) -> Outcome {
        let is_interrupted = asked.is_some_and(|asked| asked.is_interrupted);
        if !self.offers(&request.tool) {
            let message = format!(
                "the operator does not let workflows call '{}' of '{}'",
                request.tool, request.server
            );
            return failed("tool_refused", message, false);
        }
        if is_interrupted && request.retry_safe == Some(false) {
            return unknown(request, "this host stopped before it had the answer");
        }
        let timeout = request
            .timeout_ms
            .map_or(self.config.timeout, Duration::from_millis);
        let tenant = asked.map(|asked| asked.tenant);
        let ready = self.ready(request, tenant, timeout).await;
        let (session, tool, turn, deadline) = match ready {
            Ok(ready) => ready,
            // Nobody can say whether the call may be made again.
            Err(Ended::Before(_)) if is_interrupted && request.retry_safe.is_none() => {
                return unknown(request, "this host stopped before it had the answer");
            }
            Err(Ended::Before(unavailable)) => return unavailable.outcome(&request.server),
            Err(Ended::Failed(outcome)) => return outcome,
        };
        let is_repeatable = request.retry_safe.unwrap_or(tool.is_repeatable);
        if is_interrupted && !is_repeatable {
            return unknown(request, "this host stopped before it had the answer");
        }
        if let Err(rule) = tool.check(&request.arguments) {
            let message = format!(
                "the arguments do not match the schema of '{}': {rule}",
                request.tool
            );
            return failed("tool_arguments_invalid", message, false);
        }
        let answer = session.ask(request, asked, deadline).await;
        drop(turn);
        let mut outcome = answer::outcome(request, &tool, is_repeatable, answer, &self.secrets);
        if let Outcome::Done(outputs) = &mut outcome {
            self.secrets.redact(outputs);
        }
        if let Outcome::Failed { message, .. } = &mut outcome {
            *message = self.secrets.text(message);
        }
        outcome
    }

    /// A turn among the calls, a connection, the tool as the server describes it, and when the time of the call is over.
    async fn ready(
        &self,
        request: &ToolRequest,
        tenant: Option<&TenantId>,
        timeout: Duration,
    ) -> Result<(Arc<server::Session>, Arc<Tool>, server::Turn, Instant), Ended> {
        let late = || Ended::Before(Unavailable::Timeout);
        let turn = timeout_at(Instant::now() + timeout, self.turn(tenant)).await;
        let turn = turn.ok().flatten().ok_or_else(late)?;
        let (session, deadline) = self.session_within(timeout).await.map_err(Ended::Before)?;
        let tool = timeout_at(deadline, session.tool(&request.tool)).await;
        let Some(tool) = tool.map_err(|_| late())?.map_err(Ended::Before)? else {
            return Err(Ended::Failed(refused(
                "tool_unknown",
                format!("'{}' has no tool '{}'", request.server, request.tool),
            )));
        };
        Ok((session, tool, turn, deadline))
    }
}

/// The credentials of a server, which must not come back in what it sends.
fn secrets(reached: &Reached) -> Secrets {
    let mut secrets = Secrets::default();
    match reached {
        Reached::Process(command) => command.secrets().for_each(|secret| secrets.add(secret)),
        Reached::Http { credential, .. } => {
            if let ProviderKey::Secret(secret) = credential {
                secrets.add(secret.expose());
            }
        }
    }
    secrets
}
