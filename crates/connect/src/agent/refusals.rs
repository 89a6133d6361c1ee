//! Answers that agents have refused, or after which they go on asking, until the look that asks their questions anew.
//!
//! They are in memory only. If the host dies in between, the question is asked anew all the same, without the agent's
//! words: an agent that goes on asking has ignored the answer.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The most refusals that wait for a look. It follows at once, so there are few.
const MAX_REFUSALS: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<Question, Refusal>>);

/// The peer, the task, and what its question is named by.
type Question = (String, String, String);

/// Why a question is asked anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The answer, so that the next one is refused anew.
    pub(super) answer: String,
    /// The agent's words, which are untrusted. `None` if it took the answer and goes on asking.
    pub(super) text: Option<String>,
}

impl Refusals {
    pub(super) fn note(&self, question: Question, refusal: Refusal) {
        let mut refusals = self.0.lock();
        if refusals.len() < MAX_REFUSALS || refusals.contains_key(&question) {
            refusals.insert(question, refusal);
        }
    }

    pub(super) fn take(&self, question: &Question) -> Option<Refusal> {
        self.0.lock().remove(question)
    }
}
