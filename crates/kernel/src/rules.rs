//! What an answer to an interrupt must be, and who may give it.

use std::fmt::Debug;

use serde_json::Value;

use crate::{ApprovalAction, Authority, Membership, Refusal, cost::Meter};

/// The rules of one interrupt. Answers are checked against these alone.
#[derive(Debug)]
pub enum Rules {
    Approval(ApprovalRules),
    /// Every question needs an answer.
    Clarification(Vec<Question>),
    /// An event that has the values of `correlation` in the interrupt's data, and matches the schema if there is one.
    Event(Option<Box<dyn AnswerSchema>>),
    /// Any value.
    Any,
    /// A verdict on a held decision: `{"ratified": true}`, `{"decision": …}` or `{"rejected": true}`.
    Verdict,
    /// A turn, after which the conversation goes on, or the end of it.
    Turn,
    /// A value of this form.
    Checked(Box<dyn AnswerSchema>),
}

#[derive(Debug)]
pub struct ApprovalRules {
    pub actions: Vec<ApprovalAction>,
    /// Number of accepts needed.
    pub required: u32,
    /// Whether rejecting needs a majority of rejects.
    pub majority: bool,
    /// Who may vote; empty means everyone who is allowed to answer.
    pub approvers: Vec<String>,
    /// Principals who may vote, in addition to the roles and groups in the interrupt's data.
    pub refs: Vec<String>,
    /// Whether the gate names principals, roles or groups.
    pub has_refs: bool,
    /// Whether the gate refuses answers by a token alone.
    pub auth_required: bool,
    /// What an edited artifact must be.
    pub edited: Option<Box<dyn AnswerSchema>>,
}

#[derive(Debug)]
pub struct Question {
    pub id: String,
    /// The question as the definition has it.
    pub document: Value,
    /// The schema that an answer must match.
    pub schema: Option<Box<dyn AnswerSchema>>,
}

/// What a value must be to answer a question.
pub trait AnswerSchema: Debug + Send + Sync {
    /// Checks a value.
    ///
    /// # Errors
    /// The rule that the value breaks.
    fn check(&self, value: &Value, meter: &Meter<'_>) -> Result<(), String>;
}

impl ApprovalRules {
    /// Refuses an answer from somebody this gate does not ask. The approvers list is binding by itself; the
    /// references name, together, the principals, roles and groups that may answer.
    pub(crate) fn check(&self, data: &Value, voter: &str, authority: &Authority) -> Result<(), Refusal> {
        let is_in = |list: &[String]| list.iter().any(|name| name == voter);
        if !self.approvers.is_empty() && !is_in(&self.approvers) {
            return Err(Refusal::NotAllowed("the approver is not on this gate's list"));
        }
        let is_member = || match authority {
            Authority::Credential(membership) => membership.is_named_by(data),
            Authority::Token { is_member } => *is_member,
        };
        // What a node asks in one interrupt may name somebody though its other interrupts do not.
        let has_refs = self.has_refs || Membership::has_names(data);
        if has_refs && !is_in(&self.refs) && !is_member() {
            return Err(Refusal::NotAllowed(
                "the approver is not among the principals, roles and groups that this gate asks",
            ));
        }
        Ok(())
    }
}
