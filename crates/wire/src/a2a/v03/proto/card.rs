//! The agent card in this shape, which only the gRPC binding uses.

use serde::{Serialize, Serializer, ser::Error as _};
use serde_json::{Value, json};

use super::{
    super::{super::model, AgentCard},
    Proto,
};
use crate::json::{Decode, DecodeError, Fields, Object};

impl Decode for Proto<model::AgentCard> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut members = Object::decode(value)?;
        // The binary encoding omits empty fields that the JSON-RPC document requires.
        for (name, empty) in [
            ("protocolVersion", json!("0.3.0")),
            ("name", json!("")),
            ("description", json!("")),
            ("version", json!("")),
            ("capabilities", json!({})),
            ("defaultInputModes", json!([])),
            ("defaultOutputModes", json!([])),
            ("skills", json!([])),
        ] {
            members.entry(name).or_insert(empty);
        }
        let mut wrapped = Object::new();
        for name in ["securitySchemes", "security"] {
            wrapped.extend(members.remove_entry(name));
        }
        let mut wrapped = Fields::of(Value::Object(wrapped))?;
        // Drop the security of skills. It only narrows the security of the card, and a caller who lacks it
        // gets an error anyway.
        for skill in members
            .get_mut("skills")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Value::Object(skill) = skill {
                skill.remove("security");
                for name in ["name", "description"] {
                    skill.entry(name).or_insert_with(|| "".into());
                }
                skill.entry("tags").or_insert_with(|| json!([]));
            }
        }
        let mut card = model::AgentCard::from(AgentCard::decode(Value::Object(members))?);
        card.security_schemes = wrapped.valid_members("securitySchemes");
        card.security_requirements = wrapped.valid_elements("security");
        Ok(Self(card))
    }
}

impl Serialize for Proto<&model::AgentCard> {
    /// Like the JSON-RPC document, except that security schemes and requirements are wrapped as in 1.0.
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

/// Removes what 0.3 does not define: the device code flow and the PKCE flag.
fn without_new_flows(scheme: &mut Value) {
    let flows = scheme.pointer_mut("/oauth2SecurityScheme/flows");
    if let Some(flows) = flows.and_then(Value::as_object_mut) {
        flows.remove("deviceCode");
        if let Some(flow) = flows.get_mut("authorizationCode").and_then(Value::as_object_mut) {
            flow.remove("pkceRequired");
        }
    }
}
