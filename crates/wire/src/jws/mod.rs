//! JSON Web Signatures (RFC 7515) by key pairs: reading them, checking them, and making the two kinds this host makes.
//!
//! ```text
//!   header (what a text claims)  -->  jwk (the key it names, of a set)  -->  key (the check itself, by `ring`)
//!                                                                           sign (our own keys)
//! ```
//!
//! Only asymmetric algorithms have a name here, so neither `none` nor an HMAC over a public key can be asked for, and
//! a key is only ever used with an algorithm of its own type. A header with `crit` is refused, because nothing that
//! could be critical is understood. What a payload means, and whether its signer is anyone to trust, is decided by
//! those who call this.

mod header;
mod jwk;
mod key;
mod sign;

pub use header::{Algorithm, Compact, Header};
pub use jwk::{Jwk, JwkSet};
pub use key::PublicKey;
pub use sign::SigningKey;

/// Why a signature counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    /// Not three parts of base64url, or longer than the caller takes.
    #[error("read a signed text")]
    Malformed,
    /// The header is no object, repeats a member or has one of the wrong type.
    #[error("read the header of a signature")]
    Header,
    /// `none`, an HMAC, or nothing anyone registered.
    #[error("accept the algorithm of a signature")]
    Algorithm,
    /// The header demands what is not understood here.
    #[error("understand a critical header")]
    Critical,
    /// The key is of another type, or for another use.
    #[error("use a key with another algorithm")]
    KeyType,
    /// The key is not one: wrong lengths, or too weak.
    #[error("read a key")]
    Key,
    /// The signature is of another text or by another key.
    #[error("verify a signature")]
    Signature,
}

#[cfg(test)]
mod tests;
