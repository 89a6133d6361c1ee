//! Types of settings that are more than a string or a number, each validated when it is parsed.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use http::HeaderValue;
use serde::{Deserialize, Serialize, Serializer};
use url::Url;
use wopr_connect::egress::Cidr;

/// Implements the conversions from and to strings that serde uses.
macro_rules! as_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

/// A string that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Replaces a secret wherever it would be shown.
    pub const REDACTED: &'static str = "[redacted]";

    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret, for the one place that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::REDACTED)
    }
}

/// A duration, written `250ms`, `15s`, `30m`, `24h` or `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(Duration);

impl Period {
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    #[must_use]
    pub const fn as_duration(self) -> Duration {
        self.0
    }

    /// The duration in milliseconds, saturating.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = || "must be a whole number and one of ms, s, m, h, d, such as 15s".to_owned();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| rule())?;
        let (_, millis) = UNITS
            .iter()
            .find(|(unit, _)| *unit == text[digits..].trim())
            .ok_or_else(rule)?;
        let millis = number
            .checked_mul(*millis)
            .filter(|millis| *millis <= 10 * 365 * 86_400_000)
            .ok_or("must be at most ten years")?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.as_millis();
        // The largest unit that is exact, so that a period round-trips.
        let fits = |unit: u64| millis.is_multiple_of(unit) && millis >= unit;
        match UNITS.iter().find(|(_, unit)| fits(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", millis / unit),
            None => f.write_str("0s"),
        }
    }
}

as_text!(Period);

/// How long something is kept: `keep` for ever, or a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Keep {
    #[default]
    Forever,
    For(Period),
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "keep" {
            return Ok(Self::Forever);
        }
        let period = text.parse();
        period
            .map(Self::For)
            .map_err(|rule: String| format!("must be keep, or a period, which {rule}"))
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("keep"),
            Self::For(period) => period.fmt(f),
        }
    }
}

as_text!(Keep);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen(pub SocketAddr);

impl Listen {
    /// Returns `true` if only clients on this machine can reach it.
    pub(crate) fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }

    /// The origin under which a client on this machine reaches it.
    pub(crate) fn origin(self, scheme: &str) -> String {
        if self.0.ip().is_unspecified() {
            format!("{scheme}://localhost:{}", self.0.port())
        } else {
            format!("{scheme}://{}", self.0)
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self(SocketAddr::from(([127, 0, 0, 1], 8080)))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        let address = numeric
            .parse()
            .map_err(|_| "must be an address and a port, such as 127.0.0.1:8080")?;
        Ok(Self(address))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(Listen);

/// An http or https URL without credentials, query, fragment or trailing slash; may have a path prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicUrl(String);

impl PublicUrl {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = "must be an absolute http or https url without credentials, query or fragment";
        let url = Url::parse(text).map_err(|_| rule)?;
        let is_plain = matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !is_plain {
            return Err(rule.to_owned());
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(PublicUrl);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreUrl {
    /// `sqlite:PATH`
    Sqlite(PathBuf),
    /// `memory:`; nothing survives the process.
    Memory,
    /// `postgres://…`; may contain a password.
    Postgres(Secret),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(Secret::new(text)));
        }
        match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(PathBuf::from(path))),
            _ => Err("must be sqlite:PATH, memory: or postgres://…".to_owned()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("memory:"),
            Self::Postgres(_) => write!(f, "postgres://{}", Secret::REDACTED),
        }
    }
}

as_text!(StoreUrl);

/// An address block, kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CidrText {
    text: String,
    cidr: Cidr,
}

impl CidrText {
    #[must_use]
    pub fn cidr(&self) -> Cidr {
        self.cidr
    }
}

impl FromStr for CidrText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let cidr = text
            .parse()
            .map_err(|error: wopr_connect::egress::CidrError| error.to_string())?;
        Ok(Self {
            text: text.to_owned(),
            cidr,
        })
    }
}

impl fmt::Display for CidrText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(CidrText);

/// Web pages that may call from a browser: those of one origin, or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WebOrigin {
    Any,
    /// The origin as browsers serialize it.
    One(HeaderValue),
}

impl WebOrigin {
    /// The origin as browsers send it; `None` for any.
    #[must_use]
    pub fn value(&self) -> Option<HeaderValue> {
        match self {
            Self::Any => None,
            Self::One(value) => Some(value.clone()),
        }
    }
}

impl FromStr for WebOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let rule =
            "must be * or an origin: a scheme, a host and perhaps a port, as in https://app.example.com";
        let url = Url::parse(text).map_err(|_| rule)?;
        let origin = url.origin();
        // A `*` within a name would look like a wildcard.
        if !origin.is_tuple() || !matches!(url.path(), "" | "/") || text.contains('*') {
            return Err(rule.to_owned());
        }
        // Serializing drops a default port and uppercase letters, as browsers do.
        let origin = origin.ascii_serialization();
        if url.as_str().trim_end_matches('/') != origin {
            return Err(rule.to_owned());
        }
        origin.parse().map(Self::One).map_err(|_| rule.to_owned())
    }
}

impl fmt::Display for WebOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "*",
            Self::One(value) => value.to_str().unwrap_or_default(),
        })
    }
}

as_text!(WebOrigin);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("must be text or json".to_owned()),
        }
    }
}

/// The A2A 1.0 revision that decides the HTTP status of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ErrorProfile {
    /// Uses 409, 415 and 502 where the specification says so.
    #[serde(rename = "1.0.0")]
    V1_0_0,
    /// Mostly 400.
    #[default]
    #[serde(rename = "1.0.1")]
    V1_0_1,
}

impl FromStr for ErrorProfile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.0.0" => Ok(Self::V1_0_0),
            "1.0.1" => Ok(Self::V1_0_1),
            _ => Err("must be 1.0.0 or 1.0.1".to_owned()),
        }
    }
}

/// The card served to clients that name no version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CardVersion {
    /// One document that clients of both versions can read.
    #[default]
    #[serde(rename = "union")]
    Union,
    /// Only the 1.0 card.
    #[serde(rename = "1.0")]
    V1_0,
    /// Only the 0.3 card.
    #[serde(rename = "0.3")]
    V0_3,
}

impl FromStr for CardVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "union" => Ok(Self::Union),
            "1.0" => Ok(Self::V1_0),
            "0.3" => Ok(Self::V0_3),
            _ => Err("must be union, 1.0 or 0.3".to_owned()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CardAlgorithm {
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// ECDSA on P-256.
    #[serde(rename = "ES256")]
    Es256,
}

impl CardAlgorithm {
    /// The JOSE name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
        }
    }
}

impl FromStr for CardAlgorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "EdDSA" => Ok(Self::EdDsa),
            "ES256" => Ok(Self::Es256),
            _ => Err("must be EdDSA, ES256 or both".to_owned()),
        }
    }
}
