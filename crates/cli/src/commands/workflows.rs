//! `wopr workflows`: validates definitions locally, and manages those of a server.

mod checked;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_core::{ContentHash, NodeTypes, Plan, Problems, WorkflowId, definition_schema};
use wopr_server::Config;

use crate::{
    args::{Format, Remote},
    client::{Client, escape},
    exit::{Exit, Failure},
    host::HostArgs,
    output::{self, Paint, cut, state, whole},
    render,
};

use checked::{Checked, Text};

/// Check, list, register and remove workflow definitions.
#[derive(Debug, Args)]
pub(crate) struct Workflows {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Validate definitions as a host does at start
    Validate {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Fail on warnings too
        #[arg(long)]
        strict: bool,
        /// Allow the node types of the conformance suite
        #[arg(long)]
        conformance: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Print the JSON Schema of definitions, for editors
    Schema {
        /// Allow the node types of the conformance suite
        #[arg(long)]
        conformance: bool,
    },
    /// List the workflows of a server, or the files that a host would skip
    List {
        /// List files in the workflow folders that a host would skip at start, and why; calls no server
        #[arg(long)]
        rejected: bool,
        /// A workflow folder, for --rejected; may be given several times [env: WOPR_WORKFLOWS]
        #[arg(long, value_name = "DIR", requires = "rejected")]
        workflows: Vec<PathBuf>,
        /// A configuration that names the folders, for --rejected
        #[arg(long, value_name = "FILE", env = "WOPR_CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Remove a workflow from a server; its runs go on
    Remove {
        /// The workflow
        #[arg(value_name = "ID")]
        workflow: String,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Register a definition with a server and make it the current version
    Register {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
}

impl Workflows {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Validate {
                files,
                strict,
                conformance,
                format,
            } => validate(&files, strict, conformance, format),
            Verb::Schema { conformance } => {
                output::json(&definition_schema(NodeTypes { conformance }))?;
                Ok(Exit::Ok)
            }
            Verb::List {
                rejected: true,
                workflows,
                config,
                format,
                ..
            } => rejected(workflows, config, format),
            Verb::List { remote, format, .. } => list(&Client::new(&remote)?, format).await,
            Verb::Remove {
                workflow,
                remote,
                format,
            } => remove(&Client::new(&remote)?, &workflow, format).await,
            Verb::Register { file, remote, format } => register(&Client::new(&remote)?, &file, format).await,
        }
    }
}

pub(crate) fn read(path: &Path) -> Result<Value> {
    let text = Text::read(path)?;
    text.document(path).map_err(|finding| {
        let text = format!("{}:{finding}", path.display());
        Failure::new(Exit::Config, output::plain(&text)).into()
    })
}

/// Checks a definition. Returns its id, or an error that lists every violation.
pub(crate) fn check(document: Value, conformance: bool) -> Result<String> {
    let plan = Plan::admit(document, NodeTypes { conformance }).map_err(|Problems(problems)| {
        let lines: Vec<_> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
        let text = format!("the workflow definition is invalid:{}", lines.concat());
        Failure::new(Exit::Config, output::plain(&text))
            .hint("wopr workflows validate FILE shows the lines in the file")
    })?;
    Ok(plan.id().to_string())
}

fn validate(files: &[PathBuf], strict: bool, conformance: bool, format: Format) -> Result<Exit> {
    let checked: Vec<_> = files
        .iter()
        .map(|file| Checked::read(file, conformance))
        .collect();
    let exits: Vec<_> = checked.iter().map(|checked| checked.exit(strict)).collect();
    let bad = exits.iter().copied().find(|exit| *exit != Exit::Ok);
    // An invalid definition takes precedence over a missing file.
    let exit = if exits.contains(&Exit::Config) {
        Exit::Config
    } else {
        bad.unwrap_or(Exit::Ok)
    };
    if format.json {
        let files: Vec<_> = checked.iter().map(|checked| checked.document(strict)).collect();
        output::json(&json!({ "valid": exit == Exit::Ok, "files": files }))?;
        return Ok(exit);
    }
    for checked in &checked {
        checked.show(strict)?;
    }
    let n_warnings: usize = checked.iter().map(Checked::n_warnings).sum();
    if n_warnings > 0 && strict {
        output::note("warnings count as problems because of --strict")?;
    }
    Ok(exit)
}

/// Reads the workflow folders as a host does at start.
fn rejected(workflows: Vec<PathBuf>, config: Option<PathBuf>, format: Format) -> Result<Exit> {
    let args = HostArgs {
        workflows,
        config,
        ..HostArgs::default()
    };
    let config = args.load()?;
    if config.workflows.is_empty() {
        let text = "which files are rejected is known only from the workflow folders of a configuration, and none \
                    is configured here";
        return Err(Failure::new(Exit::Usage, text)
            .hint("name a folder with --workflows, WOPR_WORKFLOWS or --config; a server logs what it skips")
            .into());
    }
    let folders: Vec<_> = config
        .workflows
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    output::note(format!(
        "looking in {} on this machine; no server is asked",
        output::plain(&folders.join(", "))
    ))?;
    let rejected: Vec<_> = check_folders(&config)?
        .into_iter()
        .filter(|checked| checked.plan().is_none())
        .collect();
    if format.json {
        let files: Vec<_> = rejected.iter().map(|checked| checked.document(false)).collect();
        output::json(&json!({ "rejected": files }))?;
        return Ok(Exit::Ok);
    }
    if rejected.is_empty() {
        output::note("no file is rejected")?;
    }
    for checked in &rejected {
        checked.show_first()?;
    }
    Ok(Exit::Ok)
}

/// The definitions that a host would load from its folders.
pub(crate) struct Survey {
    pub(crate) n_files: usize,
    /// Files that the host would skip, each with its first problem.
    pub(crate) skipped: Vec<String>,
    /// Files that replace another file's workflow because both have the same id.
    pub(crate) doubled: Vec<String>,
}

/// Reads the folders of a configuration as a host does at start.
pub(crate) fn survey(config: &Config) -> Result<Survey> {
    let checked = check_folders(config)?;
    let (mut skipped, mut doubled) = (Vec::new(), Vec::new());
    let mut files: HashMap<&WorkflowId, (&Path, &ContentHash)> = HashMap::new();
    for checked in &checked {
        let file = checked.file();
        let name = file.display();
        match checked.plan() {
            None => skipped.push(checked.first()),
            Some(plan) => {
                let before = files.insert(plan.id(), (file, plan.version()));
                if let Some((other, version)) = before
                    && version != plan.version()
                {
                    let (other, id) = (other.display(), plan.id());
                    doubled.push(format!(
                        "{name} takes the place of {other}: both have the id '{id}'"
                    ));
                }
            }
        }
    }
    Ok(Survey {
        n_files: checked.len(),
        skipped,
        doubled,
    })
}

fn check_folders(config: &Config) -> Result<Vec<Checked>> {
    let mut checked = Vec::new();
    for folder in &config.workflows {
        let failed = |error| {
            Failure::new(
                Exit::Config,
                format!("cannot read the folder {}: {error}", folder.display()),
            )
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                files.push(path);
            }
        }
        files.sort();
        checked.extend(files.iter().map(|file| Checked::read(file, config.conformance)));
    }
    Ok(checked)
}

async fn list(client: &Client, format: Format) -> Result<Exit> {
    let document = client.get_with("/v1/workflows", "workflows").await?;
    if format.json {
        output::json(&document)?;
        return Ok(Exit::Ok);
    }
    let workflows = document.get("workflows").and_then(Value::as_array);
    let rows: Vec<_> = workflows
        .into_iter()
        .flatten()
        .map(|workflow| {
            let cell = |name: &str| render::text(workflow, name).to_owned();
            let content: String = cell("contentVersion").chars().take(12).collect();
            let is_withdrawn = workflow.get("isActive") == Some(&Value::Bool(false));
            let standing = if is_withdrawn { "withdrawn" } else { "active" };
            vec![
                cell("workflowId"),
                cell("version"),
                standing.to_owned(),
                content,
                render::short(&cell("description")),
            ]
        })
        .collect();
    if rows.is_empty() {
        output::note("the server has no workflows")?;
        return Ok(Exit::Ok);
    }
    output::table(
        &[
            whole("WORKFLOW"),
            cut("VERSION"),
            state("STATUS"),
            whole("CONTENT"),
            cut("DESCRIPTION"),
        ],
        &rows,
    )?;
    Ok(Exit::Ok)
}

async fn register(client: &Client, file: &Path, format: Format) -> Result<Exit> {
    // Not validated here, because only the server knows its node types.
    let registered = client
        .post_with("/v1/workflows", &read(file)?, "workflowId")
        .await?;
    if format.json {
        output::json(&registered)?;
    } else {
        let id = render::text(&registered, "workflowId");
        output::line(format!(
            "{}  {}",
            output::plain(id),
            Paint::stdout().dim(output::plain(render::text(&registered, "contentVersion")))
        ))?;
        let warnings = registered.get("warnings").and_then(Value::as_array);
        for warning in warnings.into_iter().flatten() {
            output::note(format!("warning: {}", render::problem(warning)))?;
        }
    }
    Ok(Exit::Ok)
}

async fn remove(client: &Client, workflow: &str, format: Format) -> Result<Exit> {
    let path = format!("/v1/host/wopr/workflows/{}", escape(workflow));
    client.delete(&path).await?;
    if format.json {
        output::json(&json!({ "workflowId": workflow, "removed": true }))?;
    } else {
        output::line(format!("{} is removed", output::plain(workflow)))?;
    }
    Ok(Exit::Ok)
}
