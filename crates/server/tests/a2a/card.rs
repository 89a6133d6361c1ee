//! The agent card in its three forms.

use serde_json::{Value, json};

use crate::{client::Client, schema, support::Server};

#[tokio::test]
async fn both_versions_read_the_card() {
    let server = Server::start().await;
    let url = format!("http://{}/a2a", server.address);
    let union = server.v03().get("/.well-known/agent-card.json").await;
    assert_eq!(union.status, 200);
    assert_eq!(union.header("content-type"), Some("application/json"));
    let union = union.json();
    schema::check("AgentCard", &union);
    let interfaces = json!([
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
        {"url": server.address, "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
        {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3"},
        {"url": server.address, "protocolBinding": "GRPC", "protocolVersion": "0.3"},
    ]);
    assert_eq!(union["supportedInterfaces"], interfaces);
    assert_eq!(union["url"], url);
    assert_eq!(union["protocolVersion"], "0.3.0");
    assert_eq!(union["preferredTransport"], "JSONRPC");
    assert_eq!(union["capabilities"]["streaming"], true);
    assert_eq!(union["capabilities"]["pushNotifications"], true);
    assert_eq!(union["capabilities"]["extendedAgentCard"], true);
    assert_eq!(union["supportsAuthenticatedExtendedCard"], true);

    let new = server.v1().get("/.well-known/agent-card.json").await.json();
    assert_eq!(new["supportedInterfaces"], interfaces);
    for name in [
        "url",
        "protocolVersion",
        "preferredTransport",
        "additionalInterfaces",
        "security",
    ] {
        assert!(new.get(name).is_none(), "{name}");
    }
    assert_eq!(
        new["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"],
        "Bearer"
    );
    assert_eq!(
        new["securityRequirements"][0]["schemes"],
        json!({"bearer": {"list": ["runs:create", "runs:read", "artifacts:read"]}})
    );

    let old = server
        .client("0.3")
        .get("/.well-known/agent-card.json")
        .await
        .json();
    schema::check("AgentCard", &old);
    assert!(old.get("supportedInterfaces").is_none());
    assert_eq!(old["securitySchemes"]["bearer"]["type"], "http");
    assert_eq!(
        old["security"],
        json!([{"bearer": ["runs:create", "runs:read", "artifacts:read"]}])
    );
    assert_eq!(
        old["additionalInterfaces"],
        json!([
            {"url": url, "transport": "JSONRPC"},
            {"url": url, "transport": "HTTP+JSON"},
            {"url": server.address, "transport": "GRPC"},
        ])
    );
    for path in ["/v1/a2a/agent.json", "/a2a/.well-known/agent-card.json"] {
        assert_eq!(server.client("0.3").get(path).await.json(), old, "{path}");
    }
}

#[tokio::test]
async fn skills_are_the_public_workflows() {
    let server = Server::start().await;
    let client = server.v1();
    let card = client.get("/.well-known/agent-card.json").await.json();
    let skills = card["skills"].as_array().unwrap();
    let ids: Vec<_> = skills.iter().map(|skill| skill["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"hello") && !ids.contains(&"hidden"), "{ids:?}");
    assert!(ids.is_sorted());
    let skill = |id: &str| skills.iter().find(|skill| skill["id"] == id).unwrap().clone();
    assert_eq!(
        skill("hello"),
        json!({"id": "hello", "name": "The hello", "description": "Greets.", "tags": ["greeting"], "examples": ["world"]})
    );
    assert_eq!(
        skill("noop"),
        json!({"id": "noop", "name": "The noop", "description": "The noop", "tags": ["workflow"]})
    );
}

#[tokio::test]
async fn each_workflow_has_its_own_card() {
    let server = Server::start().await;
    let client = server.v1();
    let card = client
        .get("/a2a/w/hello/.well-known/agent-card.json")
        .await
        .json();
    assert_eq!(card["name"], "The hello");
    assert_eq!(card["skills"].as_array().unwrap().len(), 1);
    assert_eq!(
        card["supportedInterfaces"][0]["url"],
        format!("http://{}/a2a/w/hello", server.address)
    );
    for id in ["hidden", "nowhere", "No%20Id"] {
        let answer = client
            .get(&format!("/a2a/w/{id}/.well-known/agent-card.json"))
            .await;
        assert_eq!(answer.status, 404, "{id}");
    }
}

#[tokio::test]
async fn a_card_is_cached_until_it_changes() {
    let server = Server::start().await;
    let client = server.v1();
    let path = "/.well-known/agent-card.json";
    let first = client.get(path).await;
    let etag = first.header("etag").unwrap().to_owned();
    assert!(first.header("cache-control").unwrap().contains("max-age="));
    assert!(first.header("last-modified").unwrap().ends_with(" GMT"));
    assert_eq!(first.header("vary"), Some("A2A-Version"));
    for tag in [etag.clone(), format!("\"x\", W/{etag}"), "*".to_owned()] {
        let again = client.clone().with("if-none-match", &tag).get(path).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{tag}");
        assert_eq!(again.header("etag"), Some(etag.as_str()));
    }
    let other = server.v03().with("if-none-match", &etag).get(path).await;
    assert_eq!(other.status, 200);
    let modified = first.header("last-modified").unwrap();
    for (date, status) in [
        (modified, 304),
        ("Fri, 31 Dec 2100 23:59:59 GMT", 304),
        ("Friday, 31-Dec-99 23:59:59 GMT", 200),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 200),
        ("tomorrow", 200),
    ] {
        let dated = client.clone().with("if-modified-since", date);
        assert_eq!(dated.get(path).await.status, status, "{date}");
        // `If-None-Match` takes precedence over the date.
        let told = dated.clone().with("if-none-match", "\"x\"").get(path).await;
        assert_eq!(told.status, 200, "{date}");
        assert_eq!(
            dated.with("if-none-match", &etag).get(path).await.status,
            304,
            "{date}"
        );
    }
    let mut changed = crate::support::workflows().remove(0);
    changed["description"] = json!("Greets again.");
    server.host.engine().register(None, changed).await.unwrap();
    let dated = client.clone().with("if-modified-since", modified).get(path).await;
    assert_eq!(dated.status, 200);
    let changed = client.with("if-none-match", &etag).get(path).await;
    assert_eq!(changed.status, 200);
}

#[tokio::test]
async fn cards_change_independently() {
    let server = Server::start().await;
    let client = server.v1();
    let host = "/.well-known/agent-card.json";
    let workflow = "/a2a/w/noop/.well-known/agent-card.json";
    let mut tags = Vec::new();
    for path in [host, workflow, host, workflow] {
        let answer = client.get(path).await;
        tags.push((
            answer.header("etag").unwrap().to_owned(),
            answer.header("last-modified").unwrap().to_owned(),
        ));
    }
    assert_ne!(tags[0].0, tags[1].0);
    assert_eq!(tags[0], tags[2]);
    assert_eq!(tags[1], tags[3]);
}

#[tokio::test]
async fn the_extended_card_lists_what_the_caller_may_use() {
    let server = Server::start().await;
    let mut own = crate::support::workflows().remove(0);
    own["id"] = json!("only-other");
    let other: wopr_core::TenantId = serde_json::from_value(json!("other")).unwrap();
    server.host.engine().register(Some(&other), own).await.unwrap();
    let ids = |card: &Value| -> Vec<String> {
        let skills = card["skills"].as_array().unwrap().iter();
        skills
            .map(|skill| skill["id"].as_str().unwrap().to_owned())
            .collect()
    };
    for (client, method) in [
        (server.v1(), "GetExtendedAgentCard"),
        (server.v03(), "agent/getAuthenticatedExtendedCard"),
    ] {
        let public = client.get("/.well-known/agent-card.json").await.json();
        let mine = client.ok(method, json!({})).await;
        assert_eq!(ids(&mine), ids(&public), "{method}");
        let theirs = client.clone().by("carol").ok(method, json!({})).await;
        let mut expected = ids(&public);
        expected.push("only-other".to_owned());
        expected.sort();
        assert_eq!(ids(&theirs), expected, "{method}");
        // The `tenant` parameter selects nothing, and parameters may be missing.
        let asked = client.ok(method, json!({"tenant": "other"})).await;
        assert_eq!(asked, mine, "{method}");
        assert_eq!(client.ok(method, Value::Null).await, mine, "{method}");
        for (key, is_user) in [("starter", true), ("reader", false), ("canceller", false)] {
            let card = client.clone().by(key).ok(method, json!({})).await;
            assert_eq!(!ids(&card).is_empty(), is_user, "{method} {key}");
        }
        let one = client.clone().at("/a2a/w/noop").ok(method, json!({})).await;
        assert_eq!(ids(&one), ["noop"], "{method}");
        for hidden in ["hidden", "nowhere", "only-other"] {
            let at = client.clone().at(&format!("/a2a/w/{hidden}"));
            assert_eq!(at.err(method, json!({})).await.0, -32007, "{method} {hidden}");
        }
        let nobody = Client {
            key: None,
            ..client.clone()
        };
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method}).to_string();
        assert_eq!(nobody.raw("POST", body.as_bytes()).await.status, 401, "{method}");
    }
    let old = server
        .v03()
        .ok("agent/getAuthenticatedExtendedCard", json!({}))
        .await;
    schema::check("AgentCard", &old);
    // The same over HTTP+JSON, except for scheme fields that other readers of that binding expect.
    let mut http = server.v03().get("/v1/card").await.json();
    schema::check("AgentCard", &http);
    let schemes = http["securitySchemes"].as_object_mut().unwrap();
    assert_eq!(
        schemes["bearer"]["httpAuthSecurityScheme"],
        json!({"scheme": "Bearer", "description": schemes["bearer"]["description"]})
    );
    for scheme in schemes.values_mut() {
        let members = scheme.as_object_mut().unwrap();
        members.retain(|name, _| !name.ends_with("SecurityScheme"));
    }
    assert_eq!(http, old);
}

#[tokio::test]
async fn unsupported_versions_get_the_public_card_and_nothing_else() {
    let server = Server::start().await;
    let union = server.v03().get("/.well-known/agent-card.json").await;
    for version in ["7.0", "99", "one"] {
        let answer = server.client(version).get("/.well-known/agent-card.json").await;
        assert_eq!((answer.status, &answer.body), (200, &union.body), "{version}");
        let refused = server.client(version).get("/a2a/tasks").await;
        assert_eq!(
            refused.json()["error"]["details"][0]["reason"],
            "VERSION_NOT_SUPPORTED"
        );
    }
}

#[tokio::test]
async fn extended_card_is_cached_per_caller() {
    let server = Server::start().await;
    for (client, path) in [
        (server.v1(), "/a2a/extendedAgentCard"),
        (server.v03(), "/v1/card"),
    ] {
        let first = client.get(path).await;
        assert_eq!(first.status, 200, "{path}");
        assert_eq!(first.header("cache-control"), Some("private, no-cache"));
        assert_eq!(first.header("vary"), Some("Authorization, A2A-Version"));
        assert_eq!(first.header("last-modified"), None);
        let etag = first.header("etag").unwrap();
        let again = client.clone().with("if-none-match", etag).get(path).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        // A caller without skills gets a different card.
        let other = client
            .clone()
            .by("reader")
            .with("if-none-match", etag)
            .get(path)
            .await;
        assert_eq!(other.status, 200, "{path}");
    }
}

#[tokio::test]
async fn card_matches_discovery() {
    let server = Server::start().await;
    let client = server.v1();
    let discovery = client.get("/.well-known/openwop").await.json();
    let told: &Value = if discovery.get("a2a").is_some() {
        &discovery["a2a"]
    } else {
        &discovery["capabilities"]["a2a"]
    };
    let card = client.get("/.well-known/agent-card.json").await.json();
    assert_eq!(told["streaming"], card["capabilities"]["streaming"]);
    assert_eq!(
        told["pushNotifications"],
        card["capabilities"]["pushNotifications"]
    );
    let mut versions: Vec<_> = card["supportedInterfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|interface| interface["protocolVersion"].clone())
        .collect();
    versions.dedup();
    assert_eq!(told["protocolVersions"], json!(versions));
    assert_eq!(told["preferredVersion"], versions[0]);
    assert!(
        told["agentCardUrl"]
            .as_str()
            .unwrap()
            .ends_with("/.well-known/agent-card.json")
    );
}

#[tokio::test]
async fn the_card_without_a_version_is_the_configured_one() {
    for (setting, has_new, has_old) in [("union", true, true), ("1.0", true, false), ("0.3", false, true)] {
        let mut config = crate::support::config();
        config.a2a.card_version = setting.parse().unwrap();
        let server = Server::open(config).await;
        for path in [
            "/.well-known/agent-card.json",
            "/a2a/w/hello/.well-known/agent-card.json",
        ] {
            let card = server.v03().get(path).await.json();
            let found = (
                card.get("supportedInterfaces").is_some(),
                card.get("preferredTransport").is_some(),
            );
            assert_eq!(found, (has_new, has_old), "{setting} {path}: {card}");
            // A client that names its version gets that one.
            let card = server.v03().with("A2A-Version", "1.0").get(path).await.json();
            assert!(card.get("supportedInterfaces").is_some() && card.get("preferredTransport").is_none());
            let path = format!("{path}?A2A-Version=0.3");
            let card = server.v03().get(&path).await.json();
            assert!(card.get("supportedInterfaces").is_none() && card.get("preferredTransport").is_some());
            // The header counts.
            let card = server.v03().with("A2A-Version", "1.0").get(&path).await.json();
            assert!(card.get("supportedInterfaces").is_some() && card.get("preferredTransport").is_none());
        }
    }
}
