//! The capability registry: the single list of what this host can do.
//!
//! The discovery document, the flags of the A2A card and the set of routes are derived from it. It contains
//! only what is implemented.

mod orchestration;
mod overlay;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::RwLock;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use wopr_app::App;
use wopr_connect::egress;
use wopr_core::{ForkMode, Node, Plan, WorkflowId, openwop};
use wopr_wire::a2a::method::Version;

use self::overlay::Overlay;
use super::{answer::etag, render};
use crate::{
    Config, a2a,
    config::{CardVersion, DEFAULT_PEER, DEFAULT_TOOL_SERVER, Period, default_tenant},
    hex,
};

pub(super) use overlay::Switch;

/// Id prefixes of the workflows that the conformance suite asks for.
const FIXTURES: [&str; 2] = ["conformance-", "openwop-smoke-"];

/// Fixtures that would complete without the behavior they test, although their definition does not reveal it.
const PRETENDERS: [&str; 1] = [
    // Expects behavior of `X-Force-Engine-Version`.
    "conformance-version-fold",
];

/// Node types whose `config` this host ignores.
const PASSES: [&str; 6] = [
    "core.noop",
    "core.identity",
    "core.start",
    "core.end",
    "core.merge",
    "core.conditional",
];

/// The passing type that fixtures make do something, and the settings by which they do.
const HOOKED: &str = "core.identity";
const HOOKS: [&str; 4] = [
    "memoryAction",
    "byokSecretId",
    "probeMemoryRef",
    "emitDuplicateMessageId",
];

#[derive(Debug, Clone)]
pub struct Capabilities {
    /// Conformance nodes and test hooks exist.
    pub is_conformance: bool,
    /// The A2A bindings and versions served, in order of preference.
    pub a2a_interfaces: &'static [(a2a::Binding, Version)],
    /// The card that clients get who name no version.
    pub a2a_card: CardVersion,
    /// A2A tasks support streaming.
    pub a2a_streaming: bool,
    pub a2a_push: bool,
    pub a2a_extended_card: bool,
    /// The agents that workflows may call.
    pub a2a_peers: Vec<String>,
    /// The model providers that workflows may ask.
    pub models: Vec<String>,
    /// The servers whose tools workflows may call.
    pub tool_servers: Vec<String>,
    /// Workflows may name secrets.
    pub has_secrets: bool,
    pub max_body_bytes: usize,
    /// Maximum number of node executions per run.
    pub max_node_executions: u32,
    /// Maximum duration of a run in milliseconds, if limited.
    pub max_run_duration_ms: Option<u64>,
    /// Retention of idempotency keys, in seconds.
    pub idempotency_seconds: u64,
    /// The stable name of this installation.
    pub host_id: String,
}

impl Capabilities {
    /// Derives the capabilities from the configuration.
    #[must_use]
    pub fn of(config: &Config, host_id: String) -> Self {
        Self {
            is_conformance: config.conformance,
            a2a_interfaces: a2a::INTERFACES,
            a2a_card: config.a2a.card_version,
            a2a_streaming: a2a::STREAMING,
            a2a_push: a2a::PUSH_NOTIFICATIONS,
            a2a_extended_card: a2a::EXTENDED_CARD && !config.conformance_open,
            a2a_peers: config.a2a.peers.iter().map(|peer| peer.name.clone()).collect(),
            // Providers of some tenants are not everybody's business.
            models: (config.models.iter())
                .filter(|model| model.tenants.is_empty())
                .map(|model| model.name.clone())
                .collect(),
            tool_servers: (config.mcp.servers.iter())
                .filter(|server| server.tenants.is_empty())
                .map(|server| server.name.clone())
                .collect(),
            has_secrets: !config.secrets.named.is_empty(),
            max_body_bytes: config.server.max_body_bytes,
            max_node_executions: config.limits.max_node_executions,
            max_run_duration_ms: config.max_run_duration().map(Period::as_millis),
            idempotency_seconds: config.idempotency.retention.as_duration().as_secs(),
            host_id,
        }
    }

    /// The A2A versions, in order of preference.
    fn a2a_versions(&self) -> Vec<&'static str> {
        let mut versions = Vec::new();
        for (_, version) in self.a2a_interfaces {
            if !versions.contains(&version.as_str()) {
                versions.push(version.as_str());
            }
        }
        versions
    }

    /// The A2A profiles (RFC 0152). Each requires JSON-RPC in its version, and the profile of 0.3 that clients who name
    /// no version find a card they can read, because they are of 0.3.
    fn a2a_profiles(&self) -> Vec<&'static str> {
        let is_served = |version| self.a2a_interfaces.contains(&(a2a::Binding::JsonRpc, version));
        let mut profiles = Vec::new();
        if is_served(Version::V1_0) {
            profiles.push("a2a-1.0");
        }
        let has_old_card = match self.a2a_card {
            CardVersion::Union | CardVersion::V0_3 => true,
            CardVersion::V1_0 => false,
        };
        if is_served(Version::V0_3) && has_old_card {
            profiles.push("a2a-0.3-legacy");
        }
        profiles
    }

    #[must_use]
    pub fn agent_card_url(origin: &str) -> String {
        format!("{origin}{}", a2a::CARD_PATH)
    }

    /// The discovery document (section 2).
    fn document(&self, origin: &str) -> Value {
        let mut limits = json!({
            // A round takes an execution of a node at least, and has no limit of its own.
            "clarificationRounds": self.max_node_executions,
            // The highest number that a node may set. Each node is held to its own.
            "schemaRounds": openwop::MAX_REPAIRS,
            // An answer of a model is one document: anything beside it is refused.
            "envelopesPerTurn": 1,
            "maxNodeExecutions": self.max_node_executions,
            "maxRequestBodyBytes": self.max_body_bytes,
        });
        let mut configurable = json!({
            "recursionLimit": {
                "type": "number",
                "min": 1,
                "max": self.max_node_executions,
                "description": "Node executions before the run is stopped.",
            },
            "runTimeoutMs": {
                "type": "number",
                "min": 1,
                "description": "Milliseconds before the run is stopped, waits for people not counted.",
            },
            "maxLoopIterations": {
                "type": "number",
                "min": 1,
                "description": "Decisions of supervisors before the run is stopped.",
            },
            "escalationThreshold": {
                "type": "number",
                "min": 0,
                "max": 1,
                "description": "A decision with less confidence waits for a person.",
            },
            "reasoningVerbosity": {
                "type": "string",
                "description": "How much of an agent's reasoning is recorded: summary, full or off.",
            },
        });
        if let Some(most) = self.max_run_duration_ms {
            limits["maxRunDurationMs"] = json!(most);
            configurable["runTimeoutMs"]["max"] = json!(most);
        }
        let versions = self.a2a_versions();
        let mut families = json!({
            "conversationPrimitive": true,
            "memory": {
                "supported": true,
                "writable": true,
                "ttlSupported": true,
                "maxEntrySizeBytes": openwop::MAX_MEMORY_CONTENT,
            },
            "a2a": {
                "supported": true,
                "agentCardUrl": Self::agent_card_url(origin),
                "streaming": self.a2a_streaming,
                "pushNotifications": self.a2a_push,
                "durableTasks": true,
                "protocolVersions": versions,
                "preferredVersion": versions.first(),
                "profiles": self.a2a_profiles(),
            },
            "extensions": { "interrupts": {
                "profiles": [
                    "openwop-interrupt-quorum",
                    "openwop-interrupt-auth-required",
                    "openwop-interrupt-external-event",
                    "openwop-interrupt-cascade-cancel",
                ],
                "signedCallbackTokens": true,
            } },
            "interrupt": { "approverRouting": { "supported": true, "refKinds": ["group", "role"] } },
            "compliance": { "defaultMode": "mask" },
            "httpClient": {
                "supported": true,
                "ssrfGuard": true,
                "maxResponseBodyBytes": egress::Limits::default().response_body,
                "methods": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            },
            "idempotency": {
                "supported": true,
                "layer1RetentionSeconds": self.idempotency_seconds,
                "crossRegion": "single-region",
            },
            "replay": {
                "supported": true,
                "modes": [ForkMode::Replay.as_str(), ForkMode::Branch.as_str()],
                "sideEffectSuppression": "recorded-outcome",
            },
            "restTransport": { "conditionalRunGet": true },
            "subWorkflow": { "inputMapping": true },
        });
        if !self.models.is_empty() {
            families["aiProviders"] = json!({ "supported": self.models, "byok": [] });
            for (name, kind, description) in [
                ("ai.provider", "string", "The provider of all models of the run."),
                ("ai.model", "string", "The model of all nodes that ask one."),
                ("model", "string", "The same as ai.model."),
                (
                    "temperature",
                    "number",
                    "The temperature of all models, from 0 to 2.",
                ),
                ("maxTokens", "number", "The most tokens of an answer."),
            ] {
                configurable[name] = json!({ "type": kind, "description": description });
            }
        }
        if !self.models.is_empty() || self.is_conformance {
            families["envelopes"] = json!({ "reliability": { "supported": true, "events": [
                "envelope.retry.attempted",
                "envelope.retry.exhausted",
                "envelope.refusal",
                "envelope.truncated",
                "envelope.nlToFormat.engaged",
                "envelope.recovery.applied",
            ] } });
        }
        families["mcp"] = json!({
            "supported": !self.tool_servers.is_empty(),
            "serverMount": { "supported": true, "transports": ["stdio", "streamable-http"] },
        });
        if self.has_secrets {
            families["secrets"] = json!({ "supported": true, "resolution": "host-managed" });
        }
        if self.is_conformance {
            families["testing"] = json!({ "mockProviders": [wopr_connect::Mock::STREAM_TEXT] });
            families["conformance"] = json!({ "mockAgent": true });
        }
        if let (Some(families), Value::Object(own)) = (
            families.as_object_mut(),
            orchestration::families(&self.host_id, !self.models.is_empty()),
        ) {
            families.extend(own);
        }
        let mut document = json!({
            "protocolVersion": "1.1",
            "protocolVersions": ["1.1"],
            "implementation": {
                "name": "wopr",
                "version": env!("CARGO_PKG_VERSION"),
                "vendor": "wopr",
            },
            "engineVersion": render::ENGINE_VERSION,
            "eventLogSchemaVersion": render::EVENT_LOG_SCHEMA_VERSION,
            "supportedTransports": ["rest", "mcp", "a2a"],
            "supportedEnvelopes": ["clarification.request"],
            "schemaVersions": { "clarification.request": 1 },
            "limits": limits,
            "configurable": configurable,
        });
        if let (Some(document), Some(families)) = (document.as_object_mut(), families.as_object()) {
            document.extend(families.clone());
        }
        // Clients written before RFC 0073 look for the families here.
        orchestration::mirror(&mut families);
        document["capabilities"] = families;
        document
    }
}

/// The encoded discovery document.
#[derive(Debug)]
pub(crate) struct Document {
    /// The workflows generation that it was built from.
    generation: u64,
    /// The version of the overlay that lies over it.
    overlay: u64,
    pub(crate) bytes: Bytes,
    pub(crate) etag: HeaderValue,
}

#[derive(Debug)]
pub struct Discovery {
    capabilities: Capabilities,
    origin: String,
    /// Empty outside conformance mode.
    overlay: RwLock<Overlay>,
    document: RwLock<Arc<Document>>,
}

impl Discovery {
    pub(crate) fn new(config: &Config, origin: &str, host_id: String, app: &App) -> Self {
        let capabilities = Capabilities::of(config, host_id);
        let overlay = Overlay::default();
        let document = RwLock::new(Arc::new(render(&capabilities, &overlay, origin, app)));
        Self {
            capabilities,
            origin: origin.to_owned(),
            overlay: RwLock::new(overlay),
            document,
        }
    }

    /// Sets a switch of conformance mode, or takes it back. Returns all that are set.
    pub(crate) fn switch(&self, switch: Switch, value: Option<bool>) -> Map<String, Value> {
        let mut overlay = self.overlay.write();
        overlay.set(switch, value);
        overlay.shown()
    }

    /// Takes all switches back.
    pub(crate) fn reset(&self) -> Map<String, Value> {
        let mut overlay = self.overlay.write();
        overlay.clear();
        overlay.shown()
    }

    /// The switches that are set.
    pub(crate) fn overlay(&self) -> Map<String, Value> {
        self.overlay.read().shown()
    }

    /// The capability that a definition needs and that is switched off, by its path in the document.
    pub(crate) fn missing(&self, definition: &Value) -> Option<&'static str> {
        self.overlay.read().missing(definition).map(Switch::name)
    }

    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The current document. In conformance mode it lists fixtures and is rebuilt after workflows change.
    pub(crate) fn document(&self, app: &App) -> Arc<Document> {
        let known = Arc::clone(&self.document.read());
        if !self.capabilities.is_conformance {
            return known;
        }
        let overlay = self.overlay.read().clone();
        if known.generation == app.workflows_generation() && known.overlay == overlay.version {
            return known;
        }
        let document = Arc::new(render(&self.capabilities, &overlay, &self.origin, app));
        *self.document.write() = Arc::clone(&document);
        document
    }
}

fn render(capabilities: &Capabilities, overlay: &Overlay, origin: &str, app: &App) -> Document {
    // Read the generation first, so that a change during rendering is noticed by the next request.
    let generation = app.workflows_generation();
    let mut document = capabilities.document(origin);
    overlay.lay_over(&mut document);
    if capabilities.is_conformance {
        document["fixtures"] = json!(fixtures(app, &document, capabilities));
    }
    let text = document.to_string();
    let etag = etag(&hex(&Sha256::digest(text.as_bytes())[..16]));
    Document {
        generation,
        overlay: overlay.version,
        bytes: Bytes::from(text),
        etag,
    }
}

/// Lists the loaded fixtures that work as intended: their children are loaded, the capabilities they require
/// are advertised, the agents they call are configured, and no node asks for something that the host ignores. A fixture with unsupported node
/// types would not be loaded at all.
fn fixtures(app: &App, document: &Value, known: &Capabilities) -> Vec<String> {
    let plans = app.workflows(&default_tenant());
    let is_known = |id: &WorkflowId| plans.iter().any(|plan| plan.id() == id);
    let is_fixture = |plan: &&Arc<Plan>| {
        let id = plan.id().as_str();
        let Some(own) = plan.openwop() else {
            return false;
        };
        FIXTURES.iter().any(|prefix| id.starts_with(prefix))
            && plan.is_active()
            && children(own).all(|child| is_known(&child))
            && needs_only(own, document)
            && !PRETENDERS.contains(&id)
            && own
                .definition
                .nodes
                .iter()
                .all(|node| is_done_as_asked(node, known))
    };
    plans
        .iter()
        .filter(is_fixture)
        .map(|plan| plan.id().to_string())
        .collect()
}

/// Returns `true` if every `metadata.requires…` is met. Requirements other than capabilities (packs,
/// workspace agents) are never met.
fn needs_only(plan: &openwop::Plan, document: &Value) -> bool {
    let is_advertised = |path: &str| {
        let path = path.trim_start_matches("capabilities.").replace('.', "/");
        // A level, as in `version-2`.
        if let Some((path, least)) = path
            .rsplit_once('-')
            .and_then(|(path, n)| Some((path, n.parse().ok()?)))
        {
            let level = document.pointer(&format!("/{path}")).and_then(Value::as_u64);
            return level.is_some_and(|level: u64| level >= least);
        }
        let capability = document.pointer(&format!("/{path}"));
        capability.is_some_and(|capability| *capability == true || capability.is_object())
    };
    plan.definition
        .metadata
        .iter()
        .filter(|(name, _)| name.starts_with("requires"))
        .all(|(name, value)| name == "requiresCapability" && value.as_str().is_some_and(is_advertised))
}

/// Returns `true` if the host does everything the node asks for. It calls only the agents that the operator has
/// configured, and the tools of servers so, and some node types accept any `config` but ignore it.
fn is_done_as_asked(node: &Node, known: &Capabilities) -> bool {
    let is_ignored = PASSES.contains(&node.type_id.as_str())
        && (node.config.keys()).any(|key| node.type_id != HOOKED || !HOOKS.contains(&key.as_str()));
    let peer = node
        .config
        .get("peer")
        .and_then(Value::as_str)
        .unwrap_or(DEFAULT_PEER);
    let is_reachable = node.type_id != "core.a2a.invoke" || known.a2a_peers.iter().any(|known| known == peer);
    let own = match node.type_id.as_str() {
        "core.mcp.toolCall" => Some(&node.config),
        "core.ai.callPrompt" => node.config.get("mcp").and_then(Value::as_object),
        _ => None,
    };
    // What a node offers to its model.
    let offered = node.config.get("tools").and_then(Value::as_array);
    let offered = offered.into_iter().flatten().filter_map(Value::as_object);
    let offered = offered.filter(|tool| tool.contains_key("server") || tool.contains_key("tool"));
    let has_servers = own.into_iter().chain(offered).all(|tool| {
        let server = tool.get("server").and_then(Value::as_str);
        let server = server.unwrap_or(DEFAULT_TOOL_SERVER);
        known.tool_servers.iter().any(|known| known == server)
    });
    !is_ignored && is_reachable && has_servers
}

fn children(plan: &openwop::Plan) -> impl Iterator<Item = WorkflowId> {
    let nodes = plan.definition.nodes.iter();
    let called = nodes
        .filter(|node| node.type_id == "core.subWorkflow")
        .filter_map(|node| node.config.get("workflowId")?.as_str());
    let dispatched = plan.planned_workers();
    let nodes = plan.definition.nodes.iter();
    let tools = nodes.filter_map(|node| node.config.get("tools")?.as_array());
    let tools = tools.flatten().filter_map(|tool| tool.get("workflow")?.as_str());
    called
        .chain(tools)
        .chain(dispatched)
        .filter_map(|id| WorkflowId::parse(id).ok())
}
