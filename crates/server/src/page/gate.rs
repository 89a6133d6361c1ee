//! The page of an open interrupt: the question, its subject and deadline, and the answer form.
//!
//! The form is converted to the answer that a JSON client would send, so both follow the same rules. This
//! module does not decide whether an answer is accepted.

use std::borrow::Cow;

use http::StatusCode;
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use wopr_core::{ApprovalAction, InterruptKind};
use wopr_wire::time::Timestamp;

use super::{
    content::{Artifact, Editable, cut},
    conversation::{self, Conversation},
    document,
    fields::{Field, Form},
};

/// Maximum number of approvers listed by name.
const MAX_NAMED: usize = 20;
/// Maximum number of approvers' questions shown; the newest are kept.
const MAX_EXCHANGES: usize = 20;
/// Maximum length of each in characters.
const MAX_EXCHANGE: usize = 2_000;

/// An open interrupt, as its page shows it.
#[derive(Debug)]
pub(crate) struct Gate<'a> {
    /// The workflow's name.
    pub(crate) workflow: &'a str,
    pub(crate) node: &'a str,
    pub(crate) kind: InterruptKind,
    /// The question, without what is hidden from every reader.
    pub(crate) data: Cow<'a, Value>,
    /// The run held content from outside when the interrupt was created.
    pub(crate) is_untrusted: bool,
    /// The artifact to review.
    pub(crate) artifact: Option<Artifact>,
    pub(crate) requested_at: Option<Timestamp>,
    /// The expiry of the link.
    pub(crate) expires_at: Timestamp,
    pub(crate) now: Timestamp,
    pub(crate) votes: Vec<ApprovalAction>,
    /// The vote of the link's holder.
    pub(crate) own_vote: Option<ApprovalAction>,
    /// Questions that approvers asked so far.
    pub(crate) exchanges: Vec<String>,
    /// What was said so far, if the question is for a turn of a conversation.
    pub(crate) conversation: Conversation,
    /// The principal for whom the link was created, if any.
    pub(crate) holder: Option<&'a str>,
    /// The reason why this link cannot answer, if it cannot.
    pub(crate) only_shown: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused<'a> {
    pub(crate) form: &'a Form,
    pub(crate) why: &'a str,
}

/// Names, labels and button styles of the approval actions.
const ACTIONS: [(&str, &str, Option<&str>); 5] = [
    ("accept", "Accept", Some("main")),
    ("edit-accept", "Accept with my edits", None),
    ("refine", "Ask for changes", None),
    ("ask", "Ask a question", None),
    ("reject", "Reject", Some("no")),
];

impl Gate<'_> {
    /// Renders the page. After a rejected form, the inputs keep the submitted values.
    pub(crate) fn page(&self, refused: Option<Refused<'_>>) -> Markup {
        let title = self.title();
        let given = refused.map(|refused| refused.form);
        let body = html! {
            header {
                p { span.theirs { (self.workflow) } " asks" }
                h1.theirs dir="auto" { (title) }
            }
            @if let Some(Refused { why, .. }) = refused {
                p.alert role="alert" { "Your answer was not taken: " span.theirs { (why) } }
            }
            @if self.is_untrusted() {
                p.note { "Untrusted content: this question may hold words that somebody outside this host wrote." }
            }
            @for name in ["description", "prompt"] {
                @if let Some(text) = self.text(name) { p.lead.theirs dir="auto" { (text) } }
            }
            @if let Some(artifact) = &self.artifact { (artifact.show()) }
            @if !self.exchanges.is_empty() { (self.show_exchanges()) }
            @if !self.conversation.said.is_empty() { (self.conversation.show()) }
            @match self.only_shown {
                Some(why) => p.note { (why) },
                None if self.kind == InterruptKind::Conversation => (self.conversation.forms(&self.data, given)),
                None => (self.form(given)),
            }
            (self.facts())
            @match self.only_shown {
                Some(_) => footer { "Keep this link to yourself: whoever has it can read the question." },
                None => footer { "Keep this link to yourself: whoever has it can answer." },
            }
        };
        document(&title, &body)
    }

    /// Converts a form to the answer that a JSON client would send.
    ///
    /// # Errors
    /// A message for the user that says what is wrong with the form.
    pub(crate) fn answer(&self, form: &Form) -> Result<Value, String> {
        match self.kind {
            InterruptKind::Approval => self.decision(form),
            InterruptKind::Clarification => {
                let fields = self.fields();
                if let Some(id) = form.ids().find(|id| !fields.iter().any(|field| field.id == *id)) {
                    return Err(format!("there is no question '{id}'"));
                }
                let answers = fields
                    .iter()
                    .map(|field| Ok((field.id.to_owned(), field.read(form)?)))
                    .collect::<Result<Map<_, _>, String>>()?;
                Ok(json!({ "answers": answers }))
            }
            InterruptKind::LowConfidence => match form.text("action") {
                Some("accept") => Ok(json!({ "ratified": true })),
                Some("reject") => Ok(json!({ "rejected": true })),
                Some(_) | None => Err("choose one of the buttons".to_owned()),
            },
            InterruptKind::Conversation => conversation::turn(&self.data, form),
            InterruptKind::ExternalEvent | InterruptKind::Custom => {
                let text = form.text("value").ok_or("it needs an answer")?;
                wopr_wire::json::parse(text.as_bytes()).map_err(|_| "the answer is not JSON".to_owned())
            }
        }
    }

    fn decision(&self, form: &Form) -> Result<Value, String> {
        let action = form.text("action").ok_or("choose one of the buttons")?;
        let feedback = form.text("feedback");
        let mut answer = Map::new();
        answer.insert("action".to_owned(), action.into());
        match action {
            "refine" => {
                let text = feedback.ok_or("say what should change")?;
                answer.insert(
                    "refineFeedback".to_owned(),
                    json!({ "scope": "whole", "text": text }),
                );
                return Ok(answer.into());
            }
            "ask" => {
                let text = feedback.ok_or("write your question first")?;
                answer.insert("question".to_owned(), text.into());
                return Ok(answer.into());
            }
            "edit-accept" => {
                let edited = self.edited(form)?;
                answer.insert("editedArtifactData".to_owned(), edited);
            }
            // Only `edit-accept` submits edits; any other action would silently discard them.
            _ if self.is_edited(form) => {
                return Err(
                    "you changed the content: choose “Accept with my edits”, or undo the changes".to_owned(),
                );
            }
            _ => {}
        }
        if let Some(feedback) = feedback {
            answer.insert("feedback".to_owned(), feedback.into());
        }
        Ok(answer.into())
    }

    fn edited(&self, form: &Form) -> Result<Value, String> {
        let text = form.raw("edited").ok_or("the edited content is missing")?;
        if self.editable().is_some_and(|editable| editable.is_json) {
            return wopr_wire::json::parse(text.as_bytes())
                .map_err(|_| "the edited content is not JSON".to_owned());
        }
        Ok(text.into())
    }

    fn is_edited(&self, form: &Form) -> bool {
        match (form.raw("edited"), self.editable()) {
            (Some(text), Some(editable)) => text.trim_end() != editable.text.trim_end(),
            (Some(text), None) => !text.trim().is_empty(),
            (None, _) => false,
        }
    }

    /// The editable content. Empty if the gate has no known artifact.
    fn editable(&self) -> Option<Editable> {
        match &self.artifact {
            Some(artifact) => artifact.editable(),
            None => Some(Editable {
                text: String::new(),
                is_json: false,
            }),
        }
    }

    fn form(&self, given: Option<&Form>) -> Markup {
        html! {
            form method="post" autocomplete="off" {
                h2 { "Your answer" }
                @match self.kind {
                    InterruptKind::Approval => (self.approval(given)),
                    InterruptKind::Clarification => {
                        @for (index, field) in self.fields().iter().enumerate() { (field.show(index, given)) }
                        div.buttons { button.main type="submit" { "Send answers" } }
                    }
                    InterruptKind::LowConfidence => {
                        @if let Some(decision) = self.data.get("decision") { pre.theirs { (cut(&decision.to_string()).0) } }
                        div.buttons {
                            button.main type="submit" name="action" value="accept" { "The decision holds" }
                            button.no type="submit" name="action" value="reject" { "Reject it" }
                        }
                    }
                    // A conversation has forms of its own.
                    InterruptKind::Conversation => {}
                    InterruptKind::ExternalEvent | InterruptKind::Custom => {
                        div.field {
                            label for="value" { "Answer" }
                            p.hint id="value-hint" { "The answer is JSON, such as " code { "{\"ok\": true}" } "." }
                            textarea.code id="value" name="value" required aria-describedby="value-hint" {
                                "\n" (given.and_then(|form| form.raw("value")).unwrap_or(""))
                            }
                        }
                        div.buttons { button.main type="submit" { "Send the answer" } }
                    }
                }
            }
        }
    }

    fn approval(&self, given: Option<&Form>) -> Markup {
        let offered: Vec<&str> = self.texts("actions").collect();
        let has = |action: &str| offered.contains(&action);
        let given = |name: &str| given.and_then(|form| form.raw(name));
        let editable = self.editable().filter(|_| has("edit-accept"));
        let needs: Vec<_> = [("refine", "to ask for changes"), ("ask", "to ask a question")]
            .into_iter()
            .filter_map(|(action, what)| has(action).then_some(what))
            .collect();
        html! {
            @if let Some(editable) = &editable {
                div.field {
                    label for="edited" { "Edit before you accept" }
                    p.hint id="edited-hint" {
                        "Changes count only with “Accept with my edits”."
                        @if editable.is_json { " The content is JSON." }
                    }
                    textarea.code id="edited" name="edited" aria-describedby="edited-hint" dir="auto" {
                        "\n" (given("edited").unwrap_or(&editable.text))
                    }
                }
            }
            @if has("edit-accept") && editable.is_none() {
                p.note { "The content cannot be edited on this page: it is too large, or a part of it is not shown." }
            }
            div.field {
                label for="feedback" { "Feedback" }
                p.hint id="feedback-hint" {
                    @if needs.is_empty() { "Optional." } @else { "Needed " (needs.join(" or ")) ", otherwise optional." }
                }
                textarea id="feedback" name="feedback" aria-describedby="feedback-hint" dir="auto" {
                    "\n" (given("feedback").unwrap_or(""))
                }
            }
            div.buttons {
                @for (action, word, class) in ACTIONS {
                    @if has(action) && (action != "edit-accept" || editable.is_some()) {
                        button class=[class] type="submit" name="action" value=(action) { (word) }
                    }
                }
            }
        }
    }

    fn show_exchanges(&self) -> Markup {
        let skipped = self.exchanges.len().saturating_sub(MAX_EXCHANGES);
        html! {
            section aria-labelledby="asked" {
                h2 id="asked" { "Asked so far" }
                ul {
                    @for text in self.exchanges.iter().skip(skipped) { li.theirs dir="auto" { (beginning(text)) } }
                }
            }
        }
    }

    fn n_votes(&self, wanted: ApprovalAction) -> usize {
        self.votes.iter().filter(|action| **action == wanted).count()
    }

    fn facts(&self) -> Markup {
        let approvers: Vec<&str> = self
            .texts("approversList")
            .chain(self.texts("approverRefs"))
            .collect();
        let roles: Vec<&str> = self.texts("approverRoleRefs").collect();
        let groups: Vec<&str> = self.texts("approverGroupRefs").collect();
        let is_open = approvers.is_empty() && roles.is_empty() && groups.is_empty();
        let required = self
            .data
            .get("requiredApprovals")
            .and_then(Value::as_u64)
            .unwrap_or(1);
        html! {
            section aria-labelledby="facts" {
                h2 id="facts" { "About this question" }
                dl {
                    dt { "Asked" }
                    dd {
                        @if is_open { "whoever may answer" }
                        (named(&approvers))
                    }
                    @if !roles.is_empty() {
                        dt { "Asked roles" }
                        dd { (named(&roles)) }
                    }
                    @if !groups.is_empty() {
                        dt { "Asked groups" }
                        dd { (named(&groups)) }
                    }
                    @if let Some(holder) = self.holder {
                        dt { "You answer as" }
                        dd.theirs { (holder) }
                    }
                    @if required > 1 {
                        dt { "Approvals" }
                        dd { (self.n_votes(ApprovalAction::Accept)) " of " (required) " so far" }
                    }
                    @let n_rejects = self.n_votes(ApprovalAction::Reject);
                    @if n_rejects > 0 {
                        dt { "Rejections" }
                        dd { (n_rejects) " so far" }
                    }
                    @let n_refines = self.n_votes(ApprovalAction::Refine);
                    @if n_refines > 0 {
                        dt { "Requests for changes" }
                        dd { (n_refines) " so far" }
                    }
                    @if let Some(own) = self.own_vote {
                        dt { "Your vote" }
                        dd { (voted(own)) "; another answer replaces it" }
                    }
                    @if let Some(at) = self.requested_at {
                        dt { "Since" }
                        dd { (moment(at)) }
                    }
                    dt { "This link works until" }
                    dd { (moment(self.expires_at)) " (" (self.left()) ")" }
                    dt { "Step" }
                    dd.theirs { (self.node) }
                }
            }
        }
    }

    /// The time until the link expires, in words.
    fn left(&self) -> String {
        let minutes = (self.expires_at.as_millis() - self.now.as_millis()).max(0) / 60_000;
        let (n, unit) = match minutes {
            0 => return "in less than a minute".to_owned(),
            1..120 => (minutes, "minute"),
            120..2_880 => (minutes / 60, "hour"),
            _ => (minutes / 1_440, "day"),
        };
        format!("in {n} {unit}{}", if n == 1 { "" } else { "s" })
    }

    fn title(&self) -> String {
        if let Some(title) = self.text("title") {
            return title.to_owned();
        }
        match self.kind {
            InterruptKind::Approval => "An approval is needed".to_owned(),
            InterruptKind::Clarification => match self.fields().len() {
                1 => "A question needs an answer".to_owned(),
                n => format!("{n} questions need answers"),
            },
            InterruptKind::ExternalEvent => {
                format!(
                    "Waiting for the event '{}'",
                    self.text("eventType").unwrap_or("?")
                )
            }
            InterruptKind::Custom => "An answer is needed".to_owned(),
            InterruptKind::LowConfidence => format!(
                "The agent '{}' is not sure of its decision",
                self.text("agentId").unwrap_or("?")
            ),
            InterruptKind::Conversation => "It is your turn".to_owned(),
        }
    }

    fn is_untrusted(&self) -> bool {
        self.is_untrusted || self.text("contentTrust") == Some("untrusted")
    }

    fn fields(&self) -> Vec<Field<'_>> {
        let questions = self.data.get("questions").and_then(Value::as_array);
        questions.into_iter().flatten().filter_map(Field::of).collect()
    }

    fn text(&self, name: &str) -> Option<&str> {
        let text = self.data.get(name).and_then(Value::as_str);
        text.filter(|text| !text.trim().is_empty())
            .map(|text| cut(text).0)
    }

    fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        let list = self.data.get(name).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    }
}

/// An interrupt that is no longer open.
#[derive(Debug, Clone)]
pub(crate) enum Closed {
    /// Somebody answered: the action of an approval, and the time.
    Answered(Option<&'static str>, Timestamp),
    TimedOut,
    /// The agent that asked no longer wants an answer.
    Withdrawn,
    /// The run ended without an answer.
    Ended(&'static str),
    Otherwise,
}

impl Closed {
    pub(crate) fn page(&self, workflow: &str, node: &str) -> Markup {
        let (title, text) = match self {
            Self::Answered(action, _) => ("Answered", decided(*action).to_owned()),
            Self::TimedOut => (
                "The time to answer is over",
                "Nobody answered in time. This link cannot change that.".to_owned(),
            ),
            Self::Withdrawn => (
                "No answer is needed any more",
                "The agent that asked has withdrawn this question.".to_owned(),
            ),
            Self::Ended(status) => (
                "No answer is needed any more",
                format!("The run has ended before this question was answered. It is {status}."),
            ),
            Self::Otherwise => (
                "No answer is needed any more",
                "This question is no longer open.".to_owned(),
            ),
        };
        let at = match self {
            Self::Answered(_, at) => Some(*at),
            Self::TimedOut | Self::Withdrawn | Self::Ended(_) | Self::Otherwise => None,
        };
        let body = html! {
            header {
                p.theirs { (workflow) }
                h1 { (title) }
            }
            section {
                p.lead { (text) }
                dl {
                    dt { "Step" }
                    dd.theirs { (node) }
                    @if let Some(at) = at {
                        dt { "Answered" }
                        dd { (moment(at)) }
                    }
                }
            }
            footer { "You can close this page." }
        };
        document(title, &body)
    }
}

/// Describes the outcome of an action.
fn decided(action: Option<&str>) -> &'static str {
    match action {
        Some("accept") => "It was accepted. This link cannot change that.",
        Some("edit-accept") => "It was accepted with edits. This link cannot change that.",
        Some("reject") => "It was rejected. This link cannot change that.",
        Some("refine") => "Changes were asked for. A new question with a link of its own may follow.",
        Some(_) | None => "This question has its answer; this link cannot change it.",
    }
}

/// The page for an error.
pub(crate) fn refusal(status: StatusCode, code: &str, message: &str) -> Markup {
    let (title, text) = match (status, code) {
        (StatusCode::NOT_FOUND, _) => (
            "There is no such question",
            "The link is incomplete or wrong. Open it again from where you got it.".to_owned(),
        ),
        (StatusCode::GONE, "interrupt_expired") => (
            "This link has expired",
            "The time to answer is over. Ask for a new link, if the question is still open.".to_owned(),
        ),
        (StatusCode::GONE, _) => (
            "No answer is needed any more",
            "The run that asked was cancelled.".to_owned(),
        ),
        (StatusCode::CONFLICT, "interrupt_already_resolved") => (
            "No answer is needed any more",
            format!("The host says: {message}."),
        ),
        (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, _) => (
            "The host is busy",
            "Nothing was changed. Try again in a moment.".to_owned(),
        ),
        (status, _) if status.is_server_error() => (
            "Something went wrong",
            "The fault is on our side. Try again later.".to_owned(),
        ),
        _ => ("This is not possible", format!("The host says: {message}.")),
    };
    let body = html! {
        header { h1 { (title) } }
        section { p.lead { (text) } }
        footer { "Status " (status.as_u16()) ", " code { (code) } }
    };
    document(title, &body)
}

/// Describes the voter's own vote.
const fn voted(action: ApprovalAction) -> &'static str {
    match action {
        ApprovalAction::Accept => "accepted",
        ApprovalAction::EditAccept => "accepted with edits",
        ApprovalAction::Reject => "rejected",
        ApprovalAction::Refine => "asked for changes",
        ApprovalAction::Ask => "asked a question",
        ApprovalAction::Timeout => "none in time",
    }
}

/// The beginning of a question, if it is long.
fn beginning(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_EXCHANGE) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// Lists names, up to [`MAX_NAMED`].
fn named(names: &[&str]) -> Markup {
    html! {
        @for (n, name) in names.iter().take(MAX_NAMED).enumerate() {
            @if n > 0 { ", " }
            span.theirs { (name) }
        }
        @if names.len() > MAX_NAMED { " and " (names.len() - MAX_NAMED) " more" }
    }
}

/// A time, to the minute.
fn moment(at: Timestamp) -> Markup {
    let text = at.to_string();
    let (date, clock) = (text.get(..10).unwrap_or(&text), text.get(11..16).unwrap_or(""));
    html! { time datetime=(text) { (date) " " (clock) " UTC" } }
}

#[cfg(test)]
mod tests;
