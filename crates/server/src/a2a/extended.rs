//! The extended card: what this caller may use, instead of what every caller shares.
//!
//! It names the skills of the caller's own tenant, and none for a caller who may not start a run: a skill that cannot
//! be asked for is no skill of that caller. A `tenant` in the request selects nothing. A host that admits callers without
//! a credential (open conformance mode) has no extended card: it would be public.

use wopr_wire::a2a::{error::A2aError, model::AgentCard};

use super::{
    card::{self, Readers, Subject},
    error::Error,
    service::{Call, Service},
};
use crate::auth::Scope;

impl Service {
    /// Describes this agent to its caller.
    pub(super) fn extended_card(&self, call: &Call) -> Result<AgentCard, Error> {
        if !self.host.discovery().capabilities().a2a_extended_card {
            return Err(A2aError::unsupported("this host has no extended card").into());
        }
        let subject = Subject {
            readers: Readers::Tenant(&call.caller.tenant),
            workflow: call.interface.as_ref(),
            may_start: call.caller.may(Scope::RunsCreate),
        };
        let card = card::card(&self.host, &subject).ok_or(A2aError::ExtendedAgentCardNotConfigured)?;
        card::signed(&self.host, card, call.version).map_err(|error| {
            tracing::error!(%error, "agent card does not serialise");
            A2aError::Internal.into()
        })
    }
}
