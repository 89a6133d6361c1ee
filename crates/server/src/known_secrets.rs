//! The secrets that must not be stored with what agents remember: those that the configuration names, with the values
//! that tenants keep with the host, and that of the conformance suite.
//!
//! A secret of other tenants is looked for in nothing that a tenant writes: the name in its place would confirm a guess.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use wopr_connect::{NamedSecret, SecretSource};
use wopr_core::TenantId;
use wopr_engine::Secrets;
use wopr_store::{ReadError, Store};

use crate::{stored_secrets::SecretCipher, telemetry};

/// Nobody's credential: the conformance suite looks for it where it must not be.
const TEST: (&str, &str) = ("conformance-test-secret", "conformance-canary-7f3a91d2c4");

pub(crate) struct KnownSecrets {
    named: Vec<NamedSecret>,
    store: Arc<dyn Store>,
    cipher: SecretCipher,
    conformance: bool,
}

impl KnownSecrets {
    pub(crate) fn new(
        named: Vec<NamedSecret>,
        store: Arc<dyn Store>,
        cipher: SecretCipher,
        conformance: bool,
    ) -> Self {
        Self {
            named,
            store,
            cipher,
            conformance,
        }
    }
}

#[async_trait]
impl Secrets for KnownSecrets {
    async fn of(&self, tenant: &TenantId) -> Result<Vec<(String, String)>, ReadError> {
        let mut known = Vec::new();
        if self.conformance {
            known.push((TEST.0.to_owned(), TEST.1.to_owned()));
        }
        let mut may_have_stored = false;
        let is_for = |secret: &&NamedSecret| secret.tenants.is_empty() || secret.tenants.contains(tenant);
        for secret in self.named.iter().filter(is_for) {
            match &secret.source {
                SecretSource::Value(value) => known.push((secret.name.clone(), value.expose().to_owned())),
                SecretSource::Stored => may_have_stored = true,
                SecretSource::Missing { .. } => {}
            }
        }
        if !may_have_stored {
            return Ok(known);
        }
        for row in self.store.secrets(tenant).await? {
            match self.cipher.open(tenant, &row.name, &row.sealed) {
                Ok(value) => known.push((row.name, value.expose().to_owned())),
                // Nobody can use it either.
                Err(error) => {
                    telemetry::secret_not_opened(tenant, &row.name, &error);
                }
            }
        }
        Ok(known)
    }
}

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.named.iter().map(|secret| &secret.name);
        f.debug_list().entries(names).finish()
    }
}
