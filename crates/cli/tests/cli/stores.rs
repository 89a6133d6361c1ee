//! `migrate` and `doctor`: a database before a host opens it.

use serde_json::Value;

use crate::binary::{Place, signal};

#[test]
fn a_database_is_migrated_once() {
    let place = Place::new();
    let store = ["--store", "sqlite:wopr.db"];
    let with = |args: &[&'static str]| [args, &store].concat();
    place.ends(3, &with(&["migrate", "--check"]));
    assert!(!place.path().join("wopr.db").exists(), "a check makes nothing");
    let migrated = place.ends(0, &with(&["migrate", "--json"])).json();
    assert_eq!(migrated["found"], 0);
    assert!(migrated["schema"].as_u64().unwrap() > 0);
    let said = place.ends(0, &with(&["migrate"]));
    assert!(said.out.contains("up to date"), "{said:#?}");
    place.ends(0, &with(&["migrate", "--check"]));
    place.ends(2, &["migrate", "--store", "memory:"]);
    place.write(
        "notes.db",
        "this is not a database, and long enough that nobody takes it for an empty one",
    );
    let said = place.ends(1, &["migrate", "--store", "sqlite:notes.db"]);
    assert!(
        said.err.starts_with("error: cannot open the database"),
        "{said:#?}"
    );
    place.ends(4, &["migrate", "--store", "sqlite:no/such/folder/wopr.db"]);
}

#[test]
fn a_database_in_use_is_left_alone() {
    let mut place = Place::new();
    let _host = place.serve();
    for args in [["migrate"].as_slice(), &["migrate", "--check"]] {
        let mut args = args.to_vec();
        args.extend(["--store", "sqlite:wopr.db"]);
        let said = place.ends(8, &args);
        assert!(said.err.contains("has this database open"), "{said:#?}");
    }
}

#[test]
fn a_log_whose_database_is_gone_is_thrown_away_by_nobody() {
    let mut place = Place::new();
    place.serve().kill();
    let (database, log) = (place.path().join("wopr.db"), place.path().join("wopr.db-wal"));
    let writes = std::fs::read(&log).unwrap();
    assert!(!writes.is_empty());
    std::fs::remove_file(&database).unwrap();
    let store = ["--store", "sqlite:wopr.db"];
    for (code, args) in [
        (3, ["serve", "--listen", "127.0.0.1:0"].as_slice()),
        (3, &["migrate"]),
        (3, &["migrate", "--check"]),
        (3, &["backup", "copy.db"]),
        (3, &["keys", "create", "ada"]),
        (3, &["keys", "list"]),
        (3, &["keys", "revoke", "ada"]),
        (1, &["doctor", "--listen", "127.0.0.1:0"]),
    ] {
        let said = place.ends(code, &[args, &store].concat());
        let text = format!("{}{}", said.out, said.err);
        assert!(text.contains("wopr.db-wal beside it holds writes"), "{said:#?}");
        assert!(!database.exists(), "{args:?}");
        assert_eq!(std::fs::read(&log).unwrap(), writes, "{args:?}");
    }
}

/// The verdict of a check.
fn verdict<'v>(report: &'v Value, check: &str) -> &'v str {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|finding| finding["check"] == check);
    found.unwrap()["verdict"].as_str().unwrap()
}

#[test]
fn a_doctor_finds_what_keeps_a_host_from_starting() {
    let mut place = Place::new();
    let listen = ["--listen", "127.0.0.1:0"];
    let with = |args: &[&'static str]| [&["doctor", "--json"], args, &listen].concat();
    let report = place.ends(1, &with(&[])).json();
    assert_eq!(report["healthy"], false);
    assert_eq!(verdict(&report, "keys"), "error");
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing is left");

    place.set("WOPR_API_KEY", "a-key-of-the-doctor");
    let report = place.ends(0, &with(&[])).json();
    assert_eq!(report["healthy"], true);
    for check in [
        "configuration",
        "clock",
        "keys",
        "store",
        "workflows",
        "address",
        "public url",
    ] {
        assert_eq!(verdict(&report, check), "ok", "{check}: {report:#}");
    }
    place.write("flows/bad.json", "{}");
    let report = place
        .ends(0, &with(&["--workflows", "flows", "--store", "memory:"]))
        .json();
    assert_eq!(verdict(&report, "workflows"), "warning");
    assert_eq!(verdict(&report, "store"), "warning");
    let report = place.ends(1, &with(&["--workflows", "missing"])).json();
    assert_eq!(verdict(&report, "workflows"), "error");
    place.ends(3, &["doctor", "--listen", "nowhere"]);
}

#[test]
fn a_doctor_reads_the_database_to_its_last_page() {
    let mut place = Place::new();
    let host = place.serve();
    assert!(signal(host.pid(), "TERM"));
    assert_eq!(host.wait().0.code(), Some(0));
    let args = [
        "doctor",
        "--json",
        "--store",
        "sqlite:wopr.db",
        "--listen",
        "127.0.0.1:0",
    ];
    let report = place.ends(0, &args).json();
    assert_eq!(verdict(&report, "store"), "ok");
    let path = place.path().join("wopr.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 8192;
    bytes[last..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let report = place.ends(1, &args).json();
    assert_eq!(verdict(&report, "store"), "error", "{report:#}");
    assert!(report.to_string().contains("wopr.db is damaged"), "{report:#}");
}

#[test]
fn a_doctor_beside_a_running_host_only_warns() {
    let mut place = Place::new();
    let host = place.serve();
    let address = host.origin.trim_start_matches("http://");
    let report = place.json(&[
        "doctor",
        "--json",
        "--store",
        "sqlite:wopr.db",
        "--listen",
        address,
    ]);
    assert_eq!(verdict(&report, "store"), "warning");
    assert_eq!(verdict(&report, "address"), "warning");
    // Asking the server itself takes no key.
    let report = place.json(&["doctor", "--json", "--server", &host.origin]);
    assert_eq!(verdict(&report, "server"), "ok");
}
