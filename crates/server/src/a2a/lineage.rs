//! Which run of which host sent a message, and in which trace, as the message says.

use serde_json::{Value, json};
use wopr_core::TraceContext;
use wopr_wire::a2a::model::Metadata;

use super::metadata::find;
use crate::telemetry;

/// The member of a run's metadata that names the calling run.
pub(crate) const CALLER: &str = "caller";
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
    let member = |name: &str| find(metadata, &["openwop", name]);
    telemetry::trace_in(member("traceparent"), member("tracestate"))
}

fn is_web_address(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || c.is_control()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
