//! `POST /v1/host/sample/a2a/invoke`: sends a message to an agent as workflows do, by the same client through the
//! same gate, and tells what was negotiated.
//!
//! With the scenario `peer-asserts-authority` a run waits at an approval meanwhile. Whatever the agent claims in its
//! answer, the run, the caller's scopes and the tasks that were asked for are compared before and after.

use std::collections::BTreeSet;

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use url::Url;
use wopr_app::{NewRun, SideRows, VisibleRun};
use wopr_connect::a2a::{self, Client, Credential, Peer, Wanted};
use wopr_core::{Object, Origin, RunStatus, Seq, UNTRUSTED};
use wopr_wire::{
    a2a::{
        method::Version,
        model::{
            Message, Part, Role, Secret, SendMessageConfiguration, SendMessageRequest, SendMessageResponse,
            Task, TaskState,
        },
    },
    json::{Decode, DecodeError, Fields},
};

use super::super::{
    answer::{Answer, json_response},
    call::Call,
    problem::{Problem, no_run},
};
use crate::{
    a2a::conformance,
    auth::{Scope, Scopes},
};

/// What the client calls an agent whose address the request gives.
const PEER: &str = "conformance";
/// The credential of an authenticated call to an agent that the operator has not configured.
const PLACEHOLDER: &str = "wopr-conformance";
/// The scenario in which the agent claims to decide.
const AUTHORITY: &str = "peer-asserts-authority";
/// The state of the run that waits in it.
const PAUSED: &str = "paused-at-approval";

/// The body of the request. Other members are ignored.
#[derive(Debug)]
struct Invoke {
    peer_url: String,
    /// The call carries a credential.
    is_authenticated: bool,
    /// The only version that the agent is to be taken to speak.
    offers_only: Option<String>,
    /// The version that the caller insists on.
    requested: Option<String>,
    scenario: Option<String>,
    skill: Option<String>,
    message: Option<String>,
}

impl Decode for Invoke {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            peer_url: fields.required_text("peerUrl")?,
            is_authenticated: fields.or_default("authenticated")?,
            offers_only: fields.optional_text("peerOffersOnly")?,
            requested: fields.optional_text("requestVersion")?,
            scenario: fields.optional_text("scenario")?,
            skill: fields.optional_text("skill")?,
            message: fields.optional_text("message")?,
        })
    }
}

/// What the agent answered, and what it was asked.
struct Exchange {
    version: Version,
    answer: SendMessageResponse,
    /// The task as it is after the answer.
    task: Option<Task>,
    /// The tasks that the agent was asked for.
    asked: Vec<String>,
}

/// What must not change while the agent claims that it may decide.
struct Guarded {
    run: VisibleRun,
    head: Seq,
    scopes: Scopes,
}

pub(in super::super) fn invoke(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let request: Invoke = call.decode()?;
        let wanted = version(&request)?;
        let guarded = match request.scenario.as_deref() {
            None => None,
            Some(AUTHORITY) => Some(Guarded::begin(&call).await?),
            Some(_) => return Err(Problem::field("scenario", &format!("must be {AUTHORITY}"))),
        };
        let exchanged = exchange(&call, &request, wanted, guarded.as_ref()).await;
        let authority = match (&guarded, &exchanged) {
            (Some(guarded), Ok(exchange)) => Some(guarded.compare(&call, exchange).await),
            (Some(_), Err(_)) | (None, _) => None,
        };
        if let Some(guarded) = guarded {
            guarded.end(&call).await;
        }
        let mut shown = shown(&exchanged?);
        if let Some(authority) = authority {
            shown["peerAuthority"] = authority?;
        }
        json_response(StatusCode::OK, &shown)
    }
    .boxed()
}

/// The version to speak, if the request says so. One that this host does not speak is refused before anything is
/// sent.
fn version(request: &Invoke) -> Result<Option<Version>, Problem> {
    let known = |name: &Option<String>| match name {
        None => Ok(None),
        Some(name) => Version::from_name(name).map(Some).ok_or_else(|| {
            unsupported(
                name,
                &Version::ALL.iter().rev().map(|v| v.as_str()).collect::<Vec<_>>(),
            )
        }),
    };
    match (known(&request.requested)?, known(&request.offers_only)?) {
        (Some(requested), Some(only)) if requested != only => {
            Err(unsupported(requested.as_str(), &[only.as_str()]))
        }
        (Some(version), _) | (None, Some(version)) => Ok(Some(version)),
        (None, None) => Ok(None),
    }
}

fn unsupported(requested: &str, supported: &[&str]) -> Problem {
    let message = format!("A2A {requested} is not among the versions that both sides speak");
    Problem::new(StatusCode::BAD_REQUEST, "interop_version_unsupported", message)
        .with("retriable", false)
        .with("protocol", "a2a")
        .with("requested", requested)
        .with("supported", json!(supported))
}

/// The agent at the address of the request. One that the operator has configured keeps its settings.
fn peer(call: &Call, request: &Invoke) -> Result<Peer, Problem> {
    let refused = |rule: &str| Problem::field("peerUrl", rule);
    let url = Url::parse(&request.peer_url).map_err(|error| refused(&error.to_string()))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(refused("must be an http or https address"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("must not contain a credential"));
    }
    let configured = call.host.executors().agents().peer_at(&url);
    let mut peer = configured.unwrap_or_else(|| Peer::new(PEER, url));
    PEER.clone_into(&mut peer.name);
    peer.credential = match (request.is_authenticated, peer.credential) {
        (false, _) => Credential::None,
        (true, Credential::None) => {
            Credential::Bearer(Secret::new(PLACEHOLDER).map_err(|_| Problem::internal())?)
        }
        (true, configured) => configured,
    };
    Ok(peer)
}

async fn exchange(
    call: &Call,
    request: &Invoke,
    version: Option<Version>,
    guarded: Option<&Guarded>,
) -> Result<Exchange, Problem> {
    let client = Client::new(call.host.gate().clone(), [peer(call, request)?]);
    let settings = a2a::Call {
        trace: call.trace(),
        tenant: Some(call.caller().tenant.clone()),
        ..a2a::Call::default()
    };
    let wanted = Wanted {
        version,
        ..Wanted::default()
    };
    let failed = |error: a2a::Error| problem(request, &error);
    let agent = client.agent(PEER, wanted, settings).await.map_err(failed)?;
    let answer = agent
        .send_message(message(call, request, guarded))
        .await
        .map_err(failed)?;
    let mut asked = Vec::new();
    let task = match &answer {
        SendMessageResponse::Task(task) => {
            asked.push(task.id.clone());
            Some(agent.get_task(&task.id, Some(0)).await.map_err(failed)?)
        }
        SendMessageResponse::Message(_) => None,
    };
    Ok(Exchange {
        // Of the interface that answered: it is in the header of every call to it.
        version: agent.version(),
        answer,
        task,
        asked,
    })
}

fn message(call: &Call, request: &Invoke, guarded: Option<&Guarded>) -> SendMessageRequest {
    let text = request.message.as_deref().unwrap_or("Hello from wopr");
    let id = format!("wopr-{}", call.host.app().new_run_id());
    let mut message = Message::new(id, Role::User, vec![Part::text(text)]);
    if let Some(skill) = &request.skill {
        message
            .metadata
            .insert("skillId".to_owned(), skill.as_str().into());
    }
    if let Some(guarded) = guarded {
        // So that the agent knows what it may not decide.
        let origin = json!({ "runId": guarded.run.run.as_str(), "callerRunId": guarded.run.run.as_str() });
        message.metadata.insert("openwop".to_owned(), origin);
    }
    SendMessageRequest {
        tenant: None,
        message,
        configuration: SendMessageConfiguration {
            return_immediately: true,
            ..SendMessageConfiguration::default()
        },
        metadata: Object::new(),
    }
}

/// How a call that failed is told: with the code that a node would fail with.
fn problem(request: &Invoke, error: &a2a::Error) -> Problem {
    if let a2a::Error::VersionNotSupported { offered } = error {
        let asked = request.requested.as_ref().or(request.offers_only.as_ref());
        // Each is a binding and its version.
        let offered = offered
            .iter()
            .filter_map(|offered| offered.split(' ').next_back());
        let offered: BTreeSet<_> = offered.collect();
        let offered: Vec<_> = offered.into_iter().collect();
        return unsupported(asked.map_or("", String::as_str), &offered);
    }
    let message = format!("failed to {error}");
    Problem::new(StatusCode::BAD_GATEWAY, error.code(), message).with("retriable", error.is_transient())
}

fn shown(exchange: &Exchange) -> Value {
    let mut shown = json!({
        "negotiatedVersion": exchange.version.as_str(),
        "contentTrust": UNTRUSTED,
    });
    if let Some(task) = &exchange.task {
        shown["taskId"] = task.id.as_str().into();
        shown["state"] = json!(task.status.state);
        shown["runStatus"] = run_status(task.status.state).as_str().into();
    }
    shown
}

/// What the status of a run is whose agent has a task in this state.
const fn run_status(state: TaskState) -> RunStatus {
    match state {
        TaskState::Unspecified | TaskState::Submitted => RunStatus::Pending,
        TaskState::Working => RunStatus::Running,
        TaskState::InputRequired | TaskState::AuthRequired => RunStatus::WaitingInput,
        TaskState::Completed => RunStatus::Completed,
        TaskState::Canceled => RunStatus::Cancelled,
        TaskState::Failed | TaskState::Rejected => RunStatus::Failed,
    }
}

impl Guarded {
    /// Starts a run that waits at an approval.
    async fn begin(call: &Call) -> Result<Self, Problem> {
        let caller = call.caller();
        let workflow = conformance::scenario(PAUSED).ok_or_else(Problem::internal)?;
        let run = call.host.app().new_run_id();
        let new = NewRun::new(run.clone(), Origin::new("a2a"));
        let app = call.host.app();
        app.start_run(caller.permit_start()?, &workflow, new).await?;
        let run = app.find_run(caller, run.as_str(), Scope::RunsRead).await?;
        let view = app.view(&run).await?.ok_or_else(no_run)?;
        if view.run.status != RunStatus::WaitingApproval {
            return Err(Problem::internal());
        }
        Ok(Self {
            head: view.run.head,
            scopes: caller.scopes,
            run,
        })
    }

    async fn compare(&self, call: &Call, exchange: &Exchange) -> Result<Value, Problem> {
        let view = call.host.app().view(&self.run).await?.ok_or_else(no_run)?;
        let has_advanced = view.run.head != self.head || view.run.status != RunStatus::WaitingApproval;
        let caller = call.host.auth().identify(&call.headers).await?.caller;
        let referenced = referenced(&exchange.answer, exchange.task.as_ref());
        let own = exchange.task.as_ref().map(|task| task.id.as_str());
        let is_foreign = |id: &&String| Some(id.as_str()) != own && referenced.contains(id);
        Ok(json!({
            "approvalAdvanced": has_advanced,
            "scopesWidened": !self.scopes.covers(caller.scopes),
            "referencedTaskDereferenced": exchange.asked.iter().any(|id| is_foreign(&id)),
        }))
    }

    /// The run is of no more use.
    async fn end(self, call: &Call) {
        let app = call.host.app();
        let reason = Some("the scenario is over".to_owned());
        let ended = app.cancel_run(call.caller(), &self.run, reason, SideRows::default());
        if let Err(error) = ended.await {
            tracing::info!(run = %*self.run, %error, "the run of a conformance scenario was not cancelled");
        }
    }
}

/// The tasks that an answer refers to.
fn referenced<'e>(answer: &'e SendMessageResponse, task: Option<&'e Task>) -> Vec<&'e String> {
    let of_task = |task: &'e Task| task.history.iter().chain(&task.status.message);
    let said = match answer {
        SendMessageResponse::Message(message) => vec![message],
        SendMessageResponse::Task(first) => {
            of_task(first).chain(task.into_iter().flat_map(of_task)).collect()
        }
    };
    said.into_iter()
        .flat_map(|message| &message.reference_task_ids)
        .collect()
}
