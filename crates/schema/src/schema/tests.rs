//! Schemas follow 2020-12 and stay within their cost limits.

use serde_json::{Value, json};

use super::*;
use crate::cost::EVALUATION;

fn compile(document: &Value) -> Result<Schema, String> {
    Schema::compile(document, &Allowance::default())
}

#[test]
fn keywords_follow_draft_2020_12() {
    let instances = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(1.0),
        json!(2.5),
        json!(-3),
        json!(""),
        json!("a"),
        json!("abc"),
        json!("äöü"),
        json!("2024"),
        json!([]),
        json!([1]),
        json!([1, 2, 3]),
        json!([1, 1.0]),
        json!([1, "a", null]),
        json!([[1], [1]]),
        json!({}),
        json!({ "a": 1 }),
        json!({ "a": "x", "b": 2 }),
        json!({ "b": [] }),
        json!({ "ab": 1, "x": null }),
        json!({ "a": { "a": { "a": 1 } } }),
        json!({ "kind": "cat", "lives": 9 }),
        json!({ "kind": "dog" }),
    ];
    let schemas = [
        json!(true),
        json!(false),
        json!({}),
        json!({ "type": "integer" }),
        json!({ "type": ["string", "null"] }),
        json!({ "type": "number", "minimum": 1, "exclusiveMaximum": 2.5 }),
        json!({ "multipleOf": 0.5 }),
        json!({ "multipleOf": 3 }),
        json!({ "enum": [1, "a", null, [1], { "a": 1 }] }),
        json!({ "const": 1 }),
        json!({ "const": [1, 2, 3] }),
        json!({ "minLength": 2, "maxLength": 3 }),
        json!({ "pattern": "^[a-c]+$" }),
        json!({ "pattern": r"^\d{4}$" }),
        json!({ "minItems": 1, "maxItems": 2 }),
        json!({ "uniqueItems": true }),
        json!({ "items": { "type": "integer" } }),
        json!({ "prefixItems": [{ "type": "integer" }, { "type": "string" }], "items": false }),
        json!({ "contains": { "const": 1 } }),
        json!({ "contains": { "type": "integer" }, "minContains": 2, "maxContains": 2 }),
        json!({ "contains": { "const": 7 }, "minContains": 0 }),
        json!({ "minProperties": 1, "maxProperties": 1 }),
        json!({ "required": ["a"] }),
        json!({ "properties": { "a": { "type": "integer" } } }),
        json!({ "properties": { "a": true }, "additionalProperties": false }),
        json!({ "patternProperties": { "^a": { "type": "integer" } }, "additionalProperties": { "type": "null" } }),
        json!({ "propertyNames": { "maxLength": 1 } }),
        json!({ "dependentRequired": { "a": ["b"] } }),
        json!({ "dependentSchemas": { "a": { "required": ["b"] } } }),
        json!({ "allOf": [{ "type": "string" }, { "minLength": 1 }] }),
        json!({ "anyOf": [{ "type": "string" }, { "minimum": 1 }] }),
        json!({ "oneOf": [{ "type": "integer" }, { "minimum": 1 }] }),
        json!({ "not": { "type": "object" } }),
        json!({ "if": { "type": "string" }, "then": { "minLength": 2 }, "else": { "type": "array" } }),
        json!({ "$defs": { "n": { "type": "integer" } }, "items": { "$ref": "#/$defs/n" } }),
        json!({ "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "$id": "https://example.com/s", "$defs": { "x": { "$anchor": "n", "type": "string" } }, "anyOf": [{ "$ref": "#n" }, { "$ref": "https://example.com/s#/$defs/x" }] }),
        json!({ "properties": { "a": true }, "unevaluatedProperties": false }),
        json!({ "allOf": [{ "properties": { "a": true } }], "unevaluatedProperties": { "type": "array" } }),
        json!({ "anyOf": [{ "properties": { "a": { "type": "integer" } }, "required": ["a"] }, { "properties": { "b": true } }], "unevaluatedProperties": false }),
        json!({ "prefixItems": [true], "unevaluatedItems": { "type": "string" } }),
        json!({ "contains": { "type": "string" }, "unevaluatedItems": { "type": "integer" } }),
        json!({ "$ref": "#/$defs/a%25b", "$defs": { "a%b": { "type": "object" } } }),
        json!({ "oneOf": [{ "properties": { "kind": { "const": "cat" } }, "required": ["kind", "lives"] }, { "properties": { "kind": { "const": "dog" } }, "required": ["kind"] }] }),
        json!({ "format": "email", "$comment": "c", "title": "t", "x-unknown": 1 }),
    ];
    for document in &schemas {
        let ours = compile(document).unwrap_or_else(|error| panic!("{document}: {error}"));
        let theirs = jsonschema::draft202012::options().build(document).expect("valid");
        for instance in &instances {
            let found = ours.validate_alone(instance);
            assert_eq!(
                found.is_ok(),
                theirs.is_valid(instance),
                "{document} on {instance}: {found:?}"
            );
        }
    }
}

#[test]
fn invalid_schemas_are_refused() {
    for document in [
        json!(7),
        json!({ "type": "nonsense" }),
        json!({ "type": [] }),
        json!({ "minimum": "1" }),
        json!({ "minLength": -1 }),
        json!({ "required": [1] }),
        json!({ "allOf": [] }),
        json!({ "properties": { "a": 7 } }),
        json!({ "pattern": "(" }),
        json!({ "patternProperties": { "(": {} } }),
        json!({ "multipleOf": 0 }),
        json!({ "$ref": "https://example.com/schema" }),
        json!({ "$ref": "#/nowhere" }),
        json!({ "$ref": 7 }),
        json!({ "uniqueItems": 1 }),
        json!({ "enum": 1 }),
        json!({ "items": [{}] }),
    ] {
        assert!(compile(&document).is_err(), "{document}");
    }
}

/// A chain of `n` definitions, each referring to the next.
fn chain(n: usize, link: impl Fn(String) -> Value) -> Value {
    let mut defs: serde_json::Map<_, _> = (0..n)
        .map(|at| (format!("d{at}"), link(format!("#/$defs/d{}", at + 1))))
        .collect();
    defs.insert(format!("d{n}"), json!({ "type": "string" }));
    json!({ "$ref": "#/$defs/d0", "$defs": defs })
}

#[test]
fn references_are_bounded_in_depth_fan_out_and_number() {
    for n in [70, 4_000, 10_000] {
        assert!(compile(&chain(n, |next| json!({ "$ref": next }))).is_err());
        assert!(compile(&chain(n, |next| json!({ "allOf": [{ "$ref": next }] }))).is_err());
        assert!(compile(&chain(n, |next| json!({ "not": { "$ref": next } }))).is_err());
    }
    for keyword in ["anyOf", "allOf", "oneOf"] {
        // Each is twice as large as the one before: 2^30 when expanded.
        let doubled = |next: String| json!({ keyword: [{ "$ref": next }, { "$ref": next }] });
        assert!(compile(&chain(15, doubled)).is_err());
        let negated = |next: String| json!({ "not": { keyword: [{ "$ref": next }, { "$ref": next }] } });
        assert!(compile(&chain(12, negated)).is_err());
    }
    let conditional =
        |next: String| json!({ "if": { "$ref": next }, "then": { "$ref": next }, "else": { "$ref": next } });
    assert!(compile(&chain(15, conditional)).is_err());
    assert!(compile(&json!({ "allOf": vec![json!({}); 5_000] })).is_err());
    for circle in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#" }] }),
        json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
    ] {
        assert_eq!(
            compile(&circle).map(drop),
            Err("a reference leads back to itself".to_owned())
        );
    }
    // Realistic schemas.
    assert!(compile(&chain(20, |next| json!({ "$ref": next }))).is_ok());
}

#[test]
fn validation_stops_when_its_budget_is_spent() {
    let wide = json!((0..8_000).collect::<Vec<_>>());
    let deep = (0..60).fold(json!([]), |inner, _| json!([inner]));
    let texts = json!(vec!["x".repeat(1_000); 2_000]);
    let object: serde_json::Map<_, _> = (0..9_000).map(|n| (format!("key{n}"), json!(n))).collect();
    let cases = [
        // Each level recurses through two items: 2^60 on a deep value.
        (
            json!({ "anyOf": [{ "items": { "$ref": "#" }, "minItems": 1 }, { "items": { "$ref": "#" }, "const": 1 }] }),
            &deep,
        ),
        (
            json!({ "not": { "items": { "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] }, "minItems": 1 } }),
            &deep,
        ),
        (
            json!({ "items": { "enum": (0..1_000).map(|n| -n - 1).collect::<Vec<_>>() } }),
            &wide,
        ),
        (
            json!({ "items": { "anyOf": vec![json!({ "type": "string" }); 500] } }),
            &wide,
        ),
        (
            json!({ "allOf": vec![json!({ "uniqueItems": true }); 500] }),
            &wide,
        ),
        (
            json!({ "allOf": vec![json!({ "$ref": "#/$defs/same" }); 500], "$defs": { "same": { "const": wide.clone() } } }),
            &wide,
        ),
        (
            json!({ "items": { "pattern": "[x-z]*a" }, "contains": { "pattern": "x{1000}y" } }),
            &texts,
        ),
    ];
    for (document, instance) in cases {
        let schema = compile(&document).unwrap_or_else(|error| panic!("{document}: {error}"));
        let meter = Meter::alone();
        let found = schema.validate(instance, &meter);
        assert!(found.is_err(), "{found:?}");
        assert!(meter.spent() <= EVALUATION);
    }
    let schema = compile(
        &json!({ "patternProperties": { "^k": { "type": "integer" } }, "propertyNames": { "maxLength": 9 } }),
    );
    assert_eq!(
        schema.expect("valid").validate_alone(&Value::Object(object)),
        Ok(())
    );
}

#[test]
fn patterns_of_a_workflow_share_one_limit() {
    let allowance = Allowance::default();
    let patterns = (0..600)
        .map(|n| json!({ "pattern": format!("a{n}") }))
        .collect::<Vec<_>>();
    let refused = Schema::compile(&json!({ "anyOf": patterns }), &allowance).map(drop);
    assert!(refused.is_err_and(|error| error.contains("500 patterns")));
    let allowance = Allowance::default();
    let large: Vec<_> = (0..50)
        .map(|n| json!({ "pattern": format!("{n}[a-z]{{2000}}") }))
        .collect();
    let refused = Schema::compile(&json!({ "anyOf": large }), &allowance).map(drop);
    assert!(refused.is_err_and(|error| error.contains("bytes")));
    assert!(Schema::compile(&json!({ "pattern": "(?:.{100}){100}" }), &Allowance::default()).is_err());
}

#[test]
fn violations_name_their_place_and_stay_short() {
    let schema =
        compile(&json!({ "properties": { "a/b": { "items": { "type": "string" } } } })).expect("valid");
    let value = json!({ "a/b": ["x", 7] });
    let broken = schema.validate_alone(&value).expect_err("not a string");
    assert_eq!(
        broken,
        Invalid::Broken {
            at: "/a~1b/1".to_owned(),
            keyword: "type",
            message: "7 is not of type \"string\"".to_owned(),
        }
    );
    let schema = compile(&json!({ "type": "integer" })).expect("valid");
    let broken = schema
        .validate_alone(&json!("x".repeat(1_000_000)))
        .expect_err("a text");
    assert!(broken.to_string().len() < 200);
}
