//! Runs the snippets of `docs/agents.md` and of `examples/second-opinion` verbatim, but for their ports.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::binary::{Host, Place, examples};

/// A fenced block: its language and content.
#[derive(Debug, PartialEq)]
struct Snippet {
    language: String,
    body: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The fenced blocks of a part of a page: from a heading to the next one of its level.
fn snippets(page: &str, heading: &str) -> Vec<Snippet> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (_, part) = text.split_once(heading).expect("the heading is there");
    let (part, _) = part.split_once("\n## ").unwrap_or((part, ""));
    let mut found = Vec::new();
    // Every second piece is inside of a fence.
    for block in part.split("```").skip(1).step_by(2) {
        let (language, body) = block.split_once('\n').unwrap();
        found.push(Snippet {
            language: language.to_owned(),
            body: body.to_owned(),
        });
    }
    found
}

/// The hosts that snippets have started, and the ports that they got for those of the page.
struct Session {
    place: Place,
    hosts: Vec<Host>,
    ports: Vec<(String, String)>,
}

impl Session {
    /// A session in a folder with the examples.
    fn new() -> Self {
        let place = Place::new();
        std::os::unix::fs::symlink(examples(), place.path().join("examples")).unwrap();
        Self {
            place,
            hosts: Vec::new(),
            ports: Vec::new(),
        }
    }

    fn at_our_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
    }

    fn bash(&self, text: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_wopr")).parent().unwrap().to_owned();
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([binary].into_iter().chain(env::split_paths(&path))).unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", text])
            .current_dir(self.place.path())
            .env("PATH", path)
            .stdin(Stdio::null());
        for (name, _) in env::vars_os() {
            let is_ours = ["WOPR_", "CARGO"]
                .iter()
                .any(|prefix| name.to_string_lossy().starts_with(prefix));
            if is_ours {
                bash.env_remove(name);
            }
        }
        bash
    }

    /// Starts the host of a snippet on a port that is free, and takes its port for that of the page.
    fn serve(&mut self, snippet: &Snippet) {
        let (before, rest) = snippet.body.split_once("--listen 127.0.0.1:").unwrap();
        let (port, after) = rest.split_once(' ').unwrap();
        let text = self.at_our_ports(&format!("{before}--listen 127.0.0.1:0 {after}"));
        let text = text.replace("wopr serve", "exec wopr serve --while-stdin");
        let host = Host::start(self.bash(&text));
        let ours = host.origin.rsplit(':').next().unwrap();
        self.ports
            .push((format!("127.0.0.1:{port}"), format!("127.0.0.1:{ours}")));
        self.hosts.push(host);
    }

    /// Runs a script to its end, and returns its output.
    fn run(&self, script: &str) -> String {
        let script = self.at_our_ports(script);
        let output = self.bash(&script).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{}\n{script}\n{out}\n{err}",
            output.status
        );
        out
    }
}

#[test]
fn ten_minutes_of_the_agents_page_run_verbatim() {
    let mut session = Session::new();
    let mut script = String::new();
    let mut checks = Vec::new();
    for snippet in snippets("docs/agents.md", "## In ten minutes\n") {
        match snippet.language.as_str() {
            "sh" if snippet.body.contains("wopr serve") => session.serve(&snippet),
            "json" => {
                session.place.write("ask.json", &snippet.body);
            }
            // One terminal: later snippets use what earlier ones exported.
            "sh" => script.push_str(&snippet.body),
            "text" => checks.push(snippet.body),
            other => panic!("nobody knows how to run {other}: {}", snippet.body),
        }
    }
    assert_eq!((session.hosts.len(), checks.len()), (2, 2));
    let said = session.run(&script);
    let mut rest = said.as_str();
    for check in checks {
        let at = rest.find(&check);
        rest = &rest[at.unwrap_or_else(|| panic!("{check} is missing: {said}")) + check.len()..];
    }
    assert!(rest.contains("cancelled"), "{said}");
}

#[test]
fn peers_of_the_agents_page_are_valid() {
    let session = Session::new();
    let mut n_checked = 0;
    let snippets = snippets("docs/agents.md", "## Peers\n").into_iter();
    // A part of a peer needs files that are not here.
    for snippet in snippets.filter(|snippet| snippet.body.starts_with("[[a2a.peers]]")) {
        assert_eq!(snippet.language, "toml", "{}", snippet.body);
        session.place.write("wopr.toml", &snippet.body);
        session
            .place
            .ends(0, &["config", "check", "--config", "wopr.toml"]);
        n_checked += 1;
    }
    assert!(n_checked > 0);
}

#[test]
fn second_opinion_runs_by_hand() {
    let mut session = Session::new();
    let snippets = snippets("examples/second-opinion/README.md", "## By hand\n");
    let (serve, run): (Vec<_>, Vec<_>) = snippets
        .into_iter()
        .partition(|snippet| snippet.body.contains("wopr serve"));
    for snippet in &serve {
        session.serve(snippet);
    }
    let config = fs::read_to_string(examples().join("second-opinion/wopr.toml")).unwrap();
    let ours = session.at_our_ports(&config);
    assert_ne!(config, ours, "the configuration names the ports of the page");
    session.place.write("wopr.toml", &ours);
    let [run] = run.as_slice() else {
        panic!("one snippet runs it: {run:?}");
    };
    let there = "--config examples/second-opinion/wopr.toml";
    assert!(run.body.contains(there), "{run:?}");
    // Without a terminal, the answers are on the command line.
    let answers = r#"--answer '"in an hour"' --answer '{"action":"accept"}'"#;
    let said = session.run(&run.body.replace(there, &format!("--config wopr.toml {answers}")));
    for part in [
        "an hour to remove the old way.",
        "said to be this: in an hour",
        "Go ahead, says",
    ] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}
