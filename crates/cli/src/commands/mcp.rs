//! `wopr mcp`: a host as an MCP server on standard input and output.

mod forward;
mod reference;
mod shared;

use std::{env, io, os::fd::AsFd, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::fs::File;
use wopr_server::{
    Config, Host,
    config::{ENV_KEY_ID, StoreUrl},
    mcp::lines::{Local, converse},
};

use self::{
    forward::Remote,
    shared::{Keeper, Terms},
};
use crate::{
    args::Authorities,
    client::Client,
    exit::{Exit, Failure},
    host::{self, HostArgs},
    signals::Signals,
};

/// The store of a host that is given none.
const DEFAULT_STORE: &str = "sqlite:./wopr.db";

/// Serve runs and workflows to an MCP client, such as an editor or an agent, on standard input and output.
///
/// Runs a host in this process. Other processes of `wopr mcp` on the same SQLite database forward to it, and one of them
/// takes over when this process ends. If WOPR_SERVER names a server, or a `wopr serve` or `wopr dev` has the store already,
/// forwards to that host instead, with the key of WOPR_API_KEY. Standard output carries messages only; logs go to standard
/// error. Ends when standard input does, and on SIGTERM. What was started goes on in the process that takes over, at the
/// next start, or on the server.
///
/// The flags and variables of the Agent Workflow Protocol's reference server mean the same here: WORKFLOW_ENGINE_STORE,
/// WORKFLOW_ENGINE_STORE_PATH, WORKFLOW_ENGINE_MCP_CONFIG, AGENT_WORKFLOW_MCP_MANIFEST, WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS.
#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// The server to forward to [env: WOPR_SERVER, unless a flag gives a store, workflows or a configuration, or WOPR_CONFIG]
    #[arg(long, value_name = "URL", conflicts_with_all = ["store", "store_path", "workflows", "config", "mcp_config", "set"])]
    server: Option<String>,

    /// The API key of the server. A host in this process runs everything as the principal of this key
    #[arg(long, value_name = "KEY", env = "WOPR_API_KEY", hide_env_values = true)]
    key: Option<String>,

    #[command(flatten)]
    authorities: Authorities,

    /// Where runs are kept: sqlite:PATH, memory:, postgres://…, or sqlite or memory [default: sqlite:./wopr.db] [env: WOPR_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// The file of --store sqlite
    #[arg(long, value_name = "FILE")]
    store_path: Option<PathBuf>,

    /// A folder of workflow definitions; may be given several times [env: WOPR_WORKFLOWS]
    #[arg(long, value_name = "DIR")]
    workflows: Vec<PathBuf>,

    /// A configuration file, such as wopr.toml
    #[arg(long, value_name = "FILE", env = "WOPR_CONFIG")]
    config: Option<PathBuf>,

    /// A manifest of MCP servers whose tools workflows may call, beside those of the configuration
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,

    /// The format of the logs on standard error: text or json [default: text] [env: WOPR_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// What is logged: a level, or directives such as info,wopr::access=debug [default: warn] [env: WOPR_LOG]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Any other setting by its name in the file, such as a2a.private_tasks=true; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Mcp {
    pub(crate) async fn run(self) -> Result<Exit> {
        let signals = Signals::catch()?;
        let given = reference::Given::read(
            self.store.as_deref(),
            self.store_path.as_deref(),
            self.mcp_config.as_deref(),
        )?;
        // Variables of the reference count less than one of ours.
        let is_here = self.store.is_some()
            || self.store_path.is_some()
            || !self.workflows.is_empty()
            || self.config.is_some()
            || self.mcp_config.is_some()
            || !self.set.is_empty();
        let server = match (&self.server, is_here) {
            (Some(server), _) => Some(server.clone()),
            (None, false) => env::var("WOPR_SERVER").ok().filter(|url| !url.is_empty()),
            (None, true) => None,
        };
        let config = self.configured(&given)?;
        host::init_logs(&config)?;
        match server {
            Some(server) => self.forward(&server, &config, signals).await,
            None => self.serve(config, signals).await,
        }
    }

    /// The configuration of a host in this process. Its logs are also those of a client.
    fn configured(&self, given: &reference::Given) -> Result<Config> {
        let is_set = |variable: &str| env::var_os(variable).is_some_and(|value| !value.is_empty());
        let mut args = HostArgs {
            store: given.store(
                self.store.as_deref(),
                is_set("WOPR_STORE") || self.config.is_some(),
            )?,
            workflows: self.workflows.clone(),
            config: self.config.clone(),
            log_format: self.log_format.clone(),
            log_level: self.log_level.clone(),
            set: self.set.clone(),
            ..HostArgs::default()
        };
        // Editors show standard error to their users.
        if args.log_level.is_none() && args.config.is_none() && !is_set("WOPR_LOG") {
            args.log_level = Some("warn".to_owned());
        }
        if args.store.is_none() && args.config.is_none() && !is_set("WOPR_STORE") {
            args.store = Some(DEFAULT_STORE.to_owned());
        }
        let mut config = args.load_without(&reference::VARIABLES)?;
        given.add_servers(&mut config)?;
        if let Some(key) = &self.key {
            config.auth.keys.retain(|known| known.id != ENV_KEY_ID);
            config.auth.keys.push(host::full_key(ENV_KEY_ID, key)?);
        }
        Ok(config)
    }

    async fn serve(&self, config: Config, signals: Signals) -> Result<Exit> {
        match &config.store {
            StoreUrl::Sqlite(database) => {
                let database = database.clone();
                self.share(config, database, signals).await
            }
            // PostgreSQL serves several processes, and no other process can use the memory of this one.
            StoreUrl::Memory | StoreUrl::Postgres(_) => self.serve_alone(config, signals).await,
        }
    }

    /// Runs a host that no other process reaches.
    async fn serve_alone(&self, mut config: Config, mut signals: Signals) -> Result<Exit> {
        let key = match &self.key {
            Some(key) => key.clone(),
            None => {
                // Known to nobody else: there is no listener.
                let secret = host::new_secret()?;
                config.auth.keys.push(host::full_key("mcp", &secret)?);
                secret
            }
        };
        let opened = tokio::select! {
            opened = Host::open_when_reached(config) => opened,
            () = signals.next() => return Ok(Exit::Ok),
        };
        let host = opened.map_err(|error| host::start_failure(&error))?;
        let limit = host.config().server.max_body_bytes;
        let local = Local::new(Arc::clone(&host), &key).await;
        let local = local.map_err(|error| Failure::cannot(Exit::Failed, &error))?;
        let talked = converse(Arc::new(local), standard()?, limit, signals.next()).await;
        host.finish().await;
        talked.context("read standard input")?;
        Ok(Exit::Ok)
    }

    /// Runs the host of a database, or forwards to the process that has it.
    async fn share(&self, config: Config, database: PathBuf, mut signals: Signals) -> Result<Exit> {
        let limit = config.server.max_body_bytes;
        let standard = standard()?;
        let mut keeper = Keeper::new(Terms {
            config,
            database,
            key: self.key.clone(),
            trust: self.authorities.read()?,
            unused: self.for_a_host(),
        })?;
        tokio::select! {
            settled = keeper.settle() => settled?,
            () = signals.next() => return Ok(Exit::Ok),
        }
        let shared = Arc::new(keeper.shared());
        let talked = tokio::select! {
            talked = converse(shared, standard, limit, signals.next()) => talked,
            never = keeper.keep() => match never {},
        };
        keeper.close().await;
        talked.context("read standard input")?;
        Ok(Exit::Ok)
    }

    /// What was given for a host in this process. The store and the logs are not among it: they tell where to forward to,
    /// and are this process's own.
    fn for_a_host(&self) -> Vec<&'static str> {
        let is_set = |variable: &&str| env::var_os(variable).is_some_and(|value| !value.is_empty());
        let flags = [
            ("--workflows", !self.workflows.is_empty()),
            ("--config (WOPR_CONFIG)", self.config.is_some()),
            ("--set", !self.set.is_empty()),
            ("--mcp-config", self.mcp_config.is_some()),
        ];
        let flags = flags
            .into_iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(flag, _)| flag);
        let variables = ["WOPR_WORKFLOWS"].into_iter().chain(reference::OF_MANIFESTS);
        flags.chain(variables.filter(is_set)).collect()
    }

    async fn forward(&self, server: &str, config: &Config, mut signals: Signals) -> Result<Exit> {
        let unused = self.for_a_host();
        if !unused.is_empty() {
            warn_of_unused(server, &unused.join(", "));
        }
        let client = Client::at(server, self.key.clone(), &self.authorities.read()?)?;
        let remote = Arc::new(Remote::new(client, Arc::default()));
        let limit = config.server.max_body_bytes;
        let talked = converse(remote, standard()?, limit, signals.next()).await;
        talked.context("read standard input")?;
        Ok(Exit::Ok)
    }
}

fn warn_of_unused(server: &str, settings: &str) {
    tracing::warn!(
        server,
        settings,
        "settings without effect: another host serves this client; give them to that host"
    );
}

/// Standard input and output, without the buffers of the standard library.
fn standard() -> Result<(File, File)> {
    let file = |fd: &dyn AsFd| -> io::Result<File> {
        let owned = fd.as_fd().try_clone_to_owned()?;
        Ok(File::from_std(owned.into()))
    };
    let open = || Ok((file(&io::stdin())?, file(&io::stdout())?));
    open().map_err(|error: io::Error| anyhow::Error::new(error).context("open standard input and output"))
}
