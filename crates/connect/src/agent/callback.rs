//! Pushes: has an agent tell this host when a task changes.
//!
//! A push wakes the call, and its body is not read: the agent is asked. So it takes the place of looking often, and
//! one that is missed or forged changes nothing. It is used where the agent offers it, this host can be reached, and
//! no stream of the task is followed. A stream is better: it also brings what an agent writes piece by piece.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use wopr_core::{ContentHash, RunKey, StepId};
use wopr_wire::a2a::model::{Secret, TaskPushNotificationConfig};

use super::{Agents, Attempted, Handle, OF_TASKS, Pushes};
use crate::a2a::Agent;

/// How long an agent may take to register for pushes.
const REGISTERED: Duration = Duration::from_secs(5);
/// The id of the registration within the task, so that another one replaces it.
const CONFIG: &str = "wopr";

/// Where an agent pushes the updates of a call to, and what it has to show there.
#[derive(Debug, Clone)]
pub struct Callback {
    pub url: String,
    pub token: Secret,
}

/// Makes the callbacks of calls. Both parts are derived from the call, and nothing is stored. A call is named by its
/// attempt and by how many calls the step had made before.
pub trait Callbacks: Send + Sync + fmt::Debug + 'static {
    fn callback(&self, run: &RunKey, step: &StepId, call: (u32, u32)) -> Callback;
}

impl Agents {
    /// Asks the agent to push the updates of a task, unless it does or has refused to. Returns whether it does now
    /// and did not before: the task may have changed meanwhile.
    pub(super) async fn register(
        &self,
        agent: &Agent,
        attempted: &Attempted<'_>,
        handle: &mut Handle,
    ) -> bool {
        let offers = agent.card().model.capabilities.push_notifications == Some(true);
        let Some(callbacks) = self.callbacks.as_ref().map(Arc::as_ref).filter(|_| offers) else {
            return false;
        };
        let Callback { url, token } = callbacks.callback(
            attempted.run,
            attempted.step,
            (attempted.attempt, attempted.number),
        );
        let place = digest(&url);
        match &handle.pushes {
            Some(Pushes::Refused) => return false,
            Some(Pushes::To(known)) if *known == place => return false,
            Some(Pushes::To(_)) | None => {}
        }
        let config = TaskPushNotificationConfig {
            tenant: None,
            id: Some(CONFIG.to_owned()),
            task_id: Some(handle.task_id.clone()),
            url,
            token: Some(token),
            authentication: None,
        };
        let (run, peer, task) = (attempted.run, &handle.peer, &handle.task_id);
        match tokio::time::timeout(REGISTERED, agent.set_push_config(config)).await {
            Ok(Ok(_)) => {
                handle.pushes = Some(Pushes::To(place));
                true
            }
            Ok(Err(error)) if !error.is_transient() => {
                if let Some(left_out) = OF_TASKS.admit(&run.tenant, Instant::now()) {
                    tracing::info!(%run, peer, task, %error, left_out, "an agent does not push; its task is looked at instead");
                }
                handle.pushes = Some(Pushes::Refused);
                false
            }
            Ok(Err(error)) => {
                tracing::debug!(%run, peer, task, %error, "an agent could not be asked to push yet");
                false
            }
            Err(_) => false,
        }
    }

    /// Whether the agent pushes the updates of a task to this host.
    pub(super) fn is_pushed(&self, handle: &Handle) -> bool {
        self.callbacks.is_some() && matches!(handle.pushes, Some(Pushes::To(_)))
    }
}

fn digest(url: &str) -> String {
    ContentHash::of(url.as_bytes())
        .as_str()
        .chars()
        .take(16)
        .collect()
}
