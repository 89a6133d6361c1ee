//! Decoding of columns, without trusting the file.
//!
//! A value that cannot be decoded is [`Fault::Damaged`] with the name of the column; nothing here panics on
//! stored data.

use rusqlite::{
    Row,
    types::{FromSqlError, ValueRef},
};
use wopr_core::{
    IdError, InterruptKind, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp,
    WorkflowId,
};

use super::{bundle, fault::Fault};
use crate::{Fence, IdempotencyKey, IdempotencyRecord, KeyRow, Summary, WorkflowRow};

/// The columns that [`summary`] reads.
pub(super) const SUMMARY: &str =
    "workflow, version, status, principal, parent_run, parent_node, created_at, updated_at, waiting_on,
     error_code, phase_since, run_group, alias, next_seq";

/// Converts a number to SQLite's type. Stored numbers never reach the limit, but a client's may.
pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Converts a row count to SQLite's type.
pub(super) fn limit(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn text<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r str, Fault> {
    value(row, column)?
        .as_str()
        .map_err(|why| Fault::damaged(row, column, why))
}

pub(super) fn opt_text<'r>(row: &'r Row<'_>, column: usize) -> Result<Option<&'r str>, Fault> {
    value(row, column)?
        .as_str_or_null()
        .map_err(|why| Fault::damaged(row, column, why))
}

pub(super) fn bytes(row: &Row<'_>, column: usize) -> Result<Vec<u8>, Fault> {
    value(row, column)?
        .as_blob()
        .map(<[u8]>::to_vec)
        .map_err(|why| Fault::damaged(row, column, why))
}

/// The size of a body.
pub(super) fn size(row: &Row<'_>, column: usize) -> Result<usize, Fault> {
    let body = value(row, column)?.as_blob();
    body.map(<[u8]>::len)
        .map_err(|why| Fault::damaged(row, column, why))
}

pub(super) fn count(row: &Row<'_>, column: usize) -> Result<u64, Fault> {
    let number = value(row, column)?
        .as_i64()
        .map_err(|why| Fault::damaged(row, column, why))?;
    u64::try_from(number).map_err(|_| Fault::damaged(row, column, FromSqlError::OutOfRange(number)))
}

pub(super) fn seq(row: &Row<'_>, column: usize) -> Result<Seq, Fault> {
    Ok(Seq(count(row, column)?))
}

pub(super) fn fence(row: &Row<'_>, column: usize) -> Result<Fence, Fault> {
    Ok(Fence(count(row, column)?))
}

/// Reads the number of process deaths counted by a row.
pub(super) fn deaths(row: &Row<'_>, column: usize) -> Result<u32, Fault> {
    Ok(u32::try_from(count(row, column)?).unwrap_or(u32::MAX))
}

pub(super) fn time(row: &Row<'_>, column: usize) -> Result<Timestamp, Fault> {
    let millis = value(row, column)?
        .as_i64()
        .map_err(|why| Fault::damaged(row, column, why))?;
    Ok(Timestamp::from_millis(millis))
}

pub(super) fn opt_time(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>, Fault> {
    let millis = value(row, column)?
        .as_i64_or_null()
        .map_err(|why| Fault::damaged(row, column, why))?;
    Ok(millis.map(Timestamp::from_millis))
}

/// Reads an id with its parser.
pub(super) fn id<T>(row: &Row<'_>, column: usize, parse: fn(&str) -> Result<T, IdError>) -> Result<T, Fault> {
    parse(text(row, column)?).map_err(|why| Fault::damaged(row, column, why))
}

/// Reads one of a closed set of words.
fn word<T>(row: &Row<'_>, column: usize, parse: fn(&str) -> Option<T>) -> Result<T, Fault> {
    let text = text(row, column)?;
    parse(text).ok_or_else(|| Fault::invalid(row, column, format_args!("unknown word {text:?}")))
}

fn value<'r>(row: &'r Row<'_>, column: usize) -> Result<ValueRef<'r>, Fault> {
    Ok(row.get_ref(column)?)
}

/// Reads tenant and run.
pub(super) fn run_key(row: &Row<'_>, column: usize) -> Result<RunKey, Fault> {
    Ok(RunKey::new(
        id(row, column, TenantId::parse)?,
        id(row, column + 1, RunId::parse)?,
    ))
}

/// Reads the columns of [`SUMMARY`], starting at `at`.
pub(super) fn summary(row: &Row<'_>, at: usize) -> Result<(Summary, Seq), Fault> {
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
        version: id(row, at + 1, wopr_core::ContentHash::parse)?,
        status: word(row, at + 2, RunStatus::parse)?,
        waiting_on,
        error_code: opt_text(row, at + 9)?.map(str::to_owned),
        phase_since: time(row, at + 10)?,
        principal: id(row, at + 3, PrincipalId::parse)?,
        parent,
        group: opt_text(row, at + 11)?.map(str::to_owned),
        alias: opt_text(row, at + 12)?.map(str::to_owned),
        created_at: time(row, at + 6)?,
        updated_at: time(row, at + 7)?,
    };
    Ok((summary, seq(row, at + 13)?))
}

pub(super) fn status(row: &Row<'_>, column: usize) -> Result<RunStatus, Fault> {
    word(row, column, RunStatus::parse)
}

/// Reads (last_seq, bodies).
pub(super) fn events<'r>(row: &'r Row<'_>) -> Result<impl Iterator<Item = (Seq, &'r [u8])>, Fault> {
    let bodies = value(row, 1)?
        .as_blob()
        .map_err(|why| Fault::damaged(row, 1, why))?;
    bundle::unpack(seq(row, 0)?, bodies).ok_or_else(|| Fault::invalid(row, 1, "not a row of events"))
}

/// Reads (digest, run, response, expires_at).
pub(super) fn record(row: &Row<'_>, key: &IdempotencyKey) -> Result<IdempotencyRecord, Fault> {
    let run = match opt_text(row, 1)? {
        Some(_) => Some(id(row, 1, RunId::parse)?),
        None => None,
    };
    Ok(IdempotencyRecord {
        key: key.clone(),
        digest: text(row, 0)?.to_owned(),
        run,
        response: bytes(row, 2)?,
        expires_at: time(row, 3)?,
    })
}

/// Reads (tenant, id, version, body, registered_at, dialect).
pub(super) fn workflow(row: &Row<'_>) -> Result<WorkflowRow, Fault> {
    let tenant = match text(row, 0)? {
        "" => None,
        _ => Some(id(row, 0, TenantId::parse)?),
    };
    Ok(WorkflowRow {
        tenant,
        id: id(row, 1, WorkflowId::parse)?,
        version: id(row, 2, wopr_core::ContentHash::parse)?,
        dialect: text(row, 5)?.to_owned(),
        body: bytes(row, 3)?,
        registered_at: time(row, 4)?,
    })
}

/// Reads (id, secret_sha256, tenant, principal, scopes, created_at, revoked_at).
pub(super) fn key(row: &Row<'_>) -> Result<KeyRow, Fault> {
    Ok(KeyRow {
        id: text(row, 0)?.to_owned(),
        secret_sha256: text(row, 1)?.to_owned(),
        tenant: id(row, 2, TenantId::parse)?,
        principal: id(row, 3, PrincipalId::parse)?,
        scopes: serde_json::from_str(text(row, 4)?).map_err(|why| Fault::damaged(row, 4, why))?,
        membership: serde_json::from_str(text(row, 5)?).map_err(|why| Fault::damaged(row, 5, why))?,
        created_at: time(row, 6)?,
        revoked_at: opt_time(row, 7)?,
    })
}
