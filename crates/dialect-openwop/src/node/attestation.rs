//! `outputAttestation` of a `core.subWorkflow`: what its child gives back has a checksum, and may need an approval
//! before it counts.

use serde_json::{Map, Value};
use wopr_kernel::{AnswerSchema, ApprovalRules, ContentHash, Rules, cost::Meter};

use super::config::Config;
use crate::{ApprovalAction, Object};

#[derive(Debug)]
pub(crate) struct Attestation {
    /// The rules of the approval, if one is needed.
    rules: Option<Rules>,
}

/// Values by the names that the child has for them: these names, or any if the mapping names none.
#[derive(Debug)]
struct OutputsForm(Vec<String>);

impl AnswerSchema for OutputsForm {
    fn check(&self, value: &Value, _meter: &Meter<'_>) -> Result<(), String> {
        match value {
            Value::Object(outputs) => {
                let Self(names) = self;
                let mut unknown = outputs
                    .keys()
                    .filter(|name| !names.is_empty() && !names.contains(name));
                match unknown.next() {
                    None => Ok(()),
                    Some(unknown) => Err(format!(
                        "'{unknown}' is none of the outputs that are taken over, which are {}",
                        names.join(", ")
                    )),
                }
            }
            _ => Err("it is not an object of outputs by name".to_owned()),
        }
    }
}

impl Attestation {
    /// Reads the setting, for a node that takes over outputs by this mapping.
    pub(super) fn read(attestation: &Value, mapping: &[(String, String)]) -> Result<Self, String> {
        let fields = attestation
            .as_object()
            .ok_or("config.outputAttestation is not an object")?;
        let known = ["checksum", "algorithm", "requireApproval", "principalScope"];
        if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("config.outputAttestation.{unknown} is not known"));
        }
        let config = Config(fields);
        let within = |rule: String| rule.replacen("config.", "config.outputAttestation.", 1);
        // What a caller expects is a hint for people: a mismatch refuses nothing.
        match fields.get("checksum") {
            None | Some(Value::Null | Value::Bool(_) | Value::String(_)) => {}
            Some(_) => {
                return Err("config.outputAttestation.checksum is neither a flag nor a text".to_owned());
            }
        }
        match config.text("algorithm").map_err(within)? {
            None | Some("sha256") => {}
            Some(other) => {
                return Err(format!(
                    "config.outputAttestation.algorithm '{other}' is not sha256"
                ));
            }
        }
        let approvers = config.names("principalScope").map_err(within)?;
        let needs_approval = config.flag("requireApproval").map_err(within)?.unwrap_or(false);
        if !needs_approval && !approvers.is_empty() {
            return Err("config.outputAttestation.principalScope is only for requireApproval".to_owned());
        }
        let rules = needs_approval.then(|| {
            Rules::Approval(ApprovalRules {
                actions: vec![
                    ApprovalAction::Accept,
                    ApprovalAction::Reject,
                    ApprovalAction::EditAccept,
                    ApprovalAction::Ask,
                ],
                required: 1,
                majority: false,
                approvers,
                refs: Vec::new(),
                has_refs: false,
                auth_required: false,
                edited: Some(Box::new(OutputsForm(
                    mapping.iter().map(|(_, name)| name.clone()).collect(),
                ))),
            })
        });
        Ok(Self { rules })
    }

    pub(crate) fn rules(&self) -> Option<&Rules> {
        self.rules.as_ref()
    }

    /// Who may approve, as the approval's data says it; `None` if no approval is needed.
    pub(crate) fn approvers(&self) -> Option<&[String]> {
        match self.rules.as_ref()? {
            Rules::Approval(rules) => Some(&rules.approvers),
            Rules::Clarification(_)
            | Rules::Event(_)
            | Rules::Any
            | Rules::Verdict
            | Rules::Turn
            | Rules::Checked(_) => None,
        }
    }
}

/// What a child gives back, by the names that it has for it: what the mapping names, or else its outputs.
pub(crate) fn harvest(mapping: &[(String, String)], outputs: &Object, report: &Object) -> Object {
    if mapping.is_empty() {
        return outputs.clone();
    }
    let named = mapping
        .iter()
        .filter_map(|(_, name)| Some((name.clone(), report.get(name)?.clone())));
    named.collect::<Map<_, _>>()
}

/// The SHA-256 of an object in its canonical form (RFC 8785), as lower-case hex.
pub(crate) fn checksum(harvest: &Object) -> String {
    let text = serde_json_canonicalizer::to_vec(harvest).expect("JSON with text keys and finite numbers");
    ContentHash::of(&text).as_str().to_owned()
}
