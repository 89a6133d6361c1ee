//! The extended card: the skills available to one caller.
//!
//! It lists the skills of the caller's tenant, and none if the caller may not start runs. The request's
//! `tenant` is ignored. A host that admits anonymous callers (open conformance mode) has no extended card,
//! because the card would be public.

use wopr_wire::a2a::{error::A2aError, model::AgentCard};

use super::{
    card::{self, Readers, Subject},
    error::Error,
    service::{Call, Service},
};
use crate::auth::Scope;

impl Service {
    /// Builds the extended card for the caller.
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
