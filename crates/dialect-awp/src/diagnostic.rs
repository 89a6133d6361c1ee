//! What is wrong with a document, in the words of a JSON Schema validator.

use wopr_kernel::{MAX_PROBLEMS, Problem, Problems, Spot};

/// A rule that a document breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// JSON pointer (RFC 6901) of the value.
    pub instance_path: String,
    /// The keyword of the schema, or `profile` for a rule beyond it.
    pub keyword: &'static str,
    pub message: String,
}

/// All rules that a document breaks, the first ones of many.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    pub(crate) fn add(&mut self, at: impl Into<String>, keyword: &'static str, message: impl Into<String>) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push(Diagnostic {
                instance_path: at.into(),
                keyword,
                message: message.into(),
            });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds one before those that were found since there were `n`.
    pub(crate) fn add_before(&mut self, n: usize, diagnostic: Diagnostic) {
        self.0.insert(n.min(self.0.len()), diagnostic);
    }

    pub(crate) fn into_result<T>(self, value: T) -> Result<T, Vec<Diagnostic>> {
        match self.0.is_empty() {
            true => Ok(value),
            false => Err(self.0),
        }
    }
}

/// The same, as the problems of a definition.
pub(crate) fn problems(diagnostics: Vec<Diagnostic>) -> Problems {
    let problem = |diagnostic: Diagnostic| {
        let place = match diagnostic.instance_path.as_str() {
            "" => "document",
            path => path,
        };
        Problem {
            keyword: Some(diagnostic.keyword),
            ..Problem::new(place, diagnostic.message).at(diagnostic.instance_path.clone(), Spot::Value)
        }
    };
    Problems(diagnostics.into_iter().map(problem).collect())
}
