//! Expressions and templates of workflow definitions.
//!
//! OpenWOP leaves the expression language open; wopr's is Jinja's (minijinja): paths, literals,
//! comparisons, `and`/`or`/`not`, filters, `if` and `for`, without assignments. Evaluation is bounded in steps and
//! in memory, has no I/O and no clock, and sees `variables`, `inputs`, `nodes` (outputs by node id), `output`, `status`, and every variable by
//! its bare name. A missing name is undefined, not an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock},
};

use minijinja::{Environment, UndefinedBehavior, Value as Dynamic, value::Serde};
use serde_json::Value;

use crate::{measure::size_of, run::Context};

mod filters;
mod scan;

use scan::Scan;

/// Instructions one evaluation may use; a template of ordinary size uses hundreds.
const FUEL: u64 = 50_000;
/// Longest source text of an expression; what one evaluation can build grows with it.
const MAX_EXPRESSION: usize = 8 * 1024;
/// Longest source text of a template.
const MAX_SOURCE: usize = 64 * 1024;
/// Longest rendered text, and about the largest value of an expression.
const MAX_OUTPUT: usize = 1024 * 1024;

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::empty();
    filters::add(&mut environment);
    environment.set_formatter(filters::print);
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
    scan: Arc<Scan>,
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
        if has_no_products(inner) {
            // What the author wrote is parsed first: its errors are the ones to tell.
            ENVIRONMENT
                .compile_expression(inner)
                .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        }
        let scan = Scan::expression(inner)?;
        let compiled = ENVIRONMENT
            .compile_expression_owned(scan.source.clone())
            .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        Ok(Self {
            source: inner.to_owned(),
            scan: Arc::new(scan),
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
        check(&self.scan, &context)?;
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
    scan: Arc<Scan>,
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
        if has_no_products(source) {
            ENVIRONMENT
                .template_from_str(source)
                .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        }
        let scan = Scan::template(source)?;
        ENVIRONMENT
            .template_from_str(&scan.source)
            .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        Ok(Self {
            source: source.to_owned(),
            scan: Arc::new(scan),
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
        check(&self.scan, &context)?;
        let template = ENVIRONMENT
            .template_from_str(&self.scan.source)
            .map_err(|e| ExpressionError::Syntax(describe(&e)))?;
        let mut out = Bounded { text: Vec::new() };
        match template.render_captured_to(context, &mut out) {
            Ok(_) => String::from_utf8(out.text).map_err(|e| ExpressionError::Evaluation(e.to_string())),
            Err(_) if out.text.len() >= MAX_OUTPUT => Err(ExpressionError::TooLong(MAX_OUTPUT)),
            Err(error) => Err(ExpressionError::Evaluation(describe(&error))),
        }
    }
}

/// Claims that minijinja compiles a source as its author wrote it without filling the memory: it works out products of
/// constants there, and that of a short text and a number may have a hundred megabytes.
fn has_no_products(source: &str) -> bool {
    !source.contains('*')
}

/// Every word of a source that could be a name.
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

/// Refuses what could build values too large from what it sees.
fn check(scan: &Scan, context: &Dynamic) -> Result<(), ExpressionError> {
    if !scan.builds() {
        return Ok(());
    }
    scan.check(|name| match context.get_attr(name) {
        Ok(value) if value.is_undefined() => 0,
        Ok(value) => filters::size_of(&value),
        Err(_) => 0,
    })
}

fn to_json(value: &Dynamic) -> Result<Option<Value>, ExpressionError> {
    if value.is_undefined() {
        return Ok(None);
    }
    let json = serde_json::to_value(value).map_err(|e| ExpressionError::Evaluation(e.to_string()))?;
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
            Template::parse("{% for a in range(999) %}{% for b in range(999) %}x{% endfor %}{% endfor %}")
                .expect("valid");
        assert!(endless.render(&json!({})).is_err());
        let huge = Template::parse("{% for a in range(1000) %}{{ t }}{% endfor %}").expect("valid");
        assert_eq!(
            huge.render(&json!({"t": "x".repeat(10_000)})),
            Err(ExpressionError::TooLong(MAX_OUTPUT))
        );
    }

    #[test]
    fn assignments_and_unknown_words_are_refused_before_anything_runs() {
        for source in [
            "{% set n = namespace(a=p) %}{% for i in range(22) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
            "{% set a = a ~ a %}",
            "{%- set a %}x{% endset %}",
            "{% filter upper %}x{% endfilter %}",
            "{% with a = 1 %}{% endwith %}",
            "{% raw %}{{ x }}{% endraw %}",
            "{% for a in b recursive %}{{ loop(a) }}{% endfor %}",
            "{{ a|shout }}",
            "{{ a | batch(1000000, 'x') }}",
            "{{ a is nice }}",
            "{{ namespace(a=1) }}",
            "{{ '%1000000000d' | format(1) }}",
        ] {
            assert!(
                matches!(Template::parse(source), Err(ExpressionError::Syntax(_))),
                "{source}"
            );
        }
    }

    #[test]
    fn slices_go_forward_only() {
        let context = json!({"l": [1, 2, 3, 4], "e": [], "t": "abcd", "n": 2});
        for (source, expected) in [
            ("l[1:]", json!([2, 3, 4])),
            ("l[::2]", json!([1, 3])),
            ("l[n::][:1]", json!([3])),
            ("l[e[5:1:1]|length:2:]", json!([1, 2])),
            ("t[:-1:3]", json!("a")),
            ("{'a': t[1:2], 'b': 1, 'c': 2}.a", json!("b")),
        ] {
            let value = Expression::parse(source).expect(source).evaluate(&context);
            assert_eq!(value, Ok(Some(expected)), "{source}");
        }
        // Backwards over nothing, minijinja panics.
        for source in [
            "e[::-1]",
            "l[9:][::-1]",
            "l[::n]",
            "l[::0]",
            "l[::1-2]",
            "l[::(-1)]",
            "t[(1):{'a': 1}.a: -1]",
        ] {
            let refused = Expression::parse(source);
            assert!(
                matches!(refused, Err(ExpressionError::Syntax(_))),
                "{source}: {refused:?}"
            );
            let refused = Template::parse(&format!("{{{{ {source} }}}}"));
            assert!(
                matches!(refused, Err(ExpressionError::Syntax(_))),
                "{source}: {refused:?}"
            );
        }
    }

    #[test]
    fn values_that_would_grow_are_refused() {
        let context = json!({"t": "x".repeat(1_000_000), "p": "pp", "n": 90_000_000, "l": [1, 2]});
        let many = vec!["t"; 1_000];
        for source in [
            many.join("~"),
            format!("[{}]", many.join(",")),
            format!("[{}] ~ ''", many.join(",")),
            format!("[{}]|join", many.join(",")),
            "p * n".to_owned(),
            "n * p".to_owned(),
            "n * -p".to_owned(),
            "n * (p ~ p)|upper".to_owned(),
            "'a' * 90000000".to_owned(),
            "[1] * 90000000".to_owned(),
            "l|first * n * p".to_owned(),
            "'x'|replace('x', t)|replace('x', t)".to_owned(),
            "t|list".to_owned(),
            "t|split('x')".to_owned(),
            "p|indent(999999999, true)".to_owned(),
            "range(1001)".to_owned(),
            "[t, t]|tojson".to_owned(),
            "[p]|map('replace', 'p', t)".to_owned(),
        ] {
            let expression = Expression::parse(&source).expect(&source);
            assert!(expression.evaluate(&context).is_err(), "{source}");
        }
        // As many as there is room for; each would be a hundred megabytes where it is worked out while it is compiled.
        let products = |n| vec![format!("'{}' * 999999", "a".repeat(100)); n].join(",");
        let expression = Expression::parse(&format!("[{}]", products(70))).expect("valid");
        assert!(expression.evaluate(&context).is_err());
        let template = Template::parse(&format!("{{{{ [{}] }}}}", products(500))).expect("valid");
        assert!(template.render(&context).is_err());
        let nested = "{% for a in [t,t,t,t,t] %}{% for b in [[a,a,a,a],[a,a,a,a]] %}{{ b ~ b }}{% endfor %}{% endfor %}";
        assert!(Template::parse(nested).expect("valid").render(&context).is_err());
    }

    #[test]
    fn products_filters_and_loops_work_as_written() {
        let context = json!({"n": 3, "m": {"k": [2]}, "who": "ada", "l": [{"a": 2}, {"a": 1}]});
        for (source, expected) in [
            ("{{ n * m.k[0] + 1 }}", "7"),
            ("{{ 2 * (n + 1) * -n }}", "-24"),
            ("{{ n * 2 ** 2 }}", "12"),
            ("{{ n*1.5e+1 }}", "45.0"),
            ("{{ l|map(attribute='a')|sort|join('-') }}", "1-2"),
            ("{{ l }}", r#"[{"a":2},{"a":1}]"#),
            ("{{ m|tojson }} {{ m }}", r#"{"k":[2]} {"k":[2]}"#),
            ("{{ {'a': {'b': who}} }}", r#"{"a":{"b":"ada"}}"#),
            (
                "{% for x in range(2) -%} {{ x }}{{ loop.index }} {%- endfor %}",
                "0112",
            ),
            ("{{ who|upper if n is odd and n is not none else 'x' }}", "ADA"),
            (
                "{# {% set x %} #}{{ '}}' ~ \"%}\" }} {{ l|sum(attribute='a') }}",
                "}}%} 3",
            ),
            (
                "{{ who|replace('a', 'o')|title }} {{ missing|default('-') }}",
                "Odo -",
            ),
        ] {
            let template = Template::parse(source).unwrap_or_else(|e| panic!("{source}: {e}"));
            assert_eq!(template.render(&context), Ok(expected.to_owned()), "{source}");
        }
    }
}
