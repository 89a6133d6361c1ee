//! The official A2A client for Rust, which supports 1.0 over JSON-RPC, HTTP+JSON and gRPC.

use std::sync::Arc;

use a2a::{
    AgentCard, GetExtendedAgentCardRequest, Message, Part, Role, SendMessageConfiguration,
    SendMessageRequest, SendMessageResponse, StreamResponse, TRANSPORT_PROTOCOL_GRPC,
    TRANSPORT_PROTOCOL_HTTP_JSON, TRANSPORT_PROTOCOL_JSONRPC, TaskPushNotificationConfig, TaskState,
};
use a2a_client::{
    A2AClient, A2AClientFactory, BoxStream, Transport, agent_card::AgentCardResolver, auth::AuthInterceptor,
    jsonrpc::JsonRpcTransportFactory, rest::RestTransportFactory,
};
use a2a_grpc::GrpcTransportFactory;
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    host::{Host, KEY},
    interop::LIMIT,
    interop_pushes::Receivers,
};

type Client = A2AClient<Box<dyn Transport>>;
type Items = BoxStream<'static, Result<StreamResponse, a2a::A2AError>>;

/// An HTTP client for loopback, without root certificates.
fn http() -> reqwest::Client {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls);
    builder.no_proxy().build().unwrap()
}

async fn client(card: &AgentCard, binding: &str) -> Client {
    let mut card = card.clone();
    card.supported_interfaces
        .retain(|interface| interface.protocol_binding == binding && interface.protocol_version == "1.0");
    assert_eq!(
        card.supported_interfaces.len(),
        1,
        "the card names {binding} once"
    );
    let factory = A2AClientFactory::builder()
        .no_defaults()
        .register(Arc::new(JsonRpcTransportFactory::new(Some(http()))))
        .register(Arc::new(RestTransportFactory::new(Some(http()))))
        .register(Arc::new(GrpcTransportFactory::new()))
        .with_interceptor(Arc::new(AuthInterceptor::bearer(KEY)))
        .build();
    factory.create_from_card(&card).await.unwrap()
}

/// A message to a task, or one that starts a task.
fn message(text: &str, task: Option<&str>) -> SendMessageRequest {
    let mut message = Message::new(Role::User, vec![Part::text(text)]);
    message.task_id = task.map(str::to_owned);
    if task.is_none() {
        let skill = [("skillId".to_owned(), json!("campaign-brief"))];
        message.metadata = Some(skill.into_iter().collect());
    }
    SendMessageRequest {
        message,
        configuration: None,
        metadata: None,
        tenant: None,
    }
}

async fn next(items: &mut Items) -> Option<StreamResponse> {
    let next = timeout(LIMIT, items.next()).await.unwrap();
    next.map(Result::unwrap)
}

/// Reads the rest of a stream.
async fn rest(mut items: Items) -> Vec<StreamResponse> {
    let mut seen = Vec::new();
    while let Some(item) = next(&mut items).await {
        seen.push(item);
    }
    seen
}

fn state(item: &StreamResponse) -> Option<TaskState> {
    match item {
        StreamResponse::Task(task) => Some(task.status.state.clone()),
        StreamResponse::StatusUpdate(update) => Some(update.status.state.clone()),
        StreamResponse::Message(_) | StreamResponse::ArtifactUpdate(_) => None,
    }
}

/// A push configuration for a receiver below an address.
fn receiver(receivers: &str, name: &str, task: Option<&str>) -> TaskPushNotificationConfig {
    let config = json!({
        "id": name, "taskId": task.unwrap_or_default(), "url": format!("{receivers}/{name}"), "token": name,
        "authentication": { "scheme": "Bearer", "credentials": name },
    });
    serde_json::from_value(config).unwrap()
}

/// Adds another receiver to a waiting task, and one that is deleted again.
async fn push(client: &Client, receivers: &str, task: &str) {
    for name in ["set", "removed"] {
        let config = receiver(receivers, name, Some(task));
        let set = client.create_push_config(&config).await.unwrap();
        assert_eq!(set.url, config.url);
    }
    for name in ["sent", "set", "removed"] {
        let wanted = serde_json::from_value(json!({ "taskId": task, "id": name })).unwrap();
        let shown = client.get_push_config(&wanted).await.unwrap();
        assert_eq!(shown.url, format!("{receivers}/{name}"));
        let secrets = (
            shown.token,
            shown.authentication.and_then(|info| info.credentials),
        );
        let is_empty = |secret: Option<String>| secret.is_none_or(|secret| secret.is_empty());
        assert!(is_empty(secrets.0) && is_empty(secrets.1), "no secret is shown");
    }
    let wanted = serde_json::from_value(json!({ "taskId": task })).unwrap();
    let listed = client.list_push_configs(&wanted).await.unwrap();
    assert_eq!(listed.configs.len(), 3);
    let removed = json!({ "taskId": task, "id": "removed" });
    let delete = serde_json::from_value(removed.clone()).unwrap();
    client.delete_push_config(&delete).await.unwrap();
    let wanted = serde_json::from_value(removed).unwrap();
    let refused = client.get_push_config(&wanted).await.unwrap_err();
    assert_eq!(refused.code, -32001, "{refused}");
}

async fn journey(client: &Client, receivers: &str) {
    let mut begin = message("a launch", None);
    begin.configuration = Some(SendMessageConfiguration {
        accepted_output_modes: None,
        task_push_notification_config: Some(receiver(receivers, "sent", None)),
        history_length: None,
        return_immediately: None,
    });
    let mut items = client.send_streaming_message(&begin).await.unwrap();
    let Some(StreamResponse::Task(task)) = next(&mut items).await else {
        panic!("a task comes first");
    };
    let seen = rest(items).await;
    assert_eq!(
        seen.last().and_then(state),
        Some(TaskState::InputRequired),
        "{seen:?}"
    );

    let get = serde_json::from_value(json!({ "id": task.id })).unwrap();
    let kept = client.get_task(&get).await.unwrap();
    assert_eq!(kept.status.state, TaskState::InputRequired);
    push(client, receivers, &task.id).await;

    // A subscription opened while the task waits receives its later updates.
    let subscribe = serde_json::from_value(json!({ "id": task.id })).unwrap();
    let mut watched = client.subscribe_to_task(&subscribe).await.unwrap();
    let first = next(&mut watched).await;
    assert!(matches!(first, Some(StreamResponse::Task(_))), "{first:?}");
    let answered = client
        .send_message(&message("approve", Some(&task.id)))
        .await
        .unwrap();
    let SendMessageResponse::Task(done) = answered else {
        panic!("the answer is the task");
    };
    assert_eq!(done.status.state, TaskState::Completed);
    assert!(done.artifacts.is_some_and(|artifacts| !artifacts.is_empty()));
    let seen = rest(watched).await;
    assert_eq!(
        seen.last().and_then(state),
        Some(TaskState::Completed),
        "{seen:?}"
    );
    assert!(
        seen.iter()
            .any(|item| matches!(item, StreamResponse::ArtifactUpdate(_))),
        "{seen:?}"
    );

    let list = json!({ "contextId": task.context_id, "includeArtifacts": true });
    let page = client
        .list_tasks(&serde_json::from_value(list).unwrap())
        .await
        .unwrap();
    assert_eq!((page.tasks.len(), page.total_size), (1, 1));
    assert_eq!(page.tasks[0].id, task.id);

    let sent = client.send_message(&message("another", None)).await.unwrap();
    let SendMessageResponse::Task(other) = sent else {
        panic!("the answer is a task");
    };
    let cancel = serde_json::from_value(json!({ "id": other.id })).unwrap();
    assert_eq!(
        client.cancel_task(&cancel).await.unwrap().status.state,
        TaskState::Canceled
    );
    let refused = client.cancel_task(&cancel).await.unwrap_err();
    assert_eq!(refused.code, -32002, "{refused}");
    let unknown = serde_json::from_value(json!({ "id": "run_00000000000000000000000000000000" })).unwrap();
    let refused = client.get_task(&unknown).await.unwrap_err();
    assert_eq!(refused.code, -32001, "{refused}");

    let extended = GetExtendedAgentCardRequest { tenant: None };
    let card = client.get_extended_agent_card(&extended).await.unwrap();
    assert!(card.skills.iter().any(|skill| skill.id == "campaign-brief"));
}

#[tokio::test]
async fn a2a_rust_client_works_over_its_bindings() {
    let mut host = Host::new().variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let address = host.start().await;
    let receivers = Receivers::start().await;
    let resolver = AgentCardResolver::new(Some(http()));
    let card = resolver.resolve(&format!("http://{address}")).await.unwrap();
    for binding in [
        TRANSPORT_PROTOCOL_JSONRPC,
        TRANSPORT_PROTOCOL_HTTP_JSON,
        TRANSPORT_PROTOCOL_GRPC,
    ] {
        journey(&client(&card, binding).await, &receivers.url(binding)).await;
        receivers.check(binding, "1.0").await;
    }
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}
