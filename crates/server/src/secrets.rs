//! The host's master key and what is derived from it.
//!
//! A subkey is HMAC-SHA256 of its purpose under the master key, so no two purposes share a key and the master
//! key itself signs nothing. Each subkey has a short public id (`kid`) that goes with what it signed.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::{TryRngCore as _, rngs::OsRng};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;
use wopr_store::sqlite;

use crate::{
    config::{self, StoreUrl},
    hex::hex,
};

/// The length of the master key and of every subkey.
const KEY_BYTES: usize = 32;
/// The length of a subkey's public id.
const KID_BYTES: usize = 8;

/// The master key.
#[derive(Clone)]
pub struct Secrets([u8; KEY_BYTES]);

/// A key for one purpose.
#[derive(Clone)]
pub struct Subkey {
    kid: String,
    bytes: [u8; KEY_BYTES],
}

/// Why a secret cannot be sealed or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SealError {
    /// The system has no randomness to give.
    #[error("draw a nonce from the system")]
    Entropy,
    /// It was sealed under another master key.
    #[error("open what another master key sealed")]
    OtherKey,
    /// It was changed, or belongs elsewhere.
    #[error("open what was not sealed here")]
    Forged,
}

/// Why there is no master key.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The key is not 32 bytes of base64.
    #[error("read the master key from {0}: it must be 32 bytes in base64")]
    Malformed(String),
    /// The key's file cannot be read or made.
    #[error("read or create the key file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system has no randomness to give.
    #[error("draw a master key from the system: {0}")]
    Entropy(String),
    /// Several processes share the store, so none may make a key of its own.
    #[error("start on PostgreSQL without WOPR_MASTER_KEY or secrets.key_file")]
    Required,
}

/// The file beside a SQLite database that keeps its master key, where no setting names one. It lies beside the file, not
/// beside a link to it, unless it was put there.
#[must_use]
pub fn key_beside(database: &Path) -> PathBuf {
    let named = |database: &Path| {
        let mut path = database.as_os_str().to_owned();
        path.push(".key");
        PathBuf::from(path)
    };
    let (of_file, of_link) = (named(&sqlite::file_of(database)), named(database));
    if !of_file.exists() && of_link.exists() {
        of_link
    } else {
        of_file
    }
}

impl Secrets {
    /// Says whether [`Secrets::open`] will find a master key or may make one. Makes none.
    ///
    /// # Errors
    /// See [`SecretsError`].
    pub(crate) fn check(config: &config::Secrets, store: &StoreUrl) -> Result<(), SecretsError> {
        let is_made_if_missing = config.master_key.is_none() && config.key_file.is_none();
        match store {
            StoreUrl::Memory if is_made_if_missing => Ok(()),
            StoreUrl::Sqlite(database) if is_made_if_missing => Self::read(&key_beside(database)).map(drop),
            StoreUrl::Memory | StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => {
                Self::open(config, store).map(drop)
            }
        }
    }

    /// Finds the master key: the environment's, the configured file's, the one beside an SQLite database (made
    /// if there is none), or a passing one for a store that passes too.
    ///
    /// # Errors
    /// See [`SecretsError`].
    pub fn open(config: &config::Secrets, store: &StoreUrl) -> Result<Self, SecretsError> {
        if let Some(key) = &config.master_key {
            return Self::parse(key.expose(), "WOPR_MASTER_KEY");
        }
        if let Some(path) = &config.key_file {
            return Self::read(path)?.ok_or_else(|| SecretsError::File {
                path: path.clone(),
                source: io::ErrorKind::NotFound.into(),
            });
        }
        match store {
            StoreUrl::Memory => Self::draw(),
            StoreUrl::Postgres(_) => Err(SecretsError::Required),
            StoreUrl::Sqlite(database) => {
                let path = key_beside(database);
                match Self::read(&path)? {
                    Some(secrets) => Ok(secrets),
                    None => Self::create(&path),
                }
            }
        }
    }

    /// Derives the key for a purpose.
    #[must_use]
    pub fn subkey(&self, purpose: &str) -> Subkey {
        let bytes = mac(&self.0, &["wopr/subkey/", purpose]);
        let kid = hex(&mac(&bytes, &["wopr/kid"])[..KID_BYTES / 2]);
        Subkey { kid, bytes }
    }

    fn draw() -> Result<Self, SecretsError> {
        let mut bytes = [0; KEY_BYTES];
        OsRng
            .try_fill_bytes(&mut bytes)
            .map_err(|error| SecretsError::Entropy(error.to_string()))?;
        Ok(Self(bytes))
    }

    fn read(path: &Path) -> Result<Option<Self>, SecretsError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &path.display().to_string()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SecretsError::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    fn create(path: &Path) -> Result<Self, SecretsError> {
        let secrets = Self::draw()?;
        let failed = |source| SecretsError::File {
            path: path.to_owned(),
            source,
        };
        let mut draft = path.to_owned().into_os_string();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&draft).map_err(failed)?;
        writeln!(file, "{}", STANDARD.encode(secrets.0)).map_err(failed)?;
        // Tokens handed out from now on depend on it.
        file.sync_all().map_err(failed)?;
        // It gets its name whole: half a key, left by a process that was killed here, would end every later start.
        // Nobody else makes one meanwhile, because the database is locked.
        fs::rename(&draft, path).map_err(failed)?;
        sync_folder(path).map_err(failed)?;
        // Beside a database that had one it is another one, and this is how anybody hears of it.
        tracing::info!(
            path = %path.display(),
            "made a master key: tokens and secrets of another one are not read with it"
        );
        Ok(secrets)
    }

    fn parse(text: &str, source: &str) -> Result<Self, SecretsError> {
        let bytes = STANDARD.decode(text.trim()).ok();
        let bytes = bytes.and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
        bytes
            .map(Self)
            .ok_or_else(|| SecretsError::Malformed(source.to_owned()))
    }
}

impl Subkey {
    /// The public id.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Secret bytes to make a key pair of; another counter gives others.
    #[must_use]
    pub fn seed(&self, counter: u32) -> [u8; 32] {
        mac_bytes(&self.bytes, &[b"wopr/seed/", &counter.to_be_bytes()])
    }

    /// Seals a secret that belongs to one place: nobody without the master key reads it, and it opens nowhere else.
    /// Each place has a key of its own, so that no number of secrets makes nonces meet.
    ///
    /// # Errors
    /// See [`SealError`].
    pub(crate) fn seal(&self, place: &[u8], secret: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        OsRng.try_fill_bytes(&mut nonce).map_err(|_| SealError::Entropy)?;
        let mut text = secret.to_vec();
        self.cipher(place)?
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(place), &mut text)
            .map_err(|_| SealError::Forged)?;
        Ok([self.kid.as_bytes(), &nonce, &text].concat())
    }

    /// Opens what [`Subkey::seal`] made for the same place.
    ///
    /// # Errors
    /// See [`SealError`].
    pub(crate) fn open(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (kid, rest) = sealed.split_at_checked(KID_BYTES).ok_or(SealError::Forged)?;
        if kid != self.kid.as_bytes() {
            return Err(SealError::OtherKey);
        }
        let (nonce, text) = rest.split_at_checked(NONCE_LEN).ok_or(SealError::Forged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Forged)?;
        let mut text = text.to_vec();
        let opened = self
            .cipher(place)?
            .open_in_place(nonce, Aad::from(place), &mut text)
            .map_err(|_| SealError::Forged)?;
        Ok(opened.to_vec())
    }

    fn cipher(&self, place: &[u8]) -> Result<LessSafeKey, SealError> {
        let key = mac_bytes(&self.bytes, &[b"wopr/seal/", place]);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).map_err(|_| SealError::Forged)?;
        Ok(LessSafeKey::new(key))
    }

    /// HMAC-SHA256 of a message.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 32] {
        mac_bytes(&self.bytes, &[message])
    }
}

/// Makes the name of this file as durable as the file is.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

fn mac(key: &[u8; KEY_BYTES], parts: &[&str]) -> [u8; 32] {
    let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
    mac_bytes(key, &parts)
}

fn mac_bytes(key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl fmt::Debug for Subkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subkey")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn a_key_is_made_once_beside_the_database_and_only_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let store = StoreUrl::Sqlite(folder.path().join("a.db"));
        fs::write(
            folder.path().join("a.db.key.new"),
            "left by a process that was killed",
        )
        .unwrap();
        let first = Secrets::open(&config::Secrets::default(), &store).unwrap();
        let again = Secrets::open(&config::Secrets::default(), &store).unwrap();
        assert_eq!(first.0, again.0);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(folder.path().join("a.db.key"))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_key_must_be_32_bytes_of_base64() {
        let open = |text: &str| {
            let config = config::Secrets {
                master_key: Some(Secret::new(text)),
                key_file: None,
            };
            Secrets::open(&config, &StoreUrl::Memory)
        };
        assert!(open(&STANDARD.encode([7; 32])).is_ok());
        for text in ["", "short", &STANDARD.encode([7; 31])] {
            assert!(matches!(open(text), Err(SecretsError::Malformed(_))), "{text}");
        }
        let postgres = StoreUrl::Postgres(Secret::new("postgres://x"));
        assert!(matches!(
            Secrets::open(&config::Secrets::default(), &postgres),
            Err(SecretsError::Required)
        ));
    }

    #[test]
    fn what_is_sealed_opens_in_its_place_alone() {
        let key = Secrets([1; KEY_BYTES]).subkey("a");
        let sealed = key.seal(b"here", b"hush").unwrap();
        assert_ne!(sealed, key.seal(b"here", b"hush").unwrap());
        assert!(!sealed.windows(4).any(|bytes| bytes == b"hush"));
        assert_eq!(key.open(b"here", &sealed).unwrap(), b"hush");
        assert_eq!(key.open(b"there", &sealed), Err(SealError::Forged));
        let other = Secrets([2; KEY_BYTES]).subkey("a");
        assert_eq!(other.open(b"here", &sealed), Err(SealError::OtherKey));
        for n in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[n] ^= 1;
            assert!(key.open(b"here", &forged).is_err(), "{n}");
            assert!(key.open(b"here", &sealed[..n]).is_err(), "{n}");
        }
    }

    #[test]
    fn purposes_do_not_share_keys() {
        let secrets = Secrets([1; KEY_BYTES]);
        let (a, b) = (secrets.subkey("a"), secrets.subkey("b"));
        assert_ne!(a.kid(), b.kid());
        assert_ne!(a.sign(b"x"), b.sign(b"x"));
        assert_eq!(a.sign(b"x"), secrets.subkey("a").sign(b"x"));
        assert_eq!(a.seed(0), secrets.subkey("a").seed(0));
        assert_ne!(a.seed(0), a.seed(1));
        assert_ne!(a.seed(0), b.seed(0));
    }
}
