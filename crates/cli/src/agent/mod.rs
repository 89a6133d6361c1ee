//! A client of any A2A agent: binding and version are picked from the agent's card.
//!
//! ```text
//!   card -- which interface --.
//!   Agent -- Request, Reply --+-- json_rpc, http_json, grpc -- line -- the network
//! ```
//!
//! Everything is expressed in the 1.0 model and spelled by the tables of the protocol, so a task is the same through
//! every binding. Cards and answers are anybody's: sizes are bounded, and the key stays where the card itself lies.
//! What is not here: retries, and push notifications received.

mod card;
mod grpc;
mod http_json;
mod json_rpc;
mod line;
mod refusal;

use anyhow::Result;
use rand::{TryRngCore as _, rngs::OsRng};
use serde_json::Value;
use wopr_wire::{
    a2a::{
        exchange::{Reply, Request},
        method::Version,
        model::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
            GetExtendedAgentCardRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, Message, Part,
            Role, SendMessageConfiguration, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest,
            Task, TaskPushNotificationConfig,
        },
    },
    json,
};

pub(crate) use card::{Binding, Wanted, fetch as card};
pub(crate) use line::Item;
use line::{Items, Line};

use crate::{
    client::Trust,
    exit::{Exit, Failure},
};

/// An agent, and who calls it.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    line: Line,
    binding: Binding,
    /// What the interface wants to be told with every request.
    tenant: Option<String>,
    /// The card, in the model.
    pub(crate) card: AgentCard,
    /// The card as it came.
    pub(crate) document: Value,
    /// Which of the card's interfaces is spoken to.
    pub(crate) chosen: usize,
}

/// What was found at an address.
#[derive(Debug)]
pub(crate) enum Sought {
    /// An agent that can be spoken to.
    Agent(Box<Agent>),
    /// A card, and why the agent cannot be spoken to by it.
    CardOnly {
        /// The card in the model, if it can be read.
        card: Option<Box<AgentCard>>,
        /// The card as it came.
        document: Value,
        failure: Failure,
    },
}

impl Agent {
    /// Fetches the card and picks how to talk, among what is wanted.
    pub(crate) async fn find(
        address: &str,
        key: Option<String>,
        wanted: Wanted,
        trust: &Trust,
    ) -> Result<Self> {
        match Self::try_find(address, key, wanted, trust).await? {
            Sought::Agent(agent) => Ok(*agent),
            Sought::CardOnly { failure, .. } => Err(failure.into()),
        }
    }

    /// The same, with the card also where there is no way to talk to the agent.
    pub(crate) async fn try_find(
        address: &str,
        key: Option<String>,
        wanted: Wanted,
        trust: &Trust,
    ) -> Result<Sought> {
        let (url, document) = card::fetch(address, key.as_deref(), trust).await?;
        let card = match card::read(document.clone()) {
            Ok(card) => card,
            Err(error) => {
                let failure = Failure::new(
                    Exit::Failed,
                    format!("cannot read the card of {address}: {error}"),
                );
                let card = None;
                return Ok(Sought::CardOnly {
                    card,
                    document,
                    failure,
                });
            }
        };
        let Some(found) = card::choose(&card, &url, wanted) else {
            let failure = card::nothing_spoken(&card, address, wanted);
            return Ok(Sought::CardOnly {
                card: Some(Box::new(card)),
                document,
                failure,
            });
        };
        Ok(Sought::Agent(Box::new(Self {
            line: Line::new(&url, found.address, key, found.binding, found.version, trust)?,
            binding: found.binding,
            tenant: card
                .supported_interfaces
                .get(found.index)
                .filter(|_| found.version == Version::V1_0)
                .and_then(|interface| interface.tenant.clone()),
            card,
            document,
            chosen: found.index,
        })))
    }

    /// Where requests go.
    pub(crate) fn endpoint(&self) -> &str {
        self.line.endpoint()
    }

    /// How they are worded.
    pub(crate) fn version(&self) -> Version {
        self.line.version()
    }

    /// Sends a message and waits for the answer.
    pub(crate) async fn send(&self, request: SendMessageRequest) -> Result<SendMessageResponse> {
        match self.ask(Request::SendMessage(request)).await? {
            Reply::Sent(answer) => Ok(answer),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a message and follows what becomes of it.
    pub(crate) async fn stream(&self, request: SendMessageRequest) -> Result<Items> {
        self.follow(Request::SendStreamingMessage(request), None).await
    }

    /// Follows a task again, from after the event `last` on.
    pub(crate) async fn subscribe(&self, task: &str, last: Option<&str>) -> Result<Items> {
        let request = SubscribeToTaskRequest {
            tenant: None,
            id: task.to_owned(),
        };
        self.follow(Request::SubscribeToTask(request), last).await
    }

    /// Reads a task.
    pub(crate) async fn get(&self, task: &str, history: Option<u32>) -> Result<Task> {
        let request = GetTaskRequest {
            tenant: None,
            id: task.to_owned(),
            history_length: history,
        };
        self.task(Request::GetTask(request)).await
    }

    /// Reads a page of tasks.
    pub(crate) async fn list(&self, request: ListTasksRequest) -> Result<ListTasksResponse> {
        match self.ask(Request::ListTasks(request)).await? {
            Reply::Tasks(page) => Ok(page),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Cancels a task.
    pub(crate) async fn cancel(&self, task: &str) -> Result<Task> {
        let request = CancelTaskRequest {
            tenant: None,
            id: task.to_owned(),
            metadata: json::Object::new(),
        };
        self.task(Request::CancelTask(request)).await
    }

    /// Adds a push configuration.
    pub(crate) async fn set_push_config(
        &self,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig> {
        self.push_config(Request::CreatePushConfig(config)).await
    }

    /// Reads a push configuration.
    pub(crate) async fn get_push_config(&self, task: &str, id: &str) -> Result<TaskPushNotificationConfig> {
        let (task_id, id) = (task.to_owned(), Some(id.to_owned()));
        self.push_config(Request::GetPushConfig { task_id, id }).await
    }

    /// Reads a page of push configurations.
    pub(crate) async fn push_configs(
        &self,
        task: &str,
        page_token: Option<String>,
    ) -> Result<ListTaskPushNotificationConfigsResponse> {
        let request = ListTaskPushNotificationConfigsRequest {
            tenant: None,
            task_id: task.to_owned(),
            page_size: None,
            page_token,
        };
        match self.ask(Request::ListPushConfigs(request)).await? {
            Reply::PushConfigs(page) => Ok(page),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Removes a push configuration.
    pub(crate) async fn delete_push_config(&self, task: &str, id: &str) -> Result<()> {
        let request = DeleteTaskPushNotificationConfigRequest {
            tenant: None,
            task_id: task.to_owned(),
            id: id.to_owned(),
        };
        match self.ask(Request::DeletePushConfig(request)).await? {
            Reply::Deleted => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Reads the card for those it knows.
    pub(crate) async fn extended_card(&self) -> Result<AgentCard> {
        let request = Request::GetExtendedAgentCard(GetExtendedAgentCardRequest::default());
        match self.ask(request).await? {
            Reply::Card(card) => Ok(card),
            other => Err(self.unexpected(&other)),
        }
    }

    async fn task(&self, request: Request) -> Result<Task> {
        match self.ask(request).await? {
            Reply::Task(task) => Ok(task),
            other => Err(self.unexpected(&other)),
        }
    }

    async fn push_config(&self, request: Request) -> Result<TaskPushNotificationConfig> {
        match self.ask(request).await? {
            Reply::PushConfig(config) => Ok(config),
            other => Err(self.unexpected(&other)),
        }
    }

    async fn ask(&self, request: Request) -> Result<Reply> {
        let request = request.with_tenant(self.tenant.clone());
        match self.binding {
            Binding::JsonRpc => json_rpc::call(&self.line, request).await,
            Binding::HttpJson => http_json::call(&self.line, self.tenant.as_deref(), request).await,
            Binding::Grpc => grpc::call(&self.line, request).await,
        }
    }

    async fn follow(&self, request: Request, last: Option<&str>) -> Result<Items> {
        let request = request.with_tenant(self.tenant.clone());
        match self.binding {
            Binding::JsonRpc => json_rpc::open(&self.line, request, last).await,
            Binding::HttpJson => http_json::open(&self.line, self.tenant.as_deref(), request, last).await,
            Binding::Grpc => grpc::open(&self.line, request, last).await,
        }
    }

    /// A reply to something else. Replies are read by what was asked, so this is said for completeness.
    fn unexpected(&self, reply: &Reply) -> anyhow::Error {
        let what = match reply {
            Reply::Sent(_) => "the answer to a message",
            Reply::Task(_) => "a task",
            Reply::Tasks(_) => "tasks",
            Reply::PushConfig(_) => "a push configuration",
            Reply::PushConfigs(_) => "push configurations",
            Reply::Deleted => "nothing",
            Reply::Card(_) => "a card",
        };
        Failure::new(Exit::Failed, format!("{} answered with {what}", self.endpoint())).into()
    }
}

/// A message of a user, ready to be sent.
pub(crate) fn message(parts: Vec<Part>) -> Result<SendMessageRequest> {
    Ok(SendMessageRequest {
        tenant: None,
        message: Message::new(new_id()?, Role::User, parts),
        configuration: SendMessageConfiguration::default(),
        metadata: json::Object::new(),
    })
}

/// An id that nobody else has.
fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot draw an id from the system: {error}"),
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
