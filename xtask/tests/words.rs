//! The crates below the faces name no protocol, in code and in comments.
//!
//! What they do must hold for every protocol and every language of workflows. `core` lists the languages, so it
//! names those; type ids and annotations of a protocol belong to a dialect.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Words of protocols, in lower case. A word is what stands between characters that are no letters or digits.
const WORDS: [&str; 8] = ["a2a", "openwop", "mcp", "awp", "grpc", "jsonrpc", "sse", "acp"];

/// Each crate, with the words that it may use.
const CRATES: [(&str, &[&str]); 5] = [
    ("kernel", &[]),
    ("core", &["openwop", "awp"]),
    ("store", &[]),
    ("engine", &[]),
    ("app", &[]),
];

fn named<'t>(text: &'t str, allowed: &[&str]) -> Vec<(usize, &'t str)> {
    let lines = text.lines().enumerate();
    let words = lines.flat_map(|(n, line)| {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric());
        words.flat_map(parts).map(move |word| (n + 1, word))
    });
    words
        .filter(|(_, word)| {
            let word = word.to_ascii_lowercase();
            WORDS.contains(&word.as_str()) && !allowed.contains(&word.as_str())
        })
        .collect()
}

/// Splits `A2aTask` into `A2a` and `Task`.
fn parts(word: &str) -> impl Iterator<Item = &str> {
    let is_end = |pair: &[u8]| pair[1].is_ascii_uppercase() && !pair[0].is_ascii_uppercase();
    let pairs = word.as_bytes().windows(2).enumerate();
    let ends: Vec<_> = pairs
        .filter(|(_, pair)| is_end(pair))
        .map(|(n, _)| n + 1)
        .collect();
    let starts: Vec<_> = std::iter::once(0).chain(ends.iter().copied()).collect();
    let ends = ends.into_iter().chain(std::iter::once(word.len()));
    starts.into_iter().zip(ends).map(|(start, end)| &word[start..end])
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "sql") {
            into.push(path);
        }
    }
}

#[test]
fn crates_below_the_faces_name_no_protocol() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for (name, allowed) in CRATES {
        let mut files = Vec::new();
        for part in ["src", "migrations"] {
            let folder = root.join("crates").join(name).join(part);
            if folder.is_dir() {
                sources(&folder, &mut files);
            }
        }
        assert!(!files.is_empty(), "{name} has sources");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for (line, word) in named(&text, allowed) {
                found.push(format!("{}:{line}: {word}", file.display()));
            }
        }
    }
    assert_eq!(found, [""; 0]);
}

/// What the example of a second language touches, besides manifests: its own crate and this file.
const LIST_OF_LANGUAGES: &str = "core/src/program.rs";

#[test]
fn second_language_touches_its_own_crate_and_one_file_of_core() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("crates");
    let mut files = Vec::new();
    for entry in fs::read_dir(&crates).unwrap() {
        let folder = entry.unwrap().path().join("src");
        if folder.is_dir() && !folder.starts_with(crates.join("dialect-toy")) {
            sources(&folder, &mut files);
        }
    }
    let names_it = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap().to_ascii_lowercase();
        text.split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| word == "toy")
    };
    let found: Vec<_> = files.into_iter().filter(names_it).collect();
    assert_eq!(found, [crates.join(LIST_OF_LANGUAGES)]);
}

#[test]
fn word_is_found_in_code_and_comments() {
    let text = "fn a2a_task() -> A2aTask {} // over SSE\nlet grpcs = \"JSONRPC\"; // openwop\n";
    assert_eq!(
        named(text, &["openwop"]),
        [(1, "a2a"), (1, "A2a"), (1, "SSE"), (2, "JSONRPC")]
    );
}
