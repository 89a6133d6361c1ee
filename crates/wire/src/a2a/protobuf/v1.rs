//! The package `lf.a2a.v1` of version 1.0.

use super::{
    super::method::Operation,
    schema::{EMPTY, Enum, Kind, Message, alike, field, message, named},
};

alike!();

static TASK_STATE: Enum = Enum {
    name: "TaskState",
    values: &[
        "TASK_STATE_UNSPECIFIED",
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
        "TASK_STATE_COMPLETED",
        "TASK_STATE_FAILED",
        "TASK_STATE_CANCELED",
        "TASK_STATE_INPUT_REQUIRED",
        "TASK_STATE_REJECTED",
        "TASK_STATE_AUTH_REQUIRED",
    ],
};
static TASK_STATUS: Message = message(
    "TaskStatus",
    &[
        field(1, "state", Kind::Enum(&TASK_STATE)),
        field(2, "message", Kind::Message(&MESSAGE)),
        field(3, "timestamp", Kind::Timestamp),
    ],
);
static PART: Message = message(
    "Part",
    &[
        field(1, "text", Kind::Text).one_of("content"),
        field(2, "raw", Kind::Bytes).one_of("content"),
        field(3, "url", Kind::Text).one_of("content"),
        field(4, "data", Kind::Value).one_of("content"),
        field(5, "metadata", Kind::Struct),
        field(6, "filename", Kind::Text),
        named(7, "media_type", "mediaType", Kind::Text),
    ],
);
static MESSAGE: Message = message(
    "Message",
    &[
        named(1, "message_id", "messageId", Kind::Text),
        named(2, "context_id", "contextId", Kind::Text),
        named(3, "task_id", "taskId", Kind::Text),
        field(4, "role", Kind::Enum(&ROLE)),
        field(5, "parts", Kind::Message(&PART)).many(),
        field(6, "metadata", Kind::Struct),
        field(7, "extensions", Kind::Text).many(),
        named(8, "reference_task_ids", "referenceTaskIds", Kind::Text).many(),
    ],
);
static ARTIFACT: Message = message(
    "Artifact",
    &[
        named(1, "artifact_id", "artifactId", Kind::Text),
        field(2, "name", Kind::Text),
        field(3, "description", Kind::Text),
        field(4, "parts", Kind::Message(&PART)).many(),
        field(5, "metadata", Kind::Struct),
        field(6, "extensions", Kind::Text).many(),
    ],
);
static TASK_STATUS_UPDATE_EVENT: Message = message(
    "TaskStatusUpdateEvent",
    &[
        named(1, "task_id", "taskId", Kind::Text),
        named(2, "context_id", "contextId", Kind::Text),
        field(3, "status", Kind::Message(&TASK_STATUS)),
        field(4, "metadata", Kind::Struct),
    ],
);
static STREAM_RESPONSE: Message = message(
    "StreamResponse",
    &[
        field(1, "task", Kind::Message(&TASK)).one_of("payload"),
        field(2, "message", Kind::Message(&MESSAGE)).one_of("payload"),
        named(
            3,
            "status_update",
            "statusUpdate",
            Kind::Message(&TASK_STATUS_UPDATE_EVENT),
        )
        .one_of("payload"),
        named(
            4,
            "artifact_update",
            "artifactUpdate",
            Kind::Message(&TASK_ARTIFACT_UPDATE_EVENT),
        )
        .one_of("payload"),
    ],
);
static SEND_MESSAGE_RESPONSE: Message = message(
    "SendMessageResponse",
    &[
        field(1, "task", Kind::Message(&TASK)).one_of("payload"),
        field(2, "message", Kind::Message(&MESSAGE)).one_of("payload"),
    ],
);
static SEND_MESSAGE_CONFIGURATION: Message = message(
    "SendMessageConfiguration",
    &[
        named(1, "accepted_output_modes", "acceptedOutputModes", Kind::Text).many(),
        named(
            2,
            "task_push_notification_config",
            "taskPushNotificationConfig",
            Kind::Message(&TASK_PUSH_NOTIFICATION_CONFIG),
        ),
        named(3, "history_length", "historyLength", Kind::Int32).optional(),
        named(4, "return_immediately", "returnImmediately", Kind::Bool),
    ],
);
static SEND_MESSAGE_REQUEST: Message = message(
    "SendMessageRequest",
    &[
        field(1, "tenant", Kind::Text),
        field(2, "message", Kind::Message(&MESSAGE)),
        field(3, "configuration", Kind::Message(&SEND_MESSAGE_CONFIGURATION)),
        field(4, "metadata", Kind::Struct),
    ],
);
static GET_TASK_REQUEST: Message = message(
    "GetTaskRequest",
    &[
        field(1, "tenant", Kind::Text),
        field(2, "id", Kind::Text),
        named(3, "history_length", "historyLength", Kind::Int32).optional(),
    ],
);
static LIST_TASKS_REQUEST: Message = message(
    "ListTasksRequest",
    &[
        field(1, "tenant", Kind::Text),
        named(2, "context_id", "contextId", Kind::Text),
        field(3, "status", Kind::Enum(&TASK_STATE)),
        named(4, "page_size", "pageSize", Kind::Int32).optional(),
        named(5, "page_token", "pageToken", Kind::Text),
        named(6, "history_length", "historyLength", Kind::Int32).optional(),
        named(
            7,
            "status_timestamp_after",
            "statusTimestampAfter",
            Kind::Timestamp,
        ),
        named(8, "include_artifacts", "includeArtifacts", Kind::Bool).optional(),
    ],
);
static LIST_TASKS_RESPONSE: Message = message(
    "ListTasksResponse",
    &[
        field(1, "tasks", Kind::Message(&TASK)).many(),
        named(2, "next_page_token", "nextPageToken", Kind::Text),
        named(3, "page_size", "pageSize", Kind::Int32),
        named(4, "total_size", "totalSize", Kind::Int32),
    ],
);
static CANCEL_TASK_REQUEST: Message = message(
    "CancelTaskRequest",
    &[
        field(1, "tenant", Kind::Text),
        field(2, "id", Kind::Text),
        field(3, "metadata", Kind::Struct),
    ],
);
static SUBSCRIBE_TO_TASK_REQUEST: Message = message(
    "SubscribeToTaskRequest",
    &[field(1, "tenant", Kind::Text), field(2, "id", Kind::Text)],
);
static AUTHENTICATION_INFO: Message = message(
    "AuthenticationInfo",
    &[
        field(1, "scheme", Kind::Text),
        field(2, "credentials", Kind::Text),
    ],
);
static TASK_PUSH_NOTIFICATION_CONFIG: Message = message(
    "TaskPushNotificationConfig",
    &[
        field(1, "tenant", Kind::Text),
        field(2, "id", Kind::Text),
        named(3, "task_id", "taskId", Kind::Text),
        field(4, "url", Kind::Text),
        field(5, "token", Kind::Text),
        field(6, "authentication", Kind::Message(&AUTHENTICATION_INFO)),
    ],
);
static GET_PUSH_CONFIG_REQUEST: Message = message(
    "GetTaskPushNotificationConfigRequest",
    &[
        field(1, "tenant", Kind::Text),
        named(2, "task_id", "taskId", Kind::Text),
        field(3, "id", Kind::Text),
    ],
);
static DELETE_PUSH_CONFIG_REQUEST: Message = message(
    "DeleteTaskPushNotificationConfigRequest",
    &[
        field(1, "tenant", Kind::Text),
        named(2, "task_id", "taskId", Kind::Text),
        field(3, "id", Kind::Text),
    ],
);
static LIST_PUSH_CONFIGS_REQUEST: Message = message(
    "ListTaskPushNotificationConfigsRequest",
    &[
        named(1, "task_id", "taskId", Kind::Text),
        named(2, "page_size", "pageSize", Kind::Int32),
        named(3, "page_token", "pageToken", Kind::Text),
        field(4, "tenant", Kind::Text),
    ],
);
static LIST_PUSH_CONFIGS_RESPONSE: Message = message(
    "ListTaskPushNotificationConfigsResponse",
    &[
        field(1, "configs", Kind::Message(&TASK_PUSH_NOTIFICATION_CONFIG)).many(),
        named(2, "next_page_token", "nextPageToken", Kind::Text),
    ],
);
static GET_EXTENDED_CARD_REQUEST: Message =
    message("GetExtendedAgentCardRequest", &[field(1, "tenant", Kind::Text)]);

static AGENT_CARD: Message = message(
    "AgentCard",
    &[
        field(1, "name", Kind::Text),
        field(2, "description", Kind::Text),
        named(
            3,
            "supported_interfaces",
            "supportedInterfaces",
            Kind::Message(&AGENT_INTERFACE),
        )
        .many(),
        field(4, "provider", Kind::Message(&AGENT_PROVIDER)),
        field(5, "version", Kind::Text),
        named(6, "documentation_url", "documentationUrl", Kind::Text).optional(),
        field(7, "capabilities", Kind::Message(&AGENT_CAPABILITIES)),
        named(
            8,
            "security_schemes",
            "securitySchemes",
            Kind::Message(&SECURITY_SCHEME),
        )
        .map(),
        named(
            9,
            "security_requirements",
            "securityRequirements",
            Kind::Message(&SECURITY_REQUIREMENT),
        )
        .many(),
        named(10, "default_input_modes", "defaultInputModes", Kind::Text).many(),
        named(11, "default_output_modes", "defaultOutputModes", Kind::Text).many(),
        field(12, "skills", Kind::Message(&AGENT_SKILL)).many(),
        field(13, "signatures", Kind::Message(&AGENT_CARD_SIGNATURE)).many(),
        named(14, "icon_url", "iconUrl", Kind::Text).optional(),
    ],
);
static AGENT_INTERFACE: Message = message(
    "AgentInterface",
    &[
        field(1, "url", Kind::Text),
        named(2, "protocol_binding", "protocolBinding", Kind::Text),
        field(3, "tenant", Kind::Text),
        named(4, "protocol_version", "protocolVersion", Kind::Text),
    ],
);
static AGENT_CAPABILITIES: Message = message(
    "AgentCapabilities",
    &[
        field(1, "streaming", Kind::Bool).optional(),
        named(2, "push_notifications", "pushNotifications", Kind::Bool).optional(),
        field(3, "extensions", Kind::Message(&AGENT_EXTENSION)).many(),
        named(4, "extended_agent_card", "extendedAgentCard", Kind::Bool).optional(),
    ],
);
static AGENT_SKILL: Message = message(
    "AgentSkill",
    &[
        field(1, "id", Kind::Text),
        field(2, "name", Kind::Text),
        field(3, "description", Kind::Text),
        field(4, "tags", Kind::Text).many(),
        field(5, "examples", Kind::Text).many(),
        named(6, "input_modes", "inputModes", Kind::Text).many(),
        named(7, "output_modes", "outputModes", Kind::Text).many(),
        named(
            8,
            "security_requirements",
            "securityRequirements",
            Kind::Message(&SECURITY_REQUIREMENT),
        )
        .many(),
    ],
);
static SECURITY_REQUIREMENT: Message = message(
    "SecurityRequirement",
    &[field(1, "schemes", Kind::Message(&STRING_LIST)).map()],
);
static OAUTH_FLOWS: Message = message(
    "OAuthFlows",
    &[
        named(
            1,
            "authorization_code",
            "authorizationCode",
            Kind::Message(&AUTHORIZATION_CODE),
        )
        .one_of("flow"),
        named(
            2,
            "client_credentials",
            "clientCredentials",
            Kind::Message(&CLIENT_CREDENTIALS),
        )
        .one_of("flow"),
        field(3, "implicit", Kind::Message(&IMPLICIT)).one_of("flow"),
        field(4, "password", Kind::Message(&PASSWORD)).one_of("flow"),
        named(5, "device_code", "deviceCode", Kind::Message(&DEVICE_CODE)).one_of("flow"),
    ],
);
static AUTHORIZATION_CODE: Message = message(
    "AuthorizationCodeOAuthFlow",
    &[
        named(1, "authorization_url", "authorizationUrl", Kind::Text),
        named(2, "token_url", "tokenUrl", Kind::Text),
        named(3, "refresh_url", "refreshUrl", Kind::Text),
        field(4, "scopes", Kind::Text).map(),
        named(5, "pkce_required", "pkceRequired", Kind::Bool),
    ],
);
static DEVICE_CODE: Message = message(
    "DeviceCodeOAuthFlow",
    &[
        named(
            1,
            "device_authorization_url",
            "deviceAuthorizationUrl",
            Kind::Text,
        ),
        named(2, "token_url", "tokenUrl", Kind::Text),
        named(3, "refresh_url", "refreshUrl", Kind::Text),
        field(4, "scopes", Kind::Text).map(),
    ],
);

/// The request and response messages of an operation.
pub(super) const fn method(operation: Operation) -> (&'static Message, &'static Message) {
    match operation {
        Operation::SendMessage => (&SEND_MESSAGE_REQUEST, &SEND_MESSAGE_RESPONSE),
        Operation::SendStreamingMessage => (&SEND_MESSAGE_REQUEST, &STREAM_RESPONSE),
        Operation::GetTask => (&GET_TASK_REQUEST, &TASK),
        Operation::ListTasks => (&LIST_TASKS_REQUEST, &LIST_TASKS_RESPONSE),
        Operation::CancelTask => (&CANCEL_TASK_REQUEST, &TASK),
        Operation::SubscribeToTask => (&SUBSCRIBE_TO_TASK_REQUEST, &STREAM_RESPONSE),
        Operation::CreatePushConfig => (&TASK_PUSH_NOTIFICATION_CONFIG, &TASK_PUSH_NOTIFICATION_CONFIG),
        Operation::GetPushConfig => (&GET_PUSH_CONFIG_REQUEST, &TASK_PUSH_NOTIFICATION_CONFIG),
        Operation::ListPushConfigs => (&LIST_PUSH_CONFIGS_REQUEST, &LIST_PUSH_CONFIGS_RESPONSE),
        Operation::DeletePushConfig => (&DELETE_PUSH_CONFIG_REQUEST, &EMPTY),
        Operation::GetExtendedAgentCard => (&GET_EXTENDED_CARD_REQUEST, &AGENT_CARD),
    }
}
