//! The package `a2a.v1` of version 0.3.

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
        "TASK_STATE_CANCELLED",
        "TASK_STATE_INPUT_REQUIRED",
        "TASK_STATE_REJECTED",
        "TASK_STATE_AUTH_REQUIRED",
    ],
};
messages! {
    TASK_STATUS = "TaskStatus" {
        1 "state": Enum(TASK_STATE),
        2 "update" as "message": Message(MESSAGE),
        3 "timestamp": Timestamp,
    }
    PART = "Part" {
        1 "text": Text one_of("part"),
        2 "file": Message(FILE_PART) one_of("part"),
        3 "data": Message(DATA_PART) one_of("part"),
        4 "metadata": Struct,
    }
    FILE_PART = "FilePart" {
        1 "file_with_uri" as "fileWithUri": Text one_of("file"),
        2 "file_with_bytes" as "fileWithBytes": Bytes one_of("file"),
        3 "mime_type" as "mimeType": Text,
        4 "name": Text,
    }
    DATA_PART = "DataPart" {
        1 "data": Struct,
    }
    MESSAGE = "Message" {
        1 "message_id" as "messageId": Text,
        2 "context_id" as "contextId": Text,
        3 "task_id" as "taskId": Text,
        4 "role": Enum(ROLE),
        5 "content": Message(PART) many,
        6 "metadata": Struct,
        7 "extensions": Text many,
    }
    ARTIFACT = "Artifact" {
        1 "artifact_id" as "artifactId": Text,
        3 "name": Text,
        4 "description": Text,
        5 "parts": Message(PART) many,
        6 "metadata": Struct,
        7 "extensions": Text many,
    }
    TASK_STATUS_UPDATE_EVENT = "TaskStatusUpdateEvent" {
        1 "task_id" as "taskId": Text,
        2 "context_id" as "contextId": Text,
        3 "status": Message(TASK_STATUS),
        4 "final": Bool,
        5 "metadata": Struct,
    }
    STREAM_RESPONSE = "StreamResponse" {
        1 "task": Message(TASK) one_of("payload"),
        2 "msg" as "message": Message(MESSAGE) one_of("payload"),
        3 "status_update" as "statusUpdate": Message(TASK_STATUS_UPDATE_EVENT) one_of("payload"),
        4 "artifact_update" as "artifactUpdate": Message(TASK_ARTIFACT_UPDATE_EVENT) one_of("payload"),
    }
    SEND_MESSAGE_RESPONSE = "SendMessageResponse" {
        1 "task": Message(TASK) one_of("payload"),
        2 "msg" as "message": Message(MESSAGE) one_of("payload"),
    }
    SEND_MESSAGE_CONFIGURATION = "SendMessageConfiguration" {
        1 "accepted_output_modes" as "acceptedOutputModes": Text many,
        2 "push_notification" as "pushNotification": Message(PUSH_NOTIFICATION_CONFIG),
        3 "history_length" as "historyLength": Int32,
        4 "blocking": Bool,
    }
    SEND_MESSAGE_REQUEST = "SendMessageRequest" {
        1 "request" as "message": Message(MESSAGE),
        2 "configuration": Message(SEND_MESSAGE_CONFIGURATION),
        3 "metadata": Struct,
    }
    GET_TASK_REQUEST = "GetTaskRequest" {
        1 "name": Text,
        2 "history_length" as "historyLength": Int32,
    }
    CANCEL_TASK_REQUEST = "CancelTaskRequest" {
        1 "name": Text,
    }
    TASK_SUBSCRIPTION_REQUEST = "TaskSubscriptionRequest" {
        1 "name": Text,
    }
    PUSH_NOTIFICATION_CONFIG = "PushNotificationConfig" {
        1 "id": Text,
        2 "url": Text,
        3 "token": Text,
        4 "authentication": Message(AUTHENTICATION_INFO),
    }
    AUTHENTICATION_INFO = "AuthenticationInfo" {
        1 "schemes": Text many,
        2 "credentials": Text,
    }
    TASK_PUSH_NOTIFICATION_CONFIG = "TaskPushNotificationConfig" {
        1 "name": Text,
        2 "push_notification_config" as "pushNotificationConfig": Message(PUSH_NOTIFICATION_CONFIG),
    }
    CREATE_PUSH_CONFIG_REQUEST = "CreateTaskPushNotificationConfigRequest" {
        1 "parent": Text,
        2 "config_id" as "configId": Text,
        3 "config": Message(TASK_PUSH_NOTIFICATION_CONFIG),
    }
    GET_PUSH_CONFIG_REQUEST = "GetTaskPushNotificationConfigRequest" {
        1 "name": Text,
    }
    DELETE_PUSH_CONFIG_REQUEST = "DeleteTaskPushNotificationConfigRequest" {
        1 "name": Text,
    }
    LIST_PUSH_CONFIG_REQUEST = "ListTaskPushNotificationConfigRequest" {
        1 "parent": Text,
        2 "page_size" as "pageSize": Int32,
        3 "page_token" as "pageToken": Text,
    }
    LIST_PUSH_CONFIG_RESPONSE = "ListTaskPushNotificationConfigResponse" {
        1 "configs": Message(TASK_PUSH_NOTIFICATION_CONFIG) many,
        2 "next_page_token" as "nextPageToken": Text,
    }
    GET_AGENT_CARD_REQUEST = "GetAgentCardRequest" {}
    AGENT_CARD = "AgentCard" {
        1 "name": Text,
        2 "description": Text,
        3 "url": Text,
        4 "provider": Message(AGENT_PROVIDER),
        5 "version": Text,
        6 "documentation_url" as "documentationUrl": Text,
        7 "capabilities": Message(AGENT_CAPABILITIES),
        8 "security_schemes" as "securitySchemes": Message(SECURITY_SCHEME) map,
        9 "security": Message(SECURITY) many,
        10 "default_input_modes" as "defaultInputModes": Text many,
        11 "default_output_modes" as "defaultOutputModes": Text many,
        12 "skills": Message(AGENT_SKILL) many,
        13 "supports_authenticated_extended_card" as "supportsAuthenticatedExtendedCard": Bool,
        14 "preferred_transport" as "preferredTransport": Text,
        15 "additional_interfaces" as "additionalInterfaces": Message(AGENT_INTERFACE) many,
        16 "protocol_version" as "protocolVersion": Text,
        17 "signatures": Message(AGENT_CARD_SIGNATURE) many,
        18 "icon_url" as "iconUrl": Text,
    }
    AGENT_INTERFACE = "AgentInterface" {
        1 "url": Text,
        2 "transport": Text,
    }
    AGENT_CAPABILITIES = "AgentCapabilities" {
        1 "streaming": Bool,
        2 "push_notifications" as "pushNotifications": Bool,
        3 "extensions": Message(AGENT_EXTENSION) many,
    }
    AGENT_SKILL = "AgentSkill" {
        1 "id": Text,
        2 "name": Text,
        3 "description": Text,
        4 "tags": Text many,
        5 "examples": Text many,
        6 "input_modes" as "inputModes": Text many,
        7 "output_modes" as "outputModes": Text many,
        8 "security": Message(SECURITY) many,
    }
    SECURITY = "Security" {
        1 "schemes": Message(STRING_LIST) map,
    }
    OAUTH_FLOWS = "OAuthFlows" {
        1 "authorization_code" as "authorizationCode": Message(AUTHORIZATION_CODE) one_of("flow"),
        2 "client_credentials" as "clientCredentials": Message(CLIENT_CREDENTIALS) one_of("flow"),
        3 "implicit": Message(IMPLICIT) one_of("flow"),
        4 "password": Message(PASSWORD) one_of("flow"),
    }
    AUTHORIZATION_CODE = "AuthorizationCodeOAuthFlow" {
        1 "authorization_url" as "authorizationUrl": Text,
        2 "token_url" as "tokenUrl": Text,
        3 "refresh_url" as "refreshUrl": Text,
        4 "scopes": Text map,
    }
}

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
