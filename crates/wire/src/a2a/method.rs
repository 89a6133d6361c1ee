//! The operations of A2A, their JSON-RPC names in both versions, and the versions themselves.
//!
//! A JSON-RPC request is dispatched by its method name alone; the version header is only checked against
//! it (A2A 1.0 section 3.6). The paths of the HTTP+JSON binding belong to the router.

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

impl Version {
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
    ($($(#[$doc:meta])* $name:ident: $new:literal, $old:expr;)+) => {
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
        }
    };
}

operations! {
    /// Sends a message and answers with a task or a message.
    SendMessage: "SendMessage", Some("message/send");
    /// Sends a message and streams what follows.
    SendStreamingMessage: "SendStreamingMessage", Some("message/stream");
    /// Reads a task.
    GetTask: "GetTask", Some("tasks/get");
    /// Lists tasks; 0.3 has no JSON-RPC method for it.
    ListTasks: "ListTasks", None;
    /// Cancels a task.
    CancelTask: "CancelTask", Some("tasks/cancel");
    /// Streams a task from now on.
    SubscribeToTask: "SubscribeToTask", Some("tasks/resubscribe");
    /// Adds a push configuration.
    CreatePushConfig: "CreateTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/set");
    /// Reads a push configuration.
    GetPushConfig: "GetTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/get");
    /// Lists the push configurations of a task.
    ListPushConfigs: "ListTaskPushNotificationConfigs", Some("tasks/pushNotificationConfig/list");
    /// Removes a push configuration.
    DeletePushConfig: "DeleteTaskPushNotificationConfig", Some("tasks/pushNotificationConfig/delete");
    /// Reads the card for authenticated clients.
    GetExtendedAgentCard: "GetExtendedAgentCard", Some("agent/getAuthenticatedExtendedCard");
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
