//! Runs the snippets of `docs/a2a.md` and `docs/operations.md` verbatim against a host.

use std::{env, ffi::OsString, fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::{
    host::{Host, KEY},
    interop::{A2A_1, A2A_03, JS_1, JS_03, root},
};

/// More than any snippet needs.
const LIMIT: Duration = Duration::from_secs(100);

/// A fenced block: its language and content.
type Snippet = (String, String);

/// The snippets between a heading and the next `##`, in order.
fn snippets(page: &str, heading: &str) -> Vec<Snippet> {
    let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
    let (_, walk) = text.split_once(heading).expect("the walk is there");
    let (walk, _) = walk.split_once("\n## ").expect("something follows the walk");
    fenced(walk)
}

/// The fenced blocks of a text, in order.
fn fenced(text: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut open: Option<Snippet> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(done)) => found.push(done),
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (None, Some((language, mut body))) => {
                body.push_str(line);
                body.push('\n');
                open = Some((language, body));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "every block is closed");
    found
}

async fn run(mut command: Command, address: SocketAddr, folder: &Path, snippet: &str) {
    command
        .env("WOPR", format!("http://{address}"))
        .env("WOPR_SERVER", format!("http://{address}"))
        .env("WOPR_API_KEY", KEY)
        .env("PATH", path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "*")
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await;
    let output = output.expect("a snippet ends").unwrap();
    assert!(
        output.status.success(),
        "{}\n{snippet}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `PATH` with the built binary first.
fn path() -> OsString {
    let binary = Path::new(env!("CARGO_BIN_EXE_wopr")).parent().unwrap().to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths([binary].into_iter().chain(env::split_paths(&path))).unwrap()
}

/// Checks that the first block starts a host with the variables that the test used.
fn check_start(snippets: &[Snippet], variables: &[(&str, &str)]) {
    let (_, serve) = &snippets[0];
    assert!(serve.contains("wopr dev"), "{serve}");
    for (name, value) in variables {
        assert!(serve.contains(&format!("export {name}={value}")), "{serve}");
    }
}

/// Runs all shell blocks except the first one in a single session.
async fn run_shell(snippets: &[Snippet], address: SocketAddr, folder: &Path) {
    let blocks = snippets.iter().skip(1).filter(|(language, _)| language == "sh");
    let shell: String = blocks.map(|(_, body)| body.as_str()).collect();
    assert!(shell.contains("receiver.py"), "there is something to run");
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &shell]);
    run(bash, address, folder, &shell).await;
}

/// Stops the receiver that a snippet started.
async fn end_receiver(folder: &Path) {
    let receiver = fs::read_to_string(folder.join("receiver.pid")).unwrap();
    let ended = Command::new("kill").arg(receiver.trim()).status().await.unwrap();
    assert!(ended.success(), "the receiver was there to the end");
}

#[tokio::test]
async fn push_recovery_snippets_run_verbatim() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [
        ("WOPR_EGRESS_ALLOW", "127.0.0.0/8"),
        ("WOPR_A2A_PUSH_GIVE_UP", "1s"),
    ];
    let mut host = Host::new();
    for (name, value) in variables {
        host = host.variable(name, value);
    }
    let address = host.start().await;
    let snippets = snippets("operations.md", "### A receiver that was away\n");
    check_start(&snippets, &variables);
    // Running the snippets again gives the same result.
    for _ in 0..2 {
        run_shell(&snippets, address, folder.path()).await;
    }
    end_receiver(folder.path()).await;
    host.terminate().await;
}

#[tokio::test]
async fn a2a_snippets_run_verbatim() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("WOPR_EGRESS_ALLOW", "127.0.0.0/8")];
    let mut host = Host::new().variable(variables[0].0, variables[0].1);
    let address = host.start().await;
    let snippets = snippets("a2a.md", "## A first task\n");
    check_start(&snippets, &variables);
    // Running the snippets again gives the same result.
    for _ in 0..2 {
        run_shell(&snippets, address, folder.path()).await;
    }

    let mut n_scripts = 0;
    for (language, body) in &snippets {
        let first = body.lines().next().unwrap_or_default();
        let command = match (language.as_str(), first) {
            ("sh", _) => continue,
            ("python", "# a2a-sdk 1.x") => python(&A2A_1.python(), body),
            ("python", "# a2a-sdk 0.3.x") => python(&A2A_03.python(), body),
            ("js", "// @a2a-js/sdk 1.x") => node(&JS_1.packages(), body),
            ("js", "// @a2a-js/sdk 0.3.x") => node(&JS_03.packages(), body),
            _ => panic!("nobody knows how to run {language}: {first}"),
        };
        run(command, address, folder.path(), body).await;
        n_scripts += 1;
    }
    assert!(n_scripts >= 4, "one for each SDK");
    end_receiver(folder.path()).await;
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}

#[tokio::test]
async fn rest_snippets_run_verbatim_and_repeatedly() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new();
    let address = host.start().await;
    let page = fs::read_to_string(root().join("docs/rest.md")).unwrap();
    // The next part registers a file of this repository and is not about runs.
    let (walk, _) = page.split_once("\n## Workflows\n").unwrap();
    let all: String = fenced(walk).into_iter().map(|(_, body)| body).collect();
    // Every call must succeed and terminate.
    let shell = format!(
        "curl() {{ command curl --no-progress-meter --fail-with-body --max-time 60 \"$@\"; }}\n{all}"
    );
    let shell = shell.replace("WOPR=http://127.0.0.1:8080\n", "");
    for _ in 0..2 {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &shell]);
        run(bash, address, folder.path(), &shell).await;
    }
    host.terminate().await;
}

fn python(program: &Path, body: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-c", body]);
    command
}

/// Node looks for packages next to the script.
fn node(packages: &Path, body: &str) -> Command {
    let script = packages.join("snippet.mjs");
    fs::write(&script, body).unwrap();
    let mut command = Command::new("node");
    command.arg(script);
    command
}
