//! How servers describe the tools that a model is offered.
//!
//! The list is that of the connection, which may be some minutes old, as for calls. A server's words are untrusted; its
//! credentials are taken out of them.

use tokio::time::{Instant, timeout_at};
use wopr_core::{ListedTool, Object, TenantId, ToolQuery, WantedTools};
use wopr_engine::Outcome;

use super::{
    ToolServers,
    listing::Tool,
    server::{Server, Unavailable},
};
use crate::http::failed;

/// Maximum size of a description of tools, in bytes: as much as a node takes.
const MAX_DESCRIBED: usize = 256 << 10;

impl ToolServers {
    /// Describes the tools of a query, all of which have to be there.
    pub(crate) async fn describe(&self, query: &ToolQuery, tenant: &TenantId) -> Outcome {
        let mut described = Vec::new();
        let mut n_bytes = 0;
        for wanted in &query.wanted {
            let server = self.find(&wanted.server).filter(|server| server.is_for(tenant));
            // A server of other tenants looks like none.
            let Some(server) = server else {
                let message = format!("no tool server is named '{}'", wanted.server);
                return failed("tool_server_unknown", message, false);
            };
            let tools = match server.described(wanted, tenant).await {
                Ok(tools) => tools,
                Err(outcome) => return outcome,
            };
            n_bytes += tools.iter().map(ListedTool::size).sum::<usize>();
            if n_bytes > MAX_DESCRIBED {
                let message = format!("the servers describe the tools with more than {MAX_DESCRIBED} bytes");
                return failed("tools_too_large", message, false);
            }
            described.extend(tools);
        }
        match serde_json::to_value(described) {
            Ok(tools) => Outcome::Done(Object::from_iter([("tools".to_owned(), tools)]).into()),
            Err(_) => failed(
                "tool_call_failed",
                "a description of a tool cannot be written".to_owned(),
                false,
            ),
        }
    }
}

impl Server {
    async fn described(&self, wanted: &WantedTools, tenant: &TenantId) -> Result<Vec<ListedTool>, Outcome> {
        let name = &self.config.name;
        if let Some(refused) = wanted.tools.iter().find(|tool| !self.offers(tool)) {
            let message = format!("the operator does not let workflows call '{refused}' of '{name}'");
            return Err(failed("tool_refused", message, false));
        }
        let unavailable = |error: Unavailable| error.outcome(name);
        // Lists share the server's turns with calls, so that no tenant takes all of them.
        let turn = timeout_at(Instant::now() + self.config.timeout, self.turn(Some(tenant))).await;
        let _turn = turn
            .ok()
            .flatten()
            .ok_or_else(|| Unavailable::Timeout.outcome(name))?;
        let (session, deadline) = self
            .session_within(self.config.timeout)
            .await
            .map_err(unavailable)?;
        let late = |_| Unavailable::Timeout.outcome(name);
        let mut found = Vec::new();
        if wanted.tools.is_empty() {
            let listed = timeout_at(deadline, session.listed(false)).await.map_err(late)?;
            let listed = listed.map_err(unavailable)?;
            let offered = listed.tools().filter(|tool| self.offers(&tool.name));
            found.extend(offered.map(|tool| self.listed_tool(tool)));
            // The server may list them in any order, and a model is to read the same request again.
            found.sort_by(|a, b| a.tool.cmp(&b.tool));
        }
        for tool in &wanted.tools {
            let tool_found = timeout_at(deadline, session.tool(tool)).await.map_err(late)?;
            match tool_found.map_err(unavailable)? {
                Some(tool) => found.push(self.listed_tool(&tool)),
                None => {
                    let message = format!("'{name}' has no tool '{tool}'");
                    return Err(failed("tool_unknown", message, false));
                }
            }
        }
        Ok(found)
    }

    fn listed_tool(&self, tool: &Tool) -> ListedTool {
        let mut schema = serde_json::Value::Object((*tool.schema).clone());
        self.secrets.redact(&mut schema);
        ListedTool {
            server: self.config.name.clone(),
            tool: tool.name.clone(),
            description: tool.description.as_ref().map(|text| self.secrets.text(text)),
            input_schema: schema.as_object().cloned().unwrap_or_default(),
        }
    }
}
