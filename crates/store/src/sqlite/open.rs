//! Opening a database file: the lock, the connections and the schema.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::place;

/// A body fills at most the page it is in, so 8 KiB keep most of them out of overflow pages. With 16 KiB a commit
/// that touches pages here and there writes twice as much; with 4 KiB a body of 3 kB wastes a quarter of its page.
pub(super) const PAGE_SIZE: u32 = 8192;

/// The writer's page cache, in KiB: several groups' dirty pages and the inner nodes of every index.
const WRITER_CACHE_KIB: i64 = 64 * 1024;

/// A reader's page cache, in KiB. The operating system's cache does the rest.
const READER_CACHE_KIB: i64 = 8 * 1024;

/// The write-ahead log file is cut back to this size when it starts over after a burst.
const WAL_KEPT_BYTES: i64 = 64 * 1024 * 1024;

/// Prepared statements a connection keeps; there are about fifty, and lists come in a few dozen shapes.
const STATEMENTS: usize = 128;

/// How long a connection waits for another of this process that starts the write-ahead log over or recovers it.
/// Other processes are kept out by the lock file, but for guests, whose transactions are short.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this one, has the file open.
    #[error("open {}: another wopr process has this database open", .0.display())]
    Locked(PathBuf),
    /// Another process has the file open under another name, such as a bind mount of it.
    #[error("open {}: another wopr process has this file open under another name", .0.display())]
    OpenElsewhere(PathBuf),
    /// The file has several names. It was left untouched.
    #[error(
        "open {}: the file has {names} names (hard links), and SQLite would keep a log of recent writes beside each",
        .path.display()
    )]
    Linked {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// A newer wopr wrote the file. It was left untouched.
    #[error(
        "open a database of schema version {found}: this binary knows {known}, use the wopr that wrote it"
    )]
    NewerSchema {
        /// The version of the file.
        found: u32,
        /// The newest version this binary knows.
        known: u32,
    },
    /// The file's schema is older and migrating was not allowed. It was left untouched.
    #[error("open a database of schema version {found}: this binary needs {known}, run the migration")]
    NeedsMigration {
        /// The version of the file.
        found: u32,
        /// The version this binary needs.
        known: u32,
    },
    /// The file is a database of something else. It was left untouched.
    #[error("open {}: it has tables, but not those of wopr", .0.display())]
    Foreign(PathBuf),
    /// The file is missing or empty, but the write-ahead log beside it is not. Both were left untouched.
    #[error(
        "open {}: {}, but {} beside it holds writes: put the file back, or move the log away to begin anew",
        .path.display(),
        if *.is_there { "the file is empty" } else { "there is no such file" },
        .log.display()
    )]
    Orphaned {
        /// The file.
        path: PathBuf,
        /// The log.
        log: PathBuf,
        /// Whether there is a file, though an empty one.
        is_there: bool,
    },
    /// A migration failed; it was rolled back.
    #[error("migrate {}: {why}", .path.display())]
    Migration {
        /// The file.
        path: PathBuf,
        /// What the migration says.
        why: String,
    },
    /// SQLite could not open or set up the file.
    #[error("open the database {}: {}", .path.display(), told(.source))]
    Database {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The file system or the operating system said no.
    #[error("open {}: {source}", .path.display())]
    Io {
        /// What could not be opened or started.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What SQLite says, without its number.
pub(super) fn told(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    }
}

/// Names the file that something of SQLite is about.
pub(super) trait At<T> {
    fn at(self, path: &Path) -> Result<T, OpenError>;
}

impl<T> At<T> for rusqlite::Result<T> {
    fn at(self, path: &Path) -> Result<T, OpenError> {
        self.map_err(|source| OpenError::Database {
            path: path.to_owned(),
            source,
        })
    }
}

/// Bytes that the lock file holds back from the file system, for a start on a full disk: the shared memory of the log
/// and the first few pages have to be written before anything can be read.
const RESERVE: u64 = 256 << 10;

/// The right to use a database file, held until dropped.
///
/// Two locks: of a file beside the database, named after the file itself and not after a link to it, and of the
/// database's own inode, which has the same lock under whatever name a mount gives it. The first is there before the
/// database is.
#[derive(Debug)]
pub(super) struct Lock {
    beside: File,
    /// Closed after every connection of SQLite: closing any descriptor of a file gives up the POSIX locks that this
    /// process has on it.
    file: Option<File>,
}

impl Lock {
    /// Locks the database itself, if it is there and is not locked yet.
    pub(super) fn take_file(&mut self, path: &Path) -> Result<(), OpenError> {
        if self.file.is_none() {
            self.file = lock_inode(path)?;
        }
        Ok(())
    }

    /// Holds space back while the disk has plenty, and gives it up where there is almost none left.
    pub(super) fn reserve(&self, free: Option<u64>) {
        let is_short = free.is_some_and(|free| free < RESERVE);
        let held = self.beside.metadata().map_or(0, |file| file.len());
        let done = if is_short {
            self.beside.set_len(0)
        } else if held < RESERVE && free.is_some_and(|free| free > 4 * RESERVE) {
            self.fill()
        } else {
            Ok(())
        };
        if let Err(error) = done {
            // Nothing depends on it before the disk is full.
            tracing::debug!(%error, "space held back for a full disk not changed");
        }
        if is_short && held > 0 {
            tracing::warn!(
                held,
                "the disk is full, the space held back for a start is given up"
            );
        }
    }

    fn fill(&self) -> io::Result<()> {
        let zeros = vec![0; usize::try_from(RESERVE).unwrap_or(0)];
        let mut beside = &self.beside;
        beside.seek(SeekFrom::Start(0))?;
        beside.write_all(&zeros)
    }
}

/// Takes the lock of a database.
pub(super) fn lock(path: &Path) -> Result<Lock, OpenError> {
    let mut name = place::file_of(path).into_os_string();
    name.push(".lock");
    let name = PathBuf::from(name);
    let io = |source| OpenError::Io {
        path: name.clone(),
        source,
    };
    // The file stays when the lock is let go: deleting it would let two processes lock two files of one name.
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let beside = options.open(&name).map_err(io)?;
    match beside.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(source)) => return Err(io(source)),
    }
    place::check(path)?;
    let mut lock = Lock { beside, file: None };
    lock.take_file(path)?;
    Ok(lock)
}

/// Locks a file by its inode. Linux keeps these locks (flock) apart from those of SQLite (fcntl); elsewhere the two
/// exclude each other, so that SQLite could not open a file that is locked like this.
#[cfg(target_os = "linux")]
fn lock_inode(path: &Path) -> Result<Option<File>, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::OpenElsewhere(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

#[cfg(not(target_os = "linux"))]
fn lock_inode(_: &Path) -> Result<Option<File>, OpenError> {
    Ok(None)
}

/// Makes the file of a new database, for the owner alone; SQLite gives its other files the same mode. What is in
/// the way is left for SQLite to say.
pub(super) fn make_private(path: &Path) {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // It is there already, or SQLite will meet the same trouble.
    let _ = options.open(path);
}

/// Opens a connection that writes, and makes the file if there is none.
pub(super) fn writing(path: &Path) -> rusqlite::Result<Connection> {
    write_with(path, OpenFlags::SQLITE_OPEN_CREATE)
}

/// Opens a connection that writes to a file that is there: beside the writer's, or in its place. A file that went
/// away meanwhile is not replaced by an empty one.
pub(super) fn writing_again(path: &Path) -> rusqlite::Result<Connection> {
    write_with(path, OpenFlags::empty())
}

fn write_with(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // A plan must not depend on bound values: with `LIMIT ?` SQLite would prepare a cached statement again at each use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

/// Makes what is written durable and fast. Comes after the schema check, because it writes to a new file.
pub(super) fn prepare(conn: &Connection, max_bytes: Option<u64>) -> rusqlite::Result<()> {
    // Has an effect only before the first table exists.
    conn.pragma_update(None, "page_size", PAGE_SIZE)?;
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "synchronous", "full")?;
    // On macOS a plain fsync leaves the data in the drive's cache; elsewhere these two change nothing.
    conn.pragma_update(None, "fullfsync", true)?;
    conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    if let Some(max_bytes) = max_bytes {
        let page_size: u32 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = (max_bytes / u64::from(page_size)).clamp(1, u64::from(u32::MAX - 1));
        conn.pragma_update(None, "max_page_count", super::rows::int(pages))?;
    }
    Ok(())
}

/// Opens a connection that cannot write.
pub(super) fn reading(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // A plan must not depend on bound values: with `LIMIT ?` SQLite would prepare a cached statement again at each use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    Ok(conn)
}
