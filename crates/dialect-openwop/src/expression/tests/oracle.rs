//! Compares the language with Jinja: sources that both accept must mean the same as in minijinja.

use minijinja::{Environment, UndefinedBehavior, value::Serde};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{Expression, Template};

fn context() -> Value {
    json!({
        "n": 3, "m": -7, "f": 2.5, "zero": 0, "yes": true, "no": false, "none": null, "who": "ada Lovelace", "empty": "",
        "l": [3, 1, 2], "texts": ["b", "A", "c", "a"], "none_at_all": [], "deep": { "a": { "b": [1, { "c": "d" }] } },
        "people": [
            { "name": "Cyd", "age": 3, "ok": true }, { "name": "abe", "age": 1 }, { "name": "Bob", "age": 3, "ok": false },
        ],
    })
}

fn oracle() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment
}

fn theirs(source: &str) -> Result<Value, String> {
    let environment = oracle();
    let expression = environment
        .compile_expression(source)
        .map_err(|error| error.to_string())?;
    let value = expression
        .eval(minijinja::Value::from(Serde(context())))
        .map_err(|error| error.to_string())?;
    serde_json::to_value(value).map_err(|error| error.to_string())
}

fn ours(source: &str) -> Result<Value, String> {
    let expression = Expression::parse(source).map_err(|error| error.to_string())?;
    let value = expression
        .evaluate(&context())
        .map_err(|error| error.to_string())?;
    Ok(value.unwrap_or_default())
}

/// Expressions with the same meaning in both, one per line.
const SAME: &str = r#"
n + 1
n - m * 2
2 * 3 + 4 * 5 - 6
7 // 2
-7 // 2
-7 % 3
7.5 // 2
-7.5 % 2
7 / 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
1e3 + 0.5
0x1f + 0b11 + 0o17 + 1_000
n * f
yes + 1
'a' + 'b'
l + [4]
'hello ' ~ who
n ~ f ~ none_at_all|length
"\u00e4\n\t\x41\101" ~ '\'' ~ "\q"
'a' 'b'
n > 2
1 < n < 5
1 < n > 5
n == 3.0
yes == 1
'9' > 100
none == missing
missing == other_missing
l == [3, 1, 2]
l == [3, 1]
deep == {'a': {'b': [1, {'c': 'd'}]}}
[1, 'a'] < [1, 'b']
2 in l
'a' in who
'a' not in deep
'name' in people[0]
n in missing
not n
not no and yes or no
no or empty or 'x'
yes and l
'x' if n > 2 else 'y'
'x' if n > 5
'a' if no else 'b' if no else 'c'
deep.a.b[1].c
deep['a']['b'][0]
deep.a.b.1.c
l[-1]
l[5]
who[0]
who[-1]
missing.deep.path
l[1:]
l[:-1]
l[::2]
l[1:2]
who[1:3]
who[:-9]
missing[1:]
n is defined
missing is defined
missing is undefined
n is odd and n is not even
n is divisibleby 3
n is divisibleby(2)
n is number and f is float and n is integer
l is sequence and deep is mapping and who is string
who is lower
'abc' is lower
'ABC' is upper
'A1' is upper
'1' is upper
n is eq 3
n is ne(3)
n is lt 5
n is in [1, 3]
n is in l
none is none
yes is true
no is false
n is sameas 3
1 is sameas 1.0
who is startingwith 'ada'
who is endingwith('lace')
l is iterable
5 is iterable
yes is boolean
n|abs
m|abs
f|abs
who|upper
who|lower
who|title
'hello WORLD'|capitalize
who|length
l|length
people|count
missing|default('-')
missing|d
empty|default('x', true)
l|first
l|last
none_at_all|first
who|first
l|min
l|max
texts|min
people|max(attribute='age')
people|min(attribute='name')
l|sum
people|sum(attribute='age')
l|sort
l|sort(reverse=true)
texts|sort
texts|sort(case_sensitive=true)
people|sort(attribute='age')|map(attribute='name')|list
people|sort(attribute='age,name')|map(attribute='name')|list
people|sort(attribute='age', reverse=true)|map(attribute='name')|list
l|reverse|list
who|reverse
texts|unique|list
people|unique(attribute='age')|map(attribute='name')|list
l|join('-')
texts|join
people|join(', ', attribute='name')
who|split
who|split('a')
'a,b,c'|split(',', 1)
' a  b c '|split
who|replace('a', 'o')
who|replace('', '.')
'  x '|trim
'--x-'|trim('-')
'250'|int
'0x1f'|int(base=16)
'x'|int(5)
'2.9'|int
2.9|int
none|int
'2.5'|float
'x'|float(1.5)
n|float
n|string
n|bool
empty|bool
1234.5678|round(2)
2.5|round
3.5|round
1234|round(-2)
1250|round(-2)
1.21|round(1, 'ceil')
1.29|round(1, method='floor')
deep|items|list
{'b': 1, 'a': 2}|dictsort
{'b': 1, 'a': 2}|dictsort(by='value')
{'b': 1, 'a': 2}|dictsort(reverse=true)
[1, 2, 3, 4]|select('odd')|list
[1, 2, 3, 4]|reject('gt', 2)|list
[0, 1, '', 'x']|select|list
people|selectattr('ok')|map(attribute='name')|list
people|rejectattr('ok')|map(attribute='name')|list
people|selectattr('age', 'eq', 3)|map(attribute='name')|list
people|map(attribute='ok', default='?')|list
texts|map('upper')|list
'abc'|list
people[0]|attr('name')
range(5)|list
range(1, 4)|list
range(5, 0, -2)|list
[1, [2, (3, 4)]]|length
{'a': l, 'b': {'c': n}}.b.c
-n|abs
-f * 2
(1, 2)|length
[1, 2,]|length
not n is odd
n is odd or n is even
l|map('string')|join('+')
"#;

#[test]
fn expressions_evaluate_as_in_jinja() {
    let differs = |source: &&str| {
        let (ours, theirs) = (ours(source), theirs(source));
        ours.is_err() || ours != theirs
    };
    let found = SAME.lines().filter(|line| !line.is_empty()).filter(differs);
    let found: Vec<_> = found
        .map(|source| (source, ours(source), theirs(source)))
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn templates_render_as_in_jinja() {
    for source in [
        "Hi {{ who }}!",
        "a\n",
        "a\r\n",
        "a\n\n",
        "{{ n }}{{ f }}{{ 1e20 }}{{ 1.0 }}{{ yes }}{{ none }}{{ missing }}",
        "{% if n > 2 %}big{% elif n > 1 %}mid{% else %}small{% endif %}",
        "{% if no %}x{% elif yes %}y{% endif %}",
        "{% for x in l %}{{ x }}{{ loop.index }}{{ loop.first }}{{ loop.last }},{% endfor %}",
        "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.length }}{{ loop.depth }}{% endfor %}",
        "{% for x in none_at_all %}x{% else %}none{% endfor %}",
        "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.length }}{% endfor %}",
        "{% for name, age in [['a', 1], ['b', 2]] %}{{ name }}={{ age }};{% endfor %}",
        "{% for k in deep %}{{ k }}{% endfor %}{% for k, v in {'x': 1}|items %}{{ k }}{{ v }}{% endfor %}",
        "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for c in 'abc' %}{{ c }}-{% endfor %}",
        "{% for a in l %}{% for b in l %}{{ a * b }} {{ loop.depth }}{% endfor %}{% endfor %}{{ a }}",
        "a  {%- if yes -%}  b  {%- endif -%}  c",
        "a {{- n -}} b {{+ n +}} c",
        "x {#- a comment -#} y {# {{ no }} #} z",
        "{{ '}}' ~ \"%}\" }} {{ {'a': {'b': who}}.a.b }}",
        "{ {a} } { % x",
        "{{ -1 }} {{-1}}",
        "{% for x in range(3) -%} {{ x }} {%- endfor %}",
    ] {
        let theirs = oracle()
            .render_str(source, Serde(context()))
            .map_err(|error| error.to_string());
        let ours = Template::parse(source).and_then(|template| template.render(&context()));
        assert_eq!(ours.map_err(|error| error.to_string()), theirs, "{source:?}");
    }
}

fn arb_expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (0_i64..20).prop_map(|n| n.to_string()),
        (0_i64..40).prop_map(|n| format!("{}.{}", n / 4, (n % 4) * 25)),
        prop::sample::select(vec![
            "n",
            "m",
            "f",
            "zero",
            "yes",
            "no",
            "who",
            "empty",
            "l",
            "texts",
            "deep.a",
            "missing",
            "people[1].age",
            "'ab'",
            "'b'",
            "none",
            "true",
        ])
        .prop_map(ToOwned::to_owned),
    ];
    leaf.prop_recursive(4, 32, 3, |inner| {
        let operator = prop::sample::select(vec![
            "+", "-", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or",
        ]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
            inner.clone().prop_map(|a| format!("(not {a})")),
            inner.clone().prop_map(|a| format!("(- {a})")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
            inner.clone().prop_map(|a| format!("({a} is defined)")),
            inner.clone().prop_map(|a| format!("({a}|d('x')|length)")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("[{a}, {b}]")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// If both return a value, the values are equal.
    #[test]
    fn random_expressions_evaluate_as_in_jinja(source in arb_expression()) {
        if let Ok(theirs) = theirs(&source) {
            prop_assert_eq!(ours(&source), Ok(theirs), "{}", source);
        }
    }
}
