//! A PostgreSQL server for the tests, thrown away after them.
//!
//! Tests learn of it by a variable that holds its URL; where that is set already, the server it names is used and
//! none is made.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cluster::{Cluster, OLDEST, Programs};
use crate::debian;
use crate::plan::Outcome;
use crate::process::forget_package;

/// Tells tests where the server is.
const VARIABLE: &str = "WOPR_TEST_POSTGRES";

/// PostgreSQL is installed. Also where a server is named: the chaos tests have one of their own.
pub(crate) fn set_up() -> Result<Outcome> {
    if given().is_some() {
        println!("{VARIABLE} names a server; none is made for the tests of the store");
    }
    let programs = match Programs::find() {
        Some(programs) => programs,
        None => {
            let missing =
                format!("find PostgreSQL {OLDEST} or later; the tests of the store and of chaos need it");
            debian::install("postgresql", &missing)?;
            Programs::find()
                .with_context(|| format!("find the PostgreSQL just installed, {OLDEST} or later"))?
        }
    };
    println!("PostgreSQL {} in {}", programs.version, programs.folder.display());
    Ok(Outcome::Done)
}

/// Runs a command with a server that lives as long.
pub(crate) fn with(words: &[String]) -> Result<()> {
    if given().is_none() {
        set_up()?;
    }
    let server = Server::start()?;
    let (program, arguments) = words.split_first().context("read the command to run")?;
    let (name, url) = server.variable();
    let mut command = Command::new(program);
    forget_package(&mut command);
    let status = command
        .args(arguments)
        .env(name, url)
        .status()
        .with_context(|| format!("start {program}"))?;
    drop(server);
    if !status.success() {
        bail!("`{}` ended with {status}", words.join(" "));
    }
    Ok(())
}

/// The server the caller named.
fn given() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|url| !url.is_empty())
}

/// A server of ours, or the one the caller named. Dropping stops ours and removes everything it wrote.
pub(crate) struct Server {
    url: OsString,
    _cluster: Option<Cluster>,
}

impl Server {
    /// Starts a server and waits until it takes connections.
    pub(crate) fn start() -> Result<Self> {
        if let Some(url) = given() {
            return Ok(Self { url, _cluster: None });
        }
        let programs = Programs::find().context("find PostgreSQL; `cargo xtask setup` installs it")?;
        let cluster = Cluster::start(programs)?;
        Ok(Self {
            url: cluster.url().into(),
            _cluster: Some(cluster),
        })
    }

    /// What tests find it by.
    pub(crate) fn variable(&self) -> (&'static str, &OsString) {
        (VARIABLE, &self.url)
    }
}
