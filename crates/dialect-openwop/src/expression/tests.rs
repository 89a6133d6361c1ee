//! Semantics of expressions and templates.

use serde_json::json;

use super::*;

mod limits;
mod oracle;

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
fn assignments_and_unknown_names_are_syntax_errors() {
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
fn slices_only_step_forward() {
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
    // minijinja panics on a backward slice of an empty list.
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
fn oversized_results_are_refused() {
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
    // As many products as fit into the source; constant folding would take a hundred megabytes for each.
    let products = |n| vec![format!("'{}' * 999999", "a".repeat(100)); n].join(",");
    let expression = Expression::parse(&format!("[{}]", products(70))).expect("valid");
    assert!(expression.evaluate(&context).is_err());
    let template = Template::parse(&format!("{{{{ [{}] }}}}", products(500))).expect("valid");
    assert!(template.render(&context).is_err());
    let nested =
        "{% for a in [t,t,t,t,t] %}{% for b in [[a,a,a,a],[a,a,a,a]] %}{{ b ~ b }}{% endfor %}{% endfor %}";
    assert!(Template::parse(nested).expect("valid").render(&context).is_err());
}

#[test]
fn products_filters_and_loops_evaluate() {
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
