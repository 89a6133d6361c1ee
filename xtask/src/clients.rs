//! Third-party clients for the interop tests: Python environments and folders of Node packages under
//! `target/interop`.
//!
//! Each contains exactly the versions pinned in its requirements or lock file, and is rebuilt when that file
//! or the underlying Python or Node changes. A variable tells tests the path of the environment's Python, or
//! of the folder. Nothing is installed outside `target`, except Debian's `python3-venv` if the system's
//! Python cannot create environments, and Debian's `npm` if Node is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::debian;
use crate::plan::Outcome;
use crate::process::{read, run};

const HOME: &str = "target/interop";

/// The Python commands to try, in order; the pinned versions need 3.11 or later.
const PYTHONS: [&str; 3] = ["python3", "python3.11", "/usr/bin/python3"];
const OLDEST: (u32, u32) = (3, 11);

/// A Python client with its own environment.
struct Client {
    name: &'static str,
    /// The variable that tells tests the path of its Python.
    variable: &'static str,
    /// The file that pins the client and all its dependencies.
    requirements: &'static str,
    /// The module that tests import.
    module: &'static str,
}

const CLIENTS: [Client; 4] = [
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
        name: "mcp",
        variable: "WOPR_INTEROP_MCP",
        requirements: "tests/interop/requirements-mcp.txt",
        module: "mcp.server",
    },
    Client {
        name: "openwop",
        variable: "WOPR_INTEROP_OPENWOP",
        requirements: "tests/interop/requirements-openwop.txt",
        module: "openwop_client",
    },
];

/// A JavaScript client.
struct Script {
    name: &'static str,
    /// The variable that tells tests the folder of its packages.
    variable: &'static str,
    /// The folder with `package.json` and the lock file.
    sources: &'static str,
}

const SCRIPTS: [Script; 3] = [
    Script {
        name: "a2a-js-0.3",
        variable: "WOPR_INTEROP_JS_03",
        sources: "tests/interop/js-0.3",
    },
    Script {
        name: "a2a-js-1",
        variable: "WOPR_INTEROP_JS_1",
        sources: "tests/interop/js-1",
    },
    Script {
        name: "mcp-js",
        variable: "WOPR_INTEROP_JS_MCP",
        sources: "tests/interop/js-mcp",
    },
];

/// The files that define a client's packages.
const LOCK: [&str; 2] = ["package.json", "package-lock.json"];

/// The oldest version of Node that the SDKs support.
const OLDEST_NODE: u32 = 20;

impl Script {
    fn folder(&self) -> PathBuf {
        Path::new(HOME).join(self.name)
    }

    /// Installs the locked packages unless they are up to date.
    fn set_up(&self, node: &str) -> Result<()> {
        let mut wanted = node.to_owned();
        for file in LOCK {
            let path = Path::new(self.sources).join(file);
            wanted += &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        }
        let stamp = self.folder().join("made-from");
        if fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == wanted) {
            println!("{} is up to date", self.folder().display());
            return Ok(());
        }
        fs::create_dir_all(self.folder()).context("make a folder for packages")?;
        for file in LOCK {
            fs::copy(Path::new(self.sources).join(file), self.folder().join(file))
                .context("copy the lock file")?;
        }
        // `--ignore-scripts`: packages must not run code during installation.
        run(Command::new("npm")
            .args([
                "ci",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--loglevel",
                "error",
            ])
            .current_dir(self.folder()))?;
        fs::write(&stamp, wanted).context("write the stamp")
    }
}

/// Returns the version that `node` prints; installs Debian's Node if it is missing.
fn node() -> Result<String> {
    let version = || read(Command::new("node").arg("--version"));
    let has_npm = read(Command::new("npm").arg("--version")).is_ok();
    let is_new = |version: &str| parse_node(version).is_some_and(|major| major >= OLDEST_NODE);
    if let Ok(version) = version()
        && has_npm
        && is_new(&version)
    {
        return Ok(version);
    }
    let missing = format!(
        "find Node {OLDEST_NODE} or later with npm; the interop tests need it (--no-interop leaves them out)"
    );
    debian::install("npm", &missing)?;
    let version = version()?;
    if !is_new(&version) {
        bail!("{missing}, not {}", version.trim());
    }
    Ok(version)
}

fn parse_node(said: &str) -> Option<u32> {
    said.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

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

/// Installs every client and checks that it can be imported.
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
    let node = node()?;
    for script in &SCRIPTS {
        script.set_up(&node)?;
    }
    Ok(Outcome::Done)
}

/// Returns the variables that tell tests where the clients are.
pub(crate) fn variables() -> Result<Vec<(&'static str, PathBuf)>> {
    let root = std::env::current_dir().context("find the current directory")?;
    let pythons = CLIENTS
        .iter()
        .map(|client| (client.variable, root.join(client.python())));
    let packages = SCRIPTS
        .iter()
        .map(|script| (script.variable, root.join(script.folder())));
    Ok(pythons.chain(packages).collect())
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
    // `--no-deps`, so that nothing unpinned is installed; `pip check` reports missing packages.
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

/// A Python that can create environments.
struct Python {
    program: &'static str,
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

    /// Debian packages venv separately from Python.
    fn from_debian() -> Result<Self> {
        let program = "/usr/bin/python3";
        debian::install(
            "python3-venv",
            "make a virtual environment; install venv for your Python",
        )?;
        let version = read(Command::new(program).arg("--version"))?.trim().to_owned();
        Ok(Self { program, version })
    }

    /// Creates an empty environment and deletes the previous contents of the folder.
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
    fn python_versions_are_compared_numerically() {
        let is_new = |said| parse_version(said).is_some_and(|version| version >= OLDEST);
        assert!(is_new("Python 3.11.2\n"));
        assert!(is_new("Python 3.100.0"));
        assert!(!is_new("Python 3.9.18"));
        assert!(!is_new("Python 2.7.18"));
        assert!(!is_new("pypy"));
    }

    #[test]
    fn node_major_version_is_parsed() {
        assert_eq!(parse_node("v20.20.2\n"), Some(20));
        assert_eq!(parse_node("v8.0.0"), Some(8));
        assert_eq!(parse_node("20"), None);
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
