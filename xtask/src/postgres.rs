//! A temporary PostgreSQL server for the tests.
//!
//! Its URL is passed to the tests in a variable. If that variable is already set, the named server is used
//! instead.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cluster::{Cluster, OLDEST, Programs};
use crate::debian;
use crate::plan::Outcome;
use crate::process::forget_package;

/// The variable that tells tests the server's URL.
const VARIABLE: &str = "WOPR_TEST_POSTGRES";

/// Installs PostgreSQL. Needed even if a server is given, because the chaos tests start their own.
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

/// Runs a command with a server that is stopped afterwards.
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

/// The server given by the user.
fn given() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|url| !url.is_empty())
}

/// A temporary server, or the one given by the user. Dropping it stops a temporary server and deletes its
/// files.
pub(crate) struct Server {
    url: OsString,
    _cluster: Option<Cluster>,
}

impl Server {
    /// Starts a server and waits until it accepts connections.
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

    /// The variable to set for tests.
    pub(crate) fn variable(&self) -> (&'static str, &OsString) {
        (VARIABLE, &self.url)
    }
}
