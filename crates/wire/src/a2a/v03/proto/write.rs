//! Encoding tasks, messages, events and push configurations.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::{
    super::{
        super::model::{
            Artifact, ListTaskPushNotificationConfigsResponse, ListTasksResponse, Message, Metadata, Part,
            PartContent, SendMessageResponse, StreamResponse, Task, TaskArtifactUpdateEvent,
            TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent, encode_base64,
        },
        PushNotificationConfig,
        convert::boxed,
    },
    Proto,
};

/// The name of a state; all but one are the same as in 1.0.
pub(super) const fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Canceled => super::read::CANCELLED,
        TaskState::Unspecified
        | TaskState::Submitted
        | TaskState::Working
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::InputRequired
        | TaskState::Rejected
        | TaskState::AuthRequired => state.as_str(),
    }
}

/// A list whose elements are encoded in this shape.
struct Each<'a, T>(&'a [T]);

impl<'a, T> Serialize for Each<'a, T>
where
    Proto<&'a T>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Proto))
    }
}

/// Writes members and omits empty ones.
pub(super) struct Members<M>(M);

impl<M: SerializeMap> Members<M> {
    pub(super) fn put(
        &mut self,
        name: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), M::Error> {
        self.0.serialize_entry(name, value)
    }

    pub(super) fn some(
        &mut self,
        name: &'static str,
        value: Option<&impl Serialize>,
    ) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.put(name, value))
    }

    fn list<'a, T>(&mut self, name: &'static str, list: &'a [T]) -> Result<(), M::Error>
    where
        Proto<&'a T>: Serialize,
    {
        if list.is_empty() {
            return Ok(());
        }
        self.put(name, &Each(list))
    }

    pub(super) fn texts(&mut self, name: &'static str, texts: &[String]) -> Result<(), M::Error> {
        if texts.is_empty() {
            return Ok(());
        }
        self.put(name, texts)
    }

    pub(super) fn metadata(&mut self, metadata: &Metadata) -> Result<(), M::Error> {
        if metadata.is_empty() {
            return Ok(());
        }
        self.put("metadata", metadata)
    }
}

pub(super) fn object<S: Serializer>(
    serializer: S,
    write: impl FnOnce(&mut Members<S::SerializeMap>) -> Result<(), S::Error>,
) -> Result<S::Ok, S::Error> {
    let mut members = Members(serializer.serialize_map(None)?);
    write(&mut members)?;
    members.0.end()
}

/// Writes an object with a single member.
pub(super) fn only<S: Serializer>(
    serializer: S,
    name: &'static str,
    value: &impl Serialize,
) -> Result<S::Ok, S::Error> {
    object(serializer, |members| members.put(name, value))
}

struct File<'a> {
    body: (&'static str, String),
    part: &'a Part,
}

impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        object(serializer, |members| {
            members.put(self.body.0, &self.body.1)?;
            members.some("mimeType", self.part.media_type.as_ref())?;
            members.some("name", self.part.filename.as_ref())
        })
    }
}

struct Data<'a>(&'a Value);

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        only(serializer, "data", self.0)
    }
}

impl Serialize for Proto<&Part> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = self.0;
        let file = |name, text| File {
            body: (name, text),
            part,
        };
        object(serializer, |members| {
            match &part.content {
                PartContent::Text(text) => members.put("text", text)?,
                PartContent::Raw(bytes) => {
                    members.put("file", &file("fileWithBytes", encode_base64(bytes)))?;
                }
                PartContent::Url(url) => members.put("file", &file("fileWithUri", url.clone()))?,
                PartContent::Data(value @ Value::Object(_)) => members.put("data", &Data(value))?,
                PartContent::Data(value) => {
                    let (data, metadata) = boxed(value.clone(), part.metadata.clone());
                    members.put("data", &Data(&Value::Object(data)))?;
                    return members.metadata(&metadata);
                }
            }
            members.metadata(&part.metadata)
        })
    }
}

impl Serialize for Proto<&Message> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = self.0;
        object(serializer, |members| {
            members.put("messageId", &message.message_id)?;
            members.some("contextId", message.context_id.as_ref())?;
            members.some("taskId", message.task_id.as_ref())?;
            members.put("role", &message.role)?;
            members.list("content", &message.parts)?;
            members.metadata(&message.metadata)?;
            members.texts("extensions", &message.extensions)
        })
    }
}

impl Serialize for Proto<&Artifact> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let artifact = self.0;
        object(serializer, |members| {
            members.put("artifactId", &artifact.artifact_id)?;
            members.some("name", artifact.name.as_ref())?;
            members.some("description", artifact.description.as_ref())?;
            members.list("parts", &artifact.parts)?;
            members.metadata(&artifact.metadata)?;
            members.texts("extensions", &artifact.extensions)
        })
    }
}

impl Serialize for Proto<&TaskStatus> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let status = self.0;
        object(serializer, |members| {
            members.put("state", state_name(status.state))?;
            members.some("message", status.message.as_ref().map(Proto).as_ref())?;
            members.some("timestamp", status.timestamp.as_ref())
        })
    }
}

impl Serialize for Proto<&Task> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let task = self.0;
        object(serializer, |members| {
            members.put("id", &task.id)?;
            members.put("contextId", &task.context_id)?;
            members.put("status", &Proto(&task.status))?;
            members.list("artifacts", &task.artifacts)?;
            members.list("history", &task.history)?;
            members.metadata(&task.metadata)
        })
    }
}

/// A status update; the flag marks the last item of the stream.
impl Serialize for Proto<(&TaskStatusUpdateEvent, bool)> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (event, is_final) = self.0;
        object(serializer, |members| {
            members.put("taskId", &event.task_id)?;
            members.put("contextId", &event.context_id)?;
            members.put("status", &Proto(&event.status))?;
            if is_final || event.status.state.is_terminal() {
                members.put("final", &true)?;
            }
            members.metadata(&event.metadata)
        })
    }
}

impl Serialize for Proto<&TaskArtifactUpdateEvent> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let event = self.0;
        object(serializer, |members| {
            members.put("taskId", &event.task_id)?;
            members.put("contextId", &event.context_id)?;
            members.put("artifact", &Proto(&event.artifact))?;
            for (name, flag) in [("append", event.append), ("lastChunk", event.last_chunk)] {
                if flag {
                    members.put(name, &true)?;
                }
            }
            members.metadata(&event.metadata)
        })
    }
}

/// A stream item; the flag marks the last item of the stream.
impl Serialize for Proto<(&StreamResponse, bool)> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (item, is_final) = self.0;
        match item {
            StreamResponse::Task(task) => only(serializer, "task", &Proto(task)),
            StreamResponse::Message(message) => only(serializer, "message", &Proto(message)),
            StreamResponse::StatusUpdate(event) => {
                only(serializer, "statusUpdate", &Proto((event, is_final)))
            }
            StreamResponse::ArtifactUpdate(event) => only(serializer, "artifactUpdate", &Proto(event)),
        }
    }
}

impl Serialize for Proto<&SendMessageResponse> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            SendMessageResponse::Task(task) => only(serializer, "task", &Proto(task)),
            SendMessageResponse::Message(message) => only(serializer, "message", &Proto(message)),
        }
    }
}

/// The protocol buffers define no such response. This is the response of 1.0 with tasks in the shape of 0.3.
impl Serialize for Proto<&ListTasksResponse> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let page = self.0;
        object(serializer, |members| {
            members.put("tasks", &Each(&page.tasks))?;
            members.put("nextPageToken", &page.next_page_token)?;
            members.put("pageSize", &page.page_size)?;
            members.put("totalSize", &page.total_size)
        })
    }
}

impl Serialize for Proto<&TaskPushNotificationConfig> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let config = self.0;
        let task = config.task_id.as_deref().unwrap_or_default();
        let id = config.id.as_deref().unwrap_or_default();
        object(serializer, |members| {
            members.put("name", &format!("tasks/{task}/pushNotificationConfigs/{id}"))?;
            members.put(
                "pushNotificationConfig",
                &PushNotificationConfig::from(config.clone()),
            )
        })
    }
}

impl Serialize for Proto<&ListTaskPushNotificationConfigsResponse> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let page = self.0;
        object(serializer, |members| {
            members.put("configs", &Each(&page.configs))?;
            if page.next_page_token.is_empty() {
                return Ok(());
            }
            members.put("nextPageToken", &page.next_page_token)
        })
    }
}
