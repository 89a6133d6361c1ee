//! What the budgets of a tenant and its workflows have left.

use wopr_engine::Spent;

use crate::{App, Caller, Error, Scope};

impl App {
    /// The budgets of the caller's tenant, with what their current windows have taken.
    pub async fn budgets(&self, caller: &Caller) -> Result<Vec<Spent>, Error> {
        caller.require(Scope::AuditRead)?;
        Ok(self.engine.spent(&caller.tenant).await?)
    }
}
