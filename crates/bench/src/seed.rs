//! Fills a store before its server starts.
//!
//! The engine creates the runs in this process, without HTTP. It makes the same decisions, rows and appends
//! as behind a server, so the store looks as if a server had filled it.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, stream};
use wopr_core::{Object, Origin, PrincipalId, RunId, TenantId, WorkflowId};
use wopr_engine::{CommandError, Create, Engine, SideRows, Start};
use wopr_server::{Config, Host, Overrides};

use super::{
    place::Place,
    server::{KEY, master_key},
    talk::Talk,
    workflow,
};

/// Number of concurrent creates: enough to fill group commits.
const IN_FLIGHT: usize = 512;
/// Approximate number of returned ids.
const SAMPLE: usize = 4_096;
/// Maximum number of attempts to create a run if the store is overloaded.
const TRIES: u32 = 100;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Report progress after this many runs.
const NOTE_EVERY: usize = 100_000;

/// Creates runs; the `n`th one uses the workflow that `choose(n)` names. Returns a sample of ids, spread
/// evenly.
pub(crate) async fn fill(
    place: &Place,
    n_runs: usize,
    choose: impl Fn(usize) -> &'static str,
    talk: Talk,
) -> Result<Vec<RunId>> {
    let overrides = Overrides::default()
        .with("store", Some(&place.url()))
        .with("auth.keys", Some(KEY))
        .with("secrets.master_key", Some(&master_key()));
    let config = Config::load(None, &|_| None, overrides).context("configure a store to fill")?;
    let host = Box::pin(Host::open(config))
        .await
        .context("open a store to fill")?;
    for document in workflow::all() {
        let registered = host.engine().register(None, document).await;
        registered.context("register the workflows")?;
    }
    let every = n_runs.div_ceil(SAMPLE).max(1);
    let mut sample = Vec::with_capacity(n_runs / every + 1);
    let mut creating = stream::iter(0..n_runs)
        .map(|n| create(host.engine(), choose(n)))
        .buffer_unordered(IN_FLIGHT);
    let mut done = 0;
    while let Some(created) = creating.next().await {
        let run = created?;
        if done % every == 0 {
            sample.push(run);
        }
        done += 1;
        if done % NOTE_EVERY == 0 {
            talk.say(&format!("{done} runs stored"));
        }
    }
    drop(creating);
    host.close().await;
    Ok(sample)
}

async fn create(engine: &Engine, workflow: &'static str) -> Result<RunId> {
    let tenant = TenantId::parse("default").context("name the tenant")?;
    let principal = PrincipalId::parse("env").context("name the principal")?;
    let workflow = WorkflowId::parse(workflow).context("name the workflow")?;
    let plan = engine.find_workflow(&tenant, &workflow).await?;
    let plan = plan.context("find the workflow")?;
    for _ in 0..TRIES {
        let run = engine.new_run_id();
        let create = Create {
            run: run.clone(),
            workflow: Arc::clone(&plan),
            start: Start {
                tenant: tenant.clone(),
                principal: principal.clone(),
                origin: Origin::new("rest"),
                inputs: Object::new(),
                configurable: Object::new(),
                tags: Vec::new(),
                metadata: Object::new(),
                context: None,
                trace: None,
            },
            side_rows: SideRows::default(),
        };
        match engine.create(create).await {
            Ok(_) => return Ok(run),
            Err(CommandError::Busy { .. } | CommandError::Unavailable(_)) => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error).context("create a run"),
        }
    }
    bail!("create a run: the store has no room for it");
}
