//! Calls to other agents: sends the message, looks at the task until it ends, answers what it asks, and cancels it.
//!
//! ```text
//!   send -- accepted --> parked <-- due, or woken by a stream or a push --> look -- ended, asks, goes on
//!                                        answer, cancel, recall: deliveries of the engine
//! ```
//!
//! A call is parked between two looks, so it takes neither slot nor memory while the agent works. As far as this
//! host follows streams, one wakes the call when the task changes; else the agent pushes, if it can and the host can
//! be reached; and in any case the task is looked at again and again. The handle of a call is the task's id.
//!
//! Once an agent has a task, only its own word ends the call, or the end of the call's time: while it cannot be
//! asked, the call goes on. Everything an agent says is untrusted.

mod answer;
mod callback;
mod carried;
mod failure;
mod files;
mod follow;
mod look;
mod made;
mod outputs;
mod pack;
mod question;
mod recall;
mod refusals;
mod room;
mod send;
mod stream;
mod tasks_http;
mod tool;
mod transport;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_core::{AgentCall, AgentReach, AgentVerb, RunKey, StepId, TenantId, TraceContext};
use wopr_engine::{Blobs, Outcome, Report, Throttles, Wake};
use wopr_wire::a2a::method::Version;

use self::{
    failure::{failed, not_sent},
    follow::Followers,
    refusals::Refusals,
    room::{Kind, NoRoom, Rooms},
    send::Repeats,
};
use crate::{
    CallingHost,
    a2a::{self, Agent, Binding, Call, Client, Wanted},
};

pub use callback::{Callback, Callbacks};
pub use tool::ToolAgent;
pub(crate) use tool::ask as ask_tool;
pub use transport::{AgentTransport, NewTask, TaskOf, TransportError};

/// Transports of an embedder, by the names of their agents.
pub type Transports = HashMap<String, Arc<dyn AgentTransport>>;

/// Longest time until the next attempt that an agent may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// Lines a minute about tasks that agents make for a tenant: the agents decide how many there are.
static OF_TASKS: Throttles = Throttles::new(30);

/// By which a task is found again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handle {
    peer: String,
    task_id: String,
    #[serde(default)]
    context_id: String,
    /// When this host learned of the task, in milliseconds since 1970.
    since: u64,
    /// What the agent's clock said then, if it said so. The two clocks need not agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_time: Option<Value>,
    /// What the agent waits for, if it asks: what its question is named by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asks: Option<String>,
    /// The same without the id of the agent's message: an agent may write a new one whenever it is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    says: Option<String>,
    /// The interrupt of the question, if the agent names it. The answer names it too, because the agent may ask several
    /// questions at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interrupt: Option<String>,
    /// By what the agent's refusal of an answer to the question is named. The run asks it anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Whether the agent pushes its updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pushes: Option<Pushes>,
    /// The agent has named no state of the task, which was logged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_unspecified: bool,
    /// The task has had something in it that cannot be read, which was logged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_unreadable: bool,
    /// Since when the agent says that it has no way to be asked for its task, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unaskable: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    binding: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Pushes {
    /// To the address with this digest. It changes with the host's public URL.
    To(String),
    /// It does not take the address, or takes none.
    Refused,
}

impl Handle {
    fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// One attempt at a call.
#[derive(Debug)]
pub(crate) struct Attempted<'a> {
    pub(crate) call: &'a AgentCall,
    pub(crate) run: &'a RunKey,
    pub(crate) step: &'a StepId,
    pub(crate) attempt: u32,
    /// How many calls the step had made before this one.
    pub(crate) number: u32,
    /// The agent may have the message.
    pub(crate) is_repeat: bool,
    /// The key of the call.
    pub(crate) key: &'a str,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) handle: Option<Value>,
    pub(crate) cursor: Option<Value>,
    pub(crate) wake: Wake,
    pub(crate) blobs: Blobs,
}

#[derive(Debug, Clone)]
pub(crate) struct Agents {
    client: Client,
    /// The peers whose questions fail the call.
    silent: Arc<HashSet<String>>,
    followers: Arc<Followers>,
    rooms: Arc<Rooms>,
    refusals: Arc<Refusals>,
    repeats: Arc<Repeats>,
    /// The peers that could not be reached when they were last asked for a task, which was logged.
    away: Arc<Mutex<HashSet<String>>>,
    callbacks: Option<Arc<dyn Callbacks>>,
    /// Time between two looks at a task; by its age if absent.
    poll_interval: Option<Duration>,
    origin: Option<Arc<CallingHost>>,
    /// Agents that the embedder has added.
    transports: Arc<Transports>,
}

impl Agents {
    pub(crate) fn new(
        client: Client,
        silent: HashSet<String>,
        callbacks: Option<Arc<dyn Callbacks>>,
        poll_interval: Option<Duration>,
        origin: Option<CallingHost>,
        transports: Transports,
    ) -> Self {
        Self {
            client,
            silent: Arc::new(silent),
            followers: Arc::default(),
            rooms: Arc::default(),
            refusals: Arc::default(),
            repeats: Arc::default(),
            away: Arc::default(),
            callbacks,
            poll_interval,
            origin: origin.map(Arc::new),
            transports: Arc::new(transports),
        }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Sends the message of a call, or looks at its task.
    pub(crate) async fn attempt(&self, attempted: Attempted<'_>) -> Report {
        let is_followed = attempted.call.verb.is_followed();
        let tasks_only = || {
            let message = "the peer has tasks only, and neither a card nor such calls".to_owned();
            failed("invalid_input", message).into()
        };
        let AgentCall { peer, reach, .. } = attempted.call;
        if let Some(transport) = self.transports.get(peer) {
            let _room = match self.room(&attempted).await {
                Ok(room) => room,
                Err(later) => return later,
            };
            return match is_followed {
                true => Box::pin(tasks_http::attempt(&**transport, &attempted)).await,
                false => tasks_only(),
            };
        }
        if *reach == AgentReach::Embedded {
            let code = match self.transports.is_empty() {
                true => "peer_unknown",
                false => tool::AGENT_NOT_FOUND,
            };
            let unknown = failed(code, format!("this host has no code for the agent '{peer}'"));
            return without_agent(attempted.handle, unknown).into();
        }
        let has_agents = self.client.has_peers() || !self.transports.is_empty();
        if *reach == AgentReach::Delegate && has_agents && !self.client.knows(peer) {
            let message = format!("this host has no agent '{peer}'");
            return without_agent(attempted.handle, failed(tool::AGENT_NOT_FOUND, message)).into();
        }
        let api = match self.client.task_api(peer, settings(&attempted)) {
            Ok(api) => api,
            Err(error) => return without_agent(attempted.handle, not_sent(&error)).into(),
        };
        let _room = match self.room(&attempted).await {
            Ok(room) => room,
            Err(later) => return later,
        };
        match api {
            Some(_) if !is_followed => return tasks_only(),
            // Boxed, here and below: each future is kilobytes large, and a look need not take the memory of a send.
            Some(api) => return Box::pin(tasks_http::attempt(&api, &attempted)).await,
            None if !is_followed => return Box::pin(self.perform(&attempted)).await,
            None => {}
        }
        match attempted.handle.as_ref().map(Handle::deserialize) {
            None => Box::pin(self.send(attempted)).await,
            Some(Ok(handle)) => Box::pin(self.look(&attempted, handle)).await,
            Some(Err(error)) => failed("internal_error", format!("read the handle: {error}")).into(),
        }
    }

    /// Takes room for what an attempt asks its agent. Without any, returns the report of an attempt that did nothing.
    async fn room(&self, attempted: &Attempted<'_>) -> Result<room::Taken, Report> {
        let AgentCall { peer, verb, .. } = attempted.call;
        let kind = match verb {
            AgentVerb::Invoke { .. } | AgentVerb::Send { .. } if attempted.handle.is_none() => Kind::Message,
            AgentVerb::Invoke { .. }
            | AgentVerb::Send { .. }
            | AgentVerb::Discover
            | AgentVerb::GetTask { .. }
            | AgentVerb::CancelTask { .. } => Kind::Look,
        };
        let taken = self.rooms.take(peer, &attempted.run.tenant, kind).await;
        taken.map_err(|NoRoom { after }| Report::Unchanged {
            check_after: Some(after),
        })
    }

    /// Finds the agent of an attempt.
    async fn agent(&self, attempted: &Attempted<'_>) -> Result<Agent, a2a::Error> {
        let AgentCall {
            peer,
            version,
            binding,
            ..
        } = attempted.call;
        let wanted = wanted(version.as_deref(), binding.as_deref());
        self.client.agent(peer, wanted, settings(attempted)).await
    }

    /// Finds the agent that has a task.
    async fn agent_of(
        &self,
        tenant: &TenantId,
        trace: Option<TraceContext>,
        handle: &Handle,
    ) -> Result<Agent, a2a::Error> {
        let wanted = wanted(handle.version.as_deref(), handle.binding.as_deref());
        let call = Call {
            trace,
            tenant: Some(tenant.clone()),
            ..Call::default()
        };
        self.client.agent(&handle.peer, wanted, call).await
    }
}

/// The end of a call whose task this host no longer waits for. The engine has the agent cancel it.
fn given_up(handle: &Handle, code: &str, message: String) -> Outcome {
    Outcome::GivenUp {
        handle: Some(handle.to_value()),
        code: code.to_owned(),
        message,
    }
}

/// The failure of a call whose agent this host does not have any more. A task of the call is given up, so that it is
/// cancelled when the host has the agent again.
pub(crate) fn without_agent(handle: Option<Value>, failure: Outcome) -> Outcome {
    match (handle, failure) {
        (Some(handle), Outcome::Failed { code, message, .. }) => Outcome::GivenUp {
            handle: Some(handle),
            code,
            message,
        },
        (_, failure) => failure,
    }
}

/// What the requests of an attempt have in common.
fn settings(attempted: &Attempted<'_>) -> Call {
    Call {
        trace: attempted.trace.clone(),
        tenant: Some(attempted.run.tenant.clone()),
        ..Call::default()
    }
}

fn wanted(version: Option<&str>, binding: Option<&str>) -> Wanted {
    Wanted {
        version: match version {
            Some("1.0") => Some(Version::V1_0),
            Some("0.3") => Some(Version::V0_3),
            Some(_) | None => None,
        },
        binding: binding.and_then(Binding::from_name),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
