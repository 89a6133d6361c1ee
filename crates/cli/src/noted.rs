//! Where the host of a SQLite database listens, noted beside the database.
//!
//! One process has a database. A command that finds it taken reads here how to reach the host that has it. The process that
//! writes a note keeps a lock on the file until it ends, and only a locked note counts: a host that was killed leaves its note
//! behind, and another program may have its port since.
//!
//! The command sends its key to that address, so a note counts only if nobody else can have written it, and if the key
//! stays on this machine or is encrypted. `wopr mcp` may note a key of its host as well, for other processes of the same
//! user. Such a note counts only if nobody else can read it. The key is never logged.

use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, process::geteuid};
use serde::{Deserialize, Serialize};
use url::{Host, Url};
use wopr_server::{
    Config,
    config::{Secret, StoreUrl},
};

/// Maximum size of a note in bytes.
const MAX_NOTE: u64 = 4 << 10;

/// Which command serves a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Served {
    /// `wopr serve`, `wopr dev` or `wopr run`.
    Alone,
    /// `wopr mcp`. When the process ends, another one that forwards to it takes its place.
    Together {
        /// The key of the process, unless its user gave it one.
        key: Option<Secret>,
    },
}

/// A host whose process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) address: String,
    pub(crate) served: Served,
}

/// The content of the file. Not `Debug`, because it holds the key in the clear.
#[derive(Serialize, Deserialize)]
struct Text {
    listening: String,
    /// Whether `wopr mcp` serves the host.
    #[serde(default)]
    together: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl From<&Note> for Text {
    fn from(note: &Note) -> Self {
        let (together, key) = match &note.served {
            Served::Alone => (false, None),
            Served::Together { key } => (true, key.as_ref()),
        };
        Self {
            listening: note.address.clone(),
            together,
            key: key.map(|key| key.expose().to_owned()),
        }
    }
}

impl From<Text> for Note {
    fn from(text: Text) -> Self {
        Self {
            address: text.listening,
            served: match text.together {
                false => Served::Alone,
                true => Served::Together {
                    key: text.key.map(Secret::new),
                },
            },
        }
    }
}

/// The note of this process. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Noted {
    path: PathBuf,
    _locked: File,
}

impl Noted {
    /// Notes where this process listens, if its store is a SQLite database.
    pub(crate) fn write(config: &Config, origin: &str, served: Served) -> Option<Self> {
        let StoreUrl::Sqlite(database) = &config.store else {
            return None;
        };
        // A certificate is for the public name.
        let address = match config.server.tls {
            None => origin.to_owned(),
            Some(_) => config.public_url(),
        };
        let path = beside(database);
        match replace(&path, &Note { address, served }) {
            Ok(locked) => Some(Self {
                path,
                _locked: locked,
            }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "address not noted: `wopr mcp` needs WOPR_SERVER");
                None
            }
        }
    }

    /// Removes the note. The database must still be this process's: the next one notes its own address.
    pub(crate) fn forget(self) {
        // A note that stays does no harm, because it no longer counts.
        let _ = fs::remove_file(&self.path);
    }
}

/// The note of a database.
fn beside(database: &Path) -> PathBuf {
    let database = fs::canonicalize(database).unwrap_or_else(|_| database.to_owned());
    let mut name = database.into_os_string();
    name.push(".host");
    PathBuf::from(name)
}

/// Replaces a file as a whole, whatever was there. Only this user may read or write it. It is locked before others see it.
fn replace(path: &Path, note: &Note) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // Temporary files have mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.as_file().try_lock()?;
    file.write_all(&serde_json::to_vec(&Text::from(note))?)?;
    Ok(file.persist(path)?)
}

/// The host that has a database, if it noted its address and its process runs.
pub(crate) fn read(database: &Path) -> Result<Option<Note>, Distrust> {
    let path = beside(database);
    trusted(&path).map_err(|why| Distrust { path, why })
}

/// The reason why a process ignores the note of a running host.
#[derive(Debug)]
pub(crate) struct Distrust {
    path: PathBuf,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Read(io::Error),
    Owner,
    Writable,
    Readable,
    Form,
    Address,
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Why::Read(error) => write!(f, "{path} cannot be read: {error}"),
            Why::Owner => write!(f, "{path} belongs to another user"),
            Why::Writable => write!(f, "other users may write {path}"),
            Why::Readable => write!(f, "other users may read {path}, which holds a key"),
            Why::Form => write!(f, "{path} is not the note of a host"),
            Why::Address => write!(f, "the address in {path} is neither https nor on this machine"),
        }
    }
}

/// Reads a note that nobody but this user, or root, can have written.
fn trusted(path: &Path) -> Result<Option<Note>, Why> {
    // Opening a pipe that nobody writes would wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(|_| Why::Form)?;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MAX_NOTE {
        return Err(Why::Form);
    }
    if about.uid() != 0 && about.uid() != geteuid().as_raw() {
        return Err(Why::Owner);
    }
    // Shared, so that two readers do not take each other for the writer.
    match file.try_lock_shared() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    if about.mode() & 0o022 != 0 {
        return Err(Why::Writable);
    }
    let mut text = Vec::new();
    file.take(MAX_NOTE).read_to_end(&mut text)?;
    let text: Text = serde_json::from_slice(&text).map_err(|_| Why::Form)?;
    if text.key.is_some() && about.mode() & 0o044 != 0 {
        return Err(Why::Readable);
    }
    match keeps_secrets(&text.listening) {
        true => Ok(Some(text.into())),
        false => Err(Why::Address),
    }
}

/// Whether a key sent to an address stays on this machine or is encrypted.
fn keeps_secrets(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else {
        return false;
    };
    match (url.scheme(), url.host()) {
        ("https", Some(_)) | ("http", Some(Host::Domain("localhost"))) => true,
        ("http", Some(Host::Ipv4(address))) => address.is_loopback(),
        ("http", Some(Host::Ipv6(address))) => address.is_loopback(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn alone(address: &str) -> Note {
        Note {
            address: address.to_owned(),
            served: Served::Alone,
        }
    }

    #[test]
    fn a_note_counts_only_if_this_user_wrote_it_about_a_safe_address() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("wopr.db");
        let note = beside(&database);
        assert_eq!(read(&database).unwrap(), None);
        for address in [
            "http://127.0.0.1:8080",
            "http://[::1]:1",
            "http://localhost:1",
            "https://wopr.test",
        ] {
            let _locked = replace(&note, &alone(address)).unwrap();
            assert_eq!(read(&database).unwrap(), Some(alone(address)));
        }
        for address in [
            "http://wopr.test",
            "http://10.0.0.1:1",
            "http://localhost.evil.test",
            "file:///x",
            "",
        ] {
            let _locked = replace(&note, &alone(address)).unwrap();
            assert!(read(&database).is_err(), "{address}");
        }
        let locked = replace(&note, &alone("http://127.0.0.1:1")).unwrap();
        assert_eq!(fs::metadata(&note).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&note, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&database).unwrap().is_some(), "it holds no key");
        fs::set_permissions(&note, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read(&database).is_err(), "others may write it");
        drop(locked);
        assert_eq!(read(&database).unwrap(), None, "its writer has ended");

        // Writing replaces the link, not the file that the link points to.
        let other = folder.path().join("other");
        let _locked = replace(&other, &alone("http://127.0.0.1:1")).unwrap();
        fs::remove_file(&note).unwrap();
        symlink(&other, &note).unwrap();
        assert!(read(&database).is_err(), "it is a link");
        let locked = replace(&note, &alone("http://127.0.0.1:2")).unwrap();
        assert!(read(&database).unwrap().is_some());
        assert!(fs::read_to_string(&other).unwrap().contains(":1\""));
        fs::write(&note, " ".repeat(5_000)).unwrap();
        assert!(read(&database).is_err(), "it is too long");
        drop(locked);
    }

    #[test]
    fn a_note_with_a_key_is_refused_if_other_users_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("wopr.db");
        let path = beside(&database);
        let note = Note {
            address: "http://127.0.0.1:1".to_owned(),
            served: Served::Together {
                key: Some(Secret::new("wopr_secret")),
            },
        };
        assert!(!format!("{note:?}").contains("wopr_secret"));
        let _locked = replace(&path, &note).unwrap();
        assert_eq!(read(&database).unwrap(), Some(note));
        for mode in [0o640, 0o604] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let distrust = read(&database).unwrap_err().to_string();
            assert!(distrust.contains("may read"), "{distrust}");
            assert!(!distrust.contains("wopr_secret"), "{distrust}");
        }
    }
}
