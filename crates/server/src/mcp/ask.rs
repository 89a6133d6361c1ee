//! A request with everything that its handler needs, whichever transport it came by.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use wopr_app::{App, Error as AppError, View, VisibleRun};
use wopr_core::TraceContext;
use wopr_wire::json::Object;

use super::progress::Progress;
use crate::{
    Host,
    auth::{self, Caller},
    telemetry,
};

#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) host: Arc<Host>,
    pub(super) caller: Arc<Caller>,
    pub(super) progress: Progress,
    /// The trace context of the request. A run that the request starts passes it on with its calls.
    pub(super) trace: Option<TraceContext>,
    /// Becomes `true` when the host closes or the client goes away: whatever waits then gives up.
    pub(super) leaving: watch::Receiver<bool>,
}

/// The trace context that a request itself carries.
pub(super) fn trace(params: &Object) -> Option<TraceContext> {
    let meta = params.get("_meta")?;
    telemetry::trace_in(meta.get("traceparent"), meta.get("tracestate"))
}

impl Ask {
    pub(super) fn app(&self) -> &App {
        self.host.app()
    }

    /// The longest that a call waits.
    pub(super) fn most_wait(&self) -> Duration {
        self.host.config().mcp.call_wait.as_duration()
    }

    /// Completes when the host closes or the client goes away.
    pub(super) async fn given_up(&self) {
        let mut leaving = self.leaving.clone();
        // A dropped sender means that the transport has ended.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Waits until a run has ended or waits for an answer and `is_fresh` accepts it, or until the time is over. Returns
    /// the run as it is then. Dropping the future ends the wait and nothing else.
    pub(super) async fn settled(
        &self,
        run: &VisibleRun,
        wait: Duration,
        is_fresh: impl Fn(&View) -> bool,
    ) -> Result<View, AppError> {
        let over = async {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.given_up() => {}
            }
        };
        auth::wait(async {
            tokio::select! {
                view = self.app().wait_run(run, is_fresh, over) => view,
                never = self.progress.follow(self.app(), run) => match never {},
            }
        })
        .await
    }
}
