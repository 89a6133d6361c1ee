//! The A2A operations with their JSON-RPC and gRPC names in both versions, and the versions themselves.
//!
//! A JSON-RPC request is dispatched by its method name alone, a gRPC request by service and method; the version
//! header is only checked against them (A2A 1.0 section 3.6). The HTTP+JSON paths are in [`paths`](super::paths).

use super::error::A2aError;
use crate::json::named;

named! {
    /// A protocol version, named as in the agent card and in the `A2A-Version` header.
    pub enum Version: "a protocol version spoken here" {
        /// Also the version of a request without a version header.
        V0_3 = "0.3",
        V1_0 = "1.0",
    }
}

/// The header, or query parameter, with the version of a request.
pub const VERSION_HEADER: &str = "A2A-Version";

/// The headers with the extensions a client activates, of 1.0 and of 0.3.
pub const EXTENSIONS_HEADERS: [&str; 2] = ["A2A-Extensions", "X-A2A-Extensions"];

impl Version {
    /// The protocol buffers package of the version.
    #[must_use]
    pub const fn package(self) -> &'static str {
        match self {
            Self::V0_3 => "a2a.v1",
            Self::V1_0 => "lf.a2a.v1",
        }
    }

    /// Parses the version of a request. Missing or empty means 0.3; a patch number is ignored.
    ///
    /// # Errors
    /// Returns `VersionNotSupported` for any other version and for malformed text.
    pub fn from_header(header: Option<&str>) -> Result<Self, A2aError> {
        let text = header.unwrap_or_default().trim();
        if text.is_empty() {
            return Ok(Self::V0_3);
        }
        let (major_minor, patch) = match text.match_indices('.').nth(1) {
            Some((dot, _)) => (&text[..dot], Some(&text[dot + 1..])),
            None => (text, None),
        };
        let has_odd_patch =
            patch.is_some_and(|patch| patch.is_empty() || !patch.bytes().all(|b| b.is_ascii_digit()));
        match Self::from_name(major_minor) {
            Some(version) if !has_odd_patch => Ok(version),
            Some(_) | None => Err(A2aError::version_not_supported(text)),
        }
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident: $new:literal, $old:expr, $old_grpc:expr;)+) => {
        /// An operation of A2A, independent of binding and version.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            $($(#[$doc])* $name,)+
        }

        impl Operation {
            /// All operations, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The JSON-RPC method in a version; `None` if JSON-RPC lacks the operation.
            #[must_use]
            pub const fn rpc_method(self, version: Version) -> Option<&'static str> {
                match (version, self) {
                    $((Version::V1_0, Self::$name) => Some($new),)+
                    $((Version::V0_3, Self::$name) => $old,)+
                }
            }

            /// The gRPC method in a version; `None` if gRPC lacks the operation.
            #[must_use]
            pub const fn grpc_method(self, version: Version) -> Option<&'static str> {
                match (version, self) {
                    $((Version::V1_0, Self::$name) => Some($new),)+
                    $((Version::V0_3, Self::$name) => $old_grpc,)+
                }
            }
        }
    };
}

operations! {
    SendMessage: "SendMessage", Some("message/send"), Some("SendMessage");
    SendStreamingMessage: "SendStreamingMessage", Some("message/stream"), Some("SendStreamingMessage");
    GetTask: "GetTask", Some("tasks/get"), Some("GetTask");
    /// In 0.3 only the HTTP+JSON binding has it.
    ListTasks: "ListTasks", None, None;
    CancelTask: "CancelTask", Some("tasks/cancel"), Some("CancelTask");
    /// Streams the updates of a task from now on.
    SubscribeToTask: "SubscribeToTask", Some("tasks/resubscribe"), Some("TaskSubscription");
    CreatePushConfig: "CreateTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/set"),
        Some("CreateTaskPushNotificationConfig");
    GetPushConfig: "GetTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/get"),
        Some("GetTaskPushNotificationConfig");
    ListPushConfigs: "ListTaskPushNotificationConfigs", Some("tasks/pushNotificationConfig/list"),
        Some("ListTaskPushNotificationConfig");
    DeletePushConfig: "DeleteTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/delete"),
        Some("DeleteTaskPushNotificationConfig");
    GetExtendedAgentCard: "GetExtendedAgentCard", Some("agent/getAuthenticatedExtendedCard"),
        Some("GetAgentCard");
}

impl Operation {
    #[must_use]
    pub fn from_rpc_method(name: &str) -> Option<(Self, Version)> {
        for version in Version::ALL {
            for operation in Self::ALL {
                if operation.rpc_method(*version) == Some(name) {
                    return Some((*operation, *version));
                }
            }
        }
        None
    }

    #[must_use]
    pub fn from_grpc_method(version: Version, name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|operation| operation.grpc_method(version) == Some(name))
    }

    #[must_use]
    pub const fn is_streaming(self) -> bool {
        match self {
            Self::SendStreamingMessage | Self::SubscribeToTask => true,
            Self::SendMessage
            | Self::GetTask
            | Self::ListTasks
            | Self::CancelTask
            | Self::CreatePushConfig
            | Self::GetPushConfig
            | Self::ListPushConfigs
            | Self::DeletePushConfig
            | Self::GetExtendedAgentCard => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpc_method_determines_operation_and_version() {
        for operation in Operation::ALL {
            for version in Version::ALL {
                if let Some(name) = operation.rpc_method(*version) {
                    assert_eq!(Operation::from_rpc_method(name), Some((*operation, *version)));
                }
            }
        }
        assert_eq!(
            Operation::from_rpc_method("tasks/resubscribe"),
            Some((Operation::SubscribeToTask, Version::V0_3))
        );
        for name in ["", "sendmessage", "message/Send", "tasks/list", "SendMessage "] {
            assert_eq!(Operation::from_rpc_method(name), None, "{name}");
        }
    }

    #[test]
    fn missing_version_header_means_0_3() {
        for (header, wanted) in [
            (None, Version::V0_3),
            (Some(""), Version::V0_3),
            (Some("  "), Version::V0_3),
            (Some("0.3"), Version::V0_3),
            (Some("0.3.26"), Version::V0_3),
            (Some("1.0"), Version::V1_0),
            (Some(" 1.0 "), Version::V1_0),
            (Some("1.0.1"), Version::V1_0),
        ] {
            assert_eq!(Version::from_header(header).unwrap(), wanted, "{header:?}");
        }
    }

    #[test]
    fn unsupported_version_error_lists_supported_versions() {
        for header in [
            "1", "1.1", "2.0", "0.2.6", "1.0.", "1.0.x", "1.0.1.2", "v1.0", "1.0,0.3", "01.0",
        ] {
            let error = Version::from_header(Some(header)).unwrap_err();
            assert_eq!(error.code(), -32009, "{header}");
            assert_eq!(
                error.data().unwrap()[0]["metadata"]["supportedVersions"],
                "0.3,1.0"
            );
        }
    }
}
