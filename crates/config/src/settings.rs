//! The table of settings: name, environment variable and parser.

use std::{env, net::SocketAddr, path::PathBuf, str::FromStr};

use wopr_core::{TenantId, WorkflowId};

use super::{
    AgentPeer, Config, DEFAULT_MODEL, DEFAULT_PEER, DEFAULT_TOOL_SERVER, Key, Listen, ModelProvider, Secret,
    SigningKey, StoreUrl, ToolServer, awp, manifest,
};
use wopr_app::Scopes;

/// A setting that flags and the environment can set.
#[derive(Clone, Copy)]
pub struct Setting {
    /// The name in the configuration file.
    pub key: &'static str,
    pub variable: &'static str,
    /// Parses and sets the value; an error states the rule for values.
    pub set: fn(&mut Config, &str) -> Result<(), String>,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

/// The tenant of `WOPR_API_KEY`.
pub fn default_tenant() -> TenantId {
    TenantId::parse("default").expect("the name of the default tenant holds")
}

/// Every setting except the list of keys; `WOPR_API_KEY` adds one key.
pub const SETTINGS: &[Setting] = &[
    setting("store", STORE, |c, t| put(&mut c.store, t)),
    setting("store", ENGINE_STORE_PATH, |c, t| {
        c.store = StoreUrl::Sqlite(PathBuf::from(t));
        Ok(())
    }),
    setting("store", ENGINE_STORE, |c, t| {
        match (t, &c.store) {
            ("memory", _) => c.store = StoreUrl::Memory,
            ("sqlite", StoreUrl::Sqlite(_)) => {}
            ("sqlite", StoreUrl::Memory | StoreUrl::Postgres(_)) => c.store = Config::default().store,
            _ => return Err("must be memory or sqlite".to_owned()),
        }
        Ok(())
    }),
    setting("workflows", "WOPR_WORKFLOWS", |c, t| {
        c.workflows = env::split_paths(t).collect();
        Ok(())
    }),
    setting("default_workflow", "WOPR_DEFAULT_WORKFLOW", |c, t| {
        c.default_workflow = Some(WorkflowId::parse(t).map_err(|error| error.to_string())?);
        Ok(())
    }),
    setting("conformance", "WOPR_CONFORMANCE", |c, t| {
        switch(&mut c.conformance, t)
    }),
    setting("conformance_open", "WOPR_CONFORMANCE_OPEN", |c, t| {
        switch(&mut c.conformance_open, t)
    }),
    setting("conformance_ledger", "WOPR_CONFORMANCE_LEDGER", |c, t| {
        c.conformance_ledger = Some(PathBuf::from(t));
        Ok(())
    }),
    setting("server.listen", "WOPR_LISTEN", |c, t| {
        put(&mut c.server.listen, t)
    }),
    setting("server.public_url", "WOPR_PUBLIC_URL", |c, t| {
        some(&mut c.server.public_url, t)
    }),
    setting("server.max_body_bytes", "WOPR_MAX_BODY_BYTES", |c, t| {
        number(&mut c.server.max_body_bytes, t)
    }),
    setting("server.request_timeout", "WOPR_REQUEST_TIMEOUT", |c, t| {
        put(&mut c.server.request_timeout, t)
    }),
    setting("server.sse_keepalive", "WOPR_SSE_KEEPALIVE", |c, t| {
        put(&mut c.server.sse_keepalive, t)
    }),
    setting("server.shutdown_grace", "WOPR_SHUTDOWN_GRACE", |c, t| {
        put(&mut c.server.shutdown_grace, t)
    }),
    setting("server.shutdown_delay", "WOPR_SHUTDOWN_DELAY", |c, t| {
        put(&mut c.server.shutdown_delay, t)
    }),
    setting("server.max_connections", "WOPR_MAX_CONNECTIONS", |c, t| {
        number(&mut c.server.max_connections, t)
    }),
    setting(
        "server.max_unauthenticated_per_address",
        "WOPR_MAX_UNAUTHENTICATED_PER_ADDRESS",
        |c, t| number(&mut c.server.max_unauthenticated_per_address, t),
    ),
    setting("server.cors_origins", "WOPR_CORS_ORIGINS", |c, t| {
        list(&mut c.server.cors_origins, t)
    }),
    setting(
        "limits.max_node_executions",
        "WOPR_MAX_NODE_EXECUTIONS",
        |c, t| number(&mut c.limits.max_node_executions, t),
    ),
    setting("limits.max_log_bytes", "WOPR_MAX_LOG_BYTES", |c, t| {
        number(&mut c.limits.max_log_bytes, t)
    }),
    setting("limits.max_descendants", "WOPR_MAX_DESCENDANTS", |c, t| {
        number(&mut c.limits.max_descendants, t)
    }),
    setting("limits.max_workflows", "WOPR_MAX_WORKFLOWS", |c, t| {
        number(&mut c.limits.max_workflows, t)
    }),
    setting("limits.max_workflow_bytes", "WOPR_MAX_WORKFLOW_BYTES", |c, t| {
        number(&mut c.limits.max_workflow_bytes, t)
    }),
    setting("limits.max_run_duration", "WOPR_MAX_RUN_DURATION", |c, t| {
        some(&mut c.limits.max_run_duration, t)
    }),
    setting("effects.lease", "WOPR_EFFECT_LEASE", |c, t| {
        put(&mut c.effects.lease, t)
    }),
    setting("workers.lease", "WOPR_WORKER_LEASE", |c, t| {
        put(&mut c.workers.lease, t)
    }),
    setting("workers.max_waiting", "WOPR_WORKERS_MAX_WAITING", |c, t| {
        number(&mut c.workers.max_waiting, t)
    }),
    setting(
        "workers.max_lost_leases",
        "WOPR_WORKERS_MAX_LOST_LEASES",
        |c, t| number(&mut c.workers.max_lost_leases, t),
    ),
    setting("workers.max_leased", "WOPR_WORKERS_MAX_LEASED", |c, t| {
        let most = t.parse().map_err(|_| "must be a whole number".to_owned())?;
        c.workers.max_leased = Some(most);
        Ok(())
    }),
    setting("workers.max_per_second", "WOPR_WORKERS_MAX_PER_SECOND", |c, t| {
        let rate = t.parse().map_err(|_| "must be a whole number".to_owned())?;
        c.workers.max_per_second = Some(rate);
        Ok(())
    }),
    setting("auth.keys", "WOPR_API_KEY", |c, t| {
        c.auth.keys.retain(|key| key.id != ENV_KEY_ID);
        c.auth.keys.push(Key {
            id: ENV_KEY_ID.to_owned(),
            secret: Some(Secret::new(t)),
            secret_sha256: None,
            tenant: default_tenant(),
            principal: None,
            scopes: Scopes::ALL,
            roles: Vec::new(),
            groups: Vec::new(),
        });
        Ok(())
    }),
    setting("auth.keys", "WORKFLOW_ENGINE_AUTH_TOKENS", |c, t| {
        c.auth.keys.extend(awp::keys_of_tokens(t)?);
        Ok(())
    }),
    setting("secrets.key_file", "WOPR_KEY_FILE", |c, t| {
        c.secrets.key_file = Some(PathBuf::from(t));
        Ok(())
    }),
    setting("secrets.master_key", "WOPR_MASTER_KEY", |c, t| {
        c.secrets.master_key = Some(Secret::new(t));
        Ok(())
    }),
    setting("secrets.replace_key", "WOPR_REPLACE_MASTER_KEY", |c, t| {
        switch(&mut c.secrets.replace_key, t)
    }),
    setting("models", "WOPR_MODEL_URL", |c, t| {
        let url = t
            .parse()
            .map_err(|error| format!("must be an address: {error}"))?;
        c.models.retain(|model| model.name != DEFAULT_MODEL);
        c.models.push(ModelProvider::new(DEFAULT_MODEL, url));
        Ok(())
    }),
    setting("models", "WOPR_MODEL_NAME", |c, t| {
        let default = c.models.iter_mut().find(|model| model.name == DEFAULT_MODEL);
        let default =
            default.ok_or("needs WOPR_MODEL_URL, or a provider of [[models]] that is named default")?;
        default.model = Some(t.to_owned());
        Ok(())
    }),
    setting("mcp.call_wait", "WOPR_MCP_CALL_WAIT", |c, t| {
        put(&mut c.mcp.call_wait, t)
    }),
    setting("mcp.workflow_tools", "WOPR_MCP_WORKFLOW_TOOLS", |c, t| {
        switch(&mut c.mcp.workflow_tools, t)
    }),
    setting("mcp.servers", "WOPR_MCP_SERVER_URL", |c, t| {
        let url = t
            .parse()
            .map_err(|error| format!("must be an address: {error}"))?;
        c.mcp.servers.retain(|server| server.name != DEFAULT_TOOL_SERVER);
        c.mcp.servers.push(ToolServer::at(DEFAULT_TOOL_SERVER, url));
        Ok(())
    }),
    setting("egress.allow", "WOPR_EGRESS_ALLOW", |c, t| {
        list(&mut c.egress.allow, t)
    }),
    setting("a2a.blocking_timeout", "WOPR_A2A_BLOCKING_TIMEOUT", |c, t| {
        put(&mut c.a2a.blocking_timeout, t)
    }),
    setting("a2a.private_tasks", "WOPR_A2A_PRIVATE_TASKS", |c, t| {
        switch(&mut c.a2a.private_tasks, t)
    }),
    setting("a2a.card_version", "WOPR_A2A_CARD_VERSION", |c, t| {
        put(&mut c.a2a.card_version, t)
    }),
    setting("a2a.error_profile", "WOPR_A2A_ERROR_PROFILE", |c, t| {
        put(&mut c.a2a.error_profile, t)
    }),
    setting("a2a.card_signing", "WOPR_A2A_CARD_SIGNING", |c, t| {
        list(&mut c.a2a.card_signing, t)
    }),
    setting("a2a.card_keys", "WOPR_A2A_CARD_KEYS", |c, t| {
        let numbers = t.split(',').map(|item| item.trim().parse());
        let numbers: Result<_, _> = numbers.collect();
        c.a2a.card_keys = numbers.map_err(|_| "must be whole numbers with commas between".to_owned())?;
        Ok(())
    }),
    setting("a2a.push_configs", "WOPR_A2A_PUSH_CONFIGS", |c, t| {
        number(&mut c.a2a.push_configs, t)
    }),
    setting("a2a.push_timeout", "WOPR_A2A_PUSH_TIMEOUT", |c, t| {
        put(&mut c.a2a.push_timeout, t)
    }),
    setting("a2a.push_give_up", "WOPR_A2A_PUSH_GIVE_UP", |c, t| {
        put(&mut c.a2a.push_give_up, t)
    }),
    setting("a2a.peers", DEFAULT_PEER_URL, |c, t| {
        let url = t
            .parse()
            .map_err(|error| format!("must be an address: {error}"))?;
        c.a2a.peers.retain(|peer| peer.name != DEFAULT_PEER);
        c.a2a.peers.push(AgentPeer::new(DEFAULT_PEER, url));
        Ok(())
    }),
    setting("a2a.peers", DELEGATE_CONFIG, |c, t| {
        let peer = AgentPeer::of_delegate(t)?;
        c.a2a.peers.retain(|peer| peer.name != DEFAULT_PEER);
        c.a2a.peers.push(peer);
        Ok(())
    }),
    setting("a2a.poll_interval", "WOPR_A2A_POLL_INTERVAL", |c, t| {
        some(&mut c.a2a.poll_interval, t)
    }),
    setting("awp.listen", "WORKFLOW_ENGINE_REST_PORT", |c, t| {
        let listen = match t.parse::<u16>() {
            Ok(port) => Listen(SocketAddr::from(([127, 0, 0, 1], port))),
            Err(_) => t
                .parse()
                .map_err(|rule| format!("must be a port, or an address with one: {rule}"))?,
        };
        c.awp.listen = Some(listen);
        Ok(())
    }),
    setting("awp.wait_budget", "WOPR_AWP_WAIT_BUDGET", |c, t| {
        put(&mut c.awp.wait_budget, t)
    }),
    setting(
        "awp.signing",
        "WORKFLOW_ENGINE_DEFINITION_SIGNING_MODE",
        |c, t| put(&mut c.awp.signing, t),
    ),
    setting(
        "awp.signing_keys",
        "WORKFLOW_ENGINE_SIGNING_PUBLIC_KEYS",
        |c, t| {
            c.awp.signing_keys = SigningKey::of_map(t)?;
            Ok(())
        },
    ),
    setting("models", "WORKFLOW_ENGINE_LLM_CONFIG", awp::add_llm),
    setting("awp.in_process.model", "WOPR_AWP_MODEL", |c, t| {
        c.awp.in_process.model = Some(t.to_owned());
        Ok(())
    }),
    setting("awp.in_process.tools", manifest::TOOLS, |c, t| {
        switch(&mut c.awp.in_process.tools, t)
    }),
    setting("awp.in_process.steps", "WORKFLOW_ENGINE_STEP_HANDLERS", |c, t| {
        c.awp.in_process.steps = Some(awp::steps_of(t)?);
        Ok(())
    }),
    setting("awp.in_process.mocks", "WOPR_AWP_MOCKS", |c, t| {
        switch(&mut c.awp.in_process.mocks, t)
    }),
    setting("awp.in_process.mocks", "WORKFLOW_ENGINE_PROFILE", awp::profile),
    setting("idempotency.retention", "WOPR_IDEMPOTENCY_RETENTION", |c, t| {
        put(&mut c.idempotency.retention, t)
    }),
    setting(
        "retention.terminal_runs",
        "WOPR_RETENTION_TERMINAL_RUNS",
        |c, t| put(&mut c.retention.terminal_runs, t),
    ),
    setting("interrupts.token_ttl", "WOPR_INTERRUPT_TOKEN_TTL", |c, t| {
        put(&mut c.interrupts.token_ttl, t)
    }),
    setting("log.format", "WOPR_LOG_FORMAT", |c, t| put(&mut c.log.format, t)),
    setting("log.level", "WOPR_LOG", |c, t| {
        c.log.level = t.to_owned();
        Ok(())
    }),
];

pub const ENV_KEY_ID: &str = "env";

/// The variables that name the store, each in its own way.
pub(crate) const STORE: &str = "WOPR_STORE";
pub(crate) const ENGINE_STORE: &str = "WORKFLOW_ENGINE_STORE";
pub(crate) const ENGINE_STORE_PATH: &str = "WORKFLOW_ENGINE_STORE_PATH";

/// The variables that make the default peer, each in its own way.
pub(crate) const DEFAULT_PEER_URL: &str = "WOPR_A2A_PEER";
pub(crate) const DELEGATE_CONFIG: &str = "WORKFLOW_ENGINE_A2A_CONFIG";

const fn setting(
    key: &'static str,
    variable: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
) -> Setting {
    Setting { key, variable, set }
}

fn put<T: FromStr<Err = String>>(place: &mut T, text: &str) -> Result<(), String> {
    *place = text.parse()?;
    Ok(())
}

fn some<T: FromStr<Err = String>>(place: &mut Option<T>, text: &str) -> Result<(), String> {
    *place = Some(text.parse()?);
    Ok(())
}

/// Parses comma-separated items.
fn list<T: FromStr<Err = String>>(place: &mut Vec<T>, text: &str) -> Result<(), String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    *place = items.map(str::parse).collect::<Result<_, _>>()?;
    Ok(())
}

fn number<T: FromStr>(place: &mut T, text: &str) -> Result<(), String> {
    *place = text.parse().map_err(|_| "must be a whole number".to_owned())?;
    Ok(())
}

fn switch(place: &mut bool, text: &str) -> Result<(), String> {
    *place = match text {
        "1" | "true" | "yes" | "on" => true,
        "0" | "false" | "no" | "off" => false,
        _ => return Err("must be 1, true, 0 or false".to_owned()),
    };
    Ok(())
}
