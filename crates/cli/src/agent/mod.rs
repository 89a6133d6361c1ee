//! A client for any A2A agent; it chooses binding and version from the agent's card.
//!
//! ```text
//!   card -- which interface --.
//!   Agent -- Request, Reply --+-- json_rpc, http_json, grpc -- line -- the network
//! ```
//!
//! All bindings map to the 1.0 model, so a task looks the same through each of them. Cards and responses are
//! untrusted: their sizes are limited, and the key is only sent to the host that serves the card. Retries and
//! receiving push notifications are not covered.

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

/// An agent, and the credential to call it with.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    line: Line,
    binding: Binding,
    /// The tenant that the interface requires in every request.
    tenant: Option<String>,
    /// The parsed card.
    pub(crate) card: AgentCard,
    /// The card as received.
    pub(crate) document: Value,
    /// Index of the chosen interface in the card.
    pub(crate) chosen: usize,
}

#[derive(Debug)]
pub(crate) enum Sought {
    Agent(Box<Agent>),
    /// Only a card: none of its interfaces can be used.
    CardOnly {
        /// The parsed card, if it is valid.
        card: Option<Box<AgentCard>>,
        /// The card as received.
        document: Value,
        failure: Failure,
    },
}

impl Agent {
    /// Fetches the card and chooses an interface that meets the constraints.
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

    /// Like [`Agent::find`], but returns the card even if no interface can be used.
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

    pub(crate) fn endpoint(&self) -> &str {
        self.line.endpoint()
    }

    /// The protocol version of the chosen interface.
    pub(crate) fn version(&self) -> Version {
        self.line.version()
    }

    /// Sends a message and waits for the response.
    pub(crate) async fn send(&self, request: SendMessageRequest) -> Result<SendMessageResponse> {
        match self.ask(Request::SendMessage(request)).await? {
            Reply::Sent(answer) => Ok(answer),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a message and streams the updates.
    pub(crate) async fn stream(&self, request: SendMessageRequest) -> Result<Items> {
        self.follow(Request::SendStreamingMessage(request), None).await
    }

    /// Resubscribes to a task, starting after the event `last`.
    pub(crate) async fn subscribe(&self, task: &str, last: Option<&str>) -> Result<Items> {
        let request = SubscribeToTaskRequest {
            tenant: None,
            id: task.to_owned(),
        };
        self.follow(Request::SubscribeToTask(request), last).await
    }

    pub(crate) async fn get(&self, task: &str, history: Option<u32>) -> Result<Task> {
        let request = GetTaskRequest {
            tenant: None,
            id: task.to_owned(),
            history_length: history,
        };
        self.task(Request::GetTask(request)).await
    }

    pub(crate) async fn list(&self, request: ListTasksRequest) -> Result<ListTasksResponse> {
        match self.ask(Request::ListTasks(request)).await? {
            Reply::Tasks(page) => Ok(page),
            other => Err(self.unexpected(&other)),
        }
    }

    pub(crate) async fn cancel(&self, task: &str) -> Result<Task> {
        let request = CancelTaskRequest {
            tenant: None,
            id: task.to_owned(),
            metadata: json::Object::new(),
        };
        self.task(Request::CancelTask(request)).await
    }

    pub(crate) async fn set_push_config(
        &self,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig> {
        self.push_config(Request::CreatePushConfig(config)).await
    }

    pub(crate) async fn get_push_config(&self, task: &str, id: &str) -> Result<TaskPushNotificationConfig> {
        let (task_id, id) = (task.to_owned(), Some(id.to_owned()));
        self.push_config(Request::GetPushConfig { task_id, id }).await
    }

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

    /// Reads the extended card, which requires authentication.
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

    /// The reply does not match the request. Cannot happen, because replies are parsed by the type of the
    /// request.
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

/// Builds a user message.
pub(crate) fn message(parts: Vec<Part>) -> Result<SendMessageRequest> {
    Ok(SendMessageRequest {
        tenant: None,
        message: Message::new(new_id()?, Role::User, parts),
        configuration: SendMessageConfiguration::default(),
        metadata: json::Object::new(),
    })
}

/// Generates a unique id.
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
