//! Public keys in JSON (RFC 7517), and key sets.
//!
//! [`Jwk`] has public members only, so a key set that leaks private members by mistake does not spread them.

use serde::{Deserialize, Serialize};

use super::{Algorithm, JwsError, PublicKey};

/// A set with more keys than this is rejected.
const MAX_KEYS: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwk {
    /// `OKP`, `EC` or `RSA`.
    pub kty: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crv: Option<String>,
    /// The x coordinate of an EC point, or the whole public key of an OKP key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    /// The y coordinate of an EC point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// RSA modulus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    /// RSA exponent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
    /// The id of the key within its set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    /// The only algorithm the key may be used with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// `sig` for signatures.
    #[serde(default, rename = "use", skip_serializing_if = "Option::is_none")]
    pub public_use: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_ops: Option<Vec<String>>,
}

/// The keys of a set that can verify signatures.
#[derive(Debug, Clone, Default)]
pub struct JwkSet {
    keys: Vec<PublicKey>,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<serde_json::Value>,
}

impl JwkSet {
    /// Parses a key set. Keys that are malformed, of an unknown type or for another use are ignored, as RFC
    /// 7517 section 5 recommends.
    ///
    /// # Errors
    /// Returns an error if the document is not a key set, or has too many keys.
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

    /// Returns `true` if no key of the set can verify a signature.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that may have made a signature: those with its key id, or, if the signature has no key id,
    /// the only key of the set that supports its algorithm.
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
