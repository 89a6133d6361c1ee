//! Where the host of a SQLite database listens, noted beside the database.
//!
//! One process has a database. A command that finds it taken reads here how to reach the host that has it. The note holds
//! no secret: the command needs a key of the host. It counts only while the database is taken, because a host that was
//! killed leaves its note behind.
//!
//! The command sends its key to that address, so a note counts only if nobody else can have written it, and if the key
//! stays on this machine or is encrypted.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, process::geteuid};
use serde::{Deserialize, Serialize};
use url::{Host, Url};
use wopr_server::{Config, config::StoreUrl};

/// Maximum size of a note in bytes.
const MAX_NOTE: u64 = 4 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    listening: String,
}

/// The note of a database.
fn beside(database: &Path) -> PathBuf {
    let database = fs::canonicalize(database).unwrap_or_else(|_| database.to_owned());
    let mut name = database.into_os_string();
    name.push(".host");
    PathBuf::from(name)
}

/// Notes where this process listens.
pub(crate) fn write(config: &Config, origin: &str) {
    let StoreUrl::Sqlite(database) = &config.store else {
        return;
    };
    // A certificate is for the public name.
    let listening = match config.server.tls {
        None => origin.to_owned(),
        Some(_) => config.public_url(),
    };
    let note = serde_json::to_vec(&Note { listening }).expect("a note of texts serialises");
    let path = beside(database);
    if let Err(error) = replace(&path, &note) {
        tracing::warn!(path = %path.display(), %error, "address not noted: `wopr mcp` needs WOPR_SERVER");
    }
}

/// Replaces a file as a whole, whatever was there. Only this user may read or write it.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // Temporary files have mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(contents)?;
    file.persist(path)?;
    Ok(())
}

/// The address of the host that has a database, if it noted one.
pub(crate) fn read(database: &Path) -> Option<String> {
    let path = beside(database);
    match trusted(&path) {
        Ok(address) => Some(address),
        Err(Distrust::Read(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "address of the host ignored: set WOPR_SERVER");
            None
        }
    }
}

/// Why a note does not count.
#[derive(Debug)]
enum Distrust {
    Read(io::Error),
    Owner,
    Writable,
    Form,
    Address,
}

impl std::fmt::Display for Distrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::Owner => f.write_str("the file belongs to another user"),
            Self::Writable => f.write_str("other users may write the file"),
            Self::Form => f.write_str("the file is not a note of a host"),
            Self::Address => f.write_str("the address is neither https nor on this machine"),
        }
    }
}

/// Reads a note that nobody but this user, or root, can have written.
fn trusted(path: &Path) -> Result<String, Distrust> {
    // Opening a pipe that nobody writes would wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(|_| Distrust::Form)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(Distrust::Read)?;
    let about = file.metadata().map_err(Distrust::Read)?;
    if !about.is_file() || about.len() > MAX_NOTE {
        return Err(Distrust::Form);
    }
    if about.uid() != 0 && about.uid() != geteuid().as_raw() {
        return Err(Distrust::Owner);
    }
    if about.mode() & 0o022 != 0 {
        return Err(Distrust::Writable);
    }
    let mut text = Vec::new();
    file.take(MAX_NOTE)
        .read_to_end(&mut text)
        .map_err(Distrust::Read)?;
    let note: Note = serde_json::from_slice(&text).map_err(|_| Distrust::Form)?;
    match keeps_secrets(&note.listening) {
        true => Ok(note.listening),
        false => Err(Distrust::Address),
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

/// Removes the note of a database that this process has.
pub(crate) fn forget(store: &StoreUrl) {
    if let StoreUrl::Sqlite(database) = store {
        // There may be none, and one that stays does no harm.
        let _ = fs::remove_file(beside(database));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_note_counts_only_if_this_user_wrote_it_about_a_safe_address() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("wopr.db");
        let note = beside(&database);
        let noted = |address: &str| {
            let text = serde_json::to_vec(&Note {
                listening: address.to_owned(),
            })
            .unwrap();
            replace(&note, &text).unwrap();
            read(&database)
        };
        assert_eq!(read(&database), None);
        for address in [
            "http://127.0.0.1:8080",
            "http://[::1]:1",
            "http://localhost:1",
            "https://wopr.test",
        ] {
            assert_eq!(noted(address).as_deref(), Some(address));
        }
        for address in [
            "http://wopr.test",
            "http://10.0.0.1:1",
            "http://localhost.evil.test",
            "file:///x",
            "",
        ] {
            assert_eq!(noted(address), None, "{address}");
        }
        assert!(noted("http://127.0.0.1:1").is_some());
        assert_eq!(fs::metadata(&note).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&note, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&database), None, "others may write it");

        // Writing replaces the link, not the file that the link points to.
        let other = folder.path().join("other");
        fs::write(&other, r#"{"listening": "http://127.0.0.1:1"}"#).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(&note).unwrap();
        symlink(&other, &note).unwrap();
        assert_eq!(read(&database), None, "it is a link");
        assert!(noted("http://127.0.0.1:2").is_some());
        assert!(fs::read_to_string(&other).unwrap().ends_with(":1\"}"));
        fs::write(&note, " ".repeat(5_000)).unwrap();
        assert_eq!(read(&database), None, "it is too long");
    }
}
