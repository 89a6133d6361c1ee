//! Event rows: the events of one append are stored together.
//!
//! A row holds the events up to and including its key, each preceded by its length in four bytes, most
//! significant first. Rows are limited in size, because reading one event reads its whole row; only a single
//! larger event makes a larger row.

use wopr_core::Seq;

use crate::StoredEvent;

/// Size in bytes from which a row takes no further event.
const FULL: usize = 16 << 10;

/// Size in bytes of a length.
const LENGTH: usize = 4;

/// Packs events into rows and passes each row to `write` with the number of its last event.
pub(super) fn pack<E>(
    events: &[StoredEvent],
    mut write: impl FnMut(Seq, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let n_bytes: usize = events.iter().map(|event| LENGTH + event.body.len()).sum();
    let mut row = Vec::with_capacity(n_bytes.min(2 * FULL));
    for (n, event) in events.iter().enumerate() {
        let length = u32::try_from(event.body.len()).expect("SQLite takes no body near four gigabytes");
        row.extend_from_slice(&length.to_be_bytes());
        row.extend_from_slice(&event.body);
        if row.len() >= FULL || n + 1 == events.len() {
            write(event.seq, &row)?;
            row.clear();
        }
    }
    Ok(())
}

/// Decodes a row into its events in order, each with its number. `None` if the row is malformed.
pub(super) fn unpack(last: Seq, row: &[u8]) -> Option<impl Iterator<Item = (Seq, &[u8])>> {
    let n_events = lengths(row)?;
    let first = (last.0 + 1).checked_sub(n_events)?;
    let mut rest = row;
    let bodies = std::iter::from_fn(move || {
        let (body, after) = split(rest)?;
        rest = after;
        Some(body)
    });
    Some((first..).map(Seq).zip(bodies))
}

/// Counts the events of a row; `None` if a length exceeds the row.
fn lengths(row: &[u8]) -> Option<u64> {
    let mut n_events = 0;
    let mut rest = row;
    while !rest.is_empty() {
        (_, rest) = split(rest)?;
        n_events += 1;
    }
    (n_events > 0).then_some(n_events)
}

/// Splits off the first body.
fn split(row: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = row.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn events(first: u64, sizes: &[usize]) -> Vec<StoredEvent> {
        (first..)
            .zip(sizes)
            .map(|(seq, size)| StoredEvent {
                seq: Seq(seq),
                body: vec![u8::try_from(seq % 251).expect("small"); *size],
            })
            .collect()
    }

    fn rows(events: &[StoredEvent]) -> Vec<(Seq, Vec<u8>)> {
        let mut rows = Vec::new();
        let Ok(()) = pack(events, |last, row| {
            rows.push((last, row.to_vec()));
            Ok::<_, Infallible>(())
        });
        rows
    }

    fn read(rows: &[(Seq, Vec<u8>)]) -> Vec<StoredEvent> {
        let events = rows
            .iter()
            .flat_map(|(last, row)| unpack(*last, row).expect("our own row"));
        events
            .map(|(seq, body)| StoredEvent {
                seq,
                body: body.to_vec(),
            })
            .collect()
    }

    #[test]
    fn packed_events_round_trip() {
        for sizes in [&[0][..], &[1, 0, 300], &[FULL, 5], &[5, FULL, 5], &[9; 5_000]] {
            let events = events(7, sizes);
            assert_eq!(read(&rows(&events)), events);
        }
        assert_eq!(rows(&[]), []);
    }

    #[test]
    fn rows_are_bounded() {
        let rows = rows(&events(0, &[1_000; 100]));
        assert!(rows.len() > 5 && rows.iter().all(|(_, row)| row.len() < FULL + 1_100));
        assert_eq!(rows.last().map(|(last, _)| *last), Some(Seq(99)));
    }

    #[test]
    fn damaged_rows_are_rejected() {
        let whole = rows(&events(3, &[4, 4])).remove(0).1;
        for cut in 1..whole.len() {
            // Cut after the first event it is a valid row of one event; the reader notices from the count
            // that one is missing.
            assert_eq!(unpack(Seq(4), &whole[..cut]).is_some(), cut == 8, "{cut}");
        }
        assert!(unpack(Seq(4), &[]).is_none());
        assert!(unpack(Seq(0), &whole).is_none(), "more events than there can be");
        assert!(unpack(Seq(4), &[0xff; 9]).is_none());
    }
}
