//! JSON Web Signatures (RFC 7515) with asymmetric keys: parsing, verification, and signing with the two
//! algorithms this host uses.
//!
//! ```text
//!   header (the algorithm and key id claimed)  -->  jwk (a key set)  -->  key (verification, by `ring`)
//!                                                                         sign (our own keys)
//! ```
//!
//! [`Algorithm`] has asymmetric algorithms only, so an attacker can request neither `none` nor an HMAC over a
//! public key, and a key is only used with algorithms of its own type. A header with `crit` is rejected,
//! because no critical extension is supported. Interpreting the payload and deciding whether to trust the
//! signer are left to the caller.

mod header;
mod jwk;
mod key;
mod sign;

pub use header::{Algorithm, Compact, Header};
pub use jwk::{Jwk, JwkSet};
pub use key::PublicKey;
pub use sign::SigningKey;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    /// Not three base64url parts, or longer than the caller's limit.
    #[error("read a signed text")]
    Malformed,
    /// The header is not an object, repeats a member, or has a member of the wrong type.
    #[error("read the header of a signature")]
    Header,
    /// The protected header does not say which key has signed, where it must.
    #[error("find the name of the key in the header of a signature")]
    KeyId,
    /// `none`, an HMAC, or an unregistered algorithm.
    #[error("accept the algorithm of a signature")]
    Algorithm,
    /// The header has `crit`; no critical extension is supported.
    #[error("understand a critical header")]
    Critical,
    /// The key is of another type, or for another use.
    #[error("use a key with another algorithm")]
    KeyType,
    /// The key is malformed, has the wrong length, or is too weak.
    #[error("read a key")]
    Key,
    #[error("verify a signature")]
    Signature,
}

#[cfg(test)]
mod tests;
