//! Blocks of content that this host does not know: of a newer protocol, or not as the protocol says.
//!
//! One such block must not cost the rest of a result. Before a result is read, each becomes an empty text that has the
//! block in its metadata; in the outputs of the call the block is again as the server sent it.

use rmcp::model::{ContentBlock, ServerJsonRpcMessage, ServerResult};
use serde_json::{Value, json};

/// The member of a text's metadata that has the block.
const UNKNOWN: &str = "wopr/unknown";

/// Makes a result of a tool of what was read as something else only because it has unknown blocks. Returns `true` if it
/// changed the message.
pub(super) fn wrap(message: &mut ServerJsonRpcMessage) -> bool {
    let ServerJsonRpcMessage::Response(response) = message else {
        return false;
    };
    let ServerResult::CustomResult(custom) = &mut response.result else {
        return false;
    };
    let Some(Value::Array(blocks)) = custom.0.get_mut("content") else {
        return false;
    };
    for block in blocks {
        if serde_json::from_value::<ContentBlock>(block.clone()).is_err() {
            *block = json!({ "type": "text", "text": "", "_meta": { UNKNOWN: block.take() } });
        }
    }
    match serde_json::from_value(custom.0.take()) {
        Ok(result) => response.result = ServerResult::CallToolResult(result),
        Err(error) => {
            tracing::debug!(%error, "a result of a tool cannot be read");
            return false;
        }
    }
    true
}

/// The text of a block; `None` if it has none, or stands for a block that is not known.
pub(super) fn text(block: &ContentBlock) -> Option<&str> {
    let text = block.as_text()?;
    let stands_for = text.meta.as_ref().and_then(|meta| meta.get(UNKNOWN));
    stands_for.is_none().then_some(text.text.as_str())
}

/// Puts unknown blocks back in the place of the texts that stand for them.
pub(super) fn unwrap(content: &mut Value) {
    for block in content.as_array_mut().into_iter().flatten() {
        let meta = block.get_mut("_meta");
        if let Some(unknown) = meta.and_then(|meta| meta.get_mut(UNKNOWN)) {
            *block = unknown.take();
        }
    }
}
