//! Signature verification with a public key.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey,
};

use super::{Algorithm, Jwk, JwsError};

/// The first byte of an uncompressed point (SEC 1).
const UNCOMPRESSED: u8 = 4;
/// The permitted modulus sizes in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    kid: Option<String>,
    /// The algorithm the owner restricts the key to, if any.
    only: Option<Algorithm>,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Ed25519(Vec<u8>),
    P256(Vec<u8>),
    P384(Vec<u8>),
    Rsa { n: Vec<u8>, e: Vec<u8> },
}

impl PublicKey {
    /// Parses a key.
    ///
    /// # Errors
    /// Returns an error if the key is malformed, too weak, of an unknown type, or not for signatures.
    pub fn from_jwk(jwk: &Jwk) -> Result<Self, JwsError> {
        let is_for_signatures = jwk.public_use.as_deref().is_none_or(|used| used == "sig")
            && (jwk.key_ops.as_ref()).is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !is_for_signatures {
            return Err(JwsError::KeyType);
        }
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(jwk.x.as_deref(), 32)?),
            ("EC", Some("P-256")) => Material::P256(point(jwk, 32)?),
            ("EC", Some("P-384")) => Material::P384(point(jwk, 48)?),
            ("RSA", _) => rsa(jwk)?,
            _ => return Err(JwsError::KeyType),
        };
        let mut key = Self {
            kid: jwk.kid.clone(),
            only: None,
            material,
        };
        if let Some(name) = &jwk.alg {
            let only = name.parse()?;
            if !key.takes(only) {
                return Err(JwsError::KeyType);
            }
            key.only = Some(only);
        }
        Ok(key)
    }

    /// The id of the key within its set.
    #[must_use]
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    #[must_use]
    pub fn takes(&self, algorithm: Algorithm) -> bool {
        let fits = match algorithm {
            Algorithm::EdDsa => matches!(self.material, Material::Ed25519(_)),
            Algorithm::Es256 => matches!(self.material, Material::P256(_)),
            Algorithm::Es384 => matches!(self.material, Material::P384(_)),
            Algorithm::Rs256
            | Algorithm::Rs384
            | Algorithm::Rs512
            | Algorithm::Ps256
            | Algorithm::Ps384
            | Algorithm::Ps512 => matches!(self.material, Material::Rsa { .. }),
        };
        fits && self.only.is_none_or(|only| only == algorithm)
    }

    ///
    /// # Errors
    /// Returns an error if the key does not support the algorithm, or the signature does not match.
    pub fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> Result<(), JwsError> {
        if !self.takes(algorithm) {
            return Err(JwsError::KeyType);
        }
        let checked = match &self.material {
            Material::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            Material::P256(key) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
            Material::P384(key) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, key).verify(message, signature)
            }
            Material::Rsa { n, e } => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
                    Algorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
                    Algorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
                    Algorithm::EdDsa | Algorithm::Es256 | Algorithm::Es384 => return Err(JwsError::KeyType),
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
        };
        checked.map_err(|_| JwsError::Signature)
    }
}

fn decode(text: Option<&str>) -> Result<Vec<u8>, JwsError> {
    URL_SAFE_NO_PAD
        .decode(text.ok_or(JwsError::Key)?)
        .map_err(|_| JwsError::Key)
}

fn bytes(text: Option<&str>, len: usize) -> Result<Vec<u8>, JwsError> {
    let bytes = decode(text)?;
    if bytes.len() == len {
        Ok(bytes)
    } else {
        Err(JwsError::Key)
    }
}

/// Encodes an uncompressed point for `ring`, which checks that it is on the curve when it verifies.
fn point(jwk: &Jwk, len: usize) -> Result<Vec<u8>, JwsError> {
    let mut point = vec![UNCOMPRESSED];
    point.extend(bytes(jwk.x.as_deref(), len)?);
    point.extend(bytes(jwk.y.as_deref(), len)?);
    Ok(point)
}

fn rsa(jwk: &Jwk) -> Result<Material, JwsError> {
    // Some issuers add a leading zero byte, which `ring` does not accept.
    let number = |text: Option<&str>| -> Result<Vec<u8>, JwsError> {
        let bytes = decode(text)?;
        Ok(bytes.into_iter().skip_while(|byte| *byte == 0).collect())
    };
    let (n, e) = (number(jwk.n.as_deref())?, number(jwk.e.as_deref())?);
    let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    if e.is_empty() || !RSA_BITS.contains(&bits) {
        return Err(JwsError::Key);
    }
    Ok(Material::Rsa { n, e })
}
