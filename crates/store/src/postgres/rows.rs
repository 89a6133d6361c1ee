//! Encoding of columns, and decoding without trusting the database.
//!
//! A value that cannot be decoded is [`Fault::Damaged`] with the name of the column; nothing here panics on
//! stored data.

use std::borrow::Cow;

use tokio_postgres::{Row, types::FromSql};
use wopr_core::{
    ContentHash, IdError, InterruptKind, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId,
    Timestamp, WorkflowId,
};

use super::fault::Fault;
use crate::{Fence, IdempotencyKey, IdempotencyRecord, KeyRow, StoredEvent, Summary, WorkflowRow};

/// The columns that [`summary`] reads, as a literal.
macro_rules! summary_columns {
    () => {
        "workflow, version, status, principal, parent_run, parent_node, created_at, updated_at, waiting_on,
         error_code, phase_since, run_group, alias, next_seq"
    };
}
pub(super) use summary_columns;

/// Converts a number to bigint. Stored numbers never reach the limit, but a client's may.
pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Converts a row count to bigint.
pub(super) fn limit(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Escapes text chosen by a client or another layer.
///
/// PostgreSQL text cannot contain NUL. It is stored as U+0001 `0`, and U+0001 itself as U+0001 `1`. The
/// encoding is injective and preserves order, and ordinary text is stored unchanged. Our own ids contain
/// neither character.
pub(super) fn free(text: &str) -> Cow<'_, str> {
    if text.contains(['\0', '\u{1}']) {
        Cow::Owned(text.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0"))
    } else {
        Cow::Borrowed(text)
    }
}

fn unfree(text: &str) -> Option<String> {
    let mut parts = text.split('\u{1}');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match part.split_at_checked(1)? {
            ("0", rest) => ('\0', rest),
            ("1", rest) => ('\u{1}', rest),
            _ => return None,
        };
        whole.push(character);
        whole.push_str(rest);
    }
    Some(whole)
}

fn value<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, Fault> {
    row.try_get(column)
        .map_err(|why| Fault::damaged(row, column, why))
}

pub(super) fn text(row: &Row, column: usize) -> Result<&str, Fault> {
    value(row, column)
}

pub(super) fn opt_text(row: &Row, column: usize) -> Result<Option<&str>, Fault> {
    value(row, column)
}

/// Reads text written by [`free`].
pub(super) fn free_text(row: &Row, column: usize) -> Result<String, Fault> {
    unfree(text(row, column)?).ok_or_else(|| Fault::invalid(row, column, "an escape of no character"))
}

/// Texts in one column, each between separators, so that one of them can be looked for. [`free`] leaves no
/// U+0001 before a 2.
pub(super) fn joined(texts: &[String]) -> String {
    texts.iter().map(|text| marked(text)).collect()
}

/// A text as [`joined`] contains it.
pub(super) fn marked(text: &str) -> String {
    format!("{SEPARATOR}{}{SEPARATOR}", free(text))
}

const SEPARATOR: &str = "\u{1}2";

/// Reads what [`joined`] wrote.
pub(super) fn free_texts(row: &Row, column: usize) -> Result<Vec<String>, Fault> {
    let joined = text(row, column)?;
    let inner = joined
        .strip_prefix(SEPARATOR)
        .and_then(|rest| rest.strip_suffix(SEPARATOR));
    let Some(inner) = inner else {
        return Ok(Vec::new());
    };
    let double = format!("{SEPARATOR}{SEPARATOR}");
    let texts = inner.split(double.as_str()).map(unfree);
    let texts: Option<_> = texts.collect();
    texts.ok_or_else(|| Fault::invalid(row, column, "an escape of no character"))
}

/// Like [`free_text`], for a column that may be null.
fn opt_free_text(row: &Row, column: usize) -> Result<Option<String>, Fault> {
    match opt_text(row, column)? {
        Some(_) => free_text(row, column).map(Some),
        None => Ok(None),
    }
}

pub(super) fn bytes(row: &Row, column: usize) -> Result<Vec<u8>, Fault> {
    value::<&[u8]>(row, column).map(<[u8]>::to_vec)
}

pub(super) fn flag(row: &Row, column: usize) -> Result<bool, Fault> {
    value(row, column)
}

pub(super) fn number(row: &Row, column: usize) -> Result<i64, Fault> {
    value(row, column)
}

pub(super) fn count(row: &Row, column: usize) -> Result<u64, Fault> {
    let number = number(row, column)?;
    u64::try_from(number).map_err(|_| Fault::invalid(row, column, format_args!("{number} is negative")))
}

pub(super) fn seq(row: &Row, column: usize) -> Result<Seq, Fault> {
    count(row, column).map(Seq)
}

pub(super) fn fence(row: &Row, column: usize) -> Result<Fence, Fault> {
    count(row, column).map(Fence)
}

/// Reads the number of process deaths counted by a row.
pub(super) fn deaths(row: &Row, column: usize) -> Result<u32, Fault> {
    Ok(u32::try_from(count(row, column)?).unwrap_or(u32::MAX))
}

pub(super) fn time(row: &Row, column: usize) -> Result<Timestamp, Fault> {
    number(row, column).map(Timestamp::from_millis)
}

pub(super) fn opt_time(row: &Row, column: usize) -> Result<Option<Timestamp>, Fault> {
    let millis: Option<i64> = value(row, column)?;
    Ok(millis.map(Timestamp::from_millis))
}

/// Reads an id with its parser.
pub(super) fn id<T>(row: &Row, column: usize, parse: fn(&str) -> Result<T, IdError>) -> Result<T, Fault> {
    parse(text(row, column)?).map_err(|why| Fault::damaged(row, column, why))
}

/// Reads one of a closed set of words.
fn word<T>(row: &Row, column: usize, parse: fn(&str) -> Option<T>) -> Result<T, Fault> {
    let text = text(row, column)?;
    parse(text).ok_or_else(|| Fault::invalid(row, column, format_args!("unknown word {text:?}")))
}

/// Reads tenant and run.
pub(super) fn run_key(row: &Row, column: usize) -> Result<RunKey, Fault> {
    Ok(RunKey::new(
        id(row, column, TenantId::parse)?,
        id(row, column + 1, RunId::parse)?,
    ))
}

/// The columns that [`summary`] reads.
pub(super) const SUMMARY: &str = summary_columns!();
/// How many columns these are.
pub(super) const N_SUMMARY: usize = 14;

/// Reads the columns of [`SUMMARY`], starting at `at`.
pub(super) fn summary(row: &Row, at: usize) -> Result<(Summary, Seq), Fault> {
    let parent = match (opt_text(row, at + 4)?, opt_text(row, at + 5)?) {
        (Some(_), Some(_)) => Some((id(row, at + 4, RunId::parse)?, id(row, at + 5, NodeId::parse)?)),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(Fault::invalid(row, at + 4, "half of a parent"));
        }
    };
    let waiting_on = match opt_text(row, at + 8)? {
        Some(_) => Some(word(row, at + 8, InterruptKind::parse)?),
        None => None,
    };
    let summary = Summary {
        workflow: id(row, at, WorkflowId::parse)?,
        version: id(row, at + 1, ContentHash::parse)?,
        status: status(row, at + 2)?,
        waiting_on,
        error_code: opt_free_text(row, at + 9)?,
        phase_since: time(row, at + 10)?,
        principal: id(row, at + 3, PrincipalId::parse)?,
        parent,
        group: opt_free_text(row, at + 11)?,
        alias: opt_free_text(row, at + 12)?,
        created_at: time(row, at + 6)?,
        updated_at: time(row, at + 7)?,
    };
    Ok((summary, seq(row, at + N_SUMMARY - 1)?))
}

pub(super) fn status(row: &Row, column: usize) -> Result<RunStatus, Fault> {
    word(row, column, RunStatus::parse)
}

/// Reads (seq, body), starting at `at`.
pub(super) fn event(row: &Row, at: usize) -> Result<StoredEvent, Fault> {
    Ok(StoredEvent {
        seq: seq(row, at)?,
        body: bytes(row, at + 1)?,
    })
}

/// Reads (digest, run, response, expires_at).
pub(super) fn record(row: &Row, key: &IdempotencyKey) -> Result<IdempotencyRecord, Fault> {
    let run = match opt_text(row, 1)? {
        Some(_) => Some(id(row, 1, RunId::parse)?),
        None => None,
    };
    Ok(IdempotencyRecord {
        key: key.clone(),
        digest: free_text(row, 0)?,
        run,
        response: bytes(row, 2)?,
        expires_at: time(row, 3)?,
    })
}

/// Reads (tenant, id, version, body, registered_at, dialect).
pub(super) fn workflow(row: &Row) -> Result<WorkflowRow, Fault> {
    let tenant = match text(row, 0)? {
        "" => None,
        _ => Some(id(row, 0, TenantId::parse)?),
    };
    Ok(WorkflowRow {
        tenant,
        id: id(row, 1, WorkflowId::parse)?,
        version: id(row, 2, ContentHash::parse)?,
        dialect: text(row, 5)?.to_owned(),
        body: bytes(row, 3)?,
        registered_at: time(row, 4)?,
    })
}

/// Reads (id, secret_sha256, tenant, principal, scopes, created_at, revoked_at).
pub(super) fn key(row: &Row) -> Result<KeyRow, Fault> {
    Ok(KeyRow {
        id: free_text(row, 0)?,
        secret_sha256: free_text(row, 1)?,
        tenant: id(row, 2, TenantId::parse)?,
        principal: id(row, 3, PrincipalId::parse)?,
        scopes: serde_json::from_str(text(row, 4)?).map_err(|why| Fault::damaged(row, 4, why))?,
        membership: serde_json::from_str(text(row, 5)?).map_err(|why| Fault::damaged(row, 5, why))?,
        created_at: time(row, 6)?,
        revoked_at: opt_time(row, 7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 9] = [
        "",
        "\0",
        "\0a",
        "\0\u{1}",
        "\u{1}",
        "\u{1}0",
        "\u{2}",
        "0",
        "a\0b\u{1}1",
    ];

    #[test]
    fn escaped_text_round_trips_and_keeps_its_order() {
        for text in TEXTS {
            let stored = free(text);
            assert!(!stored.contains('\0'), "{text:?}");
            assert_eq!(unfree(&stored).as_deref(), Some(text));
            for other in TEXTS {
                assert_eq!(
                    text.cmp(other),
                    stored.as_ref().cmp(free(other).as_ref()),
                    "{text:?} {other:?}"
                );
            }
        }
        assert_eq!(unfree("\u{1}2"), None);
        assert_eq!(unfree("a\u{1}"), None);
    }
}
