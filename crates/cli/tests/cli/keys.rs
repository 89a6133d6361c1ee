//! API keys, managed directly in a database and through a host.

use crate::binary::{Host, Place, members};

#[test]
fn keys_are_created_listed_and_revoked_in_a_database() {
    let place = Place::new();
    let store = ["--store", "sqlite:wopr.db"];
    let with = |args: &[&'static str]| [args, &store].concat();
    place.ends(4, &with(&["keys", "list"]));
    let said = place.ends(
        0,
        &with(&["keys", "create", "ci", "--scope", "runs:create,runs:read"]),
    );
    let secret = said.out.trim().to_owned();
    assert!(
        secret.starts_with("wopr_") && said.out.lines().count() == 1,
        "{said:#?}"
    );
    assert!(!said.err.contains(&secret), "{said:#?}");
    place.ends(1, &with(&["keys", "create", "--id", "ci"]));
    let made = place
        .ends(0, &with(&["keys", "create", "--json", "--tenant", "acme"]))
        .json();
    assert_eq!(
        members(&made),
        ["createdAt", "id", "principal", "scopes", "secret", "tenant"]
    );
    assert_eq!(made["tenant"], "acme");
    assert_eq!(made["scopes"][0], "*");

    // Key ids are unique per tenant, so revoking one that two tenants have requires the tenant.
    place.ends(0, &with(&["keys", "create", "ci", "--tenant", "acme"]));
    let said = place.ends(2, &with(&["keys", "revoke", "ci"]));
    assert!(said.err.contains("--tenant"), "{said:#?}");
    place.ends(0, &with(&["keys", "revoke", "ci", "--tenant", "acme"]));

    let listed = place.ends(0, &with(&["keys", "list", "--json"]));
    assert!(!listed.out.contains(&secret), "{listed:#?}");
    assert_eq!(listed.json()["keys"].as_array().unwrap().len(), 3);

    // A host on this database accepts the key.
    let host = |place: &Place| {
        Host::start(place.command(&with(&["serve", "--while-stdin", "--listen", "127.0.0.1:0"])))
    };
    let running = host(&place);
    let list = ["runs", "list", "--server", &running.origin, "--key", &secret];
    place.ends(0, &list);
    let said = place.ends(
        5,
        &["workflows", "list", "--server", &running.origin, "--key", &secret],
    );
    assert!(said.err.contains("manifest:read"), "{said:#?}");

    // While the host runs, too: a new key is accepted at its first use, a revoked one rejected within a
    // second.
    let made = place.ends(0, &with(&["keys", "create", "late"]));
    let late = made.out.trim();
    place.ends(0, &["runs", "list", "--server", &running.origin, "--key", late]);
    place.ends(4, &with(&["keys", "revoke", "nobody"]));
    for _ in 0..2 {
        place.ends(0, &with(&["keys", "revoke", "ci", "--tenant", "default"]));
    }
    assert!(place.ends(0, &with(&["keys", "list"])).out.contains("revoked"));
    while place.run(&list).code == 0 {}
    place.ends(5, &list);
    place.ends(0, &["runs", "list", "--server", &running.origin, "--key", late]);
    running.kill();

    let running = host(&place);
    place.ends(
        5,
        &["runs", "list", "--server", &running.origin, "--key", &secret],
    );
}

#[test]
fn host_creates_keys_that_are_valid_at_once() {
    let mut place = Place::new();
    let _host = place.serve();
    let secret = place
        .ends(0, &["keys", "create", "--id", "reader", "--scope", "runs:read"])
        .out;
    let secret = secret.trim();
    place.ends(0, &["runs", "list", "--key", secret]);
    place.ends(5, &["keys", "list", "--key", secret]);
    for protocol in ["jsonrpc", "grpc"] {
        let said = place.ends(
            5,
            &["a2a", "send", "a sale", "--binding", protocol, "--key", secret],
        );
        assert!(said.err.contains("may not do this"), "{said:#?}");
    }
    let listed = place.json(&["keys", "list", "--json"]);
    assert_eq!(listed["keys"][0]["id"], "reader");
    assert_eq!(
        place.json(&["keys", "revoke", "reader", "--json"])["revoked"],
        true
    );
    place.ends(5, &["runs", "list", "--key", secret]);
    place.ends(4, &["keys", "revoke", "nobody"]);
}
