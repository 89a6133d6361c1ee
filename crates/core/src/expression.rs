//! Expressions and templates of workflow definitions.
//!
//! OpenWOP leaves the expression language open; wopr's is Jinja's (minijinja): paths, literals,
//! comparisons, `and`/`or`/`not`, filters. Evaluation is bounded by fuel, has no I/O and no clock,
//! and sees `variables`, `inputs`, `nodes` (outputs by node id), `output`, `status`, and every variable by
//! its bare name. A missing name is undefined, not an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock},
};

use minijinja::{Environment, UndefinedBehavior, Value as Dynamic, value::Serde};
use serde_json::Value;

use crate::{measure::size_of, run::Context};

/// Instructions one evaluation may use; a template of ordinary size uses hundreds.
const FUEL: u64 = 200_000;
/// Longest source text of an expression; what one evaluation can build grows with it.
const MAX_EXPRESSION: usize = 8 * 1024;
/// Longest source text of a template.
const MAX_SOURCE: usize = 64 * 1024;
/// Longest rendered text, and about the largest value of an expression.
const MAX_OUTPUT: usize = 1024 * 1024;

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(FUEL));
    environment
});

/// Why a source cannot be used or an evaluation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Not in the language.
    #[error("parse the expression: {0}")]
    Syntax(String),
    /// Evaluation failed or used up its fuel.
    #[error("evaluate the expression: {0}")]
    Evaluation(String),
    /// Source or result is too long.
    #[error("stay within {0} bytes")]
    TooLong(usize),
}

/// An expression whose syntax has been checked.
#[derive(Clone)]
pub struct Expression {
    source: String,
    compiled: Arc<minijinja::Expression<'static, 'static>>,
    /// The words it may read as names.
    names: Arc<[String]>,
}

impl Expression {
    /// Checks the syntax. A source wrapped in `{{ … }}` is accepted as the expression inside.
    ///
    /// # Errors
    /// [`ExpressionError::Syntax`] or [`ExpressionError::TooLong`].
    pub fn parse(source: &str) -> Result<Self, ExpressionError> {
        let inner = source.trim();
        let inner = inner
            .strip_prefix("{{")
            .and_then(|s| s.strip_suffix("}}"))
            .unwrap_or(inner)
            .trim();
        within(inner.len(), MAX_EXPRESSION)?;
        let compiled = ENVIRONMENT
            .compile_expression_owned(inner.to_owned())
            .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        Ok(Self {
            source: inner.to_owned(),
            names: names_in(inner),
            compiled: Arc::new(compiled),
        })
    }

    /// Evaluates to JSON; undefined is `None`.
    ///
    /// # Errors
    /// [`ExpressionError::Evaluation`], or [`ExpressionError::TooLong`] for a result that is too large.
    pub fn evaluate(&self, context: &Value) -> Result<Option<Value>, ExpressionError> {
        to_json(&self.eval(Dynamic::from(Serde(context)))?)
    }

    /// Evaluates to whether the value counts as true.
    ///
    /// # Errors
    /// [`ExpressionError::Evaluation`].
    pub fn holds(&self, context: &Value) -> Result<bool, ExpressionError> {
        Ok(self.eval(Dynamic::from(Serde(context)))?.is_true())
    }

    pub(crate) fn evaluate_in(&self, context: &Context<'_>) -> Result<Option<Value>, ExpressionError> {
        to_json(&self.eval(pick(&self.names, context))?)
    }

    pub(crate) fn holds_in(&self, context: &Context<'_>) -> Result<bool, ExpressionError> {
        Ok(self.eval(pick(&self.names, context))?.is_true())
    }

    fn eval(&self, context: Dynamic) -> Result<Dynamic, ExpressionError> {
        self.compiled
            .eval(context)
            .map_err(|e| ExpressionError::Evaluation(describe(&e)))
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    source: String,
    /// The words it may read as names.
    names: Arc<[String]>,
}

impl Template {
    /// Checks the syntax.
    ///
    /// # Errors
    /// [`ExpressionError::Syntax`] or [`ExpressionError::TooLong`].
    pub fn parse(source: &str) -> Result<Self, ExpressionError> {
        within(source.len(), MAX_SOURCE)?;
        ENVIRONMENT
            .template_from_str(source)
            .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        Ok(Self {
            source: source.to_owned(),
            names: names_in(source),
        })
    }

    /// Renders the template.
    ///
    /// # Errors
    /// [`ExpressionError::Evaluation`] or [`ExpressionError::TooLong`].
    pub fn render(&self, context: &Value) -> Result<String, ExpressionError> {
        self.render_with(Dynamic::from(Serde(context)))
    }

    pub(crate) fn render_in(&self, context: &Context<'_>) -> Result<String, ExpressionError> {
        self.render_with(pick(&self.names, context))
    }

    fn render_with(&self, context: Dynamic) -> Result<String, ExpressionError> {
        let template = ENVIRONMENT
            .template_from_str(&self.source)
            .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        let mut out = Bounded { text: Vec::new() };
        match template.render_captured_to(context, &mut out) {
            Ok(_) => String::from_utf8(out.text).map_err(|e| ExpressionError::Evaluation(e.to_string())),
            Err(_) if out.text.len() >= MAX_OUTPUT => Err(ExpressionError::TooLong(MAX_OUTPUT)),
            Err(error) => Err(ExpressionError::Evaluation(describe(&error))),
        }
    }
}

/// Every word of a source that could be a name. minijinja's own analysis overlooks names that a `set` of the
/// same name reads.
fn names_in(source: &str) -> Arc<[String]> {
    let words = source.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let names: BTreeSet<_> = words
        .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        .collect();
    names.into_iter().map(ToOwned::to_owned).collect()
}

/// The values of the names among words.
fn pick(names: &[String], context: &Context<'_>) -> Dynamic {
    let known = names
        .iter()
        .filter_map(|name| Some((name.clone(), context.get(name)?)));
    Dynamic::from(known.collect::<BTreeMap<_, _>>())
}

fn to_json(value: &Dynamic) -> Result<Option<Value>, ExpressionError> {
    if value.is_undefined() {
        return Ok(None);
    }
    let json = serde_json::to_value(value).map_err(|e| ExpressionError::Evaluation(e.to_string()))?;
    // Ten assignments of a doubled text would otherwise exhaust the memory of the process.
    within(size_of(&json), MAX_OUTPUT)?;
    Ok(Some(json))
}

/// Whether a text has anything to render.
#[must_use]
pub(crate) fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

struct Bounded {
    text: Vec<u8>,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > MAX_OUTPUT {
            self.text.resize(MAX_OUTPUT, b' ');
            return Err(std::io::Error::other("rendered text too long"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn within(len: usize, max: usize) -> Result<(), ExpressionError> {
    if len > max {
        Err(ExpressionError::TooLong(max))
    } else {
        Ok(())
    }
}

fn describe(error: &minijinja::Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn evaluates_paths_comparisons_and_text() {
        let context = json!({"variables": {"n": 3}, "n": 3, "output": {"approved": true}, "who": "Ada"});
        let value = |source: &str| {
            Expression::parse(source)
                .expect(source)
                .evaluate(&context)
                .expect(source)
        };
        assert_eq!(value("n + 1"), Some(json!(4)));
        assert_eq!(value("{{ output.approved and n > 2 }}"), Some(json!(true)));
        assert_eq!(value("'hello ' ~ who"), Some(json!("hello Ada")));
        assert_eq!(value("missing.deep.path"), None);
        assert_eq!(
            Template::parse("Hi {{ who }}").expect("valid").render(&context),
            Ok("Hi Ada".to_owned())
        );
    }

    #[test]
    fn hostile_sources_are_refused_not_fatal() {
        assert!(matches!(
            Expression::parse("a ||| b"),
            Err(ExpressionError::Syntax(_))
        ));
        assert!(Expression::parse(&"(".repeat(50_000)).is_err());
        assert!(Expression::parse(&"not ".repeat(16_000)).is_err());
        assert!(matches!(
            Expression::parse(&"a".repeat(70_000)),
            Err(ExpressionError::TooLong(_))
        ));
        let endless =
            Template::parse("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}")
                .expect("valid");
        assert!(endless.render(&json!({})).is_err());
        let huge = Template::parse("{% for a in range(9000) %}{{ t }}{% endfor %}").expect("valid");
        assert_eq!(
            huge.render(&json!({"t": "x".repeat(1000)})),
            Err(ExpressionError::TooLong(MAX_OUTPUT))
        );
    }
}
