//! The protected header of a signature, and the compact serialization.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::JwsError;

/// A signature algorithm. Only asymmetric algorithms exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Ed25519.
    EdDsa,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// RSA PKCS #1 v1.5 with SHA-256.
    Rs256,
    /// RSA PKCS #1 v1.5 with SHA-384.
    Rs384,
    /// RSA PKCS #1 v1.5 with SHA-512.
    Rs512,
    /// RSA PSS with SHA-256.
    Ps256,
    /// RSA PSS with SHA-384.
    Ps384,
    /// RSA PSS with SHA-512.
    Ps512,
}

impl Algorithm {
    pub const ALL: [Self; 9] = [
        Self::EdDsa,
        Self::Es256,
        Self::Es384,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
    ];

    /// The registered name (RFC 7518, RFC 8037).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = JwsError;

    fn from_str(name: &str) -> Result<Self, JwsError> {
        // RFC 9864 registered `Ed25519` for the only EdDSA curve in use.
        let name = if name == "Ed25519" { "EdDSA" } else { name };
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or(JwsError::Algorithm)
    }
}

/// The members of a protected header that wopr uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub algorithm: Algorithm,
    pub kid: Option<String>,
    pub typ: Option<String>,
    /// The URL of the key set, as claimed by the signer.
    pub jku: Option<String>,
}

#[derive(Deserialize)]
struct Claimed {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    typ: Option<String>,
    #[serde(default)]
    jku: Option<String>,
    #[serde(default)]
    crit: Option<IgnoredAny>,
}

#[derive(Serialize)]
struct Written<'a> {
    alg: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    jku: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    typ: Option<&'a str>,
}

impl Header {
    /// Parses a protected header in base64url.
    ///
    /// # Errors
    /// Returns an error if the header is malformed, names no asymmetric algorithm, or contains `crit`.
    pub fn decode(protected: &str) -> Result<Self, JwsError> {
        let bytes = URL_SAFE_NO_PAD
            .decode(protected)
            .map_err(|_| JwsError::Malformed)?;
        let claimed: Claimed = serde_json::from_slice(&bytes).map_err(|_| JwsError::Header)?;
        if claimed.crit.is_some() {
            return Err(JwsError::Critical);
        }
        Ok(Self {
            algorithm: claimed.alg.parse()?,
            kid: claimed.kid,
            typ: claimed.typ,
            jku: claimed.jku,
        })
    }

    /// Encodes the header in base64url, with its members in a fixed order.
    #[must_use]
    pub fn encode(&self) -> String {
        let written = Written {
            alg: self.algorithm.name(),
            jku: self.jku.as_deref(),
            kid: self.kid.as_deref(),
            typ: self.typ.as_deref(),
        };
        let json = serde_json::to_vec(&written).expect("texts serialise");
        URL_SAFE_NO_PAD.encode(json)
    }
}

/// A parsed compact serialization whose signature is not verified yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compact<'a> {
    pub header: Header,
    /// The signing input: `header.payload`, still in base64url.
    pub message: &'a [u8],
    /// The decoded payload. Do not trust it before the signature is verified.
    pub payload: Vec<u8>,
    pub signature: Vec<u8>,
}

impl<'a> Compact<'a> {
    /// Parses `header.payload.signature` of at most `limit` bytes.
    ///
    /// # Errors
    /// Returns an error if the text or its header is malformed or not accepted.
    pub fn parse(text: &'a str, limit: usize) -> Result<Self, JwsError> {
        if text.len() > limit {
            return Err(JwsError::Malformed);
        }
        let (message, signature) = text.rsplit_once('.').ok_or(JwsError::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(JwsError::Malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| JwsError::Malformed);
        // A third dot would be part of the payload, where base64url does not allow it.
        Ok(Self {
            header: Header::decode(header)?,
            message: message.as_bytes(),
            payload: decode(payload)?,
            signature: decode(signature)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected(json: &str) -> String {
        URL_SAFE_NO_PAD.encode(json)
    }

    #[test]
    fn headers_round_trip() {
        let header = Header {
            algorithm: Algorithm::Es256,
            kid: Some("k1".to_owned()),
            typ: Some("JOSE".to_owned()),
            jku: Some("https://example.test/jwks".to_owned()),
        };
        assert_eq!(Header::decode(&header.encode()), Ok(header.clone()));
        let json = URL_SAFE_NO_PAD.decode(header.encode()).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"{"alg":"ES256","jku":"https://example.test/jwks","kid":"k1","typ":"JOSE"}"#
        );
    }

    #[test]
    fn hostile_headers_are_rejected() {
        for (json, error) in [
            (r#"{"alg":"none"}"#, JwsError::Algorithm),
            (r#"{"alg":"None"}"#, JwsError::Algorithm),
            (r#"{"alg":"nOnE"}"#, JwsError::Algorithm),
            (r#"{"alg":""}"#, JwsError::Algorithm),
            (r#"{"alg":"HS256"}"#, JwsError::Algorithm),
            (r#"{"alg":"HS512"}"#, JwsError::Algorithm),
            (r#"{"alg":"es256"}"#, JwsError::Algorithm),
            (r#"{"alg":"ES256K"}"#, JwsError::Algorithm),
            (r#"{"alg":"RSA-OAEP"}"#, JwsError::Algorithm),
            (r#"{"alg":"dir"}"#, JwsError::Algorithm),
            (r#"{"alg":"ES256","crit":["exp"]}"#, JwsError::Critical),
            (r#"{"alg":"ES256","crit":[]}"#, JwsError::Critical),
            (
                r#"{"alg":"ES256","b64":false,"crit":["b64"]}"#,
                JwsError::Critical,
            ),
            (r#"{"alg":"none","alg":"ES256"}"#, JwsError::Header),
            (r#"{"alg":"ES256","kid":1}"#, JwsError::Header),
            (r#"{"alg":["ES256"]}"#, JwsError::Header),
            (r#"{"alg":null}"#, JwsError::Header),
            ("{}", JwsError::Header),
            ("[]", JwsError::Header),
            ("\"ES256\"", JwsError::Header),
            ("", JwsError::Header),
            (r#"{"alg":"ES256"} x"#, JwsError::Header),
        ] {
            assert_eq!(Header::decode(&protected(json)), Err(error), "{json}");
        }
        for text in ["=", "e30=", "e3 0", "e30\n", "ä", "+/+/"] {
            assert_eq!(Header::decode(text), Err(JwsError::Malformed), "{text}");
        }
    }

    #[test]
    fn compact_form_has_three_parts() {
        let header = protected(r#"{"alg":"EdDSA"}"#);
        let text = format!("{header}.e30.AAAA");
        let parsed = Compact::parse(&text, 1_000).unwrap();
        assert_eq!(parsed.payload, b"{}");
        assert_eq!(parsed.message, format!("{header}.e30").as_bytes());
        assert_eq!(Compact::parse(&text, text.len() - 1), Err(JwsError::Malformed));
        assert_eq!(Compact::parse("..", 1_000), Err(JwsError::Header));
        for text in [
            String::new(),
            ".".to_owned(),
            header.clone(),
            format!("{header}.e30"),
            format!("{header}.e30.AAAA."),
            format!("{header}.e30.AAAA.AAAA"),
            format!("{header}.e30.A"),
            format!("{header}.e30.AAB"),
            format!("{header}.e30=.AAAA"),
            format!("{header}.e30.AA AA"),
            format!("{header}\n.e30.AAAA"),
        ] {
            assert_eq!(Compact::parse(&text, 1_000), Err(JwsError::Malformed), "{text}");
        }
    }
}
