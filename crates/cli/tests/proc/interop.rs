//! Journeys by clients that nobody here wrote, each in the Python environment that the test set-up makes.

use std::{
    env,
    ffi::OsStr,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use crate::host::{Host, KEY};

/// More than any script needs.
const LIMIT: Duration = Duration::from_secs(150);

/// A client, by the variable that names its Python and the place of that Python below `target/interop`.
#[derive(Debug, Clone, Copy)]
struct Client(&'static str, &'static str);

const A2A_03: Client = Client("WOPR_INTEROP_A2A_03", "a2a-0.3");
const A2A_1: Client = Client("WOPR_INTEROP_A2A_1", "a2a-1");
const OPENWOP: Client = Client("WOPR_INTEROP_OPENWOP", "openwop");

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Client {
    fn python(self) -> PathBuf {
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

    /// Runs a script against a host and returns what it printed.
    async fn run(self, script: &str, address: SocketAddr, arguments: &[&str]) -> String {
        let script = root().join("tests/interop").join(script);
        let mut command = Command::new(self.python());
        command
            .arg(&script)
            .arg(format!("http://{address}"))
            .arg(KEY)
            .args(arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // A proxy of this machine is none of loopback's business.
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = timeout(LIMIT, command.output()).await;
        let output = output
            .unwrap_or_else(|_| panic!("{} ends in time", script.display()))
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{} {:?}: {}\n{printed}{}",
            script.display(),
            arguments.iter().map(OsStr::new).collect::<Vec<_>>(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        printed
    }
}

/// A whole journey against one host, once for each list of arguments.
async fn journey(client: Client, script: &str, each: &[&[&str]]) {
    let mut host = Host::new();
    let address = host.start().await;
    for arguments in each {
        client.run(script, address, arguments).await;
    }
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}

/// The same task before and after the end of the process.
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
async fn openwop_client_makes_its_journey() {
    journey(OPENWOP, "openwop_journey.py", &[&[]]).await;
}

/// The workflow of the A2A journeys.
const SKILL: &str = "campaign-brief";

#[tokio::test]
async fn a2a_sdk_of_0_3_makes_its_journey_over_every_binding() {
    let bindings: [&[&str]; 3] = [&[SKILL, "JSONRPC"], &[SKILL, "HTTP+JSON"], &[SKILL, "GRPC"]];
    journey(A2A_03, "a2a_03_journey.py", &bindings).await;
}

#[tokio::test]
async fn a2a_sdk_of_1_0_makes_its_journey_over_every_binding() {
    let bindings = ["JSONRPC", "HTTP+JSON", "GRPC"].map(|binding| [SKILL, binding, "1.0"]);
    let bindings = bindings.each_ref().map(<[_; 3]>::as_slice);
    journey(A2A_1, "a2a_1_journey.py", &bindings).await;
}

#[tokio::test]
async fn a2a_sdk_of_1_0_makes_its_journey_in_0_3_over_every_binding() {
    let bindings = ["JSONRPC", "HTTP+JSON", "GRPC"].map(|binding| [SKILL, binding, "0.3"]);
    let bindings = bindings.each_ref().map(<[_; 3]>::as_slice);
    journey(A2A_1, "a2a_1_journey.py", &bindings).await;
}

#[tokio::test]
async fn a2a_sdk_of_0_3_finds_its_task_after_a_kill() {
    restart(A2A_03, "a2a_03_restart.py").await;
}

#[tokio::test]
async fn a2a_sdk_of_1_0_finds_its_task_after_a_kill() {
    restart(A2A_1, "a2a_1_restart.py").await;
}

#[tokio::test]
async fn tools_of_grpc_find_health_and_descriptors() {
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
