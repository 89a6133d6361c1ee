//! Runs the snippets of pages verbatim, but for their ports.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::binary::{Host, Place, examples};

/// A fenced block: its language and content.
#[derive(Debug, PartialEq)]
pub(crate) struct Snippet {
    pub(crate) language: String,
    pub(crate) body: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The fenced blocks of a part of a page: from a heading to the next one of its level.
pub(crate) fn snippets(page: &str, heading: &str) -> Vec<Snippet> {
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
pub(crate) struct Session {
    pub(crate) place: Place,
    pub(crate) hosts: Vec<Host>,
    ports: Vec<(String, String)>,
}

impl Session {
    /// A session in a folder with the examples.
    pub(crate) fn new() -> Self {
        let place = Place::new();
        std::os::unix::fs::symlink(examples(), place.path().join("examples")).unwrap();
        Self {
            place,
            hosts: Vec::new(),
            ports: Vec::new(),
        }
    }

    pub(crate) fn at_our_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
    }

    pub(crate) fn bash(&self, text: &str) -> Command {
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
    pub(crate) fn serve(&mut self, snippet: &Snippet) {
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
    pub(crate) fn run(&self, script: &str) -> String {
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
