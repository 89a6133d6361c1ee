//! All executors of this crate behind the engine's executor port.

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use wopr_core::{AgentReach, ModelCall, TenantId, provider};
use wopr_engine::{
    Answered, Answering, Attempt, CancelError, Cancellation, Estimate, Executor, Recalled, Recalling, Report,
    Request, ScriptedModel,
};

use crate::{
    a2a::{Client, Peer},
    agent::{Agents, Attempted, Callbacks, ToolAgent, Transports, ask_tool, without_agent},
    egress::Gate,
    http::Http,
    mcp::{self, ToolServer, ToolServers},
    model::{Asked, Mock, Models, Provider},
    secrets::NamedSecrets,
    side_effect::SideEffect,
};

/// Options of the executors other than the gate.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The file that records conformance side effects; `None` only counts them.
    pub ledger: Option<PathBuf>,
    /// The agents that workflows may call.
    pub peers: Vec<Peer>,
    /// The names of those whose questions fail the call instead of being asked in the run.
    pub silent_peers: HashSet<String>,
    /// Where agents push the updates of calls to; `None` if no agent can reach this host.
    pub callbacks: Option<Arc<dyn Callbacks>>,
    /// Time between two looks at a task of theirs; by its age if absent.
    pub poll_interval: Option<Duration>,
    /// The models that workflows may ask.
    pub models: Vec<Provider>,
    /// The servers whose tools workflows may call.
    pub tool_servers: Vec<ToolServer>,
    /// The agents that are tools of those servers.
    pub tool_agents: Vec<ToolAgent>,
    /// The agents that the embedder reaches in its own way, by name. One of them hides a peer of the same name.
    pub transports: Transports,
    /// The secrets that requests of workflows may carry.
    pub secrets: NamedSecrets,
    /// The scripted model of conformance mode.
    pub mock: Option<Mock>,
    /// What called agents learn of this host; nothing where absent.
    pub origin: Option<CallingHost>,
}

/// By what called agents can find the run that called them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallingHost {
    /// The stable name of the installation.
    pub id: String,
    /// Where it says what it can do, if others can reach it.
    pub well_known_url: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Executors {
    http: Http,
    agents: Agents,
    models: Models,
    tools: ToolServers,
    tool_agents: Arc<[ToolAgent]>,
    side_effect: SideEffect,
}

impl Executors {
    #[must_use]
    pub fn new(gate: Gate, options: Options) -> Self {
        let client = Client::new(gate.clone(), options.peers);
        Self {
            agents: Agents::new(
                client,
                options.silent_peers,
                options.callbacks,
                options.poll_interval,
                options.origin,
                options.transports,
            ),
            models: Models::new(&gate, options.models, options.secrets.clone(), options.mock),
            tools: ToolServers::new(&gate, options.tool_servers),
            tool_agents: options.tool_agents.into(),
            http: Http::new(gate, options.secrets),
            side_effect: SideEffect::new(options.ledger),
        }
    }

    /// The client of the agents that workflows may call.
    #[must_use]
    pub const fn agents(&self) -> &Client {
        self.agents.client()
    }

    #[must_use]
    pub const fn models(&self) -> &Models {
        &self.models
    }

    /// Gives access to the count of executed conformance side effects.
    #[must_use]
    pub fn side_effect(&self) -> &SideEffect {
        &self.side_effect
    }
}

#[async_trait]
impl Executor for Executors {
    async fn run(&self, attempt: Attempt) -> Report {
        let Attempt {
            run,
            step,
            attempt,
            number,
            is_repeat,
            is_interrupted,
            idempotency_key: key,
            trace,
            request,
            handle,
            cursor,
            wake,
            progress,
            blobs,
            keep,
        } = attempt;
        match request {
            Request::Http(call) => {
                // Boxed, so that the other calls do not take its memory.
                Box::pin(self.http.call(&run.tenant, &key, trace, call, &keep))
                    .await
                    .into()
            }
            Request::Agent(call) if call.reach == AgentReach::Tool => {
                let asked = mcp::Asked {
                    tenant: &run.tenant,
                    key: &key,
                    trace: trace.as_ref(),
                    is_interrupted,
                };
                Box::pin(ask_tool(&self.tool_agents, &self.tools, &call, asked))
                    .await
                    .into()
            }
            Request::Agent(mut call) => {
                if let Err(unknown) = self.agents.name_peer(&mut call) {
                    return without_agent(handle, unknown).into();
                }
                self.agents
                    .attempt(Attempted {
                        call: &call,
                        run: &run,
                        step: &step,
                        attempt,
                        number,
                        is_repeat,
                        key: &key,
                        trace,
                        handle,
                        cursor,
                        wake,
                        blobs,
                    })
                    .await
            }
            Request::Model(call) => {
                let asked = Asked {
                    run: &run,
                    step: &step,
                    key: &key,
                    trace,
                    progress: &progress,
                    keep: &keep,
                };
                self.models.ask(&call, asked).await
            }
            Request::Tool(call) => {
                let asked = mcp::Asked {
                    tenant: &run.tenant,
                    key: &key,
                    trace: trace.as_ref(),
                    is_interrupted,
                };
                Box::pin(self.tools.call(&call, asked)).await.into()
            }
            Request::ToolList(query) => Box::pin(self.tools.describe(&query, &run.tenant)).await.into(),
            Request::SideEffect { payload } => self.side_effect.perform(&run, &key, &payload).await.into(),
            // Only a worker knows how it is done, and only the engine has the memory.
            Request::Activity(_) | Request::Memory(_) => Report::Unchanged { check_after: None },
        }
    }

    async fn answer(&self, answer: Answering) -> Result<Answered, CancelError> {
        match answer.provider.as_str() {
            provider::AGENT => self.agents.answer(answer).await,
            // Nobody else asks.
            _ => Ok(Answered::Taken),
        }
    }

    fn scripted_model(&self) -> Option<&dyn ScriptedModel> {
        self.models.mock().map(|mock| mock as &dyn ScriptedModel)
    }

    fn estimate(&self, tenant: &TenantId, call: &ModelCall) -> Estimate {
        self.models.estimate(tenant, call)
    }

    async fn recall(&self, recalling: Recalling) -> Result<Recalled, CancelError> {
        let Recalling {
            run,
            step,
            attempt,
            number,
            idempotency_key: key,
            trace,
            request,
            blobs,
        } = recalling;
        match request {
            Request::Agent(mut call) => {
                if self.agents.name_peer(&mut call).is_err() {
                    return Err(CancelError::new("no peer has the address of the call".to_owned()));
                }
                self.agents
                    .recall(&call, (&run, &step, (attempt, number)), &key, trace, blobs)
                    .await
            }
            // Nobody else goes on with a call.
            Request::Http(_)
            | Request::Activity(_)
            | Request::Memory(_)
            | Request::Model(_)
            | Request::Tool(_)
            | Request::ToolList(_)
            | Request::SideEffect { .. } => Ok(Recalled::Over),
        }
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        match call.provider.as_str() {
            provider::AGENT => self.agents.cancel(call).await,
            // A worker learns it with its next heartbeat.
            _ => Ok(()),
        }
    }
}
