//! The API keys of a host, kept up to date.
//!
//! Keys are looked up in memory. Configured keys never change. Keys that any process created or revoked in the
//! store are read on a hint, on the next poll, and when a secret is unknown. A new key therefore works
//! everywhere at once, and a revoked one stops working everywhere within a second, also for responses in
//! progress: see [`Validity`]. While the store does not answer, the last known keys stay in use.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::{
    sync::{broadcast::error::RecvError, watch},
    time::Instant,
};
use tracing::warn;
use wopr_app::REVOKED_FOR_MS;
use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_store::{Hint, KeyRow, ReadError, Revision, Store};

use super::{
    AuthError, Caller, Scopes,
    verdict::{Admitted, Validity},
};
use crate::{config, hex, telemetry};

/// Maximum delay until a change of another process is noticed.
const POLL: Duration = Duration::from_secs(1);
/// Minimum interval between store reads for unknown secrets, so that guessing does not load the store.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(100);
/// After this time without news all keys are read: revoked ones are deleted at some time, and who missed that would
/// take them for valid ones.
const WHOLE_AFTER: Duration = Duration::from_secs(3_600);
/// Shorter secrets cause a warning.
const SHORT_SECRET: usize = 16;

pub(super) struct Keyring {
    store: Option<Arc<dyn Store>>,
    configured: Vec<Entry>,
    stored: Mutex<Stored>,
    table: RwLock<Table>,
    /// Number of store reads for unknown secrets that have begun.
    rounds: AtomicU64,
    looked: tokio::sync::Mutex<Looked>,
}

/// Keys by the first eight bytes of the secret's hash. The rest is compared in constant time.
type Table = HashMap<u64, Vec<Entry>>;

/// The stored keys by tenant and id, each with the revision that last changed it.
#[derive(Default)]
struct Stored {
    keys: HashMap<Name, Known>,
    /// The revoked ones, oldest first.
    revoked: BTreeSet<(Timestamp, Name)>,
    /// The latest time at which a key was created or revoked.
    latest: Timestamp,
    seen: Revision,
    /// When the keys were last read.
    read_at: Option<SystemTime>,
}

type Name = (TenantId, String);

struct Known {
    revision: Revision,
    /// Its place in the table, if it can be read.
    place: Option<u64>,
    revoked_at: Option<Timestamp>,
    /// Becomes `true` when this version of the key is revoked or replaced.
    is_over: watch::Sender<bool>,
}

#[derive(Clone)]
struct Entry {
    hash: [u8; 32],
    caller: Arc<Caller>,
    is_revoked: bool,
    validity: Option<Validity>,
}

/// The last store read for an unknown secret.
#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    round: u64,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    pub(super) fn new(keys: &[config::Key]) -> Self {
        let keyring = Self {
            store: None,
            configured: keys.iter().filter_map(configured).collect(),
            stored: Mutex::default(),
            table: RwLock::default(),
            rounds: AtomicU64::new(0),
            looked: tokio::sync::Mutex::default(),
        };
        for entry in &keyring.configured {
            let mut table = keyring.table.write();
            table.entry(prefix(&entry.hash)).or_default().push(entry.clone());
        }
        keyring
    }

    pub(super) fn with_store(mut self, store: &Arc<dyn Store>) -> Self {
        self.store = Some(Arc::clone(store));
        self
    }

    /// Reads the keys that changed since the last read.
    pub(super) async fn catch_up(&self) -> Result<(), ReadError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let now = SystemTime::now();
        let (known, seen, is_whole) = {
            let stored = self.stored.lock();
            let silent = |at| now.duration_since(at).map_or(true, |silent| silent > WHOLE_AFTER);
            match stored.read_at.is_none_or(silent) {
                true => (stored.seen, Revision::default(), true),
                false => (stored.seen, stored.seen, false),
            }
        };
        let news = store.keys_since(seen).await?;
        if is_whole {
            self.forget_others(known, &news);
        }
        self.learn(news);
        self.stored.lock().read_at = Some(now);
        Ok(())
    }

    /// Drops the keys up to a revision that the store does not have any more.
    fn forget_others(&self, up_to: Revision, rows: &[(Revision, KeyRow)]) {
        let mut stored = self.stored.lock();
        let there: HashSet<_> = rows.iter().map(|(_, row)| (&row.tenant, &row.id)).collect();
        // One that was added since the rows were read has a later revision.
        let gone = stored
            .keys
            .iter()
            .filter(|((tenant, id), known)| known.revision <= up_to && !there.contains(&(tenant, id)));
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.forget(&mut stored, &name);
        }
    }

    fn forget(&self, stored: &mut Stored, name: &Name) {
        let Some(known) = stored.keys.remove(name) else {
            return;
        };
        known.is_over.send_replace(true);
        if let Some(at) = known.revoked_at {
            stored.revoked.remove(&(at, name.clone()));
        }
        let Some(place) = known.place else {
            return;
        };
        let mut table = self.table.write();
        if let Some(entries) = table.get_mut(&place) {
            entries.retain(|entry| {
                let is_stored = entry.validity.is_some();
                !(is_stored && entry.caller.tenant == name.0 && *entry.caller.key_id == *name.1)
            });
            if entries.is_empty() {
                table.remove(&place);
            }
        }
    }

    /// Takes changed keys. The newest version of a key wins, in whatever order versions arrive.
    fn learn(&self, news: Vec<(Revision, KeyRow)>) {
        if news.is_empty() {
            return;
        }
        let mut stored = self.stored.lock();
        for (revision, row) in news {
            stored.seen = stored.seen.max(revision);
            let name = (row.tenant.clone(), row.id.clone());
            let known = stored.keys.get(&name);
            if known.is_some_and(|known| known.revision >= revision) {
                continue;
            }
            self.forget(&mut stored, &name);
            let is_over = watch::Sender::new(row.revoked_at.is_some());
            stored.latest = stored.latest.max(row.created_at);
            if let Some(at) = row.revoked_at {
                stored.latest = stored.latest.max(at);
                stored.revoked.insert((at, name.clone()));
            }
            let entry = Entry::of(&row, &is_over);
            let known = Known {
                revision,
                place: entry.as_ref().map(|entry| prefix(&entry.hash)),
                revoked_at: row.revoked_at,
                is_over,
            };
            stored.keys.insert(name, known);
            if let Some(entry) = entry {
                let mut table = self.table.write();
                table.entry(prefix(&entry.hash)).or_default().push(entry);
            }
        }
        while let Some((at, name)) = stored.revoked.first().cloned()
            && at.millis().saturating_add(REVOKED_FOR_MS) < stored.latest.millis()
        {
            self.forget(&mut stored, &name);
        }
    }

    /// Adds the roles and groups that the keys grant a principal.
    pub(super) fn add_membership(&self, tenant: &TenantId, principal: &PrincipalId, known: &mut Membership) {
        for Entry {
            caller, is_revoked, ..
        } in self.table.read().values().flatten()
        {
            if !is_revoked && caller.tenant == *tenant && caller.principal == *principal {
                known.extend(&caller.membership);
            }
        }
    }

    /// Returns `true` if there is no usable key.
    pub(super) fn is_empty(&self) -> bool {
        self.table.read().values().flatten().all(|entry| entry.is_revoked)
    }

    /// Looks up a secret in memory.
    pub(super) fn lookup(&self, secret: &str) -> Result<Admitted, AuthError> {
        let hash = hash(secret);
        let table = self.table.read();
        let found = table
            .get(&prefix(&hash))
            .into_iter()
            .flatten()
            .filter(|entry| bool::from(entry.hash.ct_eq(&hash)));
        let mut answer = Err(AuthError::Unknown);
        for entry in found {
            if !entry.is_revoked {
                return Ok(Admitted {
                    caller: entry.caller.clone(),
                    validity: entry.validity.clone(),
                });
            }
            answer = Err(AuthError::Revoked);
        }
        answer
    }

    /// Looks up an unknown secret in the store: another process may just have created its key.
    ///
    /// Concurrent calls share one store read that began after all of them.
    pub(super) async fn look_again(&self, secret: &str) -> Result<Admitted, AuthError> {
        let asked = self.rounds.load(Ordering::SeqCst);
        let mut looked = self.looked.lock().await;
        if looked.round <= asked {
            if let Some(at) = looked.at {
                tokio::time::sleep_until(at + LOOKUP_INTERVAL).await;
            }
            let round = self.rounds.fetch_add(1, Ordering::SeqCst) + 1;
            looked.at = Some(Instant::now());
            if let Err(error) = self.catch_up().await {
                telemetry::keys_not_read(&error);
            }
            looked.round = round;
        }
        drop(looked);
        self.lookup(secret)
    }

    /// Reads changes on hints and on a schedule, until the host closes.
    pub(super) async fn follow(&self, mut closing: watch::Receiver<bool>) {
        let mut hints = self.store.as_ref().and_then(|store| store.hints());
        let mut is_failing = false;
        loop {
            let hinted = async {
                let Some(hints) = &mut hints else {
                    return pending().await;
                };
                loop {
                    match hints.recv().await {
                        Ok(Hint::Run(_)) => {}
                        Ok(Hint::Registry | Hint::Any) | Err(RecvError::Lagged(_)) => return,
                        // The store is closed, so the host is closing too.
                        Err(RecvError::Closed) => pending().await,
                    }
                }
            };
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = hinted => {}
                () = tokio::time::sleep(POLL) => {}
            }
            match self.catch_up().await {
                Ok(()) => is_failing = false,
                // Logged once per outage, not every second.
                Err(error) if !is_failing => {
                    warn!(%error, "cannot read keys, they stay as they were");
                    is_failing = true;
                }
                Err(_) => {}
            }
        }
    }
}

impl Entry {
    /// The entry of a stored key. Nobody acts by a revoked one, so its roles and groups are not kept.
    fn of(row: &KeyRow, is_over: &watch::Sender<bool>) -> Option<Self> {
        let (Some(hash), Ok(scopes)) = (unhex(&row.secret_sha256), Scopes::parse(&row.scopes)) else {
            warn!(key = %row.id, "stored api key cannot be read and is ignored");
            return None;
        };
        let membership = match row.revoked_at {
            None => row.membership.clone(),
            Some(_) => Membership::default(),
        };
        Some(Self {
            hash,
            caller: Arc::new(Caller {
                key_id: Arc::from(row.id.as_str()),
                tenant: row.tenant.clone(),
                principal: row.principal.clone(),
                scopes,
                membership: Arc::new(membership),
            }),
            is_revoked: row.revoked_at.is_some(),
            validity: Some(Validity::Key(is_over.subscribe())),
        })
    }
}

fn configured(key: &config::Key) -> Option<Entry> {
    let hash = match (&key.secret, &key.secret_sha256) {
        (Some(secret), _) => {
            if secret.expose().len() < SHORT_SECRET {
                warn!(key = %key.id, at_least = SHORT_SECRET, "api key is short and could be guessed");
            }
            hash(secret.expose())
        }
        (None, Some(text)) => unhex(text)?,
        (None, None) => return None,
    };
    let principal = match &key.principal {
        Some(principal) => principal.clone(),
        None => PrincipalId::parse(&key.id).ok()?,
    };
    Some(Entry {
        hash,
        caller: Arc::new(Caller {
            key_id: Arc::from(key.id.as_str()),
            tenant: key.tenant.clone(),
            principal,
            scopes: key.scopes,
            membership: Arc::new(key.membership()),
        }),
        is_revoked: false,
        validity: None,
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

fn prefix(hash: &[u8; 32]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    u64::from_be_bytes(bytes)
}

#[must_use]
pub fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// SHA-256 of a secret as stored: lowercase hex.
#[must_use]
pub fn hash_hex(secret: &str) -> String {
    hex(&hash(secret))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use wopr_core::Timestamp;
    use wopr_store::{MemoryStore, Registry as _};

    use super::*;

    fn row(id: &str, secret: &str, revoked: bool) -> KeyRow {
        KeyRow {
            id: id.to_owned(),
            secret_sha256: hash_hex(secret),
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::parse("alice").unwrap(),
            scopes: vec!["runs:read".to_owned()],
            membership: Membership::default(),
            created_at: Timestamp::default(),
            revoked_at: revoked.then(Timestamp::default),
        }
    }

    fn keyring(rows: Vec<(u64, KeyRow)>) -> Keyring {
        let keyring = Keyring::new(&[]);
        learn(&keyring, rows);
        keyring
    }

    fn learn(keyring: &Keyring, rows: Vec<(u64, KeyRow)>) {
        keyring.learn(rows.into_iter().map(|(n, row)| (Revision(n), row)).collect());
    }

    fn ask(keyring: &Keyring, secret: &str) -> Result<String, AuthError> {
        let found = keyring.lookup(secret);
        found.map(|admitted| admitted.caller.key_id.to_string())
    }

    #[test]
    fn callers_are_found_by_secret() {
        let keyring = keyring(vec![(1, row("k1", "s1", false)), (2, row("k2", "s2", true))]);
        assert_eq!(ask(&keyring, "s1"), Ok("k1".to_owned()));
        assert_eq!(ask(&keyring, "s2"), Err(AuthError::Revoked));
        assert_eq!(ask(&keyring, "s3"), Err(AuthError::Unknown));
    }

    #[test]
    fn the_newest_version_of_a_key_wins() {
        let keyring = keyring(vec![(1, row("k1", "s1", false))]);
        learn(
            &keyring,
            vec![(4, row("k1", "s1", true)), (3, row("k2", "s2", false))],
        );
        assert_eq!(ask(&keyring, "s1"), Err(AuthError::Revoked));
        assert_eq!(ask(&keyring, "s2"), Ok("k2".to_owned()));
        // An old version read before the revocation arrives after it.
        learn(&keyring, vec![(2, row("k1", "s1", false))]);
        assert_eq!(ask(&keyring, "s1"), Err(AuthError::Revoked));
        assert!(!keyring.is_empty());
        learn(&keyring, vec![(5, row("k2", "s2", true))]);
        assert!(keyring.is_empty());
    }

    #[test]
    fn tenants_may_use_the_same_key_id() {
        let mut theirs = row("k1", "s2", false);
        theirs.tenant = TenantId::parse("zeta").unwrap();
        let keyring = keyring(vec![(1, row("k1", "s1", false)), (2, theirs.clone())]);
        let tenant = |secret| keyring.lookup(secret).unwrap().caller.tenant.to_string();
        assert_eq!(
            (tenant("s1"), tenant("s2")),
            ("acme".to_owned(), "zeta".to_owned())
        );
        theirs.revoked_at = Some(Timestamp::default());
        learn(&keyring, vec![(3, theirs)]);
        assert_eq!(ask(&keyring, "s1"), Ok("k1".to_owned()));
        assert_eq!(ask(&keyring, "s2"), Err(AuthError::Revoked));
    }

    #[test]
    fn validity_ends_when_a_key_is_revoked_or_replaced() {
        let keyring = keyring(vec![(1, row("k1", "s1", false)), (2, row("k2", "s2", false))]);
        let validity = |secret| keyring.lookup(secret).unwrap().validity.unwrap();
        let (first, second) = (validity("s1"), validity("s2"));
        learn(&keyring, vec![(3, row("k1", "s1", true))]);
        assert!(first.ended().now_or_never().is_some());
        assert!(second.clone().ended().now_or_never().is_none());
        learn(&keyring, vec![(4, row("k2", "another", false))]);
        assert!(second.ended().now_or_never().is_some());
        assert!(validity("another").ended().now_or_never().is_none());
    }

    #[test]
    fn keys_that_are_deleted_are_forgotten() {
        let keyring = keyring(vec![(1, row("k1", "s1", false)), (2, row("k2", "s2", false))]);
        let held = keyring.lookup("s1").unwrap().validity.unwrap();
        // Another process revoked `k1` and deleted it, and this one heard of neither.
        let rows = [(Revision(2), row("k2", "s2", false))];
        keyring.forget_others(Revision(2), &rows);
        assert_eq!(ask(&keyring, "s1"), Err(AuthError::Unknown));
        assert_eq!(ask(&keyring, "s2"), Ok("k2".to_owned()));
        assert!(held.ended().now_or_never().is_some());
        // It did hear of a key that was added after the rows were read.
        learn(&keyring, vec![(3, row("k3", "s3", false))]);
        keyring.forget_others(Revision(2), &rows);
        assert_eq!(ask(&keyring, "s3"), Ok("k3".to_owned()));
    }

    #[test]
    fn revoked_keys_are_forgotten_after_a_while() {
        let keyring = keyring(vec![(1, row("k1", "s1", true))]);
        assert_eq!(ask(&keyring, "s1"), Err(AuthError::Revoked));
        let mut later = row("k2", "s2", false);
        later.created_at = Timestamp::from_millis(REVOKED_FOR_MS + 1);
        learn(&keyring, vec![(2, later)]);
        assert_eq!(ask(&keyring, "s1"), Err(AuthError::Unknown));
        assert_eq!(keyring.stored.lock().keys.len(), 1);
        assert_eq!(keyring.table.read().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_of_unknown_secrets_are_rate_limited() {
        let store = Arc::new(MemoryStore::new());
        let keyring = Keyring::new(&[]).with_store(&(Arc::clone(&store) as Arc<dyn Store>));
        let since = Instant::now();
        assert!(keyring.look_again("s1").await.is_err());
        assert_eq!(since.elapsed(), Duration::ZERO, "the first at once");
        assert!(store.add_key(row("k1", "s1", false), usize::MAX).await.unwrap());
        let many = (0..100).map(|_| keyring.look_again("s1"));
        for found in futures_util::future::join_all(many).await {
            assert_eq!(&*found.unwrap().caller.key_id, "k1");
        }
        assert_eq!(since.elapsed(), LOOKUP_INTERVAL, "one look for all");
    }
}
