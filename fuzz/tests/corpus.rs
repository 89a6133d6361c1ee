//! The kept inputs, over every target, on any toolchain.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of a test fail it where they stand"
)]

use std::{
    collections::BTreeSet,
    fs, panic,
    path::{Path, PathBuf},
};

use serde_json::Value;
use wopr_core::{NodeTypes, definition_schema};
use wopr_fuzz::TARGETS;

/// All kept inputs together are no larger; what is, is minimised first.
const MAX_CORPUS: u64 = 2 << 20;
/// A single one is no larger.
const MAX_INPUT: u64 = 64 << 10;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_kept_input_keeps_every_promise() {
    for target in TARGETS {
        let inputs = files(&folder("corpus").join(target.name));
        assert!(inputs.len() > 1, "{} has inputs to start from", target.name);
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            let kept = panic::catch_unwind(|| (target.run)(&bytes));
            assert!(
                kept.is_ok(),
                "{} breaks a promise of {}",
                input.display(),
                target.name
            );
        }
    }
}

#[test]
fn every_target_has_a_corpus_and_nothing_is_left_over() {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    let stems = |folder: PathBuf| -> Vec<String> {
        let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        files(&folder).iter().map(stem).collect()
    };
    assert_eq!(stems(folder("corpus")), names);
    for name in stems(folder("dictionaries")) {
        assert!(names.contains(&name.as_str()), "{name} is no target");
    }
}

/// Collects the names of properties and the values of enums.
fn words(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            let properties = members.get("properties").and_then(Value::as_object);
            found.extend(
                properties
                    .into_iter()
                    .flat_map(|properties| properties.keys().cloned()),
            );
            let choices = members
                .get("enum")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            let choices = choices.chain(members.get("const")).filter_map(Value::as_str);
            found.extend(choices.map(str::to_owned));
            members.values().for_each(|member| words(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| words(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_dictionary_of_definitions_holds_every_word_of_their_schema() {
    let mut wanted = BTreeSet::new();
    words(&definition_schema(NodeTypes { conformance: true }), &mut wanted);
    let path = folder("dictionaries").join("definition.dict");
    let known = fs::read_to_string(path).unwrap();
    let known: BTreeSet<_> = known.lines().collect();
    let missing: Vec<_> = wanted.iter().map(|word| format!("{word:?}")).collect();
    let missing: Vec<_> = missing
        .iter()
        .filter(|word| !known.contains(word.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_corpus_stays_small() {
    let mut total = 0;
    for target in TARGETS {
        for input in files(&folder("corpus").join(target.name)) {
            let size = fs::metadata(&input).unwrap().len();
            assert!(size <= MAX_INPUT, "{} has {size} bytes", input.display());
            total += size;
        }
    }
    assert!(total <= MAX_CORPUS, "{total} bytes");
}
