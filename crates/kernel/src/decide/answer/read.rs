//! Parses answers and checks that the interrupt accepts them.

use serde_json::{Value, json};

use crate::{ApprovalAction, Object, Question, Refusal, Verdict, cost::Budget, measure::compare_numbers};

/// Maximum length in bytes of an approval's comment.
const MAX_WORDS: usize = 64 * 1024;

pub(in crate::decide) struct Answer {
    pub(super) action: ApprovalAction,
    pub(super) feedback: Option<String>,
    pub(super) refine: Option<Value>,
    pub(super) edited: Option<Value>,
    /// The principal whose vote the answer says it is.
    pub(super) voter: Option<String>,
    /// A legacy rejection with a comment: a refinement if the gate offers that, else a rejection.
    pub(super) legacy_refine: bool,
}

impl Answer {
    /// The voter's comment.
    pub(super) fn words(&self) -> Option<String> {
        let text = |refine: &Value| refine.get("text").and_then(Value::as_str).map(str::to_owned);
        self.feedback
            .clone()
            .or_else(|| self.refine.as_ref().and_then(text))
    }

    /// `not_offered` refuses an action. Parses `{action}`, the legacy `{decision}` and the seed's `{approve}`.
    pub(super) fn read(value: &Value, not_offered: &dyn Fn(&str) -> Refusal) -> Result<Self, Refusal> {
        let invalid = |text: &str| Refusal::InvalidAnswer(text.to_owned());
        let fields = value
            .as_object()
            .ok_or_else(|| invalid("the answer is not an object"))?;
        let text = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Refusal::InvalidAnswer(format!("'{name}' is not a string"))),
        };
        let mut feedback = text("feedback")?.or(text("comment")?).or(text("reason")?);
        let mut refine =
            fields
                .get("refineFeedback")
                .filter(|value| !value.is_null())
                .map(|value| match value {
                    Value::String(text) => json!({ "scope": "whole", "text": text }),
                    Value::Object(members) => {
                        let given = members.iter().filter(|(_, value)| !value.is_null());
                        Value::Object(given.map(|(name, value)| (name.clone(), value.clone())).collect())
                    }
                    other => other.clone(),
                });
        let mut legacy_refine = false;
        let action = if let Some(action) = text("action")? {
            ApprovalAction::parse(&action).ok_or_else(|| not_offered(&action))?
        } else if let Some(decision) = text("decision")? {
            match decision.as_str() {
                "approved" => ApprovalAction::Accept,
                "rejected" if feedback.is_some() => {
                    legacy_refine = true;
                    refine = Some(json!({ "scope": "whole", "text": feedback }));
                    ApprovalAction::Refine
                }
                "rejected" => ApprovalAction::Reject,
                _ => return Err(invalid("'decision' is neither approved nor rejected")),
            }
        } else {
            match fields.get("approve") {
                Some(Value::Bool(true)) => ApprovalAction::Accept,
                Some(Value::Bool(false)) => ApprovalAction::Reject,
                _ => return Err(invalid("'action' is missing")),
            }
        };
        check_verdicts(fields, action)?;
        let edited = fields
            .get("editedArtifactData")
            .filter(|value| !value.is_null())
            .cloned();
        match action {
            ApprovalAction::Refine => check_refine(refine.as_ref())?,
            ApprovalAction::EditAccept if edited.is_none() => {
                return Err(invalid("'editedArtifactData' is missing"));
            }
            ApprovalAction::Ask => feedback = text("question")?.or(feedback).or(text("text")?),
            ApprovalAction::Accept
            | ApprovalAction::Reject
            | ApprovalAction::EditAccept
            | ApprovalAction::Timeout => {}
        }
        let answer = Self {
            action,
            feedback,
            refine,
            edited,
            voter: text("voter")?,
            legacy_refine,
        };
        for words in [&answer.feedback, &answer.words()].into_iter().flatten() {
            if words.len() > MAX_WORDS {
                return Err(Refusal::InvalidAnswer(format!(
                    "its text has {} bytes, and {MAX_WORDS} is the most",
                    words.len()
                )));
            }
        }
        Ok(answer)
    }
}

/// Refuses a contradictory answer: its action says one thing and a legacy field the opposite.
fn check_verdicts(fields: &Object, action: ApprovalAction) -> Result<(), Refusal> {
    let by_decision = match fields.get("decision").and_then(Value::as_str) {
        Some("approved") => Some(true),
        Some("rejected") => Some(false),
        Some(_) | None => None,
    };
    let by_approve = match fields.get("approve") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(approve)) => Some(*approve),
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            return Err(Refusal::InvalidAnswer(
                "'approve' is neither true nor false".to_owned(),
            ));
        }
    };
    let meant = match action {
        ApprovalAction::Accept | ApprovalAction::EditAccept => Some(true),
        ApprovalAction::Reject | ApprovalAction::Refine => Some(false),
        ApprovalAction::Ask | ApprovalAction::Timeout => None,
    };
    for (name, said) in [("decision", by_decision), ("approve", by_approve)] {
        if said.is_some() && said != meant {
            let action = action.as_str();
            return Err(Refusal::InvalidAnswer(format!(
                "'{name}' contradicts the action '{action}'"
            )));
        }
    }
    Ok(())
}

fn check_refine(refine: Option<&Value>) -> Result<(), Refusal> {
    let invalid = |text: &str| Err(Refusal::InvalidAnswer(text.to_owned()));
    let Some(refine) = refine else {
        return invalid("'refineFeedback' is missing");
    };
    let Some(fields) = refine.as_object() else {
        return invalid("refineFeedback must be an object {scope: whole|section|items, text…} or a text");
    };
    let known = ["scope", "sectionPath", "itemIds", "tags", "text"];
    if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return invalid(&format!("'refineFeedback.{name}' is not known"));
    }
    if !matches!(
        fields.get("scope").and_then(Value::as_str),
        Some("whole" | "section" | "items")
    ) {
        return invalid("'refineFeedback.scope' is none of whole, section, items");
    }
    for name in ["sectionPath", "text"] {
        if fields.get(name).is_some_and(|value| !value.is_string()) {
            return invalid(&format!("'refineFeedback.{name}' is not a text"));
        }
    }
    let is_texts = |value: &Value| {
        value
            .as_array()
            .is_some_and(|list| list.iter().all(Value::is_string))
    };
    for name in ["itemIds", "tags"] {
        if fields.get(name).is_some_and(|value| !is_texts(value)) {
            return invalid(&format!("'refineFeedback.{name}' is not a list of texts"));
        }
    }
    Ok(())
}

/// The answer as stored: without the caller's claims about who decided and when, which only the host knows.
pub(super) fn without_claims(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        for claim in ["decidedBy", "decidedAt"] {
            fields.remove(claim);
        }
    }
    value
}

/// An answer to an approval as stored. Its events say whose vote it is.
pub(super) fn without_voter(value: &Value) -> Value {
    let mut value = without_claims(value);
    if let Some(fields) = value.as_object_mut() {
        fields.remove("voter");
    }
    value
}

/// Parses `{answers: {id: answer}}` or `{answers: [{id, answer}]}` and checks each answer against its
/// question.
pub(super) fn read_answers(
    questions: &[Question],
    value: &Value,
    budget: &Budget,
) -> Result<Object, Refusal> {
    let invalid = |text: String| Err(Refusal::InvalidAnswer(text));
    let answers = match value.get("answers") {
        Some(Value::Object(answers)) => answers.clone(),
        Some(Value::Array(items)) => {
            let mut answers = Object::new();
            for item in items {
                let (Some(id), Some(answer)) = (item.get("id").and_then(Value::as_str), item.get("answer"))
                else {
                    return invalid("'answers' holds something other than {id, answer}".to_owned());
                };
                if answers.insert(id.to_owned(), answer.clone()).is_some() {
                    return invalid(format!("question '{id}' is answered twice"));
                }
            }
            answers
        }
        _ => return invalid("'answers' is missing".to_owned()),
    };
    if let Some(id) = answers
        .keys()
        .find(|id| !questions.iter().any(|question| question.id == **id))
    {
        return invalid(format!("there is no question '{id}'"));
    }
    for question in questions {
        match (answers.get(&question.id), &question.schema) {
            (None, _) => return invalid(format!("question '{}' has no answer", question.id)),
            (Some(answer), Some(schema)) => {
                if let Err(error) = schema.check(answer, &budget.meter()) {
                    return invalid(format!(
                        "the answer to '{}' does not match its schema: {error}",
                        question.id
                    ));
                }
            }
            (Some(_), None) => {}
        }
    }
    Ok(answers)
}

/// Returns the event if it matches every key of the correlation; other keys are ignored.
pub(super) fn matching_event<'v>(data: &Value, value: &'v Value) -> Result<&'v Value, Refusal> {
    let event = value.get("eventPayload").unwrap_or(value);
    let Some(correlation) = data.get("correlation").and_then(Value::as_object) else {
        return Ok(event);
    };
    for (key, wanted) in correlation {
        if !event.get(key).is_some_and(|given| same(given, wanted)) {
            return Err(Refusal::NoMatch(format!("'{key}' differs from the correlation")));
        }
    }
    Ok(event)
}

/// Whether two values are equal by worth: 1 and 1.0 are. JSON does not tell numbers apart by their spelling, and
/// neither do the conditions of edges.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            let is_same = |(name, a): (&String, &Value)| b.get(name).is_some_and(|b| same(a, b));
            a.len() == b.len() && a.iter().all(is_same)
        }
        (a, b) => a == b,
    }
}

/// Parses a verdict: exactly one of `ratified`, `decision` and `rejected`.
pub(super) fn read_verdict(value: &Value) -> Result<Verdict, Refusal> {
    let invalid = |text: &str| Err(Refusal::InvalidAnswer(text.to_owned()));
    let Some(fields) = value.as_object() else {
        return invalid("the answer is not an object");
    };
    // Members that are no part of a verdict, and that clients send with every answer.
    let ignored = ["decidedBy", "decidedAt", "voter"];
    let mut said = fields
        .iter()
        .filter(|(name, _)| !ignored.contains(&name.as_str()));
    match (said.next(), said.next()) {
        (Some((name, Value::Bool(true))), None) if name == "ratified" => Ok(Verdict::Ratified),
        (Some((name, Value::Bool(true))), None) if name == "rejected" => Ok(Verdict::Rejected),
        (Some((name, decision)), None) if name == "decision" && !decision.is_null() => {
            Ok(Verdict::Replaced(decision.clone()))
        }
        (Some(_) | None, _) => {
            invalid("it must be one of {\"ratified\": true}, {\"decision\": …} and {\"rejected\": true}")
        }
    }
}

/// Whether the answer closes the conversation. An answer without an `operation` is a turn.
pub(super) fn closes_conversation(value: &Value) -> Result<bool, Refusal> {
    let operation = match value {
        Value::Object(fields) => fields.get("operation"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
    };
    match operation {
        None => Ok(false),
        Some(Value::String(operation)) if operation == "exchange" => Ok(false),
        Some(Value::String(operation)) if operation == "close" => Ok(true),
        Some(_) => Err(Refusal::InvalidAnswer(
            "'operation' is neither exchange nor close".to_owned(),
        )),
    }
}
