//! Expressions and templates of workflow definitions.
//!
//! OpenWOP leaves the expression language open. wopr implements a subset of Jinja: paths, literals,
//! comparisons, `and`/`or`/`not`, filters, `if` and `for`, but no assignments. Evaluation works on values
//! borrowed from the run, and every step is charged for what it reads and creates (docs/adr/0009). The
//! language has no I/O and no clock. An expression sees `variables`, `inputs`, `nodes` (outputs by node id),
//! `output`, `status`, and every variable by its bare name. A missing name is undefined, not an error.

use std::{fmt, sync::Arc};

use serde_json::Value;

use crate::{
    context::Context,
    cost::{Budget, Exhausted, Meter},
    schema::Allowance,
};

mod ast;
mod eval;
mod filters;
mod lex;
mod out;
mod parse;
mod predicates;
mod reads;
mod value;

use ast::{Expr, Statement};
use eval::Machine;
pub(crate) use out::Out;
pub use reads::Read;
pub(crate) use value::{Fields, Map, Scope, Text, Val};

/// Maximum length of an expression's source, in bytes.
const MAX_EXPRESSION: usize = 8 * 1024;
/// Maximum length of a template's source, in bytes.
const MAX_SOURCE: usize = 64 * 1024;
/// Maximum size of a rendered text, and approximately of an expression's value, in bytes.
const MAX_OUTPUT: usize = 1024 * 1024;

/// What an expression or a template takes besides its source and what its tree points to: the root of the tree with
/// its count of owners, and its own place.
const SHARED: usize = 128;

/// Why a source is invalid or its evaluation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("parse the expression: {0}")]
    Syntax(String),
    #[error("evaluate the expression: {0}")]
    Evaluation(String),
    /// The source or the result is too long.
    #[error("stay within {0} bytes")]
    TooLong(usize),
    /// The work would exceed the limit of the evaluation or of its decision.
    #[error("the evaluation is more work than one evaluation, or one decision, may do")]
    TooMuchWork,
}

impl From<Exhausted> for ExpressionError {
    fn from(Exhausted: Exhausted) -> Self {
        Self::TooMuchWork
    }
}

/// A parsed expression.
#[derive(Clone)]
pub struct Expression {
    source: String,
    /// The offset of `source` in the parsed text.
    offset: usize,
    tree: Arc<Expr>,
}

impl Expression {
    /// Parses an expression. A source wrapped in `{{ … }}` is accepted as the expression inside.
    pub fn parse(source: &str) -> Result<Self, ExpressionError> {
        let trimmed = source.trim();
        let inner = trimmed
            .strip_prefix("{{")
            .and_then(|s| s.strip_suffix("}}"))
            .unwrap_or(trimmed)
            .trim();
        within(inner.len(), MAX_EXPRESSION)?;
        Ok(Self {
            source: inner.to_owned(),
            offset: source.find(inner).unwrap_or(0),
            tree: Arc::new(parse::expression(inner)?),
        })
    }

    /// Parses an expression of a workflow, as far as its allowance goes.
    pub(crate) fn compile(source: &str, allowance: &Allowance) -> Result<Self, ExpressionError> {
        let expression = Self::parse(source)?;
        let n_bytes = SHARED + expression.source.len() + expression.tree.heap();
        allowance.compiled(n_bytes).map_err(ExpressionError::Syntax)?;
        Ok(expression)
    }

    /// Evaluates to JSON; undefined is `None`. A result that is too large is an error.
    pub fn evaluate(&self, context: &Value) -> Result<Option<Value>, ExpressionError> {
        self.value(&context, &Meter::alone())
    }

    /// Evaluates the expression and returns whether its value is truthy.
    pub fn holds(&self, context: &Value) -> Result<bool, ExpressionError> {
        let meter = Meter::alone();
        Ok(Machine::new(&context, &meter).eval(&self.tree)?.is_true(&meter)?)
    }

    pub(crate) fn evaluate_in(
        &self,
        context: &Context<'_>,
        budget: &Budget,
    ) -> Result<Option<Value>, ExpressionError> {
        self.value(context, &budget.meter())
    }

    pub(crate) fn holds_in(&self, context: &Context<'_>, budget: &Budget) -> Result<bool, ExpressionError> {
        let meter = budget.meter();
        Ok(Machine::new(context, &meter).eval(&self.tree)?.is_true(&meter)?)
    }

    /// Evaluates the expression in an empty scope; undefined is `None`.
    pub(crate) fn always(&self, budget: &Budget) -> Result<Option<Value>, ExpressionError> {
        self.value(&&Value::Null, &budget.meter())
    }

    /// Whether the expression is truthy in an empty scope.
    pub(crate) fn always_holds(&self, budget: &Budget) -> Result<bool, ExpressionError> {
        let meter = budget.meter();
        Ok(Machine::new(&&Value::Null, &meter)
            .eval(&self.tree)?
            .is_true(&meter)?)
    }

    /// Evaluates the expression and passes its value to `question` without copying it.
    pub(crate) fn ask<'a, T>(
        &'a self,
        context: &Context<'a>,
        meter: &Meter<'_>,
        question: impl FnOnce(&Val<'a>) -> Result<T, ExpressionError>,
    ) -> Result<T, ExpressionError> {
        let value = Machine::new(context, meter).eval(&self.tree)?;
        question(&value)
    }

    /// Every path that the expression reads, with its position in the parsed text.
    #[must_use]
    pub fn reads(&self) -> Vec<Read> {
        let mut reads = Vec::new();
        reads::of_expression(&self.tree, self.offset, &mut reads);
        reads
    }

    fn value<'a>(
        &'a self,
        scope: &dyn Scope<'a>,
        meter: &Meter<'_>,
    ) -> Result<Option<Value>, ExpressionError> {
        let value = Machine::new(scope, meter).eval(&self.tree)?;
        if value.is_undefined() {
            return Ok(None);
        }
        value.to_json(meter).map(Some)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// A parsed text template.
#[derive(Clone)]
pub struct Template {
    source: String,
    statements: Arc<[Statement]>,
}

impl Template {
    pub fn parse(source: &str) -> Result<Self, ExpressionError> {
        within(source.len(), MAX_SOURCE)?;
        Ok(Self {
            source: source.to_owned(),
            statements: parse::template(source)?.into(),
        })
    }

    /// Parses a template of a workflow, as far as its allowance goes.
    pub(crate) fn compile(source: &str, allowance: &Allowance) -> Result<Self, ExpressionError> {
        let template = Self::parse(source)?;
        let n_bytes = SHARED + template.source.len() + ast::statements(&template.statements);
        allowance.compiled(n_bytes).map_err(ExpressionError::Syntax)?;
        Ok(template)
    }

    /// Renders the template.
    pub fn render(&self, context: &Value) -> Result<String, ExpressionError> {
        self.render_with(&context, &Meter::alone())
    }

    /// Every path that the template reads, with its position in the source.
    #[must_use]
    pub fn reads(&self) -> Vec<Read> {
        let mut reads = Vec::new();
        reads::of_template(&self.statements, &mut reads);
        reads
    }

    pub(crate) fn render_in(
        &self,
        context: &Context<'_>,
        budget: &Budget,
    ) -> Result<String, ExpressionError> {
        self.render_with(context, &budget.meter())
    }

    /// Renders the template for a reader who has to tell its own text from what it prints. `fenced` gets each printed
    /// text with the paths that it was read from; a loop variable is the path `loop`.
    pub(crate) fn render_fenced(
        &self,
        context: &Context<'_>,
        budget: &Budget,
        fenced: &dyn Fn(&[Read], String) -> String,
    ) -> Result<String, ExpressionError> {
        let meter = budget.meter();
        let mut out = Out::new(&meter);
        Machine::new(context, &meter)
            .with_fence(fenced)
            .render(&self.statements, &mut out)?;
        out.finish()
    }

    fn render_with<'a>(
        &'a self,
        scope: &dyn Scope<'a>,
        meter: &Meter<'_>,
    ) -> Result<String, ExpressionError> {
        let mut out = Out::new(meter);
        Machine::new(scope, meter).render(&self.statements, &mut out)?;
        out.finish()
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Template {}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.source).finish()
    }
}

impl<'a> Scope<'a> for &'a Value {
    fn get(&self, name: &str) -> Option<Val<'a>> {
        Value::get(self, name).map(Val::of)
    }
}

/// Whether a text has template syntax.
#[must_use]
pub(crate) fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

fn within(len: usize, max: usize) -> Result<(), ExpressionError> {
    if len > max {
        Err(ExpressionError::TooLong(max))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
