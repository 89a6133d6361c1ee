//! Our own signing keys.
//!
//! A key pair is derived from 32 secret bytes and signs without randomness: every process with the key
//! produces the same signature for the same text.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use p256::ecdsa::signature::Signer as _;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use super::{Algorithm, Header, Jwk, JwsError};

pub struct SigningKey {
    kid: String,
    pair: Pair,
}

enum Pair {
    Ed25519(Ed25519KeyPair),
    P256(Box<p256::ecdsa::SigningKey>),
}

impl SigningKey {
    /// Creates an Ed25519 key pair.
    ///
    /// # Errors
    /// Never fails in practice: any 32 bytes are a valid seed.
    pub fn ed25519(kid: impl Into<String>, seed: &[u8; 32]) -> Result<Self, JwsError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| JwsError::Key)?;
        Ok(Self {
            kid: kid.into(),
            pair: Pair::Ed25519(pair),
        })
    }

    /// Creates a P-256 key pair.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a valid scalar, with probability 2^-32: derive other bytes.
    pub fn p256(kid: impl Into<String>, scalar: &[u8; 32]) -> Result<Self, JwsError> {
        let pair = p256::ecdsa::SigningKey::from_slice(scalar).map_err(|_| JwsError::Key)?;
        Ok(Self {
            kid: kid.into(),
            pair: Pair::P256(Box::new(pair)),
        })
    }

    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.pair {
            Pair::Ed25519(_) => Algorithm::EdDsa,
            Pair::P256(_) => Algorithm::Es256,
        }
    }

    /// The public key, for publication in a key set.
    #[must_use]
    pub fn jwk(&self) -> Jwk {
        let text = |bytes: &[u8]| Some(URL_SAFE_NO_PAD.encode(bytes));
        let half = match &self.pair {
            Pair::Ed25519(pair) => Jwk {
                kty: "OKP".to_owned(),
                crv: Some("Ed25519".to_owned()),
                x: text(pair.public_key().as_ref()),
                ..Jwk::default()
            },
            Pair::P256(pair) => {
                let point = pair.verifying_key().to_sec1_point(false);
                Jwk {
                    kty: "EC".to_owned(),
                    crv: Some("P-256".to_owned()),
                    x: point.x().and_then(|x| text(x)),
                    y: point.y().and_then(|y| text(y)),
                    ..Jwk::default()
                }
            }
        };
        Jwk {
            kid: Some(self.kid.clone()),
            alg: Some(self.algorithm().name().to_owned()),
            public_use: Some("sig".to_owned()),
            ..half
        }
    }

    /// The protected header of signatures by this key.
    #[must_use]
    pub fn header(&self, typ: &str, jku: Option<&str>) -> Header {
        Header {
            algorithm: self.algorithm(),
            kid: Some(self.kid.clone()),
            typ: Some(typ.to_owned()),
            jku: jku.map(str::to_owned),
        }
    }

    /// Signs `protected.payload`, both in base64url, and returns the signature in base64url.
    #[must_use]
    pub fn sign(&self, protected: &str, payload: &str) -> String {
        let message = format!("{protected}.{payload}");
        match &self.pair {
            Pair::Ed25519(pair) => URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes())),
            Pair::P256(pair) => {
                let signature: p256::ecdsa::Signature = pair.sign(message.as_bytes());
                URL_SAFE_NO_PAD.encode(signature.to_bytes())
            }
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("kid", &self.kid)
            .field("algorithm", &self.algorithm())
            .finish_non_exhaustive()
    }
}
