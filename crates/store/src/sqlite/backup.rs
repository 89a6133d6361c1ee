//! Online backup of a database.
//!
//! A copy shows the database as of one moment: one read transaction is open while pages are copied, beside
//! the owner's writes. Without it SQLite would restart the copy whenever the owner commits. Measured with a
//! writer of 4,000 runs a second, a copy in steps of 8 MiB restarted 342 times and ended only when the writer
//! did; with the transaction it took 4 s and never restarted. The price is that the write-ahead log cannot
//! restart meanwhile.
//!
//! Copying pages takes half the time and CPU of rewriting the database ([`Form::Compact`]). Rewriting leaves
//! out free pages, so it shrinks the file after many runs were removed.

use std::{collections::BTreeMap, fs::File, io, path::Path, thread, time::Duration};

use rusqlite::{
    Connection,
    backup::{Backup, StepResult},
};
use wopr_core::{RunStatus, Seq};

use super::{
    fault::Fault,
    open::{self, OpenError},
    retention::listed,
    rows, schema,
};
use crate::Cause;

/// Pages copied per step.
const STEP: i32 = 1024;

/// Pause before retrying when the file is busy.
const PAUSE: Duration = Duration::from_millis(5);

/// How a copy is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Page by page, including free pages.
    AsIs,
    /// Rewritten without free pages.
    Compact,
}

/// The contents of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The schema version.
    pub schema: u32,
    /// Number of runs by status, in the order of [`RunStatus::ALL`]; statuses without runs are left out.
    pub runs: Vec<(RunStatus, u64)>,
    /// Number of events in all runs.
    pub events: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// Why a copy could not be made or is not sound.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// This binary cannot read the database.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no database, or it was never used.
    #[error("find a database")]
    Empty,
    /// SQLite could not copy or read.
    #[error("copy the database: {0}")]
    Database(#[from] rusqlite::Error),
    /// The file system reported an error.
    #[error("write the copy: {0}")]
    Io(#[from] io::Error),
    /// The copy does not hold valid data of wopr.
    #[error("find the copy sound: {0}")]
    Damaged(#[source] Cause),
}

impl From<Fault> for BackupError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) => Self::Database(error),
            Fault::Damaged(cause) => Self::Damaged(cause),
        }
    }
}

/// Copies a database into an empty file, as of a moment after the call: the copy holds everything
/// acknowledged before. It is on disk when this returns, and needs no other file.
///
/// # Errors
/// If it fails, the contents of the file are unspecified.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>, form: Form) -> Result<(), BackupError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if schema::check(from, true)? == 0 {
        return Err(BackupError::Empty);
    }
    let source = open::reading(from)?;
    match form {
        Form::AsIs => by_pages(&source, &mut Connection::open(to)?)?,
        Form::Compact => {
            let name = to
                .to_str()
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name is not UTF-8"))?;
            source.execute("VACUUM INTO ?1", [name])?;
        }
    }
    // With a write-ahead log the copy would become two files when it is first read. Opening it for writing
    // enables the log again.
    let copied = Connection::open(to)?;
    copied.pragma_update(None, "journal_mode", "delete")?;
    copied.close().map_err(|(_, error)| error)?;
    File::open(to)?.sync_all()?;
    Ok(())
}

fn by_pages(source: &Connection, copied: &mut Connection) -> Result<(), BackupError> {
    // Only the complete file matters, and it is synced at the end.
    copied.pragma_update(None, "synchronous", "off")?;
    // The first read fixes the moment of the transaction.
    source.execute_batch("BEGIN")?;
    source.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let backup = Backup::new(source, copied)?;
    loop {
        match backup.step(STEP)? {
            StepResult::Done => break,
            StepResult::More => {}
            // Someone holds the file for a moment, such as an owner that is starting.
            _ => thread::sleep(PAUSE),
        }
    }
    drop(backup);
    source.execute_batch("COMMIT")?;
    Ok(())
}

/// Reads a whole copy and checks that SQLite finds it sound and that every log has the length its run row
/// states, without a gap.
pub fn verify(path: impl AsRef<Path>) -> Result<Contents, BackupError> {
    let path = path.as_ref();
    let schema = schema::check(path, true)?;
    let conn = open::reading(path)?;
    let found: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found != "ok" {
        return Err(BackupError::Damaged(found.into()));
    }
    let (runs, events) = count(&conn)?;
    let runs = RunStatus::ALL
        .into_iter()
        .filter_map(|status| Some((status, *runs.get(status.as_str())?)))
        .collect();
    Ok(Contents {
        schema,
        runs,
        events,
        bytes: std::fs::metadata(path)?.len(),
    })
}

type Runs = BTreeMap<&'static str, u64>;

/// Counts runs by status, and events log by log.
fn count(conn: &Connection) -> Result<(Runs, u64), Fault> {
    const LOGS: &str = concat!(
        "SELECT events.last_seq, events.bodies, runs.tenant, runs.run, runs.status, runs.next_seq
         FROM runs LEFT JOIN events USING (tenant, run) WHERE true",
        listed!("runs"),
        " ORDER BY runs.tenant, runs.run, events.last_seq"
    );
    let (mut runs, mut n_events) = (Runs::new(), 0);
    let mut statement = conn.prepare(LOGS)?;
    let mut found = statement.query([])?;
    let mut log: Option<Log> = None;
    while let Some(row) = found.next()? {
        let run = rows::run_key(row, 2)?;
        let is_next = log.as_ref().is_none_or(|log| log.run != run);
        if is_next {
            if let Some(log) = log.take() {
                log.finish()?;
            }
            *runs.entry(rows::status(row, 4)?.as_str()).or_default() += 1;
        }
        let log = log.get_or_insert(Log {
            run,
            length: 0,
            next: Seq(0),
        });
        log.length = rows::count(row, 5)?;
        let has_events = row.get::<_, Option<i64>>(0)?.is_some();
        if has_events {
            for (seq, _) in rows::events(row)? {
                if seq != log.next {
                    return Err(Fault::Damaged(
                        format!("the log of {} lacks event {}", log.run, log.next).into(),
                    ));
                }
                log.next = seq.next();
                n_events += 1;
            }
        }
    }
    if let Some(log) = log {
        log.finish()?;
    }
    Ok((runs, n_events))
}

/// A log being counted by [`count`].
struct Log {
    run: wopr_core::RunKey,
    /// Number of events according to the run row.
    length: u64,
    /// The next expected event.
    next: Seq,
}

impl Log {
    fn finish(self) -> Result<(), Fault> {
        let Self { run, length, next } = self;
        if next.0 == length {
            return Ok(());
        }
        Err(Fault::Damaged(
            format!("the log of {run} has {next} events, its run says {length}").into(),
        ))
    }
}
