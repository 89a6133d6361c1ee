//! `wopr config`: checks and prints the effective configuration.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use wopr_server::{
    Host,
    config::{EXAMPLE, StoreUrl},
};

use super::workflows::{self, Survey};
use crate::{
    args::Format,
    exit::Exit,
    host::{HostArgs, start_failure},
    output::{self, Paint},
    variables,
};

/// Check and print the configuration.
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Check the configuration without starting anything
    Check {
        #[command(flatten)]
        host: Box<HostArgs>,
        #[command(flatten)]
        format: Format,
    },
    /// Print the effective value of every setting; secrets are hidden
    Print {
        /// Print the annotated defaults, as a starting point for a configuration file
        #[arg(long)]
        defaults: bool,
        #[command(flatten)]
        host: Box<HostArgs>,
        #[command(flatten)]
        format: Format,
    },
}

impl Config {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Check { host, format } => check(&host, format),
            Verb::Print { defaults: true, .. } => {
                output::line(EXAMPLE.trim_end())?;
                Ok(Exit::Ok)
            }
            Verb::Print { host, format, .. } => {
                let config = host.load()?;
                if format.json {
                    output::json(&config)?;
                } else {
                    output::line(
                        config
                            .to_toml_redacted()
                            .context("write the configuration")?
                            .trim_end(),
                    )?;
                }
                Ok(Exit::Ok)
            }
        }
    }
}

fn check(host: &HostArgs, format: Format) -> Result<Exit> {
    let config = host.check()?;
    let mut notes = Host::check(&config).map_err(|error| start_failure(&error))?;
    for name in variables::unknown() {
        notes.push(format!(
            "the environment variable {name} is not known and changes nothing"
        ));
    }
    if config.auth.keys.is_empty() && !config.auth.has_others() {
        notes.push("no key is configured: the host starts only if its store holds one".to_owned());
    }
    if config.workflows.is_empty() {
        notes.push("no workflow folder is configured: only registered workflows are offered".to_owned());
    }
    for folder in config.workflows.iter().filter(|folder| !folder.is_dir()) {
        notes.push(format!("the workflow folder {} does not exist", folder.display()));
    }
    if config.workflows.iter().all(|folder| folder.is_dir()) {
        let Survey {
            n_files: _,
            skipped,
            doubled,
        } = workflows::survey(&config)?;
        notes.extend(skipped.iter().map(|file| format!("a host will skip {file}")));
        notes.extend(doubled);
    }
    if config.store == StoreUrl::Memory {
        notes.push("the store is in memory: no run survives the process".to_owned());
    }
    if config.conformance {
        notes.push("conformance mode is on: its seams bypass what a production host protects".to_owned());
    }
    if format.json {
        output::json(&json!({ "valid": true, "notes": notes }))?;
        return Ok(Exit::Ok);
    }
    let paint = Paint::stdout();
    output::line(format!("{} the configuration is valid", paint.green("ok  ")))?;
    for note in notes {
        output::line(format!("{} {note}", paint.yellow("note")))?;
    }
    Ok(Exit::Ok)
}
