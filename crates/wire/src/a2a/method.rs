//! The operations of A2A, their names in JSON-RPC and gRPC in both versions, and the versions themselves.
//!
//! A JSON-RPC request is dispatched by its method name alone, a gRPC request by its service and method; the
//! version header is only checked against them (A2A 1.0 section 3.6). The paths of the HTTP+JSON binding are in
//! [`paths`](super::paths).

use super::error::A2aError;
use crate::json::named;

named! {
    /// A version of the protocol, named as in the card and the `A2A-Version` header.
    pub enum Version: "a protocol version spoken here" {
        /// 0.3, which is also meant when a client says nothing.
        V0_3 = "0.3",
        /// 1.0.
        V1_0 = "1.0",
    }
}

/// The header, or query parameter, that names the version of a request.
pub const VERSION_HEADER: &str = "A2A-Version";

/// The headers that name the extensions a client asks for, those of 1.0 and of 0.3.
pub const EXTENSIONS_HEADERS: [&str; 2] = ["A2A-Extensions", "X-A2A-Extensions"];

impl Version {
    /// The package of the version's protocol buffers.
    #[must_use]
    pub const fn package(self) -> &'static str {
        match self {
            Self::V0_3 => "a2a.v1",
            Self::V1_0 => "lf.a2a.v1",
        }
    }

    /// Reads the version a request names. Missing or empty means 0.3; a patch number is ignored.
    ///
    /// # Errors
    /// `VersionNotSupported` for any other version, and for what is no version.
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
        /// An operation of A2A, whatever its binding and version.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            $($(#[$doc])* $name,)+
        }

        impl Operation {
            /// Every operation, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name of the method in a version; none if the version lacks the operation.
            #[must_use]
            pub const fn rpc_method(self, version: Version) -> Option<&'static str> {
                match (version, self) {
                    $((Version::V1_0, Self::$name) => Some($new),)+
                    $((Version::V0_3, Self::$name) => $old,)+
                }
            }

            /// The name of the method of the gRPC service; none if the version lacks the operation there.
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
    /// Sends a message and answers with a task or a message.
    SendMessage: "SendMessage", Some("message/send"), Some("SendMessage");
    /// Sends a message and streams what follows.
    SendStreamingMessage: "SendStreamingMessage", Some("message/stream"), Some("SendStreamingMessage");
    /// Reads a task.
    GetTask: "GetTask", Some("tasks/get"), Some("GetTask");
    /// Lists tasks; 0.3 has it in the HTTP+JSON binding alone.
    ListTasks: "ListTasks", None, None;
    /// Cancels a task.
    CancelTask: "CancelTask", Some("tasks/cancel"), Some("CancelTask");
    /// Streams a task from now on.
    SubscribeToTask: "SubscribeToTask", Some("tasks/resubscribe"), Some("TaskSubscription");
    /// Adds a push configuration.
    CreatePushConfig: "CreateTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/set"),
        Some("CreateTaskPushNotificationConfig");
    /// Reads a push configuration.
    GetPushConfig: "GetTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/get"),
        Some("GetTaskPushNotificationConfig");
    /// Lists the push configurations of a task.
    ListPushConfigs: "ListTaskPushNotificationConfigs", Some("tasks/pushNotificationConfig/list"),
        Some("ListTaskPushNotificationConfig");
    /// Removes a push configuration.
    DeletePushConfig: "DeleteTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/delete"),
        Some("DeleteTaskPushNotificationConfig");
    /// Reads the card for authenticated clients.
    GetExtendedAgentCard: "GetExtendedAgentCard", Some("agent/getAuthenticatedExtendedCard"),
        Some("GetAgentCard");
}

impl Operation {
    /// Finds the operation and the version a method name belongs to.
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

    /// Finds the operation of a method of a version's gRPC service.
    #[must_use]
    pub fn from_grpc_method(version: Version, name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|operation| operation.grpc_method(version) == Some(name))
    }

    /// Claims that the answer is a stream of events.
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
    fn a_method_name_tells_operation_and_version() {
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
    fn a_silent_client_speaks_0_3() {
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
    fn another_version_is_refused_with_those_spoken() {
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
