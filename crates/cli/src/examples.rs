//! The workflows of `examples/`, embedded in the binary for `dev`, `demo` and `run`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Example {
    /// The workflow id, which is also the file name.
    pub(crate) id: &'static str,
    /// The definition as JSON.
    pub(crate) text: &'static str,
}

macro_rules! examples {
    ($($id:literal),+ $(,)?) => {
        pub(crate) const ALL: &[Example] = &[$(Example {
            id: $id,
            text: include_str!(concat!("../../../examples/", $id, ".json")),
        }),+];
    };
}

examples!(
    "a2a-echo",
    "campaign-brief",
    "clarify-order",
    "hello",
    "nightly-report"
);

impl Example {
    pub(crate) fn document(self) -> Result<Value> {
        serde_json::from_str(self.text).with_context(|| format!("read the example {}", self.id))
    }
}

pub(crate) fn find(id: &str) -> Option<Example> {
    ALL.iter().copied().find(|example| example.id == id)
}

/// The workflows of `second-opinion`: of the host that asks, and of each of its agents.
pub(crate) mod second_opinion {
    use super::Example;

    pub(crate) const ASKS: Example = Example {
        id: "second-opinion",
        text: include_str!("../../../examples/second-opinion/second-opinion.json"),
    };
    pub(crate) const BUILDER: Example = Example {
        id: "estimate",
        text: include_str!("../../../examples/second-opinion/builder/estimate.json"),
    };
    pub(crate) const SCEPTIC: Example = Example {
        id: "doubt",
        text: include_str!("../../../examples/second-opinion/sceptic/doubt.json"),
    };
}

/// The workflows of `coding-crew`: the document, its tests, and the agent's.
pub(crate) mod coding_crew {
    use super::Example;

    pub(crate) const CREW: Example = Example {
        id: "coding-crew",
        text: include_str!("../../../examples/coding-crew/crew/coding-crew.json"),
    };
    pub(crate) const TESTS: Example = Example {
        id: "patch-tests",
        text: include_str!("../../../examples/coding-crew/crew/patch-tests.json"),
    };
    pub(crate) const CODER: Example = Example {
        id: "coder",
        text: include_str!("../../../examples/coding-crew/coder/coder.json"),
    };
    /// What holds for a run in process, with what the mock gives for the step that plans.
    pub(crate) const OPTIONS: &str = include_str!("../../../examples/coding-crew/options.json");
}

/// Writes examples into a folder, for `serve --workflows`.
pub(crate) fn write_to(folder: &Path, examples: &[Example]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for example in examples {
        let path = folder.join(format!("{}.json", example.id));
        fs::write(&path, example.text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wopr_core::{NodeTypes, Plan};

    use super::*;

    #[test]
    fn every_example_is_valid_and_named_by_its_id() {
        let of_agents = [
            second_opinion::ASKS,
            second_opinion::BUILDER,
            second_opinion::SCEPTIC,
            coding_crew::CREW,
            coding_crew::TESTS,
            coding_crew::CODER,
        ];
        for example in ALL.iter().chain(&of_agents) {
            let plan = Plan::admit(example.document().unwrap(), NodeTypes::default()).unwrap();
            assert_eq!(plan.id().as_str(), example.id);
        }
    }
}
