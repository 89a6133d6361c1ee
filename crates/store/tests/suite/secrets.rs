//! Secrets of tenants: stored, replaced, bounded, and apart.

use std::sync::Arc;

use wopr_store::{SecretRow, Store, StoredSecrets as _, sqlite::Guest};

use crate::{database::Database, make::*};

crate::behaviours!(
    a_secret_is_read_as_it_was_put,
    a_secret_is_replaced_by_one_of_its_name,
    a_removed_secret_is_gone,
    a_tenant_has_so_many_secrets_and_no_more,
    secrets_of_tenants_are_apart,
    first_check_value_of_the_master_key_stays_until_replaced,
);

fn secret(owner: &str, name: &str, value: &[u8]) -> SecretRow {
    SecretRow {
        tenant: tenant(owner),
        name: name.to_owned(),
        sealed: value.to_vec(),
        fingerprint: format!("print of {name}"),
        set_at: at(7),
    }
}

async fn a_secret_is_read_as_it_was_put(store: Arc<dyn Store>) {
    let row = secret("acme", "crm", b"\0\xff sealed");
    assert!(store.put_secret(row.clone(), 10).await.expect("put"));
    let read = store.secret(&tenant("acme"), "crm").await.expect("read");
    assert_eq!(read, Some(row));
    assert_eq!(store.secret(&tenant("acme"), "cr").await.expect("read"), None);
}

async fn a_secret_is_replaced_by_one_of_its_name(store: Arc<dyn Store>) {
    for value in [b"one", b"two"] {
        let row = secret("acme", "crm", value);
        assert!(store.put_secret(row, 1).await.expect("put"));
    }
    let all = store.secrets(&tenant("acme")).await.expect("read");
    assert_eq!(all, [secret("acme", "crm", b"two")]);
}

async fn a_removed_secret_is_gone(store: Arc<dyn Store>) {
    let row = secret("acme", "crm", b"one");
    assert!(store.put_secret(row, 10).await.expect("put"));
    assert!(store.remove_secret(&tenant("acme"), "crm").await.expect("remove"));
    assert!(!store.remove_secret(&tenant("acme"), "crm").await.expect("remove"));
    assert_eq!(store.secret(&tenant("acme"), "crm").await.expect("read"), None);
}

async fn a_tenant_has_so_many_secrets_and_no_more(store: Arc<dyn Store>) {
    for name in ["b", "a"] {
        let row = secret("acme", name, b"one");
        assert!(store.put_secret(row, 2).await.expect("put"));
    }
    let third = secret("acme", "c", b"one");
    assert!(!store.put_secret(third.clone(), 2).await.expect("put"));
    let again = secret("acme", "b", b"two");
    assert!(store.put_secret(again.clone(), 2).await.expect("put"));
    let others = SecretRow {
        tenant: tenant("other"),
        ..third
    };
    assert!(store.put_secret(others, 2).await.expect("put"));
    let all = store.secrets(&tenant("acme")).await.expect("read");
    assert_eq!(all, [secret("acme", "a", b"one"), again], "by name");
}

async fn secrets_of_tenants_are_apart(store: Arc<dyn Store>) {
    for (owner, value) in [("acme", b"one"), ("other", b"two")] {
        let row = secret(owner, "crm", value);
        assert!(store.put_secret(row, 10).await.expect("put"));
    }
    assert!(store.remove_secret(&tenant("acme"), "crm").await.expect("remove"));
    let left = store.secret(&tenant("other"), "crm").await.expect("read");
    assert_eq!(left, Some(secret("other", "crm", b"two")));
    assert_eq!(store.secrets(&tenant("acme")).await.expect("read"), []);
}

async fn first_check_value_of_the_master_key_stays_until_replaced(store: Arc<dyn Store>) {
    assert_eq!(store.key_check().await.expect("read"), None);
    for (check, replaces, stored) in [("a", false, "a"), ("b", false, "a"), ("c", true, "c")] {
        store.put_key_check(check, replaces).await.expect("put");
        assert_eq!(store.key_check().await.expect("read").as_deref(), Some(stored));
    }
}

/// A second process sets a secret while a host has the database open.
#[tokio::test]
async fn secret_of_a_guest_is_there_for_the_host() {
    let database = Database::new();
    let host = database.open();
    let guest = Guest::open(&database.path).expect("a guest");
    let row = secret("acme", "crm", b"one");
    assert!(guest.put_secret(row.clone(), 10).await.expect("put"));
    let read = host.secret(&tenant("acme"), "crm").await.expect("read");
    assert_eq!(read, Some(row));
    assert_eq!(guest.secrets(&tenant("acme")).await.expect("read").len(), 1);
    assert!(guest.remove_secret(&tenant("acme"), "crm").await.expect("remove"));
    assert_eq!(host.secret(&tenant("acme"), "crm").await.expect("read"), None);
}
