//! Clients of every version and binding behind one interface: requests and responses use the format of 1.0,
//! whatever is sent over the wire.

use serde::Serialize;
use serde_json::{Value, json};
use wopr_wire::{
    a2a::{
        error::Kind,
        method::{Operation, Version},
        model,
        paths::{Names, path_of},
        v03::{self, proto::Proto},
    },
    json::Decode,
};

use crate::{
    client::{Answer, Client, Frame, Stream},
    grpc,
    support::Server,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    Rpc,
    Rest,
    Grpc,
}

impl Binding {
    /// The name on the card.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rpc => "JSONRPC",
            Self::Rest => "HTTP+JSON",
            Self::Grpc => "GRPC",
        }
    }
}

/// A client of one version and binding.
pub(crate) struct Speaker {
    pub(crate) binding: Binding,
    pub(crate) version: Version,
    /// Has the address of the interface.
    client: Client,
}

/// The reason of a refusal, as in the table of errors.
pub(crate) type Refused = &'static str;

impl Speaker {
    /// One for every binding and version.
    pub(crate) fn all(server: &Server) -> Vec<Self> {
        let mut all = Vec::new();
        for binding in [Binding::Rpc, Binding::Rest, Binding::Grpc] {
            for (version, name) in [(Version::V1_0, "1.0"), (Version::V0_3, "")] {
                all.push(Self {
                    binding,
                    version,
                    client: server.client(name),
                });
            }
        }
        all
    }

    /// Moves the client to an address from a card.
    pub(crate) fn at(mut self, url: &str) -> Self {
        if self.binding == Binding::Grpc {
            // Only host and port: gRPC paths follow from service names.
            assert_eq!(url, self.client.address);
            return self;
        }
        let (_, path) = url.split_once("://").unwrap().1.split_once('/').unwrap();
        self.client = self.client.at(&format!("/{path}"));
        self
    }

    /// Uses another credential.
    pub(crate) fn by(mut self, key: &str) -> Self {
        self.client = self.client.by(key);
        self
    }

    /// Uses no credential.
    pub(crate) fn without_key(mut self) -> Self {
        self.client.key = None;
        self
    }

    /// A name for failure messages and message ids.
    pub(crate) fn name(&self) -> String {
        format!("{:?}-{}", self.binding, self.version)
    }

    /// A request to send a text.
    pub(crate) fn text(&self, id: &str, text: &str, skill: &str) -> Value {
        json!({"message": {
            "messageId": format!("{id}-{}", self.name()), "role": "ROLE_USER", "parts": [{"text": text}],
            "metadata": {"skillId": skill},
        }})
    }

    /// A message to a task.
    pub(crate) fn answer(&self, id: &str, text: &str, task: &str) -> Value {
        json!({"message": {
            "messageId": format!("{id}-{}", self.name()), "role": "ROLE_USER", "parts": [{"text": text}],
            "taskId": task,
        }})
    }

    pub(crate) async fn send(&self, request: Value) -> Result<Value, Refused> {
        Ok(self.ask(Operation::SendMessage, request).await?["task"].clone())
    }

    pub(crate) async fn get(&self, request: Value) -> Result<Value, Refused> {
        self.ask(Operation::GetTask, request).await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Value, Refused> {
        self.ask(Operation::CancelTask, json!({ "id": id })).await
    }

    /// Sends a unary request.
    pub(crate) async fn ask(&self, operation: Operation, request: Value) -> Result<Value, Refused> {
        match self.binding {
            Binding::Rpc => {
                let method = operation.rpc_method(self.version).unwrap();
                let envelope = self
                    .client
                    .call(method, self.rpc_params(operation, request))
                    .await;
                match envelope.get("error") {
                    Some(error) => {
                        let kind = Kind::from_code(error["code"].as_i64().unwrap());
                        Err(kind.unwrap_or_else(|| panic!("{envelope}")).reason())
                    }
                    None => Ok(self.understand(operation, envelope["result"].clone())),
                }
            }
            Binding::Rest => {
                let (client, verb, body) = self.rest(operation, request);
                let body = if body.is_null() {
                    String::new()
                } else {
                    body.to_string()
                };
                let answer = client.raw(verb, body.as_bytes()).await;
                if answer.status == 200 {
                    Ok(self.understand(operation, answer.json()))
                } else {
                    Err(reason(&answer))
                }
            }
            Binding::Grpc => {
                let document = self.document(request);
                let mut answer = grpc::ask(&self.client, self.version, operation, &document).await;
                let message = answer.next().await;
                // The response has exactly one message.
                assert_eq!(answer.next().await, None);
                match message {
                    Some(message) => {
                        assert_eq!(answer.ended().code, 0);
                        let document = grpc::document(self.version, operation, &message);
                        Ok(self.understand(operation, document))
                    }
                    None => Err(answer.ended().reason()),
                }
            }
        }
    }

    /// Sends a request that lacks a scope; returns everything the error says.
    pub(crate) async fn refused(&self, operation: Operation, request: Value) -> String {
        let told = |answer: Answer| {
            assert_eq!(answer.status, 403, "{operation:?}");
            answer.header("www-authenticate").unwrap_or_default().to_owned()
        };
        match self.binding {
            Binding::Rpc => {
                let method = operation.rpc_method(self.version).unwrap();
                let params = self.rpc_params(operation, request);
                let envelope = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
                told(self.client.raw("POST", envelope.to_string().as_bytes()).await)
            }
            Binding::Rest => {
                let (client, verb, body) = self.rest(operation, request);
                let body = if body.is_null() {
                    String::new()
                } else {
                    body.to_string()
                };
                told(client.raw(verb, body.as_bytes()).await)
            }
            Binding::Grpc => {
                let document = self.document(request);
                let mut answer = grpc::ask(&self.client, self.version, operation, &document).await;
                assert_eq!(answer.next().await, None);
                let ended = answer.ended();
                // PERMISSION_DENIED
                assert_eq!(ended.code, 7, "{ended:?}");
                format!("{ended:?}")
            }
        }
    }

    /// Opens a stream.
    pub(crate) async fn stream(&self, operation: Operation, request: Value) -> Updates {
        let stream = match (self.binding, operation) {
            (Binding::Rpc, Operation::SendStreamingMessage) => {
                self.client.stream(self.rpc_params(operation, request)).await
            }
            (Binding::Rpc, _) => self.client.subscribe(request["id"].as_str().unwrap()).await,
            (Binding::Rest, _) => {
                let (client, verb, body) = self.rest(operation, request);
                client.bare_stream(verb, &body).await
            }
            (Binding::Grpc, _) => {
                let document = self.document(request);
                let messages = grpc::ask(&self.client, self.version, operation, &document).await;
                return Updates::Messages(self.version, operation, Box::new(messages));
            }
        };
        Updates::Events(Box::new(stream))
    }

    /// Follows a task from after an event on.
    pub(crate) async fn resumed(mut self, last: u64, task: &str) -> Vec<Frame> {
        self.client = self.client.with("last-event-id", &last.to_string());
        self.stream(Operation::SubscribeToTask, json!({ "id": task }))
            .await
            .all()
            .await
    }

    /// Converts a request to the document of its message.
    fn document(&self, request: Value) -> Value {
        if self.version == Version::V1_0 {
            return request;
        }
        if let Some(old) = old_push(&request) {
            return old;
        }
        if request.get("message").is_none() {
            return Value::Object(grpc::old_names(&request));
        }
        old_body(&Names::default(), request)
    }

    /// Converts a request to the JSON-RPC parameters of its version.
    fn rpc_params(&self, operation: Operation, request: Value) -> Value {
        if self.version == Version::V1_0 {
            return request;
        }
        match operation {
            Operation::SendMessage | Operation::SendStreamingMessage => {
                let request = model::SendMessageRequest::decode(request).unwrap();
                json(&v03::MessageSendParams::from(request))
            }
            Operation::CreatePushConfig => {
                let config = model::TaskPushNotificationConfig::decode(request).unwrap();
                json(&v03::TaskPushNotificationConfig::from(config))
            }
            Operation::ListPushConfigs => json!({ "id": request["taskId"] }),
            Operation::GetPushConfig | Operation::DeletePushConfig => {
                json!({ "id": request["taskId"], "pushNotificationConfigId": request["id"] })
            }
            _ => request,
        }
    }

    /// Maps a request to its URL, method and body; reads use a query instead of a body.
    fn rest(&self, operation: Operation, request: Value) -> (Client, &'static str, Value) {
        let mut request = request;
        let text = |name| request.get(name).and_then(Value::as_str).map(str::to_owned);
        let names = match text("taskId") {
            None => Names {
                task: text("id"),
                config: None,
            },
            task => Names {
                task,
                config: text("id"),
            },
        };
        let (verb, path) = path_of(self.version, operation, &names);
        let mut path = format!("{}/{path}", self.client.path);
        if verb.as_str() == "GET" {
            let pairs = request.as_object().unwrap().iter();
            let in_path = |name: &str| matches!(name, "id" | "taskId");
            let pairs = pairs.filter(|(name, _)| !in_path(name)).map(|(name, value)| {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{name}={text}")
            });
            let query = pairs.collect::<Vec<_>>().join("&");
            if !query.is_empty() {
                path = format!("{path}?{query}");
            }
            request = Value::Null;
        } else if verb.as_str() == "DELETE" {
            request = Value::Null;
        } else if self.version == Version::V0_3 {
            request = old_push(&request).unwrap_or_else(|| old_body(&names, request));
        }
        (self.client.clone().at(&path), verb.as_str(), request)
    }

    /// Converts a result to the format of 1.0.
    fn understand(&self, operation: Operation, result: Value) -> Value {
        match (self.version, self.binding, operation) {
            (_, _, Operation::DeletePushConfig) => {
                let is_nothing = result.is_null() || result == json!({});
                assert!(is_nothing, "{result}");
                Value::Null
            }
            (_, _, Operation::ListPushConfigs) => {
                let page = match result {
                    Value::Array(configs) => configs,
                    mut page => match page["configs"].take() {
                        Value::Array(configs) => configs,
                        _ => Vec::new(),
                    },
                };
                page.into_iter()
                    .map(|config| self.understand(Operation::GetPushConfig, config))
                    .collect()
            }
            (Version::V1_0, _, Operation::CreatePushConfig | Operation::GetPushConfig) => {
                json(&model::TaskPushNotificationConfig::decode(result).unwrap())
            }
            (Version::V0_3, Binding::Rpc, Operation::CreatePushConfig | Operation::GetPushConfig) => {
                let config = v03::TaskPushNotificationConfig::decode(result).unwrap();
                json(&model::TaskPushNotificationConfig::from(config))
            }
            (Version::V0_3, _, Operation::CreatePushConfig | Operation::GetPushConfig) => {
                let mut config = result["pushNotificationConfig"].clone();
                let name = result["name"].as_str().unwrap();
                let (task, id) = name
                    .strip_prefix("tasks/")
                    .and_then(|rest| rest.split_once("/pushNotificationConfigs/"))
                    .unwrap();
                assert_eq!(config["id"], id);
                config["taskId"] = task.into();
                if let Some(scheme) = config["authentication"]["schemes"].get(0).cloned() {
                    config["authentication"] = json!({ "scheme": scheme });
                }
                config
            }
            // Protocol buffers omit empty values, which the JSON format has.
            (Version::V1_0, Binding::Grpc, Operation::SendMessage) => {
                json(&model::SendMessageResponse::decode(result).unwrap())
            }
            (Version::V1_0, Binding::Grpc, Operation::ListTasks) => {
                json(&model::ListTasksResponse::decode(result).unwrap())
            }
            (Version::V1_0, Binding::Grpc, _) => json(&model::Task::decode(result).unwrap()),
            (Version::V1_0, Binding::Rpc | Binding::Rest, _) => result,
            (Version::V0_3, Binding::Rpc, Operation::SendMessage) => json(&model::SendMessageResponse::from(
                v03::SendResult::decode(result).unwrap(),
            )),
            (Version::V0_3, Binding::Rpc, _) => json(&model::Task::from(v03::Task::decode(result).unwrap())),
            (Version::V0_3, Binding::Rest | Binding::Grpc, Operation::SendMessage) => {
                json(&Proto::<model::SendMessageResponse>::decode(result).unwrap().0)
            }
            (Version::V0_3, Binding::Rest | Binding::Grpc, Operation::ListTasks) => {
                let mut page = result;
                for task in page["tasks"].as_array_mut().unwrap() {
                    *task = json(&Proto::<model::Task>::decode(task.take()).unwrap().0);
                }
                page
            }
            (Version::V0_3, Binding::Rest | Binding::Grpc, _) => {
                json(&Proto::<model::Task>::decode(result).unwrap().0)
            }
        }
    }
}

/// Updates of a task.
pub(crate) enum Updates {
    Events(Box<Stream>),
    Messages(Version, Operation, Box<grpc::Messages>),
}

impl Updates {
    /// Returns the next update; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        match self {
            Self::Events(stream) => stream.next().await,
            Self::Messages(version, operation, messages) => {
                let Some(message) = messages.next().await else {
                    assert_eq!(messages.ended().code, 0, "{:?}", messages.ended());
                    return None;
                };
                let document = grpc::document(*version, *operation, &message);
                Some(Frame::bare(None, &document))
            }
        }
    }

    pub(crate) async fn all(mut self) -> Vec<Frame> {
        let mut all = Vec::new();
        while let Some(frame) = self.next().await {
            all.push(frame);
        }
        all
    }
}

/// The body of a 0.3 request over HTTP+JSON.
fn old_body(names: &Names, request: Value) -> Value {
    let Some(message) = request.get("message") else {
        return names
            .task
            .as_ref()
            .map_or(Value::Null, |task| json!({"name": format!("tasks/{task}")}));
    };
    let mut message = message.clone();
    let parts = message.as_object_mut().unwrap().remove("parts").unwrap();
    message["content"] = parts.as_array().unwrap().iter().map(old_part).collect();
    let configuration = request.get("configuration").cloned().unwrap_or(json!({}));
    let mut old = json!({ "blocking": configuration["returnImmediately"] != true });
    for name in ["acceptedOutputModes", "historyLength"] {
        if let Some(value) = configuration.get(name) {
            old[name] = value.clone();
        }
    }
    if let Some(config) = configuration.get("taskPushNotificationConfig") {
        let config = model::TaskPushNotificationConfig::decode(config.clone()).unwrap();
        let config = json(&v03::TaskPushNotificationConfig::from(config));
        old["pushNotification"] = config["pushNotificationConfig"].clone();
    }
    json!({"message": message, "configuration": old})
}

/// A request about push configurations in the proto of 0.3; `None` for any other request.
fn old_push(request: &Value) -> Option<Value> {
    let task = request.get("taskId")?.as_str()?;
    let id = request.get("id").and_then(Value::as_str);
    Some(match (request.get("url"), id) {
        (None, None) => json!({ "parent": format!("tasks/{task}") }),
        (None, Some(id)) => json!({ "name": format!("tasks/{task}/pushNotificationConfigs/{id}") }),
        (Some(_), _) => {
            let config = model::TaskPushNotificationConfig::decode(request.clone()).unwrap();
            let config = v03::TaskPushNotificationConfig::from(config);
            json!({
                "parent": format!("tasks/{task}"),
                "configId": id.unwrap_or_default(),
                "config": { "pushNotificationConfig": json(&config)["pushNotificationConfig"] },
            })
        }
    })
}

fn old_part(part: &Value) -> Value {
    if let Some(data) = part.get("data") {
        return json!({"data": {"data": data}});
    }
    let file = [("raw", "fileWithBytes"), ("url", "fileWithUri")];
    for (new, old) in file {
        if let Some(content) = part.get(new) {
            let mut file = json!({ old: content });
            for (new, old) in [("mediaType", "mimeType"), ("filename", "name")] {
                if let Some(text) = part.get(new) {
                    file[old] = text.clone();
                }
            }
            return json!({ "file": file });
        }
    }
    part.clone()
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

/// The reason of an error in the HTTP+JSON binding.
fn reason(answer: &Answer) -> Refused {
    let document = answer.json();
    let error = &document["error"];
    assert_eq!(error["code"], answer.status, "{document}");
    let detail = &error["details"][0];
    if detail["fieldViolations"].is_array() {
        return Kind::InvalidParams.reason();
    }
    let reason = detail["reason"].as_str().unwrap_or_else(|| panic!("{document}"));
    Kind::from_reason(reason)
        .unwrap_or_else(|| panic!("{document}"))
        .reason()
}
