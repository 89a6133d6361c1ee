//! Searches for regular expressions. The values are those that jq 1.8 gives, unless a comment says otherwise.

use serde_json::{Value, json};

use super::{check, evaluate, refused};
use crate::jq::{Filter, JqError};

#[test]
fn matches_have_their_places_in_code_points() {
    let found = |offset: i32, length: i32, string: &str, captures: Value| json!({ "offset": offset, "length": length, "string": string, "captures": captures });
    let group = |offset: i32, length: i32, string: Value, name: Value| json!({ "offset": offset, "length": length, "string": string, "name": name });
    check(&[
        (
            r#"[match("(?<x>a)?(b)"; "g")]"#,
            json!("äb ab"),
            json!([
                found(
                    1,
                    1,
                    "b",
                    json!([
                        group(-1, 0, json!(null), json!("x")),
                        group(1, 1, json!("b"), json!(null))
                    ])
                ),
                found(
                    3,
                    2,
                    "ab",
                    json!([
                        group(3, 1, json!("a"), json!("x")),
                        group(4, 1, json!("b"), json!(null))
                    ])
                ),
            ]),
        ),
        (
            r#"[match("a*"; "g") | [.offset, .length, .string]]"#,
            json!("baac"),
            json!([[0, 0, ""], [1, 2, "aa"], [3, 0, ""], [4, 0, ""]]),
        ),
        // jq finds an empty match twice before a character of two bytes.
        (r#"[match(""; "g").offset]"#, json!("äb"), json!([0, 1, 2])),
        (r#"[match(""; "g").offset]"#, json!(""), json!([0])),
        (
            r#"[match("(a)?b"; "g").captures[0] | [.offset, .string]]"#,
            json!("ab b"),
            json!([[0, "a"], [-1, null]]),
        ),
    ]);
}

#[test]
fn flags_change_a_search() {
    check(&[
        (r#"[match("b"; "g").offset]"#, json!("abab"), json!([1, 3])),
        (r#"[match("B"; "gi").offset]"#, json!("abab"), json!([1, 3])),
        (r#"[match("B"; null).offset]"#, json!("abab"), json!([])),
        (r#"[match("a b # c"; "x").string]"#, json!("ab"), json!(["ab"])),
        (r#"[match("a\\ b"; "x").string]"#, json!("a b"), json!(["a b"])),
        (r#"[match("a*"; "gn").string]"#, json!("baac"), json!(["aa"])),
        (r#"[match("a*?"; "gn").string]"#, json!("aab"), json!(["a", "a"])),
        (r#"[match("a|ab"; "g").string]"#, json!("ab"), json!(["a"])),
        (r#"[match("a|ab"; "gl").string]"#, json!("ab"), json!(["ab"])),
        (
            r#"[match("a+"; "gl") | [.offset, .string]]"#,
            json!("a aaa aa aaaa b"),
            json!([[9, "aaaa"]]),
        ),
        (r#"[match("."; "g").string]"#, json!("a\nb"), json!(["a", "b"])),
        (r#"[match("."; "gs").string]"#, json!("a\nb"), json!(["a", "b"])),
        (
            r#"[match("."; "gp").string]"#,
            json!("a\nb"),
            json!(["a", "\n", "b"]),
        ),
        (r#"[match("é"; "i").string]"#, json!("É"), json!(["É"])),
        // The flags are the outer loop.
        (
            r#"[match(("a", "b"); ("g", "")).string]"#,
            json!("abab"),
            json!(["a", "a", "b", "b", "a", "b"]),
        ),
        (r#"[match(["B", "i"]).string]"#, json!("ab"), json!(["b"])),
        (r#"[match(["b"]).string]"#, json!("ab"), json!(["b"])),
    ]);
}

#[test]
fn patterns_mean_what_they_mean_to_jq() {
    for (pattern, text, expected) in [
        ("^b", "a\nb", false),
        ("(?m)^b", "a\nb", true),
        ("(?m:^)b", "a\nb", true),
        ("a$", "a\n", true),
        ("a$", "a\nb", false),
        ("(?m)a$", "a\nb", true),
        (r"a\Z", "a\n", true),
        (r"a\z", "a\n", false),
        (r"a\z", "a", true),
        (r"\Aa", "ba", false),
        ("[[]", "[", true),
        ("[^[]", "[", false),
        ("[a&&b]", "&", true),
        ("[]a]", "]", true),
        ("[^]a]", "]", false),
        ("[-a]", "-", true),
        ("[a-]", "-", true),
        (r"[\d-]", "-", true),
        (r"[\]x]", "]", true),
        (r"[\w.]", ".", true),
        ("[[:alpha:]]", "é", true),
        ("[[:^alpha:]]", "é", false),
        ("[[:punct:]]", "$", true),
        ("[[:xdigit:]]", "g", false),
        ("a{2", "a{2", true),
        ("{a}", "{a}", true),
        ("a{,2}", "a{,2}", true),
        ("^a{2}$", "aa", true),
        (r"^\{\{x\}\}$", "{{x}}", true),
        (r"\h", "h", true),
        (r"\y", "y", true),
        (r"^\x61\x{e9}$", "aé", true),
        (r"\p{L}", "é", true),
        (r"\p{^L}", "é", false),
        (r"\P{L}", "é", false),
        (r"^\d$", "٣", true),
        (r"\bé", "é", true),
        (r"^\Qa.b\E$", "a.b", true),
        (r"\Qa.b\E", "axb", false),
        ("(?#note)a", "a", true),
        ("(?x: a # b\n )b", "ab", true),
        ("(?i)A(?-i)b", "ab", true),
        ("(?i:A)B", "ab", false),
        ("(?s:a.b)", "a\nb", true),
        (r"^[\w.+-]+@[\w-]+\.[\w.]+$", "ada@example.com", true),
        ("", "", true),
    ] {
        let source = format!("test({})", json!(pattern));
        assert_eq!(
            evaluate(&source, &json!(text)),
            Ok(json!(expected)),
            "{pattern} on {text:?}"
        );
    }
}

#[test]
fn groups_are_read_by_name_and_in_order() {
    check(&[
        (
            r#"capture("(?<year>\\d{4})-(?<month>\\d\\d)(?<day>-\\d\\d)?")"#,
            json!("on 2015-03"),
            json!({ "year": "2015", "month": "03", "day": null }),
        ),
        (
            r#"[capture("(?<k>[a-z]+)(\\d+)"; "g")]"#,
            json!("ab12 c3"),
            json!([{ "k": "ab" }, { "k": "c" }]),
        ),
        // The last group with a name counts, also if it has no match.
        (
            r#"[capture("(?<x>a)|(?<x>b)"; "g")]"#,
            json!("ab"),
            json!([{ "x": null }, { "x": "b" }]),
        ),
        (r#"capture("b")"#, json!("abc"), json!({})),
        (r#"[scan("c")]"#, json!("abcdefabc"), json!(["c", "c"])),
        (
            r#"[scan("(a)(b)?")]"#,
            json!("abca"),
            json!([["a", "b"], ["a", null]]),
        ),
        (r#"[scan("A"; "i")]"#, json!("abca"), json!(["a", "a"])),
        (r#"[scan("[0-9]+") | tonumber]"#, json!("1 of 12"), json!([1, 12])),
    ]);
}

#[test]
fn texts_are_split_and_replaced() {
    check(&[
        (
            r#"[splits(", *")]"#,
            json!("ab,cd,   ef"),
            json!(["ab", "cd", "ef"]),
        ),
        (r#"[splits(", *"; null)]"#, json!("a, b"), json!(["a", "b"])),
        (r#"[splits("X"; "i")]"#, json!("axb"), json!(["a", "b"])),
        (r#"[splits("x")]"#, json!(""), json!([""])),
        (
            r#"split("a+b?c*"; null)"#,
            json!("xab,bac,z"),
            json!(["x", ",b", ",z"]),
        ),
        (r#"split(""; null)"#, json!("abc"), json!(["", "a", "b", "c", ""])),
        (r#"split(", ")"#, json!("a, b"), json!(["a", "b"])),
        (r#"sub("(?<x>.)"; "\(.x)!")"#, json!("abc"), json!("a!bc")),
        (
            r#"gsub("(?<x>.)[^a]*"; "+\(.x)-")"#,
            json!("Abcabc"),
            json!("+A-+a-"),
        ),
        (r#"gsub("\\s+"; " ")"#, json!(" a \t b "), json!(" a b ")),
        (r#"sub("A"; "x"; "gi")"#, json!("aAb"), json!("xxb")),
        (r#"gsub("A"; "x"; "i")"#, json!("aAb"), json!("xxb")),
        (r#"gsub("a*"; "-")"#, json!("baac"), json!("-b--c-")),
        (r#"gsub(""; "-")"#, json!("äb"), json!("-ä-b-")),
        (r#"gsub("^"; ">")"#, json!("ab"), json!(">ab")),
        (r#"gsub("$"; "<")"#, json!("ab"), json!("ab<")),
        (
            r#"gsub("(?<x>q)?"; "[\(.x)]")"#,
            json!("ab"),
            json!("[null]a[null]b[null]"),
        ),
        (r#"gsub("q"; empty)"#, json!("ab"), json!("ab")),
        (r#"gsub("a"; empty)"#, json!("ab"), json!("ab")),
        (r#"gsub("a"; null)"#, json!("ab"), json!("b")),
        // Each output makes a text of its own, from the first match that has it on.
        (
            r#"[sub("(?<a>.)"; "\(.a | ascii_upcase)", "\(.a | ascii_downcase)", "c")]"#,
            json!("aB"),
            json!(["AB", "aB", "cB"]),
        ),
        (
            r#"[gsub("(?<a>.)"; "\(.a | ascii_upcase)", "\(.a | ascii_downcase)", "c")]"#,
            json!("aB"),
            json!(["AB", "ab", "cc"]),
        ),
        (
            r#"[gsub("(?<a>.)"; if .a == "y" then "1", "2" else "3" end)]"#,
            json!("xy"),
            json!(["31", "2"]),
        ),
    ]);
}

#[test]
fn errors_of_searches_are_those_of_jq() {
    check(&[
        (
            r#"try test("a") catch ."#,
            json!(null),
            json!("null (null) cannot be matched, as it is not a string"),
        ),
        (
            "try test(1) catch .",
            json!("a"),
            json!("number not a string or array"),
        ),
        (
            "try test([]) catch .",
            json!("a"),
            json!("array not a string or array"),
        ),
        (
            r#"try test("a"; 1) catch ."#,
            json!("a"),
            json!("number (1) is not a string"),
        ),
        (
            r#"try scan(["a", "i"]) catch ."#,
            json!("a"),
            json!("array ([\"a\",\"i\"]) is not a string"),
        ),
        (
            r#"try test("a"; "g" + "q") catch ."#,
            json!("a"),
            json!("gq is not a valid modifier string"),
        ),
        (
            r#"try gsub("a"; 1) catch ."#,
            json!("ab"),
            json!("string (\"\") and number (1) cannot be added"),
        ),
        (
            r#"try test("(?" + "=a)") catch ."#,
            json!("ab"),
            json!("Regex failure: lookahead is not offered"),
        ),
    ]);
}

/// jq offers them; here a pattern is an automaton, whose work is bounded.
#[test]
fn patterns_that_need_more_than_an_automaton_are_refused_with_the_document() {
    for (pattern, why) in [
        ("(?=a)", "lookahead"),
        ("(?!a)", "lookahead"),
        ("(?<=a)", "lookbehind"),
        ("(?<!a)", "lookbehind"),
        (r"(a)\1", "a reference to a group"),
        (r"(?<x>a)\k<x>", "a reference to a group"),
        ("(?>a)", "gives nothing back"),
        ("a++", "possessive"),
        ("a+(?#note)?", "a repetition apart"),
        ("(?x)a+ ?", "a repetition apart"),
        ("(?x)a{2} # note\n +", "a repetition apart"),
        ("(?(1)a)", "condition"),
        (r"\Ga", r"\G"),
        ("(", "unclosed group"),
        ("a)", "unopened group"),
        ("[a", "premature end"),
        ("a{3,2}", "at least"),
        ("(?P<x>a)", "undefined group option"),
        ("(?<1>a)", "group name"),
        ("(?<x", "end pattern"),
        ("*", "repetition operator"),
        (r"\", "end pattern"),
        ("[[:nope:]]", "is not a class"),
        (r"\p{", "invalid character property"),
    ] {
        let pattern = json!(pattern);
        for source in [
            format!("test({pattern})"),
            format!("[match({pattern}; \"g\")]"),
            format!("gsub({pattern}; \"\")"),
            format!("[.[] | splits({pattern})]"),
        ] {
            let refused = refused(&source);
            assert!(refused.contains(why), "{source}: {refused}");
        }
    }
    let flags = refused(r#"test("a"; "q")"#);
    assert!(flags.contains("'q' are no flags"), "{flags}");
    // The size of what it compiles to is known when it runs.
    let large = r#"try test("(?:\\pL{90}){90}") catch ."#;
    let found = evaluate(large, &json!("a")).expect("an error that is caught");
    assert!(
        found.as_str().is_some_and(|text| text.contains("bytes")),
        "{found}"
    );
    let long = format!("test(\"{}\")", "a".repeat(5_000));
    assert!(refused(&long).contains("4096 bytes"));
    let groups = format!("try test(\"{}\") catch .", "(a)".repeat(101));
    assert!(refused(&groups).contains("100 groups"));
}

#[test]
fn a_pattern_is_compiled_once_in_an_evaluation() {
    let texts: Value = (0..2_000).map(|n| format!("text {n}")).collect();
    let filter = r#"map(select(test("^\\w+ 1\\d$"))) | length"#;
    assert_eq!(evaluate(filter, &texts), Ok(json!(10)));
    // More different ones than are kept are compiled each time, which is paid for.
    let filter = r#"[range(20) as $n | range(100) | tostring | test("x\($n)y")] | length"#;
    assert_eq!(evaluate(filter, &json!(null)), Ok(json!(2_000)));
    let filter = r#"[range(100) as $i | range(20) as $n | "a" | test("x\($n)y")] | length"#;
    assert_eq!(evaluate(filter, &json!(null)), Err(JqError::TooMuchWork));
}

#[test]
fn trails_are_lost_where_a_search_makes_its_output() {
    let refused = evaluate(r#"path(match("a"))"#, &json!("a")).expect_err("no path");
    assert!(
        refused.to_string().contains("Invalid path expression"),
        "{refused}"
    );
    assert!(Filter::compile(r#"test("a"; "g"; "x")"#).is_err());
}

#[test]
fn brackets_of_tags_and_hyphens_next_to_classes_are_themselves() {
    let found = |source: &str, text: &str| evaluate(source, &json!(text));
    assert_eq!(found(r#"test("<b>")"#, "a b c"), Ok(json!(false)));
    assert_eq!(found(r#"gsub("<[^>]+>"; "")"#, "<i>x</i>"), Ok(json!("x")));
    assert_eq!(found(r#"sub("\\<b\\>"; "-")"#, "<b>x"), Ok(json!("-x")));
    let mail = r#"[match("[\\w-\\.]+@[\\w-]+"; "g").string]"#;
    assert_eq!(found(mail, "to a-b.c@d-e now"), Ok(json!(["a-b.c@d-e"])));
    assert_eq!(found(r#"gsub("[!--a]"; "")"#, "!-a,b"), Ok(json!("b")));
    assert_eq!(found(r#"gsub("[[:digit:]-x]"; "")"#, "1-x2y"), Ok(json!("y")));
    assert_eq!(found(r#"gsub("[a-c-e]"; "")"#, "abcde-"), Ok(json!("d")));
}
