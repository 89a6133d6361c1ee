//! Log fields of runs.

use tracing::Span;
use wopr_core::RunKey;

/// A span that adds the run to every line logged while it is being worked on.
pub(crate) fn of_run(run: &RunKey) -> Span {
    tracing::info_span!("run", run = %run.run, tenant = %run.tenant)
}
