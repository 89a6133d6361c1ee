//! The package `a2a.v1` of version 0.3.

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
        "TASK_STATE_CANCELLED",
        "TASK_STATE_INPUT_REQUIRED",
        "TASK_STATE_REJECTED",
        "TASK_STATE_AUTH_REQUIRED",
    ],
};
static TASK_STATUS: Message = message(
    "TaskStatus",
    &[
        field(1, "state", Kind::Enum(&TASK_STATE)),
        named(2, "update", "message", Kind::Message(&MESSAGE)),
        field(3, "timestamp", Kind::Timestamp),
    ],
);
static PART: Message = message(
    "Part",
    &[
        field(1, "text", Kind::Text).one_of("part"),
        field(2, "file", Kind::Message(&FILE_PART)).one_of("part"),
        field(3, "data", Kind::Message(&DATA_PART)).one_of("part"),
        field(4, "metadata", Kind::Struct),
    ],
);
static FILE_PART: Message = message(
    "FilePart",
    &[
        named(1, "file_with_uri", "fileWithUri", Kind::Text).one_of("file"),
        named(2, "file_with_bytes", "fileWithBytes", Kind::Bytes).one_of("file"),
        named(3, "mime_type", "mimeType", Kind::Text),
        field(4, "name", Kind::Text),
    ],
);
static DATA_PART: Message = message("DataPart", &[field(1, "data", Kind::Struct)]);
static MESSAGE: Message = message(
    "Message",
    &[
        named(1, "message_id", "messageId", Kind::Text),
        named(2, "context_id", "contextId", Kind::Text),
        named(3, "task_id", "taskId", Kind::Text),
        field(4, "role", Kind::Enum(&ROLE)),
        field(5, "content", Kind::Message(&PART)).many(),
        field(6, "metadata", Kind::Struct),
        field(7, "extensions", Kind::Text).many(),
    ],
);
static ARTIFACT: Message = message(
    "Artifact",
    &[
        named(1, "artifact_id", "artifactId", Kind::Text),
        field(3, "name", Kind::Text),
        field(4, "description", Kind::Text),
        field(5, "parts", Kind::Message(&PART)).many(),
        field(6, "metadata", Kind::Struct),
        field(7, "extensions", Kind::Text).many(),
    ],
);
static TASK_STATUS_UPDATE_EVENT: Message = message(
    "TaskStatusUpdateEvent",
    &[
        named(1, "task_id", "taskId", Kind::Text),
        named(2, "context_id", "contextId", Kind::Text),
        field(3, "status", Kind::Message(&TASK_STATUS)),
        field(4, "final", Kind::Bool),
        field(5, "metadata", Kind::Struct),
    ],
);
static STREAM_RESPONSE: Message = message(
    "StreamResponse",
    &[
        field(1, "task", Kind::Message(&TASK)).one_of("payload"),
        named(2, "msg", "message", Kind::Message(&MESSAGE)).one_of("payload"),
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
        named(2, "msg", "message", Kind::Message(&MESSAGE)).one_of("payload"),
    ],
);
static SEND_MESSAGE_CONFIGURATION: Message = message(
    "SendMessageConfiguration",
    &[
        named(1, "accepted_output_modes", "acceptedOutputModes", Kind::Text).many(),
        named(
            2,
            "push_notification",
            "pushNotification",
            Kind::Message(&PUSH_NOTIFICATION_CONFIG),
        ),
        named(3, "history_length", "historyLength", Kind::Int32),
        field(4, "blocking", Kind::Bool),
    ],
);
static SEND_MESSAGE_REQUEST: Message = message(
    "SendMessageRequest",
    &[
        named(1, "request", "message", Kind::Message(&MESSAGE)),
        field(2, "configuration", Kind::Message(&SEND_MESSAGE_CONFIGURATION)),
        field(3, "metadata", Kind::Struct),
    ],
);
static GET_TASK_REQUEST: Message = message(
    "GetTaskRequest",
    &[
        field(1, "name", Kind::Text),
        named(2, "history_length", "historyLength", Kind::Int32),
    ],
);
static CANCEL_TASK_REQUEST: Message = message("CancelTaskRequest", &[field(1, "name", Kind::Text)]);
static TASK_SUBSCRIPTION_REQUEST: Message =
    message("TaskSubscriptionRequest", &[field(1, "name", Kind::Text)]);
static PUSH_NOTIFICATION_CONFIG: Message = message(
    "PushNotificationConfig",
    &[
        field(1, "id", Kind::Text),
        field(2, "url", Kind::Text),
        field(3, "token", Kind::Text),
        field(4, "authentication", Kind::Message(&AUTHENTICATION_INFO)),
    ],
);
static AUTHENTICATION_INFO: Message = message(
    "AuthenticationInfo",
    &[
        field(1, "schemes", Kind::Text).many(),
        field(2, "credentials", Kind::Text),
    ],
);
static TASK_PUSH_NOTIFICATION_CONFIG: Message = message(
    "TaskPushNotificationConfig",
    &[
        field(1, "name", Kind::Text),
        named(
            2,
            "push_notification_config",
            "pushNotificationConfig",
            Kind::Message(&PUSH_NOTIFICATION_CONFIG),
        ),
    ],
);
static CREATE_PUSH_CONFIG_REQUEST: Message = message(
    "CreateTaskPushNotificationConfigRequest",
    &[
        field(1, "parent", Kind::Text),
        named(2, "config_id", "configId", Kind::Text),
        field(3, "config", Kind::Message(&TASK_PUSH_NOTIFICATION_CONFIG)),
    ],
);
static GET_PUSH_CONFIG_REQUEST: Message = message(
    "GetTaskPushNotificationConfigRequest",
    &[field(1, "name", Kind::Text)],
);
static DELETE_PUSH_CONFIG_REQUEST: Message = message(
    "DeleteTaskPushNotificationConfigRequest",
    &[field(1, "name", Kind::Text)],
);
static LIST_PUSH_CONFIG_REQUEST: Message = message(
    "ListTaskPushNotificationConfigRequest",
    &[
        field(1, "parent", Kind::Text),
        named(2, "page_size", "pageSize", Kind::Int32),
        named(3, "page_token", "pageToken", Kind::Text),
    ],
);
static LIST_PUSH_CONFIG_RESPONSE: Message = message(
    "ListTaskPushNotificationConfigResponse",
    &[
        field(1, "configs", Kind::Message(&TASK_PUSH_NOTIFICATION_CONFIG)).many(),
        named(2, "next_page_token", "nextPageToken", Kind::Text),
    ],
);
static GET_AGENT_CARD_REQUEST: Message = message("GetAgentCardRequest", &[]);

static AGENT_CARD: Message = message(
    "AgentCard",
    &[
        field(1, "name", Kind::Text),
        field(2, "description", Kind::Text),
        field(3, "url", Kind::Text),
        field(4, "provider", Kind::Message(&AGENT_PROVIDER)),
        field(5, "version", Kind::Text),
        named(6, "documentation_url", "documentationUrl", Kind::Text),
        field(7, "capabilities", Kind::Message(&AGENT_CAPABILITIES)),
        named(
            8,
            "security_schemes",
            "securitySchemes",
            Kind::Message(&SECURITY_SCHEME),
        )
        .map(),
        field(9, "security", Kind::Message(&SECURITY)).many(),
        named(10, "default_input_modes", "defaultInputModes", Kind::Text).many(),
        named(11, "default_output_modes", "defaultOutputModes", Kind::Text).many(),
        field(12, "skills", Kind::Message(&AGENT_SKILL)).many(),
        named(
            13,
            "supports_authenticated_extended_card",
            "supportsAuthenticatedExtendedCard",
            Kind::Bool,
        ),
        named(14, "preferred_transport", "preferredTransport", Kind::Text),
        named(
            15,
            "additional_interfaces",
            "additionalInterfaces",
            Kind::Message(&AGENT_INTERFACE),
        )
        .many(),
        named(16, "protocol_version", "protocolVersion", Kind::Text),
        field(17, "signatures", Kind::Message(&AGENT_CARD_SIGNATURE)).many(),
        named(18, "icon_url", "iconUrl", Kind::Text),
    ],
);
static AGENT_INTERFACE: Message = message(
    "AgentInterface",
    &[field(1, "url", Kind::Text), field(2, "transport", Kind::Text)],
);
static AGENT_CAPABILITIES: Message = message(
    "AgentCapabilities",
    &[
        field(1, "streaming", Kind::Bool),
        named(2, "push_notifications", "pushNotifications", Kind::Bool),
        field(3, "extensions", Kind::Message(&AGENT_EXTENSION)).many(),
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
        field(8, "security", Kind::Message(&SECURITY)).many(),
    ],
);
static SECURITY: Message = message(
    "Security",
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
    ],
);
static AUTHORIZATION_CODE: Message = message(
    "AuthorizationCodeOAuthFlow",
    &[
        named(1, "authorization_url", "authorizationUrl", Kind::Text),
        named(2, "token_url", "tokenUrl", Kind::Text),
        named(3, "refresh_url", "refreshUrl", Kind::Text),
        field(4, "scopes", Kind::Text).map(),
    ],
);

/// The request and response messages of an operation; `None` if the service has no method for it.
pub(super) const fn method(operation: Operation) -> Option<(&'static Message, &'static Message)> {
    Some(match operation {
        Operation::SendMessage => (&SEND_MESSAGE_REQUEST, &SEND_MESSAGE_RESPONSE),
        Operation::SendStreamingMessage => (&SEND_MESSAGE_REQUEST, &STREAM_RESPONSE),
        Operation::GetTask => (&GET_TASK_REQUEST, &TASK),
        Operation::ListTasks => return None,
        Operation::CancelTask => (&CANCEL_TASK_REQUEST, &TASK),
        Operation::SubscribeToTask => (&TASK_SUBSCRIPTION_REQUEST, &STREAM_RESPONSE),
        Operation::CreatePushConfig => (&CREATE_PUSH_CONFIG_REQUEST, &TASK_PUSH_NOTIFICATION_CONFIG),
        Operation::GetPushConfig => (&GET_PUSH_CONFIG_REQUEST, &TASK_PUSH_NOTIFICATION_CONFIG),
        Operation::ListPushConfigs => (&LIST_PUSH_CONFIG_REQUEST, &LIST_PUSH_CONFIG_RESPONSE),
        Operation::DeletePushConfig => (&DELETE_PUSH_CONFIG_REQUEST, &EMPTY),
        Operation::GetExtendedAgentCard => (&GET_AGENT_CARD_REQUEST, &AGENT_CARD),
    })
}
