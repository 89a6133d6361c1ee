//! Copies of a database that its owner goes on using.
//!
//! A copy is the database as of one moment: one read transaction lasts as long as the copying, beside whatever the
//! owner does. Without it SQLite would begin anew whenever the owner commits; measured with a writer of 4,000 runs
//! a second, a copy by 8 MiB steps began 342 times and ended when the writer did. Within it the same copy took 4 s
//! and never began again. What it costs is the write-ahead log, which cannot start over meanwhile.
//!
//! Pages are copied as they are, which takes half the time and CPU of writing the database anew ([`Form::Compact`]);
//! that leaves out free pages, so it is how a file gets smaller after many runs were removed.

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

/// Pages copied at once.
const STEP: i32 = 1024;

/// How long to leave a file alone that is busy.
const PAUSE: Duration = Duration::from_millis(5);

/// How a copy is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Page by page, free pages too.
    AsIs,
    /// Written anew without free pages.
    Compact,
}

/// What a copy holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The version of its schema.
    pub schema: u32,
    /// Its runs by status, in the order of [`RunStatus::ALL`]; a status without runs is left out.
    pub runs: Vec<(RunStatus, u64)>,
    /// Events of all runs.
    pub events: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// Why there is no copy, or it is not a sound one.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database cannot be read by this binary.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no database, or none that was ever used.
    #[error("find a database")]
    Empty,
    /// SQLite could not copy or read.
    #[error("copy the database: {0}")]
    Database(#[from] rusqlite::Error),
    /// The file system said no.
    #[error("write the copy: {0}")]
    Io(#[from] io::Error),
    /// What was copied is not what wopr stores.
    #[error("find the copy sound: {0}")]
    Damaged(String),
}

impl From<Fault> for BackupError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) => Self::Database(error),
            Fault::Damaged(text) => Self::Damaged(text),
        }
    }
}

/// Copies a database into an empty file, as of a moment after the call: whatever was acknowledged before it is in the
/// copy. The copy is on the disk when this returns, and needs no other file.
///
/// # Errors
/// See [`BackupError`]; the file holds anything then.
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
    // With a write-ahead log the copy would be two files from its first reader on; who opens it to write brings
    // the log back.
    let copied = Connection::open(to)?;
    copied.pragma_update(None, "journal_mode", "delete")?;
    copied.close().map_err(|(_, error)| error)?;
    File::open(to)?.sync_all()?;
    Ok(())
}

fn by_pages(source: &Connection, copied: &mut Connection) -> Result<(), BackupError> {
    // Only this file's own bytes count, and it is worth nothing before it is whole.
    copied.pragma_update(None, "synchronous", "off")?;
    // The read that begins the transaction is what keeps the moment.
    source.execute_batch("BEGIN")?;
    source.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let backup = Backup::new(source, copied)?;
    loop {
        match backup.step(STEP)? {
            StepResult::Done => break,
            StepResult::More => {}
            // Whoever has the file for a moment, as an owner does that just starts.
            _ => thread::sleep(PAUSE),
        }
    }
    drop(backup);
    source.execute_batch("COMMIT")?;
    Ok(())
}

/// Reads a copy from its first page to its last: SQLite finds it sound, and every log is as long as its run says
/// and without a gap.
///
/// # Errors
/// See [`BackupError`].
pub fn verify(path: impl AsRef<Path>) -> Result<Contents, BackupError> {
    let path = path.as_ref();
    let schema = schema::check(path, true)?;
    let conn = open::reading(path)?;
    let found: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found != "ok" {
        return Err(BackupError::Damaged(found));
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

/// Counts runs by status and events, log by log.
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
                    return Err(Fault::Damaged(format!(
                        "the log of {} lacks event {}",
                        log.run, log.next
                    )));
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

/// A log on its way through [`count`].
struct Log {
    run: wopr_core::RunKey,
    /// How many events its run says it has.
    length: u64,
    /// How many there are so far.
    next: Seq,
}

impl Log {
    fn finish(self) -> Result<(), Fault> {
        let Self { run, length, next } = self;
        if next.0 == length {
            return Ok(());
        }
        Err(Fault::Damaged(format!(
            "the log of {run} has {next} events, its run says {length}"
        )))
    }
}
