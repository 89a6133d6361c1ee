//! Identifiers and small scalars that every layer shares.
//!
//! Each id is a newtype that is validated when it enters the system and never again. Cloning is cheap
//! (`Arc<str>`). The server decides how clients see an id; this module does not.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read {what}: {rule}")]
pub struct IdError {
    what: &'static str,
    rule: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses an id; the error names the rule that the text breaks.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(Arc::from(text)))
                } else {
                    Err(IdError { what: $what, rule: $rule })
                }
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id!(
    /// The owner of a row; part of every key.
    TenantId, "a tenant", "1 to 64 characters of [A-Za-z0-9._-]",
    |t| (1..=64).contains(&t.len())
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
);

text_id!(
    /// The opaque part of a run's name: unguessable, unique within its tenant.
    RunId, "a run id", "16 to 128 characters of [A-Za-z0-9_-]",
    |t| (16..=128).contains(&t.len())
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
);

text_id!(
    /// A workflow id, as its author chose it.
    WorkflowId, "a workflow id", "use 1 to 128 of a-z, 0-9, _ and -, starting with a letter",
    |t| (1..=128).contains(&t.len())
        && t.starts_with(|c: char| c.is_ascii_lowercase())
        && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
);

text_id!(
    /// A node within one workflow.
    NodeId, "a node id", "1 to 512 bytes without control characters",
    |t| (1..=512).contains(&t.len()) && !t.chars().any(char::is_control)
);

text_id!(
    /// The actor of an operation: an opaque name bound to a credential.
    PrincipalId, "a principal", "1 to 256 characters without spaces or control characters",
    |t| (1..=256).contains(&t.len()) && !t.chars().any(|c| c.is_control() || c.is_whitespace())
);

text_id!(
    /// Lowercase hex SHA-256 of a definition's canonical text: the version that a run pins.
    ContentHash, "a content hash", "64 lowercase hexadecimal digits",
    |t| t.len() == 64 && t.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
);

impl RunId {
    /// Creates a run id from the creation time and 80 bits of entropy. The version and variant fields of the
    /// UUID replace six of these bits.
    ///
    /// Ids sort by creation time and then by entropy, so a store appends to the right edge of its index.
    #[must_use]
    pub fn from_parts(at: Timestamp, entropy: [u8; 10]) -> Self {
        let millis = u64::try_from(at.millis()).unwrap_or(0);
        let uuid = uuid::Builder::from_unix_timestamp_millis(millis, &entropy).into_uuid();
        Self(Arc::from(format!("run_{}", uuid.simple())))
    }

    /// Derives the id of a child run that execution `(node, ordinal)` creates: the one at `index` of its set, or
    /// its only one.
    #[must_use]
    pub fn for_child(
        at: Timestamp,
        entropy: Entropy,
        node: &NodeId,
        ordinal: u32,
        index: Option<usize>,
    ) -> Self {
        // No node id has a control character.
        let name = index.map(|index| format!("{node}\0{index}"));
        Self::from_parts(
            at,
            entropy.derive(name.as_deref().unwrap_or(node.as_str()), ordinal),
        )
    }
}

impl RunId {
    /// What the names of scopes begin with that belong to runs.
    pub const MEMORY_SCOPE: &str = "run:";

    /// The scope of what only this run remembers.
    #[must_use]
    pub fn memory_scope(&self) -> String {
        format!("{}{self}", Self::MEMORY_SCOPE)
    }
}

impl WorkflowId {
    /// What the ids of the host's own workflows begin with.
    const OF_HOST: &str = "host-";

    /// Returns `true` if the workflow belongs to the host itself. Tenants cannot register a workflow with such an id, callers cannot
    /// start one, and definitions cannot name one. Only a node whose workflow the host chooses can run it, as a child.
    #[must_use]
    pub fn is_of_host(&self) -> bool {
        self.0.starts_with(Self::OF_HOST)
    }
}

impl ContentHash {
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Arc::from(hex(&Sha256::digest(bytes)).as_str()))
    }
}

pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| {
            [
                DIGITS[usize::from(b >> 4)] as char,
                DIGITS[usize::from(b & 15)] as char,
            ]
        })
        .collect()
}

/// A run within its tenant: the key of everything that the run owns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunKey {
    pub tenant: TenantId,
    pub run: RunId,
}

impl RunKey {
    #[must_use]
    pub fn new(tenant: TenantId, run: RunId) -> Self {
        Self { tenant, run }
    }

    /// The key of another run of the same tenant.
    #[must_use]
    pub fn sibling(&self, run: RunId) -> Self {
        Self {
            tenant: self.tenant.clone(),
            run,
        }
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.run)
    }
}

/// The position of an event in its run's log, from 0 and without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The position `n` events later.
    #[must_use]
    pub fn plus(self, n: usize) -> Self {
        Self(self.0 + n as u64)
    }

    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The time `millis` later, saturating at the maximum.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
    }

    /// Milliseconds since `earlier`; zero if the clock went backwards.
    #[must_use]
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

/// Entropy passed to one decision as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entropy(pub [u8; 16]);

impl Entropy {
    /// Derives ten bytes bound to a name and an ordinal.
    #[must_use]
    pub fn derive(self, name: &str, ordinal: u32) -> [u8; 10] {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(ordinal.to_be_bytes());
        hasher.update(name.as_bytes());
        let digest = hasher.finalize();
        let mut out = [0; 10];
        out.copy_from_slice(&digest[..10]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_reject_invalid_text() {
        assert!(TenantId::parse("default").is_ok());
        assert!(TenantId::parse("").is_err());
        assert!(TenantId::parse("a/b").is_err());
        assert!(RunId::parse("run_x").is_err());
        assert!(WorkflowId::parse("Upper").is_err());
        assert!(WorkflowId::parse("campaign-brief").is_ok());
        assert!(NodeId::parse("a\nb").is_err());
        assert!(PrincipalId::parse("two words").is_err());
        assert_eq!(
            WorkflowId::parse("9x").expect_err("digit first").to_string(),
            "read a workflow id: use 1 to 128 of a-z, 0-9, _ and -, starting with a letter"
        );
    }

    #[test]
    fn run_ids_sort_by_time_and_are_deterministic() {
        let early = RunId::from_parts(Timestamp::from_millis(1_000), [255; 10]);
        let late = RunId::from_parts(Timestamp::from_millis(2_000), [0; 10]);
        assert!(early < late);
        assert_eq!(RunId::parse(early.as_str()), Ok(early));
        let node = NodeId::parse("n").expect("valid");
        let at = Timestamp::from_millis(5);
        assert_eq!(
            RunId::for_child(at, Entropy([7; 16]), &node, 1, None),
            RunId::for_child(at, Entropy([7; 16]), &node, 1, None)
        );
        for (ordinal, index) in [(2, None), (1, Some(0)), (1, Some(1))] {
            assert_ne!(
                RunId::for_child(at, Entropy([7; 16]), &node, 1, None),
                RunId::for_child(at, Entropy([7; 16]), &node, ordinal, index)
            );
        }
    }

    #[test]
    fn content_hash_is_lowercase_sha256() {
        assert_eq!(
            ContentHash::of(b"").as_str(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
