//! JSON Schemas (2020-12) in documents that clients write.
//!
//! A schema compiles to a flat list of subschemas in which a `$ref` is an index, so its memory is
//! proportional to its text, whatever it refers to. The work of a validation is counted and limited. The
//! schema itself is limited, too: its size, its patterns, and the length and number of reference chains that
//! apply to one value. References outside the document are refused; `format` is only an annotation.

use std::cell::Cell;

use serde_json::Value;
use wopr_kernel::{AnswerSchema, measure::value_size};

use crate::{
    cost::Meter,
    pattern::{self, Pattern},
};

mod check;
mod compile;

pub use check::Invalid;

/// Maximum number of subschemas in one schema.
const MAX_SUBSCHEMAS: usize = 4_096;
/// Maximum length of a chain of subschemas that apply to one value, through references and `allOf` alike.
const MAX_CHAIN: usize = 64;
/// Maximum number of subschemas that apply to one value, counting each as often as it applies.
const MAX_APPLIED: u64 = 4_096;

/// Maximum memory of all patterns in a workflow, in bytes.
const MAX_PATTERNS: usize = 1024 * 1024;
/// Maximum time for parsing all patterns in a workflow, in approximate microseconds.
const MAX_PATTERN_WORK: usize = 40_000;
/// Bytes that a refused pattern counts for.
const REFUSED_PATTERN: usize = 128 * 1024;
/// Maximum number of patterns in a workflow.
const MAX_PATTERN_COUNT: usize = 500;
/// Maximum memory of the compiled expressions, templates and schemas of a workflow, in bytes.
const MAX_COMPILED: usize = 16 * 1024 * 1024;
/// Maximum number of subschemas in a workflow.
const MAX_ALL_SUBSCHEMAS: usize = 65_536;

/// The remaining allowance of one workflow for patterns, schemas, expressions and templates.
#[derive(Debug)]
pub struct Allowance {
    patterns: Cell<usize>,
    pattern_bytes: Cell<usize>,
    pattern_work: Cell<usize>,
    subschemas: Cell<usize>,
    compiled: Cell<usize>,
    /// Whether anything was refused because the allowance was used up.
    is_exceeded: Cell<bool>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            patterns: Cell::new(MAX_PATTERN_COUNT),
            pattern_bytes: Cell::new(MAX_PATTERNS),
            pattern_work: Cell::new(MAX_PATTERN_WORK),
            subschemas: Cell::new(MAX_ALL_SUBSCHEMAS),
            compiled: Cell::new(MAX_COMPILED),
            is_exceeded: Cell::new(false),
        }
    }
}

impl Allowance {
    /// Compiles a pattern if the allowance has room for it.
    pub fn pattern(&self, source: &str) -> Result<Pattern, String> {
        let wrong = || format!("the workflow has more than {MAX_PATTERN_COUNT} patterns");
        self.take(&self.patterns, 1, wrong)?;
        let wrong = || format!("the compiled patterns of the workflow exceed {MAX_PATTERNS} bytes");
        self.take(&self.pattern_bytes, 1, wrong)?;
        let too_much = || "the patterns of the workflow name too many characters in their classes".to_owned();
        self.take(&self.pattern_work, 1, too_much)?;
        self.take(&self.pattern_work, pattern::work(source), too_much)?;
        let pattern = Pattern::parse(source).inspect_err(|_| {
            // Compiling a refused pattern took about as much time as one that fits.
            let left = self.pattern_bytes.get().saturating_sub(REFUSED_PATTERN);
            self.pattern_bytes.set(left);
        })?;
        self.take(&self.pattern_bytes, pattern.size(), wrong)?;
        Ok(pattern)
    }

    /// What compiling took of it, in approximate microseconds.
    pub fn spent(&self) -> u64 {
        let patterns = MAX_PATTERN_WORK - self.pattern_work.get();
        let subschemas = MAX_ALL_SUBSCHEMAS - self.subschemas.get();
        (patterns + subschemas) as u64
    }

    /// The memory of all compiled patterns.
    pub fn pattern_bytes(&self) -> usize {
        MAX_PATTERNS - self.pattern_bytes.get()
    }

    /// Takes the memory of something compiled from the allowance.
    pub fn compiled(&self, n_bytes: usize) -> Result<(), String> {
        let wrong = || {
            format!(
                "the compiled expressions, templates and schemas of the workflow exceed {MAX_COMPILED} bytes"
            )
        };
        self.take(&self.compiled, n_bytes, wrong)
    }

    /// The memory of all that was compiled, in bytes.
    pub fn compiled_bytes(&self) -> usize {
        self.pattern_bytes() + MAX_COMPILED - self.compiled.get()
    }

    /// Whether anything was refused because the allowance was used up.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    fn subschema(&self) -> Result<(), String> {
        let wrong = || format!("the schemas of the workflow have more than {MAX_ALL_SUBSCHEMAS} subschemas");
        self.take(&self.subschemas, 1, wrong)
    }

    /// Takes `n` from the allowance. If less is left, fails and leaves nothing, so that everything after it
    /// fails as well.
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

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    subschemas: Vec<Vec<Rule>>,
    root: usize,
    /// Whether any subschema depends on what others have evaluated.
    marks: bool,
}

/// One assertion or applicator of a subschema.
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
    /// Schemas of the first items by position, and the schema of the remaining ones.
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
    /// Compiles a schema; the error says what is wrong with it.
    pub fn compile(document: &Value, allowance: &Allowance) -> Result<Self, String> {
        let schema = compile::compile(document, allowance)?;
        allowance.compiled(schema.n_bytes())?;
        Ok(schema)
    }

    /// The memory that it takes without its patterns, in bytes.
    fn n_bytes(&self) -> usize {
        let rules = self.subschemas.iter().flatten();
        size_of_val(&*self.subschemas) + rules.map(Rule::n_bytes).sum::<usize>()
    }

    /// Validates a value; fails with the first rule that it breaks, or if the work exceeds its limit.
    pub fn validate(&self, value: &Value, meter: &Meter<'_>) -> Result<(), Invalid> {
        check::validate(self, value, meter)
    }

    /// Like [`Self::validate`], with a budget of its own.
    pub fn validate_alone(&self, value: &Value) -> Result<(), Invalid> {
        self.validate(value, &Meter::alone())
    }
}

impl Rule {
    /// The memory that it takes without its patterns, in bytes.
    fn n_bytes(&self) -> usize {
        let names = |names: &[String]| names.iter().map(|name| size_of::<String>() + name.len()).sum();
        let named = |schemas: &[(String, usize)]| {
            let each = schemas.iter();
            each.map(|(name, _)| size_of::<(String, usize)>() + name.len())
                .sum()
        };
        let behind: usize = match self {
            Self::Never
            | Self::MultipleOf(_)
            | Self::Bound(..)
            | Self::Length(..)
            | Self::Pattern(_)
            | Self::Items(..)
            | Self::UniqueItems
            | Self::Properties(..)
            | Self::Contains { .. }
            | Self::PropertyNames(_)
            | Self::Ref(_)
            | Self::Not(_)
            | Self::If { .. }
            | Self::UnevaluatedItems(_)
            | Self::UnevaluatedProperties(_) => 0,
            Self::Type(kinds) => size_of_val(&**kinds),
            Self::Enum(values) => values.iter().map(value_size).sum(),
            Self::Const(value) => value_size(value),
            Self::Required(required) => names(required),
            Self::DependentRequired(lists) => lists
                .iter()
                .map(|(name, list)| size_of::<(String, Vec<String>)>() + name.len() + names(list))
                .sum(),
            Self::ItemsAre { first, rest: _ } => size_of_val(&**first),
            Self::PropertiesAre {
                named: fields,
                patterns,
                rest: _,
            } => named(fields) + size_of_val(&**patterns),
            Self::DependentSchemas(schemas) => named(schemas),
            Self::AllOf(schemas) | Self::AnyOf(schemas) | Self::OneOf(schemas) => size_of_val(&**schemas),
        };
        size_of::<Self>() + behind
    }
}

impl AnswerSchema for Schema {
    fn check(&self, value: &Value, meter: &Meter<'_>) -> Result<(), String> {
        self.validate(value, meter).map_err(|error| error.to_string())
    }
}

/// Why a value is not held against a schema, or does not match it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaProblem {
    /// The schema is not one that this host reads, or would take too much work.
    #[error("the schema is not readable: {0}")]
    Schema(String),
    #[error("{0}")]
    Value(String),
}

/// Holds a value against a schema that somebody else wrote, with bounds for both.
///
/// # Errors
/// Says which of the two is wrong, and why.
pub fn check_schema(schema: &Value, value: &Value) -> Result<(), SchemaProblem> {
    let compiled = Schema::compile(schema, &Allowance::default()).map_err(SchemaProblem::Schema)?;
    compiled.validate_alone(value).map_err(|invalid| match invalid {
        Invalid::Broken { .. } => SchemaProblem::Value(invalid.to_string()),
        Invalid::TooMuchWork => SchemaProblem::Schema(invalid.to_string()),
    })
}

#[cfg(test)]
mod tests;
