//! Filters give what jq gives, and end within their budget whatever they are.

use std::thread;

use serde_json::{Value, json};
use wopr_kernel::{
    Timestamp,
    cost::{Budget, EVALUATION, Meter},
};

use super::*;

mod dates;
mod functions;
mod generated;
mod patterns;

fn evaluate(source: &str, input: &Value) -> Result<Value, JqError> {
    let filter = Filter::compile(source)?;
    filter.evaluate(input, Timestamp::from_millis(1_500), &Meter::alone())
}

/// Filters with an input and what they give.
fn check(cases: &[(&str, Value, Value)]) {
    for (source, input, expected) in cases {
        match evaluate(source, input) {
            Ok(found) => assert!(
                wopr_schema::equal(&found, expected, &Meter::alone()).expect("small"),
                "{source} of {input} is {found}, not {expected}"
            ),
            Err(error) => panic!("{source} of {input}: {error}"),
        }
    }
}

/// Why a filter is not accepted.
fn refused(source: &str) -> String {
    match Filter::compile(source) {
        Ok(_) => panic!("{source} is accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn filters_give_what_jq_gives() {
    let input = json!({
        "a": 1, "b": [1, 2, 3], "c": { "d": "text", "e": null }, "s": "äbc,d", "list": [{"id": 2, "x": 1}, {"id": 1, "x": 1}],
    });
    let cases = [
        (".", input.clone()),
        (".a", json!(1)),
        (".missing", json!(null)),
        (".c.d", json!("text")),
        (".c[\"d\"]", json!("text")),
        (".\"a\"", json!(1)),
        (".b[]", json!([1, 2, 3])),
        (".b[1]", json!(2)),
        (".b[-1]", json!(3)),
        (".b[1:]", json!([2, 3])),
        (".s[0:2]", json!("äb")),
        ("empty", json!(null)),
        (".a, .a", json!([1, 1])),
        (".a + 1", json!(2)),
        (".a / 4", json!(0.25)),
        ("-.a", json!(-1)),
        ("7 % 4", json!(3)),
        ("1e1000", json!(f64::MAX)),
        ("(1, 2) + (10, 20)", json!([11, 12, 21, 22])),
        (".a == 1 and .c.e == null", json!(true)),
        (".c.e // \"none\"", json!("none")),
        ("(1, null, 2) // 3", json!([1, 2])),
        ("(error(\"x\")) // 3", json!(3)),
        ("if .a > 0 then \"yes\" elif true then \"no\" end", json!("yes")),
        (
            "{a, n: .b | length, \"k\\(.a)\": [.b[] | . * 2]}",
            json!({ "a": 1, "n": 3, "k1": [2, 4, 6] }),
        ),
        ("{(\"x\", \"y\"): 1}", json!([{ "x": 1 }, { "y": 1 }])),
        (". as {b: [$x, $y]} | $x + $y", json!(3)),
        ("reduce .b[] as $x (0; . + $x)", json!(6)),
        ("[foreach .b[] as $x (0; . + $x)]", json!([1, 3, 6])),
        (
            "[foreach .b[] as $x (0; . + $x; [$x, .])]",
            json!([[1, 1], [2, 3], [3, 6]]),
        ),
        ("try error(\"bad\") catch .", json!("bad")),
        (
            "[.b[] | try (if . == 2 then error(\"no\") else . end)]",
            json!([1, 3]),
        ),
        ("[.a?, .b.x?]", json!([1])),
        (
            "label $out | .b[] | if . > 1 then break $out else . end",
            json!(1),
        ),
        ("def twice(f): f | f; .a | twice(. + 1)", json!(3)),
        ("def plus($n): . + $n; .a | plus(2; )", json!(null)),
        ("def plus($n): . + $n; .a | plus(2)", json!(3)),
        ("def f: 1; def g: f + 1; def f: 10; g", json!(2)),
        ("map(1)?", json!([1, 1, 1, 1, 1])),
        (".b | map(select(. > 1))", json!([2, 3])),
        (".b |= map(. + 1) | .b", json!([2, 3, 4])),
        (".c.new.x = 5 | .c.new", json!({ "x": 5 })),
        (".b[1:] = [9] | .b", json!([1, 9])),
        (".b += [4] | .b", json!([1, 2, 3, 4])),
        (".c.e //= 7 | .c.e", json!(7)),
        ("del(.a, .c.d) | [has(\"a\"), .c]", json!([false, { "e": null }])),
        ("del(.b[0, 2]) | .b", json!([2])),
        ("del(.b[0], .b[0]) | .b", json!([2, 3])),
        (".b | del(.[0], .[-3], .[-1])", json!([2])),
        ("(.b[0], .b[-3]) |= empty | .b", json!([2, 3])),
        ("[.b | indices([2, 3], [1, 3], 3)]", json!([[1], [], [2]])),
        ("(.b[] | select(. == 2)) |= empty | .b", json!([1, 3])),
        ("[path(..)] | length", json!(17)),
        ("path(.c.d)", json!(["c", "d"])),
        ("[limit(2; .b[])]", json!([1, 2])),
        ("first(.b[])", json!(1)),
        ("[range(5)]", json!([0, 1, 2, 3, 4])),
        ("[range(0; 10; 3)]", json!([0, 3, 6, 9])),
        ("1 | until(. > 100; . * 2)", json!(128)),
        ("[1 | while(. < 10; . * 2)]", json!([1, 2, 4, 8])),
        ("[limit(3; 1 | repeat(. * 2))]", json!([1, 2, 4])),
        (
            "[2 | recurse(if . < 20 then . * . else empty end)]",
            json!([2, 4, 16, 256]),
        ),
        (".list | sort_by(.id) | map(.id)", json!([1, 2])),
        (".list | group_by(.x) | length", json!(1)),
        (".list | unique_by(.x) | map(.id)", json!([2])),
        (
            "[3, 1, 2, 1] | sort, unique, min, max",
            json!([[1, 1, 2, 3], [1, 2, 3], 1, 3]),
        ),
        (".b | add, any(. > 2), all(. > 2)", json!([6, true, false])),
        ("to_entries | map(.key) | join(\"+\")", json!("a+b+c+list+s")),
        ("{\"a\": 1} | with_entries(.value += 1)", json!({ "a": 2 })),
        (".s | split(\",\")", json!(["äbc", "d"])),
        (".s | length, utf8bytelength", json!([5, 6])),
        (
            ".s | ltrimstr(\"ä\") | rtrimstr(\"d\") | ascii_upcase",
            json!("BC,"),
        ),
        (".s | test(\"^.bc\")", json!(true)),
        (".s | index(\",\")", json!(3)),
        ("\"a\" * 3", json!("aaa")),
        (
            "{\"a\": {\"b\": 1}} * {\"a\": {\"c\": 2}}",
            json!({ "a": { "b": 1, "c": 2 } }),
        ),
        ("[1, [2, [3]]] | flatten", json!([1, 2, 3])),
        ("\"[1,{\\\"a\\\":2}]\" | fromjson | .[1].a", json!(2)),
        (
            "(.b | tojson), (.a | tostring), (\"5\" | tonumber)",
            json!(["[1,2,3]", "1", 5]),
        ),
        (
            "@json \"v: \\(.b)\", @base64 \"\\(.a)\", (\"a b\" | @uri)",
            json!(["v: [1,2,3]", "MQ==", "a%20b"]),
        ),
        ("\"abc\" | explode | implode", json!("abc")),
        ("[1, 2] | contains([1])", json!(true)),
        ("[nan, infinite] | length", json!(2)),
        ("now", json!(1.5)),
        ("null | not", json!(true)),
        (".b as [$x] | {$x}", json!({ "x": 1 })),
        ("[.b[] as $x | $x * 10]", json!([10, 20, 30])),
        ("getpath([\"c\", \"d\"])", json!("text")),
        ("setpath([\"q\", 1]; true) | .q", json!([null, true])),
        ("[splits(\",\")]?", json!(null)),
        (".s | [splits(\",\")]", json!(["äbc", "d"])),
    ];
    for (source, expected) in cases {
        match evaluate(source, &input) {
            Ok(found) => assert_eq!(found, expected, "{source}"),
            // One row is no filter at all: it holds that such are refused.
            Err(JqError::Syntax(_) | JqError::Unknown(_)) => assert!(expected.is_null(), "{source}"),
            Err(error) => panic!("{source}: {error}"),
        }
    }
}

#[test]
fn what_reads_anything_but_the_state_is_refused() {
    for source in [
        "input",
        "inputs",
        "env",
        "$ENV",
        "$ENV.PATH",
        "debug",
        "input_filename",
        "halt",
        "import \"a\" as a; 1",
        "include \"a\"; 1",
        "$__prog_args",
        "getpath",
        "@nosuch",
        "ltrimstr",
        "halt",
        "halt_error",
        "halt_error(1)",
        "stderr",
        "debug(1)",
        "input_line_number",
        "env.PATH",
        "get_search_list",
        "modulemeta",
    ] {
        let refused = evaluate(source, &json!({})).expect_err(source);
        assert!(
            matches!(refused, JqError::Unknown(_) | JqError::Syntax(_)),
            "{source}: {refused}"
        );
    }
}

#[test]
fn memory_of_a_filter_is_counted() {
    let n_bytes = |source: &str| Filter::compile(source).expect("a filter").n_bytes();
    let list = |part: &str, n: usize| format!("[{}]", vec![part; n].join(","));
    assert!(n_bytes(".a") < 1_000);
    let long = list(&".a".repeat(49), 140);
    assert!(
        (50 * long.len() / 2..1_000_000).contains(&n_bytes(&long)),
        "{}",
        n_bytes(&long)
    );
    assert!(n_bytes(&format!("\"{}\"", "x".repeat(10_000))) > 20_000);
    assert!(n_bytes("map(select(.a))") > n_bytes("[.a, .b]"));
}

#[test]
fn recursive_definitions_are_refused() {
    for source in [
        "def f: f; f",
        "def f: def g: f; g; f",
        "def f(g): f(g); f(1)",
        "def f: 1 + f; f",
    ] {
        let refused = evaluate(source, &json!({})).expect_err(source);
        assert!(
            refused.to_string().contains("calls itself"),
            "{source}: {refused}"
        );
    }
}

#[test]
fn hostile_filters_end_within_their_budget() {
    let long = format!("[{}]", vec!["1"; 900].join(","));
    let doubled = format!("{} d20 | empty", doublings(20));
    let sources = [
        "[range(1e9)]".to_owned(),
        "[limit(1e9; repeat(1))]".to_owned(),
        "last(range(1e18))".to_owned(),
        "\"x\" * 1e9".to_owned(),
        "reduce range(1e6) as $i (\"x\"; . + .)".to_owned(),
        "reduce range(1e6) as $i ([0]; . + .)".to_owned(),
        "reduce range(1e6) as $i (0; [.])".to_owned(),
        "reduce range(1e6) as $i (0; {a: .})".to_owned(),
        "until(false; .)".to_owned(),
        "try until(false; .) catch 1".to_owned(),
        "[repeat(try error(1) catch .)]".to_owned(),
        "(try repeat(empty)) // repeat(.)".to_owned(),
        ".[1e9] = 1".to_owned(),
        "setpath([range(1000)]; 1)".to_owned(),
        "\"\\(range(1e9))\" | empty".to_owned(),
        "[[range(1e4)], [range(1e4)]] | combinations".to_owned(),
        "[range(3e4) | tostring] | join(\"x\" * 1000)".to_owned(),
        "[range(1e5)] | sort".to_owned(),
        "[recurse(., .)]".to_owned(),
        "\"a\" * 1e5 | [match(\"a*a*a*a*b\")]".to_owned(),
        "\"a\" * 1e5 | [range(1e4) as $i | test(\"(a*)*b\")]".to_owned(),
        "[range(1e4) | tostring | ltrimstr(\"x\" * 1e5)] | length".to_owned(),
        doubled,
        format!("{long} | [.[] as $x | .[] as $y | .[] as $z | 1]"),
        "label $f | range(1e9) | if . < 0 then break $f else empty end".to_owned(),
        "[.. | ..] | length | range(.) | repeat(.) | empty".to_owned(),
        // Work that reads much and makes nothing.
        "[range(2e4)] as $a | [range(2e4) | tostring] as $b | $a | repeat(try contains($b) catch .) | empty"
            .to_owned(),
        "[range(1e5)] as $p | repeat(getpath($p)) | empty".to_owned(),
        "[range(1e5)] as $a | $a[5e4:] as $b | repeat($a | indices($b)) | empty".to_owned(),
        "[range(1e9) | {(range(1e3) | tostring): 1, (range(3e4) | tostring): empty}]".to_owned(),
        "(\"x\" * 1e5) as $k | {($k): 1} | [range(1e6) as $i | has($k)]".to_owned(),
        format!("{{{}}}", vec!["a: 1"; 3_000].join(",")) + " | repeat(.) | empty",
        // Values that nest, level by level.
        "reduce range(1e6) as $i (null; . as $x | null | path(.[$x:]))".to_owned(),
        "reduce range(1e6) as $i ([]; _group)".to_owned(),
        "reduce range(1e6) as $i ([]; . as $x | null | [path(getpath([$x]))])".to_owned(),
        // Searches, times, streams and what takes values apart.
        "\"a\" * 1e5 | repeat([match(\"(a*)*(a*)*b\"; \"g\")]) | empty".to_owned(),
        "\"a\" * 1e5 | [match(\"a*\"; \"gl\")]".to_owned(),
        "\"a\" * 1e5 | [match(\"(a)(a)(a)(a)(a)\"; \"g\")]".to_owned(),
        "\"ab\" * 1e5 | [match(\"a|a.*z\"; \"g\")]".to_owned(),
        "\"a\" * 1e5 | gsub(\"\"; \"x\" * 1e4)".to_owned(),
        "\"a\" * 1e3 | gsub(\"a\"; range(1e4) | tostring)".to_owned(),
        "[\"a\" * 1e6 | splits(\"\")]".to_owned(),
        "repeat(try (\"a\" | test(\"(?:\\\\pL{90}){90}\")) catch .) | empty".to_owned(),
        "[range(1e9) as $n | \"a\" | test(\"\\\\w{9}\\($n)\")]".to_owned(),
        "0 | [repeat(.) | strftime(\"%c\" * 1e3)]".to_owned(),
        "0 | strftime(\"%c\" * 1e5)".to_owned(),
        "(\" \" * 1e6) as $s | repeat($s | try strptime(\" 1\") catch .) | empty".to_owned(),
        "[range(1e4) | [range(10)]] | combinations | empty".to_owned(),
        "[range(1e5)] | [combinations(1e5)]".to_owned(),
        "[range(300) | [range(300)]] | repeat(transpose) | empty".to_owned(),
        "[range(1e5)] as $a | repeat($a | tostream) | empty".to_owned(),
        "fromstream(range(1e9) | [[. % 1e5, 0], 1])".to_owned(),
        "[range(1e5)] | walk(., .)".to_owned(),
        "reduce range(1e6) as $i ([]; walk([.]))".to_owned(),
        "repeat(jn(1e3; 1)) | empty".to_owned(),
        "\"a\" * 1e6 | repeat(try @base32d catch .) | empty".to_owned(),
        "\"&\" * 3e5 | @html".to_owned(),
        "[range(1e5) | \"a\" * 100] | @csv".to_owned(),
        "INDEX(range(1e9); .)".to_owned(),
        "[range(1e5)] as $a | repeat($a | bsearch(-1)) | empty".to_owned(),
    ];
    for source in sources {
        let budget = Budget::new(2 * EVALUATION);
        let filter = match Filter::compile(&source) {
            Ok(filter) => filter,
            Err(JqError::Unknown(_)) => continue,
            Err(error) => panic!("{source}: {error}"),
        };
        let found = filter.evaluate(&Value::Null, Timestamp::default(), &budget.meter());
        assert!(
            matches!(found, Err(JqError::TooMuchWork | JqError::TooDeep)),
            "{source:.60}: {found:?}"
        );
        assert!(budget.spent() <= EVALUATION, "{source:.60}");
    }
}

/// Definitions of which each runs the one before twice.
fn doublings(n: usize) -> String {
    let first = "def d0: ., .;".to_owned();
    (1..=n).fold(first, |defs, n| format!("{defs} def d{n}: d{0} | d{0};", n - 1))
}

#[test]
fn filters_that_nest_too_deep_are_refused_on_a_small_stack() {
    let sources = [
        "[".repeat(10_000) + &"]".repeat(10_000),
        "(".repeat(39) + "." + &")".repeat(39),
        "-".repeat(5_000) + "1",
        "try ".repeat(99) + "1",
        "try ".repeat(5_000) + "1",
        ".|".repeat(99) + ".",
        ".|".repeat(5_000) + ".",
        ". as $x|".repeat(99) + ".",
        "if . then ".repeat(99) + "1" + &" else 2 end".repeat(99),
        "def f: ".repeat(99) + "1" + &"; f".repeat(99),
        "1+".repeat(4_000) + "1",
        "1,".repeat(999) + "1",
        "1,".repeat(4_000) + "1",
        ". as [".to_owned() + &"$a,".repeat(900) + "$a] | 1",
        "1+".repeat(99) + "1",
        ".a".repeat(50),
        "1 and ".repeat(2_000) + "1",
        ".a".repeat(4_000),
        ".[0]".repeat(3_000),
        "reduce ".repeat(150) + "1",
        "\"\\(".repeat(38) + "1" + &")\"".repeat(38),
        "[range(1000) | 0] as $p | path(limit(120; repeat(getpath($p))) | empty)".to_owned(),
        ". as $x | ".to_owned() + &vec!["$x".to_owned() + &"[]".repeat(50); 48].join(" | "),
        ". as $x | ".to_owned() + &vec!["$x".to_owned() + &"[0]".repeat(50); 48].join(" | "),
        ". as $x | ".to_owned() + &vec!["$x".to_owned() + &"[0:]".repeat(50); 48].join(" | "),
        [".."; 90].join(" | "),
        ". as [$a, [$b, {x: $c}], $d] | ".repeat(90) + ".",
        ". as [".to_owned() + &"$a,".repeat(48) + "$a] | " + &"[.] | ".repeat(30) + "1",
        "recurse(empty) | ".repeat(90) + ".",
        "getpath([] | ".repeat(39) + "[]" + &")".repeat(39),
        "def f: ".to_owned() + &". | ".repeat(90) + "tojson | fromjson; " + &"[.] | ".repeat(9) + "f",
        ". | ".repeat(60) + "\"" + &"[".repeat(120) + &"]".repeat(120) + "\" | fromjson",
        ". | ".repeat(58) + "[.] | [\"[\" * 200 | fromjson]",
        "walk(".repeat(39) + "." + &")".repeat(39),
        "walk(.) | ".repeat(30) + "[tostream]",
        "fromstream(tostream) | ".repeat(30) + ".",
        "gsub(\"a\"; ".repeat(39) + "\"b\"" + &")".repeat(39),
        ". as [[$a]] ?// [$a] ?// $a | ".repeat(20) + "$a",
        "pow(1; ".repeat(39) + "1" + &")".repeat(39),
        ". | ".repeat(55) + "\"a\" | test(\"" + &"(".repeat(49) + "a" + &")".repeat(49) + "\")",
    ];
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    let done = thread::Builder::new().stack_size(1024 * 1024).spawn(move || {
        for source in sources {
            // Whatever it is, it ends with a result or an error.
            let _ = evaluate(&source, &json!(null));
            let _ = evaluate(&source, &deep);
        }
    });
    done.expect("spawned")
        .join()
        .expect("no filter overflows the stack");
}
