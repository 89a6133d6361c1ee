//! Third-party clients used against a host. Each runs in the environment that the test setup creates for it:
//! a Python environment or a folder of Node packages.

use std::{
    env, fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use crate::{
    host::{Host, KEY},
    interop_pushes::Receivers,
};

/// More than any script needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);

/// A Python client: the variable with the path of its Python, and the default environment below
/// `target/interop`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client(&'static str, &'static str);

pub(crate) const A2A_03: Client = Client("WOPR_INTEROP_A2A_03", "a2a-0.3");
pub(crate) const A2A_1: Client = Client("WOPR_INTEROP_A2A_1", "a2a-1");
pub(crate) const MCP: Client = Client("WOPR_INTEROP_MCP", "mcp");
pub(crate) const OPENWOP: Client = Client("WOPR_INTEROP_OPENWOP", "openwop");

/// A JavaScript client: the folder of its script below `tests/interop`, the variable with the folder of its
/// packages, and the default for that folder below `target/interop`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    sources: &'static str,
    variable: &'static str,
    packages: &'static str,
}

pub(crate) const JS_03: Script = Script {
    sources: "js-0.3",
    variable: "WOPR_INTEROP_JS_03",
    packages: "a2a-js-0.3",
};
pub(crate) const JS_1: Script = Script {
    sources: "js-1",
    variable: "WOPR_INTEROP_JS_1",
    packages: "a2a-js-1",
};

pub(crate) const JS_MCP: Script = Script {
    sources: "js-mcp",
    variable: "WOPR_INTEROP_JS_MCP",
    packages: "mcp-js",
};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Client {
    pub(crate) fn python(self) -> PathBuf {
        let Self(variable, folder) = self;
        let default = root().join("target/interop").join(folder).join("bin/python");
        let python = env::var_os(variable).map_or(default, PathBuf::from);
        assert!(
            python.exists(),
            "{} is not there: run this by `cargo xtask test`, or run `cargo xtask setup` first",
            python.display()
        );
        python
    }

    /// Runs a script against a host and returns its output.
    pub(crate) async fn run(self, script: &str, address: SocketAddr, arguments: &[&str]) -> String {
        let script = root().join("tests/interop").join(script);
        let mut command = Command::new(self.python());
        command.arg(&script).env("PYTHONDONTWRITEBYTECODE", "1");
        printed(command, address, arguments).await
    }
}

impl Script {
    /// The folder of its packages. Scripts must be placed there too.
    pub(crate) fn packages(self) -> PathBuf {
        let default = root().join("target/interop").join(self.packages);
        let packages = env::var_os(self.variable).map_or(default, PathBuf::from);
        assert!(
            packages.join("node_modules").exists(),
            "{} has no packages: run this by `cargo xtask test`, or run `cargo xtask setup` first",
            packages.display()
        );
        packages
    }

    /// Runs the script against a host.
    async fn run(self, address: SocketAddr, arguments: &[&str]) {
        printed(self.command("journey.mjs"), address, arguments).await;
    }

    /// The command that runs a script. Node looks for packages above the script itself, so the script is placed
    /// among them.
    pub(crate) fn command(self, name: &str) -> Command {
        let packages = self.packages();
        let sources = root().join("tests/interop");
        put(&sources.join(self.sources).join(name), &packages);
        for shared in ["script.mjs", "behaviours.json"] {
            put(&sources.join(shared), &packages);
        }
        let mut command = Command::new("node");
        command.arg(packages.join(name));
        command
    }
}

/// Copies a file to a folder. Another test may be reading the copy that is there, so it is replaced as a whole.
fn put(file: &Path, folder: &Path) {
    let mut copy = tempfile::NamedTempFile::new_in(folder).unwrap();
    copy.write_all(&fs::read(file).unwrap()).unwrap();
    copy.persist(folder.join(file.file_name().unwrap())).unwrap();
}

/// Runs a client with a host, a key and arguments. Requires success and returns its output.
async fn printed(mut command: Command, address: SocketAddr, arguments: &[&str]) -> String {
    command
        .arg(format!("http://{address}"))
        .arg(KEY)
        .args(arguments)
        // Proxies must not be used for loopback.
        .env("NO_PROXY", "*")
        .env("no_grpc_proxy", "*")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await;
    let output = output
        .unwrap_or_else(|_| panic!("{command:?} ends in time"))
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{:?} {:?}: {}\n{printed}{}",
        command.as_std().get_program(),
        command.as_std().get_args().collect::<Vec<_>>(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

/// Checks that a task survives a kill of the host.
async fn restart(client: Client, script: &str) {
    let mut host = Host::new();
    let address = host.start().await;
    let task = client.run(script, address, &["start"]).await;
    host.kill().await;
    let address = host.start().await;
    client.run(script, address, &["finish", task.trim()]).await;
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}

#[tokio::test]
async fn openwop_client_completes_its_script() {
    let mut host = Host::new();
    let address = host.start().await;
    OPENWOP.run("openwop_journey.py", address, &[]).await;
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}

/// The workflow used by the A2A clients.
const SKILL: &str = "campaign-brief";

/// An A2A SDK and its script.
#[derive(Debug, Clone, Copy)]
enum Sdk {
    /// Runs once with streaming and once without.
    Python(Client, &'static str),
    JavaScript(Script),
}

/// Runs an SDK's script in a version over every binding, and checks the pushes.
async fn journeys(sdk: Sdk, version: &str) {
    let mut host = Host::new().variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let address = host.start().await;
    let receivers = Receivers::start().await;
    for binding in ["JSONRPC", "HTTP+JSON", "GRPC"] {
        let arguments = [SKILL, binding, &receivers.url(binding), version];
        match sdk {
            Sdk::Python(client, script) => {
                client.run(script, address, &arguments).await;
                for way in ["stream", "send"] {
                    receivers.check(&format!("{binding}/{way}"), version).await;
                }
            }
            Sdk::JavaScript(script) => {
                script.run(address, &arguments).await;
                receivers.check(binding, version).await;
            }
        }
    }
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}

#[tokio::test]
async fn a2a_sdk_0_3_works_over_every_binding() {
    journeys(Sdk::Python(A2A_03, "a2a_03_journey.py"), "0.3").await;
}

#[tokio::test]
async fn a2a_sdk_1_0_works_over_every_binding() {
    journeys(Sdk::Python(A2A_1, "a2a_1_journey.py"), "1.0").await;
}

#[tokio::test]
async fn a2a_sdk_1_0_works_in_0_3_over_every_binding() {
    journeys(Sdk::Python(A2A_1, "a2a_1_journey.py"), "0.3").await;
}

#[tokio::test]
async fn a2a_js_sdk_0_3_works_over_every_binding() {
    journeys(Sdk::JavaScript(JS_03), "0.3").await;
}

#[tokio::test]
async fn a2a_js_sdk_1_0_works_over_every_binding() {
    journeys(Sdk::JavaScript(JS_1), "1.0").await;
}

#[tokio::test]
async fn a2a_js_sdk_1_0_works_in_0_3_over_every_binding() {
    journeys(Sdk::JavaScript(JS_1), "0.3").await;
}

#[tokio::test]
async fn a2a_sdk_0_3_finds_its_task_after_a_kill() {
    restart(A2A_03, "a2a_03_restart.py").await;
}

#[tokio::test]
async fn a2a_sdk_1_0_finds_its_task_after_a_kill() {
    restart(A2A_1, "a2a_1_restart.py").await;
}

#[tokio::test]
async fn grpc_tools_find_health_and_reflection_services() {
    let mut host = Host::new();
    let address = host.start().await;
    let said = A2A_1.run("grpc_services.py", address, &[]).await;
    assert!(said.ends_with("messages agree\n"), "{said}");
    host.terminate().await;
}

#[tokio::test]
async fn pyjwt_and_the_a2a_sdk_verify_signed_cards() {
    let mut host = Host::new().variable("WOPR_A2A_CARD_SIGNING", "EdDSA,ES256");
    let address = host.start().await;
    let said = A2A_1.run("a2a_card_signature.py", address, &[]).await;
    assert_eq!(said.trim(), "8 cards verified");
    host.terminate().await;
}
