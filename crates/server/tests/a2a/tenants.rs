//! Access control across tenants, principals and scopes.

use serde_json::{Value, json};

use crate::{
    client::{Client, state_of},
    support::{Server, config},
};

async fn begin(client: &Client, skill: &str) -> String {
    let more = json!({"metadata": {"skillId": skill}, "contextId": "shared", "configuration": {"returnImmediately": true}});
    let task = client.send(client.text("m", "x", more)).await;
    task["id"].as_str().unwrap().to_owned()
}

/// Asserts that every operation on a task behaves as if it did not exist.
async fn sees_nothing(client: &Client, id: &str) {
    for (method, params) in [
        ("GetTask", json!({"id": id})),
        ("GetTask", json!({"id": id, "tenant": "default"})),
        ("CancelTask", json!({"id": id})),
        ("SubscribeToTask", json!({"id": id})),
        ("SendMessage", client.text("m9", "yes", json!({"taskId": id}))),
        (
            "SendStreamingMessage",
            client.text("m9", "yes", json!({"taskId": id})),
        ),
    ] {
        assert_eq!(client.err(method, params).await.0, -32001, "{method}");
    }
}

#[tokio::test]
async fn a_tenant_sees_its_own_tasks_only() {
    let server = Server::start().await;
    let (alice, bob, carol) = (server.v1(), server.v1().by("bob"), server.v1().by("carol"));
    let id = begin(&alice, "approve").await;
    sees_nothing(&carol, &id).await;
    let list = carol.ok("ListTasks", json!({"tenant": "default"})).await;
    assert_eq!(list["totalSize"], 0);
    // The same message of another tenant creates another task, in a context of the same name.
    let theirs = begin(&carol, "approve").await;
    assert_ne!(theirs, id);
    assert_eq!(
        carol.ok("ListTasks", json!({"contextId": "shared"})).await["totalSize"],
        1
    );
    // Another principal of the tenant sees the task and may answer.
    assert_eq!(state_of(&bob.task(&id).await), "input-required");
    let done = bob.send(bob.text("m2", "yes", json!({"taskId": id}))).await;
    assert_eq!(state_of(&done), "completed");
}

#[tokio::test]
async fn private_tasks_are_visible_only_to_their_creators() {
    let mut config = config();
    config.a2a.private_tasks = true;
    let server = Server::open(config).await;
    let (alice, bob) = (server.v1(), server.v1().by("bob"));
    let id = begin(&alice, "approve").await;
    sees_nothing(&bob, &id).await;
    assert_eq!(bob.ok("ListTasks", json!({})).await["totalSize"], 0);
    assert_eq!(alice.ok("ListTasks", json!({})).await["totalSize"], 1);
    let done = alice.send(alice.text("m2", "yes", json!({"taskId": id}))).await;
    assert_eq!(state_of(&done), "completed");
}

#[tokio::test]
async fn scopes_match_those_over_rest() {
    let server = Server::start().await;
    let id = begin(&server.v1(), "approve").await;
    let forbidden = async |key: &str, method: &str, params: Value| {
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let answer = server
            .v1()
            .by(key)
            .raw("POST", request.to_string().as_bytes())
            .await;
        assert_eq!(answer.status, 403, "{key} {method}");
        assert_eq!(answer.json()["error"]["status"], "PERMISSION_DENIED");
        answer.header("www-authenticate").unwrap().to_owned()
    };
    let reader = server.v1().by("reader");
    let task = reader.task(&id).await;
    assert_eq!(task["metadata"]["openwop"]["interrupt"]["kind"], "approval");
    assert!(task["metadata"]["openwop"].get("interruptToken").is_none());
    let new = reader.text("m", "x", json!({}));
    assert!(
        forbidden("reader", "SendMessage", new)
            .await
            .contains("runs:create")
    );
    let reply = reader.text("m", "yes", json!({"taskId": id}));
    assert!(
        forbidden("reader", "SendMessage", reply.clone())
            .await
            .contains("approvals:respond")
    );
    assert!(
        forbidden("asker", "SendMessage", reply)
            .await
            .contains("approvals:respond")
    );
    assert!(
        forbidden("reader", "CancelTask", json!({"id": id}))
            .await
            .contains("runs:cancel")
    );
    forbidden("starter", "ListTasks", json!({})).await;
    // Without the read scope nothing can be read, whatever other scopes there are.
    for key in ["starter", "canceller"] {
        let refused = forbidden(key, "GetTask", json!({"id": id})).await;
        assert!(refused.contains("runs:read"), "{refused}");
    }
    let mut stream = reader.subscribe(&id).await;
    assert_eq!(stream.next().await.unwrap().short(), "task:input-required");
    // A caller that may only start sees the result of its message.
    let starter = server.v1().by("starter");
    assert_eq!(
        state_of(&starter.send(starter.text("m", "x", json!({}))).await),
        "completed"
    );
}

#[tokio::test]
async fn tenants_workflow_is_hidden_from_other_tenants() {
    let server = Server::start().await;
    let mut own = crate::support::workflows().remove(0);
    own["id"] = json!("theirs");
    let tenant = serde_json::from_value(json!("other")).unwrap();
    server.host.engine().register(Some(&tenant), own).await.unwrap();
    let (alice, carol) = (server.v1(), server.v1().by("carol"));
    let more = json!({"metadata": {"skillId": "theirs"}});
    let task = carol.send(carol.text("m", "x", more.clone())).await;
    assert_eq!(state_of(&task), "completed");
    assert_eq!(alice.send_err(alice.text("m", "x", more)).await.0, -32602);
    let card = alice.get("/.well-known/agent-card.json").await.json();
    assert!(!card.to_string().contains("theirs"));
}

#[tokio::test]
async fn registered_workflow_is_only_on_its_tenants_card_unless_public() {
    let server = Server::start().await;
    let tenant: wopr_core::TenantId = serde_json::from_value(json!("default")).unwrap();
    for (id, public) in [("quiet", None), ("loud", Some(true)), ("hello", None)] {
        let mut own = crate::support::chain(id, vec![crate::support::node("n", "core.noop", json!({}))]);
        own["description"] = json!(format!("registered {id}"));
        if let Some(public) = public {
            own["metadata"] = json!({ "public": public });
        }
        server.host.engine().register(Some(&tenant), own).await.unwrap();
    }
    let alice = server.v1();
    let public = alice.get("/.well-known/agent-card.json").await.json().to_string();
    assert!(public.contains("registered loud"), "{public}");
    // A workflow with the name of a shared one does not replace it there.
    assert!(public.contains("Greets.") && !public.contains("registered hello"));
    assert!(!public.contains("quiet"), "{public}");
    let extended = alice.ok("GetExtendedAgentCard", json!({})).await.to_string();
    for id in ["loud", "quiet", "hello"] {
        assert!(extended.contains(&format!("registered {id}")), "{id}: {extended}");
    }
    let card = async |id: &str| {
        alice
            .get(&format!("/a2a/w/{id}/.well-known/agent-card.json"))
            .await
            .status
    };
    assert_eq!((card("loud").await, card("quiet").await), (200, 404));
}

#[tokio::test]
async fn card_names_the_scopes_for_reading() {
    let server = Server::start().await;
    let card = server.v1().get("/.well-known/agent-card.json").await.json();
    let scopes = &card["securityRequirements"][0]["schemes"]["bearer"];
    let scopes = scopes.get("list").unwrap_or(scopes);
    assert_eq!(
        *scopes,
        json!(["runs:create", "runs:read", "artifacts:read"]),
        "{card}"
    );
    let about = card["securitySchemes"]["bearer"].to_string();
    for scope in ["runs:cancel", "approvals:respond"] {
        assert!(about.contains(scope), "{about}");
    }
}
