//! Conversations: `core.conversationGate`, and the questions that supervisors ask in turns. A step opens one, takes its
//! turns, and ends with it.
//!
//! A turn leaves the step waiting; closing completes it. A turn whose message the conversation has is taken for the
//! same turn, and changes nothing.

use serde_json::{Value, json};
use wopr_kernel::{CONTENT_TRUST, Planned as _, Refusal, Seq, StepId, UNTRUSTED, fields};

use crate::{
    Change, ConversationEvent, Event, Failure, InterruptKind, Object, Role, Timestamp, Turn, cost,
    measure::size_of,
    node::{ConversationNode, NodeKind},
};

use super::Walk;

/// Maximum size in bytes of one turn's content, and of an outcome.
const MAX_CONTENT: usize = 64 * 1024;
/// Maximum length in bytes of the id of a message.
const MAX_ID: usize = 256;

impl Walk<'_, '_> {
    pub(super) fn converse(&mut self, position: usize, step: &StepId, started: Seq, node: &ConversationNode) {
        let opened = self.open_conversation(position, step, started, node);
        if let Err(failure) = opened {
            self.fail_node(step, started, failure);
        }
    }

    fn open_conversation(
        &mut self,
        position: usize,
        step: &StepId,
        started: Seq,
        node: &ConversationNode,
    ) -> Result<(), Failure> {
        let render = |text: &Option<_>| text.as_ref().map(|text| self.render(text)).transpose();
        let (title, prompt) = (render(&node.title)?, render(&node.prompt)?);
        let prompt = prompt.filter(|prompt| !prompt.trim().is_empty());
        let prompt = prompt
            .or_else(|| title.clone())
            .unwrap_or_else(|| "It is your turn.".to_owned());
        let at = node
            .scripted
            .map_or(self.input.now, |_| Timestamp::from_millis(0));
        let first = Turn {
            index: 0,
            message: format!("{}:0:system", name_of(step)),
            from: self.agent_of(position),
            role: Role::System,
            content: prompt.as_str().into(),
            at,
        };
        let cause = self.take(step, started, node, first, Change::Opened)?;
        if let Some(n_pairs) = node.scripted {
            return self.play_conversation(position, step, cause, node, n_pairs);
        }
        self.await_turns(step, cause, node, &prompt, title);
        Ok(())
    }

    /// Opens the conversation in which a supervisor asks for words.
    pub(super) fn ask_in_turns(
        &mut self,
        position: usize,
        step: &StepId,
        cause: Seq,
        node: &ConversationNode,
        prompt: &str,
    ) {
        let first = Turn {
            index: 0,
            message: format!("{}:agent", step.key()),
            from: self.agent_of(position),
            role: Role::Agent,
            content: prompt.into(),
            at: self.input.now,
        };
        match self.take(step, cause, node, first, Change::Opened) {
            Ok(cause) => self.await_turns(step, cause, node, prompt, None),
            Err(failure) => self.fail_node(step, cause, failure),
        }
    }

    fn await_turns(
        &mut self,
        step: &StepId,
        cause: Seq,
        node: &ConversationNode,
        prompt: &str,
        title: Option<String>,
    ) {
        let mut data = json!({
            "conversationId": step.key(),
            "prompt": prompt,
            "turnIndex": 1,
            "maxTurns": node.max_turns,
        });
        if let Some(title) = title {
            data["title"] = title.into();
        }
        if let Some((_, schema)) = &node.outcome {
            data["outcomeSchema"] = schema.clone();
        }
        let why = fields(json!({ "reason": "conversation-input", "conversationId": step.key() }));
        let question = (InterruptKind::Conversation, data);
        self.interrupt_because(step, cause, question, node.timeout_ms, why);
    }

    /// A conversation between two sides that the settings script.
    fn play_conversation(
        &mut self,
        position: usize,
        step: &StepId,
        mut cause: Seq,
        node: &ConversationNode,
        n_pairs: u32,
    ) -> Result<(), Failure> {
        let name = name_of(step);
        let turn = |index: u32, role: Role, from: &str, text: &str| Turn {
            index,
            message: format!("{name}:{index}:{}", role.as_str()),
            from: from.to_owned(),
            role,
            content: text.into(),
            at: Timestamp::from_millis(i64::from(index) * 1_000),
        };
        let agent = self.agent_of(position);
        for pair in 0..n_pairs {
            let question = turn(2 * pair + 1, Role::User, "user", "A scripted question.");
            cause = self.take(step, cause, node, question, Change::Exchanged)?;
            let answer = turn(2 * pair + 2, Role::Agent, &agent, "A scripted answer.");
            cause = self.take(step, cause, node, answer, Change::Exchanged)?;
        }
        let last = turn(2 * n_pairs + 1, Role::System, &agent, "The conversation is over.");
        let closed = Change::Closed {
            outcome: None,
            reason: Some("scripted".to_owned()),
        };
        cause = self.take(step, cause, node, last, closed)?;
        self.end_conversation(step, cause, None);
        Ok(())
    }

    /// Follows what somebody said at a gate.
    pub(super) fn turn_taken(
        &mut self,
        position: usize,
        step: &StepId,
        by: &str,
        value: &Value,
        closes: bool,
    ) -> Result<(), Refusal> {
        let plan = self.plan;
        let node = plan.nodes[position]
            .kind
            .conversation()
            .ok_or(Refusal::NoInterrupt)?;
        let refuse = |rule: String| Refusal::InvalidAnswer(rule);
        let conversation = self.state.conversing.at(&step.node).ok_or(Refusal::NoInterrupt)?;
        let index = u32::try_from(conversation.turns.len()).unwrap_or(u32::MAX);
        let said = Said::read(value, closes).map_err(refuse)?;
        if said.role == Role::Agent && self.outside.is_some() {
            let rule = "'role' is agent, and nobody vouches for who answers: leave it out, or write user";
            return Err(refuse(rule.to_owned()));
        }
        if let Some(message) = &said.message
            && !closes
            && conversation.turns.iter().any(|turn| turn.message == *message)
        {
            return Ok(());
        }
        // A turn that gets this id later would be taken for the same one, in this conversation or in its channel.
        if let Some(message) = said
            .message
            .as_ref()
            .filter(|message| self.is_id_of_host(message))
        {
            let rule =
                format!("'messageId' is '{message}', which is how this host names turns: choose another one");
            return Err(refuse(rule));
        }
        if index > node.max_turns && !closes {
            return Err(refuse(format!(
                "the conversation has {} turns, which is the most; it can be closed",
                node.max_turns
            )));
        }
        if let (Some((schema, _)), true) = (&node.outcome, closes) {
            let outcome = said.outcome.as_ref().unwrap_or(&Value::Null);
            let checked = schema.validate(outcome, &self.budget.meter());
            checked.map_err(|error| match said.outcome {
                Some(_) => refuse(format!("the outcome does not match its schema: {error}")),
                None => {
                    refuse("the conversation ends with an 'outcome', as its outcomeSchema says".to_owned())
                }
            })?;
        }
        let turn = Turn {
            index,
            message: said.message.unwrap_or_else(|| format!("{}:{index}", step.key())),
            from: match said.role {
                Role::Agent => self.agent_of(position),
                Role::User | Role::System => by.to_owned(),
            },
            role: said.role,
            content: said.content,
            at: self.input.now,
        };
        let cause = self.last().unwrap_or_default();
        if !closes {
            let taken = self.take(step, cause, node, turn, Change::Exchanged);
            return taken.map(drop).map_err(|failure| refuse(failure.message));
        }
        let outcome = said.outcome;
        let cause = self.close_turns(step, by, value);
        let closed = Change::Closed {
            outcome: outcome.clone(),
            reason: said.reason,
        };
        match self.take(step, cause, node, turn, closed) {
            Ok(cause) => self.end_conversation(step, cause, outcome),
            Err(failure) => self.fail_node(step, cause, failure),
        }
        Ok(())
    }

    /// Fails a node whose interrupt nobody answered in time, and closes its conversation if it has one.
    pub(super) fn unanswered(&mut self, position: usize, step: &StepId, cause: Seq) {
        let plan = self.plan;
        let failure = Failure::new("interrupt_timeout", "nobody answered in time");
        let Some(node) = plan.nodes[position].kind.conversation() else {
            return self.fail_node(step, cause, failure);
        };
        let n_turns = self
            .state
            .conversing
            .at(&step.node)
            .map_or(0, |open| open.turns.len());
        let index = u32::try_from(n_turns).unwrap_or(u32::MAX);
        let last = Turn {
            index,
            message: format!("{}:{index}", step.key()),
            from: self.agent_of(position),
            role: Role::System,
            content: "Nobody answered in time.".into(),
            at: self.input.now,
        };
        let closed = Change::Closed {
            outcome: None,
            reason: Some("timeout".to_owned()),
        };
        let cause = self.take(step, cause, node, last, closed).unwrap_or(cause);
        self.fail_node(step, cause, failure);
    }

    /// Records a turn, and writes it to the channel if the workflow declares it.
    fn take(
        &mut self,
        step: &StepId,
        cause: Seq,
        node: &ConversationNode,
        turn: Turn,
        change: Change,
    ) -> Result<Seq, Failure> {
        let kept = cost::of_value(&turn.content) + 4;
        self.spend(2 * kept)?;
        self.hold(kept, 0)?;
        let shown = turn.shown();
        let event = ConversationEvent {
            step: step.clone(),
            turn,
            change,
        };
        let cause = self.emit(Some(cause), Event::Conversation(Box::new(event)));
        if !self.plan.definition.channels.contains_key(&node.channel) {
            return Ok(cause);
        }
        let position = self.plan.position_of(step.node.as_str()).unwrap_or_default();
        self.write_channel(position, cause, &node.channel, shown, None, (None, None))
    }

    fn end_conversation(&mut self, step: &StepId, cause: Seq, outcome: Option<Value>) {
        let Some(conversation) = self.state.conversing.at(&step.node) else {
            return;
        };
        let turns: Vec<_> = conversation.turns.iter().map(Turn::shown).collect();
        let mut outputs = fields(json!({
            "conversationId": step.key(),
            "turnCount": turns.len(),
            "turns": turns,
        }));
        let position = self.plan.position(&step.node);
        if position.is_some_and(|position| matches!(self.plan.nodes[position].kind, NodeKind::Dispatch(_))) {
            outputs.insert("answer".to_owned(), answer(&conversation.turns));
        }
        if conversation.is_untrusted {
            outputs.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        if let Some(outcome) = outcome {
            outputs.insert("outcome".to_owned(), outcome);
        }
        self.complete_node(step, cause, outputs);
    }

    /// Whether the host may give a turn this id: that of a node, the number of the execution, and another part.
    fn is_id_of_host(&self, id: &str) -> bool {
        let execution = id.rsplit_once(':').map(|(execution, _)| execution);
        let parts = execution.and_then(|execution| execution.rsplit_once(':'));
        parts.is_some_and(|(node, ordinal)| {
            self.plan.position_of(node).is_some() && ordinal.bytes().all(|byte| byte.is_ascii_digit())
        })
    }

    fn agent_of(&self, position: usize) -> String {
        let node = &self.plan.nodes[position];
        // A dispatch asks for the supervisor whose decision it follows.
        if let (NodeKind::Dispatch(_), Some(supervision)) = (&node.kind, &self.state.supervision) {
            return supervision.agent.clone();
        }
        let pinned = node.agent.as_ref().map(|agent| agent.agent_id.clone());
        pinned.unwrap_or_else(|| format!("host:conversation:{}", node.id))
    }
}

/// What a supervisor learns from a conversation: the last thing that a person said in it.
fn answer(turns: &[Turn]) -> Value {
    let mut said = turns.iter().rev().filter(|turn| match turn.role {
        Role::User => !turn.content.is_null(),
        Role::Agent | Role::System => false,
    });
    said.next().map(|turn| turn.content.clone()).unwrap_or_default()
}

/// An answer at a gate.
struct Said {
    message: Option<String>,
    role: Role,
    content: Value,
    outcome: Option<Value>,
    reason: Option<String>,
}

impl Said {
    /// Reads `{operation?, content, messageId?, role?, outcome?, reason?}`; a text is a content.
    fn read(value: &Value, closes: bool) -> Result<Self, String> {
        let empty = Object::new();
        let named = value.as_object();
        let is_named = named.is_some_and(|fields| {
            ["operation", "content"]
                .iter()
                .any(|name| fields.contains_key(*name))
        });
        let fields = named.filter(|_| is_named).unwrap_or(&empty);
        let known = [
            "operation",
            "content",
            "messageId",
            "role",
            "outcome",
            "reason",
            "decidedBy",
            "decidedAt",
            "voter",
        ];
        if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("'{unknown}' is not known"));
        }
        let text = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if (1..=MAX_ID).contains(&text.len()) => Ok(Some(text.clone())),
            Some(_) => Err(format!("'{name}' is not a text of 1 to {MAX_ID} bytes")),
        };
        let content = if is_named {
            fields.get("content").cloned().unwrap_or_default()
        } else {
            value.clone()
        };
        if content.is_null() && !closes {
            return Err("'content' is missing".to_owned());
        }
        let outcome = fields
            .get("outcome")
            .filter(|outcome| !outcome.is_null())
            .cloned();
        if outcome.is_some() && !closes {
            return Err("'outcome' belongs to the end of a conversation".to_owned());
        }
        for (name, value) in [("content", Some(&content)), ("outcome", outcome.as_ref())] {
            let size = value.map_or(0, size_of);
            if size > MAX_CONTENT {
                return Err(format!(
                    "'{name}' has {size} bytes, and {MAX_CONTENT} is the most"
                ));
            }
        }
        Ok(Self {
            message: text("messageId")?,
            role: match text("role")?.as_deref() {
                None | Some("user") => Role::User,
                Some("agent") => Role::Agent,
                Some(_) => return Err("'role' is neither user nor agent".to_owned()),
            },
            content,
            outcome,
            reason: text("reason")?,
        })
    }
}

/// The first part of the ids of an execution's messages. The conformance suite knows those of a first execution by the
/// node alone.
fn name_of(step: &StepId) -> String {
    match step.ordinal {
        0 => step.node.to_string(),
        _ => step.key(),
    }
}
