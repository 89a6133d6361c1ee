//! A client of any A2A agent over JSON-RPC: the version is picked from the agent's card.
//!
//! Everything is expressed in the 1.0 model; for an agent that only speaks 0.3 requests and answers are converted
//! at the edge. Other bindings are not spoken here.

use std::error::Error;

use anyhow::{Context as _, Result};
use futures_util::{Stream, StreamExt as _};
use rand::{TryRngCore as _, rngs::OsRng};
use reqwest::{
    Method, Response,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use serde::Serialize;
use serde_json::Value;
use url::Url;
use wopr_wire::{
    a2a::{
        method::{Operation, VERSION_HEADER, Version},
        model::{
            AgentCard, CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageConfiguration,
            SendMessageRequest, SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task, binding,
        },
        rpc::{self, Id},
        v03,
    },
    json::{self, Decode},
    sse,
};

use crate::{
    client::{self, exit_of, parse_url, unreachable_failure},
    exit::{Exit, Failure},
};

/// Where a card lies below an agent's address.
const CARD_PATH: &str = "/.well-known/agent-card.json";

/// The code of `TaskNotFoundError` in both versions.
const TASK_NOT_FOUND: i64 = -32001;

/// An agent, and who calls it.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    http: reqwest::Client,
    key: Option<String>,
    /// The card, in the model.
    pub(crate) card: AgentCard,
    /// The card as it came.
    pub(crate) document: Value,
    /// Where requests go.
    pub(crate) endpoint: String,
    /// How they are worded.
    pub(crate) version: Version,
}

/// An item of a stream with its id, if it has one.
pub(crate) type Item = (Option<String>, StreamResponse);

impl Agent {
    /// Fetches the card and picks how to talk. `wanted` restricts the choice to one version.
    pub(crate) async fn find(address: &str, key: Option<String>, wanted: Option<Version>) -> Result<Self> {
        let url = parse_url(address)?;
        let http = client::http(&url)?;
        let document = fetch_card(&http, &url, key.as_deref()).await?;
        let card = read_card(document.clone()).map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("cannot read the card of {address}: {error}"),
            )
        })?;
        let (endpoint, version) = choose(&card, wanted).ok_or_else(|| {
            let offered: Vec<_> = card
                .supported_interfaces
                .iter()
                .map(|interface| format!("{} {}", interface.protocol_binding, interface.protocol_version))
                .collect();
            Failure::new(
                Exit::Failed,
                format!("the agent at {address} offers no JSON-RPC interface that is spoken here"),
            )
            .hint(format!("its card offers {}", offered.join(", ")))
        })?;
        let endpoint = url.join(&endpoint).context("read the interface's address")?;
        Ok(Self {
            // The interface may lie on another host than the card, with TLS or without. The key was given for
            // where the card lies: a card that points elsewhere must not carry it there.
            http: client::http(&endpoint)?,
            key: key.filter(|key| !key.is_empty() && client::is_same_place(&url, &endpoint)),
            card,
            document,
            endpoint: endpoint.into(),
            version,
        })
    }

    /// Sends a message and waits for the answer.
    pub(crate) async fn send(&self, request: SendMessageRequest) -> Result<SendMessageResponse> {
        match self.version {
            Version::V1_0 => self.call(Operation::SendMessage, &request).await,
            Version::V0_3 => {
                let params = v03::MessageSendParams::from(request);
                let result: v03::SendResult = self.call(Operation::SendMessage, &params).await?;
                Ok(result.into())
            }
        }
    }

    /// Sends a message and follows what becomes of it.
    pub(crate) async fn stream(
        &self,
        request: SendMessageRequest,
    ) -> Result<impl Stream<Item = Result<Item>> + Unpin + use<>> {
        let response = match self.version {
            Version::V1_0 => self.open(Operation::SendStreamingMessage, &request, None).await?,
            Version::V0_3 => {
                let params = v03::MessageSendParams::from(request);
                self.open(Operation::SendStreamingMessage, &params, None).await?
            }
        };
        Ok(self.items(response))
    }

    /// Follows a task again, from after the event `last` on.
    pub(crate) async fn subscribe(
        &self,
        task: &str,
        last: Option<&str>,
    ) -> Result<impl Stream<Item = Result<Item>> + Unpin + use<>> {
        let request = SubscribeToTaskRequest {
            tenant: None,
            id: task.to_owned(),
        };
        let response = match self.version {
            Version::V1_0 => self.open(Operation::SubscribeToTask, &request, last).await?,
            Version::V0_3 => {
                let params = v03::TaskIdParams::from(request);
                self.open(Operation::SubscribeToTask, &params, last).await?
            }
        };
        Ok(self.items(response))
    }

    /// Reads a task.
    pub(crate) async fn get(&self, task: &str, history: Option<u32>) -> Result<Task> {
        let request = GetTaskRequest {
            tenant: None,
            id: task.to_owned(),
            history_length: history,
        };
        match self.version {
            Version::V1_0 => self.call(Operation::GetTask, &request).await,
            Version::V0_3 => {
                let params = v03::TaskQueryParams::from(request);
                let task: v03::Task = self.call(Operation::GetTask, &params).await?;
                Ok(task.into())
            }
        }
    }

    /// Cancels a task.
    pub(crate) async fn cancel(&self, task: &str) -> Result<Task> {
        let request = CancelTaskRequest {
            tenant: None,
            id: task.to_owned(),
            metadata: json::Object::new(),
        };
        match self.version {
            Version::V1_0 => self.call(Operation::CancelTask, &request).await,
            Version::V0_3 => {
                let params = v03::TaskIdParams::from(request);
                let task: v03::Task = self.call(Operation::CancelTask, &params).await?;
                Ok(task.into())
            }
        }
    }

    async fn call<P: Serialize, R: Decode>(&self, operation: Operation, params: &P) -> Result<R> {
        let response = self.post(operation, params, "application/json", None).await?;
        let result = self.result_of(response).await?;
        R::decode(result).map_err(|error| self.unreadable(&error))
    }

    /// Opens a stream; an answer that is none is an error.
    async fn open<P: Serialize>(
        &self,
        operation: Operation,
        params: &P,
        last: Option<&str>,
    ) -> Result<Response> {
        let response = self.post(operation, params, sse::CONTENT_TYPE, last).await?;
        let media = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        if media.is_some_and(|media| media.starts_with(sse::CONTENT_TYPE)) {
            return Ok(response);
        }
        self.result_of(response).await?;
        Err(Failure::new(
            Exit::Failed,
            format!("{} answered without a stream", self.endpoint),
        )
        .into())
    }

    async fn post<P: Serialize>(
        &self,
        operation: Operation,
        params: &P,
        accept: &str,
        last: Option<&str>,
    ) -> Result<Response> {
        let method = operation
            .rpc_method(self.version)
            .with_context(|| format!("ask an agent of version {} for that", self.version))?;
        let body = rpc::encode_request(&Id::Int(1), method, params).context("write the request")?;
        let mut request = self
            .http
            .request(Method::POST, &self.endpoint)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, accept)
            .body(body);
        if self.version == Version::V1_0 {
            request = request.header(VERSION_HEADER, self.version.as_str());
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let response = request.send().await;
        Ok(response.map_err(|error| unreachable_failure(&self.endpoint, &error))?)
    }

    /// The result of a JSON-RPC answer, or why there is none.
    async fn result_of(&self, response: Response) -> Result<Value> {
        let status = response.status();
        let body = client::read(response)
            .await
            .map_err(|error| unreachable_failure(&self.endpoint, &*error))?;
        match rpc::Response::parse(&body) {
            Ok(response) => Ok(response.outcome.map_err(|error| remote_failure(&error))?),
            Err(_) if !status.is_success() => {
                let failure = Failure::new(exit_of(status), format!("{} answered {status}", self.endpoint));
                Err(match status.as_u16() {
                    401 | 403 if self.key.is_none() => failure.hint(
                        "give a key with --key or WOPR_API_KEY; it goes only where the card itself lies",
                    ),
                    401 => failure.hint(client::WRONG_KEY),
                    _ => failure,
                }
                .into())
            }
            Err(error) => Err(self.unreadable(&error)),
        }
    }

    fn unreadable(&self, error: &dyn Error) -> anyhow::Error {
        Failure::new(
            Exit::Failed,
            format!("cannot read the answer of {}: {error}", self.endpoint),
        )
        .into()
    }

    fn items(&self, response: Response) -> impl Stream<Item = Result<Item>> + Unpin + use<> {
        let version = self.version;
        client::events(response).map(move |event| {
            let event = event?;
            let response =
                rpc::Response::parse(event.data.as_bytes()).context("read an event of the stream")?;
            let result = response.outcome.map_err(|error| remote_failure(&error))?;
            let item = match version {
                Version::V1_0 => StreamResponse::decode(result),
                Version::V0_3 => v03::StreamEvent::decode(result).map(Into::into),
            };
            let id = Some(event.id).filter(|id| !id.is_empty());
            Ok((id, item.context("read an event of the stream")?))
        })
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

/// An error the agent answered with.
fn remote_failure(error: &rpc::RemoteError) -> Failure {
    let exit = if error.code == TASK_NOT_FOUND {
        Exit::NotFound
    } else {
        Exit::Failed
    };
    Failure::new(
        exit,
        format!("the agent answered: {} ({})", error.message, error.code),
    )
}

/// The card of an agent as it came, and where the agent is.
pub(crate) async fn card(address: &str, key: Option<&str>) -> Result<(Url, Value)> {
    let url = parse_url(address)?;
    let http = client::http(&url)?;
    let document = fetch_card(&http, &url, key).await?;
    Ok((url, document))
}

/// Fetches the card at an address: the document itself, or what lies at the well-known path below it or below its
/// origin.
async fn fetch_card(http: &reqwest::Client, url: &Url, key: Option<&str>) -> Result<Value> {
    let base = url.as_str().trim_end_matches('/');
    let mut places = if url.path().ends_with(".json") {
        vec![base.to_owned()]
    } else {
        vec![format!("{base}{CARD_PATH}")]
    };
    if let Ok(origin) = url.join(CARD_PATH) {
        let origin = String::from(origin);
        if !places.contains(&origin) {
            places.push(origin);
        }
    }
    let mut last = None;
    for place in places {
        let mut request = http.get(&place).header(ACCEPT, "application/json");
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let response = request
            .send()
            .await
            .map_err(|error| unreachable_failure(base, &error))?;
        let status = response.status();
        let body = client::read(response)
            .await
            .map_err(|error| unreachable_failure(base, &*error))?;
        if status.is_success() {
            return serde_json::from_slice(&body).with_context(|| format!("read the card at {place}"));
        }
        last = Some(Failure::new(
            exit_of(status),
            format!("no agent card at {place}: {status}"),
        ));
    }
    Err(match last {
        Some(failure) => failure.into(),
        None => anyhow::anyhow!("find a card at {base}"),
    })
}

/// Reads a card of either version; a card of both is read as one of the newer.
fn read_card(document: Value) -> Result<AgentCard, json::DecodeError> {
    if document.get("supportedInterfaces").is_some() {
        AgentCard::decode(document)
    } else {
        v03::AgentCard::decode(document).map(Into::into)
    }
}

/// The JSON-RPC interface of the newest version spoken here.
fn choose(card: &AgentCard, wanted: Option<Version>) -> Option<(String, Version)> {
    let versions = [Version::V1_0, Version::V0_3];
    let mut versions = versions
        .into_iter()
        .filter(|version| wanted.is_none_or(|wanted| wanted == *version));
    versions.find_map(|version| {
        let interface = card.supported_interfaces.iter().find(|interface| {
            interface.protocol_binding.eq_ignore_ascii_case(binding::JSONRPC)
                && interface.protocol_version.starts_with(version.as_str())
        })?;
        Some((interface.url.clone(), version))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chosen(card: Value, wanted: Option<Version>) -> Option<(String, Version)> {
        choose(&read_card(card).unwrap(), wanted)
    }

    #[test]
    fn the_newest_json_rpc_interface_is_chosen() {
        let common = json!({
            "name": "n", "description": "d", "version": "1", "capabilities": {}, "skills": [],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        });
        let with = |more: Value| {
            let mut card = common.clone();
            for (name, value) in more.as_object().unwrap() {
                card[name] = value.clone();
            }
            card
        };
        let both = with(json!({ "supportedInterfaces": [
            {"url": "http://a/old", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
            {"url": "http://a/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
            {"url": "http://a/new", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        ]}));
        assert_eq!(
            chosen(both.clone(), None),
            Some(("http://a/new".into(), Version::V1_0))
        );
        assert_eq!(
            chosen(both, Some(Version::V0_3)),
            Some(("http://a/old".into(), Version::V0_3))
        );
        let old =
            with(json!({"protocolVersion": "0.3.0", "url": "http://a/old", "preferredTransport": "JSONRPC"}));
        assert_eq!(
            chosen(old.clone(), None),
            Some(("http://a/old".into(), Version::V0_3))
        );
        assert_eq!(chosen(old, Some(Version::V1_0)), None);
    }
}
