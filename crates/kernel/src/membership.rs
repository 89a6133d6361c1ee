//! Roles and groups of a principal, which gates can ask for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Roles and groups of a principal, as its credential states them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Membership {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// The members of a gate's data with the roles and groups that it asks.
const ROLES: &str = "approverRoleRefs";
const GROUPS: &str = "approverGroupRefs";

impl Membership {
    /// Maximum number of roles, and of groups.
    pub const MAX: usize = 256;
    /// Maximum number of characters in one role or group.
    pub const MAX_CHARS: usize = 256;

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty() && self.groups.is_empty()
    }

    /// The rule that the names break, if any.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        for (kind, names) in [("roles", &self.roles), ("groups", &self.groups)] {
            let is_name = |name: &String| {
                let n = name.chars().count();
                (1..=Self::MAX_CHARS).contains(&n) && !name.chars().any(char::is_control)
            };
            if names.len() > Self::MAX || !names.iter().all(is_name) {
                return Some(format!(
                    "{kind} must be at most {} texts of 1 to {} characters",
                    Self::MAX,
                    Self::MAX_CHARS
                ));
            }
        }
        None
    }

    /// Adds the roles and groups of `other`.
    pub fn extend(&mut self, other: &Self) {
        for (known, more) in [(&mut self.roles, &other.roles), (&mut self.groups, &other.groups)] {
            for name in more {
                if !known.contains(name) {
                    known.push(name.clone());
                }
            }
        }
    }

    /// Whether it includes all roles and groups of `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.roles.iter().all(|role| self.roles.contains(role))
            && other.groups.iter().all(|group| self.groups.contains(group))
    }

    /// Whether a gate with this interrupt data names any role or group.
    #[must_use]
    pub fn has_names(question: &Value) -> bool {
        let named = |field: &str| question.get(field).and_then(Value::as_array);
        [ROLES, GROUPS]
            .into_iter()
            .any(|field| named(field).is_some_and(|names| !names.is_empty()))
    }

    /// Whether a gate with this interrupt data names one of the roles or groups.
    #[must_use]
    pub fn is_named_by(&self, question: &Value) -> bool {
        let names = |field: &str, held: &[String]| {
            let named = question.get(field).and_then(Value::as_array);
            let mut named = named.into_iter().flatten().filter_map(Value::as_str);
            named.any(|name| held.iter().any(|held| held == name))
        };
        names(ROLES, &self.roles) || names(GROUPS, &self.groups)
    }
}
