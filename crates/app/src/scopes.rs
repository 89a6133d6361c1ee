//! Scopes of callers, as named by keys, tokens and certificates.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A permission of a caller. No scope implies another.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Scope {
            $($(#[$doc])* $name,)*
        }

        impl Scope {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The scope as written in keys and tokens.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

scopes! {
    ManifestRead = "manifest:read",
    /// Start runs.
    RunsCreate = "runs:create",
    RunsRead = "runs:read",
    /// Cancel, pause and resume runs.
    RunsCancel = "runs:cancel",
    ArtifactsRead = "artifacts:read",
    WebhooksManage = "webhooks:manage",
    ApprovalsRespond = "approvals:respond",
    AuditRead = "audit:read",
    /// See and end the activities of runs (specific to this host).
    ActivitiesWork = "activities:work",
    /// Register workflows (specific to this host).
    WorkflowsWrite = "workflows:write",
    /// Manage keys (specific to this host).
    KeysManage = "keys:manage",
    /// Set the secrets that a tenant keeps with the host (specific to this host).
    SecretsManage = "secrets:manage",
}

impl Scope {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == text)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Scopes(u16);

impl Scopes {
    /// Every scope, written `*`.
    pub const ALL: Self = Self(u16::MAX);

    #[must_use]
    pub const fn one(scope: Scope) -> Self {
        Self(1 << scope as u8)
    }

    /// The union of two sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    /// Returns `true` if this set contains every scope of `other`.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Parses scope names.
    ///
    /// # Errors
    /// Names the first text that is not a scope, and all scopes.
    pub fn parse<T: AsRef<str>>(names: &[T]) -> Result<Self, String> {
        let mut set = Self(0);
        for name in names {
            match name.as_ref() {
                "*" => return Ok(Self::ALL),
                name => match Scope::parse(name) {
                    Some(scope) => set.0 |= 1 << scope as u8,
                    None => {
                        let known: Vec<_> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
                        return Err(format!(
                            "'{name}' is not a scope; the scopes are {}, or * for all",
                            known.join(", ")
                        ));
                    }
                },
            }
        }
        Ok(set)
    }

    /// The names of the scopes; `*` for all.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        if self == Self::ALL {
            return vec!["*".to_owned()];
        }
        let held = Scope::ALL.iter().filter(|scope| self.has(**scope));
        held.map(|scope| scope.as_str().to_owned()).collect()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl TryFrom<Vec<String>> for Scopes {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        Self::parse(&names)
    }
}

impl From<Scopes> for Vec<String> {
    fn from(scopes: Scopes) -> Self {
        scopes.names()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_do_not_imply_each_other() {
        let scopes = Scopes::parse(&["runs:cancel"]).unwrap();
        assert!(scopes.has(Scope::RunsCancel));
        assert!(!scopes.has(Scope::RunsRead));
        assert!(Scopes::ALL.covers(scopes) && !scopes.covers(Scopes::ALL));
        for scope in Scope::ALL {
            assert!(Scopes::ALL.has(*scope));
            assert_eq!(Scope::parse(scope.as_str()), Some(*scope));
        }
        let unknown = Scopes::parse(&["runs:fly"]).unwrap_err();
        assert!(
            unknown.starts_with("'runs:fly' is not a scope; the scopes are manifest:read, runs:create, "),
            "{unknown}"
        );
        assert_eq!(Scopes::parse(&["runs:read", "*"]).unwrap().names(), ["*"]);
    }
}
