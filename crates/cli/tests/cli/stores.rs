//! `migrate` and `doctor`, on a database that no host has opened yet.

use serde_json::Value;

use crate::binary::{Place, signal};

#[test]
fn database_is_migrated_once() {
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
    let said = place.ends(3, &["migrate", "--store", "sqlite:."]);
    assert!(said.err.contains("hint: name a file in it"), "{said:#?}");
}

#[test]
fn database_in_use_is_not_touched() {
    let mut place = Place::new();
    let _host = place.serve();
    for args in [["migrate"].as_slice(), &["migrate", "--check"]] {
        let mut args = args.to_vec();
        args.extend(["--store", "sqlite:wopr.db"]);
        let said = place.ends(8, &args);
        assert!(said.err.contains("has this database open"), "{said:#?}");
    }
}

#[cfg(unix)]
#[test]
fn another_name_of_an_open_database_starts_no_second_host() {
    let mut place = Place::new();
    let host = place.serve();
    let run = place.ends(0, &["run", "hello", "--detach"]).out;
    let (link, hard) = (place.path().join("link.db"), place.path().join("hard.db"));
    std::os::unix::fs::symlink("wopr.db", &link).unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store"];
    let with = |args: &[&'static str], store: &'static str| {
        let mut args = args.to_vec();
        args.push(store);
        args
    };
    let said = place.ends(8, &with(&serve, "sqlite:link.db"));
    assert!(said.err.contains("has this database open"), "{said:#?}");
    // Commands that may share the database find the host's through a link, with its log and key.
    place.ends(0, &["keys", "create", "ada", "--store", "sqlite:link.db"]);
    place.ends(
        0,
        &["backup", "copy.db", "--with-key", "--store", "sqlite:link.db"],
    );
    place.ends(0, &["migrate", "--check", "--store", "sqlite:copy.db"]);

    std::fs::hard_link(place.path().join("wopr.db"), &hard).unwrap();
    for store in ["sqlite:hard.db", "sqlite:wopr.db"] {
        for (code, args) in [
            (3, serve.as_slice()),
            (3, &["migrate", "--store"]),
            (3, &["keys", "list", "--store"]),
            (3, &["backup", "again.db", "--store"]),
        ] {
            if store == "sqlite:wopr.db" && args[0] == "serve" {
                // It is locked too, which is reported first.
                place.ends(8, &with(args, store));
                continue;
            }
            let said = place.ends(code, &with(args, store));
            assert!(
                said.err.contains("2 names (hard links)"),
                "{args:?} {store}: {said:#?}"
            );
            assert!(said.err.contains("hint: "), "{said:#?}");
        }
    }
    let said = place.ends(
        1,
        &["doctor", "--store", "sqlite:hard.db", "--listen", "127.0.0.1:0"],
    );
    assert!((said.out + &said.err).contains("hard links"));
    place.ends(0, &["runs", "show", run.trim()]);
    drop(host);
    let names: Vec<_> = place
        .path()
        .read_dir()
        .unwrap()
        .flatten()
        .map(|file| file.file_name())
        .collect();
    let beside = [
        "link.db.lock",
        "link.db.key",
        "link.db-wal",
        "hard.db-wal",
        "hard.db.key",
    ];
    assert!(
        !names.iter().any(|name| beside.iter().any(|made| name == made)),
        "{names:?}"
    );
}

/// Reads all files in a folder, except those that a read-only open may leave: the lock file, the shared
/// memory file, and an empty write-ahead log.
fn contents(folder: &std::path::Path) -> std::collections::BTreeMap<std::ffi::OsString, Vec<u8>> {
    let files = folder.read_dir().unwrap().flatten();
    let files = files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap()));
    let is_left = |name: &str, bytes: &[u8]| {
        name.ends_with(".lock") || name.ends_with("-shm") || (name.ends_with("-wal") && bytes.is_empty())
    };
    files
        .filter(|(name, bytes)| !is_left(&name.to_string_lossy(), bytes))
        .collect()
}

#[test]
fn refused_start_changes_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let key = ("WOPR_API_KEY", "key-of-the-tests-0123456789abcdef");
    let free = "127.0.0.1:0";
    type Refusal<'a> = (i32, &'a [(&'a str, &'a str)], Vec<&'a str>);
    let refusals: [Refusal<'_>; 7] = [
        (3, &[], vec!["--listen", free]),
        (8, &[key], vec!["--listen", &taken]),
        (3, &[key], vec!["--listen", free, "--workflows", "no/such/folder"]),
        (3, &[key, ("WOPR_MASTER_KEY", "short")], vec!["--listen", free]),
        (
            3,
            &[key],
            vec!["--listen", free, "--set", "secrets.key_file=no/such/key"],
        ),
        (
            3,
            &[key],
            vec![
                "--listen",
                free,
                "--set",
                "server.tls.cert=no.pem",
                "--set",
                "server.tls.key=no.pem",
            ],
        ),
        (
            3,
            &[key],
            vec!["--listen", free, "--set", "limits.max_node_executions=none"],
        ),
    ];
    for is_new in [true, false] {
        for (code, variables, args) in &refusals {
            let mut place = Place::new();
            if !is_new {
                // A host that ran here before and shut down gracefully.
                let mut host = place.serve();
                host.close_stdin();
                assert_eq!(host.wait().0.code(), Some(0));
                place = place.without_server();
            }
            let before = contents(place.path());
            assert_eq!(before.is_empty(), is_new, "{before:?}");
            for (name, value) in *variables {
                place.set(name, value);
            }
            let mut all = vec!["serve", "--store", "sqlite:wopr.db"];
            all.extend(args);
            let said = place.ends(*code, &all);
            let after = contents(place.path());
            let names = |files: &std::collections::BTreeMap<_, _>| files.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&after), names(&before), "{args:?}: {said:#?}");
            assert!(after == before, "{args:?}: {said:#?}");
        }
    }
}

#[test]
fn log_without_its_database_is_never_deleted() {
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

fn verdict<'v>(report: &'v Value, check: &str) -> &'v str {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|finding| finding["check"] == check);
    found.unwrap()["verdict"].as_str().unwrap()
}

#[test]
fn doctor_finds_what_prevents_a_host_from_starting() {
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
fn doctor_checks_all_pages_of_the_database() {
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
fn doctor_next_to_a_running_host_only_warns() {
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
    // Asking the server itself needs no key.
    let report = place.json(&["doctor", "--json", "--server", &host.origin]);
    assert_eq!(verdict(&report, "server"), "ok");
}
