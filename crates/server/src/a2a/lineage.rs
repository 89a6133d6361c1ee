//! Which run of which host sent a message, and in which trace, as the message says.

use std::borrow::Cow;

use serde_json::{Value, json};
use wopr_core::TraceContext;
use wopr_wire::a2a::model::{Message, Metadata};

use super::metadata::find;
use crate::telemetry;

/// The member of a run's metadata that names the calling run.
pub(crate) const CALLER: &str = "caller";
/// The members with a trace context.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];
/// Longest text that is kept, in bytes.
const MAX_TEXT: usize = 512;

/// The calling run, if the message names it and its host.
pub(super) fn caller(metadata: &Metadata) -> Option<Value> {
    let text = |name: &str| {
        let text = find(metadata, &["openwop", name]).and_then(Value::as_str);
        text.filter(|text| (1..=MAX_TEXT).contains(&text.len()))
    };
    let run = text("callerRunId").or(text("runId"))?;
    let mut caller = json!({ "runId": run, "hostId": text("hostId")? });
    if let Some(url) = text("wellKnownUrl").filter(|url| is_web_address(url)) {
        caller["wellKnownUrl"] = url.into();
    }
    Some(caller)
}

/// The trace context that the message carries.
pub(super) fn trace(metadata: &Metadata) -> Option<TraceContext> {
    let [parent, state] = TRACE.map(|name| find(metadata, &["openwop", name]));
    telemetry::trace_in(parent, state)
}

/// The message without its trace context: a client that repeats a message may do so in another span.
pub(super) fn untraced(message: &Message) -> Cow<'_, Message> {
    let is_traced = |name| find(&message.metadata, &["openwop", name]).is_some();
    if !TRACE.into_iter().any(is_traced) {
        return Cow::Borrowed(message);
    }
    let mut message = message.clone();
    for name in TRACE {
        message.metadata.remove(&format!("openwop.{name}"));
        if let Some(Value::Object(members)) = message.metadata.get_mut("openwop") {
            members.remove(name);
        }
    }
    if message.metadata.get("openwop") == Some(&json!({})) {
        message.metadata.remove("openwop");
    }
    Cow::Owned(message)
}

fn is_web_address(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || c.is_control()))
}

#[cfg(test)]
mod tests {
    use wopr_wire::a2a::model::Role;

    use super::*;

    #[test]
    fn a_message_is_the_same_in_another_trace() {
        let message = |metadata: Value| Message {
            message_id: "id".to_owned(),
            context_id: None,
            task_id: None,
            role: Role::User,
            parts: Vec::new(),
            metadata: metadata.as_object().unwrap().clone(),
            extensions: Vec::new(),
            reference_task_ids: Vec::new(),
            unreadable: Vec::new(),
        };
        let bare = message(json!({ "a": 1 }));
        for traced in [
            json!({ "a": 1, "openwop": { "traceparent": "00-1", "tracestate": "x=1" } }),
            json!({ "a": 1, "openwop.traceparent": "00-2" }),
            json!({ "a": 1 }),
        ] {
            assert_eq!(*untraced(&message(traced)), bare);
        }
        let named = message(json!({ "openwop": { "traceparent": "00-1", "runId": "r" } }));
        assert_eq!(*untraced(&named), message(json!({ "openwop": { "runId": "r" } })));
    }

    #[test]
    fn caller_is_named_only_with_its_host_and_within_bounds() {
        let named = |openwop: Value| {
            let metadata = json!({ "openwop": openwop });
            caller(metadata.as_object().unwrap())
        };
        let all = json!({
            "runId": "r", "callerRunId": "c", "hostId": "h",
            "wellKnownUrl": "https://a.example/.well-known/openwop",
        });
        let whole = json!({
            "runId": "c", "hostId": "h",
            "wellKnownUrl": "https://a.example/.well-known/openwop",
        });
        assert_eq!(named(all), Some(whole));
        assert_eq!(
            named(json!({ "runId": "r", "hostId": "h", "wellKnownUrl": "javascript:alert(1)" })),
            Some(json!({ "runId": "r", "hostId": "h" }))
        );
        for unnamed in [
            json!({}),
            json!({ "runId": "r" }),
            json!({ "hostId": "h" }),
            json!({ "runId": 1, "hostId": "h" }),
            json!({ "runId": "x".repeat(513), "hostId": "h" }),
        ] {
            assert_eq!(named(unnamed.clone()), None, "{unnamed}");
        }
    }
}
