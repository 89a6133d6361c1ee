//! Reads of a single run, and isolation between tenants.

use std::sync::Arc;

use wopr_core::{InterruptKind, RunKey, RunStatus, Seq};
use wopr_store::{
    BlobRow, INBOX_ROWS, Load, MESSAGES_BYTES, Match, MessageRow, PAGE_BYTES, PhaseFilter, Queue, RunFilter,
    Snapshot, Store, Summary,
};

use crate::make::*;

crate::behaviours!(
    missing_run_reads_as_none,
    event_pages_start_at_the_cursor_and_end_at_the_limit,
    event_page_contains_head_and_status,
    event_page_ends_at_the_byte_limit,
    only_the_size_of_a_heavy_run_is_read,
    a_load_reads_the_oldest_of_a_long_inbox,
    heads_are_returned_in_request_order,
    load_returns_the_newest_snapshot_and_the_tail,
    a_snapshot_of_the_whole_log_leaves_an_empty_tail,
    every_phase_reads_back,
    newest_messages_are_returned_oldest_first,
    known_message_or_blob_is_ignored,
    large_bodies_survive,
    every_character_survives,
    load_is_consistent,
    tenants_do_not_see_each_other,
);

async fn missing_run_reads_as_none(store: Arc<dyn Store>) {
    assert_eq!(store.load(&run(1)).await.expect("load"), None);
    assert_eq!(store.summary(&run(1)).await.expect("summary"), None);
    assert_eq!(store.events(&run(1), Seq(0), 10).await.expect("events"), None);
    assert_eq!(store.messages(&run(1), 10).await.expect("messages"), []);
    assert_eq!(store.blob(&run(1), "b").await.expect("blob"), None);
}

async fn event_pages_start_at_the_cursor_and_end_at_the_limit(store: Arc<dyn Store>) {
    store.append(create(&run(1), 10)).await.expect("append");
    for (from, limit, expected) in [
        (0, 3, 0..3),
        (3, 3, 3..6),
        (8, 5, 8..10),
        (10, 5, 10..10),
        (u64::MAX, 5, 0..0),
        (2, 0, 2..2),
    ] {
        let page = store
            .events(&run(1), Seq(from), limit)
            .await
            .expect("events")
            .expect("a run");
        assert_eq!(
            page.events,
            events(0, 10)[expected],
            "from {from}, {limit} at most"
        );
        assert_eq!(page.head, Seq(10));
    }
    let all = store
        .events(&run(1), Seq(0), usize::MAX)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(all.events, events(0, 10));
}

async fn event_page_contains_head_and_status(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("append");
    let mut batch = append(&run(1), 2, 1);
    batch.summary.status = RunStatus::Completed;
    store.append(batch).await.expect("append");
    let page = store
        .events(&run(1), Seq(0), 1)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(
        (page.events.len(), page.head, page.status),
        (1, Seq(3), RunStatus::Completed)
    );
}

async fn event_page_ends_at_the_byte_limit(store: Arc<dyn Store>) {
    const MIB: usize = 1 << 20;
    let sizes = [PAGE_BYTES + 1, 10, 10, 3 * MIB, MIB, 2 * MIB, 10];
    let mut batch = create(&run(1), sizes.len());
    for (event, size) in batch.events.iter_mut().zip(sizes) {
        event.body = vec![b'x'; size];
    }
    let all = batch.events.clone();
    store.append(batch).await.expect("append");
    for (from, limit, expected) in [
        (0, 9, 0..1),
        (1, 9, 1..5),
        (1, 3, 1..4),
        (2, 9, 2..5),
        (5, 9, 5..7),
    ] {
        let page = store
            .events(&run(1), Seq(from), limit)
            .await
            .expect("events")
            .expect("a run");
        let read: Vec<_> = page.events.iter().map(|event| event.seq.0).collect();
        assert_eq!(read, expected.clone().map(|n| n as u64).collect::<Vec<_>>());
        assert!(page.events == all[expected] && page.head == Seq(7), "from {from}");
    }
}

async fn only_the_size_of_a_heavy_run_is_read(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 2);
    batch.snapshot = Some(Snapshot {
        head: Seq(2),
        body: vec![0; 1_000],
    });
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 2, 1);
    batch.events[0].body = vec![0; 20_000];
    store.append(batch).await.expect("append");
    let mut batch = create(&run(2), 1);
    batch.inbox_sent = vec![run_message(&run(1), &run(2), 0)];
    batch.inbox_sent[0].body = vec![0; 300_000];
    store.append(batch).await.expect("append");

    let load = async |most| {
        store
            .load_within(&run(1), most)
            .await
            .expect("load")
            .expect("a run")
    };
    let weight = match load(0).await {
        Load::Heavy(weight) => weight,
        Load::Whole(_) => 0,
    };
    assert!((321_000..322_000).contains(&weight), "{weight}");
    for most in [1_000, 20_000, weight - 1] {
        assert_eq!(load(most).await, Load::Heavy(weight));
    }
    let whole = store.load(&run(1)).await.expect("load").expect("a run");
    assert_eq!((whole.tail.len(), whole.inbox.len()), (1, 1));
    assert!(load(weight).await == Load::Whole(Box::new(whole)));
    let none = store.load_within(&run(3), 0).await.expect("load");
    assert_eq!(none, None);
}

async fn a_load_reads_the_oldest_of_a_long_inbox(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    store.append(create(&run(2), 1)).await.expect("append");
    let tell = async |from: u64, sizes: &[usize]| {
        let mut batch = append(&run(1), from, 1);
        for (seq, size) in (from * 1_000..).zip(sizes) {
            let mut row = run_message(&run(2), &run(1), seq);
            row.body = vec![b'x'; *size];
            batch.inbox_sent.push(row);
        }
        store.append(batch).await.expect("append");
    };
    let inbox = async || {
        let loaded = store.load(&run(2)).await.expect("load").expect("a run");
        let seqs: Vec<_> = loaded.inbox.iter().map(|row| row.source_seq.0).collect();
        (seqs, loaded.is_inbox_cut())
    };
    tell(1, &[10; 2]).await;
    assert_eq!(inbox().await, (vec![1_000, 1_001], false));
    tell(2, &[3 << 20; 3]).await;
    assert_eq!(inbox().await, (vec![1_000, 1_001, 2_000, 2_001], true));
    let mut batch = append(&run(2), 1, 1);
    batch.inbox_consumed = (2_000..2_003).map(|seq| (run_id(1), Seq(seq))).collect();
    store.append(batch).await.expect("append");
    tell(3, &[10; INBOX_ROWS + 9]).await;
    let (seqs, is_cut) = inbox().await;
    assert!(is_cut && seqs.len() == INBOX_ROWS);
    assert_eq!(seqs[..3], [1_000, 1_001, 3_000]);
}

async fn heads_are_returned_in_request_order(store: Arc<dyn Store>) {
    assert_eq!(store.heads(&[]).await.expect("heads"), []);
    store.append(create(&run(1), 3)).await.expect("append");
    store.append(create(&run(2), 1)).await.expect("append");
    store.append(append(&run(2), 1, 4)).await.expect("append");
    let foreign = RunKey::new(tenant("other"), run_id(1));
    let asked = [run(2), run(9), run(1), foreign, run(2)];
    let heads = store.heads(&asked).await.expect("heads");
    assert_eq!(heads, [Some(Seq(5)), None, Some(Seq(3)), None, Some(Seq(5))]);
}

async fn load_returns_the_newest_snapshot_and_the_tail(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 3);
    batch.snapshot = Some(Snapshot {
        head: Seq(3),
        body: b"three".to_vec(),
    });
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 3, 4);
    batch.snapshot = Some(Snapshot {
        head: Seq(7),
        body: b"seven".to_vec(),
    });
    store.append(batch.clone()).await.expect("append");
    store.append(append(&run(1), 7, 2)).await.expect("append");

    let loaded = store.load(&run(1)).await.expect("load").expect("a run");
    assert_eq!(loaded.snapshot, batch.snapshot);
    assert_eq!(loaded.tail, events(7, 2));
    assert_eq!(loaded.head, Seq(9));
    let page = store
        .events(&run(1), Seq(0), 100)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(page.events, events(0, 9), "a snapshot hides nothing of the log");
}

async fn a_snapshot_of_the_whole_log_leaves_an_empty_tail(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 3);
    batch.snapshot = Some(Snapshot {
        head: Seq(3),
        body: Vec::new(),
    });
    store.append(batch.clone()).await.expect("append");
    let loaded = store.load(&run(1)).await.expect("load").expect("a run");
    assert_eq!((loaded.snapshot, loaded.tail), (batch.snapshot, Vec::new()));
}

async fn every_phase_reads_back(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let kinds = InterruptKind::ALL.into_iter().map(Some).chain([None]).cycle();
    for ((n, status), waiting_on) in (1..).zip(RunStatus::ALL).zip(kinds) {
        let mut batch = append(&run(1), n, 1);
        batch.summary = summary(status, i64::try_from(n).expect("small") + 5);
        batch.summary.waiting_on = waiting_on;
        batch.summary.error_code = n.is_multiple_of(2).then(|| format!("code-{n}"));
        let expected = batch.summary.clone();
        store.append(batch).await.expect("append");
        let found = store.summary(&run(1)).await.expect("summary");
        assert_eq!(found, Some((expected, Seq(n + 1))));
    }
}

async fn newest_messages_are_returned_oldest_first(store: Arc<dyn Store>) {
    let message = |id: &str, seq| MessageRow {
        id: id.to_owned(),
        seq: Seq(seq),
        body: id.as_bytes().to_vec(),
    };
    let mut batch = create(&run(1), 1);
    batch.messages = vec![message("z", 0), message("a", 0)];
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.messages = vec![message("m", 1)];
    store.append(batch).await.expect("append");
    // Beside the log, where its head stands still.
    for id in ["k", "c", "d"] {
        let mut batch = append(&run(1), 1 + 1, 0);
        batch.messages = vec![message(id, 1)];
        store.append(batch).await.expect("append");
    }
    let all = [
        message("z", 0),
        message("a", 0),
        message("m", 1),
        message("k", 1),
        message("c", 1),
        message("d", 1),
    ];
    assert_eq!(store.messages(&run(1), 10).await.expect("messages"), all);
    assert_eq!(store.messages(&run(1), 2).await.expect("messages"), all[4..]);
    assert_eq!(store.messages(&run(1), 0).await.expect("messages"), []);

    // As many as fit, and the newest in any case.
    let large = |id: &str, seq, n_bytes| MessageRow {
        body: vec![b'x'; n_bytes],
        ..message(id, seq)
    };
    let mut batch = append(&run(1), 2, 1);
    batch.messages = vec![
        large("n", 2, MESSAGES_BYTES / 2),
        large("o", 2, MESSAGES_BYTES / 2),
    ];
    let fits = batch.messages.clone();
    store.append(batch).await.expect("append");
    assert_eq!(store.messages(&run(1), 9).await.expect("messages"), fits);
    let mut batch = append(&run(1), 3, 1);
    batch.messages = vec![large("p", 3, MESSAGES_BYTES + 1)];
    let alone = batch.messages.clone();
    store.append(batch).await.expect("append");
    assert_eq!(store.messages(&run(1), 9).await.expect("messages"), alone);
}

async fn known_message_or_blob_is_ignored(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.messages = vec![MessageRow {
        id: "m".to_owned(),
        seq: Seq(0),
        body: b"first".to_vec(),
    }];
    batch.blobs = vec![BlobRow {
        id: "b".to_owned(),
        media_type: "a/b".to_owned(),
        bytes: b"first".to_vec(),
    }];
    store.append(batch.clone()).await.expect("append");
    let mut again = append(&run(1), 1, 1);
    again.messages = vec![MessageRow {
        id: "m".to_owned(),
        seq: Seq(1),
        body: b"second".to_vec(),
    }];
    again.blobs = vec![BlobRow {
        id: "b".to_owned(),
        media_type: "c/d".to_owned(),
        bytes: b"second".to_vec(),
    }];
    store.append(again).await.expect("append");
    assert_eq!(
        store.messages(&run(1), 9).await.expect("messages"),
        batch.messages
    );
    assert_eq!(
        store.blob(&run(1), "b").await.expect("blob").as_ref(),
        batch.blobs.first()
    );
}

async fn large_bodies_survive(store: Arc<dyn Store>) {
    let large = |n: usize| {
        (0..n)
            .map(|i| u8::try_from(i % 251).expect("small"))
            .collect::<Vec<_>>()
    };
    let mut batch = create(&run(1), 4);
    for (event, size) in batch.events.iter_mut().zip([0, 2_100, 70_000, 1_048_576]) {
        event.body = large(size);
    }
    batch.snapshot = Some(Snapshot {
        head: Seq(4),
        body: large(300_000),
    });
    batch.blobs = vec![BlobRow {
        id: "b".to_owned(),
        media_type: "a/b".to_owned(),
        bytes: large(3_000_000),
    }];
    store.append(batch.clone()).await.expect("append");
    let page = store
        .events(&run(1), Seq(0), 9)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(page.events, batch.events);
    assert_eq!(
        store.load(&run(1)).await.expect("load").expect("a run").snapshot,
        batch.snapshot
    );
    assert_eq!(
        store.blob(&run(1), "b").await.expect("blob").as_ref(),
        batch.blobs.first()
    );
}

async fn every_character_survives(store: Arc<dyn Store>) {
    // Names that clients may use; NUL is an ordinary character.
    let texts = ["a\0b", "\u{1}", "\0", "\u{1}0", "'; \\ \"$1", "\u{10ffff}ünïcode"];
    let mut batch = create(&run(1), 1);
    batch.summary.group = Some("c\0ntext".to_owned());
    batch.summary.error_code = Some("c\0de".to_owned());
    for text in texts {
        batch.messages.push(MessageRow {
            id: text.to_owned(),
            seq: Seq(0),
            body: vec![0],
        });
        batch.blobs.push(BlobRow {
            id: text.to_owned(),
            media_type: text.to_owned(),
            bytes: vec![0],
        });
        batch.work_set.extend([timer(text, 1), effect(text)]);
    }
    batch.idempotency = Some(wopr_store::IdempotencyRecord {
        digest: "d\0".to_owned(),
        ..record("k\0y", 100)
    });
    store.append(batch.clone()).await.expect("append");

    let (found, _) = store.summary(&run(1)).await.expect("summary").expect("a run");
    assert_eq!(found, batch.summary);
    let in_group = PhaseFilter {
        group: Some("c\0ntext".to_owned()),
        error_code: Some(Match::Is("c\0de".to_owned())),
        ..PhaseFilter::default()
    };
    let listed = store
        .list_by_phase(&run(1).tenant, &in_group, None, 9)
        .await
        .expect("list");
    assert_eq!(listed.total, 1);
    assert_eq!(
        store.messages(&run(1), 9).await.expect("messages"),
        batch.messages
    );
    for blob in &batch.blobs {
        assert_eq!(
            store.blob(&run(1), &blob.id).await.expect("blob").as_ref(),
            Some(blob)
        );
    }
    let mut timers: Vec<_> = texts.map(|text| (run(1), timer_key(text))).to_vec();
    timers.sort();
    assert_eq!(due(&*store, 1, 9).await, timers);
    assert_eq!(
        store
            .idempotency(&idempotency_key("k\0y"), at(0))
            .await
            .expect("record"),
        batch.idempotency
    );
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let leased = store
        .lease(Queue::Effects, epoch, times(0, 9), &9.into())
        .await
        .expect("lease");
    let mut settling = append(&run(1), 1, 1);
    settling.work_ended = leased
        .iter()
        .map(|leased| wopr_store::Ended {
            key: leased.key.clone(),
            fence: Some(leased.fence),
        })
        .collect();
    assert_eq!(settling.work_ended.len(), texts.len());
    settling.work_ended.extend(texts.map(cleared));
    store.append(settling).await.expect("settle");
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), None);
}

async fn load_is_consistent(store: Arc<dyn Store>) {
    const APPENDS: u64 = 60;
    store.append(create(&run(1), 1)).await.expect("append");
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 1..=APPENDS {
                let mut batch = append(&run(1), n, 1);
                batch.summary.updated_at = at(i64::try_from(n).expect("small"));
                batch.summary.phase_since = batch.summary.updated_at;
                if n % 5 == 0 {
                    batch.snapshot = Some(Snapshot {
                        head: Seq(n + 1),
                        body: n.to_string().into_bytes(),
                    });
                }
                store.append(batch).await.expect("append");
            }
        })
    };
    loop {
        let loaded = store.load(&run(1)).await.expect("load").expect("a run");
        let folded = loaded.snapshot.as_ref().map_or(0, |snapshot| snapshot.head.0);
        let tail: Vec<u64> = loaded.tail.iter().map(|event| event.seq.0).collect();
        assert_eq!(tail, (folded..loaded.head.0).collect::<Vec<_>>());
        assert_eq!(loaded.tail.len() as u64, (loaded.head.0 - folded));
        let Summary {
            phase_since,
            updated_at,
            ..
        } = loaded.summary;
        assert_eq!(phase_since, updated_at);
        if loaded.head.0 > 1 {
            assert_eq!(updated_at.millis().unsigned_abs() + 1, loaded.head.0);
        }
        if loaded.head.0 == APPENDS + 1 {
            break;
        }
    }
    writer.await.expect("the writer ends");
}

async fn tenants_do_not_see_each_other(store: Arc<dyn Store>) {
    let (own, foreign) = (run(1), RunKey::new(tenant("zeta"), run_id(1)));
    let mut batch = create(&own, 2);
    batch.summary.group = Some("ctx".to_owned());
    batch.snapshot = Some(Snapshot {
        head: Seq(2),
        body: b"fold".to_vec(),
    });
    batch.messages = vec![MessageRow {
        id: "m".to_owned(),
        seq: Seq(0),
        body: Vec::new(),
    }];
    batch.blobs = vec![BlobRow {
        id: "b".to_owned(),
        media_type: "a/b".to_owned(),
        bytes: Vec::new(),
    }];
    batch.inbox_sent = vec![run_message(&own, &run(2), 0)];
    batch.work_set = vec![effect("e"), timer("t", 1)];
    store.append(batch).await.expect("append");

    assert_eq!(store.load(&foreign).await.expect("load"), None);
    assert_eq!(store.summary(&foreign).await.expect("summary"), None);
    assert_eq!(store.events(&foreign, Seq(0), 9).await.expect("events"), None);
    assert_eq!(store.messages(&foreign, 9).await.expect("messages"), []);
    assert_eq!(store.blob(&foreign, "b").await.expect("blob"), None);
    let runs = store
        .list_runs(&foreign.tenant, &RunFilter::default(), None, 9)
        .await
        .expect("list");
    assert_eq!(runs.runs, []);
    let in_group = PhaseFilter {
        group: Some("ctx".to_owned()),
        ..PhaseFilter::default()
    };
    for filter in [PhaseFilter::default(), in_group] {
        let page = store
            .list_by_phase(&foreign.tenant, &filter, None, 9)
            .await
            .expect("list");
        assert_eq!((page.runs, page.total), (Vec::new(), 0));
    }

    // The same id under another tenant is a different run with its own rows.
    store.append(create(&foreign, 1)).await.expect("append");
    let loaded = store.load(&foreign).await.expect("load").expect("a run");
    assert_eq!(
        (loaded.head, loaded.inbox, loaded.snapshot, loaded.summary.group),
        (Seq(1), Vec::new(), None, None)
    );
    let mut batch = append(&foreign, 1, 1);
    let effect = wopr_store::Ended {
        key: effect_key("e"),
        fence: None,
    };
    batch.work_ended = vec![cleared("t"), effect];
    batch.inbox_consumed = vec![(run_id(2), Seq(0))];
    store.append(batch).await.expect("append");
    assert_eq!(due(&*store, 9, 9).await.len(), 1);
    assert_eq!(
        store
            .runs_with_inbox(wopr_store::Epoch(1), None, 9)
            .await
            .expect("inbox"),
        [own]
    );
}
