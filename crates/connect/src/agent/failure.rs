//! How calls fail by what the client reports.

use http::StatusCode;
use wopr_engine::Outcome;
use wopr_wire::a2a::error::Kind;

use super::{Handle, MAX_RETRY_AFTER, given_up};
use crate::{a2a, http::refused_by_gate};

/// Longest text of an agent in a failure, in bytes.
const MAX_REASON: usize = 2_000;

pub(super) fn is_forgotten(error: &a2a::Error) -> bool {
    matches!(error, a2a::Error::Remote(remote) if remote.kind == Some(Kind::TaskNotFound))
}

pub(super) fn is_over(error: &a2a::Error) -> bool {
    matches!(error, a2a::Error::Remote(remote) if remote.kind == Some(Kind::TaskNotCancelable))
}

/// Returns `true` if the error says that the agent does not have the task, or that it has no such method.
pub(super) fn tells_no_task(error: &a2a::Error) -> bool {
    match error {
        a2a::Error::Remote(remote) => matches!(
            remote.kind,
            Some(Kind::TaskNotFound | Kind::MethodNotFound | Kind::UnsupportedOperation)
        ),
        a2a::Error::Status(said) => matches!(
            said.status,
            StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::GONE
                | StatusCode::NOT_IMPLEMENTED
        ),
        a2a::Error::NotOffered { .. } => true,
        a2a::Error::UnknownPeer(_)
        | a2a::Error::CredentialMissing { .. }
        | a2a::Error::Token(..)
        | a2a::Error::Policy(_)
        | a2a::Error::Unreachable { .. }
        | a2a::Error::Interrupted(_)
        | a2a::Error::TimedOut(_)
        | a2a::Error::TooLarge { .. }
        | a2a::Error::Undecodable(_)
        | a2a::Error::TooDeep
        | a2a::Error::NoStream
        | a2a::Error::OtherTask
        | a2a::Error::CardMissing { .. }
        | a2a::Error::CardNotFetched { .. }
        | a2a::Error::CardInvalid(_)
        | a2a::Error::CardUnsigned
        | a2a::Error::NoInterface { .. }
        | a2a::Error::VersionNotSupported { .. }
        | a2a::Error::Unwritable(_) => false,
    }
}

/// Whether the agent refuses the stream of this one task, for example because the task has ended.
pub(super) fn has_no_stream_of_it(error: &a2a::Error) -> bool {
    matches!(
        error,
        a2a::Error::Remote(remote) if matches!(remote.kind, Some(Kind::TaskNotFound | Kind::UnsupportedOperation))
    )
}

/// Whether the agent says that it has no such method. Not found is something else: a proxy says so while the agent is away.
pub(super) fn has_no_method(error: &a2a::Error) -> bool {
    match error {
        a2a::Error::Status(said) => matches!(
            said.status,
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        ),
        error => tells_no_task(error) && !is_forgotten(error),
    }
}

/// Whether the agent has answered with something that cannot be read.
pub(super) fn is_nonsense(error: &a2a::Error) -> bool {
    matches!(error, a2a::Error::Undecodable(_))
}

/// Whether an agent may have taken the message that failed so.
fn may_go_on(error: &a2a::Error) -> bool {
    match error {
        // It says that it has not.
        a2a::Error::Remote(_) => false,
        a2a::Error::Status(said) => {
            let refuses = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::NOT_IMPLEMENTED];
            said.status.is_server_error() && !refuses.contains(&said.status)
        }
        error => error.may_have_been_sent(),
    }
}

/// The failure of a message that got no answer.
pub(super) fn not_sent(error: &a2a::Error) -> Outcome {
    Outcome::Failed {
        code: error.code().to_owned(),
        message: told(error),
        retryable: error.is_transient(),
        retry_after: error.retry_after().map(|after| after.min(MAX_RETRY_AFTER)),
        may_go_on: may_go_on(error),
        is_timeout: matches!(error, a2a::Error::TimedOut(_)),
    }
}

/// The failure of a call whose task this host can no longer work with.
pub(super) fn lost(handle: &Handle, error: &a2a::Error) -> Outcome {
    given_up(handle, error.code(), told(error))
}

/// An error as clients of the run see it.
pub(super) fn told(error: &a2a::Error) -> String {
    match error {
        a2a::Error::Policy(error) => cut(&refused_by_gate(error)),
        error => cut(&format!("failed to {}", with_words(error))),
    }
}

/// An error with what the agent said about it.
pub(super) fn with_words(error: &a2a::Error) -> String {
    match error.words() {
        Some(words) => format!("{error}: {words}"),
        None => error.to_string(),
    }
}

pub(super) fn failed(code: &str, message: String) -> Outcome {
    Outcome::Failed {
        code: code.to_owned(),
        message,
        retryable: false,
        retry_after: None,
        may_go_on: false,
        is_timeout: false,
    }
}

pub(super) fn cut(text: &str) -> String {
    cut_to(text, MAX_REASON)
}

pub(super) fn cut_to(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}
