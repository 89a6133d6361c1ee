//! Invariants of every batch, checked before any store writes it.
//!
//! Batches are built by this program, so a violation is a bug of ours. It panics before anything is written,
//! instead of leaving a log with a gap.

use std::collections::HashSet;

use crate::Batch;

/// Asserts the invariants that stores rely on.
///
/// # Panics
/// If the events do not continue the log, the snapshot is not at the new head, a child is named twice or is
/// its own parent, has work without a log, or gets a subscription.
pub(crate) fn assert_sound(batch: &Batch) {
    for (n, event) in batch.events.iter().enumerate() {
        assert_eq!(
            event.seq,
            batch.expected().plus(n),
            "events continue the log of {} without a gap",
            batch.run
        );
    }
    if let Some(snapshot) = &batch.snapshot {
        assert_eq!(
            snapshot.head,
            batch.head(),
            "the snapshot of {} folds every event",
            batch.run
        );
    }
    if !batch.children.is_empty() {
        let mut seen = HashSet::with_capacity(batch.children.len());
        for child in &batch.children {
            assert!(seen.insert(&child.run), "child {} is created once", child.run);
            let seqs = child.events.iter().map(|event| event.seq.0);
            assert!(
                seqs.eq(0..child.events.len() as u64),
                "the log of child {} has no gap",
                child.run
            );
            let head = child.snapshot.as_ref().map(|snapshot| snapshot.head.0);
            assert!(
                head.is_none_or(|head| head == child.events.len() as u64),
                "the snapshot of child {} folds every event",
                child.run
            );
            assert!(
                child.work.is_empty() || !child.events.is_empty(),
                "child {} has no work before its first event",
                child.run
            );
            assert_ne!(child.run, batch.run.run, "a run is not its own child");
            assert!(
                batch.push.as_ref().is_none_or(|push| push.run != child.run),
                "child {} has no receivers yet",
                child.run
            );
        }
    }
}
