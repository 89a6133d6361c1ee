//! The identity of an agent, as a node of a definition pins it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An `AgentRef`. Whether its texts are long enough and its class known is checked when a definition is new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentRef {
    pub agent_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kind of model that it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_class: Option<String>,
    /// The memory that it reads and writes, unless a node names another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where its definition is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_manifest_id: Option<String>,
}

impl AgentRef {
    /// Reads the reference of a node. One that an earlier build accepted and this one would not names nobody.
    pub(crate) fn read(document: &Value) -> Option<Self> {
        Self::deserialize(document).ok()
    }
}
