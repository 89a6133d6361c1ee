//! Budgets that many runs share: those of a tenant, and those of a workflow within it.
//!
//! A host counts what the runs took in a window of the calendar, and says so when it does not ask a model. What follows
//! is decided here like everything else: from what the log holds.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Cap, Object, Timestamp,
    moment::{DAY_MS, civil, days},
};

const HOUR_MS: i64 = 3_600_000;

/// Whose spending a shared budget bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetScope {
    Tenant,
    /// The runs of one workflow of a tenant.
    Workflow,
}

/// The length of the windows in which a shared budget is counted. They are those of the calendar, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetPeriod {
    Hour,
    Day,
    Month,
}

/// A window of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetWindow {
    pub since: Timestamp,
    /// The first moment after it.
    pub until: Timestamp,
}

impl BudgetPeriod {
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.as_str() == text)
    }

    /// The window that a moment is in.
    #[must_use]
    pub fn window(self, at: Timestamp) -> BudgetWindow {
        let millis = at.millis();
        let whole = |length: i64| {
            let since = millis.div_euclid(length).saturating_mul(length);
            (since, since.saturating_add(length))
        };
        let (since, until) = match self {
            Self::Hour => whole(HOUR_MS),
            Self::Day => whole(DAY_MS),
            Self::Month => {
                let (year, month, _) = civil(millis.div_euclid(DAY_MS));
                let (next_year, next_month) = match month {
                    12 => (year + 1, 1),
                    _ => (year, month + 1),
                };
                let first = |year, month| days(year, month, 1).saturating_mul(DAY_MS);
                (first(year, month), first(next_year, next_month))
            }
        };
        BudgetWindow {
            since: Timestamp::from_millis(since),
            until: Timestamp::from_millis(until),
        }
    }
}

/// What of a shared budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetUnit {
    Tokens,
    /// In millionths of a US dollar.
    CostMicros,
    /// How long hosts waited for answers, in milliseconds.
    TimeMs,
}

impl BudgetUnit {
    pub const ALL: [Self; 3] = [Self::Tokens, Self::CostMicros, Self::TimeMs];

    /// The limit that a run exceeds which goes beyond it.
    #[must_use]
    pub const fn cap(self) -> Cap {
        match self {
            Self::Tokens => Cap::BudgetTokens,
            Self::CostMicros => Cap::BudgetCost,
            Self::TimeMs => Cap::BudgetDuration,
        }
    }

    /// An amount in words.
    #[must_use]
    pub fn words(self, amount: u64) -> String {
        match self {
            Self::Tokens => format!("{amount} tokens"),
            Self::CostMicros => format!("{} USD", dollars(amount)),
            Self::TimeMs => format!("{} s of model time", amount / 1_000),
        }
    }
}

/// One window of one bound of one shared budget, for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BudgetKey {
    pub scope: BudgetScope,
    pub per: BudgetPeriod,
    pub unit: BudgetUnit,
    /// When its window ends.
    pub until: Timestamp,
}

/// What happens when a shared budget is used up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOverBudget {
    /// Somebody is asked for more for the run.
    Ask(MoreMoney),
    /// The run fails.
    Fail,
}

/// What a run may be granted beyond a shared budget, and who may grant it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoreMoney {
    /// How much each approval grants, in the unit of the budget.
    pub grant: u64,
    /// Everybody who may answer the run's questions where both are empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approver_roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approver_groups: Vec<String>,
}

/// Why a host did not ask a model: a budget that the run shares with others is used up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OverBudget {
    #[serde(flatten)]
    pub key: BudgetKey,
    pub spent: u64,
    pub limit: u64,
    pub on_breach: OnOverBudget,
}

/// The member of an outcome that is no reply.
const OVER_BUDGET: &str = "overBudget";

impl OverBudget {
    /// It as the outcome of a call.
    #[must_use]
    pub fn outcome(&self) -> Object {
        Object::from_iter([(OVER_BUDGET.to_owned(), json!(self))])
    }

    /// Reads the outcome of a call to a model. `None` if the model was asked.
    #[must_use]
    pub fn read(outcome: &Object) -> Option<Self> {
        serde_json::from_value(outcome.get(OVER_BUDGET)?.clone()).ok()
    }

    /// The budget in words, such as "tenant's budget for the month".
    #[must_use]
    pub fn name(&self) -> String {
        let whose = match self.key.scope {
            BudgetScope::Tenant => "tenant's",
            BudgetScope::Workflow => "workflow's",
        };
        format!("{whose} budget for the {}", self.key.per.as_str())
    }

    /// What is used up, in words.
    #[must_use]
    pub fn message(&self) -> String {
        let unit = self.key.unit;
        format!(
            "the {} is used up: {} of {} until {}",
            self.name(),
            unit.words(self.spent),
            unit.words(self.limit),
            self.key.until.to_text()
        )
    }

    /// What a person is asked, as the data of an approval.
    #[must_use]
    pub fn question(&self, node: &str, more: &MoreMoney) -> Value {
        let mut data = json!({
            "title": format!("Spend {} more than the {}?", self.key.unit.words(more.grant), self.name()),
            "description": format!("{}.", capitalized(&self.message())),
            "artifactId": node,
            "artifactType": "budget",
            "actions": ["accept", "reject"],
            "budget": {
                "scope": self.key.scope, "per": self.key.per, "unit": self.key.unit, "until": self.key.until.to_text(),
                "spent": self.spent, "limit": self.limit, "grant": more.grant,
            },
        });
        for (field, names) in [
            ("approverRoleRefs", &more.approver_roles),
            ("approverGroupRefs", &more.approver_groups),
        ] {
            if !names.is_empty() {
                data[field] = json!(names);
            }
        }
        data
    }
}

/// More that a person is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedMore {
    pub key: BudgetKey,
    pub grant: u64,
}

impl AskedMore {
    /// Reads it from the data of an approval. `None` if that is about something else.
    #[must_use]
    pub fn read(question: &Value) -> Option<Self> {
        let budget = question.get("budget")?;
        let until = Timestamp::parse_text(budget.get("until")?.as_str()?)?;
        let word = |name: &str| budget.get(name).cloned().unwrap_or_default();
        Some(Self {
            key: BudgetKey {
                scope: serde_json::from_value(word("scope")).ok()?,
                per: serde_json::from_value(word("per")).ok()?,
                unit: serde_json::from_value(word("unit")).ok()?,
                until,
            },
            grant: budget.get("grant")?.as_u64()?,
        })
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

/// Millionths of a dollar, which add up without error. What costs something is at least one of them: many answers would
/// be free otherwise, and a budget that allows nothing could never be extended.
#[must_use]
pub fn micros(usd: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cost is no negative number, and the largest budget is a billion dollars"
    )]
    let micros = (usd.clamp(0.0, 1e9) * 1e6).round() as u64;
    micros.max(u64::from(usd > 0.0))
}

/// An amount as it is written in dollars.
#[must_use]
pub fn dollars(micros: u64) -> String {
    let (whole, part) = (micros / 1_000_000, micros % 1_000_000);
    let text = format!("{whole}.{part:06}");
    let text = text.trim_end_matches('0');
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_shown_without_rounding_errors() {
        for (usd, text) in [
            (0.1 + 0.2, "0.3"),
            (2.0, "2"),
            (0.000_001, "0.000001"),
            (12.5, "12.5"),
            (-1.0, "0"),
            (0.0, "0"),
            // What costs something is never free.
            (4e-7, "0.000001"),
            (1e-12, "0.000001"),
        ] {
            assert_eq!(dollars(micros(usd)), text);
        }
    }

    #[test]
    fn windows_are_those_of_the_calendar() {
        for (at, per, since, until) in [
            (
                "2026-11-26T02:33:35.001Z",
                BudgetPeriod::Hour,
                "2026-11-26T02",
                "2026-11-26T03",
            ),
            (
                "2026-11-26T02:33:35.001Z",
                BudgetPeriod::Day,
                "2026-11-26T00",
                "2026-11-27T00",
            ),
            (
                "2026-11-26T02:33:35.001Z",
                BudgetPeriod::Month,
                "2026-11-01T00",
                "2026-12-01T00",
            ),
            (
                "2026-12-31T23:59:59.999Z",
                BudgetPeriod::Month,
                "2026-12-01T00",
                "2027-01-01T00",
            ),
            (
                "2027-01-01T00:00:00.000Z",
                BudgetPeriod::Month,
                "2027-01-01T00",
                "2027-02-01T00",
            ),
            (
                "2028-02-29T12:00:00.000Z",
                BudgetPeriod::Month,
                "2028-02-01T00",
                "2028-03-01T00",
            ),
            (
                "1969-12-31T23:59:59.999Z",
                BudgetPeriod::Day,
                "1969-12-31T00",
                "1970-01-01T00",
            ),
        ] {
            let window = per.window(Timestamp::parse_text(at).expect("a time"));
            let shown = [window.since, window.until].map(Timestamp::to_text);
            let whole = |hour: &str| format!("{hour}:00:00.000Z");
            assert_eq!(shown, [whole(since), whole(until)], "{at} {per:?}");
        }
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        let over = OverBudget {
            key: BudgetKey {
                scope: BudgetScope::Workflow,
                per: BudgetPeriod::Day,
                unit: BudgetUnit::CostMicros,
                until: Timestamp::from_millis(DAY_MS),
            },
            spent: 2_500_000,
            limit: 2_000_000,
            on_breach: OnOverBudget::Ask(MoreMoney {
                grant: 500_000,
                approver_roles: vec!["finance".to_owned()],
                approver_groups: Vec::new(),
            }),
        };
        assert_eq!(OverBudget::read(&over.outcome()), Some(over.clone()));
        let fails = OverBudget {
            on_breach: OnOverBudget::Fail,
            ..over.clone()
        };
        assert_eq!(OverBudget::read(&fails.outcome()), Some(fails));
        let OnOverBudget::Ask(more) = &over.on_breach else {
            panic!("it asks");
        };
        let asked = AskedMore::read(&over.question("n", more)).expect("a question about a budget");
        assert_eq!((asked.key, asked.grant), (over.key, 500_000));
        assert_eq!(
            over.message(),
            "the workflow's budget for the day is used up: 2.5 USD of 2 USD until 1970-01-02T00:00:00.000Z"
        );
    }
}
