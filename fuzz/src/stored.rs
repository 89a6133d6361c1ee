//! Stored events and snapshots, read by this version.

use wopr_core::{DialectId, Seq, format};

/// A stored body is parsed or rejected. A parsed body survives a round trip.
///
/// # Panics
/// If a property does not hold.
pub fn stored(data: &[u8]) {
    if let Ok(recorded) = format::decode_event(Seq(7), data) {
        let again = format::decode_event(Seq(7), &format::encode_event(&recorded));
        assert_eq!(again.unwrap(), recorded);
        let marked = format::decode_event(Seq(7), &format::encode_first_event(&recorded, "mark"));
        assert_eq!(
            marked.unwrap(),
            recorded,
            "a commit's mark is not part of its event"
        );
    }
    let dialect = DialectId::Openwop;
    if let Ok(run) = format::decode_run(dialect, data) {
        let again = format::decode_run(dialect, &format::encode_run(dialect, &run));
        assert_eq!(again.unwrap(), run);
    }
}
