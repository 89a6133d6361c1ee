//! The client side of the same table: writes requests and decodes replies.
//!
//! [`Request::decode`] reads what this module writes, and this module reads what [`Reply::into_document`]
//! writes; tests check each pair. Replies are untrusted input, so an unexpected reply is rejected with the
//! name of the offending field. What cannot be read inside a task or a message is left out, and named in it.

use serde::Serialize;
use serde_json::Value;

use super::{
    super::{
        method::Operation,
        model::{
            AgentCard, GetTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigsResponse,
            ListTasksResponse, SendMessageResponse, StreamResponse, Task, TaskPushNotificationConfig,
        },
        paths::Names,
        v03::{self, proto, proto::Proto},
    },
    Form, Reply, Request, read,
    salvage::{self, LeftOut},
};
use crate::json::{Decode, DecodeError, Object};

impl Request {
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self {
            Self::SendMessage(_) => Operation::SendMessage,
            Self::SendStreamingMessage(_) => Operation::SendStreamingMessage,
            Self::GetTask(_) => Operation::GetTask,
            Self::ListTasks(_) => Operation::ListTasks,
            Self::CancelTask(_) => Operation::CancelTask,
            Self::SubscribeToTask(_) => Operation::SubscribeToTask,
            Self::CreatePushConfig(_) => Operation::CreatePushConfig,
            Self::GetPushConfig { .. } => Operation::GetPushConfig,
            Self::ListPushConfigs(_) => Operation::ListPushConfigs,
            Self::DeletePushConfig(_) => Operation::DeletePushConfig,
            Self::GetExtendedAgentCard(_) => Operation::GetExtendedAgentCard,
        }
    }

    /// The names that the path of the request contains.
    #[must_use]
    pub fn names(&self) -> Names {
        let (task, config) = match self {
            Self::SendMessage(_)
            | Self::SendStreamingMessage(_)
            | Self::ListTasks(_)
            | Self::GetExtendedAgentCard(_) => (None, None),
            Self::GetTask(request) => (Some(&request.id), None),
            Self::CancelTask(request) => (Some(&request.id), None),
            Self::SubscribeToTask(request) => (Some(&request.id), None),
            Self::CreatePushConfig(config) => (config.task_id.as_ref(), None),
            Self::GetPushConfig { task_id, id } => (Some(task_id), id.as_ref()),
            Self::ListPushConfigs(request) => (Some(&request.task_id), None),
            Self::DeletePushConfig(request) => (Some(&request.task_id), Some(&request.id)),
        };
        Names {
            task: task.cloned(),
            config: config.cloned(),
        }
    }

    /// Sets the tenant that the agent's interface declares. 0.3 has no field for it.
    #[must_use]
    pub fn with_tenant(mut self, name: Option<String>) -> Self {
        match &mut self {
            Self::SendMessage(request) | Self::SendStreamingMessage(request) => request.tenant = name,
            Self::GetTask(request) => request.tenant = name,
            Self::ListTasks(request) => request.tenant = name,
            Self::CancelTask(request) => request.tenant = name,
            Self::SubscribeToTask(request) => request.tenant = name,
            Self::CreatePushConfig(config) => config.tenant = name,
            // A tenant grants nothing, so this variant does not carry one.
            Self::GetPushConfig { .. } => {}
            Self::ListPushConfigs(request) => request.tenant = name,
            Self::DeletePushConfig(request) => request.tenant = name,
            Self::GetExtendedAgentCard(request) => request.tenant = name,
        }
        self
    }

    /// Converts the parameters to a document.
    ///
    /// # Errors
    /// Returns an error if the form cannot express the request: only 0.3 over JSON-RPC can request a push
    /// configuration without an id.
    pub fn into_document(self, form: Form) -> Result<Object, DecodeError> {
        match self {
            Self::SendMessage(request) | Self::SendStreamingMessage(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc => object(&v03::MessageSendParams::from(request)),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::GetTask(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc => object(&v03::TaskQueryParams::from(request)),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::ListTasks(request) => match form {
                // In 0.3, JSON-RPC has no such method, so the 1.0 document is used.
                Form::V1_0 | Form::V0_3Rpc => object(&request),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::CancelTask(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc => object(&v03::TaskIdParams::from(request)),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::SubscribeToTask(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc => object(&v03::TaskIdParams::from(request)),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::CreatePushConfig(config) => match form {
                Form::V1_0 => object(&config),
                Form::V0_3Rpc => object(&v03::TaskPushNotificationConfig::from(config)),
                Form::V0_3Proto => object(&proto::NewConfig(&config)),
            },
            Self::GetPushConfig { task_id, id } => get_push_config(task_id, id, form),
            Self::ListPushConfigs(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc => object(&v03::ListPushNotificationConfigParams::from(request)),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::DeletePushConfig(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc => object(&v03::DeletePushNotificationConfigParams::from(request)),
                Form::V0_3Proto => object(&Proto(&request)),
            },
            Self::GetExtendedAgentCard(request) => match form {
                Form::V1_0 => object(&request),
                Form::V0_3Rpc | Form::V0_3Proto => Ok(Object::new()),
            },
        }
    }
}

fn get_push_config(task_id: String, id: Option<String>, form: Form) -> Result<Object, DecodeError> {
    if form == Form::V0_3Rpc {
        return object(&v03::GetPushNotificationConfigParams {
            id: task_id,
            push_notification_config_id: id,
        });
    }
    let request = GetTaskPushNotificationConfigRequest {
        tenant: None,
        task_id,
        id: id.ok_or_else(|| DecodeError::missing().in_field("id"))?,
    };
    match form {
        Form::V1_0 | Form::V0_3Rpc => object(&request),
        Form::V0_3Proto => object(&Proto(&request)),
    }
}

/// Serializes a type that always serializes to an object.
fn object(value: &impl Serialize) -> Result<Object, DecodeError> {
    let value = serde_json::to_value(value)
        .map_err(|error| DecodeError::invalid(format!("cannot be written: {error}")))?;
    Object::decode(value)
}

impl Reply {
    /// Decodes the reply to an operation. For streaming operations use [`read_item`] instead.
    ///
    /// # Errors
    /// Returns the first field that is missing or invalid, unless it can be left out of a task or a message.
    pub fn decode(operation: Operation, form: Form, mut value: Value) -> Result<Self, DecodeError> {
        Ok(match operation {
            Operation::SendMessage | Operation::SendStreamingMessage => {
                let unreadable = salvage_item(form, &mut value);
                let mut sent = read::<SendMessageResponse, v03::SendResult>(form, value)?;
                match &mut sent {
                    SendMessageResponse::Task(task) => task.unreadable = unreadable,
                    SendMessageResponse::Message(message) => message.unreadable = unreadable,
                }
                Self::Sent(sent)
            }
            Operation::GetTask | Operation::CancelTask | Operation::SubscribeToTask => {
                let mut left_out = LeftOut::default();
                salvage::task(form, &mut value, &mut left_out);
                let mut task = read::<Task, v03::Task>(form, value)?;
                task.unreadable = left_out.into_texts();
                Self::Task(task)
            }
            Operation::ListTasks => Self::Tasks(list_tasks(form, value)?),
            Operation::CreatePushConfig | Operation::GetPushConfig => {
                Self::PushConfig(push_config(form, value)?)
            }
            Operation::ListPushConfigs => Self::PushConfigs(match form {
                Form::V1_0 => ListTaskPushNotificationConfigsResponse::decode(value)?,
                Form::V0_3Rpc => {
                    let configs = Vec::<v03::TaskPushNotificationConfig>::decode(value)?;
                    ListTaskPushNotificationConfigsResponse {
                        configs: configs.into_iter().map(Into::into).collect(),
                        next_page_token: String::new(),
                    }
                }
                Form::V0_3Proto => Proto::decode(value)?.0,
            }),
            // Agents reply with no body, `null` or an empty object; none carries information.
            Operation::DeletePushConfig => Self::Deleted,
            Operation::GetExtendedAgentCard => Self::Card(read::<AgentCard, v03::AgentCard>(form, value)?),
        })
    }
}

fn push_config(form: Form, value: Value) -> Result<TaskPushNotificationConfig, DecodeError> {
    match form {
        Form::V1_0 => TaskPushNotificationConfig::decode(value),
        Form::V0_3Rpc => v03::TaskPushNotificationConfig::decode(value).map(Into::into),
        Form::V0_3Proto => proto::known_config(value),
    }
}

fn list_tasks(form: Form, mut value: Value) -> Result<ListTasksResponse, DecodeError> {
    // In 0.3, JSON-RPC has no such method, so the 1.0 document is used.
    let form = match form {
        Form::V1_0 | Form::V0_3Rpc => Form::V1_0,
        Form::V0_3Proto => Form::V0_3Proto,
    };
    let mut unreadable = Vec::new();
    for task in value
        .get_mut("tasks")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let mut left_out = LeftOut::default();
        salvage::task(form, task, &mut left_out);
        unreadable.push(left_out.into_texts());
    }
    let mut page: ListTasksResponse = match form {
        Form::V1_0 | Form::V0_3Rpc => Decode::decode(value)?,
        Form::V0_3Proto => Proto::decode(value)?.0,
    };
    for (task, unreadable) in page.tasks.iter_mut().zip(unreadable) {
        task.unreadable = unreadable;
    }
    Ok(page)
}

/// Decodes an item of a stream.
///
/// # Errors
/// Returns the first field that is missing or invalid, unless it can be left out of a task or a message.
pub fn read_item(form: Form, mut value: Value) -> Result<StreamResponse, DecodeError> {
    let unreadable = salvage_item(form, &mut value);
    let mut item = read::<StreamResponse, v03::StreamEvent>(form, value)?;
    match &mut item {
        StreamResponse::Task(task) => task.unreadable = unreadable,
        StreamResponse::Message(message) => message.unreadable = unreadable,
        StreamResponse::StatusUpdate(update) => update.unreadable = unreadable,
        StreamResponse::ArtifactUpdate(update) => update.unreadable = unreadable,
    }
    Ok(item)
}

/// Removes what cannot be read from the answer to a message, or from an item of a stream.
fn salvage_item(form: Form, value: &mut Value) -> Vec<String> {
    let mut left_out = LeftOut::default();
    match form {
        Form::V0_3Rpc => match value.get("kind").and_then(Value::as_str) {
            Some("task") => salvage::task(form, value, &mut left_out),
            Some("message") => salvage::message(form, value, &mut left_out),
            Some(_) => salvage::update(form, value, &mut left_out),
            None => {}
        },
        Form::V1_0 | Form::V0_3Proto => {
            for (name, member) in value.as_object_mut().into_iter().flatten() {
                match name.as_str() {
                    "task" => salvage::task(form, member, &mut left_out),
                    "message" => salvage::message(form, member, &mut left_out),
                    "statusUpdate" | "artifactUpdate" => salvage::update(form, member, &mut left_out),
                    _ => {}
                }
            }
        }
    }
    left_out.into_texts()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::a2a::{
        arbitrary,
        exchange::Document,
        method::Version,
        model::{
            AuthenticationInfo, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
            GetExtendedAgentCardRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTasksRequest, Message, Part, Role, Secret, SendMessageConfiguration, SendMessageRequest,
            SubscribeToTaskRequest, TaskState,
        },
        protobuf,
    };

    const FORMS: [Form; 3] = [Form::V1_0, Form::V0_3Rpc, Form::V0_3Proto];

    fn config() -> TaskPushNotificationConfig {
        TaskPushNotificationConfig {
            tenant: None,
            id: Some("c".to_owned()),
            task_id: Some("t".to_owned()),
            url: "https://e.com/hook".to_owned(),
            token: Some(Secret::new("tok").unwrap()),
            authentication: Some(AuthenticationInfo {
                scheme: "Bearer".to_owned(),
                credentials: Some(Secret::new("cred").unwrap()),
            }),
        }
    }

    fn requests() -> Vec<Request> {
        let id = || "t".to_owned();
        let message = || SendMessageRequest {
            tenant: None,
            message: Message::new(
                "m",
                Role::User,
                vec![Part::text("hi"), Part::data(json!({"k": [1]}))],
            ),
            configuration: SendMessageConfiguration {
                accepted_output_modes: vec!["text/plain".to_owned()],
                task_push_notification_config: Some(TaskPushNotificationConfig {
                    task_id: None,
                    ..config()
                }),
                history_length: Some(3),
                return_immediately: true,
            },
            metadata: json!({"a": "b"}).as_object().unwrap().clone(),
        };
        vec![
            Request::SendMessage(message()),
            Request::SendMessage(SendMessageRequest {
                configuration: SendMessageConfiguration::default(),
                ..message()
            }),
            Request::SendStreamingMessage(message()),
            Request::GetTask(GetTaskRequest {
                tenant: None,
                id: id(),
                history_length: Some(7),
            }),
            Request::ListTasks(ListTasksRequest {
                context_id: Some("c".to_owned()),
                status: Some(TaskState::Canceled),
                page_size: Some(5),
                page_token: Some("p/1".to_owned()),
                history_length: Some(0),
                include_artifacts: true,
                ..ListTasksRequest::default()
            }),
            Request::ListTasks(ListTasksRequest::default()),
            Request::CancelTask(CancelTaskRequest {
                tenant: None,
                id: id(),
                metadata: Object::new(),
            }),
            Request::SubscribeToTask(SubscribeToTaskRequest {
                tenant: None,
                id: id(),
            }),
            Request::CreatePushConfig(config()),
            Request::CreatePushConfig(TaskPushNotificationConfig {
                id: None,
                token: None,
                authentication: None,
                ..config()
            }),
            Request::GetPushConfig {
                task_id: id(),
                id: Some("c".to_owned()),
            },
            Request::ListPushConfigs(ListTaskPushNotificationConfigsRequest {
                tenant: None,
                task_id: id(),
                page_size: None,
                page_token: None,
            }),
            Request::DeletePushConfig(DeleteTaskPushNotificationConfigRequest {
                tenant: None,
                task_id: id(),
                id: "c".to_owned(),
            }),
            Request::GetExtendedAgentCard(GetExtendedAgentCardRequest::default()),
        ]
    }

    #[test]
    fn server_reads_requests_of_our_client() {
        for request in requests() {
            for form in FORMS {
                let document = request.clone().into_document(form).unwrap();
                let read = Request::decode(request.operation(), form, document.clone().into());
                assert_eq!(
                    read.as_ref(),
                    Ok(&request),
                    "{form:?}: {}",
                    Value::Object(document)
                );
            }
        }
    }

    #[test]
    fn requests_round_trip_through_protobuf() {
        for request in requests() {
            for version in Version::ALL {
                let form = Form::proto(*version);
                let Some(method) = protobuf::method(*version, request.operation()) else {
                    continue;
                };
                let document = request.clone().into_document(form).unwrap();
                let bytes = protobuf::write(method.request, &document).unwrap();
                let document = protobuf::read(method.request, &bytes).unwrap();
                let read = Request::decode(request.operation(), form, document.into());
                assert_eq!(read.as_ref(), Ok(&request), "{version}");
            }
        }
    }

    #[test]
    fn only_0_3_rpc_requests_a_configuration_without_an_id() {
        let request = Request::GetPushConfig {
            task_id: "t".to_owned(),
            id: None,
        };
        for form in FORMS {
            let written = request.clone().into_document(form);
            assert_eq!(written.is_ok(), form == Form::V0_3Rpc, "{form:?}");
        }
    }

    #[test]
    fn tenant_is_written_where_the_request_has_a_field_for_it() {
        for request in requests() {
            let request = request.with_tenant(Some("acme".to_owned()));
            let document = request.clone().into_document(Form::V1_0).unwrap();
            let has_place = !matches!(request, Request::GetPushConfig { .. });
            assert_eq!(document.contains_key("tenant"), has_place, "{request:?}");
            let old = request.into_document(Form::V0_3Rpc).unwrap();
            assert!(!old.contains_key("tenant") || old.contains_key("pageSize") || old.len() == 1);
        }
    }

    #[test]
    fn our_client_reads_replies_of_the_server() {
        let page = ListTaskPushNotificationConfigsResponse {
            configs: vec![config()],
            next_page_token: String::new(),
        };
        for (operation, reply) in [
            (Operation::CreatePushConfig, Reply::PushConfig(config())),
            (Operation::GetPushConfig, Reply::PushConfig(config())),
            (Operation::ListPushConfigs, Reply::PushConfigs(page)),
            (Operation::DeletePushConfig, Reply::Deleted),
        ] {
            for form in FORMS {
                let document = serde_json::to_value(reply.clone().into_document(form)).unwrap();
                assert_eq!(
                    Reply::decode(operation, form, document).unwrap(),
                    reply,
                    "{form:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(document in arbitrary::hostile_value()) {
            for form in FORMS {
                for operation in Operation::ALL {
                    let _ = Reply::decode(*operation, form, document.clone());
                }
                let _ = read_item(form, document.clone());
            }
        }

        #[test]
        fn tasks_round_trip(task in arbitrary::task()) {
            // The first round trip loses what the form cannot express; the second loses nothing.
            for form in FORMS {
                let written = |reply: Reply| serde_json::to_value(reply.into_document(form)).unwrap();
                let reply = |operation, document| Reply::decode(operation, form, document).unwrap();
                let once = reply(Operation::GetTask, written(Reply::Task(task.clone())));
                let again = reply(Operation::CancelTask, written(once.clone()));
                prop_assert_eq!(&once, &again);
                let Reply::Task(task) = once else { panic!("it is a task") };
                let sent = Reply::Sent(SendMessageResponse::Task(task.clone()));
                prop_assert_eq!(&reply(Operation::SendMessage, written(sent.clone())), &sent);
                let tasks = Reply::Tasks(ListTasksResponse {
                    tasks: if form == Form::V0_3Rpc { Vec::new() } else { vec![task] },
                    next_page_token: "n".to_owned(),
                    page_size: 1,
                    total_size: 2,
                });
                prop_assert_eq!(&reply(Operation::ListTasks, written(tasks.clone())), &tasks);
            }
        }

        #[test]
        fn stream_items_round_trip(item in arbitrary::stream_response()) {
            for form in FORMS {
                let written = |item| serde_json::to_value(Document::item(item, false, form)).unwrap();
                let once = read_item(form, written(item.clone())).unwrap();
                prop_assert_eq!(read_item(form, written(once.clone())).unwrap(), once);
            }
        }
    }
}
