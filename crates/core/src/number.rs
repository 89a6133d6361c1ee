//! Numbers as definitions and inputs spell them.

use serde_json::Value;

/// A non-negative integer, also when written as `5.0`.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let n = value.as_f64()?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a whole number in range"
        )]
        (n >= 0.0 && n.fract() == 0.0 && n < 9.0e15).then_some(n as u64)
    })
}
