//! Expressions and templates: parsing and evaluating a source in a context, with bounded results.

use serde_json::{Value, json};
use wopr_core::{Expression, Template};

/// Approximate maximum size of a result: the limit itself, plus the same again for what cannot be measured
/// while it is built.
const MAX_VALUE: usize = 2 * 1024 * 1024;

/// A source is a valid expression, or is rejected. Evaluation is deterministic and its result is bounded; the
/// fuzzer limits its time. The bytes are the source, optionally followed by a line of three dashes and a JSON
/// document as the context.
///
/// # Panics
/// If a property does not hold.
pub fn expression(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (source, context) = text.split_once("\n---\n").unwrap_or((text, ""));
    let context: Value = serde_json::from_str(context).unwrap_or_else(|_| usual());
    if let Ok(expression) = Expression::parse(source) {
        let value = expression.evaluate(&context);
        assert_eq!(value, expression.evaluate(&context), "evaluated twice it differs");
        if let Ok(Some(value)) = &value {
            assert!(
                value.to_string().len() <= MAX_VALUE,
                "an expression grew beyond its bound"
            );
        }
        // Truthiness is evaluated separately, because it may be known even if the value is too large.
        let _ = expression.holds(&context);
        let again = Expression::parse(&expression.to_string());
        assert_eq!(again.as_ref(), Ok(&expression), "shown and read again it differs");
    }
    if let Ok(template) = Template::parse(source) {
        let text = template.render(&context);
        assert_eq!(text, template.render(&context), "rendered twice it differs");
        if let Ok(text) = text {
            assert!(text.len() <= MAX_VALUE, "a template grew beyond its bound");
        }
    }
}

fn usual() -> Value {
    json!({
        "a": 1, "b": "x", "c": [1, 2, "three", null], "d": { "e": { "f": true } },
        "n": 9_007_199_254_740_993_i64, "status": "completed", "output": { "text": "ä\u{1f600}<b>" },
        "variables": { "a": 1.5 }, "inputs": {}, "nodes": { "first": { "items": [[1], [2]] } },
    })
}
