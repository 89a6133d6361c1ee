//! The capability registry: what this host can do, told once.
//!
//! The discovery document is built from it, and so are the A2A card's flags and which routes exist. What is not
//! true is not in it.

use std::sync::Arc;

use axum::body::Bytes;
use http::HeaderValue;
use parking_lot::RwLock;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wopr_app::App;
use wopr_connect::egress;
use wopr_core::{Node, Plan, WorkflowId};
use wopr_wire::a2a::method::Version;

use super::{answer::etag, render};
use crate::{
    Config, a2a,
    config::{Period, default_tenant},
    hex::hex,
};

/// Ids the conformance suite asks for begin so.
const FIXTURES: [&str; 2] = ["conformance-", "openwop-smoke-"];

/// Fixtures that complete here as plain workflows, without what they are about and nothing in them tells.
const PRETENDERS: [&str; 1] = [
    // Makes a claim about `X-Force-Engine-Version`.
    "conformance-version-fold",
];

/// Types whose `config` says nothing to this host.
const PASSES: [&str; 6] = [
    "core.noop",
    "core.identity",
    "core.start",
    "core.end",
    "core.merge",
    "core.conditional",
];

/// What this host can do.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// Whether conformance nodes and seams exist.
    pub is_conformance: bool,
    /// Bindings and versions of A2A that are served, the preferred first.
    pub a2a_interfaces: &'static [(a2a::Binding, Version)],
    /// Whether A2A tasks can be streamed.
    pub a2a_streaming: bool,
    /// Whether A2A tasks can be pushed.
    pub a2a_push: bool,
    /// Whether callers get an A2A card of their own.
    pub a2a_extended_card: bool,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// Node executions of a run.
    pub max_node_executions: u32,
    /// Milliseconds of a run, if bounded.
    pub max_run_duration_ms: Option<u64>,
    /// Seconds an idempotency key is remembered.
    pub idempotency_seconds: u64,
}

impl Capabilities {
    /// What a configuration makes of this binary.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            is_conformance: config.conformance,
            a2a_interfaces: a2a::INTERFACES,
            a2a_streaming: a2a::STREAMING,
            a2a_push: a2a::PUSH_NOTIFICATIONS,
            a2a_extended_card: a2a::EXTENDED_CARD && !config.conformance_open,
            max_body_bytes: config.server.max_body_bytes,
            max_node_executions: config.limits.max_node_executions,
            max_run_duration_ms: config.max_run_duration().map(Period::as_millis),
            idempotency_seconds: config.idempotency.retention.as_duration().as_secs(),
        }
    }

    /// The versions of A2A, the preferred first.
    fn a2a_versions(&self) -> Vec<&'static str> {
        let mut versions = Vec::new();
        for (_, version) in self.a2a_interfaces {
            if !versions.contains(&version.as_str()) {
                versions.push(version.as_str());
            }
        }
        versions
    }

    /// The address of the A2A card.
    #[must_use]
    pub fn agent_card_url(origin: &str) -> String {
        format!("{origin}{}", a2a::CARD_PATH)
    }

    /// The discovery document (section 2).
    fn document(&self, origin: &str) -> Value {
        let mut limits = json!({
            "clarificationRounds": 3,
            "schemaRounds": 2,
            "envelopesPerTurn": 5,
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
        });
        if let Some(most) = self.max_run_duration_ms {
            limits["maxRunDurationMs"] = json!(most);
            configurable["runTimeoutMs"]["max"] = json!(most);
        }
        let versions = self.a2a_versions();
        let families = json!({
            "a2a": {
                "supported": true,
                "agentCardUrl": Self::agent_card_url(origin),
                "streaming": self.a2a_streaming,
                "pushNotifications": self.a2a_push,
                "durableTasks": true,
                "protocolVersions": versions,
                "preferredVersion": versions.first(),
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
            "restTransport": { "conditionalRunGet": true },
            "subWorkflow": { "inputMapping": true },
        });
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
            "supportedTransports": ["rest", "a2a"],
            "supportedEnvelopes": ["clarification.request"],
            "schemaVersions": { "clarification.request": 1 },
            "limits": limits,
            "configurable": configurable,
        });
        if let (Some(document), Some(families)) = (document.as_object_mut(), families.as_object()) {
            document.extend(families.clone());
        }
        // Readers before RFC 0073 look for the families here.
        document["capabilities"] = families;
        document
    }
}

/// The discovery document as bytes, ready to send.
#[derive(Debug)]
pub(crate) struct Document {
    /// The workflows it was made from.
    generation: u64,
    pub(crate) bytes: Bytes,
    pub(crate) etag: HeaderValue,
}

/// What is advertised, ready to send.
#[derive(Debug)]
pub struct Discovery {
    capabilities: Capabilities,
    origin: String,
    document: RwLock<Arc<Document>>,
}

impl Discovery {
    pub(crate) fn new(config: &Config, origin: &str, app: &App) -> Self {
        let capabilities = Capabilities::of(config);
        let document = RwLock::new(Arc::new(render(&capabilities, origin, app)));
        Self {
            capabilities,
            origin: origin.to_owned(),
            document,
        }
    }

    /// The registry.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The document. In conformance mode it lists fixtures, and is made anew when workflows have changed.
    pub(crate) fn document(&self, app: &App) -> Arc<Document> {
        let known = Arc::clone(&self.document.read());
        if !self.capabilities.is_conformance || known.generation == app.workflows_generation() {
            return known;
        }
        let document = Arc::new(render(&self.capabilities, &self.origin, app));
        *self.document.write() = Arc::clone(&document);
        document
    }
}

fn render(capabilities: &Capabilities, origin: &str, app: &App) -> Document {
    // Read first: what changes meanwhile is seen at the next look.
    let generation = app.workflows_generation();
    let mut document = capabilities.document(origin);
    if capabilities.is_conformance {
        document["fixtures"] = json!(fixtures(app, &document));
    }
    let text = document.to_string();
    let etag = etag(&hex(&Sha256::digest(text.as_bytes())[..16]));
    Document {
        generation,
        bytes: Bytes::from(text),
        etag,
    }
}

/// Every loaded fixture that does what it is about: its nodes are offered, or it would not be here; its children are here
/// too; what else it says it needs is advertised; and no node of it asks for what is not done.
fn fixtures(app: &App, document: &Value) -> Vec<String> {
    let plans = app.workflows(&default_tenant());
    let is_known = |id: &WorkflowId| plans.iter().any(|plan| plan.id() == id);
    let is_fixture = |plan: &&Arc<Plan>| {
        let id = plan.id().as_str();
        FIXTURES.iter().any(|prefix| id.starts_with(prefix))
            && plan.definition.is_active
            && children(plan).all(|child| is_known(&child))
            && needs_only(plan, document)
            && !PRETENDERS.contains(&id)
            && plan.definition.nodes.iter().all(is_done_as_asked)
    };
    plans
        .iter()
        .filter(is_fixture)
        .map(|plan| plan.id().to_string())
        .collect()
}

/// Whether every `metadata.requires…` is met. Packs and agents of a workspace never are: there are none here.
fn needs_only(plan: &Plan, document: &Value) -> bool {
    let is_advertised = |path: &str| {
        let path = path.trim_start_matches("capabilities.").replace('.', "/");
        let capability = document.pointer(&format!("/{path}"));
        capability.is_some_and(|capability| *capability == true || capability.is_object())
    };
    plan.definition
        .metadata
        .iter()
        .filter(|(name, _)| name.starts_with("requires"))
        .all(|(name, value)| name == "requiresCapability" && value.as_str().is_some_and(is_advertised))
}

/// Whether a node does what its document asks for. Agents are not run here, so a node pinned to one is a node like any
/// other; and some types take any `config` and make nothing of it.
fn is_done_as_asked(node: &Node) -> bool {
    let is_ignored = PASSES.contains(&node.type_id.as_str()) && !node.config.is_empty();
    node.agent.is_none() && !is_ignored
}

fn children(plan: &Plan) -> impl Iterator<Item = WorkflowId> {
    plan.definition
        .nodes
        .iter()
        .filter(|node| node.type_id == "core.subWorkflow")
        .filter_map(|node| WorkflowId::parse(node.config.get("workflowId")?.as_str()?).ok())
}
