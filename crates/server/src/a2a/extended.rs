//! The extended card: what this caller may use, instead of what every caller shares.
//!
//! It names the skills of the caller's own tenant, and none for a caller who may not start a run: a skill that cannot
//! be asked for is no skill of that caller. A `tenant` in the request selects nothing.

use wopr_wire::a2a::{error::A2aError, model::AgentCard};

use super::{
    card::{self, Subject},
    error::Error,
    service::{Call, Service},
};
use crate::auth::Scope;

impl Service {
    /// Describes this agent to its caller.
    pub(super) fn extended_card(&self, call: &Call) -> Result<AgentCard, Error> {
        let subject = Subject {
            tenant: &call.caller.tenant,
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
