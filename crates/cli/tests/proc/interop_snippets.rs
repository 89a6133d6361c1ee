//! The walk of `docs/a2a.md`, as it stands there, against a host.

use std::{fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::{
    host::{Host, KEY},
    interop::{A2A_1, A2A_03, JS_1, JS_03, root},
};

/// More than any snippet needs.
const LIMIT: Duration = Duration::from_secs(100);

/// A fenced block: its language and what is in it.
type Snippet = (String, String);

/// The snippets of the walk, in order.
fn snippets() -> Vec<Snippet> {
    let text = fs::read_to_string(root().join("docs/a2a.md")).unwrap();
    let (_, walk) = text.split_once("## A first task\n").expect("the walk is there");
    let (walk, _) = walk.split_once("\n## ").expect("something follows the walk");
    let mut found = Vec::new();
    let mut open: Option<Snippet> = None;
    for line in walk.lines() {
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
        .env("WOPR_API_KEY", KEY)
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

#[tokio::test]
async fn snippets_of_the_walk_run_as_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new().variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let address = host.start().await;
    let snippets = snippets();
    let ((_, serve), rest) = snippets.split_first().unwrap();
    assert!(
        serve.contains("wopr dev"),
        "the first block starts a host, as was done here: {serve}"
    );

    // The blocks of the shell are one session.
    let shell: String = rest
        .iter()
        .filter(|(language, _)| language == "sh")
        .map(|(_, body)| body.as_str())
        .collect();
    assert!(shell.contains("curl"), "there is something to run");
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &shell]);
    run(bash, address, folder.path(), &shell).await;

    let mut n_scripts = 0;
    for (language, body) in rest {
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
    let receiver = fs::read_to_string(folder.path().join("receiver.pid")).unwrap();
    let ended = Command::new("kill").arg(receiver.trim()).status().await.unwrap();
    assert!(ended.success(), "the receiver was there to the end");
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}

fn python(program: &Path, body: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-c", body]);
    command
}

/// Node looks for packages beside the script.
fn node(packages: &Path, body: &str) -> Command {
    let script = packages.join("snippet.mjs");
    fs::write(&script, body).unwrap();
    let mut command = Command::new("node");
    command.arg(script);
    command
}
