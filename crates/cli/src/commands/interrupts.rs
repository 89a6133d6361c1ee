//! `wopr interrupts`: lists, shows and answers the interrupts of runs.

use anyhow::{Error, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_wire::openwop::run::InterruptView;

use crate::{
    args::{self, Format, Remote},
    ask,
    client::{Client, escape},
    exit::{Exit, Failure},
    output::{self, Paint, cut, whole},
    render,
};

/// Maximum length of a node or artifact name in a list.
const LIST_CELL: usize = 14;

/// List and answer the interrupts that runs wait for.
#[derive(Debug, Args)]
pub(crate) struct Interrupts {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List open interrupts
    List {
        /// Maximum number to list
        #[arg(long, default_value_t = 50, value_parser = args::at_least_one)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Show an interrupt, its artifact, and the link to its page
    Show {
        /// The run
        run: String,
        /// The waiting node [default: the only one]
        node: Option<String>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Answer an interrupt; prompts on a terminal if no answer is given
    Resolve(Box<Resolve>),
    /// Create a link that answers one interrupt on behalf of an approver
    ///
    /// Anyone with the link can answer as that approver, so share it with nobody else. For a principal other
    /// than the caller's own, the key needs the scope keys:manage.
    Token(Token),
}

#[derive(Debug, Args)]
struct Token {
    /// The run
    run: String,
    /// The waiting node [default: the first one]
    node: Option<String>,
    /// The approver to answer as [default: the key's own principal]
    #[arg(long = "for", value_name = "PRINCIPAL")]
    principal: Option<String>,
    /// Only show the interrupt
    #[arg(long)]
    inspect: bool,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Args)]
struct Resolve {
    /// The run
    run: String,
    /// The waiting node [default: the only one]
    node: Option<String>,
    /// Accept an approval
    #[arg(long, group = "answer")]
    accept: bool,
    /// Reject an approval, optionally with a reason
    #[arg(long, group = "answer", value_name = "WHY", num_args = 0..=1, default_missing_value = "")]
    reject: Option<String>,
    /// Return an approval with comments
    #[arg(long, group = "answer", value_name = "TEXT")]
    refine: Option<String>,
    /// Answer a question of a clarification: id=text, or id:=JSON; may be given several times
    #[arg(long = "reply", group = "answer", value_name = "ID=VALUE")]
    replies: Vec<String>,
    /// The whole answer as JSON
    #[arg(long, group = "answer", value_name = "JSON")]
    value: Option<String>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    format: Format,
}

impl Interrupts {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::List {
                limit,
                remote,
                format,
            } => list(&Client::new(&remote)?, limit, format).await,
            Verb::Show {
                run,
                node,
                remote,
                format,
            } => show(&Client::new(&remote)?, &run, node, format).await,
            Verb::Resolve(resolve) => resolve.run().await,
            Verb::Token(token) => token.run().await,
        }
    }
}

async fn list(client: &Client, limit: usize, format: Format) -> Result<Exit> {
    let page = client.pages("/v1/interrupts", "interrupts", limit).await?;
    if format.json {
        output::json(&json!({ "interrupts": page.items, "hasMore": page.has_more }))?;
        return Ok(Exit::Ok);
    }
    if page.items.is_empty() {
        output::note("nothing waits for an answer")?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = page
        .items
        .iter()
        .map(|item| {
            let view = serde_json::from_value::<InterruptView>(item.clone());
            let (artifact, question) = view.map_or_else(
                |_| (String::new(), String::new()),
                |view| {
                    let artifact = render::artifact_id(&view).unwrap_or_default().to_owned();
                    (artifact, render::question(&view).join(" "))
                },
            );
            vec![
                render::text(item, "runId").to_owned(),
                render::text(item, "nodeId").to_owned(),
                render::cut(&artifact, LIST_CELL),
                question,
            ]
        })
        .collect();
    output::table(
        &[whole("RUN"), whole("NODE"), whole("ARTIFACT"), cut("QUESTION")],
        &rows,
    )?;
    page.note_rest()?;
    Ok(Exit::Ok)
}

async fn show(client: &Client, run: &str, node: Option<String>, format: Format) -> Result<Exit> {
    let view = open(client, run, node).await?;
    let artifact = artifact_of(client, run, &view).await;
    if format.json {
        output::json(&json!({ "runId": run, "interrupt": view, "artifact": artifact }))?;
        return Ok(Exit::Ok);
    }
    let paint = Paint::stdout();
    let mut question = render::question(&view).into_iter();
    if let Some(title) = question.next() {
        output::line(paint.bold(title))?;
    }
    for line in question {
        output::line(line)?;
    }
    for line in render::said(&view) {
        output::line(render::indented(&line, 2))?;
    }
    output::line("")?;
    let fact = |name: &str, value: &str| {
        let value = output::plain(value);
        output::line(format!("  {} {value}", paint.dim(format!("{name:<10}"))))
    };
    fact("run", run)?;
    fact("node", &view.node_id)?;
    fact("kind", &view.kind)?;
    for (name, member) in [
        ("actions", "actions"),
        ("approvers", "approversList"),
        ("approvers", "approverRefs"),
        ("roles", "approverRoleRefs"),
        ("groups", "approverGroupRefs"),
    ] {
        let listed = render::texts(&view.data, member);
        if !listed.is_empty() {
            fact(name, &listed.join(", "))?;
        }
    }
    if let Some(at) = &view.requested_at {
        fact("since", &at.to_string())?;
    }
    // A link ends before the question does, unless the question's own deadline is sooner.
    let until = view.expires_at.as_ref().map(ToString::to_string);
    match (&view.callback_url, until) {
        (None, Some(until)) => fact("answer by", &until)?,
        (None, None) => {}
        (Some(page), until) => {
            fact("page", page)?;
            if let Some(until) = until {
                fact("", &format!("this link works until {until}"))?;
            }
        }
    }
    if let Some(artifact) = &artifact {
        output::line("")?;
        let name = render::text(artifact, "name");
        let id = render::text(artifact, "artifactId");
        output::line(format!(
            "{} {}",
            paint.bold(output::plain(name)),
            paint.dim(output::plain(id))
        ))?;
        output::line(render::indented(&render::content(artifact), 2))?;
    }
    output::line("")?;
    let answer = render::example_answer(&view);
    output::note(paint.dim(format!(
        "answer it with: wopr interrupts resolve {run} {} --value '{answer}'",
        output::plain(&view.node_id)
    )))?;
    if render::is_conversation(&view.kind) {
        let end = render::example_end(&view);
        output::note(paint.dim(format!("end it with: --value '{end}'")))?;
    }
    Ok(Exit::Ok)
}

impl Token {
    async fn run(self) -> Result<Exit> {
        let client = Client::new(&self.remote)?;
        let node = match self.node {
            Some(node) => node,
            None => open(&client, &self.run, None).await?.node_id,
        };
        let mut body = json!({ "runId": self.run, "nodeId": node });
        if let Some(principal) = self.principal {
            body["principal"] = principal.into();
        }
        if self.inspect {
            body["intent"] = "inspect".into();
        }
        let minted = client
            .post_with("/v1/host/wopr/interrupt-tokens", &body, "callbackUrl")
            .await?;
        if self.format.json {
            output::json(&minted)?;
            return Ok(Exit::Ok);
        }
        output::note(format!(
            "a link for {} to {} of {}, until {}:",
            render::text(&minted, "principal"),
            render::text(&minted, "interruptId"),
            render::text(&minted, "runId"),
            render::text(&minted, "expiresAt"),
        ))?;
        // Only the link goes to standard output, so that scripts can capture it.
        output::line(render::text(&minted, "callbackUrl"))?;
        Ok(Exit::Ok)
    }
}

/// Returns the open interrupt of a run, at the node if one is named.
async fn open(client: &Client, run: &str, node: Option<String>) -> Result<InterruptView> {
    let snapshot = client.run(run).await?;
    let waits_at = snapshot.interrupt.as_ref().map(|view| view.node_id.clone());
    let mut open = snapshot.interrupts.into_iter().chain(snapshot.interrupt);
    let found = open.find(|view| node.as_ref().is_none_or(|node| view.node_id == *node));
    found.ok_or_else(|| {
        let why = match (waits_at, node) {
            (Some(at), Some(node)) => format!("{run} waits at {at}, not at {node}"),
            (_, _) => format!("{run} waits for nothing; it is {}", snapshot.status),
        };
        Failure::new(Exit::NotFound, why).into()
    })
}

/// Fetches the artifact of an interrupt. Errors are ignored, since the interrupt can be answered without it.
pub(super) async fn artifact_of(client: &Client, run: &str, view: &InterruptView) -> Option<Value> {
    let id = render::artifact_id(view)?;
    let run = render::artifact_run(view, run);
    let path = format!("/v1/runs/{}/artifacts/{}", escape(run), escape(id));
    client.get(&path).await.ok()
}

impl Resolve {
    async fn run(self) -> Result<Exit> {
        let client = Client::new(&self.remote)?;
        let given = self.given()?;
        let (node, interrupt, answer) = match (self.node.clone(), given) {
            (Some(node), Some(answer)) => (node, None, answer),
            (node, given) => {
                let view = open(&client, &self.run, node).await?;
                let answer = match given {
                    Some(answer) => answer,
                    None => self.asked(&client, &view).await?,
                };
                (view.node_id, Some(view.interrupt_id), answer)
            }
        };
        let path = format!("/v1/runs/{}/interrupts/{}", escape(&self.run), escape(&node));
        let mut body = json!({ "resumeValue": answer });
        // Answers exactly the interrupt that was shown, even if another one opened meanwhile.
        if let Some(interrupt) = interrupt {
            body["interruptId"] = interrupt.into();
        }
        let answer = match client.post(&path, &body).await {
            Ok(answer) => answer,
            Err(refused) => return Err(self.explain(&client, &node, refused).await),
        };
        if self.format.json {
            output::json(&answer)?;
        } else {
            let status = render::text(&answer, "status");
            output::line(format!("{}  {}", self.run, Paint::stdout().state(status)))?;
        }
        Ok(Exit::Ok)
    }

    /// Adds a hint to a rejected answer: replies do not answer an approval.
    async fn explain(&self, client: &Client, node: &str, refused: Error) -> Error {
        let refused = match refused.downcast::<Failure>() {
            Ok(failure) if failure.exit() == Exit::Failed && !self.replies.is_empty() => failure,
            Ok(failure) => return failure.into(),
            Err(error) => return error,
        };
        // The rejection is reported even if this read fails.
        let view = open(client, &self.run, Some(node.to_owned())).await;
        match view {
            Ok(view) if view.kind == "approval" => refused
                .hint(
                    "--reply answers the questions of a clarification; this is an approval: --accept, --reject or \
                     --refine",
                )
                .into(),
            Ok(_) | Err(_) => refused.into(),
        }
    }

    async fn asked(&self, client: &Client, view: &InterruptView) -> Result<Value> {
        let nobody = || {
            Failure::new(
                Exit::Waiting,
                "no answer given, and standard input is not a terminal",
            )
            .hint(format!(
                "give one with --value '{}'",
                render::example_answer(view)
            ))
        };
        if !output::is_conversation() {
            return Err(nobody().into());
        }
        if let Some(artifact) = artifact_of(client, &self.run, view).await {
            let content = render::indented(&render::content(&artifact), 4);
            output::note(Paint::stderr().dim(content))?;
        }
        let view = view.clone();
        let answer = tokio::task::spawn_blocking(move || ask::ask(&view));
        match answer.await?? {
            Some(answer) => Ok(answer),
            None => Err(Failure::new(Exit::Waiting, "there was no answer").into()),
        }
    }

    /// Returns the answer given on the command line.
    fn given(&self) -> Result<Option<Value>> {
        if self.accept {
            return Ok(Some(json!({ "action": "accept" })));
        }
        if let Some(reason) = &self.reject {
            return Ok(Some(if reason.is_empty() {
                json!({ "action": "reject" })
            } else {
                json!({ "action": "reject", "feedback": reason })
            }));
        }
        if let Some(text) = &self.refine {
            let feedback = json!({ "scope": "whole", "text": text });
            return Ok(Some(json!({ "action": "refine", "refineFeedback": feedback })));
        }
        if let Some(text) = &self.value {
            let read = |error| Failure::new(Exit::Usage, format!("--value is not JSON: {error}"));
            return Ok(Some(serde_json::from_str(text).map_err(read)?));
        }
        if self.replies.is_empty() {
            return Ok(None);
        }
        let mut answers = serde_json::Map::new();
        for text in &self.replies {
            let (id, value) = text.split_once('=').ok_or_else(|| {
                Failure::new(Exit::Usage, format!("--reply {text} is not of the form id=value"))
            })?;
            let (id, value) = match id.strip_suffix(':') {
                None => (id, Value::from(value)),
                Some(id) => {
                    let read =
                        |error| Failure::new(Exit::Usage, format!("--reply {id}:= is not JSON: {error}"));
                    (id, serde_json::from_str(value).map_err(read)?)
                }
            };
            answers.insert(id.to_owned(), value);
        }
        Ok(Some(json!({ "answers": answers })))
    }
}
