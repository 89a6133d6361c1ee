//! Calls of tools: servers that behave, that die, and that do harm, as processes and over HTTP.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use wopr_connect::{
    Executors, Options, ProviderKey, ToolCommand, ToolReached, ToolServer, ToolSetting, egress::Gate,
};
use wopr_core::{TenantId, ToolQuery, ToolRequest, WantedTools};
use wopr_engine::{Attempt, Executor as _, Outcome, Report, Request};
use wopr_wire::a2a::model::Secret;

use crate::{executors::attempt, peer::gate};

pub(crate) const LOOPBACK: &str = "127.0.0.0/8";
const KEY: &str = "tool-SECRET-0123456789";

/// What a server by `sh` does until it has given its list: `t`, and `safe`, which may be called again.
pub(crate) const GREETS: &str = r#"
hear() {
    read -r line || exit 0
    id=$(printf '%s' "$line" | sed 's/^.*"id":\([0-9]*\).*$/\1/')
}
answer() {
    hear
    reply "$1"
}
reply() {
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"
}
says() { answer "{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]}"; }
answer '{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}'
read -r line
"#;
pub(crate) const LISTS: &str = r#"
answer '{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"n":{"type":"number"}}}},{"name":"safe","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}'
"#;

fn server(reached: ToolReached) -> ToolServer {
    ToolServer {
        name: "default".to_owned(),
        reached,
        tenants: Vec::new(),
        tools: Vec::new(),
        timeout: Duration::from_secs(20),
    }
}

/// A server by `sh`.
pub(crate) fn shell(script: &str) -> ToolServer {
    server(ToolReached::Process(ToolCommand {
        command: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: Vec::new(),
    }))
}

fn executors(gate: Gate, server: ToolServer) -> Executors {
    let options = Options {
        tool_servers: vec![server],
        ..Options::default()
    };
    Executors::new(gate, options)
}

/// Executors with a server that greets, lists its tools, and goes on so.
fn after_list(script: &str) -> Executors {
    executors(gate(LOOPBACK), shell(&format!("{GREETS}{LISTS}{script}")))
}

fn request(tool: &str) -> ToolRequest {
    ToolRequest {
        server: "default".to_owned(),
        tool: tool.to_owned(),
        arguments: serde_json::Map::new(),
        retry_safe: None,
        timeout_ms: None,
    }
}

async fn run(executors: &Executors, attempt: Attempt) -> Outcome {
    match executors.run(attempt).await {
        Report::Ended(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

async fn call(executors: &Executors, request: ToolRequest) -> Outcome {
    run(executors, attempt(Request::Tool(Box::new(request)))).await
}

fn text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done(outputs) => outputs["text"].as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// The code of a failure, and whether another attempt follows.
fn failure(outcome: Outcome) -> (String, bool) {
    match outcome {
        Outcome::Failed {
            code,
            message,
            retryable,
            ..
        } => {
            assert!(
                !message.contains("SECRET") && !message.contains("127.0.0.1"),
                "{message}"
            );
            (code, retryable)
        }
        other => panic!("{other:?}"),
    }
}

fn failed(code: &str, retryable: bool) -> (String, bool) {
    (code.to_owned(), retryable)
}

#[tokio::test]
async fn process_is_started_once_and_called() {
    let executors = after_list("says one; says two");
    let Outcome::Done(outputs) = call(&executors, request("t")).await else {
        panic!("the tool gives something");
    };
    let expected = json!({
        "content": [{ "type": "text", "text": "one" }], "text": "one", "server": "default", "tool": "t",
        "contentTrust": "untrusted",
    });
    assert_eq!(outputs, expected);
    assert_eq!(text(call(&executors, request("t")).await), "two");
}

#[tokio::test]
async fn what_is_not_offered_is_not_called() {
    let mut only = shell(&format!("{GREETS}{LISTS}says never"));
    only.tools = vec!["safe".to_owned()];
    only.tenants = vec![TenantId::parse("t").unwrap()];
    let executors = executors(gate(LOOPBACK), only);
    assert_eq!(
        failure(call(&executors, request("t")).await),
        failed("tool_refused", false)
    );

    let mut foreign = attempt(Request::Tool(Box::new(request("safe"))));
    foreign.run.tenant = TenantId::parse("other").unwrap();
    assert_eq!(
        failure(run(&executors, foreign).await),
        failed("tool_server_unknown", false)
    );
    let mut elsewhere = request("safe");
    elsewhere.server = "elsewhere".to_owned();
    assert_eq!(
        failure(call(&executors, elsewhere).await),
        failed("tool_server_unknown", false)
    );

    let executors = after_list("answer '{\"tools\":[]}'");
    assert_eq!(
        failure(call(&executors, request("nope")).await),
        failed("tool_unknown", false)
    );
}

fn query(server: &str, tools: &[&str]) -> Attempt {
    let wanted = vec![WantedTools {
        server: server.to_owned(),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
    }];
    attempt(Request::ToolList(Box::new(ToolQuery { wanted })))
}

#[tokio::test]
async fn servers_describe_their_tools() {
    let executors = after_list("read -r line || exit 0");
    let described =
        |tool: &str, schema: Value| json!({ "server": "default", "tool": tool, "inputSchema": schema });
    let t = described(
        "t",
        json!({ "type": "object", "properties": { "n": { "type": "number" } } }),
    );
    let safe = described("safe", json!({ "type": "object" }));
    let Outcome::Done(all) = run(&executors, query("default", &[])).await else {
        panic!("the server has a list");
    };
    assert_eq!(all, json!({ "tools": [safe, t] }));
    let Outcome::Done(one) = run(&executors, query("default", &["t"])).await else {
        panic!("the server has the tool");
    };
    assert_eq!(one, json!({ "tools": [t] }));

    for (server, tool, code) in [
        ("other", "t", "tool_server_unknown"),
        ("default", "gone", "tool_unknown"),
    ] {
        assert_eq!(
            failure(run(&executors, query(server, &[tool])).await),
            failed(code, false)
        );
    }
    let mut foreign = query("default", &["t"]);
    foreign.run.tenant = TenantId::parse("globex").unwrap();
    let own = ToolServer {
        tenants: vec![TenantId::parse("acme").unwrap()],
        tools: vec!["safe".to_owned()],
        ..shell(&format!("{GREETS}{LISTS}"))
    };
    let bounded = self::executors(gate(LOOPBACK), own);
    assert_eq!(
        failure(run(&bounded, foreign).await),
        failed("tool_server_unknown", false)
    );
    for (tools, code) in [(&["t"][..], "tool_refused"), (&["safe", "t"], "tool_refused")] {
        let mut own = query("default", tools);
        own.run.tenant = TenantId::parse("acme").unwrap();
        assert_eq!(failure(run(&bounded, own).await), failed(code, false));
    }
    let mut own = query("default", &[]);
    own.run.tenant = TenantId::parse("acme").unwrap();
    let Outcome::Done(offered) = run(&bounded, own).await else {
        panic!("the server has a list");
    };
    assert_eq!(
        offered,
        json!({ "tools": [safe] }),
        "and no tool that the operator does not offer"
    );
    let down = self::executors(gate(LOOPBACK), shell("exit 1"));
    assert_eq!(
        failure(run(&down, query("default", &[])).await),
        failed("tool_server_unavailable", true)
    );
}

#[tokio::test]
async fn secrets_do_not_come_back_in_a_description() {
    let list = format!(
        "answer '{{\"tools\":[{{\"name\":\"t\",\"description\":\"key {KEY}\",\"inputSchema\":{{\"type\":\"object\",\"title\":\"{KEY}\"}}}}]}}'"
    );
    let mut server = shell(&format!("{GREETS}{list}"));
    if let ToolReached::Process(command) = &mut server.reached {
        let secret = Secret::new(KEY).unwrap();
        command.env = vec![("KEY".to_owned(), ToolSetting::Secret(secret))];
    }
    let executors = executors(gate(LOOPBACK), server);
    let Outcome::Done(all) = run(&executors, query("default", &[])).await else {
        panic!("the server has a list");
    };
    assert!(!all.to_string().contains("SECRET"), "{all}");
    assert_eq!(all["tools"][0]["description"], "key [redacted]");
}

#[tokio::test]
async fn arguments_are_held_against_the_schema() {
    let executors = after_list("says called");
    let mut wrong = request("t");
    wrong.arguments.insert("n".to_owned(), json!("one"));
    assert_eq!(
        failure(call(&executors, wrong).await),
        failed("tool_arguments_invalid", false)
    );
    let mut right = request("t");
    right.arguments.insert("n".to_owned(), json!(1));
    assert_eq!(text(call(&executors, right).await), "called");
}

#[tokio::test]
async fn result_is_held_against_the_output_schema() {
    const LIST: &str = r#"
answer '{"tools":[{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}}]}'
"#;
    let calls = |result: &str| {
        let script = format!("{GREETS}{LIST}answer '{result}'");
        executors(gate(LOOPBACK), shell(&script))
    };
    for wrong in [
        r#"{"content":[],"structuredContent":{"n":"one"}}"#,
        r#"{"content":[{"type":"text","text":"1"}]}"#,
    ] {
        assert_eq!(
            failure(call(&calls(wrong), request("t")).await),
            failed("tool_result_invalid", false),
            "{wrong}"
        );
    }
    let right = calls(r#"{"content":[],"structuredContent":{"n":1}}"#);
    assert!(matches!(call(&right, request("t")).await, Outcome::Done(_)));
    // An error says what it likes.
    let error = calls(r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#);
    assert_eq!(
        failure(call(&error, request("t")).await),
        failed("tool_failed", false)
    );
}

/// A result with a block of a newer protocol, and one that is not as the protocol says.
const STRANGE: &str =
    r#"{"content":[{"type":"text","text":"fine"},{"type":"hologram","data":{"x":1}},{"type":"image"}]}"#;

fn check_strange(outcome: Outcome) {
    let Outcome::Done(outputs) = outcome else {
        panic!("{outcome:?}");
    };
    let sent: Value = serde_json::from_str(STRANGE).unwrap();
    assert_eq!(outputs["content"], sent["content"]);
    assert_eq!(outputs["text"], "fine");
    assert_eq!(outputs["contentTrust"], "untrusted");
}

#[tokio::test]
async fn unknown_blocks_of_content_are_kept_as_they_are() {
    let executors = after_list(&format!("answer '{STRANGE}'"));
    check_strange(call(&executors, request("t")).await);
    for is_event in [false, true] {
        let web = Web::start(move |_, body| {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{STRANGE}}}"#, body["id"]);
            match is_event {
                true => events(format!("data: {answer}\n\n")),
                false => (200, vec!["content-type: application/json".to_owned()], answer),
            }
        })
        .await;
        let executors = web.executors(ProviderKey::None);
        check_strange(call(&executors, request("t")).await);
    }
}

#[tokio::test]
async fn call_that_may_have_been_made_is_repeated_only_if_it_may_be() {
    for script in [
        // Dies with the call.
        "read -r line; exit 1",
        // A line without an end, and one with too many values.
        "read -r line; head -c 5000000 /dev/zero | tr '\\0' x; sleep 60",
        "read -r line; printf '['; yes '{},' | head -n 900000 | tr -d '\\n'; printf '0]\\n'; sleep 60",
        // Chatters, and answers nothing.
        "read -r line; yes '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}'",
    ] {
        let executors = after_list(script);
        assert_eq!(
            failure(call(&executors, request("t")).await),
            failed("outcome_unknown", false),
            "{script}"
        );
        let executors = after_list(script);
        assert_eq!(
            failure(call(&executors, request("safe")).await),
            failed("tool_call_failed", true),
            "{script}"
        );
        let executors = after_list(script);
        let mut safe = request("t");
        safe.retry_safe = Some(true);
        assert_eq!(
            failure(call(&executors, safe).await),
            failed("tool_call_failed", true),
            "{script}"
        );
    }
}

#[tokio::test]
async fn call_without_an_answer_ends_with_its_time() {
    for script in [
        "cat > /dev/null",
        // The answer to something else.
        "read -r line; printf '{\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{\"content\":[]}}\\n'; sleep 60",
        "read -r line; while :; do printf x; sleep 0.05; done",
    ] {
        let executors = after_list(script);
        let mut brief = request("t");
        brief.timeout_ms = Some(1_500);
        assert_eq!(
            failure(call(&executors, brief).await),
            failed("outcome_unknown", false),
            "{script}"
        );
    }
}

#[tokio::test]
async fn line_that_is_no_message_is_skipped() {
    let deep = "head -c 200000 /dev/zero | tr '\\0' '['; printf '\\n'";
    let executors = after_list(&format!("printf 'starting\\n'; {deep}; says fine"));
    assert_eq!(text(call(&executors, request("t")).await), "fine");
}

/// What a server may write after the id of its answer, and this host cannot read.
const UNREADABLE: [&str; 7] = [
    r#""result":{"content":[{"type":"text","text":"cut \ud800"}]}}"#,
    r#""result":{"content":[],"structuredContent":{"n":1e400}}}"#,
    r#""result":{"content":[],"structuredContent":{"n":NaN}}}"#,
    r#""result":{},"result":{"content":[]}}"#,
    r#""error":{"code":-32000}}"#,
    r#""error":{"code":"x","message":"no"}}"#,
    r#""result":{"content":[{"type":"text","text":"cut"#,
];

#[tokio::test]
async fn answer_that_cannot_be_read_ends_its_call_and_no_other_one() {
    let deep = format!(
        r#""result":{{"structuredContent":{}1{}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    // The answer of the first call comes after that of the second one.
    let script = |rest: &str| {
        format!(
            r#"hear; first=$id; hear; printf '{{"jsonrpc":"2.0","id":%s,%s\n' "$id" '{rest}'; id=$first
            reply '{{"content":[{{"type":"text","text":"fine"}}]}}'; says again"#
        )
    };
    for rest in UNREADABLE.into_iter().chain([deep.as_str()]) {
        // `printf %s` takes the text as it is.
        let executors = after_list(&script(rest));
        let other = call(&executors, request("t"));
        let safe = call(&executors, request("safe"));
        let (first, second) = tokio::join!(other, safe);
        // Which of the two the server hears first is not said.
        let outcomes = [first, second];
        let failed_at = outcomes
            .iter()
            .position(|outcome| !matches!(outcome, Outcome::Done(_)));
        let failed_at = failed_at.unwrap_or_else(|| panic!("{rest}: {outcomes:?}"));
        let [first, second] = outcomes;
        let (gone, done) = match failed_at {
            0 => (first, second),
            _ => (second, first),
        };
        assert_eq!(text(done), "fine", "{rest}");
        let Outcome::Failed { message, .. } = &gone else {
            panic!("{gone:?}");
        };
        assert!(message.contains("an answer that cannot be read: "), "{message}");
        assert_eq!(
            failure(gone),
            failed("tool_call_failed", failed_at == 1),
            "{rest}"
        );
        assert_eq!(text(call(&executors, request("t")).await), "again", "{rest}");
    }
}

#[tokio::test]
async fn answer_over_http_that_cannot_be_read_ends_its_call() {
    for rest in UNREADABLE {
        for is_event in [false, true] {
            let web = Web::start(move |_, body| {
                let answer = format!(r#"{{"jsonrpc":"2.0","id":{},{rest}"#, body["id"]);
                match is_event {
                    true => events(format!("data: {answer}\n\n")),
                    false => (200, vec!["content-type: application/json".to_owned()], answer),
                }
            })
            .await;
            let executors = web.executors(ProviderKey::None);
            for (tool, is_repeatable) in [("t", false), ("safe", true)] {
                let outcome = call(&executors, request(tool)).await;
                assert_eq!(
                    failure(outcome),
                    failed("tool_call_failed", is_repeatable),
                    "{rest} {is_event}"
                );
            }
        }
    }
}

/// The code and the message of a failure.
fn told(outcome: Outcome) -> (String, String) {
    match outcome {
        Outcome::Failed { code, message, .. } => (code, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn failures_have_the_words_of_the_server() {
    let error = r#"printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"go away"}}\n' "$id""#;
    let functions = GREETS.split_once("answer '{\"protocol").unwrap().0;
    for (script, code, said) in [
        (
            format!("{functions}hear; {error}"),
            "tool_server_unavailable",
            "it refused the greeting: go away",
        ),
        (
            format!("{GREETS}hear; {error}"),
            "tool_server_unavailable",
            "it gave no list of tools: go away",
        ),
        (
            format!("{GREETS}answer '{{\"tools\":[{{\"name\":5}}]}}'"),
            "tool_server_unavailable",
            "it gave no list of tools: what it sent is no list",
        ),
        (
            format!(r#"{GREETS}{LISTS}answer '{{"content":"weird"}}'"#),
            "tool_call_failed",
            "an answer that cannot be read: it is no result of a tool",
        ),
        (
            format!(
                r#"{GREETS}{LISTS}answer '{{"content":[],"isError":true,"structuredContent":{{"why":"because"}}}}'"#
            ),
            "tool_failed",
            r#"'t' failed: {"why":"because"}"#,
        ),
    ] {
        let executors = executors(gate(LOOPBACK), shell(&script));
        let (found, message) = told(call(&executors, request("t")).await);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(said), "{message}");
    }

    let json = || vec!["content-type: application/json".to_owned()];
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"bad x"}}"#;
    let large = "x".repeat(5 << 20);
    for (answer, code, said) in [
        (
            (400, json(), error.to_owned()),
            "tool_call_rejected",
            "400 Bad Request: bad x",
        ),
        (
            (500, json(), error.to_owned()),
            "outcome_unknown",
            "the server answered 500 Internal Server Error: bad x",
        ),
        (
            (200, json(), large),
            "outcome_unknown",
            "its answer has more than 4194304 bytes",
        ),
        (
            (200, json(), String::new()),
            "outcome_unknown",
            "what it sent is no answer: EOF",
        ),
        (
            (200, Vec::new(), "<p>".to_owned()),
            "outcome_unknown",
            "what it sent is no JSON",
        ),
    ] {
        let web = Web::start(move |_, _| answer.clone()).await;
        let executors = web.executors(ProviderKey::None);
        let (found, message) = told(call(&executors, request("t")).await);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(said), "{message}");
    }
}

#[tokio::test]
async fn end_of_a_process_by_one_call_fails_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("died");
    // The first process dies with the first call, the next one answers.
    let script = format!(
        "{GREETS}{LISTS}if [ ! -e {mark} ]; then touch {mark}; read -r line; exit 1; fi; says fine; says fine",
        mark = mark.display()
    );
    let executors = executors(gate(LOOPBACK), shell(&script));
    assert_eq!(
        failure(call(&executors, request("t")).await),
        failed("outcome_unknown", false)
    );
    // It may not be started again at once, so these wait.
    let (first, second) = tokio::join!(call(&executors, request("t")), call(&executors, request("safe")));
    assert_eq!(
        (text(first), text(second)),
        ("fine".to_owned(), "fine".to_owned())
    );
}

#[tokio::test]
async fn attempt_that_another_process_began_is_made_again_only_if_it_may_be() {
    let interrupted = |tool: &str, retry_safe| {
        let mut request = request(tool);
        request.retry_safe = retry_safe;
        Attempt {
            is_interrupted: true,
            ..attempt(Request::Tool(Box::new(request)))
        }
    };
    let executors = after_list("says again; says again");
    for (tool, retry_safe, is_called) in [
        ("t", None, false),
        ("t", Some(false), false),
        ("safe", Some(false), false),
        ("t", Some(true), true),
        ("safe", None, true),
    ] {
        let outcome = run(&executors, interrupted(tool, retry_safe)).await;
        match is_called {
            true => assert_eq!(text(outcome), "again"),
            false => assert_eq!(failure(outcome), failed("outcome_unknown", false)),
        }
    }
    // Nobody can say what the tool is.
    let gone = self::executors(gate(LOOPBACK), shell("exit 1"));
    let outcome = run(&gone, interrupted("t", None)).await;
    assert_eq!(failure(outcome), failed("outcome_unknown", false));
}

#[tokio::test]
async fn server_that_asks_is_refused() {
    let asks = |method: &str, params: &str, expected: &str| {
        format!(
            "read -r line; id=$(printf '%s' \"$line\" | sed 's/^.*\"id\":\\([0-9]*\\).*$/\\1/')\n\
             printf '{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"{method}\",\"params\":{params}}}\\n'\n\
             read -r reply; case \"$reply\" in *'{expected}'*) said=refused;; *) said=given;; esac\n\
             printf '{{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"%s\"}}]}}}}\\n' $id $said"
        )
    };
    for (method, params, expected) in [
        (
            "sampling/createMessage",
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"x"}}],"maxTokens":1}"#,
            "-32601",
        ),
        (
            "elicitation/create",
            r#"{"message":"Your key?","requestedSchema":{"type":"object","properties":{}}}"#,
            "decline",
        ),
        ("roots/list", "{}", "-32601"),
        ("anything/else", "{}", "-32601"),
    ] {
        let executors = after_list(&asks(method, params, expected));
        assert_eq!(text(call(&executors, request("t")).await), "refused", "{method}");
    }
}

#[tokio::test]
async fn endless_and_oversized_lists_are_refused() {
    let pages =
        "i=0; while :; do i=$((i+1)); answer \"{\\\"tools\\\":[],\\\"nextCursor\\\":\\\"$i\\\"}\"; done";
    let same = "while :; do answer '{\"tools\":[],\"nextCursor\":\"x\"}'; done";
    for script in [pages, same] {
        let executors = executors(gate(LOOPBACK), shell(&format!("{GREETS}{script}")));
        assert_eq!(
            failure(call(&executors, request("t")).await),
            failed("tool_server_unavailable", false),
            "{script}"
        );
    }
    let tool = |n: usize| json!({ "name": format!("t{n}"), "inputSchema": { "type": "object" } });
    let many: Vec<_> = (0..1_001).map(tool).collect();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("list");
    fs::write(&file, json!({ "tools": many }).to_string()).unwrap();
    let script = format!("{GREETS}answer \"$(cat '{}')\"", file.display());
    let outcome = call(&executors(gate(LOOPBACK), shell(&script)), request("t1")).await;
    assert_eq!(failure(outcome), failed("tool_server_unavailable", false));

    // One that is too large is left out.
    let large = json!({ "name": "large", "inputSchema": { "type": "object", "title": "x".repeat(70_000) } });
    fs::write(&file, json!({ "tools": [tool(1), large] }).to_string()).unwrap();
    let script = format!(
        "{GREETS}list() {{ answer \"$(cat '{}')\"; }}; list; says fine; list",
        file.display()
    );
    let executors = executors(gate(LOOPBACK), shell(&script));
    assert_eq!(text(call(&executors, request("t1")).await), "fine");
}

#[tokio::test]
async fn tool_without_a_schema_of_an_object_is_left_out_alone() {
    let good = json!({ "name": "t1", "inputSchema": { "type": "object" } });
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("list");
    for bad in [
        json!({ "name": "bad", "description": "has no schema" }),
        json!({ "name": "bad", "inputSchema": "object" }),
        json!({ "name": "bad", "inputSchema": { "type": "nope" } }),
        json!("bad"),
    ] {
        fs::write(&file, json!({ "tools": [bad, good] }).to_string()).unwrap();
        // The client asks again for a page that it could not read.
        let list = format!("answer \"$(cat '{}')\"", file.display());
        let is_schema = bad["inputSchema"].is_object();
        let lists = if is_schema {
            list.clone()
        } else {
            format!("{list}; {list}")
        };
        let script = format!("{GREETS}{lists}; says fine; {lists}");
        let executors = executors(gate(LOOPBACK), shell(&script));
        assert_eq!(text(call(&executors, request("t1")).await), "fine", "{bad}");
        let (code, _) = failure(call(&executors, request("bad")).await);
        assert_eq!(code, "tool_unknown", "{bad}");
    }
}

#[tokio::test]
async fn changed_list_is_read_again() {
    let changed = "printf '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\\n'";
    let old = r#"{"content":[{"type":"text","text":"old"}]}"#;
    let list = "answer '{\"tools\":[{\"name\":\"new\",\"inputSchema\":{\"type\":\"object\"}}]}'";
    let executors = after_list(&format!("hear; {changed}; reply '{old}'; {list}; says new"));
    assert_eq!(text(call(&executors, request("t")).await), "old");
    assert_eq!(text(call(&executors, request("new")).await), "new");
}

#[tokio::test]
async fn failures_of_a_tool_and_of_its_server_are_told_apart() {
    for (script, expected) in [
        (
            r#"answer '{"isError":true,"content":[{"type":"text","text":"broken"}]}'"#,
            failed("tool_failed", false),
        ),
        (
            r#"read -r line; id=$(printf '%s' "$line" | sed 's/^.*"id":\([0-9]*\).*$/\1/'); printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' $id"#,
            failed("tool_call_rejected", false),
        ),
        (
            r#"read -r line; id=$(printf '%s' "$line" | sed 's/^.*"id":\([0-9]*\).*$/\1/'); printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"no"}}\n' $id"#,
            failed("tool_call_failed", false),
        ),
    ] {
        let executors = after_list(script);
        assert_eq!(
            failure(call(&executors, request("t")).await),
            expected,
            "{script}"
        );
    }
}

#[tokio::test]
async fn server_that_does_not_start_is_tried_again_after_a_pause() {
    let executors = executors(
        gate(LOOPBACK),
        server(ToolReached::Process(ToolCommand {
            command: "/nowhere/tools".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
        })),
    );
    assert_eq!(
        failure(call(&executors, request("t")).await),
        failed("tool_server_unavailable", true)
    );
    let Outcome::Failed { retry_after, .. } = call(&executors, request("t")).await else {
        panic!("it is not there");
    };
    assert!(
        retry_after.is_some_and(|after| after <= Duration::from_millis(500)),
        "{retry_after:?}"
    );
}

#[tokio::test]
async fn environment_is_what_the_operator_set_and_secrets_do_not_come_back() {
    let mut shell = shell(&format!(
        "{GREETS}{LISTS}says \"$TOKEN ${{HOME-none}} ${{CARGO_MANIFEST_DIR-none}} $PLAIN\""
    ));
    let ToolReached::Process(command) = &mut shell.reached else {
        panic!("it is a process");
    };
    command.env = vec![
        ("PLAIN".to_owned(), ToolSetting::Plain("plain".to_owned())),
        (
            "TOKEN".to_owned(),
            ToolSetting::Secret(Secret::new(KEY.to_owned()).unwrap()),
        ),
    ];
    let mut missing = shell.clone();
    let executors = executors(gate(LOOPBACK), shell);
    assert_eq!(
        text(call(&executors, request("t")).await),
        "[redacted] none none plain"
    );

    if let ToolReached::Process(command) = &mut missing.reached {
        command.env[1].1 = ToolSetting::Missing("TOOL_TOKEN".to_owned());
    }
    let executors = self::executors(gate(LOOPBACK), missing);
    assert_eq!(
        failure(call(&executors, request("t")).await),
        failed("credential_missing", false)
    );
}

#[tokio::test]
async fn processes_end_with_the_host() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pid");
    let executors = after_list(&format!(
        "sleep 1000 & echo $! > '{}'; says started; wait",
        file.display()
    ));
    assert_eq!(text(call(&executors, request("t")).await), "started");
    let process = fs::read_to_string(&file).unwrap();
    let stat = format!("/proc/{}/stat", process.trim());
    assert!(fs::exists(&stat).unwrap(), "it runs");
    drop(executors);
    // A killed process that nobody waits for is a zombie until its parent ends.
    let runs = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    let ended = tokio::time::timeout(Duration::from_secs(20), async {
        while runs() {
            // sleep: the pace of asking
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    ended.await.expect("it ends with the connection");
}

/// A server over HTTP, whose answers to calls a function gives: status, header lines and body.
struct Web {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Answer = (u16, Vec<String>, String);

impl Web {
    async fn start(answer: impl Fn(usize, &Value) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), Arc::clone(&asked));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                tokio::spawn(async move { web(stream, &*answer, &seen).await });
            }
        });
        Self { url, asked, serving }
    }

    fn methods(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let methods = asked
            .iter()
            .map(|(_, body)| body["method"].as_str().unwrap_or("").to_owned());
        methods.collect()
    }

    fn executors(&self, credential: ProviderKey) -> Executors {
        let reached = ToolReached::Http {
            url: self.url.parse().unwrap(),
            header: None,
            credential,
        };
        executors(gate(LOOPBACK), server(reached))
    }
}

async fn web(
    mut stream: TcpStream,
    answer: &(dyn Fn(usize, &Value) -> Answer + Send + Sync),
    seen: &Mutex<Vec<(String, Value)>>,
) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let whole = text.split_once("\r\n\r\n").filter(|(head, body)| {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            body.len() >= length.map_or(0, |n| n.parse().unwrap())
        });
        let Some((head, body)) = whole else {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => continue,
            }
        };
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let n_before = {
            let mut seen = seen.lock().unwrap();
            seen.push((head.to_owned(), body.clone()));
            let calls = seen.iter().filter(|(_, body)| body["method"] == "tools/call");
            calls.count()
        };
        let ok = |result: Value| {
            let body = json!({ "jsonrpc": "2.0", "id": body["id"], "result": result }).to_string();
            (
                200,
                vec![
                    "content-type: application/json".to_owned(),
                    "mcp-session-id: s1".to_owned(),
                ],
                body,
            )
        };
        let (status, headers, text) = match body["method"].as_str() {
            Some("initialize") => ok(json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "w", "version": "1" },
            })),
            Some("tools/list") => ok(json!({ "tools": [
                { "name": "t", "inputSchema": { "type": "object" } },
                { "name": "safe", "inputSchema": { "type": "object" }, "annotations": { "idempotentHint": true } },
            ] })),
            Some("tools/call") => answer(n_before, &body),
            _ => (202, Vec::new(), String::new()),
        };
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let is_open = text.ends_with('…');
        let length = if is_open {
            String::new()
        } else {
            format!("content-length: {}\r\n", text.len())
        };
        let answer = format!(
            "HTTP/1.1 {status} Whatever\r\n{lines}{length}\r\n{}",
            text.trim_end_matches('…')
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        if is_open {
            // Ends when the client closes the connection.
            let _ = stream.read(&mut [0; 1]).await;
            return;
        }
        bytes.clear();
    }
}

fn said(body: &Value, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": body["id"], "result": { "content": [{ "type": "text", "text": text }] } })
}

fn document(body: &Value, text: &str) -> Answer {
    (
        200,
        vec!["content-type: application/json".to_owned()],
        said(body, text).to_string(),
    )
}

fn events(text: String) -> Answer {
    (200, vec!["content-type: text/event-stream".to_owned()], text)
}

#[tokio::test]
async fn server_over_http_is_called_with_its_credential() {
    let web = Web::start(|n, body| match n {
        1 => document(body, &format!("you sent {KEY}")),
        _ => events(format!(
            "event: message\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\"data\":1}}}}\n\ndata: {}\n\n",
            said(body, "streamed")
        )),
    })
    .await;
    let executors = web.executors(ProviderKey::Secret(Secret::new(KEY.to_owned()).unwrap()));
    assert_eq!(text(call(&executors, request("t")).await), "you sent [redacted]");
    assert_eq!(text(call(&executors, request("t")).await), "streamed");
    let asked = web.asked.lock().unwrap();
    assert!(
        asked
            .iter()
            .all(|(head, _)| head.contains(&format!("authorization: Bearer {KEY}")))
    );
    let (head, body) = asked
        .iter()
        .find(|(_, body)| body["method"] == "tools/call")
        .unwrap();
    assert!(head.contains("mcp-session-id: s1"), "{head}");
    assert_eq!(body["params"]["_meta"]["idempotencyKey"], "key-1", "{body}");
    let trace = body["params"]["_meta"]["traceparent"].as_str().unwrap();
    assert!(
        trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-"),
        "{trace}"
    );
    assert_eq!(
        body["params"]["_meta"]["tracestate"], "vendor=1,other=2",
        "{body}"
    );
}

/// A call waits for a silent server no longer than for an answer of it, and does not end the greeting that others wait for.
#[tokio::test]
async fn silent_server_over_http_holds_a_call_no_longer_than_its_time() {
    let web = Web::start(|_, body| document(body, "hello")).await;
    let behind = web.url.strip_prefix("http://").unwrap();
    let behind = behind.strip_suffix("/mcp").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let (speaks, mut silent) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(async move {
        let mut passing = tokio::task::JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            silent.wait_for(|speaks| *speaks).await.unwrap();
            let mut far = TcpStream::connect(&behind).await.unwrap();
            passing.spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let reached = ToolReached::Http {
        url: url.parse().unwrap(),
        header: None,
        credential: ProviderKey::None,
    };
    let executors = executors(gate(LOOPBACK), server(reached));
    for _ in 0..3 {
        let mut brief = request("t");
        brief.timeout_ms = Some(100);
        let ended = call(&executors, brief);
        let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
        let Outcome::Failed {
            message,
            retry_after,
            is_timeout,
            ..
        } = ended.expect("it has its own time")
        else {
            panic!("nobody answered");
        };
        assert!(is_timeout && retry_after.is_none(), "{message}");
    }
    speaks.send(true).unwrap();
    assert_eq!(text(call(&executors, request("t")).await), "hello");
    let greetings = web.methods().iter().filter(|name| *name == "initialize").count();
    assert_eq!(greetings, 1);
    serving.abort();
}

#[tokio::test]
async fn forgotten_session_is_opened_again() {
    let refusal = |text: &str| {
        let error = json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32000, "message": text } });
        (
            400,
            vec!["content-type: application/json".to_owned()],
            error.to_string(),
        )
    };
    let forgotten = (404, Vec::new(), String::new());
    for (refused, greetings, calls) in [
        (forgotten, 2, 2),
        // As servers of the TypeScript SDK say it.
        (refusal("Bad Request: No valid session ID provided"), 2, 2),
        (refusal("Bad Request: no such argument"), 1, 1),
    ] {
        let web = Web::start(move |n, body| match n {
            1 => refused.clone(),
            _ => document(body, "again"),
        })
        .await;
        let executors = web.executors(ProviderKey::None);
        let outcome = call(&executors, request("t")).await;
        match calls {
            2 => assert_eq!(text(outcome), "again"),
            _ => assert_eq!(failure(outcome), failed("tool_call_rejected", false)),
        }
        let methods = web.methods();
        let n = |name| methods.iter().filter(|method| *method == name).count();
        assert_eq!(
            (n("initialize"), n("tools/call")),
            (greetings, calls),
            "{methods:?}"
        );
    }
}

#[tokio::test]
async fn answers_over_http_have_bounds_and_kinds() {
    let large = "x".repeat(5 << 20);
    let many = format!("[{}0]", "{},".repeat(900_000));
    let header = |status, line: &str| (status, vec![line.to_owned()], String::new());
    /// The answer of a server, and how a call fails on it: first one that may not be repeated, then one that may.
    type Case = (&'static str, Answer, (String, bool), (String, bool));
    let cases: Vec<Case> = vec![
        (
            "busy",
            header(503, "retry-after: 1"),
            failed("tool_server_unavailable", true),
            failed("tool_server_unavailable", true),
        ),
        (
            "forbidden",
            header(403, "x: y"),
            failed("tool_call_rejected", false),
            failed("tool_call_rejected", false),
        ),
        (
            "redirect",
            header(307, "location: https://example.com"),
            failed("tool_call_rejected", false),
            failed("tool_call_rejected", false),
        ),
        (
            "broken",
            header(500, "x: y"),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
        (
            "html",
            (200, vec!["content-type: text/html".to_owned()], "<p>".to_owned()),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
        (
            "large",
            (
                200,
                vec!["content-type: application/json".to_owned()],
                large.clone(),
            ),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
        (
            "many",
            (200, vec!["content-type: application/json".to_owned()], many),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
        (
            "large event",
            events(format!("data: {large}\n\n")),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
        (
            "no event",
            events(String::new()),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
        (
            "endless",
            events("data: {}\n\n…".to_owned()),
            failed("outcome_unknown", false),
            failed("tool_call_failed", true),
        ),
    ];
    for (name, answer, expected, expected_safe) in cases {
        let web = Web::start(move |_, _| answer.clone()).await;
        for (tool, expected) in [("t", expected), ("safe", expected_safe)] {
            let executors = web.executors(ProviderKey::None);
            let mut brief = request(tool);
            brief.timeout_ms = Some(8_000);
            assert_eq!(failure(call(&executors, brief).await), expected, "{name} {tool}");
        }
    }
}

#[tokio::test]
async fn gate_is_asked_for_every_server() {
    let web = Web::start(|_, body| document(body, "never")).await;
    let reached = || ToolReached::Http {
        url: web.url.parse().unwrap(),
        header: None,
        credential: ProviderKey::None,
    };
    for gate in [gate(LOOPBACK).sealed(), gate("10.0.0.0/8")] {
        let executors = executors(gate, server(reached()));
        let outcome = call(&executors, request("t")).await;
        assert_eq!(failure(outcome), failed("tool_server_unavailable", false));
    }
    assert!(web.asked.lock().unwrap().is_empty());
}
