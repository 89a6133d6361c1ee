//! Signs agent cards and publishes the keys that verify them.
//!
//! Every key is derived from the master key, so nothing is stored and all replicas sign alike. Signatures are
//! deterministic, so a card's `ETag` is stable. Every generation in the configuration signs and is published;
//! keys are rotated by configuring both the old and the new generation for a while.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wopr_wire::{
    a2a::{card_signature, model::AgentCardSignature},
    jws::{JwsError, SigningKey},
};

use super::supported::KEYS_PATH;
use crate::{
    config::{A2a, CardAlgorithm},
    secrets::Secrets,
};

/// Maximum number of cards whose signatures are cached. Each form of a card counts.
const MAX_KEPT: usize = 256;
/// Attempts to derive a P-256 key. Even one derived value outside the scalar range is very unlikely.
const TRIES: u32 = 4;

#[derive(Debug)]
pub struct CardSigner {
    keys: Vec<SigningKey>,
    jku: String,
    /// Signatures by the hash of the signed document. Signing costs more than building a card.
    made: Mutex<HashMap<[u8; 32], Vec<AgentCardSignature>>>,
}

impl CardSigner {
    /// Creates a signer if the configuration asks for signatures.
    ///
    /// # Errors
    /// If a key cannot be derived, which does not happen in practice.
    pub(crate) fn new(config: &A2a, secrets: &Secrets, origin: &str) -> Result<Option<Self>, JwsError> {
        let mut keys = Vec::new();
        for generation in &config.card_keys {
            for algorithm in &config.card_signing {
                keys.push(key(secrets, *algorithm, *generation)?);
            }
        }
        let signer = Self {
            keys,
            jku: format!("{origin}{KEYS_PATH}"),
            made: Mutex::default(),
        };
        Ok((!signer.keys.is_empty()).then_some(signer))
    }

    /// The published JSON Web Key Set.
    #[must_use]
    pub(crate) fn key_set(&self) -> Bytes {
        let keys: Vec<_> = self.keys.iter().map(SigningKey::jwk).collect();
        Bytes::from(json!({ "keys": keys }).to_string())
    }

    /// Signs a card in the form in which it is sent.
    pub(super) fn sign(&self, document: &Value) -> Vec<AgentCardSignature> {
        let hash: [u8; 32] = Sha256::digest(document.to_string().as_bytes()).into();
        if let Some(signatures) = self.made.lock().get(&hash) {
            return signatures.clone();
        }
        let signatures = match card_signature::sign(document, &self.keys, Some(&self.jku)) {
            Ok(signatures) => signatures,
            Err(error) => {
                tracing::error!(%error, "agent card is sent unsigned");
                return Vec::new();
            }
        };
        let mut made = self.made.lock();
        if made.len() >= MAX_KEPT {
            made.clear();
        }
        made.insert(hash, signatures.clone());
        signatures
    }
}

fn key(secrets: &Secrets, algorithm: CardAlgorithm, generation: u32) -> Result<SigningKey, JwsError> {
    let subkey = secrets.subkey(&format!("card-signing/{}/{generation}", algorithm.as_str()));
    match algorithm {
        CardAlgorithm::EdDsa => SigningKey::ed25519(subkey.kid(), &subkey.seed(0)),
        CardAlgorithm::Es256 => {
            let tried = (0..TRIES).map(|counter| SigningKey::p256(subkey.kid(), &subkey.seed(counter)));
            tried
                .into_iter()
                .find(Result::is_ok)
                .unwrap_or(Err(JwsError::Key))
        }
    }
}
