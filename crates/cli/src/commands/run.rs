//! `wopr run`: executes a run from start to end, in this process or on a server.
//!
//! Without a server, a host runs in this process until the run ends, and is called over HTTP like any other;
//! so both modes share one code path. Progress goes to standard error, the run's outputs to standard output.

mod following;

use std::{fs, path::Path};

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};
use wopr_server::Overrides;
use wopr_wire::openwop::run::{InterruptView, RunStatus};

pub(crate) use self::following::{End, Following, View};
use crate::{
    args::{Authorities, Format},
    client::{Client, Trust, escape},
    examples,
    exit::{Exit, Failure},
    host::{self, Background, HostArgs},
    output, render,
    signals::Signals,
    spending::Spending,
};

/// The input that receives the text of an A2A message; workflows do not have to declare it.
const PROMPT: &str = "prompt";

/// Run a workflow and follow it to its end.
///
/// A FILE, or an example such as hello, runs in this process with an in-memory store (--store keeps it). With
/// --server the run executes on that server: a FILE is registered first, an ID must exist. At an interrupt
/// the user is prompted; without a terminal and without --answer, the command explains how to answer and
/// exits with 6.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// A workflow definition, or the id of a workflow
    #[arg(value_name = "FILE|ID")]
    target: String,

    /// An input: name=text, name:=JSON, or name:=@FILE with JSON; may be given several times
    #[arg(long = "input", short = 'i', value_name = "NAME=VALUE")]
    input: Vec<String>,

    /// All inputs as a JSON object, or @FILE that contains one
    #[arg(long, value_name = "JSON|@FILE")]
    inputs: Option<String>,

    /// Options for all nodes of the run, as a JSON object or @FILE: {"model": "…", "maxTokens": 500}
    #[arg(long, value_name = "JSON|@FILE")]
    configurable: Option<String>,

    /// An answer to an interrupt as JSON; may be given several times, for successive interrupts
    #[arg(long = "answer", value_name = "JSON")]
    answers: Vec<String>,

    /// A tag of the run; may be given several times
    #[arg(long = "tag", value_name = "TEXT")]
    tags: Vec<String>,

    /// Print a line per event instead of drawing the steps, as without a terminal
    #[arg(long)]
    events: bool,

    /// Start the run on a server and return at once
    #[arg(long)]
    detach: bool,

    /// The server to run on [env: WOPR_SERVER, unless a store, workflows or a configuration are given] [default: this process]
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// The API key of the server
    #[arg(long, value_name = "KEY", env = "WOPR_API_KEY", hide_env_values = true)]
    key: Option<String>,

    #[command(flatten)]
    authorities: Authorities,

    /// The store when the run executes in this process [default: memory:]
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,

    /// A folder of workflows for child runs, when the run executes in this process
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    workflows: Vec<std::path::PathBuf>,

    /// A configuration file, such as one with the agents that the run calls, when it executes in this process
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    config: Option<std::path::PathBuf>,

    #[command(flatten)]
    format: Format,
}

impl Run {
    pub(crate) async fn run(mut self) -> Result<Exit> {
        self.find_server()?;
        let inputs = self.read_inputs()?;
        let configurable = object("--configurable", self.configurable.as_deref())?;
        let answers = self.read_answers()?;
        let mut signals = Signals::catch()?;
        let (client, background, id) = self.open().await?;
        warn_of_undeclared(&client, &id, &inputs).await?;
        let done = self
            .drive(&client, &id, (inputs, configurable), answers, &mut signals)
            .await;
        if let Some(background) = background {
            background.stop().await;
        }
        done
    }

    /// Takes the server of the environment, unless the command line says that this process runs it.
    fn find_server(&mut self) -> Result<()> {
        let is_here = self.store.is_some() || !self.workflows.is_empty() || self.config.is_some();
        if self.server.is_none() && !is_here {
            self.server = std::env::var("WOPR_SERVER").ok().filter(|url| !url.is_empty());
        }
        if self.detach && self.server.is_none() {
            let failure = Failure::new(
                Exit::Usage,
                "--detach leaves a run to a server, and none is given",
            );
            return Err(failure.hint("name it with --server or WOPR_SERVER").into());
        }
        Ok(())
    }

    /// Returns the host to run on, and the workflow id.
    async fn open(&self) -> Result<(Client, Option<Background>, String)> {
        let document = self.document()?;
        if let Some(server) = &self.server {
            let client = Client::at(server, self.key.clone(), &self.authorities.read()?)?;
            let id = match document {
                None => self.target.clone(),
                Some(document) => {
                    let registered = client.post_with("/v1/workflows", &document, "workflowId").await?;
                    render::text(&registered, "workflowId").to_owned()
                }
            };
            return Ok((client, None, id));
        }
        let Some(document) = document else {
            let known: Vec<_> = examples::ALL.iter().map(|example| example.id).collect();
            let text = format!("'{}' is neither a file nor an example", self.target);
            return Err(Failure::new(Exit::NotFound, text)
                .hint(format!(
                    "the examples are {}; --server names a server that knows more",
                    known.join(", ")
                ))
                .into());
        };
        // Checks the definition before anything is opened.
        let id = super::workflows::check(document.clone(), false)?;
        let secret = host::new_secret()?;
        let args = HostArgs {
            store: Some(self.store.clone().unwrap_or_else(|| "memory:".to_owned())),
            listen: Some("127.0.0.1:0".to_owned()),
            log_level: std::env::var("WOPR_LOG").is_err().then(|| "error".to_owned()),
            workflows: self.workflows.clone(),
            config: self.config.clone(),
            ..HostArgs::default()
        };
        let overrides = Overrides {
            keys: vec![host::full_key("cli", &secret)?],
            ..args.overrides()?
        };
        let config = args.load_with(overrides)?;
        host::init_logs(&config)?;
        let opened = host::open(config).await?;
        opened.add_examples().await?;
        opened.add(document).await?;
        let background = opened.in_background();
        let client = Client::at(&background.origin, Some(secret), &Trust::default())?;
        Ok((client, Some(background), id))
    }

    /// Reads the definition if the target is a file or an example.
    fn document(&self) -> Result<Option<Value>> {
        let path = Path::new(&self.target);
        if path.is_file() || self.target.ends_with(".json") {
            return super::workflows::read(path).map(Some);
        }
        match examples::find(&self.target) {
            Some(example) if self.server.is_none() => example.document().map(Some),
            _ => Ok(None),
        }
    }

    fn read_inputs(&self) -> Result<Map<String, Value>> {
        let usage = |text: String| anyhow::Error::from(Failure::new(Exit::Usage, text));
        let mut inputs = object("--inputs", self.inputs.as_deref())?;
        for text in &self.input {
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| usage(format!("--input {text} is not of the form name=value")))?;
            let (name, value) = match name.strip_suffix(':') {
                None => {
                    warn_of_file(name, value)?;
                    (name, Value::from(value))
                }
                Some(name) => {
                    let option = format!("--input {name}:=");
                    let value = serde_json::from_str(&given_or_in_file(&option, value)?)
                        .map_err(|error| usage(format!("{option} is not JSON: {error}")))?;
                    (name, value)
                }
            };
            inputs.insert(name.to_owned(), value);
        }
        Ok(inputs)
    }

    fn read_answers(&self) -> Result<Vec<Value>> {
        let read = |text: &String| {
            serde_json::from_str(text).map_err(|error| {
                Failure::new(Exit::Usage, format!("--answer {text} is not JSON: {error}")).into()
            })
        };
        self.answers.iter().map(read).collect()
    }

    async fn drive(
        &self,
        client: &Client,
        workflow: &str,
        (inputs, configurable): (Map<String, Value>, Map<String, Value>),
        answers: Vec<Value>,
        signals: &mut Signals,
    ) -> Result<Exit> {
        let body = json!({
            "workflowId": workflow, "inputs": inputs, "configurable": configurable, "tags": self.tags,
        });
        let created = client.post_with("/v1/runs", &body, "runId").await?;
        let run = render::text(&created, "runId").to_owned();
        if self.detach {
            if self.format.json {
                output::json(&created)?;
            } else {
                output::line(&run)?;
            }
            return Ok(Exit::Ok);
        }
        let view = View::of(client, workflow, self.format.json, self.events).await;
        let following = Following::start(client, &run, answers, view).await?;
        let following = following.in_this_process(self.server.is_none());
        let (end, outputs) = following.finish(signals).await?;
        self.conclude(client, &run, end, outputs).await
    }

    /// Prints the result and returns the exit code.
    async fn conclude(&self, client: &Client, run: &str, end: End, outputs: Value) -> Result<Exit> {
        let (snapshot, exit) = match end {
            End::Interrupted => {
                if self.server.is_some() {
                    output::note(format!("the run goes on: wopr runs show {run}"))?;
                }
                return Ok(Exit::Interrupted);
            }
            End::Waiting(snapshot) => (snapshot, Exit::Waiting),
            End::Terminal(snapshot) if snapshot.status == RunStatus::Completed => (snapshot, Exit::Ok),
            End::Terminal(snapshot) => (snapshot, Exit::Failed),
        };
        let artifacts = artifacts(client, run).await?;
        if self.format.json {
            output::json(&json!({
                "runId": run,
                "workflowId": snapshot.workflow_id,
                "status": snapshot.status,
                "outputs": outputs,
                "artifacts": artifacts,
                "interrupt": snapshot.interrupt,
                "error": snapshot.error,
            }))?;
            return Ok(exit);
        }
        if exit == Exit::Ok {
            show_products(&artifacts, &outputs)?;
        }
        if let Some(spent) = Spending::of_tree(client, run).await.words() {
            output::note(format!("models took {spent}"))?;
        }
        if let Some(error) = &snapshot.error {
            let details = error.details.clone().map(Value::Object);
            let worker = details.as_ref().and_then(render::failed_worker);
            let worker = worker.map_or_else(String::new, |worker| format!("; {worker}"));
            let text = format!("the run failed: {} ({}){worker}", error.message, error.code);
            return Err(Failure::new(Exit::Failed, output::plain(&text)).into());
        }
        if exit == Exit::Waiting {
            self.say_how_to_answer(run, snapshot.interrupt.as_ref())?;
        }
        Ok(exit)
    }

    fn say_how_to_answer(&self, run: &str, interrupt: Option<&InterruptView>) -> Result<()> {
        let Some(view) = interrupt else {
            return output::note(format!("the run waits: wopr runs show {run}"));
        };
        for line in render::question(view) {
            output::note(line)?;
        }
        let answer = render::example_answer(view);
        let node = output::plain(&view.node_id).into_owned();
        if self.server.is_some() {
            if let Some(page) = &view.callback_url {
                output::note(format!(
                    "answer it in a browser: {}{}",
                    output::plain(page),
                    render::until(view)
                ))?;
            }
            return output::note(format!(
                "answer it with: wopr interrupts resolve {run} {node} --value '{answer}'"
            ));
        }
        match &self.store {
            Some(store) => output::note(format!(
                "serve it with `wopr serve --store {store}`, then answer with: wopr interrupts resolve {run} \
                 {node} --value '{answer}'"
            )),
            None => output::note(format!(
                "this run was only in memory and is gone; run the command again with --answer '{answer}', or keep \
                 runs with --store sqlite:PATH"
            )),
        }
    }
}

/// Warns about inputs that the workflow does not declare: most likely they are misspelled.
async fn warn_of_undeclared(client: &Client, workflow: &str, inputs: &Map<String, Value>) -> Result<()> {
    // A workflow without declared inputs accepts any. The key may lack the scope to read definitions, so
    // errors are ignored.
    if inputs.is_empty() {
        return Ok(());
    }
    let Ok(document) = client.get(&format!("/v1/workflows/{}", escape(workflow))).await else {
        return Ok(());
    };
    let variables = document.get("variables").and_then(Value::as_array);
    let declared: Vec<_> = variables
        .into_iter()
        .flatten()
        .map(|variable| render::text(variable, "name"))
        .collect();
    for name in inputs.keys() {
        if declared.is_empty() || name == PROMPT || declared.contains(&name.as_str()) {
            continue;
        }
        output::note(format!(
            "warning: {} declares no input '{}'; it declares {}",
            output::plain(workflow),
            output::plain(name),
            output::plain(&declared.join(", "))
        ))?;
    }
    Ok(())
}

/// Fetches all artifacts of a run with their content, oldest first.
pub(crate) async fn artifacts(client: &Client, run: &str) -> Result<Vec<Value>> {
    let mut list = client.get(&format!("/v1/runs/{}/artifacts", escape(run))).await?;
    let Some(Value::Array(known)) = list.get_mut("artifacts").map(Value::take) else {
        return Ok(Vec::new());
    };
    let mut artifacts = Vec::with_capacity(known.len());
    for artifact in known {
        let id = render::text(&artifact, "artifactId");
        let path = format!("/v1/runs/{}/artifacts/{}", escape(run), escape(id));
        artifacts.push(client.get(&path).await?);
    }
    Ok(artifacts)
}

/// Prints the run's text output, or else all its outputs, or else its last artifact.
pub(crate) fn show_products(artifacts: &[Value], outputs: &Value) -> Result<()> {
    if let Some(text) = outputs.get("text").and_then(Value::as_str) {
        return output::line(output::plain(text));
    }
    if outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) {
        return output::json(outputs);
    }
    match artifacts.last() {
        Some(artifact) => {
            let content = artifact.get("content").map(render::value).unwrap_or_default();
            output::line(output::plain(&content))
        }
        None => Ok(()),
    }
}

/// The value of an option, or the content of the file that it names as @FILE.
fn given_or_in_file(option: &str, given: &str) -> Result<String> {
    match given.strip_prefix('@') {
        None => Ok(given.to_owned()),
        Some(file) => Ok(fs::read_to_string(file).map_err(|error| {
            let text = format!("{option}: cannot read {file}: {error}");
            Failure::new(Exit::of_reading(&error), text)
        })?),
    }
}

/// Warns of a text that names a file as other options do, and is taken as it is.
fn warn_of_file(name: &str, value: &str) -> Result<()> {
    match value.strip_prefix('@') {
        Some(file) if Path::new(file).is_file() => output::note(format!(
            "warning: the input '{name}' is the text '{value}'; --input {name}:={value} reads JSON from that file"
        )),
        Some(_) | None => Ok(()),
    }
}

/// Reads an option that is a JSON object, or @FILE with one. Without the option the object is empty.
fn object(option: &str, given: Option<&str>) -> Result<Map<String, Value>> {
    let Some(given) = given else {
        return Ok(Map::new());
    };
    let text = given_or_in_file(option, given)?;
    let usage = |text: String| anyhow::Error::from(Failure::new(Exit::Usage, text));
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(usage(format!("{option} is not a JSON object"))),
        Err(_) if Path::new(given).is_file() => Err(usage(format!(
            "{option} is not JSON; {option} @{given} reads that file"
        ))),
        Err(error) => Err(usage(format!("{option} is not JSON: {error}"))),
    }
}
