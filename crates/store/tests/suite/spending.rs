//! Counts of what models took: added by appends, read by window, and pruned.

use std::sync::Arc;

use wopr_core::{BudgetPeriod, BudgetWindow, Timestamp};
use wopr_store::{AppendError, Spenders, SpentRow, Store};

use crate::make::*;

crate::behaviours!(
    what_an_append_says_is_added_to_the_count,
    a_refused_append_adds_nothing,
    only_current_windows_are_read,
    counts_are_read_by_tenant_and_workflow,
    old_windows_are_forgotten_a_few_at_a_time,
    counts_stop_at_their_most,
    appends_at_once_lose_nothing,
);

const DAY: BudgetWindow = BudgetWindow {
    since: Timestamp::from_millis(1_000),
    until: Timestamp::from_millis(2_000),
};

fn row(of: Option<&str>, tokens: u64, cost_micros: u64) -> SpentRow {
    SpentRow {
        workflow: of.map(workflow),
        per: BudgetPeriod::Day,
        window: DAY,
        tokens,
        cost_micros,
        time_ms: tokens,
    }
}

/// Creates a run whose first append spends.
async fn spend(store: &Arc<dyn Store>, n: u64, rows: Vec<SpentRow>) {
    let mut batch = create(&run(n), 1);
    batch.spent = rows;
    store.append(batch).await.expect("append");
}

async fn all(store: &Arc<dyn Store>, now: i64) -> Vec<SpentRow> {
    let rows = store.spent(Spenders::All, at(now), 100).await.expect("read");
    rows.into_iter().map(|(_, row)| row).collect()
}

async fn what_an_append_says_is_added_to_the_count(store: Arc<dyn Store>) {
    spend(&store, 1, vec![row(None, 10, 5), row(Some("w"), 10, 5)]).await;
    spend(&store, 2, vec![row(None, 7, 0)]).await;
    assert_eq!(
        all(&store, 1_500).await,
        [row(None, 17, 5), row(Some("w"), 10, 5)]
    );
}

async fn a_refused_append_adds_nothing(store: Arc<dyn Store>) {
    spend(&store, 1, vec![row(None, 10, 5)]).await;
    let mut again = create(&run(1), 1);
    again.spent = vec![row(None, 10, 5)];
    let refused = store.append(again).await.expect_err("it exists");
    assert!(matches!(refused, AppendError::Conflict { .. }), "{refused}");
    assert_eq!(all(&store, 1_500).await, [row(None, 10, 5)]);
}

async fn only_current_windows_are_read(store: Arc<dyn Store>) {
    let next = SpentRow {
        window: BudgetWindow {
            since: DAY.until,
            until: at(3_000),
        },
        ..row(None, 3, 0)
    };
    let month = SpentRow {
        per: BudgetPeriod::Month,
        window: BudgetWindow {
            since: at(0),
            until: at(9_000),
        },
        ..row(None, 13, 0)
    };
    spend(&store, 1, vec![row(None, 10, 5), next.clone(), month.clone()]).await;
    assert_eq!(all(&store, 1_000).await, [row(None, 10, 5), month.clone()]);
    assert_eq!(all(&store, 2_000).await, [next, month.clone()]);
    assert_eq!(all(&store, 4_000).await, [month]);
    assert_eq!(all(&store, 9_000).await, []);
}

async fn counts_are_read_by_tenant_and_workflow(store: Arc<dyn Store>) {
    let rows = vec![row(Some("b"), 2, 0), row(None, 3, 0), row(Some("a"), 1, 0)];
    spend(&store, 1, rows).await;
    let mut batch = create(&wopr_core::RunKey::new(tenant("other"), run_id(2)), 1);
    batch.spent = vec![row(None, 5, 0)];
    store.append(batch).await.expect("append");

    let (acme, b) = (tenant("acme"), workflow("b"));
    let of = async |of: Spenders<'_>, limit| {
        let rows = store.spent(of, at(1_500), limit).await.expect("read");
        rows.iter()
            .map(|(tenant, row)| {
                format!(
                    "{tenant} {} {}",
                    row.workflow.as_ref().map_or("-", |of| of.as_str()),
                    row.tokens
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(Spenders::Tenant(&acme), 9).await,
        ["acme - 3", "acme a 1", "acme b 2"]
    );
    assert_eq!(
        of(Spenders::Workflow(&acme, &b), 9).await,
        ["acme - 3", "acme b 2"]
    );
    assert_eq!(of(Spenders::All, 9).await.len(), 4);
    assert_eq!(of(Spenders::All, 2).await, ["acme - 3", "acme a 1"]);
    assert_eq!(of(Spenders::Tenant(&tenant("third")), 9).await, [""; 0]);
}

async fn old_windows_are_forgotten_a_few_at_a_time(store: Arc<dyn Store>) {
    spend(
        &store,
        1,
        vec![row(None, 1, 0), row(Some("a"), 1, 0), row(Some("b"), 1, 0)],
    )
    .await;
    let forget = async |before, limit| store.forget_spent(at(before), limit).await.expect("forget");
    assert_eq!(forget(2_000, 9).await, 0, "it has just ended");
    assert_eq!(forget(2_001, 2).await, 2);
    assert_eq!(all(&store, 1_500).await.len(), 1);
    assert_eq!(forget(2_001, 2).await, 1);
    assert_eq!(forget(2_001, 2).await, 0);
}

async fn counts_stop_at_their_most(store: Arc<dyn Store>) {
    // What a provider says of an answer may be anything.
    spend(&store, 1, vec![row(None, u64::MAX, u64::MAX)]).await;
    spend(&store, 2, vec![row(None, u64::MAX, 1)]).await;
    let most = 1_000_000_000_000;
    assert_eq!(all(&store, 1_500).await, [row(None, 2 * most, most + 1)]);
}

async fn appends_at_once_lose_nothing(store: Arc<dyn Store>) {
    let spending = (1..=40).map(|n| {
        let store = Arc::clone(&store);
        // Two rows, named in either order.
        let mut rows = vec![row(None, 1, 2), row(Some("w"), 1, 2)];
        if n % 2 == 0 {
            rows.reverse();
        }
        tokio::spawn(async move { spend(&store, n, rows).await })
    });
    for done in spending.collect::<Vec<_>>() {
        done.await.expect("no panic");
    }
    assert_eq!(
        all(&store, 1_500).await,
        [row(None, 40, 80), row(Some("w"), 40, 80)]
    );
}
