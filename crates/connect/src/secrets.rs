//! Secrets that the operator named, and that requests of workflows may carry.
//!
//! A workflow writes the name. The value goes only to hosts that the operator listed for it, and only for tenants that
//! may use it; a secret of other tenants looks like none. The value is the operator's, or each tenant keeps its own with
//! the host.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use url::Url;
use wopr_core::TenantId;
use wopr_wire::a2a::model::Secret;

/// A secret with its value.
#[derive(Debug, Clone)]
pub struct NamedSecret {
    pub name: String,
    pub source: SecretSource,
    /// The hosts that workflows may send it to. `*.example.com` stands for every host below `example.com`.
    pub hosts: Vec<String>,
    /// The tenants whose workflows may name it; all where empty.
    pub tenants: Vec<TenantId>,
}

#[derive(Debug, Clone)]
pub enum SecretSource {
    Value(Secret),
    /// Each tenant has its own value, which the host keeps.
    Stored,
    /// The place where the value should be.
    Missing {
        place: String,
    },
}

/// Finds the values that tenants keep with the host.
#[async_trait]
pub trait SecretValues: Send + Sync + 'static {
    /// `None` if the tenant has set no value.
    async fn value(&self, tenant: &TenantId, name: &str) -> Result<Option<Secret>, ValueError>;
}

/// Why a value cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Worth another attempt.
    #[error("the store does not answer")]
    Unavailable,
    #[error("the value was encrypted with another master key, or damaged")]
    Unreadable,
}

/// Why a request may not carry a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretRefusal {
    #[error("no secret is named '{0}'")]
    Unknown(String),
    #[error("the secret '{0}' is missing")]
    Missing(String),
    #[error("the secret '{name}' may not be sent to {host}; the operator lists its hosts in secrets.named")]
    Host { name: String, host: String },
    #[error("the secret '{0}' may only be sent by https")]
    Plain(String),
    #[error("the secret '{0}' is not set; `wopr secrets set {0}` sets it")]
    NotSet(String),
    #[error("the secret '{name}' cannot be read: {reason}")]
    Value { name: String, reason: ValueError },
}

impl SecretRefusal {
    /// Whether another attempt may have it.
    pub(crate) const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Value {
                reason: ValueError::Unavailable,
                ..
            }
        )
    }
}

/// All secrets that workflows may name.
#[derive(Clone, Default)]
pub struct NamedSecrets {
    secrets: Arc<[NamedSecret]>,
    values: Option<Arc<dyn SecretValues>>,
}

impl NamedSecrets {
    /// Secrets whose values are all known.
    #[must_use]
    pub fn new(secrets: Vec<NamedSecret>) -> Self {
        Self {
            secrets: secrets.into(),
            values: None,
        }
    }

    /// Finds the values of [`SecretSource::Stored`] here.
    #[must_use]
    pub fn with_values(mut self, values: Arc<dyn SecretValues>) -> Self {
        self.values = Some(values);
        self
    }

    /// The value that a tenant keeps with the host.
    pub(crate) async fn stored(&self, tenant: &TenantId, name: &str) -> Result<Secret, SecretRefusal> {
        let Some(values) = &self.values else {
            return Err(SecretRefusal::NotSet(name.to_owned()));
        };
        let value = values.value(tenant, name).await;
        let value = value.map_err(|reason| SecretRefusal::Value {
            name: name.to_owned(),
            reason,
        })?;
        value.ok_or_else(|| SecretRefusal::NotSet(name.to_owned()))
    }

    /// The value, if a request of the tenant may carry it to this address.
    pub(crate) async fn for_request(
        &self,
        tenant: &TenantId,
        name: &str,
        url: &Url,
    ) -> Result<Secret, SecretRefusal> {
        let secret = self.secrets.iter().find(|secret| secret.name == name);
        let secret = secret.filter(|secret| secret.tenants.is_empty() || secret.tenants.contains(tenant));
        let secret = secret.ok_or_else(|| SecretRefusal::Unknown(name.to_owned()))?;
        let host = url.host_str().unwrap_or_default();
        if !secret.hosts.iter().any(|pattern| is_host(pattern, host)) {
            return Err(SecretRefusal::Host {
                name: name.to_owned(),
                host: host.to_owned(),
            });
        }
        // Everybody on the way could read it.
        let is_local = ["127.0.0.1", "[::1]", "localhost"].contains(&host);
        if url.scheme() != "https" && !is_local {
            return Err(SecretRefusal::Plain(name.to_owned()));
        }
        match &secret.source {
            SecretSource::Value(value) => Ok(value.clone()),
            SecretSource::Stored => self.stored(tenant, name).await,
            SecretSource::Missing { .. } => Err(SecretRefusal::Missing(name.to_owned())),
        }
    }
}

impl fmt::Debug for NamedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.secrets.iter().map(|secret| &secret.name);
        f.debug_list().entries(names).finish()
    }
}

fn is_host(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(domain) => {
            let above = host.len().checked_sub(domain.len()).filter(|above| *above > 1);
            above.is_some_and(|above| {
                host.is_char_boundary(above)
                    && host[above..].eq_ignore_ascii_case(domain)
                    && host[..above].ends_with('.')
            })
        }
        None => pattern.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(hosts: &[&str], tenants: &[&str]) -> NamedSecrets {
        NamedSecrets::new(vec![NamedSecret {
            name: "key".to_owned(),
            source: SecretSource::Value(Secret::new("s3cret-value".to_owned()).unwrap()),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            tenants: tenants
                .iter()
                .map(|tenant| TenantId::parse(tenant).unwrap())
                .collect(),
        }])
    }

    #[tokio::test]
    async fn secret_goes_only_to_its_hosts() {
        let secrets = named(&["api.example.com", "*.example.org"], &[]);
        let tenant = TenantId::parse("default").unwrap();
        for (url, is_sent) in [
            ("https://api.example.com/x", true),
            ("https://API.example.com", true),
            ("https://a.example.org", true),
            ("https://a.b.example.org", true),
            ("https://example.org", false),
            ("https://evilexample.org", false),
            ("https://api.example.com.evil.test", false),
            ("https://evil.test/?api.example.com", false),
            ("https://api.example.com@evil.test", false),
            ("http://api.example.com", false),
        ] {
            let sent = secrets.for_request(&tenant, "key", &url.parse().unwrap()).await;
            assert_eq!(sent.is_ok(), is_sent, "{url}: {sent:?}");
        }
    }

    #[tokio::test]
    async fn secret_without_hosts_goes_nowhere() {
        let tenant = TenantId::parse("default").unwrap();
        let url = "https://api.example.com".parse().unwrap();
        let sent = named(&[], &[]).for_request(&tenant, "key", &url).await;
        assert!(sent.is_err());
    }

    #[tokio::test]
    async fn secret_of_another_tenant_looks_like_none() {
        let secrets = named(&["api.example.com"], &["acme"]);
        let url = "https://api.example.com".parse().unwrap();
        let of = async |tenant: &str| {
            let tenant = TenantId::parse(tenant).unwrap();
            secrets.for_request(&tenant, "key", &url).await
        };
        assert!(of("acme").await.is_ok());
        assert_eq!(
            of("other").await.unwrap_err(),
            SecretRefusal::Unknown("key".to_owned())
        );
        assert!(!format!("{secrets:?}").contains("s3cret-value"));
    }
}
