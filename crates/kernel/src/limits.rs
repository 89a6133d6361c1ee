//! The limits of a run: what its caller asks for, within what its host allows.

use serde_json::Value;

use crate::{HostBounds, Limits, Object, Refusal};

/// The shortest run duration that a caller may request.
const MIN_DURATION_MS: u64 = 1;

impl HostBounds {
    /// Fixes the limits of a new run. `declared_ms` is the duration that its workflow declares.
    ///
    /// # Errors
    /// The caller asks for more than the host allows, or for no whole number.
    pub fn limits(self, configurable: &Object, declared_ms: Option<u64>) -> Result<Limits, Refusal> {
        let asked = |key: &'static str, min: u64, max: u64| match configurable.get(key) {
            None => Ok(None),
            Some(value) => match whole(value) {
                Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
                _ => Err(Refusal::OutOfBounds {
                    key,
                    value: value.clone(),
                    min,
                    max,
                }),
            },
        };
        let most = u64::from(self.node_executions);
        let executions = asked("recursionLimit", 1, most)?.unwrap_or(most);
        let duration_max = self.run_duration_ms.unwrap_or(i64::MAX as u64);
        let duration = asked("runTimeoutMs", MIN_DURATION_MS, duration_max)?;
        Ok(Limits {
            node_executions: u32::try_from(executions).unwrap_or(self.node_executions),
            log_bytes: self.log_bytes,
            run_duration_ms: [duration, declared_ms, self.run_duration_ms]
                .into_iter()
                .flatten()
                .min(),
        })
    }
}

/// A non-negative integer, also when written as `5.0`.
#[must_use]
pub fn whole(value: &Value) -> Option<u64> {
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
