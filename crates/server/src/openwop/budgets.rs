//! What the budgets of a tenant have left. A host extension.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use wopr_app::{OnBreach, Spent};
use wopr_core::TenantId;
use wopr_wire::time::Timestamp;

use super::{
    answer::{Answer, json_response},
    call::Call,
    render,
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Budget {
    tenant: String,
    /// All runs of the tenant where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<String>,
    per: &'static str,
    since: Timestamp,
    until: Timestamp,
    tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    cost_usd: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost_usd: Option<f64>,
    time_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_time_ms: Option<u64>,
    on_breach: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct List {
    pub(crate) budgets: Vec<Budget>,
}

impl Budget {
    pub(crate) fn of(tenant: &TenantId, spent: &Spent) -> Self {
        let Spent { budget, row } = spent;
        Self {
            tenant: tenant.to_string(),
            workflow: row.workflow.as_ref().map(ToString::to_string),
            per: row.per.as_str(),
            since: render::time(row.window.since),
            until: render::time(row.window.until),
            tokens: row.tokens,
            max_tokens: budget.tokens.map(|bound| bound.most),
            cost_usd: usd(row.cost_micros),
            max_cost_usd: budget.cost_micros.map(|bound| usd(bound.most)),
            time_ms: row.time_ms,
            max_time_ms: budget.time_ms.map(|bound| bound.most),
            on_breach: match budget.on_breach {
                OnBreach::Ask { .. } => "ask",
                OnBreach::Fail => "fail",
            },
        }
    }
}

fn usd(micros: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact up to nine billion dollars")]
    let usd = micros as f64 / 1e6;
    usd
}

/// `GET /v1/host/wopr/budgets`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let caller = call.caller();
        let spent = call.host.app().budgets(caller).await?;
        let budgets = spent
            .iter()
            .map(|spent| Budget::of(&caller.tenant, spent))
            .collect();
        json_response(StatusCode::OK, &List { budgets })
    }
    .boxed()
}
