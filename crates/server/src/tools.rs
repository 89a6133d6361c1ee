//! The MCP servers of the configuration, with their secrets.
//!
//! A secret that is not where the configuration says does not keep the host from starting: calls of the server fail
//! with `credential_missing`.

use wopr_app::{App, RegisterError};
use wopr_connect::{NamedSecret, SecretSource, ToolAgent, ToolCommand, ToolReached, ToolServer, ToolSetting};
use wopr_core::openwop;

use crate::{
    config,
    models::{self, key_of},
};

/// The servers of a configuration, for a command that calls one outside of any host.
#[must_use]
pub fn tool_servers(config: &config::Config) -> Vec<ToolServer> {
    let secrets = models::secrets(&config.secrets.named, &|name| std::env::var(name).ok());
    servers(&config.mcp.servers, &secrets)
}

pub(crate) fn servers(servers: &[config::ToolServer], secrets: &[NamedSecret]) -> Vec<ToolServer> {
    servers
        .iter()
        .filter_map(|server| read(server, secrets))
        .collect()
}

/// The agents that are tools.
pub(crate) fn agents(agents: &[config::ToolAgent]) -> Vec<ToolAgent> {
    let agent = |agent: &config::ToolAgent| ToolAgent {
        name: agent.name.clone(),
        server: agent.server.clone(),
        tool: agent.tool.clone(),
    };
    agents.iter().map(agent).collect()
}

/// Registers the workflow by which a model calls a tool.
///
/// # Errors
/// If the store rejects it.
pub(crate) async fn register(app: &App) -> Result<(), RegisterError> {
    match app.register_for_all(openwop::tool_workflow()).await {
        Err(RegisterError::Full(limit)) => {
            tracing::warn!(error = %limit, "tools of servers not offered to models");
            Ok(())
        }
        registered => registered.map(drop),
    }
}

/// A server; `None` if it has neither command nor address, which the configuration refuses.
fn read(server: &config::ToolServer, secrets: &[NamedSecret]) -> Option<ToolServer> {
    let find = |name: &str| secrets.iter().find(|secret| secret.name == name);
    let setting = |value: &config::ToolSetting| match value {
        config::ToolSetting::Plain(text) => ToolSetting::Plain(text.clone()),
        config::ToolSetting::Secret(named) => match find(&named.secret).map(|secret| &secret.source) {
            Some(SecretSource::Value(value)) => ToolSetting::Secret(value.clone()),
            Some(SecretSource::Missing { place }) => ToolSetting::Missing(place.clone()),
            // The configuration refuses a stored one: all tenants share the process.
            Some(SecretSource::Stored) => ToolSetting::Missing(format!("the secret {}", named.secret)),
            None => ToolSetting::Missing(format!("the secret {}", named.secret)),
        },
    };
    let reached = match (&server.command, &server.url) {
        (Some(command), _) => ToolReached::Process(ToolCommand {
            command: command.clone(),
            args: server.args.clone(),
            env: (server.env.iter())
                .map(|(name, value)| (name.clone(), setting(value)))
                .collect(),
        }),
        (None, Some(url)) => ToolReached::Http {
            url: url.clone(),
            header: server.header.as_ref().and_then(|name| name.parse().ok()),
            credential: match &server.secret {
                Some(name) => key_of(find(name), name),
                None => wopr_connect::ProviderKey::None,
            },
        },
        (None, None) => return None,
    };
    Some(ToolServer {
        name: server.name.clone(),
        reached,
        tenants: server.tenants.clone(),
        tools: server.tools.clone(),
        timeout: server.timeout.as_duration(),
    })
}
