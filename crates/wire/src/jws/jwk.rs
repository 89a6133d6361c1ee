//! Public keys as JSON (RFC 7517), and sets of them.
//!
//! Only public members are known, so a set that carries private ones by mistake does not spread them.

use serde::{Deserialize, Serialize};

use super::{Algorithm, JwsError, PublicKey};

/// Keys of a set that are looked at; a set with more is no issuer's.
const MAX_KEYS: usize = 64;

/// A public key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwk {
    /// `OKP`, `EC` or `RSA`.
    pub kty: String,
    /// The curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crv: Option<String>,
    /// The first coordinate, or the whole point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    /// The second coordinate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// The modulus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    /// The exponent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
    /// Its name in its set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    /// The one algorithm it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// `sig` for signatures.
    #[serde(default, rename = "use", skip_serializing_if = "Option::is_none")]
    pub public_use: Option<String>,
    /// What it may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_ops: Option<Vec<String>>,
}

/// A set of public keys, of which those that can check signatures are kept.
#[derive(Debug, Clone, Default)]
pub struct JwkSet {
    keys: Vec<PublicKey>,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<serde_json::Value>,
}

impl JwkSet {
    /// Reads a set. Keys of other kinds, for other uses or malformed are left out, as the RFC has it.
    ///
    /// # Errors
    /// It is no set, or one with too many keys.
    pub fn parse(json: &[u8]) -> Result<Self, JwsError> {
        let set: Keys = serde_json::from_slice(json).map_err(|_| JwsError::Key)?;
        if set.keys.len() > MAX_KEYS {
            return Err(JwsError::Key);
        }
        let usable = |value| -> Option<PublicKey> {
            let jwk: Jwk = serde_json::from_value(value).ok()?;
            PublicKey::from_jwk(&jwk).ok()
        };
        Ok(Self {
            keys: set.keys.into_iter().filter_map(usable).collect(),
        })
    }

    /// Whether no key of it can check anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that a signature may have been made by: those with its id, or, where it names none, the only key of
    /// the set that knows its algorithm.
    pub fn candidates(&self, kid: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &PublicKey> {
        let fitting = move |key: &&PublicKey| key.takes(algorithm);
        let n_fitting = self.keys.iter().filter(fitting).count();
        self.keys.iter().filter(fitting).filter(move |key| match kid {
            Some(kid) => key.kid() == Some(kid),
            None => n_fitting == 1,
        })
    }
}

impl FromIterator<PublicKey> for JwkSet {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        Self {
            keys: keys.into_iter().collect(),
        }
    }
}
