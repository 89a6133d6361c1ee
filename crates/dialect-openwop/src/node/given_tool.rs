//! The host's own workflow that calls a tool of a server for a model: a run of it is the call.
//!
//! The model's node names server and tool, and nobody else can: only such a node starts a run of this workflow, and the
//! type of its node is in no other. So whoever may start runs cannot choose a tool by its inputs.

use serde_json::{Value, json};
use wopr_kernel::{ToolRequest, measure::may_be_parsed};

use super::server_tools::ServerTool;
use crate::{Object, WorkflowId};

pub(crate) const TYPE: &str = "host.mcp.toolCall";
const ID: &str = "host-mcp-tool";

const SERVER: &str = "_server";
const TOOL: &str = "_tool";
const RETRY_SAFE: &str = "_retrySafe";
const TIMEOUT: &str = "_timeoutMs";
const ARGUMENTS: &str = "arguments";

/// The id of the workflow that calls a tool of a server for a model.
#[must_use]
pub fn tool_workflow_id() -> WorkflowId {
    WorkflowId::parse(ID).expect("letters and hyphens")
}

pub(crate) fn is_tool_workflow(id: &WorkflowId) -> bool {
    id.as_str() == ID
}

/// The workflow that calls a tool of a server for a model. A host with servers registers it.
#[must_use]
pub fn tool_workflow() -> Value {
    let variable =
        |name: &str, kind: &str, required: bool| json!({ "name": name, "type": kind, "required": required });
    // What the model says and is told is for those who may read it at the model's node, which knows what is sensitive.
    let mut arguments = variable(ARGUMENTS, "object", true);
    arguments["sensitive"] = true.into();
    let outputs = json!({ "text": true, "structuredContent": true, "content": true });
    json!({
        "id": ID,
        "name": "Tool of a model",
        "version": "1",
        "nodes": [{ "id": "call", "typeId": TYPE, "name": "Call the tool", "outputSensitivity": outputs }],
        "edges": [],
        "triggers": [],
        "variables": [
            variable(SERVER, "string", true),
            variable(TOOL, "string", true),
            arguments,
            variable(RETRY_SAFE, "boolean", false),
            variable(TIMEOUT, "number", false),
        ],
        "metadata": { "public": false },
        "settings": {},
    })
}

/// What a run of the workflow is started with.
pub(crate) fn inputs_of(tool: &ServerTool, arguments: Value) -> Object {
    let mut inputs = Object::from_iter([
        (SERVER.to_owned(), Value::from(tool.server.as_str())),
        (TOOL.to_owned(), tool.tool.as_str().into()),
        (ARGUMENTS.to_owned(), arguments),
    ]);
    inputs.extend(tool.retry_safe.map(|safe| (RETRY_SAFE.to_owned(), safe.into())));
    inputs.extend(tool.timeout_ms.map(|ms| (TIMEOUT.to_owned(), ms.into())));
    inputs
}

/// What a run with these inputs asks; `None` if they are not of [`inputs_of`].
pub(crate) fn request_of(inputs: &Object) -> Option<ToolRequest> {
    let text = |name: &str| inputs.get(name)?.as_str().map(str::to_owned);
    Some(ToolRequest {
        server: text(SERVER)?,
        tool: text(TOOL)?,
        arguments: inputs.get(ARGUMENTS)?.as_object()?.clone(),
        retry_safe: inputs.get(RETRY_SAFE).and_then(Value::as_bool),
        timeout_ms: inputs.get(TIMEOUT).and_then(Value::as_u64),
    })
}

/// Of what a tool gave, that which a model reads: its text, its structured content, and parts of other kinds without
/// their binary content. A text that only repeats the structured content is left out.
pub(crate) fn told(mut outcome: Object) -> Object {
    let mut told = Object::new();
    let structured = outcome.remove("structuredContent");
    let text = outcome.remove("text");
    let repeats = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        structured.is_some() && may_be_parsed(text) && serde_json::from_str::<Value>(text).ok() == structured
    };
    told.extend(
        text.filter(|text| !repeats(text))
            .map(|text| ("text".to_owned(), text)),
    );
    told.extend(structured.map(|value| ("structuredContent".to_owned(), value)));
    let is_text = |part: &Value| part.get("type").and_then(Value::as_str) == Some("text");
    if let Some(Value::Array(mut parts)) = outcome.remove("content")
        && !parts.iter().all(is_text)
    {
        parts.iter_mut().for_each(leave_out_bytes);
        told.insert("content".to_owned(), parts.into());
    }
    told
}

/// Replaces the bytes of an image, a sound or a file by their size.
fn leave_out_bytes(part: &mut Value) {
    let said = |text: &str| Value::from(format!("left out: {} characters of base64", text.len()));
    if let Some(data) = part.get_mut("data")
        && let Some(text) = data.as_str()
    {
        *data = said(text);
    }
    if let Some(blob) = part.pointer_mut("/resource/blob")
        && let Some(text) = blob.as_str()
    {
        *blob = said(text);
    }
}

#[cfg(test)]
mod tests {
    use wopr_kernel::{NodeTypes, fields};

    use super::*;
    use crate::Plan;

    #[test]
    fn workflow_of_tools_is_valid_and_no_other_has_its_node_or_id() {
        let plan = Plan::admit(tool_workflow(), NodeTypes::default()).expect("valid");
        assert_eq!(plan.warnings(), []);
        let admit = |id: &str, type_id: &str| {
            let document = json!({
                "id": id, "name": "w", "version": "1", "nodes": [{ "id": "n", "typeId": type_id, "name": "n" }], "edges": [],
                "triggers": [], "variables": [], "metadata": {}, "settings": {},
            });
            Plan::admit(document, NodeTypes::default())
                .map(drop)
                .map_err(|problems| problems.to_string())
        };
        assert!(
            admit("w", TYPE)
                .unwrap_err()
                .contains("is not offered by this host"),
            "its node"
        );
        assert!(
            admit(ID, "core.noop").unwrap_err().contains("the host's own"),
            "its id"
        );
        assert!(admit(ID, TYPE).is_err(), "both, in other words");
    }

    #[test]
    fn inputs_say_what_is_asked() {
        let tool = ServerTool {
            server: "files".to_owned(),
            tool: "read".to_owned(),
            retry_safe: Some(true),
            timeout_ms: Some(50),
        };
        let request = request_of(&inputs_of(&tool, json!({ "path": "/a", "_tool": "delete" }))).unwrap();
        assert_eq!(
            (request.server.as_str(), request.tool.as_str()),
            ("files", "read")
        );
        assert_eq!((request.retry_safe, request.timeout_ms), (Some(true), Some(50)));
        assert_eq!(request.arguments["_tool"], "delete");
        assert_eq!(request_of(&Object::new()), None);
    }

    #[test]
    fn model_reads_no_bytes_and_nothing_twice() {
        let outcome = |value: Value| told(fields(value));
        let texts = json!([{ "type": "text", "text": "{\"a\": 1}" }]);
        assert_eq!(
            outcome(
                json!({ "content": texts, "text": "{\"a\": 1}", "server": "s", "tool": "t", "contentTrust": "untrusted" })
            ),
            fields(json!({ "text": "{\"a\": 1}" }))
        );
        assert_eq!(
            outcome(json!({ "content": texts, "text": "{\"a\": 1}", "structuredContent": { "a": 1 } })),
            fields(json!({ "structuredContent": { "a": 1 } }))
        );
        let mixed = json!([
            { "type": "text", "text": "see" },
            { "type": "image", "mimeType": "image/png", "data": "AAAA" },
            { "type": "resource", "resource": { "uri": "file:///a", "blob": "AAAAAA" } },
        ]);
        assert_eq!(
            outcome(json!({ "content": mixed, "text": "see" })),
            fields(json!({ "text": "see", "content": [
                { "type": "text", "text": "see" },
                { "type": "image", "mimeType": "image/png", "data": "left out: 4 characters of base64" },
                { "type": "resource", "resource": { "uri": "file:///a", "blob": "left out: 6 characters of base64" } },
            ] }))
        );
    }
}
