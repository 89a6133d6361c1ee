//! Log fields of runs.

use tracing::Span;
use wopr_core::RunKey;

/// Names a run in every line that is logged while it is worked at.
pub(crate) fn of_run(run: &RunKey) -> Span {
    tracing::info_span!("run", run = %run.run, tenant = %run.tenant)
}
