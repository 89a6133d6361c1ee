//! Secrets by name: where their values are, and who may use them for what.
//!
//! The configuration holds no value. A workflow names a secret, and the host sends it only to the hosts that the
//! operator listed.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Deserializer, Serialize, de};
use wopr_core::TenantId;

use super::{Secret, Secrets};

/// Most hosts of one secret.
const MAX_HOSTS: usize = 32;

/// A secret that models, peers and workflows name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSecret {
    pub name: String,
    /// The environment variable with the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file with the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Each tenant keeps its own value with the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
    /// The hosts that workflows may send it to; none where empty. `*.example.com` stands for every host below
    /// `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The tenants whose workflows may name it; all where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantId>,
}

impl NamedSecret {
    /// The first member that is wrong, and its rule.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if self.name.is_empty() || self.name.len() > 128 || !self.name.chars().all(is_name) {
            return Some((
                "name",
                "must be 1 to 128 letters, digits, hyphens, underscores, dots or colons",
            ));
        }
        let sources = [self.env.is_some(), self.file.is_some(), self.stored];
        if sources.iter().filter(|is_there| **is_there).count() != 1 {
            return Some(("env", "must be there, or file or stored = true in its place"));
        }
        if self.env.as_ref().is_some_and(String::is_empty) {
            return Some(("env", "must not be empty"));
        }
        let is_host = |host: &String| {
            let host = host.strip_prefix("*.").unwrap_or(host);
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-.:[]".contains(c))
        };
        if self.hosts.len() > MAX_HOSTS || !self.hosts.iter().all(is_host) {
            return Some((
                "hosts",
                "must be up to 32 names of hosts, without scheme, port and path",
            ));
        }
        None
    }
}

/// Both `[secrets]` with its members, and a list of secrets alone, `[[secrets]]`.
impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Table {
            key_file: Option<PathBuf>,
            replace_key: bool,
            named: Vec<NamedSecret>,
        }

        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = Secrets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table, or a list of secrets")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Secrets, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Secrets {
                    key_file: table.key_file,
                    replace_key: table.replace_key,
                    named: table.named,
                    // Only read from the environment.
                    master_key: None::<Secret>,
                })
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Secrets, A::Error> {
                let named = Vec::deserialize(de::value::SeqAccessDeserializer::new(list))?;
                Ok(Secrets {
                    named,
                    ..Secrets::default()
                })
            }
        }

        deserializer.deserialize_any(Either)
    }
}
