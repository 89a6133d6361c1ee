use std::collections::HashMap;

use super::*;

fn load(file: Option<&str>, env: &[(&str, &str)], overrides: Overrides) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = file.map(|text| {
        let path = folder.path().join("wopr.toml");
        fs::write(&path, text).unwrap();
        path
    });
    let env: HashMap<_, _> = env.iter().copied().collect();
    Config::load(
        path.as_deref(),
        &|name| env.get(name).map(|text| (*text).to_owned()),
        overrides,
    )
}

fn refused(file: Option<&str>, env: &[(&str, &str)], overrides: Overrides) -> String {
    load(file, env, overrides).unwrap_err().to_string()
}

#[test]
fn the_example_equals_the_default_and_lists_every_setting() {
    let example: Config = toml::from_str(EXAMPLE).unwrap();
    assert_eq!(example, Config::default());
    for setting in SETTINGS {
        let name = setting.key.rsplit('.').next().unwrap();
        // A table of an array is commented out: the list itself beside it would be a second one of the name.
        let [one, table] = [format!("{name} ="), format!("[[{}]]", setting.key)];
        let is_mentioned = EXAMPLE
            .lines()
            .map(|line| line.trim_start_matches("# "))
            .any(|line| line.starts_with(&one) || line.starts_with(&table));
        // The master key must not be in a file.
        assert!(
            is_mentioned || setting.key == "secrets.master_key",
            "{}",
            setting.key
        );
        assert!(EXAMPLE.contains(setting.variable), "{}", setting.variable);
    }
}

/// The tables that the example has in comments, each with the lines from its header to the next one that is neither a
/// setting nor a remark about one.
fn commented_tables() -> Vec<Vec<usize>> {
    let mut tables: Vec<Vec<usize>> = Vec::new();
    let mut is_inside = false;
    for (number, line) in EXAMPLE.lines().enumerate() {
        let text = line.strip_prefix("# ").unwrap_or_default();
        if text.starts_with('[') {
            tables.push(Vec::new());
            is_inside = true;
        }
        let is_remark = line
            .strip_prefix('#')
            .is_some_and(|text| text.trim_start().starts_with('#'));
        is_inside &= text.starts_with('[') || text.contains(" = ") || is_remark;
        if is_inside {
            tables.last_mut().expect("it has begun").push(number);
        }
    }
    tables
}

#[test]
fn every_table_of_the_example_can_be_uncommented() {
    let with = |lines: &[usize]| {
        let uncommented = |(number, line): (usize, &str)| match lines.contains(&number) {
            true => line.trim_start_matches("# ").to_owned(),
            false => line.to_owned(),
        };
        let text: Vec<_> = EXAMPLE.lines().enumerate().map(uncommented).collect();
        toml::from_str::<Config>(&text.join("\n"))
    };
    let lines: Vec<_> = EXAMPLE.lines().collect();
    let tables = commented_tables();
    assert!(tables.len() > 12, "{tables:?}");
    let mut above: &[usize] = &[];
    for table in &tables {
        let header = lines[table[0]];
        // A table of the peer or the issuer above needs that one.
        let is_part = header.starts_with("# [a2a.peers.") || header.starts_with("# [auth.oidc.");
        let wanted = match is_part {
            true => [above, table].concat(),
            false => table.clone(),
        };
        if !is_part {
            above = table;
        }
        let config = with(&wanted).unwrap_or_else(|error| panic!("{header}: {error}"));
        assert_ne!(config, Config::default(), "{header}");
    }
    let all = with(&tables.concat()).unwrap();
    assert_eq!(
        (all.budgets.len(), all.models.len(), all.a2a.peers.len()),
        (1, 1, 2)
    );
    assert!(all.budgets[0].max_time.is_some() && all.budgets[0].grant_time.is_some());
}

#[test]
fn the_table_lists_every_setting() {
    let full = Config {
        default_workflow: Some(WorkflowId::parse("w").unwrap()),
        conformance_ledger: Some("x".into()),
        server: Server {
            public_url: Some("http://x".parse().unwrap()),
            ..Server::default()
        },
        limits: Limits {
            max_run_duration: Some(Period::from_secs(1)),
            ..Limits::default()
        },
        a2a: A2a {
            poll_interval: Some(Period::from_secs(30)),
            ..A2a::default()
        },
        workers: Workers {
            max_leased: Some(1),
            max_per_second: Some(1),
            ..Workers::default()
        },
        secrets: Secrets {
            key_file: Some("x".into()),
            master_key: Some(Secret::new("x")),
            named: Vec::new(),
            replace_key: false,
        },
        awp: Awp {
            listen: Some(Listen::default()),
            in_process: wopr_core::InProcess {
                model: Some("x".to_owned()),
                tools: true,
                steps: Some(wopr_core::Object::new()),
                mocks: true,
            },
            signing_keys: vec![SigningKey {
                id: "x".to_owned(),
                key: "x".to_owned(),
            }],
            ..Awp::default()
        },
        ..Config::default()
    };
    let toml::Value::Table(root) = toml::Value::try_from(full).unwrap() else {
        panic!("a configuration is a table");
    };
    let mut names = Vec::new();
    for (name, value) in root {
        match value {
            toml::Value::Table(section) => {
                for (key, value) in section {
                    match value {
                        toml::Value::Table(members) if key == "in_process" => {
                            names.extend(members.keys().map(|member| format!("{name}.{key}.{member}")));
                        }
                        _ => names.push(format!("{name}.{key}")),
                    }
                }
            }
            _ => names.push(name),
        }
    }
    names.sort();
    let mut table: Vec<_> = SETTINGS.iter().map(|setting| setting.key.to_owned()).collect();
    table.sort();
    // Several variables make the default peer, and what is done in process.
    table.dedup();
    assert_eq!(names, table);
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let file = "[server]\nlisten = \"127.0.0.1:1\"\nmax_body_bytes = 5000\n[log]\nlevel = \"warn\"";
    let env = [("WOPR_LISTEN", "127.0.0.1:2"), ("WOPR_LOG", "debug")];
    let flags = Overrides::default().with("server.listen", Some("127.0.0.1:3"));
    let config = load(Some(file), &env, flags).unwrap();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:3");
    assert_eq!(config.log.level, "debug");
    assert_eq!(config.server.max_body_bytes, 5000);
    assert_eq!(config.a2a, A2a::default());
}

#[test]
fn a_log_level_that_is_none_is_refused() {
    for level in [
        "info",
        "off",
        "",
        "info,h2=debug",
        "wopr::access=debug, warn",
        "[span{a,b}]=info",
    ] {
        assert!(
            load(None, &[("WOPR_LOG", level)], Overrides::default()).is_ok(),
            "{level}"
        );
    }
    for level in ["inf", "info,,=x", "wopr=", "wopr::access", "debug;info"] {
        let refused = load(None, &[("WOPR_LOG", level)], Overrides::default()).expect_err(level);
        assert!(refused.to_string().contains("log.level"), "{refused}");
    }
}

#[test]
fn the_environment_adds_a_key_with_every_scope() {
    let config = load(
        None,
        &[
            ("WOPR_API_KEY", "s3cret"),
            ("WOPR_CONFORMANCE", "1"),
            ("WOPR_EGRESS_ALLOW", "127.0.0.0/8, ::1"),
        ],
        Overrides::default(),
    )
    .unwrap();
    let [key] = config.auth.keys.as_slice() else {
        panic!("one key");
    };
    assert_eq!(key.tenant.as_str(), "default");
    assert_eq!(key.scopes, Scopes::ALL);
    assert!(config.conformance);
    assert_eq!(config.egress.allow.len(), 2);
}

#[test]
fn an_attempt_may_lose_at_least_one_lease() {
    let message = refused(Some("[workers]\nmax_lost_leases = 0"), &[], Overrides::default());
    assert!(
        message.contains("workers.max_lost_leases") && message.contains("at least 1"),
        "{message}"
    );
    let most = [("WOPR_WORKERS_MAX_LOST_LEASES", "1")];
    assert_eq!(
        load(None, &most, Overrides::default())
            .unwrap()
            .workers
            .max_lost_leases,
        1
    );
}

#[test]
fn an_error_names_the_setting_and_its_source() {
    let none = Overrides::default;
    assert_eq!(
        refused(None, &[("WOPR_LISTEN", "nowhere")], none()),
        "read the setting server.listen from the environment variable WOPR_LISTEN: must be an address and a \
         port, such as 127.0.0.1:8080"
    );
    assert_eq!(
        refused(None, &[], none().with("store", Some("redis:"))),
        "read the setting store from the command line: must be sqlite:PATH, memory: or postgres://…"
    );
    for most in ["0", "1000001", "9223372036854775807"] {
        let message = refused(None, &[("WOPR_MAX_CONNECTIONS", most)], none());
        assert!(message.contains("must be 1 to 1000000"), "{message}");
    }
    let message = refused(Some("[server]\nlissten = 1"), &[], none());
    assert!(
        message.contains("wopr.toml") && message.contains("lissten"),
        "{message}"
    );
    let message = refused(Some("[a2a]\nblocking_timeout = \"soon\""), &[], none());
    assert!(message.contains("blocking_timeout"), "{message}");
    let message = refused(Some("[server]\nsse_keepalive = \"31s\""), &[], none());
    assert!(message.contains("server.sse_keepalive"), "{message}");
    let message = refused(None, &[("WOPR_EFFECT_LEASE", "999ms")], none());
    assert!(message.contains("effects.lease"), "{message}");
    for text in ["forever", "999ms", "11000d"] {
        let message = refused(None, &[("WOPR_RETENTION_TERMINAL_RUNS", text)], none());
        assert!(message.contains("retention.terminal_runs"), "{message}");
        assert!(message.contains("keep"), "{message}");
    }
    let message = refused(
        Some("[[auth.keys]]\nid = \"a\"\ntenant = \"t\"\nscopes = []"),
        &[],
        none(),
    );
    assert!(message.contains("auth.keys[0]"), "{message}");
    let message = refused(Some("[secrets]\nmaster_key = \"x\""), &[], none());
    assert!(message.contains("master_key"), "{message}");
}

#[test]
fn conformance_open_requires_a_loopback_address() {
    let check = |listen: &str, is_open: bool| {
        let open = if is_open { "true" } else { "false" };
        let env = [
            ("WOPR_CONFORMANCE", "true"),
            ("WOPR_CONFORMANCE_OPEN", open),
            ("WOPR_LISTEN", listen),
        ];
        load(None, &env, Overrides::default()).map_err(|error| error.to_string())
    };
    for listen in [
        "127.0.0.1:0",
        "127.1.2.3:80",
        "localhost:80",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
    ] {
        assert!(check(listen, true).is_ok(), "{listen}");
    }
    for listen in [
        "0.0.0.0:80",
        "[::]:80",
        "10.0.0.1:80",
        "[::ffff:10.0.0.1]:80",
        "[fe80::1]:80",
    ] {
        assert!(check(listen, false).is_ok(), "{listen}");
        let refused = check(listen, true).unwrap_err();
        assert!(
            refused.contains("conformance_open") && refused.contains("loopback"),
            "{refused}"
        );
    }
    // The rule holds for flags too.
    let env = [("WOPR_CONFORMANCE", "true"), ("WOPR_CONFORMANCE_OPEN", "true")];
    let flag = Overrides::default().with("server.listen", Some("0.0.0.0:80"));
    assert!(refused(None, &env, flag).contains("conformance_open"));
}

#[test]
fn printed_configuration_is_redacted_and_parses_again() {
    let config = load(
        Some("[[auth.keys]]\nid = \"a\"\nsecret = \"hunter2hunter2\"\ntenant = \"t\"\nscopes = [\"*\"]"),
        &[
            ("WOPR_MASTER_KEY", "topsecret"),
            ("WOPR_STORE", "postgres://u:hunter2@h/d"),
        ],
        Overrides::default(),
    )
    .unwrap();
    let text = config.to_toml_redacted().unwrap();
    assert!(!text.contains("hunter2") && !text.contains("topsecret"), "{text}");
    assert!(!format!("{config:?}").contains("hunter2"));
    let default = Config::default().to_toml_redacted().unwrap();
    assert_eq!(toml::from_str::<Config>(&default).unwrap(), Config::default());
}

#[test]
fn the_public_url_never_depends_on_a_request() {
    for (listen, wanted) in [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("0.0.0.0:9", "http://localhost:9"),
        ("[::]:9", "http://localhost:9"),
        ("[::1]:9", "http://[::1]:9"),
        ("localhost:9", "http://127.0.0.1:9"),
    ] {
        let config = load(None, &[("WOPR_LISTEN", listen)], Overrides::default()).unwrap();
        assert_eq!(config.public_url(), wanted);
    }
    let config = load(
        None,
        &[("WOPR_PUBLIC_URL", "https://x.example/base/")],
        Overrides::default(),
    );
    assert_eq!(config.unwrap().public_url(), "https://x.example/base");
    assert!(load(None, &[("WOPR_PUBLIC_URL", "ftp://x")], Overrides::default()).is_err());
}

#[test]
fn periods_round_trip() {
    for text in ["250ms", "15s", "30m", "24h", "90s", "0s", "7d"] {
        let period: Period = text.parse().unwrap();
        let again: Period = period.to_string().parse().unwrap();
        assert_eq!(period, again, "{text}");
    }
    assert_eq!("24h".parse::<Period>().unwrap().to_string(), "1d");
    for text in ["", "15", "s", "-1s", "1.5s", "9999999999999d", "1y"] {
        assert!(text.parse::<Period>().is_err(), "{text}");
    }
}

const TASKS_HTTP: &str = "[[a2a.peers]]\nname = \"coder\"\ntransport = \"tasks-http\"\n";

fn peer(text: &str) -> Result<AgentPeer, String> {
    let file = format!("{TASKS_HTTP}{text}");
    let config = load(Some(&file), &[], Overrides::default()).map_err(|error| error.to_string())?;
    Ok(config.a2a.peers.into_iter().next().unwrap())
}

#[test]
fn tasks_http_peer_is_read_in_both_spellings() {
    let ours =
        peer("url = \"https://a.test\"\ntoken_env = \"KEY\"\npoll_interval_ms = 100\npoll_timeout_ms = 2000");
    let theirs =
        peer("baseUrl = \"https://a.test\"\napiKeyEnv = \"KEY\"\npollIntervalMs = 100\npollTimeoutMs = 2000");
    assert_eq!(ours, theirs);
    let secret = peer("baseUrl = \"https://a.test\"\napiKeySecretRef = \"vault:a\"").unwrap();
    assert_eq!(secret.token_secret_ref.as_deref(), Some("vault:a"));
}

#[test]
fn setting_that_a_transport_lacks_is_refused() {
    let complete = "url = \"https://a.test\"\ntoken_env = \"KEY\"\n";
    assert!(peer(complete).is_ok());
    for (setting, field) in [
        ("poll_interval_ms = 1", "poll_interval_ms"),
        ("poll_timeout_ms = 99999999999", "poll_timeout_ms"),
        ("require_signed_card = true", "require_signed_card"),
        ("card_keys = { jwks_file = \"x\" }", "card_keys"),
        ("origins = [\"https://a.test:1\"]", "origins"),
        ("apiKeySecretRef = \"vault:a\"", "token_env"),
        ("tls = {}", "tls"),
        ("tls = { cert = \"x\" }", "tls"),
        ("tls = { ca = \"x\", key = \"x\" }", "tls"),
    ] {
        let error = peer(&format!("{complete}{setting}")).unwrap_err();
        assert!(
            error.contains(&format!("a2a.peers[0].{field}:")),
            "{setting}: {error}"
        );
    }
    let refused = peer("url = \"https://a.test\"").unwrap_err();
    assert!(refused.contains("needs a bearer token"), "{refused}");
    let header = "header = { name = \"x\", value_env = \"KEY\" }";
    assert!(peer(&format!("url = \"https://a.test\"\n{header}")).is_err());
    for (setting, field) in [
        ("poll_interval_ms = 500", "poll_interval_ms"),
        ("poll_timeout_ms = 500", "poll_timeout_ms"),
        ("token_secret_ref = \"x\"", "token_secret_ref"),
        ("header = { name = \"host\", value_env = \"KEY\" }", "header"),
        (
            "header = { name = \"not a name\", value_env = \"KEY\" }",
            "header",
        ),
        ("origins = [\"https://a.test/x\"]", "origins"),
        ("origins = [\"ftp://a.test\"]", "origins"),
        ("url = \"http://a.test\"\ntls = { ca = \"x\" }", "tls"),
    ] {
        let url = if setting.contains("url =") {
            ""
        } else {
            "url = \"https://a.test\"\n"
        };
        let file = format!("[[a2a.peers]]\nname = \"a\"\n{url}{setting}");
        let error = load(Some(&file), &[], Overrides::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("a2a.peers[0].{field}:")),
            "{setting}: {error}"
        );
    }
}

#[test]
fn agent_workflow_configuration_makes_the_default_peer() {
    let json = r#"{"baseUrl": "https://a.test/api/", "apiKeyEnv": "KEY", "pollTimeoutMs": 5000}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a2a.json");
    fs::write(&path, json).unwrap();
    for text in [json, path.to_str().unwrap()] {
        let env = [("WORKFLOW_ENGINE_A2A_CONFIG", text)];
        let config = load(None, &env, Overrides::default()).unwrap();
        let wanted = AgentPeer {
            token_env: Some("KEY".to_owned()),
            transport: Transport::TasksHttp,
            poll_timeout_ms: Some(5_000),
            ..AgentPeer::new(DEFAULT_PEER, "https://a.test/api/".parse().unwrap())
        };
        assert_eq!(config.a2a.peers, [wanted]);
    }
    for (text, why) in [
        (r#"{"apiKeyEnv": "KEY"}"#, "missing field `baseUrl`"),
        (
            r#"{"baseUrl": "https://a.test", "apiKey": "KEY"}"#,
            "unknown field `apiKey`",
        ),
        (r#"{"baseUrl": "https://a.test"}"#, "needs a bearer token"),
        ("/nowhere.json", "WORKFLOW_ENGINE_A2A_CONFIG"),
    ] {
        let env = [("WORKFLOW_ENGINE_A2A_CONFIG", text)];
        let error = load(None, &env, Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    let both = [
        ("WORKFLOW_ENGINE_A2A_CONFIG", json),
        ("WOPR_A2A_PEER", "https://b.test"),
    ];
    let error = load(None, &both, Overrides::default()).unwrap_err().to_string();
    assert!(error.contains("both make the peer default"), "{error}");
}

#[test]
fn token_of_a_default_peer_that_is_not_there_is_refused() {
    let token = ("WOPR_A2A_PEER_TOKEN", "a-token");
    let error = load(None, &[token], Overrides::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("WOPR_A2A_PEER_TOKEN is the token of the peer default"),
        "{error}"
    );
    let peer = ("WOPR_A2A_PEER", "https://a.test");
    assert!(load(None, &[token, peer], Overrides::default()).is_ok());
    let file = "[[a2a.peers]]\nname = \"default\"\nurl = \"https://a.test\"";
    assert!(load(Some(file), &[token], Overrides::default()).is_ok());
}

#[test]
fn what_the_reference_engine_does_in_process_is_done_here() {
    let env = [
        ("WORKFLOW_ENGINE_STEP_HANDLERS", r#"{"urn:a": {"n": 1}}"#),
        (
            "WORKFLOW_ENGINE_LLM_CONFIG",
            r#"{"baseUrl": "http://127.0.0.1:9/v1", "apiKeySecretRef": "env:LLM_KEY"}"#,
        ),
        (
            "WORKFLOW_ENGINE_MCP_CONFIG",
            r#"{"mcpServers": {"files": {"command": "node"}}, "delegateAgents": {"scribe": {"server": "files", "tool": "t"}}}"#,
        ),
        ("WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS", "npx, node"),
        ("WORKFLOW_ENGINE_PROFILE", "demo"),
    ];
    let config = load(None, &env, Overrides::default()).unwrap();
    let in_process = config.awp.in_process().unwrap();
    assert_eq!(
        in_process.steps.as_ref().unwrap()["urn:a"],
        serde_json::json!({ "n": 1 })
    );
    assert!(in_process.tools && in_process.mocks);
    let provider = config
        .models
        .iter()
        .find(|model| Some(&model.name) == in_process.model.as_ref());
    let provider = provider.unwrap();
    assert_eq!(
        provider.base_url.as_ref().unwrap().as_str(),
        "http://127.0.0.1:9/v1"
    );
    let secret = provider.secret.as_ref().unwrap();
    let secret = config
        .secrets
        .named
        .iter()
        .find(|named| named.name == *secret)
        .unwrap();
    assert_eq!(secret.env.as_deref(), Some("LLM_KEY"));
    assert_eq!(config.mcp.servers[0].name, "files");
    assert_eq!(config.mcp.agents[0].name, "scribe");
    let not_allowed = [env[2], ("WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS", "npx")];
    assert!(load(None, &not_allowed, Overrides::default()).is_err());
    let only_mocks = load(None, &env[4..], Overrides::default()).unwrap();
    assert_eq!(only_mocks.awp.in_process(), None);
}

#[test]
fn what_a_host_does_in_process_is_checked() {
    for (toml, key) in [
        ("[awp.in_process]\nmodel = \"nowhere\"", "awp.in_process.model"),
        ("[awp.in_process]\ntools = true", "awp.in_process.tools"),
        ("[awp.in_process]\nmodels = true", "models"),
    ] {
        let error = load(Some(toml), &[], Overrides::default()).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
    let large = format!("{{\"urn:a\": \"{}\"}}", "x".repeat(70_000));
    let refused = load(
        None,
        &[("WORKFLOW_ENGINE_STEP_HANDLERS", &large)],
        Overrides::default(),
    );
    assert!(refused.unwrap_err().to_string().contains("awp.in_process.steps"));
}

#[test]
fn variables_of_the_reference_engine_work_or_are_refused() {
    let key = "MCowBQYDK2VwAyEA-_wc6pHan2aD2MyBvmSWwoarQ0EWXjtZ-tr3LF_ujOI";
    let keys = format!("{{\"release\": \"{key}\"}}");
    let tokens = r#"[{"token": "a", "scopes": ["start"]}, {"token": "a", "scopes": ["read_history"]},
        {"token": "b", "scopes": ["submit_activity"]}]"#;
    let env = [
        ("WORKFLOW_ENGINE_STORE", "sqlite"),
        ("WORKFLOW_ENGINE_STORE_PATH", "runs.db"),
        ("WORKFLOW_ENGINE_REST_PORT", "8787"),
        ("WORKFLOW_ENGINE_DEFINITION_SIGNING_MODE", "require"),
        ("WORKFLOW_ENGINE_SIGNING_PUBLIC_KEYS", &keys),
        ("WORKFLOW_ENGINE_AUTH_TOKENS", tokens),
        ("WORKFLOW_ENGINE_PROFILE", "demo"),
    ];
    let config = load(None, &env, Overrides::default()).unwrap();
    assert_eq!(config.store, StoreUrl::Sqlite("runs.db".into()));
    assert_eq!(config.awp.listen, Some("127.0.0.1:8787".parse().unwrap()));
    assert_eq!(config.awp.signing, SigningMode::Require);
    assert_eq!(config.awp.signing_keys[0].id, "release");
    let scopes: Vec<_> = config.auth.keys.iter().map(|key| key.scopes.names()).collect();
    assert_eq!(
        scopes,
        [
            vec![
                "manifest:read",
                "runs:create",
                "runs:read",
                "runs:cancel",
                "workflows:write"
            ],
            vec!["activities:work"]
        ]
    );
    let both = [("WOPR_STORE", "memory:"), ("WORKFLOW_ENGINE_STORE", "memory")];
    assert!(load(None, &both, Overrides::default()).is_err(), "two stores");
    let memory = [
        ("WORKFLOW_ENGINE_STORE", "memory"),
        ("WORKFLOW_ENGINE_STORE_PATH", "runs.db"),
    ];
    let config = load(None, &memory, Overrides::default()).unwrap();
    assert_eq!(config.store, StoreUrl::Memory);
    for (name, value) in [
        ("WORKFLOW_ENGINE_STORE", "postgres"),
        ("WORKFLOW_ENGINE_PROFILE", "production"),
        ("WORKFLOW_ENGINE_STEP_HANDLERS", "[]"),
        (
            "WORKFLOW_ENGINE_LLM_CONFIG",
            r#"{"apiKeyEnv": "A", "apiKeySecretRef": "env:B"}"#,
        ),
        ("WORKFLOW_ENGINE_LLM_CONFIG", r#"{"apiKeySecretRef": "vault:B"}"#),
        ("WORKFLOW_ENGINE_LLM_CONFIG", r#"{"temperature": 1}"#),
        ("WORKFLOW_ENGINE_MCP_CONFIG", r#"{"mcpServers": {}}"#),
        ("WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS", "node"),
        ("AGENT_WORKFLOW_MCP_MANIFEST", "/nowhere.json"),
        ("WORKFLOW_ENGINE_SIGNING_PUBLIC_KEYS", "{\"release\": \"no key\"}"),
        (
            "WORKFLOW_ENGINE_AUTH_TOKENS",
            "[{\"token\": \"a\", \"scopes\": [\"fly\"]}]",
        ),
    ] {
        let refused = load(None, &[(name, value)], Overrides::default());
        assert!(refused.is_err(), "{name}");
    }
}
