//! Secrets that tenants keep with the host. The store has only what [`SecretCipher`] made of them.
//!
//! A value is encrypted for its tenant and its name: a row that is moved to another place cannot be read there. What is
//! shown is a fingerprint that only this installation can compute, so that nobody can find a short value by trying.

use std::sync::Arc;

use async_trait::async_trait;
use wopr_connect::{SecretValues, ValueError};
use wopr_core::TenantId;
use wopr_store::Store;
use wopr_wire::a2a::model::Secret;

use crate::{
    config::NamedSecret,
    hex, models,
    secrets::{SealError, Secrets, Subkey},
    telemetry,
};

/// Bytes of a fingerprint.
const FINGERPRINT: usize = 8;

/// Encrypts the secrets of tenants.
#[derive(Debug, Clone)]
pub struct SecretCipher {
    key: Subkey,
    prints: Subkey,
}

/// Why the host refuses to set a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("the configuration names no secret '{0}' with stored = true")]
    Undeclared(String),
    #[error("a value has 1 to 16384 bytes and nothing that a header cannot carry, such as line breaks")]
    Value,
    #[error("draw a nonce from the system")]
    Entropy,
}

/// Checks that the configuration declares a secret that the tenant sets.
pub fn check_secret(declared: &[NamedSecret], tenant: &TenantId, name: &str) -> Result<(), SecretError> {
    let is_for = |secret: &NamedSecret| secret.tenants.is_empty() || secret.tenants.contains(tenant);
    let mut declared = declared.iter();
    // One of other tenants looks like none.
    match declared.any(|secret| secret.stored && secret.name == name && is_for(secret)) {
        true => Ok(()),
        false => Err(SecretError::Undeclared(name.to_owned())),
    }
}

impl SecretCipher {
    #[must_use]
    pub fn new(secrets: &Secrets) -> Self {
        Self {
            key: secrets.subkey("stored-secrets"),
            prints: secrets.subkey("stored-secret-fingerprints"),
        }
    }

    /// Encrypts the value of a secret that the configuration declares for the tenant. Returns it with its fingerprint.
    pub fn seal(
        &self,
        declared: &[NamedSecret],
        tenant: &TenantId,
        name: &str,
        value: &str,
    ) -> Result<(Vec<u8>, String), SecretError> {
        check_secret(declared, tenant, name)?;
        let value = models::text(value).ok_or(SecretError::Value)?;
        let value = value.expose().as_bytes();
        let place = place(tenant, name);
        let sealed = self.key.seal(&place, value).map_err(|_| SecretError::Entropy)?;
        let print = self.prints.sign(&[place.as_slice(), value].concat());
        Ok((sealed, hex(&print[..FINGERPRINT])))
    }

    pub(crate) fn open(&self, tenant: &TenantId, name: &str, sealed: &[u8]) -> Result<Secret, SealError> {
        let value = self.key.open(&place(tenant, name), sealed)?;
        let value = String::from_utf8(value).map_err(|_| SealError::Forged)?;
        Secret::new(value).map_err(|_| SealError::Forged)
    }
}

/// Neither part can contain the character between them.
fn place(tenant: &TenantId, name: &str) -> Vec<u8> {
    format!("{tenant}\n{name}\n").into_bytes()
}

/// The values in the store.
#[derive(Debug)]
pub(crate) struct StoredValues {
    store: Arc<dyn Store>,
    cipher: SecretCipher,
}

impl StoredValues {
    pub(crate) fn new(store: Arc<dyn Store>, cipher: SecretCipher) -> Self {
        Self { store, cipher }
    }
}

#[async_trait]
impl SecretValues for StoredValues {
    async fn value(&self, tenant: &TenantId, name: &str) -> Result<Option<Secret>, ValueError> {
        let row = self.store.secret(tenant, name).await.map_err(|error| {
            telemetry::secret_not_read(name, &error);
            ValueError::Unavailable
        })?;
        let Some(row) = row else { return Ok(None) };
        let value = self.cipher.open(tenant, name, &row.sealed);
        value.map(Some).map_err(|error| {
            telemetry::secret_not_opened(tenant, name, &error);
            ValueError::Unreadable
        })
    }
}

#[cfg(test)]
mod tests {
    use wopr_store::{MemoryStore, SecretRow, StoredSecrets as _};

    use super::*;
    use crate::config::{self, StoreUrl};

    fn secrets() -> Secrets {
        Secrets::open(&config::Secrets::default(), &StoreUrl::Memory).unwrap()
    }

    fn declared(tenants: &[&str]) -> Vec<NamedSecret> {
        let tenants = tenants.iter().map(|tenant| TenantId::parse(tenant).unwrap());
        vec![NamedSecret {
            name: "crm".to_owned(),
            env: None,
            file: None,
            stored: true,
            hosts: Vec::new(),
            tenants: tenants.collect(),
        }]
    }

    #[tokio::test]
    async fn value_is_read_only_in_its_place() {
        let cipher = SecretCipher::new(&secrets());
        let (acme, other) = (
            TenantId::parse("acme").unwrap(),
            TenantId::parse("other").unwrap(),
        );
        let (sealed, fingerprint) = cipher.seal(&declared(&[]), &acme, "crm", "hush-hush\n").unwrap();
        assert!(!sealed.windows(4).any(|bytes| bytes == b"hush") && !fingerprint.contains("hush"));
        let store = Arc::new(MemoryStore::default());
        let row = |tenant: &TenantId, name: &str| SecretRow {
            tenant: tenant.clone(),
            name: name.to_owned(),
            sealed: sealed.clone(),
            fingerprint: fingerprint.clone(),
            set_at: wopr_core::Timestamp::from_millis(1),
        };
        for (tenant, name) in [(&acme, "crm"), (&acme, "moved"), (&other, "crm")] {
            assert!(store.put_secret(row(tenant, name), 10).await.unwrap());
        }
        let values = StoredValues::new(store, cipher);
        let value = values.value(&acme, "crm").await.unwrap().unwrap();
        assert_eq!(value.expose(), "hush-hush");
        for (tenant, name) in [(&acme, "moved"), (&other, "crm")] {
            assert_eq!(values.value(tenant, name).await, Err(ValueError::Unreadable));
        }
        assert_eq!(values.value(&other, "none").await, Ok(None));
    }

    #[test]
    fn equal_values_of_two_tenants_look_different() {
        let cipher = SecretCipher::new(&secrets());
        let print = |tenant: &str, value: &str| {
            let tenant = TenantId::parse(tenant).unwrap();
            cipher.seal(&declared(&[]), &tenant, "crm", value).unwrap().1
        };
        assert_eq!(print("acme", "one"), print("acme", "one"));
        assert_ne!(print("acme", "one"), print("acme", "two"));
        assert_ne!(print("acme", "one"), print("other", "one"));
    }

    #[test]
    fn only_what_the_configuration_declares_can_be_set() {
        let cipher = SecretCipher::new(&secrets());
        let acme = TenantId::parse("acme").unwrap();
        let seal = |declared: &[NamedSecret], name: &str, value: &str| {
            cipher.seal(declared, &acme, name, value).map(drop)
        };
        assert_eq!(seal(&declared(&["acme"]), "crm", "x"), Ok(()));
        let undeclared = |name: &str| Err(SecretError::Undeclared(name.to_owned()));
        assert_eq!(seal(&declared(&["other"]), "crm", "x"), undeclared("crm"));
        assert_eq!(seal(&declared(&[]), "cr", "x"), undeclared("cr"));
        let mut of_file = declared(&[]);
        of_file[0].stored = false;
        assert_eq!(seal(&of_file, "crm", "x"), undeclared("crm"));
        for value in ["", " ", "a\nb", &"x".repeat(16_385)] {
            assert_eq!(
                seal(&declared(&[]), "crm", value),
                Err(SecretError::Value),
                "{value:?}"
            );
        }
    }
}
