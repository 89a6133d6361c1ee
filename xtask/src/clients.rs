//! Clients that nobody here wrote, for tests to drive: one Python environment each under `target/interop`.
//!
//! An environment holds exactly what its requirements file pins and is made again when that file or the
//! Python it stands on changes. Tests learn of it by a variable that names its Python. Nothing is installed
//! outside `target`, except Debian's `python3-venv` where the system's Python cannot make environments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::debian;
use crate::plan::Outcome;
use crate::process::{read, run};

const HOME: &str = "target/interop";

/// The Pythons to try, in order; the pins hold from 3.11 on.
const PYTHONS: [&str; 3] = ["python3", "python3.11", "/usr/bin/python3"];
const OLDEST: (u32, u32) = (3, 11);

/// One client in its own environment.
struct Client {
    /// Folder below `target/interop`.
    name: &'static str,
    /// What tells tests where its Python is.
    variable: &'static str,
    /// Exact pins of the client and of all it needs.
    requirements: &'static str,
    /// The module tests use.
    module: &'static str,
}

const CLIENTS: [Client; 3] = [
    Client {
        name: "a2a-0.3",
        variable: "WOPR_INTEROP_A2A_03",
        requirements: "tests/interop/requirements-a2a-0.3.txt",
        module: "a2a.client",
    },
    Client {
        name: "a2a-1",
        variable: "WOPR_INTEROP_A2A_1",
        requirements: "tests/interop/requirements-a2a-1.txt",
        module: "a2a.client",
    },
    Client {
        name: "openwop",
        variable: "WOPR_INTEROP_OPENWOP",
        requirements: "tests/interop/requirements-openwop.txt",
        module: "openwop_client",
    },
];

impl Client {
    fn folder(&self) -> PathBuf {
        Path::new(HOME).join(self.name)
    }

    fn python(&self) -> PathBuf {
        self.folder().join("bin/python")
    }

    fn stamp(&self) -> PathBuf {
        self.folder().join("made-from")
    }
}

/// Every client is installed and can be imported.
pub(crate) fn set_up() -> Result<Outcome> {
    let mut python = Python::find()?;
    for client in &CLIENTS {
        let pins = fs::read_to_string(client.requirements)
            .with_context(|| format!("read {}", client.requirements))?;
        let wanted = format!("{}\n{pins}", python.version);
        if fs::read_to_string(client.stamp()).is_ok_and(|stamp| stamp == wanted) {
            println!("{} is up to date", client.folder().display());
            continue;
        }
        make(client, &mut python)?;
        fs::write(client.stamp(), format!("{}\n{pins}", python.version)).context("write the stamp")?;
    }
    Ok(Outcome::Done)
}

/// The variables that tell tests where the clients are.
pub(crate) fn variables() -> Result<Vec<(&'static str, PathBuf)>> {
    let root = std::env::current_dir().context("find the current directory")?;
    Ok(CLIENTS
        .iter()
        .map(|client| (client.variable, root.join(client.python())))
        .collect())
}

fn make(client: &Client, python: &mut Python) -> Result<()> {
    if let Err(error) = python.venv(&client.folder()) {
        println!("{error:#}");
        *python = Python::from_debian()?;
        python.venv(&client.folder())?;
    }
    let pip = || {
        let mut command = Command::new(client.python());
        command.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
        command
    };
    // Without dependencies: what is not pinned is not installed, and `pip check` says if something is missing.
    run(pip().args([
        "install",
        "--quiet",
        "--no-deps",
        "--requirement",
        client.requirements,
    ]))?;
    run(pip().arg("check"))?;
    run(Command::new(client.python()).args(["-c", &format!("import {}", client.module)]))
}

/// A Python to make environments with.
struct Python {
    program: &'static str,
    /// As it prints it.
    version: String,
}

impl Python {
    fn find() -> Result<Self> {
        for program in PYTHONS {
            let Ok(version) = read(Command::new(program).arg("--version")) else {
                continue;
            };
            if parse_version(&version).is_some_and(|version| version >= OLDEST) {
                return Ok(Self {
                    program,
                    version: version.trim().to_owned(),
                });
            }
        }
        bail!(
            "find Python {}.{} or later; the interop tests need it (--no-interop leaves them out)",
            OLDEST.0,
            OLDEST.1
        )
    }

    /// Debian ships venv apart from Python.
    fn from_debian() -> Result<Self> {
        let program = "/usr/bin/python3";
        debian::install(
            "python3-venv",
            "make a virtual environment; install venv for your Python",
        )?;
        let version = read(Command::new(program).arg("--version"))?.trim().to_owned();
        Ok(Self { program, version })
    }

    /// An empty environment; what was in the folder is gone.
    fn venv(&self, folder: &Path) -> Result<()> {
        run(Command::new(self.program)
            .args(["-m", "venv", "--clear"])
            .arg(folder))
    }
}

fn parse_version(said: &str) -> Option<(u32, u32)> {
    let mut parts = said.trim().strip_prefix("Python ")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_is_old_by_number_not_by_text() {
        let is_new = |said| parse_version(said).is_some_and(|version| version >= OLDEST);
        assert!(is_new("Python 3.11.2\n"));
        assert!(is_new("Python 3.100.0"));
        assert!(!is_new("Python 3.9.18"));
        assert!(!is_new("Python 2.7.18"));
        assert!(!is_new("pypy"));
    }

    #[test]
    fn every_requirement_is_an_exact_pin() {
        for client in &CLIENTS {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("..")
                .join(client.requirements);
            let pins = fs::read_to_string(&path).unwrap();
            let lines = || {
                pins.lines()
                    .filter(|line| !line.is_empty() && !line.starts_with('#'))
            };
            assert!(lines().count() > 0, "{}", path.display());
            for line in lines() {
                assert!(line.contains("=="), "{}: {line}", path.display());
            }
        }
    }
}
