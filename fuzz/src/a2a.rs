//! A2A in both versions: JSON-RPC request bodies, and all other documents of the protocol.

use std::fmt::Debug;

use serde::Serialize;
use serde_json::Value;
use wopr_wire::{
    a2a::{
        exchange::{self, Document, Form, Reply, Request},
        method::{Operation, Version},
        model, plain, rpc, v03,
    },
    json::Decode,
};

/// The encodings of a document.
const FORMS: [Form; 3] = [Form::V1_0, Form::V0_3Rpc, Form::V0_3Proto];

/// A body is parsed as a request, or rejected with its id and a JSON-RPC error. A parsed 1.0 document
/// survives a round trip and can be written in every encoding. The fast path parses the same as the slow one.
///
/// # Panics
/// If a property does not hold.
pub fn a2a_1(data: &[u8]) {
    if let Some((id, message)) = plain::send_message(data) {
        let request = rpc::Request::parse(data).unwrap();
        assert_eq!(request.id, id);
        let params = request.params.unwrap();
        assert_eq!(model::SendMessageRequest::decode(params), Ok(message));
    }
    let Some(document) = call(data, Version::V1_0) else {
        return;
    };
    comes_back::<model::SendMessageRequest>(&document);
    comes_back::<model::GetTaskRequest>(&document);
    comes_back::<model::ListTasksRequest>(&document);
    comes_back::<model::CancelTaskRequest>(&document);
    comes_back::<model::TaskPushNotificationConfig>(&document);
    comes_back::<model::SendMessageResponse>(&document);
    if let Some(item) = comes_back::<model::StreamResponse>(&document) {
        for form in FORMS {
            serde_json::to_value(Document::item(item.clone(), true, form)).unwrap();
        }
    }
    if let Some(task) = comes_back::<model::Task>(&document) {
        spells(&Reply::Task(task));
    }
    if let Some(card) = comes_back::<model::AgentCard>(&document) {
        spells(&Reply::Card(card));
    }
}

/// Like [`a2a_1`] for 0.3: a parsed document survives the conversion to the 1.0 model and back.
///
/// # Panics
/// If a property does not hold.
pub fn a2a_03(data: &[u8]) {
    let Some(document) = call(data, Version::V0_3) else {
        return;
    };
    survives::<v03::MessageSendParams, model::SendMessageRequest>(&document);
    survives::<v03::TaskQueryParams, model::GetTaskRequest>(&document);
    survives::<v03::Task, model::Task>(&document);
    survives::<v03::Message, model::Message>(&document);
    survives::<v03::SendResult, model::SendMessageResponse>(&document);
    if let Some(card) = comes_back::<v03::AgentCard>(&document) {
        // A 0.3 card has one version for all interfaces; we always write ours.
        let written = v03::AgentCard::from(model::AgentCard::from(card));
        let again = v03::AgentCard::from(model::AgentCard::from(written.clone()));
        assert_eq!(again, written);
    }
    if let Some(item) = comes_back::<v03::StreamEvent>(&document) {
        let item = model::StreamResponse::from(item);
        let again = v03::StreamEvent::from_model(item.clone(), false);
        assert_eq!(model::StreamResponse::from(again), item);
    }
}

/// Parses a body as a request with its parameters. Returns the parameters, or the whole body if it is not a
/// request.
fn call(data: &[u8], version: Version) -> Option<Value> {
    let request = match rpc::Request::parse(data) {
        Ok(request) => request,
        Err(rejection) => {
            let body = rpc::encode_error(&rejection.id, &rejection.error, version);
            let answer = rpc::Response::parse(&body).unwrap();
            assert!(answer.outcome.is_err());
            return serde_json::from_slice(data).ok();
        }
    };
    let answer = rpc::Response::parse(&rpc::encode_result(&request.id, &"done")).unwrap();
    let id = match request.id {
        rpc::Id::Absent => rpc::Id::Null,
        id => id,
    };
    assert_eq!(answer.id, id, "answered under another id");
    let params = request.params.unwrap_or_default();
    for operation in Operation::ALL {
        if operation.rpc_method(version) == Some(request.method.as_str())
            && let Err(error) = Request::decode(*operation, Form::rpc(version), params.clone())
        {
            assert!(!error.to_string().is_empty());
        }
        // The same operation in the version's other bindings.
        let _ = Request::decode(*operation, Form::proto(version), params.clone());
        for form in [Form::rpc(version), Form::proto(version)] {
            asks_again(*operation, form, &params);
        }
    }
    Some(params)
}

/// A parsed request survives a round trip. The document may also be parsed as a reply.
fn asks_again(operation: Operation, form: Form, document: &Value) {
    if let Ok(request) = Request::decode(operation, form, document.clone()) {
        assert_eq!(request.operation(), operation);
        let written = Value::Object(request.clone().into_document(form).unwrap());
        let again = Request::decode(operation, form, written.clone());
        assert_eq!(again.as_ref(), Ok(&request), "read from {written}");
    }
    let _ = Reply::decode(operation, form, document.clone());
    let _ = exchange::read_item(form, document.clone());
}

/// A parsed document survives a round trip.
fn comes_back<T: Decode + Serialize + PartialEq + Debug>(document: &Value) -> Option<T> {
    let read = T::decode(document.clone()).ok()?;
    let written = serde_json::to_value(&read).unwrap();
    let again = T::decode(written.clone());
    assert_eq!(again.as_ref(), Ok(&read), "read from {written}");
    Some(read)
}

/// A parsed 0.3 document keeps its meaning when it is converted to 1.0 and back.
fn survives<Old, New>(document: &Value)
where
    Old: Decode + Serialize + PartialEq + Debug + From<New>,
    New: From<Old> + Clone + PartialEq + Debug,
{
    if let Some(old) = comes_back::<Old>(document) {
        let new = New::from(old);
        assert_eq!(New::from(Old::from(new.clone())), new);
    }
}

fn spells(reply: &Reply) {
    for form in FORMS {
        serde_json::to_value(reply.clone().into_document(form)).unwrap();
    }
}
