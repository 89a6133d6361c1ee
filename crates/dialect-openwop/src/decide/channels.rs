//! Writes to channels: what a node writes is checked against the declaration, and charged.

use serde_json::{Value, json};
use wopr_kernel::{Seq, StepId};

use crate::{Event, Failure, Object, channel, cost, measure::too_deep, whole};

use super::{Walk, node::nested};

/// How long an entry stays, and how many there may be; what the declaration says where absent.
pub(super) type Limits = (Option<u64>, Option<u64>);

impl Walk<'_, '_> {
    /// Writes a value, with the declared reducer, else the given one, else `append`.
    pub(super) fn write_channel(
        &mut self,
        position: usize,
        cause: Seq,
        channel: &str,
        value: Value,
        reducer: Option<&str>,
        (ttl_ms, max_size): Limits,
    ) -> Result<Seq, Failure> {
        let plan = self.plan;
        let node = &plan.nodes[position];
        let declared = plan.definition.channels.get(channel);
        let declared_text = |field: &str| declared.and_then(|d| d.get(field)).and_then(Value::as_str);
        let declared_number = |field: &str| declared.and_then(|d| d.get(field)).and_then(whole);
        let reducer = declared_text("reducer")
            .or(reducer)
            .unwrap_or("append")
            .to_owned();
        if too_deep(&value) {
            return Err(nested("the value"));
        }
        // The fold copies the channel four times: to check its size and its schema, as the channel, and as the
        // variable of the same name.
        let current = self.state.channels.get(channel).map_or(0, cost::of_value);
        let added = cost::of_value(&value);
        self.spend(2 * added + 4 * current)?;
        self.hold(2 * added, 0)?;
        let ttl_ms = ttl_ms.or_else(|| declared_number("ttlMs"));
        let max_size = max_size.or_else(|| declared_number("maxSize"));
        let write = channel::Write {
            value: &value,
            reducer: &reducer,
            ttl_ms,
            max_size,
            at: self.input.now,
        };
        let guard = plan.channel(channel);
        if let Some(guard) = guard {
            guard.check_writer(channel, node.id.as_str(), &node.type_id)?;
        }
        let current = self.state.channels.get(channel);
        channel::check_form(channel, current, &write)?;
        if let Some(guard) = guard {
            guard.check_write(channel, current, &write, &self.budget)?;
        }
        let written = Event::ChannelWritten {
            channel: channel.to_owned(),
            value,
            reducer,
            ttl_ms,
            max_size,
            node: node.id.clone(),
            written_at: self.input.now,
        };
        Ok(self.emit(Some(cause), written))
    }

    /// Writes three messages to the channel `messages`, the last of which has the id of the one before.
    pub(super) fn write_duplicates(&mut self, position: usize, step: &StepId, started: Seq, inputs: Object) {
        let mut cause = started;
        for n in [1, 2, 2] {
            let message = json!({
                "messageId": format!("{}:msg-{n}", step.node),
                "role": "agent",
                "content": format!("message {n}"),
                "timestamp": self.input.now.to_text(),
            });
            let none = (None, None);
            match self.write_channel(position, cause, "messages", message, Some("message"), none) {
                Ok(written) => cause = written,
                Err(failure) => return self.fail_node(step, cause, failure),
            }
        }
        self.complete_node(step, cause, inputs);
    }
}
