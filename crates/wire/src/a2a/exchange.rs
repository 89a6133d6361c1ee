//! Requests and replies, independent of version and binding, and their documents in each version.
//!
//! A binding determines the operation, turns the parameters into one JSON document, and decodes it as a
//! [`Request`] in the [`Form`] of its version. It writes the [`Reply`], or the items of a stream, in the same
//! form. An operation is therefore the same in every binding by construction: only names and shapes differ, and
//! they are defined here and in the modules below. Our client uses the same table in the opposite direction.

mod client;
mod salvage;

use serde::Serialize;
use serde_json::Value;

pub use client::read_item;

use super::{
    method::{Operation, Version},
    model::{
        AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
        ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
        SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
    },
    v03::{self, proto, proto::Proto},
};
use crate::json::{Decode, DecodeError};

/// The JSON shape of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// 1.0, identical in all bindings.
    V1_0,
    /// 0.3 in JSON-RPC.
    V0_3Rpc,
    /// 0.3 in HTTP+JSON and gRPC: the JSON form of its protocol buffers.
    V0_3Proto,
}

impl Form {
    #[must_use]
    pub const fn rpc(version: Version) -> Self {
        match version {
            Version::V1_0 => Self::V1_0,
            Version::V0_3 => Self::V0_3Rpc,
        }
    }

    #[must_use]
    pub const fn proto(version: Version) -> Self {
        match version {
            Version::V1_0 => Self::V1_0,
            Version::V0_3 => Self::V0_3Proto,
        }
    }

    /// The form of an operation in HTTP+JSON. It is the form of the version's protocol buffers, except for
    /// the agent card, which resembles the JSON-RPC document (for 0.3 see [`http_card`](v03::http_card)).
    #[must_use]
    pub const fn http(operation: Operation, version: Version) -> Self {
        match operation {
            Operation::GetExtendedAgentCard => Self::rpc(version),
            Operation::SendMessage
            | Operation::SendStreamingMessage
            | Operation::GetTask
            | Operation::ListTasks
            | Operation::CancelTask
            | Operation::SubscribeToTask
            | Operation::CreatePushConfig
            | Operation::GetPushConfig
            | Operation::ListPushConfigs
            | Operation::DeletePushConfig => Self::proto(version),
        }
    }
}

/// A decoded request of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    SendMessage(SendMessageRequest),
    SendStreamingMessage(SendMessageRequest),
    GetTask(GetTaskRequest),
    ListTasks(ListTasksRequest),
    CancelTask(CancelTaskRequest),
    SubscribeToTask(SubscribeToTaskRequest),
    CreatePushConfig(TaskPushNotificationConfig),
    GetPushConfig {
        task_id: String,
        /// `None` lets the server choose; only 0.3 over JSON-RPC allows it.
        id: Option<String>,
    },
    ListPushConfigs(ListTaskPushNotificationConfigsRequest),
    DeletePushConfig(DeleteTaskPushNotificationConfigRequest),
    GetExtendedAgentCard(GetExtendedAgentCardRequest),
}

/// Decodes a document as `New`, or as one of its 0.3 forms, and converts it to `New`.
fn read<New, Rpc>(form: Form, value: Value) -> Result<New, DecodeError>
where
    New: Decode,
    Rpc: Decode + Into<New>,
    Proto<New>: Decode,
{
    match form {
        Form::V1_0 => New::decode(value),
        Form::V0_3Rpc => Rpc::decode(value).map(Into::into),
        Form::V0_3Proto => Proto::decode(value).map(|Proto(request)| request),
    }
}

impl Request {
    /// Decodes the parameters of an operation.
    ///
    /// # Errors
    /// Returns the first field that is missing or invalid.
    pub fn decode(operation: Operation, form: Form, value: Value) -> Result<Self, DecodeError> {
        Ok(match operation {
            Operation::SendMessage => Self::SendMessage(read::<_, v03::MessageSendParams>(form, value)?),
            Operation::SendStreamingMessage => {
                Self::SendStreamingMessage(read::<_, v03::MessageSendParams>(form, value)?)
            }
            Operation::GetTask => Self::GetTask(read::<_, v03::TaskQueryParams>(form, value)?),
            Operation::ListTasks => Self::ListTasks(match form {
                Form::V1_0 | Form::V0_3Rpc => ListTasksRequest::decode(value)?,
                Form::V0_3Proto => Proto::decode(value)?.0,
            }),
            Operation::CancelTask => Self::CancelTask(read::<_, v03::TaskIdParams>(form, value)?),
            Operation::SubscribeToTask => Self::SubscribeToTask(read::<_, v03::TaskIdParams>(form, value)?),
            Operation::CreatePushConfig => {
                let config: TaskPushNotificationConfig =
                    read::<_, v03::TaskPushNotificationConfig>(form, value)?;
                config.require_task_id()?;
                Self::CreatePushConfig(config)
            }
            Operation::GetPushConfig => get_push_config(form, value)?,
            Operation::ListPushConfigs => {
                Self::ListPushConfigs(read::<_, v03::ListPushNotificationConfigParams>(form, value)?)
            }
            Operation::DeletePushConfig => {
                Self::DeletePushConfig(read::<_, v03::DeletePushNotificationConfigParams>(form, value)?)
            }
            Operation::GetExtendedAgentCard => {
                Self::GetExtendedAgentCard(GetExtendedAgentCardRequest::decode(value)?)
            }
        })
    }
}

fn get_push_config(form: Form, value: Value) -> Result<Request, DecodeError> {
    let (task_id, id) = match form {
        Form::V1_0 => {
            let request = GetTaskPushNotificationConfigRequest::decode(value)?;
            (request.task_id, Some(request.id))
        }
        Form::V0_3Rpc => {
            let params = v03::GetPushNotificationConfigParams::decode(value)?;
            (params.id, params.push_notification_config_id)
        }
        Form::V0_3Proto => {
            let (task_id, id) = proto::config(value)?;
            (task_id, Some(id))
        }
    };
    Ok(Request::GetPushConfig { task_id, id })
}

/// The reply to a request. Streams consist of [`StreamResponse`] items instead.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Sent(SendMessageResponse),
    Task(Task),
    Tasks(ListTasksResponse),
    PushConfig(TaskPushNotificationConfig),
    PushConfigs(ListTaskPushNotificationConfigsResponse),
    Deleted,
    Card(AgentCard),
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Spelled {
    Sent(SendMessageResponse),
    Task(Task),
    Tasks(ListTasksResponse),
    PushConfig(TaskPushNotificationConfig),
    PushConfigs(ListTaskPushNotificationConfigsResponse),
    Card(AgentCard),
    Item(StreamResponse),
    Nothing {},
    OldSent(v03::SendResult),
    OldTask(v03::Task),
    OldPushConfig(v03::TaskPushNotificationConfig),
    OldPushConfigs(Vec<v03::TaskPushNotificationConfig>),
    OldCard(v03::AgentCard),
    OldItem(v03::StreamEvent),
    Null(()),
    Proto(Proto<Reply>),
    ProtoItem(Proto<(StreamResponse, bool)>),
}

/// A document in a form, ready to be serialized.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Document(Spelled);

impl Serialize for Proto<Reply> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Reply::Sent(sent) => Proto(sent).serialize(serializer),
            Reply::Task(task) => Proto(task).serialize(serializer),
            Reply::Tasks(tasks) => Proto(tasks).serialize(serializer),
            Reply::PushConfig(config) => Proto(config).serialize(serializer),
            Reply::PushConfigs(configs) => Proto(configs).serialize(serializer),
            Reply::Deleted => Spelled::Nothing {}.serialize(serializer),
            Reply::Card(card) => Proto(card).serialize(serializer),
        }
    }
}

impl Serialize for Proto<(StreamResponse, bool)> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (item, is_final) = &self.0;
        Proto((item, *is_final)).serialize(serializer)
    }
}

impl Reply {
    #[must_use]
    pub fn into_document(self, form: Form) -> Document {
        Document(match (form, self) {
            (Form::V0_3Proto, reply) => Spelled::Proto(Proto(reply)),
            (Form::V1_0, Self::Sent(sent)) => Spelled::Sent(sent),
            (Form::V0_3Rpc, Self::Sent(sent)) => Spelled::OldSent(sent.into()),
            (Form::V1_0, Self::Task(task)) => Spelled::Task(task),
            (Form::V0_3Rpc, Self::Task(task)) => Spelled::OldTask(task.into()),
            // In 0.3, JSON-RPC has no such method, so the 1.0 document is used.
            (Form::V1_0 | Form::V0_3Rpc, Self::Tasks(tasks)) => Spelled::Tasks(tasks),
            (Form::V1_0, Self::PushConfig(config)) => Spelled::PushConfig(config),
            (Form::V0_3Rpc, Self::PushConfig(config)) => Spelled::OldPushConfig(config.into()),
            (Form::V1_0, Self::PushConfigs(page)) => Spelled::PushConfigs(page),
            (Form::V0_3Rpc, Self::PushConfigs(page)) => {
                Spelled::OldPushConfigs(page.configs.into_iter().map(Into::into).collect())
            }
            (Form::V1_0, Self::Deleted) => Spelled::Nothing {},
            (Form::V0_3Rpc, Self::Deleted) => Spelled::Null(()),
            (Form::V1_0, Self::Card(card)) => Spelled::Card(card),
            (Form::V0_3Rpc, Self::Card(card)) => Spelled::OldCard(card.into()),
        })
    }
}

impl Document {
    /// Converts an item of a stream. `is_final` marks the last item of the stream, which 0.3 puts into the document.
    #[must_use]
    pub fn item(item: StreamResponse, is_final: bool, form: Form) -> Self {
        Self(match form {
            Form::V1_0 => Spelled::Item(item),
            Form::V0_3Rpc => Spelled::OldItem(v03::StreamEvent::from_model(item, is_final)),
            Form::V0_3Proto => Spelled::ProtoItem(Proto((item, is_final))),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::a2a::arbitrary;

    const FORMS: [Form; 3] = [Form::V1_0, Form::V0_3Rpc, Form::V0_3Proto];

    fn spelled(reply: &Reply, form: Form) -> Value {
        serde_json::to_value(reply.clone().into_document(form)).unwrap()
    }

    #[test]
    fn all_forms_of_a_request_decode_equally() {
        let config = json!({"url": "https://e.com"});
        for (operation, new, rpc, proto) in [
            (
                Operation::SendMessage,
                json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}),
                json!({"message": {"kind": "message", "messageId": "m", "role": "user",
                    "parts": [{"kind": "text", "text": "x"}]}}),
                json!({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]},
                    "configuration": {"blocking": true}}),
            ),
            (
                Operation::GetTask,
                json!({"id": "t", "historyLength": 3}),
                json!({"id": "t", "historyLength": 3}),
                json!({"name": "tasks/t", "historyLength": 3}),
            ),
            (
                Operation::CancelTask,
                json!({"id": "t"}),
                json!({"id": "t"}),
                json!({"name": "tasks/t"}),
            ),
            (
                Operation::SubscribeToTask,
                json!({"id": "t"}),
                json!({"id": "t"}),
                json!({"name": "tasks/t"}),
            ),
            (
                Operation::CreatePushConfig,
                json!({"taskId": "t", "url": "https://e.com"}),
                json!({"taskId": "t", "pushNotificationConfig": config}),
                json!({"parent": "tasks/t", "config": {"pushNotificationConfig": config}}),
            ),
            (
                Operation::GetPushConfig,
                json!({"taskId": "t", "id": "c"}),
                json!({"id": "t", "pushNotificationConfigId": "c"}),
                json!({"name": "tasks/t/pushNotificationConfigs/c"}),
            ),
            (
                Operation::ListPushConfigs,
                json!({"taskId": "t"}),
                json!({"id": "t"}),
                json!({"parent": "tasks/t"}),
            ),
            (
                Operation::DeletePushConfig,
                json!({"taskId": "t", "id": "c"}),
                json!({"id": "t", "pushNotificationConfigId": "c"}),
                json!({"name": "tasks/t/pushNotificationConfigs/c"}),
            ),
            (Operation::GetExtendedAgentCard, json!({}), json!({}), json!({})),
        ] {
            let [new, rpc, proto] = [(Form::V1_0, new), (Form::V0_3Rpc, rpc), (Form::V0_3Proto, proto)]
                .map(|(form, document)| Request::decode(operation, form, document).unwrap());
            assert_eq!(new, rpc);
            assert_eq!(new, proto);
        }
        assert_eq!(
            Request::decode(Operation::GetPushConfig, Form::V0_3Rpc, json!({"id": "t"})).unwrap(),
            Request::GetPushConfig {
                task_id: "t".to_owned(),
                id: None
            }
        );
    }

    #[test]
    fn push_configuration_requires_a_task() {
        for (form, document) in [
            (Form::V1_0, json!({"url": "https://e.com"})),
            (
                Form::V0_3Rpc,
                json!({"pushNotificationConfig": {"url": "https://e.com"}}),
            ),
            (
                Form::V0_3Proto,
                json!({"config": {"pushNotificationConfig": {"url": "https://e.com"}}}),
            ),
        ] {
            assert!(Request::decode(Operation::CreatePushConfig, form, document).is_err());
        }
    }

    #[test]
    fn replies_are_written_in_each_form() {
        let page = Reply::PushConfigs(ListTaskPushNotificationConfigsResponse::default());
        for (reply, wanted) in [
            (&page, [json!({"configs": []}), json!([]), json!({"configs": []})]),
            (&Reply::Deleted, [json!({}), json!(null), json!({})]),
        ] {
            assert_eq!(FORMS.map(|form| spelled(reply, form)), wanted);
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(document in arbitrary::hostile_value()) {
            for operation in Operation::ALL {
                for form in FORMS {
                    let _ = Request::decode(*operation, form, document.clone());
                }
            }
        }

        #[test]
        fn send_result_is_wrapped_except_in_0_3_rpc(task in arbitrary::task()) {
            let sent = Reply::Sent(SendMessageResponse::Task(task.clone()));
            let task = Reply::Task(task);
            for form in FORMS {
                let [sent, task] = [&sent, &task].map(|reply| spelled(reply, form));
                match form {
                    Form::V0_3Rpc => prop_assert_eq!(sent, task),
                    Form::V1_0 | Form::V0_3Proto => prop_assert_eq!(sent, json!({ "task": task })),
                }
            }
        }
    }
}
