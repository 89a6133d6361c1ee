//! Expressions and templates: from a source, and what it is evaluated in, to a bounded value.

use serde_json::{Value, json};
use wopr_core::{Expression, Template};

/// About the largest value of an evaluation: what it may come to, and once more for what cannot be measured while
/// it is built.
const MAX_VALUE: usize = 2 * 1024 * 1024;

/// A source is an expression or is refused. Evaluated twice it gives the same; what it gives is bounded, and how long it
/// takes is for whoever runs this to bound. The bytes are the source, then perhaps a line of three dashes and a JSON
/// document it is evaluated in.
///
/// # Panics
/// If a promise does not hold.
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
        // Whether it counts as true is a question of its own: it can be answered where the value is too large.
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
