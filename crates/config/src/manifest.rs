//! The operator manifest of the Agent Workflow Protocol's reference engine, as settings of this host: each of its servers
//! is one of `[[mcp.servers]]`, whose tools `tool_call` nodes then call in process, and each of its `delegateAgents` one of
//! `[[mcp.agents]]`.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use super::{Config, ConfigError, ToolAgent, ToolServer, ToolSetting};

/// The manifest, as JSON or as a path.
pub const MCP_CONFIG: &str = "WORKFLOW_ENGINE_MCP_CONFIG";
/// Its path.
pub const MCP_MANIFEST: &str = "AGENT_WORKFLOW_MCP_MANIFEST";
/// The commands that it may name, with commas in between; all where absent.
pub const MCP_ALLOW_COMMANDS: &str = "WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS";
/// Whether `tool_call` nodes call tools in process.
pub(crate) const TOOLS: &str = "WOPR_AWP_TOOLS";
/// Maximum size of a manifest in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A manifest. Unknown members are refused, as by the reference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ToolManifest {
    mcp_servers: BTreeMap<String, Command>,
    #[serde(default)]
    delegate_agents: BTreeMap<String, Binding>,
}

/// The tool that an agent is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Binding {
    server: String,
    tool: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// A manifest that a variable names.
struct Given {
    name: &'static str,
    manifest: ToolManifest,
}

/// What is wrong with the manifest that a variable names.
struct Wrong {
    name: &'static str,
    rule: String,
}

impl ToolManifest {
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("it has more than {MAX_BYTES} bytes"));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match manifest.mcp_servers.is_empty() {
            true => Err("mcpServers must name a server".to_owned()),
            false => Ok(manifest),
        }
    }

    /// The manifest that the environment names, if it names one.
    fn of_environment(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Given>, Wrong> {
        let variable = |name: &str| env(name).filter(|text| !text.is_empty());
        let (name, text) = match (variable(MCP_CONFIG), variable(MCP_MANIFEST)) {
            (Some(text), _) => (MCP_CONFIG, text),
            (None, Some(path)) => (MCP_MANIFEST, path),
            (None, None) => return Ok(None),
        };
        let bytes = match name == MCP_CONFIG && text.trim_start().starts_with('{') {
            true => Ok(text.into_bytes()),
            false => fs::read(&text).map_err(|error| format!("cannot read {text}: {error}")),
        };
        let manifest = bytes.and_then(|bytes| Self::parse(&bytes));
        let manifest = manifest.map_err(|rule| Wrong { name, rule })?;
        Ok(Some(Given { name, manifest }))
    }

    /// Adds the servers and agents to those of a configuration.
    ///
    /// # Errors
    /// A command is not allowed, or a name is in the configuration, too.
    pub fn add_to(&self, config: &mut Config, allowed: Option<&[String]>) -> Result<(), String> {
        for (name, server) in &self.mcp_servers {
            let Command { command, args, env } = server;
            if !allowed.is_none_or(|allowed| allows(allowed, command)) {
                return Err(format!(
                    "the manifest's server {name} runs {command}, which {MCP_ALLOW_COMMANDS} does not allow"
                ));
            }
            if config.mcp.servers.iter().any(|known| known.name == *name) {
                return Err(format!(
                    "the manifest's server {name} is in the configuration, too"
                ));
            }
            let env = env.iter();
            let env = env.map(|(name, value)| (name.clone(), ToolSetting::Plain(value.clone())));
            let server = ToolServer::command(name, command, args.clone(), env.collect());
            config.mcp.servers.push(server);
        }
        for (name, Binding { server, tool }) in &self.delegate_agents {
            if config.mcp.agents.iter().any(|known| known.name == *name) {
                return Err(format!(
                    "the manifest's agent {name} is in the configuration, too"
                ));
            }
            config.mcp.agents.push(ToolAgent {
                name: name.clone(),
                server: server.clone(),
                tool: tool.clone(),
            });
        }
        config.awp.in_process.tools = true;
        Ok(())
    }
}

/// The commands of a list with commas.
#[must_use]
pub fn allowed_commands(list: &str) -> Vec<String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Whether a manifest may name a command: by its path, or by its file's name.
fn allows(allowed: &[String], command: &str) -> bool {
    let name = Path::new(command).file_name().and_then(|name| name.to_str());
    let name = name.map(|name| name.strip_suffix(".exe").unwrap_or(name));
    allowed
        .iter()
        .any(|allowed| allowed == command || Some(allowed.as_str()) == name)
}

/// Leaves what a variable of this host says of tools as it was before a manifest was added.
pub fn keep_tools(config: &mut Config, has_tools: bool, env: &dyn Fn(&str) -> Option<String>) {
    if env(TOOLS).is_some_and(|text| !text.is_empty()) {
        config.awp.in_process.tools = has_tools;
    }
}

/// Adds the manifest that the environment names.
pub(crate) fn add_from(config: &mut Config, env: &dyn Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
    let wrong = |name: &str, rule: String| {
        Err(ConfigError::Setting {
            key: "mcp.servers".to_owned(),
            source_name: format!("the environment variable {name}"),
            rule,
        })
    };
    let has_tools = config.awp.in_process.tools;
    let allowed = env(MCP_ALLOW_COMMANDS).filter(|list| !list.is_empty());
    let allowed = allowed.as_deref().map(allowed_commands);
    match (ToolManifest::of_environment(env), &allowed) {
        (Err(Wrong { name, rule }), _) => wrong(name, rule),
        (Ok(Some(Given { name, manifest })), allowed) => match manifest.add_to(config, allowed.as_deref()) {
            Ok(()) => {
                keep_tools(config, has_tools, env);
                Ok(())
            }
            Err(rule) => wrong(name, rule),
        },
        (Ok(None), Some(_)) => wrong(
            MCP_ALLOW_COMMANDS,
            "is for the commands of a manifest, and none is given; the commands of [[mcp.servers]] are the operator's own"
                .to_owned(),
        ),
        (Ok(None), None) => Ok(()),
    }
}
