//! Configuration: precedence of sources, and error reports.

use crate::binary::Place;

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let mut place = Place::new();
    place.write(
        "wopr.toml",
        "[server]\nlisten = \"127.0.0.1:1\"\nmax_body_bytes = 5000\n[log]\nlevel = \"warn\"\nformat = \"json\"\n",
    );
    place.set("WOPR_LISTEN", "127.0.0.1:2");
    place.set("WOPR_LOG", "debug");
    let args = [
        "config",
        "print",
        "--json",
        "--config",
        "wopr.toml",
        "--listen",
        "127.0.0.1:3",
    ];
    let config = place.json(&args);
    assert_eq!(config["server"]["listen"], "127.0.0.1:3");
    assert_eq!(config["log"]["level"], "debug");
    assert_eq!(config["log"]["format"], "json");
    assert_eq!(config["server"]["max_body_bytes"], 5000);
    assert_eq!(config["a2a"]["blocking_timeout"], "1m");

    place.set("WOPR_CONFIG", "wopr.toml");
    let config = place.json(&["config", "print", "--json", "--set", "a2a.private_tasks=true"]);
    assert_eq!(config["server"]["listen"], "127.0.0.1:2");
    assert_eq!(config["a2a"]["private_tasks"], true);
}

#[test]
fn printed_configuration_has_no_secrets_and_can_be_loaded() {
    let mut place = Place::new();
    place.set("WOPR_API_KEY", "hunter2hunter2hunter2");
    let said = place.ends(0, &["config", "print"]);
    assert!(!said.out.contains("hunter2"), "{said:#?}");
    let defaults = place.ends(0, &["config", "print", "--defaults"]).out;
    place.write("defaults.toml", &defaults);
    place.ends(0, &["config", "check", "--config", "defaults.toml"]);
}

#[test]
fn invalid_configuration_ends_with_3_and_names_the_setting() {
    let mut place = Place::new();
    place.write("unknown.toml", "[server]\nlissten = \"x\"\n");
    for (args, wanted) in [
        (
            ["config", "check", "--listen", "nowhere"].as_slice(),
            "server.listen",
        ),
        (&["config", "check", "--store", "redis:x"], "store"),
        (
            &["config", "check", "--config", "unknown.toml"],
            "unknown.toml is invalid",
        ),
        (&["config", "check", "--config", "unknown.toml"], "lissten"),
        (&["config", "check", "--set", "nonsense=1"], "nonsense"),
        (
            &["serve", "--set", "server.sse_keepalive=31s"],
            "server.sse_keepalive",
        ),
        (
            &["serve", "--listen", "127.0.0.1:0", "--log-level", "a=b=c"],
            "log.level",
        ),
    ] {
        let said = place.ends(3, args);
        assert!(said.err.contains(wanted), "{args:?}: {said:#?}");
        assert!(said.err.starts_with("error: "), "{said:#?}");
    }
    let said = place.ends(3, &["config", "check", "--config", "unknown.toml"]);
    assert!(!said.err.contains("config check"), "{said:#?}");
    let said = place.ends(3, &["serve", "--config", "unknown.toml"]);
    assert!(said.err.contains("config check"), "{said:#?}");
    place.set("WOPR_LISTEN", "nowhere");
    let said = place.ends(3, &["config", "check"]);
    assert!(said.err.contains("WOPR_LISTEN"), "{said:#?}");
}

/// Settings with which a host does not start, and what is said of them.
const NOT_STARTING: [(&[&str], &str); 6] = [
    (&["--store", "postgres://127.0.0.1/w"], "WOPR_MASTER_KEY"),
    (&["--set", "secrets.key_file=none.key"], "none.key"),
    (&["--config", "tls.toml"], "none.pem"),
    (
        &["--store", "postgres://127.0.0.1/w?connections=0"],
        "connections is a number above 0",
    ),
    (
        &["--store", "postgres://127.0.0.1/w?sslrootcert=ca.pem"],
        "sslmode=require",
    ),
    (&["--set", "interrupts.token_ttl=0s"], "must be over 0"),
];

#[test]
fn check_and_doctor_refuse_what_a_start_refuses() {
    let mut place = Place::new();
    place.set("WOPR_API_KEY", "a-key-of-the-check");
    place.write(
        "tls.toml",
        "[server.tls]\ncert = \"none.pem\"\nkey = \"none.pem\"\n",
    );
    for (settings, wanted) in NOT_STARTING {
        let with = |args: &[&'static str]| [args, settings].concat();
        if !wanted.contains("MASTER_KEY") && settings[0] == "--store" {
            place.set("WOPR_MASTER_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        }
        let said = place.ends(3, &with(&["config", "check"]));
        assert!(said.err.contains(wanted), "{settings:?}: {said:#?}");
        let said = place.ends(3, &with(&["serve", "--listen", "127.0.0.1:0"]));
        assert!(said.err.contains(wanted), "{settings:?}: {said:#?}");
    }
    let said = place.ends(1, &["doctor", "--listen", "127.0.0.1:0", "--config", "tls.toml"]);
    assert!(said.out.contains("none.pem"), "{said:#?}");
}

#[test]
fn check_and_doctor_tell_which_credentials_are_missing() {
    let place = Place::new();
    place.write(
        "wopr.toml",
        "[[secrets.named]]\nname = \"news\"\nenv = \"NEWS_TOKEN\"\n\
         [[a2a.peers]]\nname = \"coder\"\nurl = \"https://coder.example\"\ntoken_file = \"none\"\n",
    );
    let checked = place.ends(0, &["config", "check", "--config", "wopr.toml"]);
    let examined = place.run(&["doctor", "--listen", "127.0.0.1:0", "--config", "wopr.toml"]);
    for told in [checked.out + &checked.err, examined.out] {
        for wanted in [
            "the secret news is missing: NEWS_TOKEN",
            "the agent coder is missing",
        ] {
            assert!(told.contains(wanted), "{told}");
        }
    }
}

#[test]
fn two_keys_with_one_secret_are_refused() {
    let place = Place::new();
    let hash = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    for secret in [
        "secret = \"hello\"".to_owned(),
        format!("secret_sha256 = \"{hash}\""),
    ] {
        let key = |id: &str, secret: &str| {
            format!("[[auth.keys]]\nid = \"{id}\"\ntenant = \"{id}\"\nscopes = [\"runs:read\"]\n{secret}\n")
        };
        let keys = key("one", "secret = \"hello\"") + &key("two", &secret);
        place.write("wopr.toml", &keys);
        let said = place.ends(3, &["config", "check", "--config", "wopr.toml"]);
        assert!(said.err.contains("auth.keys[1]"), "{said:#?}");
    }
}

#[test]
fn check_reports_warnings() {
    let place = Place::new();
    let checked = place.json(&["config", "check", "--json", "--store", "memory:"]);
    assert_eq!(checked["valid"], true);
    let notes = checked["notes"].to_string();
    assert!(notes.contains("no key") && notes.contains("in memory"), "{notes}");
}

#[test]
fn missing_file_ends_with_4() {
    let place = Place::new();
    for args in [
        ["config", "check", "--config", "none.toml"].as_slice(),
        &["serve", "--config", "none.toml"],
        &["workflows", "validate", "none.json"],
        &["workflows", "register", "none.json"],
        &["run", "none.json"],
        &["run", "hello", "--inputs", "@none.json"],
    ] {
        let said = place.ends(4, args);
        let text = said.out + &said.err;
        assert!(text.contains("none."), "{args:?}: {text}");
    }
}

#[test]
fn unknown_environment_variable_is_reported() {
    let mut place = Place::new();
    place.set("WOPR_LISTN", "127.0.0.1:1");
    place.set("WOPR_TEST_POSTGRES", "x");
    place.set("WOPR_LOG", "warn");
    let checked = place.json(&["config", "check", "--json"]);
    let notes = checked["notes"].to_string();
    assert!(notes.contains("WOPR_LISTN"), "{notes}");
    assert!(
        !notes.contains("WOPR_TEST") && !notes.contains("WOPR_LOG"),
        "{notes}"
    );
}
