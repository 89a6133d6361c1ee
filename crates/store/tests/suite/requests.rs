//! Idempotent requests.

use std::sync::Arc;

use wopr_store::{AppendError, IdempotencyKey, IdempotencyRecord, Store};

use crate::make::*;

crate::behaviours!(
    a_recorded_request_is_refused_with_its_record,
    one_of_many_concurrent_requests_takes_effect,
    record_takes_precedence_over_every_other_refusal,
    a_refused_append_leaves_no_record,
    an_expired_record_is_absent_and_gets_replaced,
    same_key_of_another_caller_is_another_request,
    a_remembered_request_needs_no_append,
    remembering_twice_returns_the_first,
    first_of_many_concurrent_records_is_kept,
    forgetting_deletes_expired_records_up_to_the_limit,
);

async fn a_recorded_request_is_refused_with_its_record(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect("append");

    let mut again = create(&run(2), 1);
    again.idempotency = Some(IdempotencyRecord {
        digest: "another digest".to_owned(),
        run: Some(run_id(2)),
        ..record("k", 500)
    });
    let refused = store.append(again).await.expect_err("duplicate");
    assert!(
        matches!(&refused, AppendError::Duplicate(found) if **found == record("k", 100)),
        "{refused:?}"
    );
    assert_eq!(store.summary(&run(2)).await.expect("summary"), None);
    assert_eq!(
        store
            .idempotency(&idempotency_key("k"), at(99))
            .await
            .expect("record"),
        Some(record("k", 100))
    );
}

async fn one_of_many_concurrent_requests_takes_effect(store: Arc<dyn Store>) {
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..24 {
        let store = store.clone();
        attempts.spawn(async move {
            let mut batch = create(&run(n), 1);
            batch.idempotency = Some(IdempotencyRecord {
                run: Some(run_id(n)),
                ..record("k", 100)
            });
            (n, store.append(batch).await)
        });
    }
    let (mut winners, mut records) = (Vec::new(), Vec::new());
    for (n, outcome) in attempts.join_all().await {
        match outcome {
            Ok(()) => winners.push(n),
            Err(AppendError::Duplicate(record)) => records.push(*record),
            Err(other) => assert!(matches!(other, AppendError::Duplicate(_)), "{other:?}"),
        }
    }
    assert_eq!(winners.len(), 1);
    let winner = IdempotencyRecord {
        run: Some(run_id(winners[0])),
        ..record("k", 100)
    };
    assert!(records.iter().all(|found| *found == winner));
    let page = store
        .list_runs(&tenant("acme"), &wopr_store::RunFilter::default(), None, 100)
        .await
        .expect("list");
    assert_eq!(
        page.runs.into_iter().map(|(run, ..)| run).collect::<Vec<_>>(),
        [run_id(winners[0])]
    );
}

async fn record_takes_precedence_over_every_other_refusal(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect("append");
    let mut again = append(&run(1), 7, 1);
    again.work_ended = vec![settled("missing", 3)];
    again.idempotency = Some(record("k", 100));
    let refused = store.append(again).await.expect_err("refused");
    assert!(matches!(refused, AppendError::Duplicate(_)), "{refused:?}");
}

async fn a_refused_append_leaves_no_record(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let mut batch = create(&run(1), 1);
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect_err("conflict");
    assert_eq!(
        store
            .idempotency(&idempotency_key("k"), at(0))
            .await
            .expect("record"),
        None
    );

    let mut batch = append(&run(1), 1, 1);
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect("the key is still free");
}

async fn an_expired_record_is_absent_and_gets_replaced(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect("append");
    assert_eq!(
        store
            .idempotency(&idempotency_key("k"), at(100))
            .await
            .expect("record"),
        None
    );

    let mut batch = create(&run(2), 1);
    batch.summary.updated_at = at(99);
    batch.idempotency = Some(record("k", 900));
    store.append(batch.clone()).await.expect_err("not expired at 99");
    batch.summary.updated_at = at(100);
    store.append(batch).await.expect("expired at 100");
    assert_eq!(
        store
            .idempotency(&idempotency_key("k"), at(899))
            .await
            .expect("record"),
        Some(record("k", 900))
    );
}

async fn same_key_of_another_caller_is_another_request(store: Arc<dyn Store>) {
    let own = idempotency_key("k");
    let keys = [
        own.clone(),
        IdempotencyKey {
            tenant: tenant("zeta"),
            ..own.clone()
        },
        IdempotencyKey {
            principal: principal("bob"),
            ..own.clone()
        },
        IdempotencyKey {
            scope: "a2a".to_owned(),
            ..own
        },
    ];
    for (n, key) in (0_u64..).zip(&keys) {
        let mut batch = create(&run(n), 1);
        batch.idempotency = Some(IdempotencyRecord {
            key: key.clone(),
            run: Some(run_id(n)),
            ..record("k", 100)
        });
        store.append(batch).await.expect("append");
    }
    for (n, key) in (0_u64..).zip(&keys) {
        let found = store
            .idempotency(key, at(0))
            .await
            .expect("record")
            .expect("there");
        assert_eq!((&found.key, found.run), (key, Some(run_id(n))));
    }
}

async fn a_remembered_request_needs_no_append(store: Arc<dyn Store>) {
    let remembered = IdempotencyRecord {
        run: None,
        response: Vec::new(),
        ..record("k", 100)
    };
    assert_eq!(
        store.remember(remembered.clone(), at(0)).await.expect("remember"),
        None
    );
    let mut batch = create(&run(1), 1);
    batch.idempotency = Some(record("k", 100));
    let refused = store.append(batch).await.expect_err("duplicate");
    assert!(
        matches!(&refused, AppendError::Duplicate(found) if **found == remembered),
        "{refused:?}"
    );
}

async fn remembering_twice_returns_the_first(store: Arc<dyn Store>) {
    assert_eq!(
        store.remember(record("k", 100), at(0)).await.expect("remember"),
        None
    );
    let second = IdempotencyRecord {
        digest: "other".to_owned(),
        ..record("k", 500)
    };
    assert_eq!(
        store.remember(second.clone(), at(99)).await.expect("remember"),
        Some(record("k", 100))
    );
    assert_eq!(
        store.remember(second.clone(), at(100)).await.expect("remember"),
        None
    );
    assert_eq!(
        store.idempotency(&second.key, at(100)).await.expect("record"),
        Some(second)
    );
}

async fn first_of_many_concurrent_records_is_kept(store: Arc<dyn Store>) {
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..16 {
        let store = store.clone();
        attempts.spawn(async move {
            let record = IdempotencyRecord {
                run: Some(run_id(n)),
                ..record("k", 100)
            };
            store.remember(record, at(0)).await.expect("remember")
        });
    }
    let answers = attempts.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_none()).count(), 1);
    let kept = store
        .idempotency(&idempotency_key("k"), at(0))
        .await
        .expect("record");
    assert!(
        answers
            .into_iter()
            .filter(Option::is_some)
            .all(|answer| answer == kept)
    );
}

async fn forgetting_deletes_expired_records_up_to_the_limit(store: Arc<dyn Store>) {
    for n in 0..6 {
        store
            .remember(record(&format!("k{n}"), 10 * n), at(-1))
            .await
            .expect("remember");
    }
    assert_eq!(store.forget_expired(at(30), 3).await.expect("forget"), 3);
    assert_eq!(store.forget_expired(at(30), 3).await.expect("forget"), 1);
    assert_eq!(store.forget_expired(at(30), 3).await.expect("forget"), 0);
    for n in 0..6 {
        let found = store
            .idempotency(&idempotency_key(&format!("k{n}")), at(-1))
            .await
            .expect("record");
        assert_eq!(found.is_some(), n > 3, "k{n}");
    }
}
