//! Neither sources nor values make parsing or evaluation exceed their limits.

use std::thread;

use serde_json::{Value, json};

use crate::{
    Expression, ExpressionError, Template,
    cost::{EVALUATION, Meter},
    expression::{eval::Machine, filters::FILTERS, predicates::TESTS},
};

/// Smaller than the stack of any host thread.
const STACK: usize = 1024 * 1024;

/// Parses and evaluates a source on a small stack. An error is fine, a stack overflow is not.
fn survives(source: String) {
    let done = thread::Builder::new().stack_size(STACK).spawn(move || {
        let context = json!({ "a": { "a": 1 }, "l": [1, 2] });
        if let Ok(expression) = Expression::parse(&source) {
            let _ = expression.evaluate(&context);
            let _ = expression.reads();
        }
        for source in [format!("{{{{ {source} }}}}"), source] {
            if let Ok(template) = Template::parse(&source) {
                let _ = template.render(&context);
                let _ = template.reads();
            }
        }
    });
    done.expect("a thread").join().expect("no panic");
}

#[test]
fn nesting_never_overflows_the_stack() {
    // (opening, innermost, closing)
    let forms = [
        ("(", "a", ")"),
        ("[", "a", "]"),
        ("{'a':", "a", "}"),
        ("{a:", "a", "}"),
        ("-", "a", ""),
        ("- ", "a", ""),
        ("+", "a", ""),
        ("not ", "a", ""),
        ("not not -", "a", ""),
        ("a[", "a", "]"),
        ("a[:", "a", "]"),
        ("a[a:", "a", "]"),
        ("range(", "1", ")"),
        ("a.a(", "a", ")"),
        ("a|d(", "a", ")"),
        ("a|d(default_value=", "a", ")"),
        ("a is eq(", "a", ")"),
        ("a is eq ", "a", ""),
        ("a is eq -", "a", ""),
        ("a if a else ", "a", ""),
        ("a if (a if ", "a", ") else a"),
        ("a if ", "a", " else a"),
        ("a + (", "a", ")"),
        ("(a or b and not c < d + e ~ f * g ** h[", "a", "]|d)"),
        ("", "a", ".a"),
        ("", "a", ".0"),
        ("", "a", "[0]"),
        ("", "a", "[::1]"),
        ("", "a", "|d"),
        ("", "a", "|list"),
        ("", "a", " is defined"),
        ("", "a", " is not none"),
        ("", "a", " if a"),
        ("", "a", " or a"),
        ("", "a", " and a"),
        ("", "a", " < a"),
        ("", "a", " not in a"),
        ("", "a", " + a"),
        ("", "a", " ~ a"),
        ("", "a", " ** a"),
        ("", "'a'", " 'a'"),
        ("{% if a %}", "a", "{% endif %}"),
        ("{% if a %}a{% else %}", "a", "{% endif %}"),
        ("{% if b %}a{% elif b %}", "a", "{% endif %}"),
        ("{% if b %}", "a", "{% elif a %}"),
        ("{% for a in l %}", "a", "{% endfor %}"),
        ("{% for a in b %}{% else %}", "a", "{% endfor %}"),
        ("{% for (", "a", ") in l %}"),
        ("{% for a,", "a", " in l %}"),
        ("{{", "a", "}}"),
        ("{#", "a", "#}"),
        ("{% raw %}", "a", "{% endraw %}"),
    ];
    for (open, middle, close) in forms {
        // At and above the nesting limit, at the length limits of expressions and templates, and beyond them.
        for bytes in [8 * 1024, 64 * 1024, 100 * 1024] {
            let n = bytes / (open.len() + close.len()).max(1);
            survives(open.repeat(n) + middle + &close.repeat(n));
            survives(open.repeat(n) + middle);
        }
        for n in [10, 24, 25, 49, 50, 51] {
            survives(open.repeat(n) + middle + &close.repeat(n));
        }
    }
}

#[test]
fn moderate_nesting_is_accepted() {
    for (open, close) in [("(", ")"), ("[", "]"), ("not ", ""), ("a[", "]")] {
        let source = open.repeat(20) + "a" + &close.repeat(20);
        assert!(Expression::parse(&source).is_ok(), "{source}");
    }
    for source in [vec!["a"; 1_000].join(" ~ "), "a".to_owned() + &".a".repeat(1_000)] {
        assert!(Expression::parse(&source).is_ok());
    }
}

#[test]
fn source_limits_are_checked_before_parsing() {
    for source in [
        "-".repeat(8 * 1024),
        "a+".repeat(4_000) + "a",
        "(".repeat(51) + "a" + &")".repeat(51),
    ] {
        assert!(matches!(
            Expression::parse(&source),
            Err(ExpressionError::Syntax(_))
        ));
    }
    let source = "{{ a }}".repeat(9_000);
    assert!(matches!(
        Template::parse(&source),
        Err(ExpressionError::Syntax(_))
    ));
    let source = "a".repeat(64 * 1024 + 1);
    assert_eq!(Template::parse(&source), Err(ExpressionError::TooLong(64 * 1024)));
}

/// Large values of every kind.
fn large() -> Value {
    sized(10_000)
}

fn sized(n: usize) -> Value {
    let objects: Vec<_> = (0..n)
        .map(|n| json!({ "k": format!("key {}", n * 7919 % 10_000), "n": n }))
        .collect();
    let deep = (0..60).fold(json!([1]), |inner, _| json!([inner, 1]));
    json!({
        "t": "x y".repeat(30 * n), "objects": objects, "deep": deep,
        "numbers": (0..4 * n).collect::<Vec<_>>(), "texts": vec!["a".repeat(100); n * 9 / 10],
        "same": (0..4 * n).collect::<Vec<_>>(), "long": ["x".repeat(50 * n), "x".repeat(50 * n)],
        "map": (0..n * 9 / 10).map(|n| (format!("k{n}"), json!(n))).collect::<serde_json::Map<_, _>>(),
        "n": 1_000_000_000_000_000_i64,
    })
}

/// The cost of an evaluation; asserts that it stays within the limit.
fn cost(source: &str, context: &Value) -> u64 {
    let expression = Expression::parse(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let meter = Meter::alone();
    let value = Machine::new(&context, &meter).eval(&expression.tree);
    if let Ok(value) = &value {
        let _ = value.to_json(&meter);
    }
    drop(value);
    meter.spent()
}

#[test]
fn every_filter_and_test_is_charged_for_its_input() {
    let context = sized(2_000);
    let names = ["t", "objects", "deep", "map"];
    let args = [
        "",
        "('x', 'yy')",
        "('', t)",
        "(n, true, true)",
        "(attribute='k')",
        "('k', 'eq', t)",
        "('in', same)",
    ];
    for filter in FILTERS {
        for name in names {
            for arg in args {
                let spent = cost(&format!("{name}|{}{arg}", filter.name), &context);
                assert!(
                    spent >= filter.cost && spent <= EVALUATION,
                    "{name}|{}{arg}: {spent}",
                    filter.name
                );
            }
        }
    }
    for test in TESTS {
        for name in names {
            for arg in ["", "(t)", "(objects)", "(0)"] {
                let spent = cost(&format!("{name} is {}{arg}", test.name), &context);
                assert!(
                    spent >= test.cost && spent <= EVALUATION,
                    "{name} is {}{arg}: {spent}",
                    test.name
                );
            }
        }
    }
}

#[test]
fn comparisons_are_charged_by_size() {
    let context = large();
    assert!(cost("numbers == same", &context) >= 40_000);
    assert!(cost("numbers < same", &context) >= 40_000);
    assert!(cost("-1 in numbers", &context) >= 40_000);
    assert!(cost("'z' in t", &context) >= 100_000);
    assert!(cost("objects|sort(attribute='k')|length", &context) >= 200_000);
    assert!(cost("t ~ t", &context) >= 100_000);
    // A field of a large value costs only the lookup.
    assert!(cost("map.k1", &context) < 80);
    assert!(cost("objects[9999].n + 1", &context) < 40);
}

/// The cost of an evaluation, and whether it succeeded.
fn tried(source: &str, context: &Value) -> (u64, bool) {
    let expression = Expression::parse(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let meter = Meter::alone();
    let value = Machine::new(&context, &meter).eval(&expression.tree);
    let done = value.is_ok_and(|value| value.to_json(&meter).is_ok());
    (meter.spent(), done)
}

#[test]
fn long_arguments_and_names_are_charged() {
    const LONG: usize = 160_000;
    let a = "0".repeat(LONG);
    let context = json!({
        "a": a, "b": "0".repeat(LONG - 1) + "1", "e": "", "t": "x", "m": { "k": 1 }, "l": [[0], [0], [0]],
        "names": { &a: 1 },
    });
    let pays = |source: &str, least: usize| {
        let (spent, _) = tried(source, &context);
        assert!(spent >= least as u64 / 16, "{source}: {spent}");
    };
    for source in [
        "m[a]",
        "names[a]",
        "m|attr(a)",
        "a in m",
        "a in t",
        "a is in m",
        "t is startingwith a",
        "t is endingwith a",
        "e|trim(a)",
        "t|replace(a, 'y')",
        "t|replace('y', a)",
        "t|split(a)",
        "[]|sort(attribute=a)",
        "[]|unique(attribute=a)",
        "[]|sum(attribute=a)",
        "[]|min(attribute=a)",
        "[]|join(a)",
        "[]|join('', attribute=a)",
        "1.5|round(0, a)",
        "{a: 1} is mapping",
        "{a ~ '': 1}|first is string",
    ] {
        pays(source, LONG);
    }
    // Each item is searched with the whole path.
    for source in [
        "l|map(attribute=a)|length",
        "l|selectattr(a)|length",
        "l|rejectattr(a)|length",
        "l|sort(attribute=a)|length",
        "l|unique(attribute=a)|length",
        "l|max(attribute=a)",
        "l|sum(attribute=a)",
        "l|join('', attribute=a)",
        "{a: 1, b: 2, a: 3} is mapping",
    ] {
        pays(source, 3 * LONG);
    }
    // The list of paths takes more memory than the text.
    pays("[]|sort(attribute=a)", 16 * LONG);
    // Each read compares the name in the source with those of the run.
    let name = "n".repeat(1_600);
    for source in [
        format!("{name} or {name} or {name}"),
        format!("m.{name}.{name}.{name}"),
    ] {
        assert!(tried(&source, &context).0 >= 300, "{}", &source[..10]);
    }
    // Every filter that accepts a long argument is charged for it or passes it on unread.
    let reading = FILTERS
        .iter()
        .filter(|filter| !matches!(filter.name, "d" | "default" | "float" | "int"));
    for filter in reading {
        for subject in ["t", "m", "l", "1.5"] {
            for arg in ["(a)", "('x', a)", "(attribute=a)", "(d=a)", "(chars=a)"] {
                let source = format!("{subject}|{}{arg}", filter.name);
                let (spent, done) = tried(&source, &context);
                assert!(!done || spent >= LONG as u64 / 16, "{source}: {spent}");
            }
        }
    }
}

#[test]
fn evaluation_stops_when_its_budget_is_spent() {
    let context = large();
    let many = |piece: &str, n: usize| vec![piece; n].join(" ~ ");
    for source in [
        vec!["(objects|sort|length)"; 240].join("+"),
        vec!["(numbers == same)"; 100].join(" and "),
        many("(t|upper|length)", 100),
        "texts|map('upper')|list|join|upper".to_owned(),
    ] {
        let expression = Expression::parse(&source).expect("valid");
        assert_eq!(
            expression.evaluate(&context),
            Err(ExpressionError::TooMuchWork),
            "{}",
            &source[..30]
        );
    }
    let template = Template::parse(&"{{ objects|sort|length }}".repeat(240)).expect("valid");
    assert_eq!(template.render(&context), Err(ExpressionError::TooMuchWork));
    let nested = "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{{ a == b }}{% endfor %}{% endfor %}{% endfor %}";
    assert_eq!(
        Template::parse(nested).expect("valid").render(&context),
        Err(ExpressionError::TooMuchWork)
    );
}

#[test]
fn memory_exhausting_expressions_are_refused() {
    let context = json!({});
    for source in [
        "{{ '' | indent(1000000000000000) }}",
        "{{ 'a' | indent(1048577, true) }}",
    ] {
        assert_eq!(
            Template::parse(source).expect("valid").render(&context),
            Err(ExpressionError::TooLong(1024 * 1024)),
            "{source}"
        );
    }
    // A thousand lines, each indented by a megabyte.
    let source = format!("'{}'|indent(1000000)", "a\\n".repeat(1_000));
    assert!(
        Expression::parse(&source)
            .expect("valid")
            .evaluate(&context)
            .is_err()
    );
}

#[test]
fn division_by_zero_is_false_or_an_error() {
    for source in [
        "1 is divisibleby 0",
        "1 is divisibleby 0.0",
        "0 is divisibleby 0",
        "'a' is divisibleby 'b'",
    ] {
        let value = Expression::parse(source).expect(source).holds(&json!({}));
        assert_eq!(value, Ok(false), "{source}");
    }
    for source in [
        "1 % 0",
        "1 // 0",
        "1 / 0",
        "1.0 % 0",
        "0 ** -1",
        "-1 - 170141183460469231731687303715884105727 - 5",
    ] {
        let value = Expression::parse(source).expect(source).evaluate(&json!({}));
        assert!(
            matches!(value, Err(ExpressionError::Evaluation(_))),
            "{source}: {value:?}"
        );
    }
}

#[test]
fn reads_lists_every_path_with_its_offset() {
    let reads = |source: &str| {
        let template = Template::parse(source).expect(source);
        template
            .reads()
            .into_iter()
            .map(|read| (read.path.join("/"), read.offset))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        reads(
            "{{ nodes['pay-now'].text }} {% for x in items if x.ok %}{{ x.y ~ loop.index ~ who|d(other) }}{% endfor %}"
        ),
        [
            ("nodes/pay-now/text".to_owned(), 3),
            ("items".to_owned(), 40),
            ("who".to_owned(), 78),
            ("other".to_owned(), 84),
        ]
    );
    let expression = Expression::parse(" {{ nodes.pay-now[at] }}").expect("valid");
    let paths: Vec<_> = expression
        .reads()
        .into_iter()
        .map(|read| (read.path.join("/"), read.offset))
        .collect();
    assert_eq!(
        paths,
        [
            ("nodes/pay".to_owned(), 4),
            ("now".to_owned(), 14),
            ("at".to_owned(), 18)
        ]
    );
}
