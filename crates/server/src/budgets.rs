//! What the budgets of a host have left, for those who read its database without it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wopr_core::{TenantId, Timestamp};
use wopr_engine::spent_of;
use wopr_store::SpentRow;

use crate::{
    config::{Budget, Config},
    openwop::budgets,
};

/// The budgets of one tenant, or of every tenant that the configuration or a count names, as `GET
/// /v1/host/wopr/budgets` shows them.
#[must_use]
pub fn shown_budgets(
    config: &Config,
    tenant: Option<&TenantId>,
    counts: &[(TenantId, SpentRow)],
    now: Timestamp,
) -> Value {
    let configured = config.budgets.iter().filter_map(|budget| budget.tenant.clone());
    let counted = counts.iter().map(|(tenant, _)| tenant.clone());
    let mut tenants: BTreeSet<_> = configured.chain(counted).collect();
    if let Some(tenant) = tenant {
        tenants = BTreeSet::from([tenant.clone()]);
    }
    let mut list = budgets::List { budgets: Vec::new() };
    for tenant in tenants {
        let own = counts.iter().filter(|(owner, _)| *owner == tenant);
        let rows: Vec<_> = own.map(|(_, row)| row.clone()).collect();
        let all = config.budgets.iter().map(Budget::shared).collect();
        for spent in spent_of(all, &tenant, &rows, now) {
            list.budgets.push(budgets::Budget::of(&tenant, &spent));
        }
    }
    json!(list)
}
