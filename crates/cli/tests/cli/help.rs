//! Help, usage errors, exit codes and completions.

use std::process::Stdio;

use crate::binary::{Place, wait};

#[test]
fn every_command_has_help() {
    let place = Place::new();
    let help = place.ends(0, &["help"]).out;
    for command in [
        "demo",
        "dev",
        "serve",
        "mcp",
        "run",
        "runs",
        "interrupts",
        "workflows",
        "a2a",
        "deliveries",
        "keys",
        "config",
        "migrate",
        "backup",
        "doctor",
        "bench",
        "completions",
        "exit-codes",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
        let said = place.ends(0, &[command, "--help"]);
        assert!(said.out.contains("Usage:"), "{command}");
    }
    assert!(place.ends(0, &["--version"]).out.starts_with("wopr "));
}

#[test]
fn help_shows_the_defaults_of_the_command() {
    let place = Place::new();
    let dev = place.ends(0, &["dev", "--help"]).out;
    assert!(
        dev.contains("[default: sqlite:./wopr-dev.db]") && dev.contains("[default: warn]"),
        "{dev}"
    );
    assert!(!dev.contains("./wopr.db"), "{dev}");
    let serve = place.ends(0, &["serve", "--help"]).out;
    assert!(serve.contains("[default: sqlite:./wopr.db]"), "{serve}");
}

#[test]
fn exit_codes_are_documented_in_help() {
    let place = Place::new();
    for args in [["help", "exit-codes"].as_slice(), &["--help"], &["exit-codes"]] {
        let out = place.ends(0, args).out;
        assert!(
            out.contains("    6  the run waits for an answer"),
            "{args:?}: {out}"
        );
    }
    let codes = place.json(&["exit-codes", "--json"]);
    let codes: Vec<_> = codes["exitCodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|code| code["code"].as_u64().unwrap())
        .collect();
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
}

#[test]
fn invalid_command_line_ends_with_2_and_an_error() {
    let place = Place::new();
    for args in [
        [].as_slice(),
        &["fly"],
        &["runs"],
        &["runs", "show"],
        &["run", "hello", "--input", "no-equals-sign"],
        &["run", "hello", "--inputs", "[1]"],
        &["run", "hello", "--inputs", "{"],
        &["run", "hello", "--answer", "{"],
        &["a2a", "send"],
        &["a2a", "send", "x", "--data", "{"],
        &["runs", "list", "--server", "localhost:8080"],
        &["keys", "create", "--store", "sqlite:a.db", "--scope", "runs:fly"],
        &["keys", "create", "--store", "sqlite:a.db", "--id", "not an id"],
        &["interrupts", "resolve", "r", "n", "--value", "{"],
        &["interrupts", "resolve", "r", "n", "--accept", "--value", "1"],
    ] {
        let said = place.ends(2, args);
        assert!(said.out.is_empty() && !said.err.is_empty(), "{args:?}: {said:#?}");
        assert!(!said.err.contains("panicked"), "{args:?}: {said:#?}");
    }
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing was made");
}

#[test]
fn without_a_terminal_there_is_no_colour() {
    let place = Place::new();
    for args in [
        ["runs", "fly"].as_slice(),
        &["help"],
        &["run", "hello"],
        &["config", "check"],
    ] {
        let said = place.run(args);
        assert!(
            !said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'),
            "{said:#?}"
        );
    }
}

#[test]
fn completions_are_printed_and_a_broken_pipe_is_no_error() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            place.ends(0, &["completions", shell]).out.contains("wopr"),
            "{shell}"
        );
    }
    for args in [
        ["completions", "bash"].as_slice(),
        &["help"],
        &["config", "print"],
    ] {
        let mut child = place
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert!(wait(&mut child).success(), "{args:?}");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!(said, "", "{args:?}");
    }
}
