//! The other functions of jq's manual. The values are those that jq 1.8 gives, unless a comment says otherwise.

use serde_json::{Value, json};

use super::{check, evaluate, refused};
use crate::jq::JqError;

#[test]
fn formats_write_texts() {
    check(&[
        (
            "@csv",
            json!([1, "a\"b", null, true, 1.5]),
            json!("1,\"a\"\"b\",,true,1.5"),
        ),
        (
            "@tsv",
            json!(["a\tb\\c\nd\re\u{0}", null, false, 1]),
            json!("a\\tb\\\\c\\nd\\re\\0\t\tfalse\t1"),
        ),
        ("@html", json!("<&'\"> x"), json!("&lt;&amp;&apos;&quot;&gt; x")),
        ("@html", json!([1, "<"]), json!("[1,&quot;&lt;&quot;]")),
        ("@sh", json!([1, "a'b", null]), json!("1 'a'\\''b' null")),
        ("@sh \"echo \\(.)\"", json!("a b"), json!("echo 'a b'")),
        ("@uri", json!("ü /?-_.~!"), json!("%C3%BC%20%2F%3F-_.~%21")),
        ("@urid", json!("%C3%BC%20a+b"), json!("ü a+b")),
        (
            "@base64",
            json!("This is a message"),
            json!("VGhpcyBpcyBhIG1lc3NhZ2U="),
        ),
        (
            "@base64d",
            json!("VGhpcyBpcyBhIG1lc3NhZ2U="),
            json!("This is a message"),
        ),
        ("@base64d", json!("YQ"), json!("a")),
        ("@base64d", json!("YWI=YWI="), json!("ab")),
        ("@base64d", json!("/w=="), json!("\u{fffd}")),
        ("@base64d", json!("=="), json!("")),
        (
            "@base32",
            json!("This is a message"),
            json!("KRUGS4ZANFZSAYJANVSXG43BM5SQ===="),
        ),
        (
            "@base32d",
            json!("KRUGS4ZANFZSAYJANVSXG43BM5SQ===="),
            json!("This is a message"),
        ),
        (
            "@base32, (@base32 | @base32d)",
            json!("a"),
            json!(["ME======", "a"]),
        ),
        ("@json, @text", json!([1]), json!(["[1]", "[1]"])),
        (
            "format(\"csv\", \"json\")",
            json!([1, "x"]),
            json!(["1,\"x\"", "[1,\"x\"]"]),
        ),
        ("@csv \"x\\([1, \"a\"])y\"", json!(null), json!("x1,\"a\"y")),
    ]);
    for (source, input, expected) in [
        ("@csv", json!([[1]]), "array ([1]) is not valid in a csv row"),
        ("@csv", json!(1), "number (1) cannot be csv-formatted, only array"),
        ("@tsv", json!(1), "number (1) cannot be tsv-formatted, only array"),
        ("@sh", json!([1, [2]]), "array ([2]) can not be escaped for shell"),
        (
            "@sh",
            json!({ "a": 1 }),
            "object ({\"a\":1}) can not be escaped for shell",
        ),
        ("@base64d", json!("!"), "string (\"!\") is not valid base64 data"),
        (
            "@base64d",
            json!("Y"),
            "string (\"Y\") trailing base64 byte found",
        ),
        ("@base32d", json!("a"), "string (\"a\") is not valid base32 data"),
        (
            "@urid",
            json!("%zz"),
            "string (\"%zz\") is not a valid uri encoding",
        ),
        (
            "@urid",
            json!("%+1"),
            "string (\"%+1\") is not a valid uri encoding",
        ),
        (
            "@urid",
            json!("%C3"),
            "string (\"%C3\") is not a valid uri encoding",
        ),
        ("format(\"foo\")", json!(1), "foo is not a valid format"),
        ("format(1)", json!(1), "number (1) is not a valid format"),
    ] {
        let wrong = evaluate(source, &input).expect_err(source);
        assert_eq!(wrong.to_string(), expected, "{source}");
    }
    assert!(refused("@foo").contains("the format @foo is not offered"));
}

#[test]
fn functions_of_numbers_are_computed() {
    check(&[
        (
            "[pow(2; 10), pow(2, 3; 4, 5)]",
            json!(null),
            json!([1024, 16, 81, 32, 243]),
        ),
        (
            "[log2, log10, exp2, exp10, cbrt]",
            json!(1),
            json!([0, 0, 2, 10, 1]),
        ),
        (
            "[floor, ceil, round, trunc, rint, nearbyint]",
            json!(-2.5),
            json!([-3, -2, -3, -2, -2, -2]),
        ),
        ("[.[] | round]", json!([2.5, -1.4]), json!([3, -1])),
        (
            "[frexp, modf, logb, significand]",
            json!(-3.75),
            json!([[-0.9375, 2], [-0.75, -3], 1, -1.875]),
        ),
        ("[frexp, modf, significand]", json!(0), json!([[0, 0], [0, 0], 0])),
        ("lgamma_r", json!(10.5), json!([13.940_625_219_403_762, 1])),
        (
            "[ldexp(1.5; 3), scalb(1.5; 3), scalbln(1.5; 3)]",
            json!(null),
            json!([12, 12, 12]),
        ),
        (
            "[drem(10; 3), fmod(-7; 3), fmin(1; 2), fmax(1; 2), fdim(5; 2), hypot(3; 4), copysign(1; -2)]",
            json!(null),
            json!([1, -1, 1, 2, 3, 5, -1]),
        ),
        ("[fma(1, 2; 3, 4; 5)]", json!(null), json!([8, 11, 9, 13])),
        (
            "[sin, cos, tan] | map(. * 1000 | round)",
            json!(0.5),
            json!([479, 878, 546]),
        ),
        (
            "[j0, jn(1; 2)] | map(. * 1000 | round)",
            json!(0.5),
            json!([938, 577]),
        ),
        // What is no number is null, and what is infinite the largest number.
        (
            "[log, pow(0; -1), pow(-8; 1 / 3)]",
            json!(0),
            json!([f64::MIN, f64::MAX, null]),
        ),
        ("[.[] | abs]", json!([-5, 1.5, "a", []]), json!([5, 1.5, "a", []])),
        (
            "[.[] | isnormal, isfinite]",
            json!([1, 0, "a"]),
            json!([true, true, false, true, false, false]),
        ),
        (
            "[.[] | finites], [.[] | normals]",
            json!([1, 0, "a"]),
            json!([[1, 0], [1]]),
        ),
        (
            "have_decnum, have_literal_numbers",
            json!(null),
            json!([false, false]),
        ),
        (
            "[.[] | toboolean]",
            json!([true, "false", "true"]),
            json!([true, false, true]),
        ),
        (
            "[.[] | try tonumber catch \"no\"]",
            json!(["1", "+1", ".5", "5.", "1e3", "0x1", "", " 1", "-"]),
            json!([1, 1, 0.5, 5, 1000, "no", "no", "no", "no"]),
        ),
    ]);
    for (source, input, expected) in [
        ("log", json!("a"), "string (\"a\") number required"),
        ("pow(2; null)", json!(1), "null (null) number required"),
        ("abs", json!(null), "null (null) cannot be negated"),
        ("toboolean", json!(1), "number (1) cannot be parsed as a boolean"),
        (
            "tonumber",
            json!("aaaaaaaaaaaaaaa"),
            "string (\"aaaaaaaaaa...) cannot be parsed as a number",
        ),
        (
            "jn(1e9; 1)",
            json!(1),
            "the order is at most 1000, not 1000000000",
        ),
    ] {
        let wrong = evaluate(source, &input).expect_err(source);
        assert_eq!(wrong.to_string(), expected, "{source}");
    }
}

#[test]
fn values_are_walked_and_streamed() {
    check(&[
        (
            "walk(if type == \"number\" then . + 1 else . end)",
            json!([1, { "a": 2 }]),
            json!([2, { "a": 3 }]),
        ),
        ("[walk(., 1)]", json!([1, 2]), json!([[1, 1, 2, 1], 1])),
        ("[walk(., 1)]", json!({ "a": 2 }), json!([{ "a": 2 }, 1])),
        ("[walk(empty)]", json!({ "a": 2 }), json!([])),
        (
            "walk(if . == 2 then empty else . end)",
            json!({ "a": 2, "b": [2, 3, { "c": 2 }] }),
            json!({ "b": [3, {}] }),
        ),
        (
            "walk(if type == \"array\" then sort else . end)",
            json!([[4, 1, 7], [8, 5, 2]]),
            json!([[1, 4, 7], [2, 5, 8]]),
        ),
        (
            "[tostream]",
            json!({ "a": [1, { "b": 2 }] }),
            json!([
                [["a", 0], 1],
                [["a", 1, "b"], 2],
                [["a", 1, "b"]],
                [["a", 1]],
                [["a"]]
            ]),
        ),
        ("[tostream]", json!([]), json!([[[], []]])),
        ("[tostream]", json!(1), json!([[[], 1]])),
        (
            "[tostream]",
            json!({ "a": {}, "b": [] }),
            json!([[["a"], {}], [["b"], []], [["b"]]]),
        ),
        (
            "fromstream(tostream)",
            json!({ "a": [1, { "b": 2 }] }),
            json!({ "a": [1, { "b": 2 }] }),
        ),
        (
            "[fromstream([[], 3], [[\"a\"], 1], [[\"a\"]])]",
            json!(null),
            json!([3, { "a": 1 }]),
        ),
        ("[fromstream([[\"a\"], 1])]", json!(null), json!([])),
        (
            "[1 | truncate_stream([[0], 1], [[1, 0], 2], [[1, 0]], [[1]])]",
            json!(null),
            json!([[[0], 2], [[0]]]),
        ),
        (
            "[fromstream(1 | truncate_stream([[0], 1], [[1, 0], 2], [[1, 0]], [[1]]))]",
            json!(null),
            json!([[2]]),
        ),
    ]);
    let wrong = evaluate("fromstream(1)", &json!(null)).expect_err("no event");
    assert_eq!(wrong.to_string(), "Cannot use number (1) as an event");
}

#[test]
fn lists_are_combined_searched_and_indexed() {
    check(&[
        (
            "[combinations]",
            json!([[1, 2], [3, 4]]),
            json!([[1, 3], [1, 4], [2, 3], [2, 4]]),
        ),
        ("[combinations]", json!([]), json!([[]])),
        ("[combinations]", json!([[], [1]]), json!([])),
        (
            "[combinations(2)]",
            json!([0, 1]),
            json!([[0, 0], [0, 1], [1, 0], [1, 1]]),
        ),
        ("[combinations(0)]", json!([0, 1]), json!([[]])),
        ("transpose", json!([[1, 2], [3]]), json!([[1, 3], [2, null]])),
        ("transpose", json!([null, [1]]), json!([[null, 1]])),
        ("transpose", json!([]), json!([])),
        ("[bsearch(0, 2, 4)]", json!([1, 2, 3]), json!([-1, 1, -4])),
        ("[bsearch(1)]", json!([]), json!([-1])),
        ("bsearch(1)", json!([1, 1, 1]), json!(1)),
        (
            "pick(.a.b, .c[1])",
            json!({ "a": { "b": 1, "d": 2 }, "c": [1, 2, 3] }),
            json!({ "a": { "b": 1 }, "c": [null, 2] }),
        ),
        ("pick(first)", json!([1, 2]), json!([1])),
        ("IN(1, 2), IN(3)", json!(2), json!([true, false])),
        ("IN(.[]; 1, 2)", json!([2, 3]), json!(true)),
        (
            "INDEX(.id), INDEX(.[]; .id)",
            json!([{ "id": 1 }, { "id": "x" }]),
            json!([{ "1": { "id": 1 }, "x": { "id": "x" } }, { "1": { "id": 1 }, "x": { "id": "x" } }]),
        ),
        (
            "JOIN({ \"1\": \"a\" }; tostring)",
            json!([1, 2]),
            json!([[1, "a"], [2, null]]),
        ),
        (
            "[JOIN({ \"1\": \"a\" }; .[]; tostring)]",
            json!([1, 2]),
            json!([[1, "a"], [2, null]]),
        ),
        (
            "[JOIN({ \"1\": \"a\" }; .[]; tostring; .[1])]",
            json!([1, 2]),
            json!(["a", null]),
        ),
        ("[.[] | toarray]", json!([1, [2]]), json!([[1], [2]])),
        ("[leaf_paths]", json!({ "a": [1] }), json!([["a", 0]])),
        ("trimstr(\"a\")", json!("abca"), json!("bc")),
        ("trimstr(\"a\")", json!("a"), json!("")),
        (
            "[65, 1114112, 55296, -1] | implode",
            json!(null),
            json!("A\u{fffd}\u{fffd}\u{fffd}"),
        ),
        (
            "[skip(2; range(5))], [nth(1, 2; range(5))], [nth(5; range(3))]",
            json!(null),
            json!([[2, 3, 4], [1, 2], []]),
        ),
        ("[limit(0; error)]", json!(null), json!([])),
    ]);
    for (source, input, expected) in [
        ("transpose", json!(["a"]), "Cannot index string with number"),
        (
            "[combinations]",
            json!([1, [2]]),
            "Cannot iterate over number (1)",
        ),
        ("bsearch(1)", json!({}), "object ({}) cannot be searched from"),
        ("pick(.[-1])", json!([1, 2]), "Out of bounds negative array index"),
        (
            "limit(-1; 1)",
            json!(null),
            "limit doesn't support negative count",
        ),
        ("skip(-1; 1)", json!(null), "skip doesn't support negative count"),
        ("nth(-1; 1)", json!(null), "nth doesn't support negative indices"),
        ("ltrimstr(\"a\")", json!(1), "startswith() requires string inputs"),
        ("rtrimstr(1)", json!("a"), "endswith() requires string inputs"),
        (
            "implode",
            json!(["a"]),
            "string (\"a\") can't be imploded, unicode codepoint needs to be numeric",
        ),
        ("error(null)", json!(null), "(not a string): null"),
        ("error({ a: 1 })", json!(null), "(not a string): {\"a\":1}"),
        (
            "1 + .",
            json!({ "a": [1, 2, 3, { "b": 1 }] }),
            "number (1) and object ({\"a\":[1,2,3...) cannot be added",
        ),
    ] {
        let wrong = evaluate(source, &input).expect_err(source);
        assert_eq!(wrong.to_string(), expected, "{source}");
    }
    assert_eq!(evaluate("try error(null) catch .", &json!(1)), Ok(Value::Null));
}

#[test]
fn patterns_have_alternatives() {
    check(&[
        ("[.[] as [$a] ?// $a | $a]", json!([[1], 2]), json!([1, 2])),
        (
            "[.[] as [$a] ?// { a: $a } ?// [[$a]] | $a]",
            json!([[1], { "a": 2 }]),
            json!([1, 2]),
        ),
        (
            "[.[] as { a: $a, b: [$c] } ?// [$a, $d] | [$a, $c, $d]]",
            json!([{ "a": 1, "b": [2] }, [3, 4]]),
            json!([[1, 2, null], [3, null, 4]]),
        ),
        (
            "[.[] as [$a, $b] ?// $a | [$a, $b]]",
            json!([[1, 2], 3]),
            json!([[1, 2], [3, null]]),
        ),
        // What fails later takes the next one, too.
        (
            ".[] as [$a] ?// [$b] | if $a != null then error(\"err\") else { $a, $b } end",
            json!([[3]]),
            json!({ "a": null, "b": 3 }),
        ),
        (
            "[(. as [$a] ?// $a | $a) | if type == \"number\" then error(\"x\") else . end]",
            json!([3]),
            json!([[3]]),
        ),
        (
            "try (.[] as [$a] ?// [$b] | error(\"x\")) catch .",
            json!([[1]]),
            json!("x"),
        ),
        ("reduce .[] as [$a] ?// $a (0; . + $a)", json!([[1], 2]), json!(3)),
        (
            "[foreach .[] as [$a] ?// $a (0; . + $a)]",
            json!([[1], 2]),
            json!([1, 3]),
        ),
        ("\"\\(. as [$a] ?// $a | $a)\"", json!([1]), json!("1")),
        (
            "(. as [$a, $a] ?// $a | $a) as $b | [$b]",
            json!([1, 2]),
            json!([2]),
        ),
        ("[.[]? // 7]", json!(1), json!([7])),
    ]);
    for source in [
        ". as [$a] ?// | 1",
        ". as [$a] ? | 1",
        ". as [$a] ?// 1 | 1",
        ". as ?// $a | 1",
        ". as $?// | 1",
    ] {
        assert!(
            matches!(evaluate(source, &json!([1])), Err(JqError::Syntax(_))),
            "{source}"
        );
    }
}

#[test]
fn places_in_a_filter_are_known() {
    check(&[
        (
            "$__loc__",
            json!(null),
            json!({ "file": "<top-level>", "line": 1 }),
        ),
        ("1 |\n\n{ $__loc__ } | .__loc__.line", json!(null), json!(3)),
        (
            "try error(\"\\($__loc__)\") catch .",
            json!(null),
            json!("{\"file\":\"<top-level>\",\"line\":1}"),
        ),
    ]);
}
