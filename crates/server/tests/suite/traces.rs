//! Trace contexts of clients, as the work of the runs that they start has them.

use serde_json::{Value, json};

use crate::{agents::Hosts, awp_control::document, client::Call, server::Server};

const INNER: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OUTER: &str = "0af7651916cd43dd8448eb211c80319c";

fn parent(trace: &str) -> String {
    format!("00-{trace}-00f067aa0ba902b7-01")
}

fn in_trace(call: Call, trace: &str, state: &str) -> Call {
    call.header("traceparent", &parent(trace))
        .header("tracestate", state)
}

/// The id of the trace and the state that the next activity of a queue has.
async fn trace_of_next(server: &Server, queue: &str) -> (String, Value) {
    let body = json!({ "queue": queue, "waitMs": 20_000 });
    let leased = server.post("/v1/activities:lease", &body).send().await.ok(200);
    let activity = &leased["activities"][0];
    let parent = activity["traceparent"]
        .as_str()
        .unwrap_or_else(|| panic!("{leased}"));
    (parent[3..35].to_owned(), activity["tracestate"].clone())
}

fn traced() -> Value {
    let work = json!({ "id": "work", "type": "tool_call", "config": { "server": "s", "tool": "t" } });
    document("traced", &[work])
}

async fn start() -> Server {
    Server::start_with(|config| {
        config.server.public_url = Some("http://test".parse().unwrap());
    })
    .await
}

#[tokio::test]
async fn work_has_the_trace_context_of_the_request() {
    let server = start().await;
    let body = json!({ "definition": traced() });
    let registered = server.post("/awp/v1/workflows", &body).send().await.ok(201);
    let executions = format!(
        "/awp/v1/workflows/{}/executions",
        registered["wf_id"].as_str().unwrap()
    );
    for (path, body, queue) in [
        ("/v1/runs", json!({ "workflowId": "activity" }), "letters"),
        (
            &*executions,
            json!({ "activity_execution_mode": "host_mediated" }),
            "awp.tool_call",
        ),
    ] {
        let post = in_trace(server.post(path, &body), INNER, "a=1, b=2").header("tracestate", "c=3");
        let reply = post.send().await;
        assert_eq!(reply.header("tracestate"), Some("a=1,b=2,c=3"), "{path}");
        let traced = trace_of_next(&server, queue).await;
        assert_eq!(traced, (INNER.to_owned(), json!("a=1,b=2,c=3")), "{path}");
    }
    server.stop().await;
}

/// A request whose message may carry a trace context of its own.
struct Carrier {
    path: &'static str,
    version: Option<&'static str>,
    body: Value,
    /// What has the metadata, and the name of these.
    place: (&'static str, &'static str),
    queue: &'static str,
}

impl Carrier {
    fn tool(name: &str, arguments: Value, queue: &'static str) -> Self {
        Self {
            path: "/mcp",
            version: None,
            body: json!({ "method": "tools/call", "params": { "name": name, "arguments": arguments } }),
            place: ("/params", "_meta"),
            queue,
        }
    }

    fn message(version: &'static str, method: &str, message: Value, configuration: Value) -> Self {
        Self {
            path: "/a2a",
            version: Some(version),
            body: json!({ "method": method, "params": { "message": message, "configuration": configuration } }),
            place: ("/params/message", "metadata"),
            queue: "letters",
        }
    }

    /// The call whose message carries this context.
    fn call(&self, server: &Server, id: &str, context: Value) -> Call {
        let mut body = self.body.clone();
        body["jsonrpc"] = "2.0".into();
        body["id"] = id.into();
        let (place, name) = self.place;
        let place = body.pointer_mut(place).unwrap();
        match self.version {
            None => place[name] = context,
            Some(_) => {
                place["messageId"] = id.into();
                place[name] = json!({ "openwop": context });
                place[name]["openwop"]["workflowId"] = "activity".into();
            }
        }
        let call = server.post(self.path, &body);
        match self.version {
            None => call.header("accept", "application/json, text/event-stream"),
            Some(version) => call.header("a2a-version", version),
        }
    }
}

#[tokio::test]
async fn valid_trace_context_of_a_message_comes_before_that_of_its_request() {
    let server = start().await;
    let execution =
        json!({ "definition": traced(), "input": {}, "activity_execution_mode": "host_mediated" });
    let carriers = [
        Carrier::tool("wopr_start_run", json!({ "workflowId": "activity" }), "letters"),
        Carrier::tool("workflow_start", execution, "awp.tool_call"),
        Carrier::message(
            "1.0",
            "SendMessage",
            json!({ "role": "ROLE_USER", "parts": [{ "text": "hi" }] }),
            json!({ "returnImmediately": true }),
        ),
        Carrier::message(
            "0.3",
            "message/send",
            json!({ "kind": "message", "role": "user", "parts": [{ "kind": "text", "text": "hi" }] }),
            json!({ "blocking": false }),
        ),
    ];
    for carrier in carriers {
        for (id, own, (trace, state)) in [
            ("one", parent(INNER), (INNER, json!("a=1"))),
            ("two", "malformed".to_owned(), (OUTER, json!("b=2"))),
        ] {
            let id = format!("{id}-{:?}", carrier.version);
            let own = json!({ "traceparent": own, "tracestate": "a=1" });
            let call = in_trace(carrier.call(&server, &id, own), OUTER, "b=2");
            // A tool waits for its run.
            let calling = tokio::spawn(async move { call.send().await });
            let traced = trace_of_next(&server, carrier.queue).await;
            assert_eq!(traced, (trace.to_owned(), state), "{}", carrier.body);
            calling.abort();
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn trace_context_goes_on_to_a_called_agent() {
    let hosts = Hosts::start().await;
    let invoke = crate::agents::invoke(json!({ "skill": "activity" }));
    hosts.caller.post("/v1/workflows", &invoke).send().await.ok(201);
    let start = hosts.caller.post("/v1/runs", &json!({ "workflowId": "ask" }));
    in_trace(start, INNER, "a=1").send().await.ok(201);
    let traced = trace_of_next(&hosts.callee, "letters").await;
    assert_eq!(traced, (INNER.to_owned(), json!("a=1")));
}
