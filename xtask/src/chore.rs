//! The steps of each chore.

use anyhow::Result;

use crate::args::{Chore, Selection, USAGE};
use crate::chaos::{self, Amount, Store};
use crate::fuzz::{self, Effort};
use crate::plan::{self, Step};
use crate::sim::{self, Worlds};
use crate::{browser, clients, corpus, coverage, deny, lint, postgres, siege, suite, tidy, workspace};

/// Runs a chore from the workspace root, regardless of the current directory.
pub(crate) fn run(chore: Chore) -> Result<()> {
    workspace::enter()?;
    match chore {
        Chore::Test(selection) => plan::run(test(selection)),
        Chore::Chaos(amount) => plan::run(only_chaos(amount)),
        Chore::Siege(duration) => plan::run(only_siege(duration)),
        Chore::Simulate(worlds) => plan::run(sim::steps(worlds)),
        Chore::Fuzz(effort) => plan::run(fuzz::steps(effort)),
        Chore::Setup => plan::run(setup()),
        Chore::Postgres(words) => postgres::with(&words),
        Chore::Corpus(version) => plan::run(corpus::steps(version)),
        Chore::Coverage(packages) => plan::run(coverage::steps(packages)),
        Chore::Lint => plan::run(lint()),
        Chore::Tidy => plan::run(vec![Step::new("tidy", tidy::check)]),
        Chore::Features => plan::run(vec![Step::new("features", tidy::write_features)]),
        Chore::Help => {
            println!("{USAGE}");
            Ok(())
        }
    }
}

fn lint() -> Vec<Step> {
    let mut steps = lint_sources();
    steps.push(Step::new("dependency rules", deny::check));
    steps
}

fn lint_sources() -> Vec<Step> {
    vec![
        Step::new("lock file", lint::lock_file),
        Step::new("format", lint::format),
        Step::new("tidy", tidy::check),
        Step::new("clippy", lint::clippy),
    ]
}

/// The set-up of the tests that drive other people's clients.
const INTEROP: [&str; 2] = ["interop clients", "browser"];

fn setup() -> Vec<Step> {
    let [clients, browser] = INTEROP;
    vec![
        Step::new("cargo-deny", deny::set_up),
        Step::new(clients, clients::set_up),
        Step::new(browser, browser::set_up),
        Step::new("postgres", postgres::set_up),
        Step::new("libfaketime", chaos::set_up),
    ]
}

fn only_chaos(amount: Amount) -> Vec<Step> {
    let mut steps = vec![
        Step::new("postgres", postgres::set_up),
        Step::new("libfaketime", chaos::set_up),
    ];
    steps.extend(chaos::steps(amount));
    steps
}

fn only_siege(duration: siege::Duration) -> Vec<Step> {
    let mut steps = vec![Step::new("postgres", postgres::set_up)];
    steps.extend(siege::steps(duration));
    steps
}

// The set-up waits for the network, and Clippy and the build for processors.
fn test(selection: Selection) -> Vec<Step> {
    let mut steps = setup();
    if selection.without_interop {
        steps.retain(|step| !INTEROP.contains(&step.name()));
    }
    let mut steps: Vec<_> = steps.into_iter().map(Step::beside).collect();
    steps.extend(lint_sources());
    // A filter selects specific tests, so the long steps are skipped.
    let is_long = !selection.is_quick && selection.filter.is_none();
    let left_out = if is_long { in_long_steps() } else { Vec::new() };
    steps.extend([
        Step::new("build", suite::build),
        Step::new("dependency rules", deny::check).after_set_up(),
        Step::new("tests", move || suite::test(&selection, &left_out)),
        Step::new("doc tests", suite::doc_tests),
        Step::new("docs", suite::docs),
    ]);
    if is_long {
        steps.extend(sim::steps(Worlds::default()));
        steps.extend(fuzz::steps(Effort::default()));
        steps.extend(chaos::steps(Amount::default()));
        steps.push(siege::step(siege::Duration::default()));
    }
    steps
}

/// The tests that the long steps of a full test run contain, with more of what they do.
fn in_long_steps() -> Vec<&'static str> {
    let chaos = Store::ALL.into_iter().flat_map(Store::tests);
    chaos.chain([sim::TEST]).collect()
}
