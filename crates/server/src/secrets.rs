//! The host's master key and the keys derived from it.
//!
//! A subkey is the HMAC-SHA256 of its purpose under the master key, so no two purposes share a key and the
//! master key itself signs nothing. Each subkey has a short public id (`kid`) that accompanies everything it
//! signs.

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
    hex,
};

/// Length of the master key and of every subkey.
const KEY_BYTES: usize = 32;
/// Length of a subkey's public id.
const KID_BYTES: usize = 8;
/// Length of what the name of an installation is made of.
const HOST_ID_BYTES: usize = 12;

/// Length of what tells one master key from another.
const CHECK_BYTES: usize = 16;

#[derive(Clone)]
pub struct Secrets([u8; KEY_BYTES]);

#[derive(Clone)]
pub struct Subkey {
    kid: String,
    bytes: [u8; KEY_BYTES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SealError {
    #[error("draw a nonce from the system")]
    Entropy,
    #[error("open what another master key sealed")]
    OtherKey,
    /// The text was modified or sealed for another place.
    #[error("open what was not sealed here")]
    Forged,
}

#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("read the master key from {0}: it must be 32 bytes in base64")]
    Malformed(String),
    #[error("read or create the key file {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("draw a master key from the system: {0}")]
    Entropy(String),
    /// The store was used with another key.
    #[error(
        "start with another master key than the one that this database was used with: name that one by WOPR_MASTER_KEY \
         or secrets.key_file; or, to go on without it, set WOPR_REPLACE_MASTER_KEY=1 once: signed links, stored secrets \
         and push configurations made under it are void"
    )]
    OtherKey,
    /// The key file is gone, and a new one would be another key.
    #[error(
        "start without the master key of this database, which was in {}: put it back, or name it by WOPR_MASTER_KEY or \
         secrets.key_file; or, to go on without it, set WOPR_REPLACE_MASTER_KEY=1 once: signed links, stored secrets and \
         push configurations made under it are void", path.display()
    )]
    Lost { path: PathBuf },
    /// Several processes share the store, so none of them may create a key.
    #[error("start on PostgreSQL without WOPR_MASTER_KEY or secrets.key_file")]
    Required,
}

/// The key file next to a SQLite database, used if no setting names one. If the database path is a link, the
/// key file lies next to the target, unless only one next to the link exists.
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
    /// Checks that [`Secrets::open`] will find a master key or may create one. Creates none.
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

    /// Finds the master key: from the environment, from the configured file, or next to a SQLite database,
    /// where it is created if missing. A memory store gets a temporary key.
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

    /// Finds the master key as [`Secrets::open`] does, for a store that was used with the key of this check value, if any.
    /// Another key is refused, and none is created in its place, unless the configuration says so.
    ///
    /// # Errors
    /// As [`Secrets::open`]; and for another key, or a lost one.
    pub fn open_for(
        config: &config::Secrets,
        store: &StoreUrl,
        known: Option<&str>,
    ) -> Result<Self, SecretsError> {
        let is_made_if_missing = config.master_key.is_none() && config.key_file.is_none();
        if let StoreUrl::Sqlite(database) = store
            && is_made_if_missing
            && known.is_some()
            && !config.replace_key
        {
            let path = key_beside(database);
            if Self::read(&path)?.is_none() {
                return Err(SecretsError::Lost { path });
            }
        }
        let secrets = Self::open(config, store)?;
        match known {
            Some(known) if known != secrets.check_value() && !config.replace_key => {
                Err(SecretsError::OtherKey)
            }
            Some(_) | None => Ok(secrets),
        }
    }

    /// What tells this master key from others, and does not give it away.
    #[must_use]
    pub fn check_value(&self) -> String {
        hex(&mac(&self.0, &["wopr/check"])[..CHECK_BYTES])
    }

    #[must_use]
    pub fn subkey(&self, purpose: &str) -> Subkey {
        let bytes = mac(&self.0, &["wopr/subkey/", purpose]);
        let kid = hex(&mac(&bytes, &["wopr/kid"])[..KID_BYTES / 2]);
        Subkey { kid, bytes }
    }

    /// The public name of the installation that has this master key.
    #[must_use]
    pub fn host_id(&self) -> String {
        format!("wopr-{}", hex(&mac(&self.0, &["wopr/host-id"])[..HOST_ID_BYTES]))
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
        // Tokens issued from now on depend on the key.
        file.sync_all().map_err(failed)?;
        // Renamed atomically: a partial key left by a killed process would make every later start fail. The
        // database is locked, so no other process creates a key meanwhile.
        fs::rename(&draft, path).map_err(failed)?;
        sync_folder(path).map_err(failed)?;
        // If the database had another key before, this line is the only hint for the operator.
        tracing::info!(
            path = %path.display(),
            "created a master key: tokens and secrets made under another key cannot be read"
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
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Secret bytes from which a key pair is made. Each counter gives different bytes.
    #[must_use]
    pub fn seed(&self, counter: u32) -> [u8; 32] {
        mac_bytes(&self.bytes, &[b"wopr/seed/", &counter.to_be_bytes()])
    }

    /// Encrypts a secret for one place: it cannot be read without the master key or opened in another place.
    /// Each place has its own key, so nonces cannot collide across places.
    pub(crate) fn seal(&self, place: &[u8], secret: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        OsRng.try_fill_bytes(&mut nonce).map_err(|_| SealError::Entropy)?;
        let mut text = secret.to_vec();
        self.cipher(place)?
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(place), &mut text)
            .map_err(|_| SealError::Forged)?;
        Ok([self.kid.as_bytes(), &nonce, &text].concat())
    }

    /// Decrypts the output of [`Subkey::seal`] for the same place.
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

    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 32] {
        mac_bytes(&self.bytes, &[message])
    }
}

/// Makes the file's directory entry durable.
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
    fn another_key_than_that_of_the_store_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = StoreUrl::Sqlite(folder.path().join("a.db"));
        let mut config = config::Secrets::default();
        let known = Secrets::open_for(&config, &store, None).unwrap().check_value();
        let open = |config: &config::Secrets| Secrets::open_for(config, &store, Some(&known));
        assert_eq!(open(&config).unwrap().check_value(), known);
        config.master_key = Some(Secret::new(STANDARD.encode([7; KEY_BYTES])));
        assert!(matches!(open(&config), Err(SecretsError::OtherKey)));
        config.replace_key = true;
        assert_ne!(open(&config).unwrap().check_value(), known);

        let file = folder.path().join("a.db.key");
        fs::remove_file(&file).unwrap();
        let lost = open(&config::Secrets::default());
        assert!(matches!(lost, Err(SecretsError::Lost { .. })), "{lost:?}");
        assert!(!file.exists(), "a new key would hide that the old one is gone");
    }

    #[test]
    fn key_file_is_created_once_and_private() {
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
    fn master_key_must_be_32_bytes_of_base64() {
        let open = |text: &str| {
            let config = config::Secrets {
                named: Vec::new(),
                replace_key: false,
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
    fn sealed_secrets_open_only_in_their_place() {
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
    fn each_purpose_has_its_own_key() {
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
