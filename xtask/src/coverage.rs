//! Measures which lines the tests reach, with cargo-llvm-cov.
//!
//! Tests that drive third-party clients, measure, or kill hosts are left out: they need minutes even without
//! instrumentation, or hold bounds that it breaks. What only they reach is shown as not covered.

use anyhow::{Result, bail};

use crate::plan::{Outcome, Step};
use crate::postgres::{self, Server};
use crate::process::{cargo, read, run};

const FILTER: &str = "not test(/(^|::)(interop|bench|chaos|siege|crash)/)";

/// Returns the steps that measure these packages, or the workspace if none is named.
pub(crate) fn steps(packages: Vec<String>) -> Vec<Step> {
    vec![
        Step::new("cargo-llvm-cov", find),
        Step::new("postgres", postgres::set_up),
        Step::new("coverage", move || measure(&packages)),
    ]
}

fn find() -> Result<Outcome> {
    for tool in ["llvm-cov", "nextest"] {
        if read(cargo().args([tool, "--version"])).is_err() {
            bail!(
                "find cargo-{tool}; install what is missing: `cargo install --locked cargo-llvm-cov cargo-nextest` and \
                 `rustup component add llvm-tools`"
            );
        }
    }
    Ok(Outcome::Done)
}

fn measure(packages: &[String]) -> Result<Outcome> {
    let mut command = cargo();
    command.args(["llvm-cov", "nextest", "--html", "--filterset", FILTER]);
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
    let server = Server::start()?;
    let (name, url) = server.variable();
    run(command.env(name, url))?;
    run(cargo().args(["llvm-cov", "report", "--summary-only"]))?;
    println!("line by line: target/llvm-cov/html/index.html");
    Ok(Outcome::Done)
}
