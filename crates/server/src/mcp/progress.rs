//! Progress of a call, as notifications to a client that asked for them with a token.

use std::{convert::Infallible, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use wopr_app::{App, VisibleRun};
use wopr_core::Seq;
use wopr_wire::json::Object;

use super::message::notification;

/// Notifications that wait for a slow client. Further ones are dropped: each holds all that earlier ones said.
pub(super) const MAX_WAITING: usize = 8;
/// Minimum time between two notifications of a call.
const PACE: Duration = Duration::from_millis(250);
/// Maximum size of a token in bytes, which every notification repeats.
const MAX_TOKEN: usize = 1_024;

/// Where the notifications of a call go; nowhere if the client did not ask for any.
#[derive(Debug, Clone)]
pub(super) struct Progress(Option<(Value, mpsc::Sender<Value>)>);

impl Progress {
    /// The progress of a request with these parameters.
    pub(super) fn of(params: &Object, out: mpsc::Sender<Value>) -> Self {
        Self(token(params).map(|token| (token.clone(), out)))
    }

    /// Follows a run and notifies of its log's growth, until dropped. The amount of progress is the number of events.
    pub(super) async fn follow(&self, app: &App, run: &VisibleRun) -> Infallible {
        let Some((token, out)) = &self.0 else {
            return std::future::pending().await;
        };
        let mut tail = app.tail(run);
        let mut told = None;
        loop {
            // A store that fails here fails the call itself, too.
            if let Ok(Some((summary, head))) = app.summary(run).await
                && told != Some(head)
            {
                let params = json!({
                    "progressToken": token,
                    "progress": head.0,
                    "message": format!("run {} is {}, {}", run.run, summary.status.as_str(), events(head)),
                });
                if out
                    .try_send(notification("notifications/progress", params))
                    .is_ok()
                {
                    told = Some(head);
                }
            }
            let next = Instant::now() + PACE;
            tail.changed().await;
            tokio::time::sleep_until(next).await;
        }
    }
}

/// The token under which a client wants to hear of the progress of a request.
pub(super) fn token(params: &Object) -> Option<&Value> {
    let token = params.get("_meta")?.get("progressToken")?;
    let is_token = match token {
        Value::String(text) => text.len() <= MAX_TOKEN,
        Value::Number(_) => true,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    is_token.then_some(token)
}

fn events(head: Seq) -> String {
    match head.0 {
        1 => "1 event".to_owned(),
        n => format!("{n} events"),
    }
}
