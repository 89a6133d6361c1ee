//! The authenticated caller and its permissions. A protocol face authenticates it; use cases check it.

use std::sync::Arc;

use wopr_core::{Membership, PrincipalId, TenantId};

use crate::{Scope, Scopes};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The id of the key, token or certificate, for logs.
    pub key_id: Arc<str>,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    pub scopes: Scopes,
    /// Roles and groups, for gates that require one.
    pub membership: Arc<Membership>,
}

impl Caller {
    #[must_use]
    pub const fn may(&self, scope: Scope) -> bool {
        self.scopes.has(scope)
    }

    /// The scopes that the caller may give to a key: only those it has itself. `None` if it lacks one.
    #[must_use]
    pub const fn grant(&self, scopes: Scopes) -> Option<GrantedScopes> {
        if self.scopes.covers(scopes) {
            Some(GrantedScopes(scopes))
        } else {
            None
        }
    }

    /// Fails with the missing scope unless the caller has it.
    pub const fn require(&self, scope: Scope) -> Result<(), Forbidden> {
        if self.may(scope) {
            Ok(())
        } else {
            Err(Forbidden(scope))
        }
    }
}

/// Scopes that a caller may pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedScopes(pub(crate) Scopes);

/// A known caller lacks a scope: 403 `forbidden`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("act without the scope {}", .0.as_str())]
pub struct Forbidden(pub Scope);
