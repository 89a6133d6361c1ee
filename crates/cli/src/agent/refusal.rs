//! Converts the errors of calls to agents for display.

use wopr_connect::a2a::{Error, RemoteError, Status, Wanted};
use wopr_wire::a2a::error::Kind;

use crate::{
    client::{self, exit_of, unreachable_failure},
    exit::{Exit, Failure},
    output::plain,
};

const NOT_ALLOWED: &str = "the agent knows this key, which may not do this";
const NO_KEY: &str = "give a key with --key or WOPR_API_KEY; it goes only where the card itself lies";

/// Converts the error of a call to the agent at `endpoint`.
pub(super) fn failure(error: &Error, endpoint: &str, has_key: bool) -> Failure {
    match error {
        Error::Remote(error) => refused_by_a2a(error),
        Error::Status(status) => refused(status, has_key),
        Error::Unreachable { cause, .. }
        | Error::Interrupted(cause)
        | Error::TimedOut(cause)
        | Error::Policy(cause) => unreachable_failure(endpoint, cause),
        Error::TooLarge { .. } => unreadable(endpoint, &format!("failed to {error}")),
        Error::Undecodable(why) => unreadable(endpoint, why),
        Error::NoStream => Failure::new(Exit::Failed, format!("{endpoint} answered without a stream")),
        Error::CardMissing { place, status, .. } => {
            Failure::new(exit_of(*status), format!("no agent card at {place}: {status}"))
        }
        Error::CardInvalid(why) => Failure::new(
            Exit::Failed,
            format!("cannot read the card of {endpoint}: {}", plain(why)),
        ),
        Error::NoInterface { offered } | Error::VersionNotSupported { offered } => {
            nothing_spoken(offered, endpoint, Wanted::default())
        }
        Error::NotOffered { version, .. } => Failure::new(
            Exit::Failed,
            format!("A2A {version} has no such operation over this binding"),
        )
        .hint("its HTTP+JSON binding has it: --binding http-json, if the agent offers that"),
        Error::UnknownPeer(_)
        | Error::CredentialMissing { .. }
        | Error::Token(..)
        | Error::CardNotFetched { .. }
        | Error::CardUnsigned
        | Error::OtherTask
        | Error::TooDeep
        | Error::Unwritable(_) => Failure::new(Exit::Failed, format!("failed to {error}")),
    }
}

/// Converts the error of a stream that had begun.
pub(super) fn of_stream(error: &Error, endpoint: &str, has_key: bool) -> Failure {
    match error {
        Error::Interrupted(cause) | Error::TimedOut(cause) => client::broken_off(cause),
        other => failure(other, endpoint, has_key),
    }
}

/// The card offers no supported interface.
pub(super) fn nothing_spoken(offered: &[String], address: &str, wanted: Wanted) -> Failure {
    let what = match (wanted.binding, wanted.version) {
        (None, None) => "",
        (Some(_), None) => " of this binding",
        (None, Some(_)) => " of this version",
        (Some(_), Some(_)) => " of this binding and version",
    };
    Failure::new(
        Exit::Failed,
        format!("the agent at {address} offers no interface{what} that is spoken here"),
    )
    .hint(format!("its card offers {}", plain(&offered.join(", "))))
}

/// The agent said why in the terms of A2A.
fn refused_by_a2a(error: &RemoteError) -> Failure {
    let exit = match error.kind {
        Some(Kind::TaskNotFound) => Exit::NotFound,
        Some(_) | None => Exit::Failed,
    };
    let failure = Failure::new(exit, said(&error.message, &error.label));
    match error.kind {
        Some(Kind::PushNotificationNotSupported) => {
            failure.hint("this agent sends no push notifications; follow the task with `wopr a2a subscribe`")
        }
        Some(Kind::VersionNotSupported) => failure.hint("--protocol picks another version"),
        Some(Kind::ExtendedAgentCardNotConfigured) => {
            failure.hint("the agent has one card for everybody: leave out --extended")
        }
        _ => failure,
    }
}

/// The agent, or something before it, refused the request by a status alone.
fn refused(status: &Status, has_key: bool) -> Failure {
    let exit = exit_of(status.status);
    let failure = Failure::new(exit, said(&status.message, &status.label));
    match exit {
        Exit::Unauthorised if !has_key => failure.hint(NO_KEY),
        Exit::Unauthorised if status.status == http::StatusCode::FORBIDDEN => failure.hint(NOT_ALLOWED),
        Exit::Unauthorised => failure.hint(client::WRONG_KEY),
        _ => failure,
    }
}

fn said(message: &str, label: &str) -> String {
    let label = plain(label);
    match message {
        "" => format!("the agent refused it ({label})"),
        message => format!("the agent answered: {} ({label})", plain(message)),
    }
}

fn unreadable(endpoint: &str, why: &str) -> Failure {
    Failure::new(
        Exit::Failed,
        format!("cannot read the answer of {endpoint}: {}", plain(why)),
    )
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn status_decides_the_exit_code_and_texts_are_shown_plainly() {
        for (status, exit, has_key) in [
            (401, Exit::Unauthorised, false),
            (403, Exit::Unauthorised, true),
            (404, Exit::NotFound, true),
            (429, Exit::Busy, true),
            (503, Exit::Busy, true),
            (500, Exit::Failed, true),
        ] {
            let status = Status {
                status: StatusCode::from_u16(status).unwrap(),
                retry_after: None,
                message: "no\u{1b}[31m".to_owned(),
                label: "x".to_owned(),
            };
            let failure = failure(&Error::Status(status), "http://a", has_key);
            assert_eq!(failure.exit(), exit);
            assert_eq!(failure.to_string(), "the agent answered: no[31m (x)");
        }
    }
}
