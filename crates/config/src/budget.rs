//! Budgets that the runs of a tenant, or of one of its workflows, share.

use serde::{Deserialize, Deserializer, Serialize};
use wopr_core::{BudgetPeriod, Membership, TenantId, WorkflowId, micros};
use wopr_engine::{Bound, OnBreach};

use super::{Config, ConfigError, Period};

/// The most budgets of a host.
const MAX_BUDGETS: usize = 1_000;
/// The most roles, and groups, that a budget names.
const MAX_APPROVERS: usize = 16;
/// The part of a bound that an approval grants unless the budget says otherwise.
const PART: u64 = 10;
/// The least bound of time.
const LEAST_TIME_MS: u64 = 1_000;
/// The largest bound of cost, in US dollars.
const MOST_USD: f64 = 1e9;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Whose it is. With `*`, or where absent, each tenant has one like it.
    #[serde(
        default,
        deserialize_with = "one_tenant",
        skip_serializing_if = "Option::is_none"
    )]
    pub tenant: Option<TenantId>,
    /// The workflow whose runs it bounds; all runs of the tenant where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowId>,
    pub per: BudgetPeriod,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// How long the host waits for answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time: Option<Period>,
    #[serde(default)]
    pub on_breach: BudgetBreach,
    /// How many more tokens each approval grants to one run; a tenth of `max_tokens` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_tokens: Option<u64>,
    /// The same for cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_cost_usd: Option<f64>,
    /// The same for time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_time: Option<Period>,
    /// The roles of which an approver needs one, unless it has one of the groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approver_roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approver_groups: Vec<String>,
}

/// What happens when a budget is used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetBreach {
    /// Somebody is asked for more for the run.
    #[default]
    Ask,
    /// The run fails.
    Fail,
}

fn one_tenant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TenantId>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.as_str() {
        "*" => Ok(None),
        text => TenantId::parse(text).map(Some).map_err(serde::de::Error::custom),
    }
}

impl Config {
    /// Checks the budgets, and that no two bound the same.
    pub(crate) fn check_budgets(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, rule: &str| {
            Err(ConfigError::Invalid {
                key: key.to_owned(),
                rule: rule.to_owned(),
            })
        };
        if self.budgets.len() > MAX_BUDGETS {
            return invalid("budgets", "must be 1,000 at most");
        }
        let has_price = self.models.iter().any(|model| model.price.is_some());
        for (index, budget) in self.budgets.iter().enumerate() {
            if let Some((member, rule)) = budget.problem() {
                return invalid(&format!("budgets[{index}].{member}"), rule);
            }
            if self.budgets[..index].iter().any(|other| other.is_like(budget)) {
                return invalid(
                    &format!("budgets[{index}]"),
                    "must differ from every other budget in tenant, workflow or per",
                );
            }
            if budget.max_cost_usd.is_some() && !has_price && !self.conformance {
                return invalid(
                    &format!("budgets[{index}].max_cost_usd"),
                    "bounds nothing: none of [[models]] has a price",
                );
            }
        }
        Ok(())
    }
}

impl Budget {
    /// Whether it bounds the same runs in the same windows as another one.
    fn is_like(&self, other: &Self) -> bool {
        (&self.tenant, &self.workflow, self.per) == (&other.tenant, &other.workflow, other.per)
    }

    /// The first member that is wrong, and its rule.
    fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_cost = |usd: f64| usd.is_finite() && micros(usd) > 0 && usd <= MOST_USD;
        if self.max_tokens.is_none() && self.max_cost_usd.is_none() && self.max_time.is_none() {
            return Some((
                "max_tokens",
                "or max_cost_usd or max_time must be there: without a bound there is no budget",
            ));
        }
        for (member, time) in [("max_time", self.max_time), ("grant_time", self.grant_time)] {
            if time.is_some_and(|time| time.as_millis() < LEAST_TIME_MS) {
                return Some((member, "must be at least 1s"));
            }
        }
        for (member, tokens) in [
            ("max_tokens", self.max_tokens),
            ("grant_tokens", self.grant_tokens),
        ] {
            if tokens == Some(0) {
                return Some((member, "must be at least 1"));
            }
        }
        for (member, usd) in [
            ("max_cost_usd", self.max_cost_usd),
            ("grant_cost_usd", self.grant_cost_usd),
        ] {
            if !usd.is_none_or(is_cost) {
                return Some((member, "must be a number over 0 and at most a billion"));
            }
        }
        if self.grant_tokens.is_some() && self.max_tokens.is_none() {
            return Some(("grant_tokens", "needs max_tokens"));
        }
        if self.grant_cost_usd.is_some() && self.max_cost_usd.is_none() {
            return Some(("grant_cost_usd", "needs max_cost_usd"));
        }
        if self.grant_time.is_some() && self.max_time.is_none() {
            return Some(("grant_time", "needs max_time"));
        }
        for (member, names) in [
            ("approver_roles", &self.approver_roles),
            ("approver_groups", &self.approver_groups),
        ] {
            let is_name = |name: &String| {
                (1..=Membership::MAX_CHARS).contains(&name.chars().count())
                    && !name.chars().any(char::is_control)
            };
            if names.len() > MAX_APPROVERS || !names.iter().all(is_name) {
                return Some((member, "must be at most 16 texts of 1 to 256 characters"));
            }
        }
        let asks_with = [
            ("grant_tokens", self.grant_tokens.is_some()),
            ("grant_cost_usd", self.grant_cost_usd.is_some()),
            ("grant_time", self.grant_time.is_some()),
            ("approver_roles", !self.approver_roles.is_empty()),
            ("approver_groups", !self.approver_groups.is_empty()),
        ];
        match self.on_breach {
            BudgetBreach::Ask => None,
            BudgetBreach::Fail => asks_with
                .into_iter()
                .find(|(_, is_there)| *is_there)
                .map(|(member, _)| {
                    (
                        member,
                        "has no effect with on_breach = \"fail\", which asks nobody",
                    )
                }),
        }
    }

    /// The budget as the engine takes it.
    #[must_use]
    pub fn shared(&self) -> wopr_engine::Budget {
        let bound = |most: u64, grant: Option<u64>| Bound {
            most,
            grant: grant.unwrap_or((most / PART).max(1)),
        };
        wopr_engine::Budget {
            tenant: self.tenant.clone(),
            workflow: self.workflow.clone(),
            per: self.per,
            tokens: self.max_tokens.map(|most| bound(most, self.grant_tokens)),
            cost_micros: (self.max_cost_usd).map(|usd| bound(micros(usd), self.grant_cost_usd.map(micros))),
            time_ms: (self.max_time)
                .map(|most| bound(most.as_millis(), self.grant_time.map(Period::as_millis))),
            on_breach: match self.on_breach {
                BudgetBreach::Ask => OnBreach::Ask {
                    roles: self.approver_roles.clone(),
                    groups: self.approver_groups.clone(),
                },
                BudgetBreach::Fail => OnBreach::Fail,
            },
        }
    }
}
