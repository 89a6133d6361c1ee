//! The client: finds an agent by its peer's name, and the agent: calls it over the best interface that answers.
//!
//! ```text
//!   Client -- agent(peer) --> Agent -- interfaces in order --> json_rpc, http_json, grpc -- Line -- the gate
//!      '-- per peer: card, token, interface that answered
//! ```
//!
//! Until an interface of a peer has answered, the next one is tried if it did not take the request: there was
//! no connection, the gate refused the address, or the answer was 404, 405, 501 or another that says so. After that, another one is tried only if
//! there is no connection. After a request that may have been accepted, there is no second try.
//!
//! The last ones to try are those of the card for clients of 0.3, if the other card names none of that version.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use serde_json::Value;
use tracing::debug;
use url::Url;
use wopr_wire::{
    a2a::{
        exchange::{Reply, Request},
        method::Version,
        model::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
            GetExtendedAgentCardRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, Secret,
            SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest, Task,
            TaskPushNotificationConfig,
        },
    },
    json::Object,
};

use super::{
    card::{Found, choose, is_same_place, nothing_usable},
    cards::{CARD_PATHS, Card},
    error::Error,
    first_item::FirstItem,
    grpc, http_json, json_rpc,
    known::Known,
    line::{Call, Items, Line},
    peer::{Binding, Peer, Transport, Wanted},
    tasks_http::{self, TaskApi},
};
use crate::{egress::Gate, redact::Secrets};

/// A client of remote agents. Clones share cards, tokens and connections.
#[derive(Debug, Clone)]
pub struct Client {
    peers: Arc<HashMap<String, RwLock<Arc<Known>>>>,
    gate: Gate,
}

impl Client {
    /// Creates a client of these peers. Of two peers with one name, the last one counts.
    #[must_use]
    pub fn new(gate: Gate, peers: impl IntoIterator<Item = Peer>) -> Self {
        let known = |peer: Peer| {
            let name = peer.name.clone();
            (name, RwLock::new(Arc::new(Known::new(peer, &gate))))
        };
        Self {
            peers: Arc::new(peers.into_iter().map(known).collect()),
            gate,
        }
    }

    /// Puts a peer in the place of the one with its name, if there is one. Calls that begin from now on use what is new
    /// about it, on connections of their own; what was learned of the other one is forgotten.
    pub fn replace(&self, peer: Peer) {
        if let Some(place) = self.peers.get(&peer.name) {
            let mut place = place.write();
            *place = Arc::new(place.replaced_by(peer, &self.gate));
        }
    }

    /// Returns `true` if there is any peer.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Returns `true` if there is a peer of this name.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.peers.contains_key(name)
    }

    /// The peer with this address, whichever way its card is looked for.
    #[must_use]
    pub fn peer_at(&self, address: &Url) -> Option<Peer> {
        let mut peers = self.peers.values();
        peers.find_map(|known| {
            let known = known.read();
            is_same_address(&known.peer.url, address).then(|| known.peer.clone())
        })
    }

    fn known(&self, name: &str) -> Result<Arc<Known>, Error> {
        let known = self.peers.get(name).map(|known| Arc::clone(&known.read()));
        known.ok_or_else(|| Error::UnknownPeer(name.to_owned()))
    }

    /// A peer that speaks A2A.
    fn known_with_card(&self, name: &str) -> Result<Arc<Known>, Error> {
        let known = self.known(name)?;
        match known.peer.transport {
            Transport::A2a => Ok(known),
            Transport::TasksHttp(_) => Err(Error::NoInterface {
                offered: vec![tasks_http::NAME.to_owned()],
            }),
        }
    }

    /// The task API of a peer that has one instead of A2A.
    ///
    /// # Errors
    /// Returns an error if the peer is unknown.
    pub fn task_api(&self, peer: &str, call: Call) -> Result<Option<TaskApi>, Error> {
        let known = self.known(peer)?;
        Ok(match known.peer.transport {
            Transport::A2a => None,
            Transport::TasksHttp(polling) => Some(TaskApi::new(known, polling, call)),
        })
    }

    /// Returns the card of a peer, from the cache if it is still fresh. It is the card for clients of the version
    /// that the peer is configured with, or else of 1.0.
    ///
    /// # Errors
    /// Returns an error if the peer is unknown, or its card cannot be found, read or verified.
    pub async fn card(&self, peer: &str) -> Result<Arc<Card>, Error> {
        let known = self.known_with_card(peer)?;
        card_for(&known, asked_version(known.peer.wanted)).await
    }

    /// Fetches the card of a peer as it is, neither checked nor kept, with the place where it was found.
    ///
    /// # Errors
    /// Returns an error if there is no JSON document at any place of the card.
    pub async fn card_document(&self, peer: &str) -> Result<(Url, Value), Error> {
        let known = self.known_with_card(peer)?;
        let presented = known.present().await?;
        let version = asked_version(known.peer.wanted);
        let (place, response) = known.lookup(version, presented).find().await?;
        let document = serde_json::from_slice(&response.body);
        Ok((
            place,
            document.map_err(|error| Error::CardInvalid(error.to_string()))?,
        ))
    }

    /// Finds the agent of a peer and the interfaces to call it by. `wanted` takes precedence over what the peer
    /// is configured with.
    ///
    /// # Errors
    /// Returns an error if there is no usable card, or no usable interface in it.
    pub async fn agent(&self, peer: &str, wanted: Wanted, call: Call) -> Result<Agent, Error> {
        let known = self.known_with_card(peer)?;
        let wanted = wanted.or(known.peer.wanted);
        let mut card = card_for(&known, asked_version(wanted)).await?;
        let mut interfaces = choose(&card.interfaces, wanted);
        if interfaces.is_empty()
            && wanted.version.is_none()
            && let Ok(old) = card_for(&known, Version::V0_3).await
        {
            // It may name interfaces that the card for clients of 1.0 leaves out.
            interfaces = choose(&old.interfaces, wanted);
            if !interfaces.is_empty() {
                card = old;
            }
        }
        let answering = known.answering.lock().clone();
        if let Some(found) = answering {
            match interfaces.iter().position(|other| *other == found) {
                Some(index) => interfaces[..=index].rotate_right(1),
                // It answered when none of these did.
                None if is_in_old_card(&known, &found, wanted) => interfaces.insert(0, found),
                None => {}
            }
        }
        if interfaces.is_empty() {
            return Err(nothing_usable(&card.model, wanted));
        }
        Ok(Agent {
            known,
            card,
            interfaces,
            wanted,
            call,
        })
    }
}

/// Returns the card that a peer has for clients of a version.
async fn card_for(known: &Known, version: Version) -> Result<Arc<Card>, Error> {
    let cards = known.cards(version);
    // Most calls need no lookup, and so no credential for it.
    if let Some(outcome) = cards.fresh() {
        return outcome;
    }
    Box::pin(look_up(known, version)).await
}

async fn look_up(known: &Known, version: Version) -> Result<Arc<Card>, Error> {
    let cards = known.cards(version);
    let presented = known.present().await?;
    let used_token = presented.used_token.clone();
    let looked = cards.get(&known.lookup(version, presented)).await;
    match used_token {
        // The peer may have revoked the token. What it said earlier is not a reason for another token.
        Some(token) if looked.is_fresh && looked.is_unauthorized() => {
            known.tokens.forget(&token);
            let presented = known.present().await?;
            Box::pin(cards.get_anew(&known.lookup(version, presented)))
                .await
                .outcome
        }
        Some(_) | None => looked.outcome,
    }
}

/// Whether a caller may use an interface because the card for clients of 0.3 names it, as far as that card is known.
fn is_in_old_card(known: &Known, found: &Arc<Found>, wanted: Wanted) -> bool {
    let is_wanted = wanted.version.is_none() && wanted.binding.is_none_or(|binding| binding == found.binding);
    let old = known.cards(Version::V0_3).fresh().filter(|_| is_wanted);
    old.is_some_and(|old| old.is_ok_and(|card| card.interfaces.contains(found)))
}

/// The version whose card is asked for: the one that is wanted, or else the newest.
fn asked_version(wanted: Wanted) -> Version {
    wanted.version.unwrap_or(Version::V1_0)
}

/// Compares the addresses below which two cards are.
fn is_same_address(one: &Url, other: &Url) -> bool {
    let path = |url: &Url| {
        let path = url.path();
        let below = CARD_PATHS.iter().find_map(|card| path.strip_suffix(card));
        below.unwrap_or(path).trim_end_matches('/').to_owned()
    };
    is_same_place(one, other) && path(one) == path(other)
}

/// A remote agent.
#[derive(Debug, Clone)]
pub struct Agent {
    known: Arc<Known>,
    card: Arc<Card>,
    /// In the order to try them; never empty.
    interfaces: Vec<Arc<Found>>,
    wanted: Wanted,
    call: Call,
}

/// What came of a request over one interface.
enum Tried {
    /// The interface may have taken it.
    Answered(Box<Result<Answer, Error>>),
    Unanswered(Error),
}

enum Answer {
    Reply(Box<Reply>),
    Items(Items),
}

impl Agent {
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// What the agent's answers must not show. `None` if its credential cannot be had now.
    pub(crate) async fn secrets(&self) -> Option<Secrets> {
        let presented = self.known.present().await.ok()?;
        Some(presented.secrets)
    }

    /// The interface that answered.
    fn answering(&self) -> Option<&Arc<Found>> {
        let answering = self.known.answering.lock().clone()?;
        self.interfaces.iter().find(|found| **found == answering)
    }

    /// The interface that answered, or the first one to try.
    fn current(&self) -> &Found {
        self.answering().unwrap_or(&self.interfaces[0])
    }

    /// Index of the interface in the card.
    #[must_use]
    pub fn interface(&self) -> usize {
        self.current().index
    }

    #[must_use]
    pub fn endpoint(&self) -> &Url {
        &self.current().address
    }

    #[must_use]
    pub fn version(&self) -> Version {
        self.current().version
    }

    #[must_use]
    pub fn binding(&self) -> Binding {
        self.current().binding
    }

    /// Returns `true` if the interface receives the peer's credential: only one at the place of the card does, or at
    /// a further place that the operator names.
    #[must_use]
    pub fn receives_credential(&self) -> bool {
        self.known.peer.has_credential() && self.known.peer.is_own_place(&self.current().address)
    }

    /// Sends a message and waits for the response.
    ///
    /// # Errors
    /// See [`Error::may_have_been_sent`]: a message that may have been sent is repeated with its id only.
    pub async fn send_message(&self, request: SendMessageRequest) -> Result<SendMessageResponse, Error> {
        match self.ask(Request::SendMessage(request)).await? {
            Reply::Sent(answer) => Ok(answer),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a message and streams the updates.
    ///
    /// # Errors
    /// Like [`Agent::send_message`]; later errors are items of the stream.
    pub async fn send_streaming_message(&self, request: SendMessageRequest) -> Result<Items, Error> {
        self.follow(Request::SendStreamingMessage(request), None).await
    }

    /// Resubscribes to a task, starting after the event `last` if the agent supports that.
    ///
    /// # Errors
    /// Later errors are items of the stream.
    pub async fn subscribe(&self, task: &str, last: Option<&str>) -> Result<Items, Error> {
        let request = SubscribeToTaskRequest {
            tenant: None,
            id: task.to_owned(),
        };
        self.follow(Request::SubscribeToTask(request), last).await
    }

    /// # Errors
    /// Returns the peer's error, or the failure of the call; [`Error::OtherTask`] if the peer answers with another
    /// task.
    pub async fn get_task(&self, task: &str, history_length: Option<u32>) -> Result<Task, Error> {
        let request = GetTaskRequest {
            tenant: None,
            id: task.to_owned(),
            history_length,
        };
        self.task(Request::GetTask(request), task).await
    }

    /// # Errors
    /// Returns the peer's error, or the failure of the call.
    pub async fn list_tasks(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        match self.ask(Request::ListTasks(request)).await? {
            Reply::Tasks(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    /// # Errors
    /// Like [`Agent::get_task`].
    pub async fn cancel_task(&self, task: &str) -> Result<Task, Error> {
        let request = CancelTaskRequest {
            tenant: None,
            id: task.to_owned(),
            metadata: Object::new(),
        };
        self.task(Request::CancelTask(request), task).await
    }

    /// # Errors
    /// Returns the peer's error, or the failure of the call.
    pub async fn set_push_config(
        &self,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig, Error> {
        self.push_config(Request::CreatePushConfig(config)).await
    }

    /// # Errors
    /// Returns the peer's error, or the failure of the call.
    pub async fn get_push_config(&self, task: &str, id: &str) -> Result<TaskPushNotificationConfig, Error> {
        let (task_id, id) = (task.to_owned(), Some(id.to_owned()));
        self.push_config(Request::GetPushConfig { task_id, id }).await
    }

    /// # Errors
    /// Returns the peer's error, or the failure of the call.
    pub async fn push_configs(
        &self,
        task: &str,
        page_token: Option<String>,
    ) -> Result<ListTaskPushNotificationConfigsResponse, Error> {
        let request = ListTaskPushNotificationConfigsRequest {
            tenant: None,
            task_id: task.to_owned(),
            page_size: None,
            page_token,
        };
        match self.ask(Request::ListPushConfigs(request)).await? {
            Reply::PushConfigs(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    /// # Errors
    /// Returns the peer's error, or the failure of the call.
    pub async fn delete_push_config(&self, task: &str, id: &str) -> Result<(), Error> {
        let request = DeleteTaskPushNotificationConfigRequest {
            tenant: None,
            task_id: task.to_owned(),
            id: id.to_owned(),
        };
        match self.ask(Request::DeletePushConfig(request)).await? {
            Reply::Deleted => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads the extended card, which requires authentication.
    ///
    /// # Errors
    /// Returns the peer's error, or the failure of the call.
    pub async fn extended_card(&self) -> Result<AgentCard, Error> {
        let request = Request::GetExtendedAgentCard(GetExtendedAgentCardRequest::default());
        match self.ask(request).await? {
            Reply::Card(card) => Ok(card),
            other => Err(unexpected(&other)),
        }
    }

    async fn task(&self, request: Request, id: &str) -> Result<Task, Error> {
        match self.ask(request).await? {
            Reply::Task(task) if task.id == id => Ok(task),
            Reply::Task(_) => Err(Error::OtherTask),
            other => Err(unexpected(&other)),
        }
    }

    async fn push_config(&self, request: Request) -> Result<TaskPushNotificationConfig, Error> {
        match self.ask(request).await? {
            Reply::PushConfig(config) => Ok(config),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, request: Request) -> Result<Reply, Error> {
        match Box::pin(self.answer(request, None)).await? {
            Answer::Reply(reply) => Ok(*reply),
            Answer::Items(_) => Err(Error::Undecodable("it is a stream".to_owned())),
        }
    }

    async fn follow(&self, request: Request, last: Option<&str>) -> Result<Items, Error> {
        match Box::pin(self.answer(request, last)).await? {
            Answer::Items(items) => Ok(items),
            Answer::Reply(_) => Err(Error::NoStream),
        }
    }

    /// Sends a request over the interface that answers, or else over the first one that does.
    ///
    /// An agent that cannot be connected to may be back for the next interface. It is then asked in the version in which it
    /// was asked before: a message that is sent again in another version would not be known as the same one.
    async fn answer(&self, request: Request, last: Option<&str>) -> Result<Answer, Error> {
        let mut failure = None;
        let mut is_away = false;
        let answering = self.answering().cloned();
        let version = answering
            .as_ref()
            .or(self.interfaces.first())
            .map(|found| found.version);
        if let Some(found) = &answering {
            if self.interfaces.len() == 1 {
                return self.over(found, request, last).await;
            }
            match self.over(found, request.clone(), last).await {
                // It is gone, and has not received the request.
                Err(error) if error.is_unconnected() && self.interfaces.len() > 1 => {
                    is_away = true;
                    failure = Some(error);
                }
                result => return result,
            }
        }
        let others = self.interfaces.iter();
        for found in others.filter(|found| Some(*found) != answering.as_ref()) {
            if is_away && Some(found.version) != version {
                continue;
            }
            match self.tried(found, request.clone(), last).await {
                Tried::Answered(result) => return *result,
                Tried::Unanswered(error) => {
                    is_away |= error.is_unconnected();
                    failure = failure.or(Some(error));
                }
            }
        }
        let older = match is_away {
            true => Vec::new(),
            false => self.older().await,
        };
        for found in older {
            match self.tried(&found, request.clone(), last).await {
                Tried::Answered(result) => return *result,
                Tried::Unanswered(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| nothing_usable(&self.card.model, Wanted::default())))
    }

    /// Tries an interface that has not answered before.
    async fn tried(&self, found: &Arc<Found>, request: Request, last: Option<&str>) -> Tried {
        match self.over(found, request, last).await {
            Err(error) if error.is_unanswered() => {
                let (peer, version) = (&self.known.peer.name, found.version.as_str());
                debug!(peer, binding = ?found.binding, version, %error, "a2a interface did not answer");
                Tried::Unanswered(error)
            }
            result => {
                if result.as_ref().map_or_else(Error::is_answer, |_| true) {
                    *self.known.answering.lock() = Some(Arc::clone(found));
                }
                Tried::Answered(Box::new(result))
            }
        }
    }

    /// The interfaces that only the card for clients of 0.3 names. A card that names some of that version itself is for
    /// clients of both.
    async fn older(&self) -> Vec<Arc<Found>> {
        let has_old = self.interfaces.iter().any(|found| found.version == Version::V0_3);
        if self.wanted.version.is_some() || has_old {
            return Vec::new();
        }
        match card_for(&self.known, Version::V0_3).await {
            Ok(old) => choose(&old.interfaces, self.wanted)
                .into_iter()
                .filter(|found| found.version == Version::V0_3)
                .collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Sends a request over one interface. If it refuses a token that was in use before, the token is renewed
    /// once.
    async fn over(&self, found: &Arc<Found>, request: Request, last: Option<&str>) -> Result<Answer, Error> {
        let request = request.with_tenant(found.tenant.clone());
        let (line, used_token) = self.line(found).await?;
        let Some(token) = used_token else {
            return attempt(&line, request, last).await;
        };
        match attempt(&line, request.clone(), last).await {
            Err(error) if error.is_unauthorized() => {
                self.known.tokens.forget(&token);
                let (line, _) = self.line(found).await?;
                attempt(&line, request, last).await
            }
            result => result,
        }
    }

    async fn line(&self, found: &Arc<Found>) -> Result<(Line, Option<Secret>), Error> {
        let presented = match self.known.peer.is_own_place(&found.address) {
            true => self.known.present().await?,
            false => self.known.anonymous(),
        };
        let line = Line {
            gate: self.known.gate_to(&found.address).clone(),
            found: Arc::clone(found),
            credential: presented.header,
            secrets: presented.secrets,
            call: self.call.clone(),
        };
        Ok((line, presented.used_token))
    }
}

async fn attempt(line: &Line, request: Request, last: Option<&str>) -> Result<Answer, Error> {
    let is_streaming = request.operation().is_streaming();
    let binding = line.found.binding;
    if is_streaming {
        let first = FirstItem::of(request.operation(), &line.call);
        let opened = async {
            match binding {
                Binding::JsonRpc => json_rpc::open(line, request, last).await,
                Binding::HttpJson => http_json::open(line, request, last).await,
                Binding::Grpc => grpc::open(line, request, last).await,
            }
        };
        let items = first.within(opened).await?;
        return Ok(Answer::Items(first.of_stream(items)));
    }
    let reply = match binding {
        Binding::JsonRpc => json_rpc::call(line, request).await,
        Binding::HttpJson => http_json::call(line, request).await,
        Binding::Grpc => grpc::call(line, request).await,
    };
    reply.map(|reply| Answer::Reply(Box::new(reply)))
}

/// The reply does not match the request. Cannot happen, because replies are parsed by the type of the request.
fn unexpected(reply: &Reply) -> Error {
    let what = match reply {
        Reply::Sent(_) => "the answer to a message",
        Reply::Task(_) => "a task",
        Reply::Tasks(_) => "tasks",
        Reply::PushConfig(_) => "a push configuration",
        Reply::PushConfigs(_) => "push configurations",
        Reply::Deleted => "nothing",
        Reply::Card(_) => "a card",
    };
    Error::Undecodable(format!("it is {what}"))
}
