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
