//! `wopr tools`: lists the tools of the configured MCP servers, and calls one, without a run.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use wopr_connect::{
    Tool, ToolServers,
    egress::{Gate, Limits, Policy},
};
use wopr_core::ToolRequest;
use wopr_server::{Config, config::CidrText, tool_servers};

use crate::{
    args::Format,
    exit::{Exit, Failure},
    host::HostArgs,
    output::{self, Paint, plain},
    signals::Signals,
};

/// List the tools of MCP servers, and call one.
///
/// The servers are those of the configuration, [mcp.servers], as `serve` would use them with the same flags. Nothing
/// is recorded: a call that a run makes is a node core.mcp.toolCall.
#[derive(Debug, Args)]
pub(crate) struct Tools {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the tools that workflows may call
    List {
        /// Only the tools of this server
        #[arg(value_name = "SERVER")]
        server: Option<String>,
        #[command(flatten)]
        host: Box<HostArgs>,
        #[command(flatten)]
        format: Format,
    },
    /// Call a tool and print what it gives
    Call {
        /// The server
        #[arg(value_name = "SERVER")]
        server: String,
        /// The tool
        #[arg(value_name = "TOOL")]
        tool: String,
        /// An argument: name=text, or name:=JSON; may be given several times
        #[arg(long = "argument", short = 'a', value_name = "NAME=VALUE")]
        argument: Vec<String>,
        /// All arguments as a JSON object
        #[arg(long, value_name = "JSON")]
        arguments: Option<String>,
        #[command(flatten)]
        host: Box<HostArgs>,
        #[command(flatten)]
        format: Format,
    },
}

impl Tools {
    pub(crate) async fn run(self) -> Result<Exit> {
        let mut signals = Signals::catch()?;
        // What was begun is dropped, and the processes of tool servers end with it.
        tokio::select! {
            done = self.verb.run() => done,
            () = signals.next() => Ok(Exit::Interrupted),
        }
    }
}

impl Verb {
    async fn run(self) -> Result<Exit> {
        match self {
            Verb::List { server, host, format } => list(&host.load()?, server.as_deref(), format).await,
            Verb::Call {
                server,
                tool,
                argument,
                arguments,
                host,
                format,
            } => {
                let request = ToolRequest {
                    server,
                    tool,
                    arguments: read(&argument, arguments.as_deref())?,
                    retry_safe: None,
                    timeout_ms: None,
                };
                call(&host.load()?, &request, format).await
            }
        }
    }
}

fn servers(config: &Config) -> ToolServers {
    let policy = Policy {
        allow: config.egress.allow.iter().map(CidrText::cidr).collect(),
    };
    ToolServers::new(&Gate::new(policy, Limits::default()), tool_servers(config))
}

fn read(pairs: &[String], all: Option<&str>) -> Result<Map<String, Value>> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let mut arguments = match all.map(serde_json::from_str) {
        None => Map::new(),
        Some(Ok(Value::Object(arguments))) => arguments,
        Some(Ok(_)) => return Err(usage("--arguments is not a JSON object".to_owned()).into()),
        Some(Err(error)) => return Err(usage(format!("--arguments is not JSON: {error}")).into()),
    };
    for text in pairs {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| usage(format!("--argument {text} is not of the form name=value")))?;
        let (name, value) = match name.strip_suffix(':') {
            Some(name) => {
                let value = serde_json::from_str(value);
                let value =
                    value.map_err(|error| usage(format!("--argument {name}:= is not JSON: {error}")))?;
                (name, value)
            }
            None => (name, Value::from(value)),
        };
        arguments.insert(name.to_owned(), value);
    }
    Ok(arguments)
}

async fn list(config: &Config, only: Option<&str>, format: Format) -> Result<Exit> {
    let servers = servers(config);
    let names: Vec<_> = servers
        .names()
        .filter(|name| only.is_none_or(|only| only == *name))
        .collect();
    if let Some(only) = only
        && names.is_empty()
    {
        return Err(unknown(only).into());
    }
    let mut exit = Exit::Ok;
    let mut shown = Vec::new();
    for name in names {
        match servers.list(name).await {
            Ok(tools) if format.json => shown.push(json!({
                "server": name,
                "tools": tools.iter().map(document).collect::<Vec<_>>(),
            })),
            Ok(tools) => print(name, &tools)?,
            Err(error) => {
                exit = Exit::Failed;
                match format.json {
                    true => shown.push(json!({ "server": name, "error": error })),
                    false => output::line(format!(
                        "{}  {}",
                        Paint::stdout().bold(name),
                        Paint::stdout().red(error)
                    ))?,
                }
            }
        }
    }
    if format.json {
        output::json(&json!({ "servers": shown }))?;
    } else if config.mcp.servers.is_empty() {
        output::note("no MCP server is configured: [[mcp.servers]] or WOPR_MCP_SERVER_URL names one")?;
    }
    Ok(exit)
}

fn print(server: &str, tools: &[Tool]) -> Result<()> {
    let paint = Paint::stdout();
    output::line(paint.bold(server))?;
    for tool in tools {
        let about = tool.description.as_deref().unwrap_or_default();
        let first = about.lines().next().unwrap_or_default();
        let again = if tool.is_repeatable {
            "  (may be repeated)"
        } else {
            ""
        };
        output::line(format!(
            "  {}{again}  {}",
            plain(&tool.name),
            plain(&first.chars().take(80).collect::<String>())
        ))?;
        let required = tool.schema.get("required").and_then(Value::as_array);
        let properties = tool.schema.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            let is_required = required.is_some_and(|names| names.iter().any(|known| known == name));
            let kind = schema.get("type").and_then(Value::as_str).unwrap_or("any");
            let mark = if is_required { "" } else { ", optional" };
            output::line(paint.dim(format!("      {}: {}{mark}", plain(name), plain(kind))))?;
        }
    }
    Ok(())
}

fn document(tool: &Tool) -> Value {
    json!({
        "name": tool.name,
        "description": tool.description,
        "inputSchema": *tool.schema,
        "mayBeRepeated": tool.is_repeatable,
    })
}

async fn call(config: &Config, request: &ToolRequest, format: Format) -> Result<Exit> {
    let servers = servers(config);
    if !servers.names().any(|name| name == request.server) {
        return Err(unknown(&request.server).into());
    }
    match servers.call_alone(request).await {
        Ok(outputs) if format.json => output::json(&outputs)?,
        Ok(outputs) => {
            let text = outputs.get("text").and_then(Value::as_str).unwrap_or_default();
            let has_parts = |content: &&Value| content.as_array().is_some_and(|parts| !parts.is_empty());
            let other = outputs.get("structuredContent");
            let other = other.or_else(|| outputs.get("content").filter(has_parts));
            match (text.is_empty(), other) {
                (true, Some(other)) => output::json(other)?,
                _ => output::line(plain(text))?,
            }
        }
        Err((code, message)) => {
            if format.json {
                output::json(&json!({ "error": { "code": code, "message": message } }))?;
                return Ok(Exit::Failed);
            }
            return Err(Failure::new(Exit::Failed, format!("{code}: {}", plain(&message))).into());
        }
    }
    Ok(Exit::Ok)
}

fn unknown(server: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("no MCP server is named '{server}'"))
        .hint("[[mcp.servers]] of the configuration lists them")
}
