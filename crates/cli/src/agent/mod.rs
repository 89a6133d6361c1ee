//! Calls any A2A agent for the command line, with errors and exit codes for a person.
//!
//! The client itself is [`wopr_connect::a2a`]; its gate allows every address here, because the user names the
//! agent. Time is not limited where an agent may take any time: to answer a message, and in a stream.

mod refusal;

use std::{pin::Pin, time::Duration};

use anyhow::Result;
use clap::ValueEnum;
use futures_util::{Stream, StreamExt as _};
use rand::{TryRngCore as _, rngs::OsRng};
use serde_json::Value;
use url::Url;
use wopr_connect::a2a::{self, Call, Client, Credential, Error, Peer};
pub(crate) use wopr_connect::a2a::{Item, Wanted};
use wopr_wire::{
    a2a::{
        method::Version,
        model::{
            AgentCard, ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, Message,
            Part, Role, Secret, SendMessageConfiguration, SendMessageRequest, SendMessageResponse, Task,
            TaskPushNotificationConfig,
        },
    },
    json,
};

use crate::{
    client::{self, Trust, parse_url},
    exit::{Exit, Failure},
};

/// The name of the only peer.
const PEER: &str = "agent";

pub(crate) type Items = Pin<Box<dyn Stream<Item = Result<Item>> + Send>>;

/// A supported A2A binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binding {
    /// JSON-RPC over HTTP.
    #[value(name = "jsonrpc")]
    JsonRpc,
    /// HTTP with JSON bodies.
    #[value(name = "http-json")]
    HttpJson,
    /// gRPC.
    #[value(name = "grpc")]
    Grpc,
}

impl From<Binding> for a2a::Binding {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::JsonRpc => Self::JsonRpc,
            Binding::HttpJson => Self::HttpJson,
            Binding::Grpc => Self::Grpc,
        }
    }
}

/// An agent, and the credential to call it with.
#[derive(Debug, Clone)]
pub(crate) struct Agent(a2a::Agent);

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

/// Makes a client of one agent.
fn client_of(address: &str, key: Option<String>, trust: &Trust) -> Result<(Url, Client)> {
    let url = parse_url(address)?;
    let mut peer = Peer::new(PEER, url.clone());
    if let Some(key) = key.filter(|key| !key.is_empty()) {
        let key = Secret::new(key);
        let key = key.map_err(|_| Failure::new(Exit::Usage, "the key has characters that no key has"))?;
        peer.credential = Credential::Bearer(key);
    }
    peer.tls = trust.of_agent()?;
    Ok((url, Client::new(client::gate(&trust.anonymous())?, [peer])))
}

/// Fetches the card of an agent and returns it unparsed, with the URL of the agent.
pub(crate) async fn card(address: &str, key: Option<&str>, trust: &Trust) -> Result<(Url, Value)> {
    let (url, client) = client_of(address, key.map(str::to_owned), trust)?;
    let found = client.card_document(PEER).await;
    let (_, document) = found.map_err(|error| refusal::failure(&error, address, key.is_some()))?;
    Ok((url, document))
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
        let has_key = key.is_some();
        let (_, client) = client_of(address, key, trust)?;
        let call = Call {
            send_timeout: Duration::MAX,
            first_timeout: Duration::MAX,
            idle_timeout: Duration::MAX,
            stream_timeout: Duration::MAX,
            ..Call::default()
        };
        let error = match client.agent(PEER, wanted, call).await {
            Ok(agent) => return Ok(Sought::Agent(Box::new(Self(agent)))),
            Err(error) => error,
        };
        match &error {
            Error::NoInterface { offered } | Error::VersionNotSupported { offered } => {
                let failure = refusal::nothing_spoken(offered, address, wanted);
                let card = client.card(PEER).await;
                let card = card.map_err(|error| refusal::failure(&error, address, has_key))?;
                Ok(Sought::CardOnly {
                    card: Some(Box::new(card.model.clone())),
                    document: card.document.clone(),
                    failure,
                })
            }
            Error::CardInvalid(_) => {
                let failure = refusal::failure(&error, address, has_key);
                match client.card_document(PEER).await {
                    Ok((_, document)) => Ok(Sought::CardOnly {
                        card: None,
                        document,
                        failure,
                    }),
                    Err(_) => Err(failure.into()),
                }
            }
            error => Err(refusal::failure(error, address, has_key).into()),
        }
    }

    /// The parsed card.
    pub(crate) fn card(&self) -> &AgentCard {
        &self.0.card().model
    }

    /// The card as received.
    pub(crate) fn document(&self) -> &Value {
        &self.0.card().document
    }

    /// Index of the chosen interface in the card.
    pub(crate) fn chosen(&self) -> usize {
        self.0.interface()
    }

    pub(crate) fn endpoint(&self) -> &str {
        self.0.endpoint().as_str()
    }

    /// The protocol version of the chosen interface.
    pub(crate) fn version(&self) -> Version {
        self.0.version()
    }

    fn failure(&self, error: &Error) -> Failure {
        refusal::failure(error, self.endpoint(), self.0.receives_credential())
    }

    /// Converts the errors of a stream.
    fn items(&self, items: a2a::Items) -> Items {
        let (endpoint, has_key) = (self.endpoint().to_owned(), self.0.receives_credential());
        Box::pin(
            items
                .map(move |item| item.map_err(|error| refusal::of_stream(&error, &endpoint, has_key).into())),
        )
    }

    /// Sends a message and waits for the response.
    pub(crate) async fn send(&self, request: SendMessageRequest) -> Result<SendMessageResponse> {
        let sent = self.0.send_message(request).await;
        Ok(sent.map_err(|error| self.failure(&error))?)
    }

    /// Sends a message and streams the updates.
    pub(crate) async fn stream(&self, request: SendMessageRequest) -> Result<Items> {
        let items = self.0.send_streaming_message(request).await;
        Ok(self.items(items.map_err(|error| self.failure(&error))?))
    }

    /// Resubscribes to a task, starting after the event `last`.
    pub(crate) async fn subscribe(&self, task: &str, last: Option<&str>) -> Result<Items> {
        let items = self.0.subscribe(task, last).await;
        Ok(self.items(items.map_err(|error| self.failure(&error))?))
    }

    pub(crate) async fn get(&self, task: &str, history: Option<u32>) -> Result<Task> {
        let task = self.0.get_task(task, history).await;
        Ok(task.map_err(|error| self.failure(&error))?)
    }

    pub(crate) async fn list(&self, request: ListTasksRequest) -> Result<ListTasksResponse> {
        let page = self.0.list_tasks(request).await;
        Ok(page.map_err(|error| self.failure(&error))?)
    }

    pub(crate) async fn cancel(&self, task: &str) -> Result<Task> {
        let task = self.0.cancel_task(task).await;
        Ok(task.map_err(|error| self.failure(&error))?)
    }

    pub(crate) async fn set_push_config(
        &self,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig> {
        let config = self.0.set_push_config(config).await;
        Ok(config.map_err(|error| self.failure(&error))?)
    }

    pub(crate) async fn get_push_config(&self, task: &str, id: &str) -> Result<TaskPushNotificationConfig> {
        let config = self.0.get_push_config(task, id).await;
        Ok(config.map_err(|error| self.failure(&error))?)
    }

    pub(crate) async fn push_configs(
        &self,
        task: &str,
        page_token: Option<String>,
    ) -> Result<ListTaskPushNotificationConfigsResponse> {
        let page = self.0.push_configs(task, page_token).await;
        Ok(page.map_err(|error| self.failure(&error))?)
    }

    pub(crate) async fn delete_push_config(&self, task: &str, id: &str) -> Result<()> {
        let deleted = self.0.delete_push_config(task, id).await;
        Ok(deleted.map_err(|error| self.failure(&error))?)
    }

    /// Reads the extended card, which requires authentication.
    pub(crate) async fn extended_card(&self) -> Result<AgentCard> {
        let card = self.0.extended_card().await;
        Ok(card.map_err(|error| self.failure(&error))?)
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
