//! Lists: order, pages, filters.

use std::sync::Arc;

use wopr_core::{InterruptKind, RunId, RunStatus, TenantId};
use wopr_store::{Match, PhaseCursor, PhaseFilter, RunFilter, Store, Summary};

use crate::make::*;

crate::behaviours!(
    runs_are_listed_newest_first_and_by_page,
    a_page_of_exactly_all_runs_has_no_more,
    ids_sort_by_their_bytes,
    run_pages_are_stable_under_inserts,
    runs_are_filtered_by_status,
    runs_are_filtered_by_their_creator,
    runs_of_several_statuses_are_listed_in_one_order,
    runs_are_filtered_by_workflow_and_by_parent,
    every_combination_of_run_filters_pages_correctly,
    a_changed_status_moves_a_run_between_lists,
    phases_are_listed_most_recently_changed_first_and_by_page,
    pages_by_phase_are_stable_under_inserts,
    append_within_a_phase_keeps_its_time,
    phases_are_filtered,
    the_total_by_phase_does_not_depend_on_the_page,
    limit_of_zero_reports_if_there_are_rows,
);

fn acme() -> TenantId {
    tenant("acme")
}

async fn runs(store: &dyn Store, filter: &RunFilter, after: Option<u64>, limit: usize) -> (Vec<RunId>, bool) {
    let after = after.map(run_id);
    let page = store
        .list_runs(&acme(), filter, after.as_ref(), limit)
        .await
        .expect("list");
    (
        page.runs.into_iter().map(|(run, ..)| run).collect(),
        page.has_more,
    )
}

fn ids(ns: &[u64]) -> Vec<RunId> {
    ns.iter().copied().map(run_id).collect()
}

async fn runs_are_listed_newest_first_and_by_page(store: Arc<dyn Store>) {
    for n in [3, 1, 5, 2, 4] {
        store
            .append(create(&run(n), usize::try_from(n).expect("small")))
            .await
            .expect("append");
    }
    let all = RunFilter::default();
    assert_eq!(runs(&*store, &all, None, 2).await, (ids(&[5, 4]), true));
    assert_eq!(runs(&*store, &all, Some(4), 2).await, (ids(&[3, 2]), true));
    assert_eq!(runs(&*store, &all, Some(2), 2).await, (ids(&[1]), false));
    assert_eq!(runs(&*store, &all, Some(1), 2).await, (ids(&[]), false));
    let page = store.list_runs(&acme(), &all, None, 1).await.expect("list");
    assert_eq!(page.runs[0].1, create(&run(5), 1).summary);
    assert_eq!(page.runs[0].2.0, 5);
}

async fn a_page_of_exactly_all_runs_has_no_more(store: Arc<dyn Store>) {
    for n in 0..3 {
        store.append(create(&run(n), 1)).await.expect("append");
    }
    assert_eq!(
        runs(&*store, &RunFilter::default(), None, 3).await,
        (ids(&[2, 1, 0]), false)
    );
    assert_eq!(
        runs(&*store, &RunFilter::default(), None, usize::MAX).await,
        (ids(&[2, 1, 0]), false)
    );
}

async fn ids_sort_by_their_bytes(store: Arc<dyn Store>) {
    let id = |text: &str| RunId::parse(&format!("run_000000000000{text}")).expect("a run id");
    // Ordered by bytes, not by the collation of a language.
    let ordered = ["-", "0", "A", "Z", "_", "a", "z"].map(id);
    for run in &ordered {
        let key = wopr_core::RunKey::new(acme(), run.clone());
        let mut batch = create(&key, 1);
        batch.inbox_sent = vec![run_message(&key, &key, 0)];
        store.append(batch).await.expect("append");
    }
    let mut newest_first = ordered.to_vec();
    newest_first.reverse();
    assert_eq!(
        runs(&*store, &RunFilter::default(), None, 9).await.0,
        newest_first
    );
    let told = store
        .runs_with_inbox(wopr_store::Epoch(1), None, 9)
        .await
        .expect("inbox");
    assert_eq!(told.into_iter().map(|key| key.run).collect::<Vec<_>>(), ordered);
}

async fn run_pages_are_stable_under_inserts(store: Arc<dyn Store>) {
    for n in (10..20).step_by(2) {
        store.append(create(&run(n), 1)).await.expect("append");
    }
    let all = RunFilter::default();
    let (first, _) = runs(&*store, &all, None, 2).await;
    assert_eq!(first, ids(&[18, 16]));
    store.append(create(&run(30), 1)).await.expect("append");
    store.append(create(&run(11), 1)).await.expect("append");
    // Rows added later are not on later pages, and no row appears twice.
    assert_eq!(
        runs(&*store, &all, Some(16), 9).await,
        (ids(&[14, 12, 11, 10]), false)
    );
}

/// One run of each status, oldest first, in the order of the specification; numbered from 0.
async fn one_of_each(store: &dyn Store) {
    for (n, status) in (0_u64..).zip(RunStatus::ALL) {
        let mut batch = create(&run(n), 1);
        batch.summary.status = status;
        store.append(batch).await.expect("append");
    }
}

async fn runs_are_filtered_by_status(store: Arc<dyn Store>) {
    one_of_each(&*store).await;
    for (n, status) in (0_u64..).zip(RunStatus::ALL) {
        let filter = RunFilter {
            statuses: vec![status],
            ..RunFilter::default()
        };
        assert_eq!(
            runs(&*store, &filter, None, 9).await,
            (ids(&[n]), false),
            "{status:?}"
        );
    }
}

async fn runs_are_filtered_by_their_creator(store: Arc<dyn Store>) {
    for (n, status) in (0_u64..).zip(RunStatus::ALL) {
        let mut batch = create(&run(n), 1);
        batch.summary.status = status;
        batch.summary.principal = principal(if n % 3 == 0 { "ada" } else { "bob" });
        store.append(batch).await.expect("append");
    }
    let of = |name, statuses: &[RunStatus]| RunFilter {
        principal: Some(principal(name)),
        statuses: statuses.to_vec(),
        ..RunFilter::default()
    };
    assert_eq!(
        runs(&*store, &of("ada", &[]), None, 3).await,
        (ids(&[9, 6, 3]), true)
    );
    assert_eq!(
        runs(&*store, &of("ada", &[]), Some(3), 3).await,
        (ids(&[0]), false)
    );
    assert_eq!(runs(&*store, &of("eve", &[]), None, 3).await, (ids(&[]), false));
    let two = [RunStatus::ALL[3], RunStatus::ALL[4]];
    assert_eq!(runs(&*store, &of("bob", &two), None, 9).await, (ids(&[4]), false));
}

async fn runs_of_several_statuses_are_listed_in_one_order(store: Arc<dyn Store>) {
    one_of_each(&*store).await;
    let waiting = RunFilter {
        statuses: RunStatus::ALL
            .into_iter()
            .filter(|status| status.is_waiting())
            .collect(),
        ..RunFilter::default()
    };
    assert_eq!(runs(&*store, &waiting, None, 2).await, (ids(&[5, 4]), true));
    assert_eq!(runs(&*store, &waiting, Some(4), 2).await, (ids(&[3]), false));
    let twice = [
        RunStatus::Failed,
        RunStatus::Completed,
        RunStatus::Pending,
        RunStatus::Failed,
    ];
    let mixed = RunFilter {
        statuses: twice.to_vec(),
        ..RunFilter::default()
    };
    assert_eq!(runs(&*store, &mixed, None, 9).await, (ids(&[7, 6, 0]), false));
    let every = RunFilter {
        statuses: RunStatus::ALL.to_vec(),
        ..RunFilter::default()
    };
    assert_eq!(runs(&*store, &every, None, 3).await, (ids(&[9, 8, 7]), true));
}

async fn runs_are_filtered_by_workflow_and_by_parent(store: Arc<dyn Store>) {
    let mut other = create(&run(1), 1);
    other.summary.workflow = workflow("other");
    store.append(other).await.expect("append");
    let mut parent = create(&run(2), 1);
    parent.children = vec![child(3, &run(2)), child(4, &run(2))];
    store.append(parent).await.expect("append");

    let by_workflow = |name| RunFilter {
        workflow: Some(workflow(name)),
        ..RunFilter::default()
    };
    assert_eq!(
        runs(&*store, &by_workflow("other"), None, 9).await,
        (ids(&[1]), false)
    );
    assert_eq!(
        runs(&*store, &by_workflow("greet"), None, 2).await,
        (ids(&[4, 3]), true)
    );
    assert_eq!(
        runs(&*store, &by_workflow("missing"), None, 2).await,
        (ids(&[]), false)
    );
    let children = RunFilter {
        parent: Some(run_id(2)),
        ..RunFilter::default()
    };
    assert_eq!(runs(&*store, &children, None, 9).await, (ids(&[4, 3]), false));
    assert_eq!(runs(&*store, &children, Some(4), 9).await, (ids(&[3]), false));
}

async fn every_combination_of_run_filters_pages_correctly(store: Arc<dyn Store>) {
    for n in 0..60_u64 {
        let mut batch = create(&run(n), 1);
        batch.summary.status = RunStatus::ALL[usize::try_from(n % 10).expect("small")];
        batch.summary.workflow = workflow(if n % 3 == 0 { "three" } else { "other" });
        batch.summary.parent = n.is_multiple_of(2).then(|| (run_id(100 + n % 4), node("x")));
        batch.summary.principal = principal(if n % 5 < 2 { "ada" } else { "bob" });
        store.append(batch).await.expect("append");
    }
    let all = store
        .list_runs(&acme(), &RunFilter::default(), None, 100)
        .await
        .expect("list")
        .runs;
    assert_eq!(all.len(), 60);

    let statuses = [
        vec![],
        vec![RunStatus::Failed],
        vec![RunStatus::Completed],
        RunStatus::ALL[2..8].to_vec(),
    ];
    let mut filters = Vec::new();
    for statuses in &statuses {
        for workflow in [None, Some(workflow("three"))] {
            for parent in [None, Some(run_id(102))] {
                for principal in [None, Some(principal("ada"))] {
                    filters.push(RunFilter {
                        statuses: statuses.clone(),
                        workflow: workflow.clone(),
                        parent: parent.clone(),
                        principal,
                    });
                }
            }
        }
    }
    for filter in filters {
        let expected: Vec<RunId> = all
            .iter()
            .filter(|(_, run, _)| filter.statuses.is_empty() || filter.statuses.contains(&run.status))
            .filter(|(_, run, _)| filter.workflow.as_ref().is_none_or(|w| *w == run.workflow))
            .filter(|(_, run, _)| filter.principal.as_ref().is_none_or(|p| *p == run.principal))
            .filter(|(_, run, _)| {
                filter.parent.is_none() || filter.parent.as_ref() == run.parent.as_ref().map(|(p, _)| p)
            })
            .map(|(run, ..)| run.clone())
            .collect();
        let mut found: Vec<RunId> = Vec::new();
        loop {
            let page = store
                .list_runs(&acme(), &filter, found.last(), 4)
                .await
                .expect("list");
            found.extend(page.runs.into_iter().map(|(run, ..)| run));
            if !page.has_more {
                break;
            }
        }
        assert_eq!(found, expected, "{filter:?}");
    }
}

async fn a_changed_status_moves_a_run_between_lists(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let only = |status| RunFilter {
        statuses: vec![status],
        ..RunFilter::default()
    };
    for (n, status) in (1_u64..).zip([
        RunStatus::WaitingApproval,
        RunStatus::Completed,
        RunStatus::Failed,
    ]) {
        let mut batch = append(&run(1), n, 1);
        batch.summary.status = status;
        store.append(batch).await.expect("append");
        for other in RunStatus::ALL {
            let expected = if other == status { ids(&[1]) } else { Vec::new() };
            assert_eq!(
                runs(&*store, &only(other), None, 9).await.0,
                expected,
                "{status:?} in {other:?}"
            );
        }
    }
}

/// Creates a run that entered a phase at `since`.
async fn put_phase(store: &dyn Store, n: u64, status: RunStatus, since: i64) {
    put_summary(store, n, summary(status, since)).await;
}

async fn put_summary(store: &dyn Store, n: u64, summary: Summary) {
    let mut batch = create(&run(n), 1);
    batch.summary = Summary {
        principal: principal(if n.is_multiple_of(2) { "even" } else { "odd" }),
        ..summary
    };
    store.append(batch).await.expect("append");
}

async fn phases(
    store: &dyn Store,
    filter: &PhaseFilter,
    after: Option<(i64, u64)>,
    limit: usize,
) -> (Vec<RunId>, u64, bool) {
    let after = after.map(|(since, n)| PhaseCursor {
        since: at(since),
        run: run_id(n),
    });
    let page = store
        .list_by_phase(&acme(), filter, after.as_ref(), limit)
        .await
        .expect("list");
    (
        page.runs.into_iter().map(|(run, _)| run).collect(),
        page.total,
        page.has_more,
    )
}

async fn phases_are_listed_most_recently_changed_first_and_by_page(store: Arc<dyn Store>) {
    for (n, changed) in [(1, 10), (2, 30), (3, 20), (4, 20), (5, 20)] {
        put_phase(&*store, n, RunStatus::Running, changed).await;
    }
    let all = PhaseFilter::default();
    assert_eq!(phases(&*store, &all, None, 2).await, (ids(&[2, 5]), 5, true));
    assert_eq!(
        phases(&*store, &all, Some((20, 5)), 2).await,
        (ids(&[4, 3]), 5, true)
    );
    assert_eq!(
        phases(&*store, &all, Some((20, 3)), 2).await,
        (ids(&[1]), 5, false)
    );
    assert_eq!(
        phases(&*store, &all, Some((10, 1)), 2).await,
        (ids(&[]), 5, false)
    );
}

async fn pages_by_phase_are_stable_under_inserts(store: Arc<dyn Store>) {
    for n in 0..4 {
        put_phase(&*store, n, RunStatus::Running, 10).await;
    }
    let all = PhaseFilter::default();
    assert_eq!(phases(&*store, &all, None, 2).await, (ids(&[3, 2]), 4, true));
    put_phase(&*store, 9, RunStatus::Running, 10).await;
    put_phase(&*store, 8, RunStatus::Running, 50).await;
    assert_eq!(
        phases(&*store, &all, Some((10, 2)), 9).await,
        (ids(&[1, 0]), 6, false)
    );
}

async fn append_within_a_phase_keeps_its_time(store: Arc<dyn Store>) {
    put_phase(&*store, 1, RunStatus::Running, 10).await;
    put_phase(&*store, 2, RunStatus::Running, 20).await;
    let mut within = append(&run(1), 1, 1);
    within.summary = Summary {
        updated_at: at(30),
        ..summary(RunStatus::Running, 10)
    };
    let expected = within.summary.clone();
    store.append(within).await.expect("append");
    let (found, _) = store.summary(&run(1)).await.expect("summary").expect("a run");
    assert_eq!((found.phase_since, found.updated_at), (at(10), at(30)));
    assert_eq!(found.status, expected.status);
    let all = PhaseFilter::default();
    assert_eq!(phases(&*store, &all, None, 9).await, (ids(&[2, 1]), 2, false));
}

async fn phases_are_filtered(store: Arc<dyn Store>) {
    const STATUSES: [RunStatus; 4] = [
        RunStatus::Pending,
        RunStatus::Running,
        RunStatus::WaitingInput,
        RunStatus::Failed,
    ];
    for n in 0..12_u64 {
        let status = STATUSES[usize::try_from(n % 4).expect("small")];
        let mut row = summary(status, i64::try_from(n).expect("small"));
        row.group = (n % 3 > 0).then(|| format!("ctx-{}", n % 3));
        row.waiting_on = (status == RunStatus::WaitingInput).then_some(InterruptKind::Clarification);
        row.error_code = [(3, "rejected"), (7, "no_luck")]
            .into_iter()
            .find_map(|(run, code)| (run == n).then(|| code.to_owned()));
        row.workflow = workflow(if n < 6 { "greet" } else { "other" });
        put_summary(&*store, n, row).await;
    }
    let all = PhaseFilter::default();
    let group = PhaseFilter {
        group: Some("ctx-2".to_owned()),
        ..all.clone()
    };
    assert_eq!(
        phases(&*store, &group, None, 9).await,
        (ids(&[11, 8, 5, 2]), 4, false)
    );
    assert_eq!(
        phases(&*store, &group, Some((8, 8)), 1).await,
        (ids(&[5]), 4, true)
    );
    let statuses = |statuses: &[RunStatus]| PhaseFilter {
        statuses: statuses.to_vec(),
        ..PhaseFilter::default()
    };
    let waiting = statuses(&[RunStatus::WaitingInput]);
    assert_eq!(
        phases(&*store, &waiting, None, 9).await,
        (ids(&[10, 6, 2]), 3, false)
    );
    let open = statuses(&[RunStatus::Pending, RunStatus::Running]);
    assert_eq!(phases(&*store, &open, None, 3).await, (ids(&[9, 8, 5]), 6, true));
    for (error_code, expected) in [
        (Match::Is("rejected".to_owned()), &[3][..]),
        // A failed run without a code counts.
        (Match::IsNot("rejected".to_owned()), &[11, 7]),
    ] {
        let failed = PhaseFilter {
            error_code: Some(error_code),
            ..statuses(&[RunStatus::Failed])
        };
        let n = expected.len() as u64;
        assert_eq!(
            phases(&*store, &failed, None, 9).await,
            (ids(expected), n, false),
            "{failed:?}"
        );
    }
    for (flow, expected) in [
        (Match::Is(workflow("other")), &[10, 6][..]),
        (Match::IsNot(workflow("other")), &[2]),
    ] {
        let waiting = PhaseFilter {
            workflow: Some(flow),
            ..waiting.clone()
        };
        assert_eq!(phases(&*store, &waiting, None, 9).await.0, ids(expected));
    }
    let since = PhaseFilter {
        since: Some(at(10)),
        ..all.clone()
    };
    assert_eq!(phases(&*store, &since, None, 9).await, (ids(&[11, 10]), 2, false));
    let creator = PhaseFilter {
        principal: Some(principal("odd")),
        ..all.clone()
    };
    assert_eq!(phases(&*store, &creator, None, 2).await, (ids(&[11, 9]), 6, true));
    let every = PhaseFilter {
        group: Some("ctx-1".to_owned()),
        statuses: vec![RunStatus::Pending],
        error_code: Some(Match::IsNot("rejected".to_owned())),
        workflow: Some(Match::Is(workflow("greet"))),
        since: Some(at(4)),
        principal: Some(principal("even")),
    };
    assert_eq!(phases(&*store, &every, None, 9).await, (ids(&[4]), 1, false));
    let nobody = PhaseFilter {
        principal: Some(principal("nobody")),
        ..all
    };
    assert_eq!(phases(&*store, &nobody, None, 9).await, (ids(&[]), 0, false));
}

async fn the_total_by_phase_does_not_depend_on_the_page(store: Arc<dyn Store>) {
    for n in 0..5 {
        put_phase(&*store, n, RunStatus::Running, 10).await;
    }
    // A row that changes moves, but is not counted twice.
    let mut batch = append(&run(0), 1, 1);
    batch.summary = summary(RunStatus::Completed, 99);
    store.append(batch).await.expect("append");
    let all = PhaseFilter::default();
    assert_eq!(phases(&*store, &all, None, 1).await, (ids(&[0]), 5, true));
    assert_eq!(
        phases(&*store, &all, Some((10, 1)), 1).await,
        (ids(&[]), 5, false)
    );
}

async fn limit_of_zero_reports_if_there_are_rows(store: Arc<dyn Store>) {
    assert_eq!(
        runs(&*store, &RunFilter::default(), None, 0).await,
        (ids(&[]), false)
    );
    assert_eq!(
        phases(&*store, &PhaseFilter::default(), None, 0).await,
        (ids(&[]), 0, false)
    );
    put_phase(&*store, 1, RunStatus::Running, 1).await;
    assert_eq!(
        runs(&*store, &RunFilter::default(), None, 0).await,
        (ids(&[]), true)
    );
    assert_eq!(
        phases(&*store, &PhaseFilter::default(), None, 0).await,
        (ids(&[]), 1, true)
    );
}
