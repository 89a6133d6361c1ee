//! `wopr awp`: moves histories of executions of the Agent Workflow Protocol between engines.
//!
//! The forms of a history in files are in `awp/file.rs`.

mod file;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_core::awp;

use self::file::History;
use crate::{
    args::{Format, Remote},
    client::{Client, escape},
    exit::{Exit, Failure},
    output, render,
};

/// Rows read at once.
const PAGE: usize = 1_000;
/// The most executions of an export: a parent, its children, and theirs.
const MAX_EXECUTIONS: usize = 1_000;

/// Export and import histories of executions of the Agent Workflow Protocol.
///
/// A history is a file with a JSON object per row, or a SQLite database with the table `history`, as the reference engine has
/// it. See docs/agent-workflow.md.
#[derive(Debug, Args)]
pub(crate) struct Awp {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write the history of an execution, and those of its children
    Export {
        /// The execution
        execution: String,
        /// Write JSON lines to this file [default: standard output]
        #[arg(long, value_name = "FILE", conflicts_with = "sqlite")]
        out: Option<PathBuf>,
        /// Add the rows to the table `history` of this SQLite database
        #[arg(long, value_name = "FILE")]
        sqlite: Option<PathBuf>,
        /// Write the definition of the execution's workflow to this file
        #[arg(long, value_name = "FILE")]
        definition: Option<PathBuf>,
        /// Write the definitions of its sub-workflows to this folder, each to a file with the name of the workflow
        #[arg(long, value_name = "FOLDER")]
        child_definitions: Option<PathBuf>,
        /// Replace files that exist
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Create an execution from its history, which goes on where it was, and its sub-workflows from theirs
    Import {
        /// JSON lines, or a SQLite database
        file: PathBuf,
        /// The definition with which the execution was started
        #[arg(long, value_name = "FILE")]
        definition: PathBuf,
        /// The definition of a sub-workflow; can be repeated
        #[arg(long = "child-definition", value_name = "FILE", num_args = 1..)]
        child_definitions: Vec<PathBuf>,
        /// The execution, if the file has several
        #[arg(long, value_name = "ID")]
        execution: Option<String>,
        /// Give the execution another name
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// The input of the execution, if the history hides a part of it
        #[arg(long, value_name = "FILE")]
        input: Option<PathBuf>,
        /// Options of the run that a history does not carry, as a JSON object: recursionLimit, runTimeoutMs, mockOutputs
        #[arg(long, value_name = "FILE")]
        configurable: Option<PathBuf>,
        /// Where activities run: in_process or host_mediated; required if no activity has ended yet [default: as the history shows]
        #[arg(long, value_name = "MODE")]
        mode: Option<String>,
        /// Whether branches are under way at once [default: as the history shows]
        #[arg(long, value_name = "BOOL")]
        parallel_activities: Option<bool>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
}

impl Awp {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Export {
                execution,
                out,
                sqlite,
                definition,
                child_definitions,
                force,
                remote,
            } => {
                let client = Client::new(&remote)?;
                if !force {
                    for path in [&out, &definition].into_iter().flatten() {
                        refuse_to_replace(path)?;
                    }
                }
                let definitions = (definition, child_definitions, force);
                export(&client, &execution, (out, sqlite), definitions).await
            }
            Verb::Import {
                file,
                definition,
                child_definitions,
                execution,
                name,
                input,
                configurable,
                mode,
                parallel_activities,
                remote,
                format,
            } => {
                let mut histories = History::read(&file, execution.as_deref())?.into_iter();
                let mut body = json!({
                    "definition": document(&definition)?,
                    "rows": histories.next().map(|history| history.rows),
                });
                let children: Vec<_> = histories.map(|history| history.rows).collect();
                if !children.is_empty() {
                    body["child_rows"] = children.into();
                }
                if !child_definitions.is_empty() {
                    let documents = child_definitions.iter().map(|path| document(path));
                    body["child_definitions"] = documents.collect::<Result<Vec<_>>>()?.into();
                }
                for (member, file) in [("input", input), ("configurable", configurable)] {
                    if let Some(file) = file {
                        body[member] = document(&file)?;
                    }
                }
                for (member, value) in [("execution_id", name), ("activity_execution_mode", mode)] {
                    if let Some(value) = value {
                        body[member] = value.into();
                    }
                }
                if let Some(is_parallel) = parallel_activities {
                    body["parallel_activities"] = is_parallel.into();
                }
                imported(&Client::new(&remote)?, &body, format).await
            }
        }
    }
}

async fn export(
    client: &Client,
    execution: &str,
    (out, sqlite): (Option<PathBuf>, Option<PathBuf>),
    (definition, child_definitions, may_replace): (Option<PathBuf>, Option<PathBuf>, bool),
) -> Result<Exit> {
    let mut histories = Vec::new();
    let mut wanted = vec![execution.to_owned()];
    while let Some(execution) = wanted.pop() {
        if histories.len() == MAX_EXECUTIONS {
            let text =
                format!("an export has at most {MAX_EXECUTIONS} executions, and '{execution}' is one more");
            return Err(Failure::new(Exit::Failed, text).into());
        }
        let rows = match rows(client, &execution).await {
            // A child may be in another language, or was removed.
            Err(error) if !histories.is_empty() && is_not_found(&error) => {
                output::note(format!(
                    "'{execution}' is no execution of the protocol any more: left out"
                ))?;
                continue;
            }
            rows => rows?,
        };
        let history = History { rows, execution };
        wanted.extend(history.children());
        histories.push(history);
    }
    if let Some(path) = definition {
        let document = definition_of(client, &histories[0]).await?;
        write(&path, &format!("{document:#}\n"))?;
        output::note(format!("wrote the definition to {}", path.display()))?;
    }
    if let Some(folder) = child_definitions {
        write_child_definitions(client, &histories[1..], &folder, may_replace).await?;
        output::note(match histories.len() {
            1 => "the execution has no sub-workflows, so no definitions of any were written".to_owned(),
            _ => format!("wrote the definitions of sub-workflows to {}", folder.display()),
        })?;
    }
    let n_rows: usize = histories.iter().map(|history| history.rows.len()).sum();
    let wrote = |path: &Path| {
        let n_executions = histories.len();
        output::note(format!(
            "wrote {n_rows} rows of {n_executions} execution(s) to {}",
            path.display()
        ))
    };
    match (out, sqlite) {
        (_, Some(path)) => {
            file::add_to_database(&path, &histories)?;
            wrote(&path)?;
        }
        (Some(path), None) => {
            write(&path, &file::lines(&histories))?;
            wrote(&path)?;
        }
        (None, None) => output::line(file::lines(&histories).trim_end())?,
    }
    Ok(Exit::Ok)
}

fn refuse_to_replace(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let text = format!("{} is there already", path.display());
    Err(Failure::new(Exit::Usage, text)
        .hint("name another file, or replace it with --force")
        .into())
}

/// Writes the definitions of sub-workflows, each once.
async fn write_child_definitions(
    client: &Client,
    children: &[History],
    folder: &Path,
    may_replace: bool,
) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot create {}: {error}", folder.display()),
        )
    })?;
    let (mut written, mut ids) = (BTreeSet::new(), BTreeMap::new());
    for child in children {
        let of = ["workflowName", "workflowVersion"];
        let of = of.map(|member| child.of_event("ExecutionStarted", member));
        let hash = child.of_event("CheckpointWritten", "definitionHash");
        if !written.insert((of, hash)) {
            continue;
        }
        let document = definition_of(client, child).await?;
        let name = document.pointer("/document/name").and_then(Value::as_str);
        // The host has run it, so its name is that of a workflow.
        let Some(id) = name.and_then(awp::workflow_id) else {
            continue;
        };
        // Visits of a node may have begun other versions.
        let n_before: &mut usize = ids.entry(id.clone()).or_default();
        *n_before += 1;
        let path = folder.join(match *n_before {
            1 => format!("{id}.json"),
            n => format!("{id}-{n}.json"),
        });
        if !may_replace {
            refuse_to_replace(&path)?;
        }
        write(&path, &format!("{document:#}\n"))?;
    }
    Ok(())
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    failure.is_some_and(|failure| failure.exit() == Exit::NotFound)
}

async fn rows(client: &Client, execution: &str) -> Result<Vec<Value>> {
    let path = format!("/awp/v1/executions/{}/events?limit={PAGE}", escape(execution));
    let mut rows = Vec::new();
    let mut page = path.clone();
    loop {
        let mut answer = client.get(&page).await?;
        if let Some(Value::Array(more)) = answer.get_mut("events").map(Value::take) {
            rows.extend(more);
        }
        match answer.get("next_cursor").and_then(Value::as_u64) {
            Some(next) => page = format!("{path}&cursor={next}"),
            None => return Ok(rows),
        }
    }
}

/// The definition of an execution's workflow, if it is the one with which the execution was started.
async fn definition_of(client: &Client, history: &History) -> Result<Value> {
    let name = history
        .of_event("ExecutionStarted", "workflowName")
        .unwrap_or_default();
    let id = awp::workflow_id(name);
    let id =
        id.ok_or_else(|| Failure::new(Exit::NotFound, format!("'{name}' is not the name of a workflow")))?;
    let mut answer = client
        .get(&format!("/awp/v1/workflows/{}", escape(id.as_str())))
        .await?;
    let document = answer.get_mut("definition").map(Value::take).unwrap_or_default();
    let version = document.pointer("/document/version").and_then(Value::as_str);
    let hash = awp::definition_hash(&awp::unsigned(&document));
    let is_other = history.of_event("ExecutionStarted", "workflowVersion") != version
        || history
            .of_event("CheckpointWritten", "definitionHash")
            .is_some_and(|wanted| wanted != hash.as_str());
    match is_other {
        false => Ok(document),
        true => Err(Failure::new(
            Exit::NotFound,
            format!("the current definition of '{id}' is not the one with which the execution was started"),
        )
        .hint("export without --definition, and keep the definition that you started it with")
        .into()),
    }
}

async fn imported(client: &Client, body: &Value, format: Format) -> Result<Exit> {
    let status = client.post("/awp/v1/executions:import", body).await?;
    if format.json {
        output::json(&status)?;
        return Ok(Exit::Ok);
    }
    let mut line = format!(
        "{}  {}",
        render::text(&status, "execution_id"),
        render::text(&status, "phase")
    );
    if let Some(node) = status.get("current_node_id").and_then(Value::as_str) {
        line.push_str(&format!(" at {}", output::plain(node)));
    }
    output::line(line)?;
    Ok(Exit::Ok)
}

fn document(path: &Path) -> Result<Value> {
    let name = path.display();
    let bytes = fs::read(path)
        .map_err(|error| Failure::new(Exit::of_reading(&error), format!("cannot read {name}: {error}")))?;
    Ok(serde_json::from_slice(&bytes)
        .map_err(|error| Failure::new(Exit::Config, format!("{name} is not JSON: {error}")))?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    Ok(fs::write(path, text)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot write {}: {error}", path.display())))?)
}
