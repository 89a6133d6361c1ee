//! `wopr budgets`: what the budgets of tenants and workflows have left, from a server or a database.

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::Value;
use wopr_core::{TenantId, dollars, micros};
use wopr_store::Spenders;

use super::place::{Place, now};
use crate::{
    exit::{Exit, Failure},
    output, render,
};

/// The most counts that are read.
const MOST_ROWS: usize = 10_000;

/// List the budgets of tenants and workflows, with what the current hour, day or month has taken.
///
/// With --server (or WOPR_SERVER) the server shows the budgets of the key's tenant; the key needs the scope audit:read.
/// Otherwise the database is read, and the file of --config says which budgets there are: the operator sees every tenant.
#[derive(Debug, Args)]
pub(crate) struct Budgets {
    /// Only this tenant, in a database
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    place: Place,
}

impl Budgets {
    pub(crate) async fn run(self) -> Result<Exit> {
        let document = match self.place.client_without(self.tenant.as_deref())? {
            Some(client) => client.get_with("/v1/host/wopr/budgets", "budgets").await?,
            None => self.read().await?,
        };
        if self.place.format.json {
            output::json(&document)?;
            return Ok(Exit::Ok);
        }
        show(&document)
    }

    async fn read(&self) -> Result<Value> {
        let tenant = self.tenant.as_deref().map(TenantId::parse).transpose();
        let tenant = tenant.map_err(|error| Failure::new(Exit::Usage, format!("--tenant: {error}")))?;
        let config = self.place.config()?;
        let store = self.place.open_configured(config.clone(), false).await?;
        let of = tenant.as_ref().map_or(Spenders::All, Spenders::Tenant);
        let now = now()?;
        let counts = store.spending().spent(of, now, MOST_ROWS).await;
        store.close().await;
        let counts = counts.context("read what was spent")?;
        if counts.len() == MOST_ROWS {
            output::note(format!(
                "warning: these are the first {MOST_ROWS} counts; --tenant shows one tenant"
            ))?;
        }
        Ok(wopr_server::shown_budgets(&config, tenant.as_ref(), &counts, now))
    }
}

fn show(document: &Value) -> Result<Exit> {
    let budgets = document.get("budgets").and_then(Value::as_array);
    let rows: Vec<_> = budgets.into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        output::note("no budget is configured; [[budgets]] of the configuration file makes one")?;
        return Ok(Exit::Ok);
    }
    let columns = [
        output::whole("TENANT"),
        output::whole("WORKFLOW"),
        output::whole("PER"),
        output::whole("TOKENS"),
        output::whole("USD"),
        output::whole("SECONDS"),
        output::whole("UNTIL"),
        output::whole("THEN"),
    ];
    output::table(&columns, &rows)?;
    Ok(Exit::Ok)
}

fn row(budget: &Value) -> Vec<String> {
    let text = |name: &str| render::text(budget, name).to_owned();
    let part = |taken: String, most: Option<String>| match most {
        Some(most) => format!("{taken} of {most}"),
        None => taken,
    };
    let number = |name: &str| budget.get(name).and_then(Value::as_u64);
    let usd = |name: &str| {
        budget
            .get(name)
            .and_then(Value::as_f64)
            .map(|usd| dollars(micros(usd)))
    };
    let seconds = |name: &str| number(name).map(|ms| (ms / 1_000).to_string());
    let workflow = match text("workflow") {
        all if all.is_empty() => "-".to_owned(),
        one => one,
    };
    vec![
        text("tenant"),
        workflow,
        text("per"),
        part(
            number("tokens").unwrap_or(0).to_string(),
            number("maxTokens").map(|most| most.to_string()),
        ),
        part(usd("costUsd").unwrap_or_default(), usd("maxCostUsd")),
        part(seconds("timeMs").unwrap_or_default(), seconds("maxTimeMs")),
        text("until"),
        text("onBreach"),
    ]
}
