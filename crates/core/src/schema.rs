//! JSON Schemas (2020-12) of documents that clients write.
//!
//! A schema becomes a flat list of subschemas, in which a `$ref` is an index: it takes memory in the order of its text,
//! whatever it refers to. What a validation does is counted and bounded, and so is what a schema may ask for: its size,
//! its patterns, how deep references lead on one value and to how many subschemas. References outside of the document
//! are refused; `format` is an annotation.

use std::cell::Cell;

use serde_json::Value;

use crate::{
    cost::Meter,
    pattern::{self, Pattern},
};

mod check;
mod compile;

pub(crate) use check::Invalid;

/// Most subschemas of one schema.
const MAX_SUBSCHEMAS: usize = 4_096;
/// Longest chain of subschemas that apply to one value, through references and `allOf` alike.
const MAX_CHAIN: usize = 64;
/// Most subschemas that apply to one value, each counted as often as it does.
const MAX_APPLIED: u64 = 4_096;

/// What all patterns of a workflow may take, in bytes.
const MAX_PATTERNS: usize = 1024 * 1024;
/// What reading all patterns of a workflow may take, in about microseconds.
const MAX_PATTERN_WORK: usize = 40_000;
/// What a pattern counts for that is refused.
const REFUSED_PATTERN: usize = 128 * 1024;
/// Most patterns of a workflow.
const MAX_PATTERN_COUNT: usize = 500;
/// Most subschemas of a workflow.
const MAX_ALL_SUBSCHEMAS: usize = 65_536;

/// What is left of what one workflow may take.
#[derive(Debug)]
pub(crate) struct Allowance {
    patterns: Cell<usize>,
    pattern_bytes: Cell<usize>,
    pattern_work: Cell<usize>,
    subschemas: Cell<usize>,
    /// Whether something was refused for want of room.
    is_exceeded: Cell<bool>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            patterns: Cell::new(MAX_PATTERN_COUNT),
            pattern_bytes: Cell::new(MAX_PATTERNS),
            pattern_work: Cell::new(MAX_PATTERN_WORK),
            subschemas: Cell::new(MAX_ALL_SUBSCHEMAS),
            is_exceeded: Cell::new(false),
        }
    }
}

impl Allowance {
    /// Compiles a pattern, if there is room for it.
    pub(crate) fn pattern(&self, source: &str) -> Result<Pattern, String> {
        let wrong = || format!("the workflow has more than {MAX_PATTERN_COUNT} patterns");
        self.take(&self.patterns, 1, wrong)?;
        let wrong = || format!("the compiled patterns of the workflow exceed {MAX_PATTERNS} bytes");
        self.take(&self.pattern_bytes, 1, wrong)?;
        let too_much = || "the patterns of the workflow name too many characters in their classes".to_owned();
        self.take(&self.pattern_work, 1, too_much)?;
        self.take(&self.pattern_work, pattern::work(source), too_much)?;
        let pattern = Pattern::parse(source).inspect_err(|_| {
            // It took about as much time as one that fits.
            let left = self.pattern_bytes.get().saturating_sub(REFUSED_PATTERN);
            self.pattern_bytes.set(left);
        })?;
        self.take(&self.pattern_bytes, pattern.size(), wrong)?;
        Ok(pattern)
    }

    /// What the patterns take that were compiled.
    pub(crate) fn pattern_bytes(&self) -> usize {
        MAX_PATTERNS - self.pattern_bytes.get()
    }

    /// Whether something was refused for want of room.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    fn subschema(&self) -> Result<(), String> {
        let wrong = || format!("the schemas of the workflow have more than {MAX_ALL_SUBSCHEMAS} subschemas");
        self.take(&self.subschemas, 1, wrong)
    }

    /// Takes; where there is too little left, nothing is left afterwards, and nothing more is tried.
    fn take(&self, left: &Cell<usize>, n: usize, wrong: impl FnOnce() -> String) -> Result<(), String> {
        match left.get().checked_sub(n) {
            Some(rest) => {
                left.set(rest);
                Ok(())
            }
            None => {
                left.set(0);
                self.is_exceeded.set(true);
                Err(wrong())
            }
        }
    }
}

/// A schema made ready to validate.
#[derive(Debug)]
pub(crate) struct Schema {
    subschemas: Vec<Vec<Rule>>,
    root: usize,
    /// Whether any subschema asks what others have looked at.
    marks: bool,
}

/// What a subschema asks.
#[derive(Debug)]
enum Rule {
    Never,
    Type(Vec<Kind>),
    Enum(Vec<Value>),
    Const(Value),
    MultipleOf(Value),
    Bound(Bound, Value),
    Length(Size, usize),
    Pattern(Box<Pattern>),
    Items(Size, usize),
    UniqueItems,
    Properties(Size, usize),
    Required(Vec<String>),
    DependentRequired(Vec<(String, Vec<String>)>),
    /// Items by their places, and those after them.
    ItemsAre {
        first: Vec<usize>,
        rest: Option<usize>,
    },
    Contains {
        schema: usize,
        least: usize,
        most: usize,
    },
    PropertiesAre {
        named: Vec<(String, usize)>,
        patterns: Vec<(Pattern, usize)>,
        rest: Option<usize>,
    },
    PropertyNames(usize),
    DependentSchemas(Vec<(String, usize)>),
    Ref(usize),
    AllOf(Vec<usize>),
    AnyOf(Vec<usize>),
    OneOf(Vec<usize>),
    Not(usize),
    If {
        test: usize,
        then: Option<usize>,
        otherwise: Option<usize>,
    },
    UnevaluatedItems(usize),
    UnevaluatedProperties(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    Boolean,
    Object,
    Array,
    Number,
    String,
    Integer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Minimum,
    ExclusiveMinimum,
    Maximum,
    ExclusiveMaximum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    AtLeast,
    AtMost,
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn compile(document: &Value, allowance: &Allowance) -> Result<Self, String> {
        compile::compile(document, allowance)
    }

    /// Checks a value.
    ///
    /// # Errors
    /// The first rule that it breaks, or that checking is more work than allowed.
    pub(crate) fn validate(&self, value: &Value, meter: &Meter<'_>) -> Result<(), Invalid> {
        check::validate(self, value, meter)
    }

    /// Checks a value, with a budget of its own.
    ///
    /// # Errors
    /// As [`Self::validate`].
    pub(crate) fn validate_alone(&self, value: &Value) -> Result<(), Invalid> {
        self.validate(value, &Meter::alone())
    }
}

#[cfg(test)]
mod tests;
