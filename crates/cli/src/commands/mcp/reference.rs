//! The flags and variables of the Agent Workflow Protocol's reference server, as settings of ours.
//!
//! | theirs | ours |
//! | --- | --- |
//! | `--store memory\|sqlite`, `WORKFLOW_ENGINE_STORE` | `--store memory:` or `sqlite:PATH` |
//! | `--store-path`, `WORKFLOW_ENGINE_STORE_PATH` | the path of that |
//! | `--mcp-config`, `WORKFLOW_ENGINE_MCP_CONFIG`, `AGENT_WORKFLOW_MCP_MANIFEST` | `[[mcp.servers]]`, one for each of the manifest |
//! | `WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS` | the commands that a manifest may name |
//!
//! A variable counts only where neither a flag nor a variable of ours says something else.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use wopr_server::{
    Config,
    config::{MCP_ALLOW_COMMANDS, MCP_CONFIG, MCP_MANIFEST, ToolManifest, allowed_commands, keep_tools},
};

use crate::exit::{Exit, Failure};

const STORE: &str = "WORKFLOW_ENGINE_STORE";
const STORE_PATH: &str = "WORKFLOW_ENGINE_STORE_PATH";
/// All of them that `wopr serve` reads in another way.
pub(super) const VARIABLES: [&str; 5] = [STORE, STORE_PATH, MCP_CONFIG, MCP_MANIFEST, MCP_ALLOW_COMMANDS];
/// Those that are about manifests.
pub(super) const OF_MANIFESTS: [&str; 3] = [MCP_CONFIG, MCP_MANIFEST, MCP_ALLOW_COMMANDS];
/// The store of `sqlite` without a path.
const DATABASE: &str = "./wopr.db";

/// What was given in the reference's terms.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// `memory` or `sqlite`, from the flag or the variable.
    kind: Option<(String, &'static str)>,
    path: Option<(PathBuf, &'static str)>,
    manifest: Option<ToolManifest>,
    /// The commands that a manifest may name; all where absent.
    allowed: Option<Vec<String>>,
}

impl Given {
    pub(super) fn read(store: Option<&str>, path: Option<&Path>, manifest: Option<&Path>) -> Result<Self> {
        let variable = |name: &'static str| env::var(name).ok().filter(|value| !value.is_empty());
        Self::from(store, path, manifest, &variable)
    }

    fn from(
        store: Option<&str>,
        path: Option<&Path>,
        manifest: Option<&Path>,
        variable: &impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self> {
        let kind = match store {
            Some(kind @ ("memory" | "sqlite")) => Some((kind.to_owned(), "--store")),
            Some(_) => None,
            None => variable(STORE).map(|kind| (kind, STORE)),
        };
        if let Some((kind, name)) = &kind
            && !matches!(kind.as_str(), "memory" | "sqlite")
        {
            let text = format!("{name} is '{kind}', and must be memory or sqlite");
            return Err(Failure::new(Exit::Config, text).into());
        }
        let path = match path {
            Some(path) => Some((path.to_owned(), "--store-path")),
            // A store that a flag names in full needs no path.
            None if store.is_some() && kind.is_none() => None,
            None => variable(STORE_PATH).map(|path| (PathBuf::from(path), STORE_PATH)),
        };
        let manifest = match manifest {
            Some(path) => Some(read_manifest("--mcp-config", path)?),
            None => match (variable(MCP_CONFIG), variable(MCP_MANIFEST)) {
                (Some(text), _) if text.trim_start().starts_with('{') => {
                    Some(parse_manifest(MCP_CONFIG, text.as_bytes())?)
                }
                (Some(path), _) => Some(read_manifest(MCP_CONFIG, Path::new(&path))?),
                (None, Some(path)) => Some(read_manifest(MCP_MANIFEST, Path::new(&path))?),
                (None, None) => None,
            },
        };
        let allowed = variable(MCP_ALLOW_COMMANDS).as_deref().map(allowed_commands);
        Ok(Self {
            kind,
            path,
            manifest,
            allowed,
        })
    }

    /// The store as we write it. `is_set` says if a variable of ours names one.
    pub(super) fn store(&self, flag: Option<&str>, is_set: bool) -> Result<Option<String>> {
        let usage = |text: String| Err(Failure::new(Exit::Usage, text).into());
        let is_of_flag = |name: &str| name.starts_with("--");
        match (flag, &self.kind, &self.path) {
            (Some(url), None, Some((_, name))) => {
                usage(format!("{name} is for --store sqlite; --store is {url}"))
            }
            (Some(url), None, None) => Ok(Some(url.to_owned())),
            (_, Some((kind, _)), Some((_, name))) if kind == "memory" => {
                usage(format!("{name} is for a store on disk, and the store is memory"))
            }
            // What ours says counts more than a variable of theirs.
            (None, kind, path)
                if is_set
                    && kind.as_ref().is_none_or(|(_, name)| !is_of_flag(name))
                    && path.as_ref().is_none_or(|(_, name)| !is_of_flag(name)) =>
            {
                Ok(None)
            }
            (_, Some((kind, _)), None) if kind == "memory" => Ok(Some("memory:".to_owned())),
            (_, Some(_), None) => Ok(Some(format!("sqlite:{DATABASE}"))),
            (_, _, Some((path, _))) => Ok(Some(format!("sqlite:{}", path.display()))),
            (None, None, None) => Ok(None),
        }
    }

    /// Adds the servers of the manifest to those of the configuration.
    pub(super) fn add_servers(&self, config: &mut Config) -> Result<()> {
        let Some(manifest) = &self.manifest else {
            return match self.allowed {
                Some(_) => {
                    let text =
                        format!("{MCP_ALLOW_COMMANDS} is for the commands of a manifest, and none is given");
                    Err(Failure::new(Exit::Config, text)
                        .hint("the commands of [[mcp.servers]] are the operator's own; unset the variable")
                        .into())
                }
                None => Ok(()),
            };
        };
        let has_tools = config.awp.in_process.tools;
        let added = manifest.add_to(config, self.allowed.as_deref());
        added.map_err(|text| Failure::new(Exit::Config, text))?;
        keep_tools(config, has_tools, &|name| env::var(name).ok());
        let checked = config.check_tool_servers();
        checked.map_err(|error| Failure::cannot(Exit::Config, &error))?;
        Ok(())
    }
}

fn read_manifest(source: &str, path: &Path) -> Result<ToolManifest> {
    let bytes = fs::read(path).map_err(|error| {
        let text = format!("cannot read {}, which {source} names: {error}", path.display());
        Failure::new(Exit::of_reading(&error), text)
    })?;
    parse_manifest(source, &bytes)
}

fn parse_manifest(source: &str, bytes: &[u8]) -> Result<ToolManifest> {
    let parsed = ToolManifest::parse(bytes);
    let parsed = parsed.map_err(|why| {
        Failure::new(
            Exit::Config,
            format!("the manifest of {source} is invalid: {why}"),
        )
    });
    Ok(parsed?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(store: Option<&str>, path: Option<&str>, variables: &[(&str, &str)]) -> Result<Given> {
        let variable = |name: &'static str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Given::from(store, path.map(Path::new), None, &variable)
    }

    fn store(
        store: Option<&str>,
        path: Option<&str>,
        variables: &[(&str, &str)],
        is_set: bool,
    ) -> Option<String> {
        given(store, path, variables)
            .unwrap()
            .store(store, is_set)
            .unwrap()
    }

    #[test]
    fn stores_of_the_reference_are_ours() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(store(None, None, &[], false), None);
        assert_eq!(store(Some("memory"), None, &[], false), text("memory:"));
        assert_eq!(store(Some("sqlite"), None, &[], true), text("sqlite:./wopr.db"));
        assert_eq!(
            store(Some("sqlite"), Some("a.db"), &[], false),
            text("sqlite:a.db")
        );
        assert_eq!(store(None, Some("a.db"), &[], true), text("sqlite:a.db"));
        assert_eq!(
            store(Some("postgres://x"), None, &[(STORE, "memory")], false),
            text("postgres://x")
        );
        let theirs = [(STORE, "sqlite"), (STORE_PATH, "b.db")];
        assert_eq!(store(None, None, &theirs, false), text("sqlite:b.db"));
        assert_eq!(store(None, None, &theirs, true), None);
        assert_eq!(
            store(Some("sqlite:c.db"), None, &theirs, false),
            text("sqlite:c.db")
        );
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(given(None, None, &[(STORE, "redis")]).is_err());
        for (store, path) in [("memory", "a.db"), ("sqlite:b.db", "a.db")] {
            let given = given(Some(store), Some(path), &[]).unwrap();
            assert!(given.store(Some(store), false).is_err(), "{store}");
        }
    }

    #[test]
    fn manifests_become_servers_if_their_commands_are_allowed() {
        let inline =
            r#"{"mcpServers": {"files": {"command": "/usr/bin/node", "args": ["x.js"], "env": {"A": "b"}}}}"#;
        let servers = |allow: &[(&str, &str)]| {
            let mut variables = vec![(MCP_CONFIG, inline)];
            variables.extend(allow);
            let mut config = Config::default();
            given(None, None, &variables)?.add_servers(&mut config)?;
            anyhow::Ok(config.mcp.servers)
        };
        let made = servers(&[]).unwrap();
        assert_eq!(made.len(), 1);
        assert_eq!(
            (made[0].name.as_str(), made[0].command.as_deref()),
            ("files", Some("/usr/bin/node"))
        );
        assert!(servers(&[(MCP_ALLOW_COMMANDS, "npx, node")]).is_ok());
        assert!(servers(&[(MCP_ALLOW_COMMANDS, "/usr/bin/node")]).is_ok());
        assert!(servers(&[(MCP_ALLOW_COMMANDS, "npx")]).is_err());
    }

    #[test]
    fn manifests_that_mean_more_than_we_do_are_refused() {
        for (text, named) in [
            ("{", "invalid"),
            (r#"{"mcpServers": {}}"#, "mcpServers"),
            (r#"{"mcpServers": {"a": {"command": "x", "url": "y"}}}"#, "url"),
            (
                r#"{"mcpServers": {"a": {"command": "x"}}, "delegateAgents": {"b": {"server": "a"}}}"#,
                "tool",
            ),
        ] {
            let error = given(None, None, &[(MCP_CONFIG, text)]).unwrap_err();
            assert!(error.to_string().contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn agents_of_a_manifest_are_tools_of_its_servers() {
        let made = |server: &str| {
            let agents = serde_json::json!({ "b": { "server": server, "tool": "t" } });
            let manifest =
                serde_json::json!({ "mcpServers": { "a": { "command": "x" } }, "delegateAgents": agents });
            let mut config = Config::default();
            given(None, None, &[(MCP_CONFIG, &manifest.to_string())])?.add_servers(&mut config)?;
            anyhow::Ok(config.mcp.agents)
        };
        let agents = made("a").unwrap();
        assert_eq!(
            (&*agents[0].name, &*agents[0].server, &*agents[0].tool),
            ("b", "a", "t")
        );
        assert!(made("unknown").is_err());
    }
}
