//! The task API of the Agent Workflow Protocol: a task is submitted, and read until it has ended.
//!
//! ```text
//!   POST {base}/tasks {agent_id, correlation_id, input}  ->  {id, status}
//!   GET  {base}/tasks/{id}                               ->  {id, status, output?, error?}
//! ```
//!
//! There is no card, no stream and no way to cancel. The credential is always a bearer token. What a status means
//! for a call is not decided here.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use serde_json::{Value, json};
use url::Url;
use wopr_wire::a2a::paths;

use super::{
    error::{Error, bounded},
    known::{Known, Presented},
    line::{Answer, Call, MAX_ANSWER, read},
    peer::{Credential, Polling},
};
use crate::egress::{Protocol, Request, Seam, StreamLimits};

/// The name of the transport in configuration.
pub(super) const NAME: &str = "tasks-http";
/// Maximum length of a task's id in bytes.
const MAX_ID: usize = 2 << 10;

/// The task API of one peer.
#[derive(Debug, Clone)]
pub struct TaskApi {
    known: Arc<Known>,
    polling: Polling,
    call: Call,
}

/// A task as the peer describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteTask {
    pub id: String,
    pub status: TaskStatus,
    /// What a completed task has made.
    pub output: Option<Value>,
    /// Why a task failed, in the peer's words.
    pub error: Option<String>,
}

/// The status of a task. The API defines the first five; some agents say how else a task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStatus {
    Submitted,
    Working,
    InputRequired,
    Completed,
    Failed,
    Canceled,
    Rejected,
}

impl TaskStatus {
    const NAMES: [(&'static str, Self); 8] = [
        ("submitted", Self::Submitted),
        ("working", Self::Working),
        ("input-required", Self::InputRequired),
        ("completed", Self::Completed),
        ("failed", Self::Failed),
        ("canceled", Self::Canceled),
        ("cancelled", Self::Canceled),
        ("rejected", Self::Rejected),
    ];
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, status)| status == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl TaskApi {
    pub(super) fn new(known: Arc<Known>, polling: Polling, call: Call) -> Self {
        Self { known, polling, call }
    }

    #[must_use]
    pub fn polling(&self) -> Polling {
        self.polling
    }

    /// Submits a task. Every attempt sends the same `correlation_id` and `key` (as `Idempotency-Key`), by either of
    /// which an agent may recognize it.
    ///
    /// # Errors
    /// See [`Error::may_have_been_sent`].
    pub async fn submit(
        &self,
        agent_id: &str,
        correlation_id: &str,
        key: &str,
        input: &Value,
    ) -> Result<RemoteTask, Error> {
        let document = json!({ "agent_id": agent_id, "correlation_id": correlation_id, "input": input });
        let body = serde_json::to_vec(&document).map_err(|error| Error::Unwritable(error.to_string()))?;
        self.ask(Method::POST, self.at("/tasks"), body.into(), Some(key))
            .await
    }

    /// Reads a task.
    ///
    /// # Errors
    /// Returns [`Error::OtherTask`] if the peer answers with another task.
    pub async fn get(&self, id: &str) -> Result<RemoteTask, Error> {
        let url = self.at(&format!("/tasks/{}", paths::escape(id)));
        let task = self.ask(Method::GET, url, Bytes::new(), None).await?;
        if task.id != id {
            return Err(Error::OtherTask);
        }
        Ok(task)
    }

    /// Returns the peer's address with a longer path.
    fn at(&self, path: &str) -> Url {
        let mut url = self.known.peer.url.clone();
        url.set_path(&format!(
            "{}{path}",
            self.known.peer.url.path().trim_end_matches('/')
        ));
        url
    }

    /// Sends a request. If the peer refuses a token that was in use before, the token is renewed once.
    async fn ask(
        &self,
        method: Method,
        url: Url,
        body: Bytes,
        key: Option<&str>,
    ) -> Result<RemoteTask, Error> {
        if matches!(self.known.peer.credential, Credential::None) {
            return Err(Error::CredentialMissing {
                source_name: "the peer's configuration".to_owned(),
            });
        }
        let presented = self.known.present().await?;
        let used_token = presented.used_token.clone();
        let send =
            |presented| Box::pin(self.attempt(presented, method.clone(), url.clone(), body.clone(), key));
        match (send(presented).await, used_token) {
            (Err(error), Some(token)) if error.is_unauthorized() => {
                self.known.tokens.forget(&token);
                send(self.known.present().await?).await
            }
            (result, _) => result,
        }
    }

    async fn attempt(
        &self,
        presented: Presented,
        method: Method,
        url: Url,
        body: Bytes,
        key: Option<&str>,
    ) -> Result<RemoteTask, Error> {
        let mut request = Request::new(method, url);
        let headers = &mut request.headers;
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::ACCEPT, json.clone());
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, json);
        }
        if let Some(key) = key.and_then(|key| HeaderValue::from_str(key).ok()) {
            headers.insert("idempotency-key", key);
        }
        if let Some((name, value)) = presented.header {
            headers.insert(name, value);
        }
        request.body = body;
        request.tenant.clone_from(&self.call.tenant);
        request.trace.clone_from(&self.call.trace);
        request.protocol = Protocol::Negotiated;
        let limits = StreamLimits {
            headers: self.call.timeout,
            idle: self.call.timeout,
            total: self.call.timeout,
            body: MAX_ANSWER,
        };
        let gate = self.known.gate_to(&request.url);
        let place = request.url.clone();
        let response = gate.stream(Seam::A2a, request, limits).await;
        let answer: Answer = read(response.map_err(|error| Error::of_request(error, &place))?).await?;
        let secrets = &presented.secrets;
        if !answer.status.is_success() {
            return Err(Error::of_http(
                answer.status,
                &answer.headers,
                &answer.body,
                secrets,
            ));
        }
        let mut document =
            serde_json::from_slice(&answer.body).map_err(|error| Error::undecodable(&error, secrets))?;
        secrets.redact(&mut document);
        read_task(document).map_err(|why| Error::Undecodable(bounded(&why)))
    }
}

/// Reads a task of the API. Unknown members are ignored, and an error that is not a text.
///
/// # Errors
/// Returns what is wrong with the document.
pub fn read_task(document: Value) -> Result<RemoteTask, String> {
    let Value::Object(mut members) = document else {
        return Err("the task is not an object".to_owned());
    };
    let id = members.get("id").and_then(Value::as_str).unwrap_or_default();
    // The two names would change the path of a request.
    if id.trim().is_empty() || id.len() > MAX_ID || id == "." || id == ".." {
        return Err("the task has no usable id".to_owned());
    }
    let id = id.to_owned();
    let status = members.get("status").and_then(Value::as_str).unwrap_or_default();
    let known = TaskStatus::NAMES.iter().find(|(name, _)| *name == status);
    let (_, status) = known.ok_or_else(|| format!("the task has the unsupported status '{status}'"))?;
    let output = members.remove("output").filter(|output| !output.is_null());
    let error = match members.remove("error") {
        Some(Value::String(error)) if !error.trim().is_empty() => Some(error),
        Some(_) | None => None,
    };
    Ok(RemoteTask {
        id,
        status: *status,
        output,
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_needs_an_id_and_a_known_status() {
        for (document, why) in [
            (json!([]), "the task is not an object"),
            (json!({"status": "working"}), "the task has no usable id"),
            (
                json!({"id": " ", "status": "working"}),
                "the task has no usable id",
            ),
            (
                json!({"id": "..", "status": "working"}),
                "the task has no usable id",
            ),
            (json!({"id": 7, "status": "working"}), "the task has no usable id"),
            (json!({"id": "t"}), "the task has the unsupported status ''"),
            (
                json!({"id": "t", "status": "auth-required"}),
                "the task has the unsupported status 'auth-required'",
            ),
        ] {
            assert_eq!(read_task(document.clone()), Err(why.to_owned()), "{document}");
        }
        assert!(read_task(json!({"id": "x".repeat(MAX_ID + 1), "status": "working"})).is_err());
    }

    #[test]
    fn output_is_kept_as_it_is_and_an_error_only_if_it_is_a_text() {
        let task = read_task(json!({
            "id": "t", "status": "cancelled", "output": [1], "error": {"code": 7}, "more": true,
        }));
        let wanted = RemoteTask {
            id: "t".to_owned(),
            status: TaskStatus::Canceled,
            output: Some(json!([1])),
            error: None,
        };
        assert_eq!(task, Ok(wanted));
        let task = read_task(json!({"id": "t", "status": "failed", "output": null, "error": "no"})).unwrap();
        assert_eq!((task.output, task.error.as_deref()), (None, Some("no")));
    }
}
