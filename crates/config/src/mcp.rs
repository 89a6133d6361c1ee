//! The MCP servers whose tools workflows may call, and the host as an MCP server itself.
//!
//! The list of servers is what may be run and reached: a workflow names a server of it, and nothing else.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use url::Url;
use wopr_connect::MAX_TOOL_SERVERS;
use wopr_core::TenantId;

use super::{Config, ConfigError, Period, name_problem};

/// The server that a workflow calls if it names none.
pub const DEFAULT_TOOL_SERVER: &str = "default";
/// Most arguments and most variables of a command, and most tools in a list.
const MAX_LISTED: usize = 256;
/// Most agents that are tools.
const MAX_AGENTS: usize = 256;
/// The longest time limit of a call.
const MAX_TIMEOUT: Duration = Duration::from_secs(600);

/// The longest that a call of a client may wait: clients give up after a minute or so.
const MAX_CALL_WAIT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mcp {
    pub servers: Vec<ToolServer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<ToolAgent>,
    /// How long a call of a client of this host waits for a run.
    pub call_wait: Period,
    /// Offers clients every public workflow as a tool of its own.
    pub workflow_tools: bool,
}

impl Default for Mcp {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            agents: Vec::new(),
            call_wait: Period::from_secs(25),
            workflow_tools: false,
        }
    }
}

/// An agent that is a tool: a call of the agent is one call of the tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolAgent {
    /// The `agent_id` of delegates.
    pub name: String,
    /// The name of one of the servers.
    pub server: String,
    pub tool: String,
}

impl Config {
    /// Checks the servers, and that their secrets have names.
    ///
    /// # Errors
    /// Names the first setting that is invalid.
    pub fn check_tool_servers(&self) -> Result<(), ConfigError> {
        let invalid = |key: String, rule: &str| {
            Err(ConfigError::Invalid {
                key,
                rule: rule.to_owned(),
            })
        };
        if self.mcp.call_wait.as_duration() > MAX_CALL_WAIT {
            return invalid("mcp.call_wait".to_owned(), "must be at most 300s");
        }
        let servers = &self.mcp.servers;
        if servers.len() > MAX_TOOL_SERVERS {
            return invalid(
                "mcp.servers".to_owned(),
                &format!("must be {MAX_TOOL_SERVERS} servers at most"),
            );
        }
        for (index, server) in servers.iter().enumerate() {
            let at = |member: &str| format!("mcp.servers[{index}].{member}");
            if let Some((member, rule)) = server.problem() {
                return invalid(at(member), rule);
            }
            if servers[..index].iter().any(|other| other.name == server.name) {
                return invalid(at("name"), "must be unique");
            }
            let named = |name: &str| self.secrets.named.iter().find(|secret| secret.name == name);
            if let Some((member, _)) = server.secrets().find(|(_, name)| named(name).is_none()) {
                return invalid(at(member), "must be the name of one of secrets.named");
            }
            // All tenants share its process or session.
            let is_stored = |name: &str| named(name).is_some_and(|secret| secret.stored);
            if let Some((member, _)) = server.secrets().find(|(_, name)| is_stored(name)) {
                return invalid(at(member), "must not be a secret that each tenant sets");
            }
        }
        let agents = &self.mcp.agents;
        if agents.len() > MAX_AGENTS {
            return invalid(
                "mcp.agents".to_owned(),
                &format!("must be {MAX_AGENTS} agents at most"),
            );
        }
        for (index, agent) in agents.iter().enumerate() {
            let at = |member: &str| format!("mcp.agents[{index}].{member}");
            if agent.name.is_empty() || agent.name.len() > 256 || agent.name.chars().any(char::is_control) {
                return invalid(at("name"), "must be 1 to 256 bytes without control characters");
            }
            if agents[..index].iter().any(|other| other.name == agent.name) {
                return invalid(at("name"), "must be unique");
            }
            let Some(server) = servers.iter().find(|server| server.name == agent.server) else {
                return invalid(at("server"), "must be the name of one of mcp.servers");
            };
            if agent.tool.is_empty() || !(server.tools.is_empty() || server.tools.contains(&agent.tool)) {
                return invalid(at("tool"), "must be a tool that the server may be called for");
            }
        }
        Ok(())
    }
}

/// A server: a command of this machine, or an address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolServer {
    /// The name by which workflows find it.
    pub name: String,
    /// The program to run. It speaks on its standard input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// All that the program sees of an environment, beside `PATH`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, ToolSetting>,
    /// Where it is served by streamable HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Url>,
    /// The name of the secret that is its credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The header that carries it; `Authorization`, as a bearer token, where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The tenants that may use it; all where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantId>,
    /// The tools that may be called; all where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Time limit of a call whose node has none.
    #[serde(default = "timeout")]
    pub timeout: Period,
}

fn timeout() -> Period {
    Period::from_secs(60)
}

/// The value of an environment variable: a text, or a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ToolSetting {
    Plain(String),
    Secret(SecretSetting),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretSetting {
    /// The name of the secret.
    pub secret: String,
}

impl ToolServer {
    /// A server at an address, without a credential.
    #[must_use]
    pub fn at(name: &str, url: Url) -> Self {
        Self {
            name: name.to_owned(),
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            url: Some(url),
            secret: None,
            header: None,
            tenants: Vec::new(),
            tools: Vec::new(),
            timeout: timeout(),
        }
    }

    /// A program of this machine.
    #[must_use]
    pub fn command(name: &str, command: &str, args: Vec<String>, env: BTreeMap<String, ToolSetting>) -> Self {
        Self {
            name: name.to_owned(),
            command: Some(command.to_owned()),
            args,
            env,
            url: None,
            secret: None,
            header: None,
            tenants: Vec::new(),
            tools: Vec::new(),
            timeout: timeout(),
        }
    }

    /// The names of its secrets, each with the member that names it.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let env = self.env.values().filter_map(|value| match value {
            ToolSetting::Secret(named) => Some(("env", named.secret.as_str())),
            ToolSetting::Plain(_) => None,
        });
        self.secret
            .iter()
            .map(|name| ("secret", name.as_str()))
            .chain(env)
    }

    /// The first member that is wrong, and its rule.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if let Some(rule) = name_problem(&self.name) {
            return Some(("name", rule));
        }
        match (&self.command, &self.url) {
            (None, None) => return Some(("command", "must be there, or url in its place")),
            (Some(_), Some(_)) => return Some(("url", "must not be there beside command")),
            (Some(command), None) => {
                if command.is_empty() || command.contains('\0') {
                    return Some(("command", "must be the name or the path of a program"));
                }
                if self.secret.is_some() || self.header.is_some() {
                    return Some(("secret", "is for servers with a url; a command has env"));
                }
            }
            (None, Some(url)) => {
                let is_plain =
                    url.fragment().is_none() && url.password().is_none() && url.username().is_empty();
                if !matches!(url.scheme(), "http" | "https") || !is_plain {
                    return Some(("url", "must be http or https, without credentials and fragment"));
                }
                if !self.args.is_empty() || !self.env.is_empty() {
                    return Some(("args", "and env are for servers with a command"));
                }
            }
        }
        if self.args.len() > MAX_LISTED || self.args.iter().any(|arg| arg.contains('\0')) {
            return Some(("args", "must be 256 texts at most, without zero bytes"));
        }
        let is_variable = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
        let is_value = |value: &ToolSetting| match value {
            ToolSetting::Plain(text) => !text.contains('\0'),
            ToolSetting::Secret(_) => true,
        };
        if self.env.len() > MAX_LISTED
            || !self.env.keys().all(is_variable)
            || !self.env.values().all(is_value)
        {
            return Some(("env", "must be 256 variables at most, without zero bytes"));
        }
        if let Some(header) = &self.header {
            if self.secret.is_none() {
                return Some(("header", "needs a secret"));
            }
            let name = http::HeaderName::from_bytes(header.as_bytes());
            let is_own = |name: http::HeaderName| {
                ![
                    "host",
                    "content-length",
                    "connection",
                    "transfer-encoding",
                    "accept",
                    "content-type",
                ]
                .contains(&name.as_str())
                    && !name.as_str().starts_with("mcp-")
            };
            if !name.is_ok_and(is_own) {
                return Some((
                    "header",
                    "must be the name of a header that this host does not set itself",
                ));
            }
        }
        if self.tools.len() > MAX_LISTED || self.tools.iter().any(String::is_empty) {
            return Some(("tools", "must be 256 names at most, none of them empty"));
        }
        if self.timeout.as_duration().is_zero() || self.timeout.as_duration() > MAX_TIMEOUT {
            return Some(("timeout", "must be more than 0 and at most 10m"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check_tool_servers().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn servers_are_commands_or_addresses() {
        let config = read(
            "[[mcp.servers]]\nname = \"files\"\ncommand = \"files\"\nargs = [\"/srv\"]\n\
             env = { LEVEL = \"1\", TOKEN = { secret = \"s\" } }\ntools = [\"read\"]\n\
             [[mcp.servers]]\nname = \"web\"\nurl = \"https://example.com/mcp\"\nsecret = \"s\"\nheader = \"x-api-key\"\n\
             timeout = \"5m\"\n[[secrets.named]]\nname = \"s\"\nenv = \"S\"\n",
        );
        let servers = config.unwrap().mcp.servers;
        assert_eq!(servers[0].timeout, Period::from_secs(60));
        assert_eq!(servers[1].timeout, Period::from_secs(300));
        assert_eq!(
            servers[0].env["TOKEN"],
            ToolSetting::Secret(SecretSetting {
                secret: "s".to_owned()
            })
        );
    }

    #[test]
    fn wrong_servers_are_refused_by_member() {
        for (members, said) in [
            ("", "mcp.servers[0].command: must be there, or url"),
            (
                "command = \"a\"\nurl = \"https://a\"",
                "mcp.servers[0].url: must not be there",
            ),
            ("command = \"\"", "mcp.servers[0].command: must be the name"),
            (
                "command = \"a\"\nsecret = \"s\"",
                "mcp.servers[0].secret: is for servers with a url",
            ),
            ("url = \"ftp://a\"", "mcp.servers[0].url: must be http or https"),
            (
                "url = \"https://u:p@a\"",
                "mcp.servers[0].url: must be http or https",
            ),
            (
                "url = \"https://a\"\nargs = [\"x\"]",
                "mcp.servers[0].args: and env are for",
            ),
            (
                "url = \"https://a\"\nheader = \"x\"",
                "mcp.servers[0].header: needs a secret",
            ),
            (
                "url = \"https://a\"\nsecret = \"s\"\nheader = \"host\"",
                "mcp.servers[0].header: must be",
            ),
            (
                "url = \"https://a\"\nsecret = \"nobody\"",
                "mcp.servers[0].secret: must be the name",
            ),
            (
                "command = \"a\"\nenv = { A = { secret = \"nobody\" } }",
                "mcp.servers[0].env: must be the name",
            ),
            ("command = \"a\"\ntools = [\"\"]", "mcp.servers[0].tools: must be"),
            (
                "command = \"a\"\ntimeout = \"11m\"",
                "mcp.servers[0].timeout: must be more than 0",
            ),
            ("command = \"a\"\nshell = true", "unknown field `shell`"),
            (
                "command = \"a\"\nenv = { A = { file = \"x\" } }",
                "did not match any variant",
            ),
        ] {
            let named = "[[secrets.named]]\nname = \"s\"\nenv = \"S\"\n";
            let refused = read(&format!("{named}[[mcp.servers]]\nname = \"m\"\n{members}\n")).unwrap_err();
            assert!(
                refused
                    .replace('\n', " ")
                    .contains(said.split_once(": ").map_or(said, |(key, _)| key)),
                "{refused}"
            );
            assert!(
                refused.contains(said.split_once(": ").map_or(said, |(_, rule)| rule)),
                "{refused}"
            );
        }
        let stored = "[[secrets.named]]\nname = \"s\"\nstored = true\n\
                      [[mcp.servers]]\nname = \"m\"\nurl = \"https://a\"\nsecret = \"s\"\n";
        assert!(read(stored).unwrap_err().contains("each tenant sets"));
        let twice = "[[mcp.servers]]\nname = \"m\"\ncommand = \"a\"\n".repeat(2);
        assert!(read(&twice).unwrap_err().contains("mcp.servers[1].name"));
        let server = "[[mcp.servers]]\nname = \"m\"\ncommand = \"a\"\ntools = [\"t\"]\n";
        for (agent, member) in [
            ("name = \"\"\nserver = \"m\"\ntool = \"t\"", "mcp.agents[0].name"),
            (
                "name = \"a\"\nserver = \"n\"\ntool = \"t\"",
                "mcp.agents[0].server",
            ),
            ("name = \"a\"\nserver = \"m\"\ntool = \"u\"", "mcp.agents[0].tool"),
        ] {
            let refused = read(&format!("{server}[[mcp.agents]]\n{agent}\n")).unwrap_err();
            assert!(refused.contains(member), "{refused}");
        }
        let agent = "[[mcp.agents]]\nname = \"a\"\nserver = \"m\"\ntool = \"t\"\n";
        assert!(read(&format!("{server}{agent}")).is_ok());
        assert!(
            read(&format!("{server}{agent}{agent}"))
                .unwrap_err()
                .contains("mcp.agents[1].name")
        );
        let many: String = (0..65)
            .map(|n| format!("[[mcp.servers]]\nname = \"m{n}\"\ncommand = \"a\"\n"))
            .collect();
        assert!(read(&many).unwrap_err().contains("64 servers at most"));
    }
}
