//! Dispatches operations to their handlers, for every binding.

use wopr_wire::a2a::{
    error::A2aError,
    exchange::{Reply, Request},
    method::Operation,
};

use super::{
    error::Error,
    service::{Call, Service},
    stream::TaskStream,
    supported::PUSH_NOTIFICATIONS,
};

#[derive(Debug)]
pub(super) enum Answer {
    Reply(Box<Reply>),
    Stream(Box<TaskStream>),
}

/// Rejects an operation that this host does not offer, before the request is decoded.
pub(super) fn demand_offered(operation: Operation) -> Result<(), A2aError> {
    match operation {
        Operation::CreatePushConfig
        | Operation::GetPushConfig
        | Operation::ListPushConfigs
        | Operation::DeletePushConfig
            if !PUSH_NOTIFICATIONS =>
        {
            Err(A2aError::PushNotificationNotSupported)
        }
        Operation::SendMessage
        | Operation::SendStreamingMessage
        | Operation::GetTask
        | Operation::ListTasks
        | Operation::CancelTask
        | Operation::SubscribeToTask
        | Operation::CreatePushConfig
        | Operation::GetPushConfig
        | Operation::ListPushConfigs
        | Operation::DeletePushConfig
        | Operation::GetExtendedAgentCard => Ok(()),
    }
}

impl Service {
    /// Performs an operation. Each handler's future is boxed separately: inline they would add many kilobytes
    /// to the future of every request.
    pub(super) async fn perform(&self, call: &Call, request: Request) -> Result<Answer, Error> {
        let reply = match request {
            Request::SendMessage(request) => Reply::Sent(Box::pin(self.send(call, request)).await?),
            Request::SendStreamingMessage(request) => {
                let stream = Box::pin(self.send_stream(call, request)).await?;
                return Ok(Answer::Stream(Box::new(stream)));
            }
            Request::GetTask(request) => Reply::Task(Box::pin(self.get(call, request)).await?),
            Request::ListTasks(request) => Reply::Tasks(Box::pin(self.list(call, request)).await?),
            Request::CancelTask(request) => Reply::Task(Box::pin(self.cancel(call, request)).await?),
            Request::SubscribeToTask(request) => {
                let stream = Box::pin(self.subscribe(call, request)).await?;
                return Ok(Answer::Stream(Box::new(stream)));
            }
            Request::CreatePushConfig(config) => {
                Reply::PushConfig(Box::pin(self.create_push(call, config)).await?)
            }
            Request::GetPushConfig { task_id, id } => {
                Reply::PushConfig(Box::pin(self.get_push(call, &task_id, id.as_deref())).await?)
            }
            Request::ListPushConfigs(request) => {
                Reply::PushConfigs(Box::pin(self.list_pushes(call, request)).await?)
            }
            Request::DeletePushConfig(request) => {
                Box::pin(self.delete_push(call, request)).await?;
                Reply::Deleted
            }
            Request::GetExtendedAgentCard(_) => Reply::Card(self.extended_card(call)?),
        };
        Ok(Answer::Reply(Box::new(reply)))
    }
}
