//! Writing the agent card, which only gRPC gives in this shape.

use serde::{Serialize, Serializer, ser::Error as _};
use serde_json::{Value, json};

use super::{
    super::{super::model, AgentCard},
    Proto,
};

impl Serialize for Proto<&model::AgentCard> {
    /// As in JSON-RPC, but for what concerns security: schemes and requirements are wrapped as in 1.0.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        value(self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

fn value(card: &model::AgentCard) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(AgentCard::from(card.clone()))?;
    let mut schemes = serde_json::to_value(&card.security_schemes)?;
    for scheme in schemes.as_object_mut().into_iter().flatten() {
        without_new_flows(scheme.1);
    }
    if !card.security_schemes.is_empty() {
        value["securitySchemes"] = schemes;
    }
    if !card.security_requirements.is_empty() {
        value["security"] = json!(card.security_requirements);
    }
    if let Some(skills) = value["skills"].as_array_mut() {
        for (skill, from) in skills.iter_mut().zip(&card.skills) {
            if !from.security_requirements.is_empty() {
                skill["security"] = json!(from.security_requirements);
            }
        }
    }
    Ok(value)
}

/// Takes away what 0.3 does not know: the device code flow, and the flag that asks for PKCE.
fn without_new_flows(scheme: &mut Value) {
    let flows = scheme.pointer_mut("/oauth2SecurityScheme/flows");
    if let Some(flows) = flows.and_then(Value::as_object_mut) {
        flows.remove("deviceCode");
        if let Some(flow) = flows.get_mut("authorizationCode").and_then(Value::as_object_mut) {
            flow.remove("pkceRequired");
        }
    }
}
