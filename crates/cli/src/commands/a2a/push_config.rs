//! `wopr a2a push-config`: manages the push notification configurations of a task.
//!
//! Tokens and credentials are never printed, even if the agent returns them. Command lines are visible to
//! every user of the machine, so secrets can also be read from a file or from the environment.

use std::{
    env::{self, VarError},
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_wire::a2a::model::{AuthenticationInfo, Secret, TaskPushNotificationConfig};

use super::place::Place;
use crate::{
    agent::Agent,
    exit::{Exit, Failure},
    output::{self, Paint, whole},
};

/// Maximum number of pages to read, because a misbehaving agent may never stop returning pages.
const MOST_PAGES: usize = 100;

/// Manage the push notification configurations of a task.
#[derive(Debug, Args)]
pub(super) struct PushConfig {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add a configuration to a task
    Set {
        #[command(flatten)]
        config: Box<New>,
        #[command(flatten)]
        place: Place,
    },
    /// Show a configuration
    Get {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        place: Place,
    },
    /// List the configurations of a task
    List {
        /// The task
        task: String,
        /// The agent, instead of --server
        #[arg(value_name = "URL")]
        agent: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a configuration
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        place: Place,
    },
}

/// Maximum size of a secret file in bytes; no agent accepts a secret that large.
const MOST_BYTES: u64 = 64 << 10;

/// One configuration.
#[derive(Debug, Args)]
struct Which {
    /// The task
    task: String,
    /// The configuration
    id: String,
    /// The agent, instead of --server
    #[arg(value_name = "URL")]
    agent: Option<String>,
}

/// A new configuration.
#[derive(Debug, Args)]
struct New {
    /// The task
    task: String,
    /// The agent, instead of --server
    #[arg(value_name = "AGENT")]
    agent: Option<String>,
    /// The URL to post to
    #[arg(long, value_name = "URL")]
    url: String,
    /// The configuration id [default: chosen by the agent]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[arg(long, value_name = "TOKEN", help = TOKEN.help)]
    token: Option<String>,
    /// Read it from this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// The scheme that the agent uses to authenticate to the receiver, such as Bearer
    #[arg(long, value_name = "SCHEME")]
    auth_scheme: Option<String>,
    #[arg(long, value_name = "TEXT", requires = "auth_scheme", help = CREDENTIALS.help)]
    auth_credentials: Option<String>,
    /// Read them from this file; - is standard input
    #[arg(
        long,
        value_name = "FILE",
        requires = "auth_scheme",
        conflicts_with = "auth_credentials"
    )]
    auth_credentials_file: Option<PathBuf>,
}

impl PushConfig {
    pub(super) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Set { config, place } => {
                let place = place.at(config.agent.clone());
                let config = config.into_model()?;
                let config = place.agent().await?.set_push_config(config).await?;
                show(&place, &config)?;
            }
            Verb::Get { which, place } => {
                let place = place.at(which.agent);
                let config = place
                    .agent()
                    .await?
                    .get_push_config(&which.task, &which.id)
                    .await?;
                show(&place, &config)?;
            }
            Verb::List { task, agent, place } => {
                let place = place.at(agent);
                let configs = all(&place.agent().await?, &task).await?;
                if place.format.json {
                    let configs: Vec<_> = configs.iter().map(document).collect();
                    output::json(&json!({ "configs": configs }))?;
                } else {
                    let rows: Vec<_> = configs.iter().map(row).collect();
                    output::table(&[whole("CONFIG"), whole("AUTH"), whole("URL")], &rows)?;
                }
            }
            Verb::Delete { which, place } => {
                let place = place.at(which.agent);
                place
                    .agent()
                    .await?
                    .delete_push_config(&which.task, &which.id)
                    .await?;
                if place.format.json {
                    output::json(&json!({ "deleted": which.id }))?;
                } else {
                    output::line(format!("{} is gone", which.id))?;
                }
            }
        }
        Ok(Exit::Ok)
    }
}

impl New {
    fn into_model(self) -> Result<TaskPushNotificationConfig, Failure> {
        let [token, credentials] = [&self.token_file, &self.auth_credentials_file].map(Option::as_deref);
        if token == Some(Path::new("-")) && token == credentials {
            let text = "the standard input is the token or the credentials, not both";
            return Err(Failure::new(Exit::Usage, text));
        }
        let token = TOKEN.read(self.token, token)?;
        let authentication = match self.auth_scheme {
            Some(scheme) => Some(AuthenticationInfo {
                scheme,
                credentials: CREDENTIALS.read(self.auth_credentials, credentials)?,
            }),
            // Not an error, because the environment also applies to commands that need no secret.
            None => None,
        };
        Ok(TaskPushNotificationConfig {
            tenant: None,
            id: self.id,
            task_id: Some(self.task),
            url: self.url,
            token,
            authentication,
        })
    }
}

/// The sources of a secret: the command line, a file, then the environment. The environment is not read by
/// clap, which would treat the value as given on the command line and report a conflict.
struct Source {
    flag: &'static str,
    variable: &'static str,
    help: &'static str,
}

const TOKEN: Source = Source {
    flag: "--token",
    variable: "WOPR_PUSH_TOKEN",
    help: "What the receiver recognises a notification by [env: WOPR_PUSH_TOKEN]",
};

const CREDENTIALS: Source = Source {
    flag: "--auth-credentials",
    variable: "WOPR_PUSH_CREDENTIALS",
    help: "What it shows the receiver with that [env: WOPR_PUSH_CREDENTIALS]",
};

impl Source {
    fn read(&self, text: Option<String>, file: Option<&Path>) -> Result<Option<Secret>, Failure> {
        let Self { flag, variable, .. } = self;
        let (from, text) = match (file, text) {
            (Some(file), _) => {
                let from = format!("{flag}-file");
                let text = in_file(file).map_err(|error| {
                    let text = format!("{from}: cannot read {}: {error}", file.display());
                    Failure::new(Exit::of_reading(&error), text)
                })?;
                (from, text)
            }
            (None, Some(text)) => ((*flag).to_owned(), text),
            (None, None) => match env::var(variable) {
                Ok(text) => ((*variable).to_owned(), text),
                Err(VarError::NotPresent) => return Ok(None),
                Err(VarError::NotUnicode(_)) => {
                    return Err(Failure::new(Exit::Usage, format!("{variable}: is no text")));
                }
            },
        };
        if text.is_empty() {
            return Err(Failure::new(Exit::Usage, format!("{from}: is empty")));
        }
        let secret = Secret::new(text);
        secret
            .map(Some)
            .map_err(|error| Failure::new(Exit::Usage, format!("{from}: {error}")))
    }
}

/// Reads a secret and removes the final line break that editors add.
fn in_file(file: &Path) -> io::Result<String> {
    let source: &mut dyn io::Read = if file == Path::new("-") {
        &mut io::stdin()
    } else {
        &mut fs::File::open(file)?
    };
    let mut bytes = Vec::new();
    // Reads one byte more than allowed, to detect a file that is too long.
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it has more than {MOST_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is no text"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

async fn all(agent: &Agent, task: &str) -> Result<Vec<TaskPushNotificationConfig>> {
    let mut configs = Vec::new();
    let mut token = None;
    for _ in 0..MOST_PAGES {
        let page = agent.push_configs(task, token).await?;
        configs.extend(page.configs);
        if page.next_page_token.is_empty() {
            return Ok(configs);
        }
        token = Some(page.next_page_token);
    }
    Err(Failure::new(
        Exit::Failed,
        "the agent has more configurations than anybody reads",
    )
    .into())
}

fn show(place: &Place, config: &TaskPushNotificationConfig) -> Result<()> {
    if place.format.json {
        return output::json(&document(config));
    }
    let paint = Paint::stdout();
    let [id, auth, url] = cells(config);
    for (name, text) in [("config", id), ("url   ", url), ("auth  ", auth)] {
        output::line(format!("{} {}", paint.dim(name), output::plain(&text)))?;
    }
    Ok(())
}

/// Formats a configuration without its secrets.
fn document(config: &TaskPushNotificationConfig) -> Value {
    let authentication = config.authentication.as_ref();
    json!({
        "taskId": config.task_id,
        "id": config.id,
        "url": config.url,
        "authScheme": authentication.map(|info| &info.scheme),
    })
}

fn cells(config: &TaskPushNotificationConfig) -> [String; 3] {
    let authentication = config.authentication.as_ref();
    [
        config.id.clone().unwrap_or_default(),
        authentication.map_or_else(|| "-".to_owned(), |info| info.scheme.clone()),
        config.url.clone(),
    ]
}

fn row(config: &TaskPushNotificationConfig) -> Vec<String> {
    cells(config).into()
}
