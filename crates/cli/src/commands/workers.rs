//! `wopr workers`: the worker queues of a tenant, and the workers that a host knows.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::{
    args::{Format, Remote},
    client::Client,
    exit::Exit,
    output::{self, age, whole},
    render,
};

/// List worker queues with what waits in them, and the workers that wait and work.
///
/// Queues are those of the key's tenant. Workers are those that called this process in the last ten minutes; over several
/// replicas each knows its own. The key needs the scope activities:work.
#[derive(Debug, Args)]
pub(crate) struct Workers {
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    format: Format,
}

impl Workers {
    pub(crate) async fn run(self) -> Result<Exit> {
        let document = Client::new(&self.remote)?.get("/v1/host/wopr/workers").await?;
        if self.format.json {
            output::json(&document)?;
            return Ok(Exit::Ok);
        }
        let rows = |name: &str, columns: &[&str]| -> Vec<Vec<String>> {
            let listed = document.get(name).and_then(Value::as_array);
            let row = |item: &Value| columns.iter().map(|column| cell(item, column)).collect();
            listed.into_iter().flatten().map(row).collect()
        };
        let queues = rows("queues", &["queue", "waiting", "leased", "oldestAt"]);
        if queues.is_empty() {
            output::note("no activity waits for a worker")?;
        } else {
            let columns = [whole("QUEUE"), whole("WAITING"), whole("LEASED"), age("OLDEST")];
            output::table(&columns, &queues)?;
        }
        let workers = rows("workers", &["worker", "queue", "waiting", "working", "seenAt"]);
        if workers.is_empty() {
            output::note("no worker called here in the last ten minutes")?;
        } else {
            let columns = [
                whole("WORKER"),
                whole("QUEUE"),
                whole("CALLS WAITING"),
                whole("WORKING AT"),
                age("SEEN"),
            ];
            output::table(&columns, &workers)?;
        }
        Ok(Exit::Ok)
    }
}

fn cell(item: &Value, name: &str) -> String {
    match item.get(name) {
        Some(Value::Number(n)) => n.to_string(),
        Some(_) | None => render::text(item, name).to_owned(),
    }
}
