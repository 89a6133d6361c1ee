//! Opening a database file: the lock, the connections and the schema.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::place;

/// With 8 KiB most bodies fit into their page without overflow pages. With 16 KiB a commit that touches
/// scattered pages writes twice as much; with 4 KiB a body of 3 kB wastes a quarter of its page.
pub(super) const PAGE_SIZE: u32 = 8192;

/// The writer's page cache in KiB: the dirty pages of several groups and the inner nodes of every index.
const WRITER_CACHE_KIB: i64 = 64 * 1024;

/// A reader's page cache in KiB. The operating system's cache does the rest.
const READER_CACHE_KIB: i64 = 8 * 1024;

/// The write-ahead log file is truncated to this size when it restarts after a burst.
const WAL_KEPT_BYTES: i64 = 64 * 1024 * 1024;

/// Prepared statements cached per connection. There are about fifty, and lists have a few dozen shapes.
const STATEMENTS: usize = 128;

/// How long a connection waits while another one of this process restarts or recovers the write-ahead log.
/// The lock file excludes other processes except guests, whose transactions are short.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this process, has the file open.
    #[error("open {}: another wopr process has this database open", .0.display())]
    Locked(PathBuf),
    /// Another process has the file open under another name, such as a bind mount.
    #[error("open {}: another wopr process has this file open under another name", .0.display())]
    OpenElsewhere(PathBuf),
    /// The file has several hard links. It was left untouched.
    #[error(
        "open {}: the file has {names} names (hard links), and SQLite would keep a log of recent writes beside each",
        .path.display()
    )]
    Linked { path: PathBuf, names: u64 },
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
    /// The file's schema is older and migration was not allowed. It was left untouched.
    #[error("open a database of schema version {found}: this binary needs {known}, run the migration")]
    NeedsMigration {
        /// The version of the file.
        found: u32,
        /// The version this binary needs.
        known: u32,
    },
    /// The file is a database of another program. It was left untouched.
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
        path: PathBuf,
        log: PathBuf,
        /// `true` if the file exists but is empty.
        is_there: bool,
    },
    /// This process may not write one of the files of the database. All were left untouched.
    #[error("write {}: {source}", .path.display())]
    Unwritable {
        /// The database, its write-ahead log, or the shared memory of that.
        path: PathBuf,
        source: io::Error,
    },
    /// A migration failed; it was rolled back.
    #[error("migrate {}: {source}", .path.display())]
    Migration {
        path: PathBuf,
        source: Box<refinery::Error>,
    },
    /// SQLite could not open or set up the file.
    #[error("open the database {}: {}", .path.display(), told(.source))]
    Database { path: PathBuf, source: rusqlite::Error },
    /// The file system or the operating system reported an error.
    #[error("open {}: {source}", .path.display())]
    Io {
        /// The file that could not be opened, or for which a thread could not be started.
        path: PathBuf,
        source: io::Error,
    },
}

/// SQLite's error message, without the error code.
pub(super) fn told(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    }
}

/// Adds the path of the file to an SQLite error.
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

/// Bytes that the lock file reserves, so that a start succeeds on a full disk: the shared memory of the log
/// and the first few pages must be written before anything can be read.
const RESERVE: u64 = 256 << 10;

/// The exclusive right to use a database file, held until dropped.
///
/// It consists of two locks. One is on a file beside the database, named after the database file itself
/// rather than a link to it; it can be taken before the database exists. The other is on the inode of the
/// database, which is the same under every name that a mount gives it.
#[derive(Debug)]
pub(super) struct Lock {
    beside: File,
    /// Must be closed after every SQLite connection: closing any descriptor of a file releases all POSIX
    /// locks that this process has on it.
    file: Option<File>,
}

impl Lock {
    /// Locks the database file itself, if it exists and is not locked yet.
    pub(super) fn take_file(&mut self, path: &Path) -> Result<(), OpenError> {
        if self.file.is_none() {
            self.file = lock_inode(path)?;
        }
        Ok(())
    }

    /// Reserves space while the disk has plenty, and releases it when almost none is left.
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
            // The reserve matters only once the disk is full.
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
    // The lock file stays when the lock is released: if it were deleted, two processes could lock two files
    // of the same name.
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
    place::check_writable(path)?;
    let mut lock = Lock { beside, file: None };
    lock.take_file(path)?;
    Ok(lock)
}

/// Locks a file by its inode. Linux keeps these locks (flock) apart from those of SQLite (fcntl). On other
/// systems they exclude each other, and SQLite could not open a file locked like this.
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

/// Creates the file of a new database with access for the owner only; SQLite gives its other files the same
/// mode. Errors are left for SQLite to report.
pub(super) fn make_private(path: &Path) {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // The file exists already, or SQLite will meet the same error.
    let _ = options.open(path);
}

/// Opens a read-write connection, creating the file if it does not exist.
pub(super) fn writing(path: &Path) -> rusqlite::Result<Connection> {
    write_with(path, OpenFlags::SQLITE_OPEN_CREATE)
}

/// Opens a further read-write connection to an existing file. A file that has disappeared is not replaced by
/// an empty one.
pub(super) fn writing_again(path: &Path) -> rusqlite::Result<Connection> {
    write_with(path, OpenFlags::empty())
}

fn write_with(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans must not depend on bound values: with `LIMIT ?` SQLite would prepare a cached statement again at
    // each use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

/// Sets up durability and performance. Must follow the schema check, because it writes to a new file.
pub(super) fn prepare(conn: &Connection, max_bytes: Option<u64>) -> rusqlite::Result<()> {
    // Takes effect only before the first table exists.
    conn.pragma_update(None, "page_size", PAGE_SIZE)?;
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "synchronous", "full")?;
    // On macOS a plain fsync leaves the data in the drive's cache; on other systems these two change nothing.
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

/// Opens a read-only connection.
pub(super) fn reading(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans must not depend on bound values: with `LIMIT ?` SQLite would prepare a cached statement again at
    // each use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    Ok(conn)
}
