//! `wopr exit-codes`: lists the exit codes.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::{
    args::Format,
    exit::{self, Exit},
    output,
};

/// List the exit codes of every command.
#[derive(Debug, Args)]
#[command(after_help = exit::table())]
pub(crate) struct ExitCodes {
    #[command(flatten)]
    format: Format,
}

impl ExitCodes {
    pub(crate) fn run(self) -> Result<Exit> {
        if self.format.json {
            let codes: Vec<_> = exit::codes()
                .map(|(code, meaning)| json!({ "code": code, "meaning": meaning }))
                .collect();
            output::json(&json!({ "exitCodes": codes }))?;
        } else {
            output::line(exit::table().trim_end())?;
        }
        Ok(Exit::Ok)
    }
}
