//! Notices that the files of the agents that workflows may call have changed: a renewed certificate, other authorities,
//! another token, other keys of cards.
//!
//! The files are read when the host opens, where unusable ones keep it from starting, and again when they change, where
//! unusable ones leave the last good ones in use. Credentials in environment variables cannot change.

use std::{fmt, fs, path::PathBuf};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use wopr_connect::a2a::{Credential, Peer};

use crate::{
    config::{AgentPeer, CardKeySource},
    peers::PeerError,
};

type Read = dyn Fn(&AgentPeer) -> Result<Peer, PeerError> + Send + Sync;

/// The peers with files.
pub(crate) struct PeerFiles {
    watched: Mutex<Vec<Watched>>,
    read: Box<Read>,
}

impl fmt::Debug for PeerFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = &*self.watched.lock();
        f.debug_struct("PeerFiles").field("watched", watched).finish()
    }
}

#[derive(Debug)]
struct Watched {
    peer: AgentPeer,
    /// Of the files as they were read.
    digest: [u8; 32],
}

impl PeerFiles {
    /// Takes note of the files. One that changes before it is read is read again.
    pub(crate) fn new(
        peers: &[AgentPeer],
        read: impl Fn(&AgentPeer) -> Result<Peer, PeerError> + Send + Sync + 'static,
    ) -> Self {
        let watched = peers.iter().filter(|peer| files(peer).next().is_some());
        let watched = watched.map(|peer| Watched {
            peer: peer.clone(),
            digest: digest(peer),
        });
        Self {
            watched: Mutex::new(watched.collect()),
            read: Box::new(read),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watched.lock().is_empty()
    }

    /// Reads the peers again whose files have changed, with their names. Blocks on the disk.
    pub(crate) fn changed(&self) -> Vec<(String, Result<Peer, PeerError>)> {
        let mut watched = self.watched.lock();
        let mut changed = Vec::new();
        for Watched { peer, digest: known } in watched.iter_mut() {
            let now = digest(peer);
            if *known == now {
                continue;
            }
            // An error is reported once, not on every check.
            *known = now;
            changed.push((peer.name.clone(), (self.read)(peer).and_then(with_credential)));
        }
        changed
    }
}

/// A peer, unless its credential is gone.
fn with_credential(peer: Peer) -> Result<Peer, PeerError> {
    match peer.credential {
        Credential::Missing { source } => Err(PeerError::Credential {
            peer: peer.name,
            source_name: source,
        }),
        Credential::None | Credential::Bearer(_) | Credential::Header { .. } | Credential::OAuth2(_) => {
            Ok(peer)
        }
    }
}

fn files(peer: &AgentPeer) -> impl Iterator<Item = &PathBuf> {
    let tls = peer.tls.iter();
    let tls = tls.flat_map(|files| [&files.ca, &files.cert, &files.key].into_iter().flatten());
    let keys = match &peer.card_keys {
        Some(CardKeySource::JwksFile(path)) => Some(path),
        Some(CardKeySource::JwksUrl(_)) | None => None,
    };
    tls.chain(&peer.token_file).chain(keys)
}

fn digest(peer: &AgentPeer) -> [u8; 32] {
    let mut hash = Sha256::new();
    for path in files(peer) {
        // An unreadable file hashes as empty here, and fails where it is used.
        let bytes = fs::read(path).unwrap_or_default();
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    fn watch(peer: AgentPeer) -> PeerFiles {
        PeerFiles::new(&[peer], |peer| peers::read_one(peer, &[], &|_| None))
    }

    fn bearer(peer: &Peer) -> &str {
        match &peer.credential {
            Credential::Bearer(token) => token.expose(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn token_is_read_again_when_its_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "first").unwrap();
        let url = "https://planner.example.com".parse().unwrap();
        let peer = AgentPeer {
            token_file: Some(path.clone()),
            ..AgentPeer::new("planner", url)
        };
        let files = watch(peer);
        assert!(!files.is_empty());
        assert!(files.changed().is_empty());

        fs::write(&path, "second\n").unwrap();
        let changed = files.changed();
        let [(name, Ok(read))] = changed.as_slice() else {
            panic!("{changed:?}")
        };
        assert_eq!((name.as_str(), bearer(read)), ("planner", "second"));
        assert!(files.changed().is_empty());

        // Half of a replacement: the last good one stays.
        fs::remove_file(&path).unwrap();
        assert!(matches!(files.changed().as_slice(), [(_, Err(_))]));
        assert!(files.changed().is_empty(), "it is reported once");
        fs::write(&path, "third").unwrap();
        assert_eq!(bearer(files.changed()[0].1.as_ref().unwrap()), "third");
    }

    #[test]
    fn peer_without_files_is_not_looked_at() {
        let url = "https://planner.example.com".parse().unwrap();
        let peer = AgentPeer {
            token_env: Some("TOKEN".to_owned()),
            ..AgentPeer::new("planner", url)
        };
        assert!(watch(peer).is_empty());
    }
}
