//! Expressions and templates of workflow definitions.
//!
//! OpenWOP leaves the expression language open; wopr's is a part of Jinja's: paths, literals, comparisons,
//! `and`/`or`/`not`, filters, `if` and `for`, without assignments. It is evaluated here, over values that are lent from
//! the run, and every step pays for what it touches and makes (docs/adr/0009). It has no I/O and no clock, and sees
//! `variables`, `inputs`, `nodes` (outputs by node id), `output`, `status`, and every variable by its bare name. A missing
//! name is undefined, not an error.

use std::{fmt, sync::Arc};

use serde_json::Value;

use crate::{
    cost::{Budget, Exhausted, Meter},
    run::Context,
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
pub(crate) use value::{Fields, Map, Scope, Text, Val, compare_numbers};

/// Longest source text of an expression.
const MAX_EXPRESSION: usize = 8 * 1024;
/// Longest source text of a template.
const MAX_SOURCE: usize = 64 * 1024;
/// Longest rendered text, and about the largest value of an expression.
const MAX_OUTPUT: usize = 1024 * 1024;

/// Why a source cannot be used or an evaluation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Not in the language.
    #[error("parse the expression: {0}")]
    Syntax(String),
    /// Evaluation failed.
    #[error("evaluate the expression: {0}")]
    Evaluation(String),
    /// Source or result is too long.
    #[error("stay within {0} bytes")]
    TooLong(usize),
    /// The evaluation, or all of its decision, is more work than allowed.
    #[error("the evaluation is more work than one evaluation, or one decision, may do")]
    TooMuchWork,
}

impl From<Exhausted> for ExpressionError {
    fn from(Exhausted: Exhausted) -> Self {
        Self::TooMuchWork
    }
}

/// An expression whose syntax has been checked.
#[derive(Clone)]
pub struct Expression {
    source: String,
    /// Where `source` begins in what was parsed.
    offset: usize,
    tree: Arc<Expr>,
}

impl Expression {
    /// Checks the syntax. A source wrapped in `{{ … }}` is accepted as the expression inside.
    ///
    /// # Errors
    /// [`ExpressionError::Syntax`] or [`ExpressionError::TooLong`].
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

    /// Evaluates to JSON; undefined is `None`.
    ///
    /// # Errors
    /// [`ExpressionError::Evaluation`], [`ExpressionError::TooMuchWork`], or [`ExpressionError::TooLong`] for a result
    /// that is too large.
    pub fn evaluate(&self, context: &Value) -> Result<Option<Value>, ExpressionError> {
        self.value(&context, &Meter::alone())
    }

    /// Evaluates to whether the value counts as true.
    ///
    /// # Errors
    /// [`ExpressionError::Evaluation`] or [`ExpressionError::TooMuchWork`].
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

    /// What it comes to where nothing has a name; undefined is `None`.
    pub(crate) fn always(&self, budget: &Budget) -> Result<Option<Value>, ExpressionError> {
        self.value(&&Value::Null, &budget.meter())
    }

    /// Whether it counts as true where nothing has a name.
    pub(crate) fn always_holds(&self, budget: &Budget) -> Result<bool, ExpressionError> {
        let meter = budget.meter();
        Ok(Machine::new(&&Value::Null, &meter)
            .eval(&self.tree)?
            .is_true(&meter)?)
    }

    /// Asks something of the value, which is not copied for it.
    pub(crate) fn ask<'a, T>(
        &'a self,
        context: &Context<'a>,
        meter: &Meter<'_>,
        question: impl FnOnce(&Val<'a>) -> Result<T, ExpressionError>,
    ) -> Result<T, ExpressionError> {
        let value = Machine::new(context, meter).eval(&self.tree)?;
        question(&value)
    }

    /// Every path it reads, with the place in the source that it was parsed from.
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

/// A text template whose syntax has been checked.
#[derive(Clone)]
pub struct Template {
    source: String,
    statements: Arc<[Statement]>,
}

impl Template {
    /// Checks the syntax.
    ///
    /// # Errors
    /// [`ExpressionError::Syntax`] or [`ExpressionError::TooLong`].
    pub fn parse(source: &str) -> Result<Self, ExpressionError> {
        within(source.len(), MAX_SOURCE)?;
        Ok(Self {
            source: source.to_owned(),
            statements: parse::template(source)?.into(),
        })
    }

    /// Renders the template.
    ///
    /// # Errors
    /// [`ExpressionError::Evaluation`], [`ExpressionError::TooMuchWork`] or [`ExpressionError::TooLong`].
    pub fn render(&self, context: &Value) -> Result<String, ExpressionError> {
        self.render_with(&context, &Meter::alone())
    }

    /// Every path it reads, with its place in the source.
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

/// Whether a text has anything to render.
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
