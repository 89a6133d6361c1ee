//! The package `lf.a2a.v1` of version 1.0.

use super::{
    super::method::Operation,
    schema::{EMPTY, Enum, Kind, Message, alike, field, message, messages},
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
messages! {
    TASK_STATUS = "TaskStatus" {
        1 "state": Enum(TASK_STATE),
        2 "message": Message(MESSAGE),
        3 "timestamp": Timestamp,
    }
    PART = "Part" {
        1 "text": Text one_of("content"),
        2 "raw": Bytes one_of("content"),
        3 "url": Text one_of("content"),
        4 "data": Value one_of("content"),
        5 "metadata": Struct,
        6 "filename": Text,
        7 "media_type" as "mediaType": Text,
    }
    MESSAGE = "Message" {
        1 "message_id" as "messageId": Text,
        2 "context_id" as "contextId": Text,
        3 "task_id" as "taskId": Text,
        4 "role": Enum(ROLE),
        5 "parts": Message(PART) many,
        6 "metadata": Struct,
        7 "extensions": Text many,
        8 "reference_task_ids" as "referenceTaskIds": Text many,
    }
    ARTIFACT = "Artifact" {
        1 "artifact_id" as "artifactId": Text,
        2 "name": Text,
        3 "description": Text,
        4 "parts": Message(PART) many,
        5 "metadata": Struct,
        6 "extensions": Text many,
    }
    TASK_STATUS_UPDATE_EVENT = "TaskStatusUpdateEvent" {
        1 "task_id" as "taskId": Text,
        2 "context_id" as "contextId": Text,
        3 "status": Message(TASK_STATUS),
        4 "metadata": Struct,
    }
    STREAM_RESPONSE = "StreamResponse" {
        1 "task": Message(TASK) one_of("payload"),
        2 "message": Message(MESSAGE) one_of("payload"),
        3 "status_update" as "statusUpdate": Message(TASK_STATUS_UPDATE_EVENT) one_of("payload"),
        4 "artifact_update" as "artifactUpdate": Message(TASK_ARTIFACT_UPDATE_EVENT) one_of("payload"),
    }
    SEND_MESSAGE_RESPONSE = "SendMessageResponse" {
        1 "task": Message(TASK) one_of("payload"),
        2 "message": Message(MESSAGE) one_of("payload"),
    }
    SEND_MESSAGE_CONFIGURATION = "SendMessageConfiguration" {
        1 "accepted_output_modes" as "acceptedOutputModes": Text many,
        2 "task_push_notification_config" as "taskPushNotificationConfig": Message(TASK_PUSH_NOTIFICATION_CONFIG),
        3 "history_length" as "historyLength": Int32 optional,
        4 "return_immediately" as "returnImmediately": Bool,
    }
    SEND_MESSAGE_REQUEST = "SendMessageRequest" {
        1 "tenant": Text,
        2 "message": Message(MESSAGE),
        3 "configuration": Message(SEND_MESSAGE_CONFIGURATION),
        4 "metadata": Struct,
    }
    GET_TASK_REQUEST = "GetTaskRequest" {
        1 "tenant": Text,
        2 "id": Text,
        3 "history_length" as "historyLength": Int32 optional,
    }
    LIST_TASKS_REQUEST = "ListTasksRequest" {
        1 "tenant": Text,
        2 "context_id" as "contextId": Text,
        3 "status": Enum(TASK_STATE),
        4 "page_size" as "pageSize": Int32 optional,
        5 "page_token" as "pageToken": Text,
        6 "history_length" as "historyLength": Int32 optional,
        7 "status_timestamp_after" as "statusTimestampAfter": Timestamp,
        8 "include_artifacts" as "includeArtifacts": Bool optional,
    }
    LIST_TASKS_RESPONSE = "ListTasksResponse" {
        1 "tasks": Message(TASK) many,
        2 "next_page_token" as "nextPageToken": Text,
        3 "page_size" as "pageSize": Int32,
        4 "total_size" as "totalSize": Int32,
    }
    CANCEL_TASK_REQUEST = "CancelTaskRequest" {
        1 "tenant": Text,
        2 "id": Text,
        3 "metadata": Struct,
    }
    SUBSCRIBE_TO_TASK_REQUEST = "SubscribeToTaskRequest" {
        1 "tenant": Text,
        2 "id": Text,
    }
    AUTHENTICATION_INFO = "AuthenticationInfo" {
        1 "scheme": Text,
        2 "credentials": Text,
    }
    TASK_PUSH_NOTIFICATION_CONFIG = "TaskPushNotificationConfig" {
        1 "tenant": Text,
        2 "id": Text,
        3 "task_id" as "taskId": Text,
        4 "url": Text,
        5 "token": Text,
        6 "authentication": Message(AUTHENTICATION_INFO),
    }
    GET_PUSH_CONFIG_REQUEST = "GetTaskPushNotificationConfigRequest" {
        1 "tenant": Text,
        2 "task_id" as "taskId": Text,
        3 "id": Text,
    }
    DELETE_PUSH_CONFIG_REQUEST = "DeleteTaskPushNotificationConfigRequest" {
        1 "tenant": Text,
        2 "task_id" as "taskId": Text,
        3 "id": Text,
    }
    LIST_PUSH_CONFIGS_REQUEST = "ListTaskPushNotificationConfigsRequest" {
        1 "task_id" as "taskId": Text,
        2 "page_size" as "pageSize": Int32,
        3 "page_token" as "pageToken": Text,
        4 "tenant": Text,
    }
    LIST_PUSH_CONFIGS_RESPONSE = "ListTaskPushNotificationConfigsResponse" {
        1 "configs": Message(TASK_PUSH_NOTIFICATION_CONFIG) many,
        2 "next_page_token" as "nextPageToken": Text,
    }
    GET_EXTENDED_CARD_REQUEST = "GetExtendedAgentCardRequest" {
        1 "tenant": Text,
    }
    AGENT_CARD = "AgentCard" {
        1 "name": Text,
        2 "description": Text,
        3 "supported_interfaces" as "supportedInterfaces": Message(AGENT_INTERFACE) many,
        4 "provider": Message(AGENT_PROVIDER),
        5 "version": Text,
        6 "documentation_url" as "documentationUrl": Text optional,
        7 "capabilities": Message(AGENT_CAPABILITIES),
        8 "security_schemes" as "securitySchemes": Message(SECURITY_SCHEME) map,
        9 "security_requirements" as "securityRequirements": Message(SECURITY_REQUIREMENT) many,
        10 "default_input_modes" as "defaultInputModes": Text many,
        11 "default_output_modes" as "defaultOutputModes": Text many,
        12 "skills": Message(AGENT_SKILL) many,
        13 "signatures": Message(AGENT_CARD_SIGNATURE) many,
        14 "icon_url" as "iconUrl": Text optional,
    }
    AGENT_INTERFACE = "AgentInterface" {
        1 "url": Text,
        2 "protocol_binding" as "protocolBinding": Text,
        3 "tenant": Text,
        4 "protocol_version" as "protocolVersion": Text,
    }
    AGENT_CAPABILITIES = "AgentCapabilities" {
        1 "streaming": Bool optional,
        2 "push_notifications" as "pushNotifications": Bool optional,
        3 "extensions": Message(AGENT_EXTENSION) many,
        4 "extended_agent_card" as "extendedAgentCard": Bool optional,
    }
    AGENT_SKILL = "AgentSkill" {
        1 "id": Text,
        2 "name": Text,
        3 "description": Text,
        4 "tags": Text many,
        5 "examples": Text many,
        6 "input_modes" as "inputModes": Text many,
        7 "output_modes" as "outputModes": Text many,
        8 "security_requirements" as "securityRequirements": Message(SECURITY_REQUIREMENT) many,
    }
    SECURITY_REQUIREMENT = "SecurityRequirement" {
        1 "schemes": Message(STRING_LIST) map,
    }
    OAUTH_FLOWS = "OAuthFlows" {
        1 "authorization_code" as "authorizationCode": Message(AUTHORIZATION_CODE) one_of("flow"),
        2 "client_credentials" as "clientCredentials": Message(CLIENT_CREDENTIALS) one_of("flow"),
        3 "implicit": Message(IMPLICIT) one_of("flow"),
        4 "password": Message(PASSWORD) one_of("flow"),
        5 "device_code" as "deviceCode": Message(DEVICE_CODE) one_of("flow"),
    }
    AUTHORIZATION_CODE = "AuthorizationCodeOAuthFlow" {
        1 "authorization_url" as "authorizationUrl": Text,
        2 "token_url" as "tokenUrl": Text,
        3 "refresh_url" as "refreshUrl": Text,
        4 "scopes": Text map,
        5 "pkce_required" as "pkceRequired": Bool,
    }
    DEVICE_CODE = "DeviceCodeOAuthFlow" {
        1 "device_authorization_url" as "deviceAuthorizationUrl": Text,
        2 "token_url" as "tokenUrl": Text,
        3 "refresh_url" as "refreshUrl": Text,
        4 "scopes": Text map,
    }
}

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
