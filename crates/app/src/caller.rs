//! Who calls, and what they may do. A face finds the caller; the use cases decide by it.

use std::sync::Arc;

use wopr_core::{Membership, PrincipalId, TenantId};

use crate::{Scope, Scopes};

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The id of the key, token or certificate, for logs.
    pub key_id: Arc<str>,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// What they may do.
    pub scopes: Scopes,
    /// Their roles and groups, for gates that ask for one.
    pub membership: Arc<Membership>,
}

impl Caller {
    /// Whether the caller may do something.
    #[must_use]
    pub const fn may(&self, scope: Scope) -> bool {
        self.scopes.has(scope)
    }

    /// Demands a scope.
    ///
    /// # Errors
    /// The missing scope.
    pub const fn require(&self, scope: Scope) -> Result<(), Forbidden> {
        if self.may(scope) {
            Ok(())
        } else {
            Err(Forbidden(scope))
        }
    }
}

/// A known caller lacks a scope: 403 `forbidden`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("act without the scope {}", .0.as_str())]
pub struct Forbidden(pub Scope);
