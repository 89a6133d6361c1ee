//! Workflow versions and API keys.

use std::sync::Arc;

use wopr_core::{ContentHash, Membership, RunKey, RunStatus, TenantId};
use wopr_store::{
    Batch, KeyRow, Log as _, Registry as _, Removal, Revision, Store, Swept, WorkflowChange, WorkflowRow,
    sqlite::Guest,
};

use crate::{database::Database, make::*};

crate::behaviours!(
    a_version_is_new_once,
    a_workflow_is_added_only_where_there_is_none,
    one_of_many_racing_adds_of_a_workflow_wins,
    storing_a_known_version_makes_it_current_again,
    every_version_stays_readable,
    tenants_own_workflow_takes_precedence_over_the_shared_one,
    workflows_of_other_tenants_are_invisible,
    every_change_has_a_later_revision,
    revoked_keys_of_a_tenant_are_forgotten,
    no_op_changes_have_no_revision,
    current_workflows_are_read_in_pages,
    a_removed_workflow_is_not_current,
    a_removal_is_a_change_with_a_revision,
    a_removed_workflow_can_be_registered_again,
    racing_removals_and_registrations_end_as_the_last_change_says,
    versions_of_a_removed_workflow_stay_while_it_has_runs,
    many_versions_of_removed_workflows_are_deleted_in_steps,
    keys_read_back_by_id,
    a_key_is_revoked_once,
    an_existing_key_is_never_replaced,
    keys_of_a_tenant_are_limited,
    one_of_many_racing_adds_of_a_key_wins,
    key_ids_are_separate_per_tenant,
);

fn version(owner: Option<&str>, name: &str, body: &str) -> WorkflowRow {
    WorkflowRow {
        tenant: owner.map(tenant),
        id: workflow(name),
        version: ContentHash::of(body.as_bytes()),
        dialect: format!("language of {name}"),
        body: format!("{owner:?} {body}").into_bytes(),
        registered_at: at(7),
    }
}

fn key(id: &str) -> KeyRow {
    KeyRow {
        id: id.to_owned(),
        secret_sha256: ContentHash::of(id.as_bytes()).as_str().to_owned(),
        tenant: tenant("acme"),
        principal: principal("ada"),
        scopes: vec!["runs:read".to_owned(), "odd \"scope\", ünïcode".to_owned()],
        membership: Membership {
            roles: vec!["legal".to_owned()],
            groups: vec!["eu \"north\"".to_owned()],
        },
        created_at: at(3),
        revoked_at: None,
    }
}

/// A key with the same id and another secret.
fn another(id: &str) -> KeyRow {
    KeyRow {
        secret_sha256: ContentHash::of(b"another").as_str().to_owned(),
        ..key(id)
    }
}

fn acme() -> TenantId {
    tenant("acme")
}

async fn a_version_is_new_once(store: Arc<dyn Store>) {
    assert!(store.put_workflow(version(None, "a", "v1")).await.expect("put"));
    assert!(!store.put_workflow(version(None, "a", "v1")).await.expect("put"));
    assert!(
        store
            .put_workflow(version(Some("acme"), "a", "v1"))
            .await
            .expect("put"),
        "another owner"
    );
    assert!(
        store.put_workflow(version(None, "b", "v1")).await.expect("put"),
        "another name"
    );
}

async fn a_workflow_is_added_only_where_there_is_none(store: Arc<dyn Store>) {
    let first = version(Some("acme"), "a", "v1");
    assert!(store.add_workflow(first.clone()).await.expect("add"));
    for taken in [first.clone(), version(Some("acme"), "a", "v2")] {
        assert!(!store.add_workflow(taken).await.expect("add"));
    }
    assert_eq!(current(&store).await, [first]);
    let (id, version_2) = (workflow("a"), ContentHash::of(b"v2"));
    let read = store.workflow(&acme(), &id, &version_2).await.expect("read");
    assert_eq!(read, None, "what was not added is not there");
    assert!(
        store.add_workflow(version(None, "a", "v1")).await.expect("add"),
        "another owner"
    );
    store.put_workflow(version(None, "b", "v1")).await.expect("put");
    assert!(!store.add_workflow(version(None, "b", "v2")).await.expect("add"));
}

async fn one_of_many_racing_adds_of_a_workflow_wins(store: Arc<dyn Store>) {
    let add = |n: u8| {
        let store = Arc::clone(&store);
        let row = version(Some("acme"), "a", &format!("v{n}"));
        tokio::spawn(async move { store.add_workflow(row).await.expect("add") })
    };
    let adding: Vec<_> = (0..8).map(add).collect();
    let mut n_added = 0;
    for added in adding {
        n_added += usize::from(added.await.expect("no panic"));
    }
    assert_eq!((n_added, current(&store).await.len()), (1, 1));
}

async fn storing_a_known_version_makes_it_current_again(store: Arc<dyn Store>) {
    let first = version(None, "a", "v1");
    store.put_workflow(first.clone()).await.expect("put");
    store.put_workflow(version(None, "a", "v2")).await.expect("put");
    assert_eq!(current(&store).await, [version(None, "a", "v2")]);
    let later = WorkflowRow {
        registered_at: at(99),
        ..first.clone()
    };
    assert!(!store.put_workflow(later).await.expect("put"));
    assert_eq!(current(&store).await, [first], "as first registered");
}

async fn every_version_stays_readable(store: Arc<dyn Store>) {
    for body in ["v1", "v2", "v3"] {
        store.put_workflow(version(None, "a", body)).await.expect("put");
    }
    for body in ["v1", "v2", "v3"] {
        let row = version(None, "a", body);
        assert_eq!(
            store
                .workflow(&tenant("acme"), &row.id, &row.version)
                .await
                .expect("read"),
            Some(row)
        );
    }
    let unknown = ContentHash::of(b"v4");
    assert_eq!(
        store
            .workflow(&tenant("acme"), &workflow("a"), &unknown)
            .await
            .expect("read"),
        None
    );
}

async fn tenants_own_workflow_takes_precedence_over_the_shared_one(store: Arc<dyn Store>) {
    let (shared, own) = (version(None, "a", "v1"), version(Some("acme"), "a", "v1"));
    store.put_workflow(own.clone()).await.expect("put");
    store.put_workflow(shared.clone()).await.expect("put");
    let read = |of| {
        let store = store.clone();
        async move {
            store
                .workflow(&tenant(of), &workflow("a"), &ContentHash::of(b"v1"))
                .await
                .expect("read")
        }
    };
    assert_eq!(read("acme").await, Some(own));
    assert_eq!(read("zeta").await, Some(shared));
}

async fn workflows_of_other_tenants_are_invisible(store: Arc<dyn Store>) {
    let row = version(Some("acme"), "a", "v1");
    store.put_workflow(row.clone()).await.expect("put");
    assert_eq!(
        store
            .workflow(&tenant("zeta"), &row.id, &row.version)
            .await
            .expect("read"),
        None
    );
}

async fn current(store: &Arc<dyn Store>) -> Vec<WorkflowRow> {
    let rows = store
        .workflows_since(Revision::default(), usize::MAX)
        .await
        .expect("current");
    rows.into_iter()
        .filter_map(|(_, change)| row_of(change))
        .collect()
}

async fn every_change_has_a_later_revision(store: Arc<dyn Store>) {
    let rows = [
        version(None, "b", "1"),
        version(Some("zeta"), "a", "1"),
        version(Some("acme"), "b", "1"),
        version(None, "a", "1"),
        version(None, "a", "2"),
        version(None, "b", "2"),
    ];
    let mut seen = Revision::default();
    for (row, id) in rows.iter().zip(["b", "c", "d", "a", "e", "f"]) {
        store.put_workflow(row.clone()).await.expect("put");
        assert!(store.add_key(key(id), usize::MAX).await.expect("add"));
        let news = store.workflows_since(seen, usize::MAX).await.expect("read");
        assert_eq!(news.len(), 1, "{news:?}");
        let (revision, changed) = &news[0];
        assert_eq!(*changed, WorkflowChange::Current(row.clone()));
        let news = store.keys_since(*revision).await.expect("read");
        assert_eq!(news.len(), 1, "{news:?}");
        let (after, _) = &news[0];
        assert!(*revision > seen && after > revision);
        seen = *after;
    }
    assert_eq!(store.workflows_since(seen, usize::MAX).await.expect("read"), []);
    assert_eq!(
        current(&store).await,
        [1, 2, 4, 5].map(|n: usize| rows[n].clone()),
        "one per name, the last change last"
    );
    assert!(store.revoke_key(&acme(), "a", at(9)).await.expect("revoke"));
    let news = store.keys_since(seen).await.expect("read");
    assert!(matches!(news.as_slice(), [(_, row)] if row.id == "a" && row.revoked_at == Some(at(9))));
    let all = store.keys_since(Revision::default()).await.expect("read");
    let ids: Vec<_> = all.iter().map(|(_, row)| row.id.as_str()).collect();
    assert_eq!(ids, ["b", "c", "d", "e", "f", "a"]);
}

async fn revoked_keys_of_a_tenant_are_forgotten(store: Arc<dyn Store>) {
    let theirs = KeyRow {
        tenant: tenant("zeta"),
        ..key("a")
    };
    for row in [key("b"), key("a"), key("c"), theirs.clone()] {
        assert!(store.add_key(row, usize::MAX).await.expect("add"));
    }
    for (tenant, id, when) in [(acme(), "a", 5), (acme(), "b", 9), (tenant("zeta"), "a", 5)] {
        assert!(store.revoke_key(&tenant, id, at(when)).await.expect("revoke"));
    }
    let ids = async |tenant| {
        let rows = store.keys_of(&tenant).await.expect("read");
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(acme()).await, ["a", "b", "c"]);
    store.forget_keys(&acme(), at(9)).await.expect("forget");
    assert_eq!(ids(acme()).await, ["b", "c"]);
    assert_eq!(ids(tenant("zeta")).await, ["a"]);
    // The id is free again.
    assert!(store.add_key(key("a"), usize::MAX).await.expect("add"));
}

async fn current_workflows_are_read_in_pages(store: Arc<dyn Store>) {
    let names: Vec<_> = (0..300).map(|n| format!("w{n}")).collect();
    let body = |n: usize| "x".repeat(if n == 150 { 5_000 } else { 100 });
    for (n, name) in names.iter().enumerate() {
        let row = version(Some("acme"), name, &body(n));
        store.put_workflow(row).await.expect("put");
    }
    let (mut seen, mut found, mut largest) = (Revision::default(), Vec::new(), 0);
    loop {
        let page = store.workflows_since(seen, 2_000).await.expect("read");
        let Some((revision, _)) = page.last() else { break };
        seen = *revision;
        let rows: Vec<_> = page
            .into_iter()
            .filter_map(|(_, change)| row_of(change))
            .collect();
        let n_bytes: usize = rows.iter().map(|row| row.body.len()).sum();
        assert!(n_bytes <= 2_000 || rows.len() == 1, "{n_bytes}");
        largest = largest.max(rows.len());
        found.extend(rows.into_iter().map(|row| row.id.as_str().to_owned()));
    }
    assert_eq!(found, names);
    assert!(largest > 10);
    let first = store.workflows_since(Revision::default(), 0).await.expect("read");
    assert_eq!(first.len(), 1, "at least one");
}

fn row_of(change: WorkflowChange) -> Option<WorkflowRow> {
    match change {
        WorkflowChange::Current(row) => Some(row),
        WorkflowChange::Removed { .. } => None,
    }
}

/// Removes a workflow of acme, whose versions are looked at from 10 on.
async fn remove(store: &Arc<dyn Store>, name: &str) -> bool {
    let removed = store.remove_workflow(&acme(), &workflow(name), at(10)).await;
    removed.expect("remove")
}

async fn is_kept(store: &Arc<dyn Store>, row: &WorkflowRow) -> bool {
    let found = store.workflow(&acme(), &row.id, &row.version).await;
    found.expect("read").is_some()
}

/// Checks removed workflows as of a time until nothing is due. Returns how many rows were changed.
async fn forget(store: &Arc<dyn Store>, now: i64, limit: usize) -> usize {
    let mut n_changed = 0;
    loop {
        let step = store.forget_workflows(at(now), at(now + 10), limit).await;
        match step.expect("forget") {
            0 => return n_changed,
            n => n_changed += n,
        }
    }
}

async fn a_removed_workflow_is_not_current(store: Arc<dyn Store>) {
    let own = version(Some("acme"), "a", "v1");
    let others = [
        version(None, "a", "v1"),
        version(Some("zeta"), "a", "v1"),
        version(Some("acme"), "b", "v1"),
    ];
    assert!(!remove(&store, "a").await, "there is none");
    store.put_workflow(own.clone()).await.expect("put");
    for row in &others {
        store.put_workflow(row.clone()).await.expect("put");
    }
    assert!(remove(&store, "a").await);
    assert!(!remove(&store, "a").await, "not twice");
    assert_eq!(current(&store).await, others);
    assert!(is_kept(&store, &own).await, "for its runs");
}

async fn a_removal_is_a_change_with_a_revision(store: Arc<dyn Store>) {
    store
        .put_workflow(version(Some("acme"), "a", "v1"))
        .await
        .expect("put");
    store
        .put_workflow(version(Some("acme"), "b", "v1"))
        .await
        .expect("put");
    let all = store
        .workflows_since(Revision::default(), usize::MAX)
        .await
        .expect("read");
    let seen = all[1].0;
    assert!(remove(&store, "a").await);
    let removed = WorkflowChange::Removed {
        tenant: acme(),
        id: workflow("a"),
    };
    // One that has seen the workflow, and one that comes later; a page needs no bytes for it.
    for (after, max_bytes, wanted) in [(seen, 0, 1), (Revision::default(), usize::MAX, 2)] {
        let news = store.workflows_since(after, max_bytes).await.expect("read");
        let (revision, change) = news.last().expect("news");
        assert_eq!((news.len(), change), (wanted, &removed));
        assert!(*revision > seen);
    }
    let last = store.workflows_since(seen, usize::MAX).await.expect("read")[0].0;
    assert!(!remove(&store, "a").await);
    assert_eq!(store.workflows_since(last, usize::MAX).await.expect("read"), []);
}

async fn a_removed_workflow_can_be_registered_again(store: Arc<dyn Store>) {
    let row = version(Some("acme"), "a", "v1");
    store.put_workflow(row.clone()).await.expect("put");
    assert!(remove(&store, "a").await);
    assert!(store.put_workflow(row.clone()).await.expect("put"), "as new");
    assert!(!store.put_workflow(row.clone()).await.expect("put"));
    assert!(remove(&store, "a").await);
    assert!(store.add_workflow(row.clone()).await.expect("add"));
    assert!(!store.add_workflow(row.clone()).await.expect("add"));
    assert_eq!(current(&store).await, std::slice::from_ref(&row));
    assert_eq!(
        forget(&store, 1_000, 9).await,
        0,
        "nothing of a current workflow is due"
    );
    // After its versions were deleted, too.
    assert!(remove(&store, "a").await);
    for now in [10, 20] {
        forget(&store, now, 9).await;
    }
    assert!(!is_kept(&store, &row).await);
    assert!(store.add_workflow(row.clone()).await.expect("add"));
    assert_eq!(current(&store).await, std::slice::from_ref(&row));
    assert!(is_kept(&store, &row).await);
}

async fn racing_removals_and_registrations_end_as_the_last_change_says(store: Arc<dyn Store>) {
    for n in 0..20 {
        let name = format!("w{n}");
        let row = version(Some("acme"), &name, "v1");
        store.put_workflow(row.clone()).await.expect("put");
        let (removed, put) = tokio::join!(remove(&store, &name), store.put_workflow(row.clone()));
        let (removed, is_new) = (removed, put.expect("put"));
        assert!(removed, "there is one all the time");
        let changes = store
            .workflows_since(Revision::default(), usize::MAX)
            .await
            .expect("read");
        let (_, last) = changes.last().expect("changes");
        // A registration that came second found none, and is there; one that came first changed nothing.
        match last {
            WorkflowChange::Current(current) => assert!(is_new && *current == row),
            WorkflowChange::Removed { id, .. } => assert!(!is_new && *id == row.id),
        }
        forget(&store, 10, 9).await;
        forget(&store, 20, 9).await;
        assert_eq!(is_kept(&store, &row).await, is_new);
    }
}

async fn versions_of_a_removed_workflow_stay_while_it_has_runs(store: Arc<dyn Store>) {
    // The runs of these tests are of this workflow.
    let name = summary(RunStatus::Running, 0).workflow;
    let versions = ["v1", "v2"].map(|body| version(Some("acme"), name.as_str(), body));
    let other = version(Some("zeta"), name.as_str(), "v1");
    for row in versions.iter().chain([&other]) {
        store.put_workflow(row.clone()).await.expect("put");
    }
    let kept = || async {
        [
            is_kept(&store, &versions[0]).await,
            is_kept(&store, &versions[1]).await,
        ]
    };
    assert!(remove(&store, name.as_str()).await);
    assert_eq!(forget(&store, 9, 9).await, 0, "not yet");
    // The first check finds no run. Then a run appears, whose start was decided before the removal.
    assert_eq!(forget(&store, 10, 9).await, 1);
    store.append(ended(&run(1))).await.expect("append");
    for now in [20, 30, 40] {
        assert_eq!(forget(&store, now, 9).await, 1);
        assert_eq!(kept().await, [true; 2]);
    }
    let root = Removal {
        run: run_id(1),
        root: run_id(1),
    };
    store.remove(&acme(), &[root]).await.expect("mark");
    while store.sweep(9).await.expect("sweep") != Swept::default() {}
    assert_eq!(forget(&store, 50, 9).await, 1, "found unused for the first time");
    assert_eq!(kept().await, [true; 2]);
    forget(&store, 60, 9).await;
    assert_eq!(kept().await, [false; 2]);
    assert_eq!(forget(&store, 1_000, 9).await, 0, "that was all");
    assert_eq!(current(&store).await, [other]);
}

async fn many_versions_of_removed_workflows_are_deleted_in_steps(store: Arc<dyn Store>) {
    let rows: Vec<_> = (0..40)
        .map(|n| version(Some("acme"), ["a", "b"][n % 2], &format!("v{n}")))
        .collect();
    for row in &rows {
        store.put_workflow(row.clone()).await.expect("put");
    }
    assert!(remove(&store, "a").await && remove(&store, "b").await);
    forget(&store, 10, 4).await;
    let deleted = forget(&store, 20, 4).await;
    assert!(deleted >= 40, "{deleted}");
    for row in &rows {
        assert!(!is_kept(&store, row).await);
    }
    assert_eq!(forget(&store, 1_000, 4).await, 0);
}

fn ended(run: &RunKey) -> Batch {
    let mut batch = create(run, 1);
    batch.summary = summary(RunStatus::Completed, 1);
    batch
}

async fn no_op_changes_have_no_revision(store: Arc<dyn Store>) {
    store.put_workflow(version(None, "a", "v1")).await.expect("put");
    assert!(store.add_key(key("k"), usize::MAX).await.expect("add"));
    store.revoke_key(&acme(), "k", at(9)).await.expect("revoke");
    let (workflows, keys) = (
        store
            .workflows_since(Revision::default(), usize::MAX)
            .await
            .expect("read"),
        store.keys_since(Revision::default()).await.expect("read"),
    );
    assert!(!store.put_workflow(version(None, "a", "v1")).await.expect("put"));
    assert!(!store.add_key(another("k"), usize::MAX).await.expect("add"));
    assert!(!store.revoke_key(&acme(), "k", at(10)).await.expect("revoke"));
    assert!(
        !store
            .revoke_key(&acme(), "missing", at(10))
            .await
            .expect("revoke")
    );
    let seen = workflows[0].0.max(keys[0].0);
    assert_eq!(store.workflows_since(seen, usize::MAX).await.expect("read"), []);
    assert_eq!(store.keys_since(seen).await.expect("read"), []);
}

async fn keys_read_back_by_id(store: Arc<dyn Store>) {
    assert_eq!(store.keys().await.expect("keys"), []);
    for id in ["b", "a"] {
        assert!(store.add_key(key(id), usize::MAX).await.expect("add"));
    }
    assert_eq!(store.keys().await.expect("keys"), [key("a"), key("b")]);
}

async fn a_key_is_revoked_once(store: Arc<dyn Store>) {
    assert!(store.add_key(key("a"), usize::MAX).await.expect("add"));
    let revoke = async |owner: &str, id: &str, when| {
        let revoked = store.revoke_key(&tenant(owner), id, when).await;
        revoked.expect("revoke")
    };
    assert!(!revoke("acme", "missing", at(9)).await);
    assert!(!revoke("zeta", "a", at(9)).await, "another tenant's key");
    assert!(revoke("acme", "a", at(9)).await);
    assert!(!revoke("acme", "a", at(10)).await);
    assert_eq!(
        store.keys().await.expect("keys"),
        [KeyRow {
            revoked_at: Some(at(9)),
            ..key("a")
        }]
    );
}

async fn an_existing_key_is_never_replaced(store: Arc<dyn Store>) {
    assert!(store.add_key(key("a"), usize::MAX).await.expect("add"));
    assert!(!store.add_key(another("a"), usize::MAX).await.expect("add"));
    assert_eq!(store.keys().await.expect("keys"), [key("a")]);
    store.revoke_key(&acme(), "a", at(9)).await.expect("revoke");
    assert!(!store.add_key(another("a"), usize::MAX).await.expect("add"));
    let [kept] = store.keys().await.expect("keys").try_into().expect("one key");
    assert_eq!(
        (kept.revoked_at, kept.secret_sha256),
        (Some(at(9)), key("a").secret_sha256)
    );
}

async fn keys_of_a_tenant_are_limited(store: Arc<dyn Store>) {
    let add = async |row| store.add_key(row, 2).await.expect("add");
    let revoke = async |id: &str| assert!(store.revoke_key(&acme(), id, at(9)).await.expect("revoke"));
    assert!(add(key("a")).await && add(key("b")).await);
    assert!(!add(key("c")).await, "as many as it may have");
    let theirs = KeyRow {
        tenant: tenant("zeta"),
        ..key("c")
    };
    assert!(add(theirs).await, "another tenant's");
    revoke("a").await;
    assert!(add(key("c")).await, "a revoked one makes room");
    revoke("b").await;
    assert!(!add(key("d")).await, "as many revoked ones as it may have");
    store.forget_keys(&acme(), at(10)).await.expect("forget");
    assert!(add(key("d")).await);
    assert!(store.add_key(key("e"), usize::MAX).await.expect("add"));
}

async fn one_of_many_racing_adds_of_a_key_wins(store: Arc<dyn Store>) {
    let row = |n: u32| KeyRow {
        secret_sha256: ContentHash::of(n.to_string().as_bytes()).as_str().to_owned(),
        ..key("a")
    };
    let adds = (0..60).map(|n| store.add_key(row(n), usize::MAX));
    let added = futures_util::future::join_all(adds).await;
    let winners: Vec<_> = (0..60)
        .zip(added)
        .filter_map(|(n, added)| added.expect("add").then(|| row(n)))
        .collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(store.keys().await.expect("keys"), winners);
}

async fn key_ids_are_separate_per_tenant(store: Arc<dyn Store>) {
    let theirs = KeyRow {
        tenant: tenant("zeta"),
        ..another("a")
    };
    assert!(store.add_key(key("a"), usize::MAX).await.expect("add"));
    assert!(store.add_key(theirs.clone(), usize::MAX).await.expect("add"));
    assert!(
        store
            .revoke_key(&tenant("zeta"), "a", at(9))
            .await
            .expect("revoke")
    );
    let revoked = KeyRow {
        revoked_at: Some(at(9)),
        ..theirs
    };
    assert_eq!(store.keys().await.expect("keys"), [key("a"), revoked]);
}

#[tokio::test]
async fn guest_registers_while_a_host_has_the_database_open() {
    let db = Database::new();
    assert!(
        Guest::open(&db.path).is_err(),
        "there is nothing to be a guest of"
    );
    let store = db.open();
    let guest = Guest::open(&db.path).expect("beside the host");
    let mut seen = Revision::default();
    for n in 1..=3 {
        // Appends and registrations are interleaved.
        let appends = (0..50).map(|m| store.append(create(&run(100 * n + m), 1)));
        let appends = futures_util::future::join_all(appends);
        let row = key(&format!("k{n}"));
        let (appended, stored) = tokio::join!(appends, guest.add_key(row.clone(), usize::MAX));
        assert!(stored.expect("stores"));
        for appended in appended {
            appended.expect("appends");
        }
        let news = store.keys_since(seen).await.expect("reads");
        assert_eq!(news.last().map(|(_, row)| row), Some(&row));
        seen = news.last().expect("news").0;
        assert!(
            guest
                .revoke_key(&row.tenant, &row.id, at(9))
                .await
                .expect("revokes")
        );
        assert!(
            !guest
                .revoke_key(&row.tenant, &row.id, at(9))
                .await
                .expect("is revoked")
        );
        let news = store.keys_since(seen).await.expect("reads");
        assert_eq!(news.len(), 1);
        assert_eq!(news[0].1.revoked_at, Some(at(9)));
        seen = news[0].0;
    }
    assert_eq!(
        guest.keys().await.expect("reads"),
        store.keys().await.expect("reads")
    );
    drop(guest);
    store.append(create(&run(9), 1)).await.expect("the host goes on");
    drop(store);
    assert_eq!(db.open().keys().await.expect("reads").len(), 3);
}
