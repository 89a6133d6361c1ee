//! Requests and responses of A2A clients, in both versions.

use serde_json::{Value, json};

use super::caller::Request;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    V03,
    V1,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum To<'a> {
    /// Start a task of this workflow.
    Workflow(&'a str),
    /// Approve the gate of this task.
    Gate(&'a str),
}

/// A push receiver for a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiver<'a> {
    /// The id of the push configuration, unique within the task.
    pub(super) id: &'a str,
    pub(super) url: &'a str,
    /// Token and credentials that the host sends.
    pub(super) secret: &'a str,
}

/// The content of a push.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) task: String,
    /// The sequence number of the event.
    pub(super) sequence: u64,
    pub(super) shown: Shown,
}

/// The content of a stream frame.
#[derive(Debug)]
pub(super) enum Shown {
    Task {
        id: String,
        state: String,
        artifacts: usize,
    },
    /// A new state.
    Status(String),
    /// The id of an artifact.
    Artifact(String),
}

impl Version {
    /// A blocking send. The message's id is also its text.
    pub(super) fn send(self, id: &str, to: To<'_>) -> Request {
        self.call(
            "message/send",
            "SendMessage",
            &json!({"message": self.message(id, to)}),
        )
    }

    /// Like [`Version::send`], with a push receiver.
    pub(super) fn send_and_tell(self, id: &str, to: To<'_>, receiver: Receiver<'_>) -> Request {
        let (member, configuration) = match self {
            Self::V03 => ("pushNotificationConfig", json!({"blocking": true})),
            Self::V1 => ("taskPushNotificationConfig", json!({})),
        };
        let mut params = json!({"message": self.message(id, to), "configuration": configuration});
        params["configuration"][member] = self.receiver(receiver);
        self.call("message/send", "SendMessage", &params)
    }

    /// Adds a push receiver to a task.
    pub(super) fn tell(self, task: &str, receiver: Receiver<'_>) -> Request {
        let mut params = self.receiver(receiver);
        match self {
            Self::V03 => params = json!({"taskId": task, "pushNotificationConfig": params}),
            Self::V1 => params["taskId"] = task.into(),
        }
        self.call(
            "tasks/pushNotificationConfig/set",
            "CreateTaskPushNotificationConfig",
            &params,
        )
    }

    fn receiver(self, Receiver { id, url, secret }: Receiver<'_>) -> Value {
        let scheme = match self {
            Self::V03 => json!({"schemes": ["Bearer"], "credentials": secret}),
            Self::V1 => json!({"scheme": "Bearer", "credentials": secret}),
        };
        json!({"id": id, "url": url, "token": secret, "authentication": scheme})
    }

    /// Like [`Version::send`] for a new task, with a streamed response.
    pub(super) fn stream(self, id: &str, workflow: &str) -> Request {
        let message = self.message(id, To::Workflow(workflow));
        self.call(
            "message/stream",
            "SendStreamingMessage",
            &json!({"message": message}),
        )
    }

    /// Subscribes to an existing task.
    pub(super) fn subscribe(self, task: &str) -> Request {
        self.call("tasks/resubscribe", "SubscribeToTask", &json!({"id": task}))
    }

    /// Reads a task.
    pub(super) fn get(self, task: &str) -> Request {
        self.call("tasks/get", "GetTask", &json!({"id": task}))
    }

    pub(super) fn cancel(self, task: &str) -> Request {
        self.call("tasks/cancel", "CancelTask", &json!({"id": task}))
    }

    fn message(self, id: &str, to: To<'_>) -> Value {
        let mut message = json!({"messageId": id});
        let text = match self {
            Self::V03 => json!({"kind": "text", "text": id}),
            Self::V1 => json!({"text": id}),
        };
        match to {
            To::Workflow(workflow) => {
                message["metadata"] = json!({"openwop.workflowId": workflow});
                message["parts"] = json!([text]);
            }
            To::Gate(task) => {
                let mut part = json!({"data": {"approve": true}});
                if matches!(self, Self::V03) {
                    part["kind"] = "data".into();
                }
                message["taskId"] = task.into();
                message["parts"] = json!([part]);
            }
        }
        match self {
            Self::V03 => {
                message["kind"] = "message".into();
                message["role"] = "user".into();
            }
            Self::V1 => message["role"] = "ROLE_USER".into(),
        }
        message
    }

    fn call(self, old: &str, new: &str, params: &Value) -> Request {
        let method = match self {
            Self::V03 => old,
            Self::V1 => new,
        };
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = Request::post("/a2a", body);
        match self {
            Self::V03 => request,
            Self::V1 => request.with("a2a-version", "1.0"),
        }
    }
}

/// The id and state of the task in a response.
pub(super) fn task(answer: &Value) -> Option<(String, String)> {
    let result = answer.get("result")?;
    let task = result.get("task").unwrap_or(result);
    Some((task["id"].as_str()?.to_owned(), state_of(task)?))
}

/// The message of a request, with the same id and another text.
pub(super) fn said_otherwise(request: &Request) -> Request {
    let mut other = request.clone();
    let body = other.body_mut().expect("a message is sent along");
    body["params"]["message"]["parts"][0]["text"] = "something else".into();
    other
}

/// Parses a stream frame.
pub(super) fn shown(frame: &Value) -> Option<Shown> {
    let result = frame.get("result")?;
    let kind = result["kind"].as_str();
    let part = |old: &str, new: &str| match kind {
        Some(kind) => (kind == old).then_some(result),
        None => result.get(new),
    };
    if let Some(task) = part("task", "task") {
        return Some(Shown::Task {
            id: task["id"].as_str()?.to_owned(),
            state: state_of(task)?,
            artifacts: task["artifacts"].as_array().map_or(0, Vec::len),
        });
    }
    if let Some(update) = part("status-update", "statusUpdate") {
        return Some(Shown::Status(state_of(update)?));
    }
    let update = part("artifact-update", "artifactUpdate")?;
    let id = update.pointer("/artifact/artifactId")?.as_str()?;
    Some(Shown::Artifact(id.to_owned()))
}

/// Parses the body of a push: a task in 0.3, an update in 1.0.
pub(super) fn pushed(body: &Value) -> Option<Pushed> {
    let sequence = |item: &Value| item.pointer("/metadata/openwop/sequence")?.as_u64();
    let text = |item: &Value, name: &str| item[name].as_str().map(str::to_owned);
    if body["kind"] == "task" {
        // The task names all artifacts so far, and its metadata the new one.
        let artifact = body
            .pointer("/metadata/openwop/artifactId")
            .and_then(Value::as_str);
        return Some(Pushed {
            task: text(body, "id")?,
            sequence: sequence(body)?,
            shown: match artifact {
                Some(id) => Shown::Artifact(id.to_owned()),
                None => Shown::Status(state_of(body)?),
            },
        });
    }
    let update = body.get("statusUpdate").or_else(|| body.get("artifactUpdate"))?;
    Some(Pushed {
        task: text(update, "taskId")?,
        sequence: sequence(update)?,
        shown: shown(&json!({"result": body}))?,
    })
}

/// The state in 0.3 spelling.
fn state_of(document: &Value) -> Option<String> {
    let state = document.pointer("/status/state")?.as_str()?;
    Some(match state.strip_prefix("TASK_STATE_") {
        Some(state) => state.to_lowercase().replace('_', "-"),
        None => state.to_owned(),
    })
}
