//! The pages about calls to other agents: `docs/agents.md` and `examples/second-opinion`.

use std::fs;

use crate::{
    binary::examples,
    snippets::{Session, snippets},
};

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
