//! Inputs derived from schemas, and answers read back.

use serde_json::json;

use super::*;

fn form(fields: &[(&str, &str)]) -> Form {
    let body: String = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish();
    Form::parse(body.as_bytes()).expect("a form")
}

fn read(schema: &Value, answers: &[&str]) -> Result<Value, String> {
    let question = json!({ "id": "q[1]", "question": "How?", "schema": schema });
    let fields: Vec<_> = answers.iter().map(|answer| ("answers[q[1]]", *answer)).collect();
    Field::of(&question).expect("a question").read(&form(&fields))
}

fn input(schema: &Value) -> String {
    let question = json!({ "id": "q", "question": "How <b>?", "schema": schema });
    Field::of(&question)
        .expect("a question")
        .show(0, None)
        .into_string()
}

#[test]
fn answer_has_the_type_of_its_schema() {
    let one_of = json!({ "oneOf": [{ "const": 1, "title": "One" }, { "const": "two" }] });
    for (schema, answers, wanted) in [
        (json!({ "type": "string" }), &["5"][..], json!("5")),
        (json!({}), &[" a\r\nb "], json!(" a\nb ")),
        (json!({ "type": "integer" }), &[" 5 "], json!(5)),
        (json!({ "type": "number" }), &["-2.5"], json!(-2.5)),
        (json!({ "minimum": 1 }), &["7"], json!(7)),
        (json!({ "type": "boolean" }), &["true"], json!(true)),
        (json!({ "type": "boolean" }), &["false"], json!(false)),
        (json!({ "enum": ["small", 5, true] }), &["small"], json!("small")),
        (json!({ "enum": ["small", 5, true] }), &["5"], json!(5)),
        (one_of.clone(), &["One"], json!(1)),
        (one_of, &["two"], json!("two")),
        (json!({ "type": ["string", "null"] }), &[" "], json!(null)),
        (json!({ "type": ["integer", "null"] }), &[], json!(null)),
        (
            json!({ "type": "array", "items": { "enum": ["a", "b", "c"] } }),
            &["a", "c"],
            json!(["a", "c"]),
        ),
        (
            json!({ "type": "array", "items": { "enum": ["a"] } }),
            &[],
            json!([]),
        ),
        (
            json!({ "type": "array", "items": { "type": "string" } }),
            &["one\r\n\r\n two "],
            json!(["one", "two"]),
        ),
        (
            json!({ "type": "object" }),
            &["{\"a\": [1]}"],
            json!({ "a": [1] }),
        ),
        (json!({ "$ref": "#/x" }), &["[1]"], json!([1])),
    ] {
        assert_eq!(read(&schema, answers), Ok(wanted), "{schema} {answers:?}");
    }
}

#[test]
fn answer_of_another_type_is_rejected() {
    for (schema, answers, why) in [
        (json!({ "type": "string" }), &[][..], "needs an answer"),
        (json!({ "type": "string" }), &["  "], "needs an answer"),
        (json!({ "type": "string" }), &["a", "b"], "has several answers"),
        (json!({ "type": "integer" }), &["five"], "needs a number"),
        (json!({ "type": "integer" }), &["1; 2"], "needs a number"),
        (json!({ "type": "boolean" }), &["yes"], "needs yes or no"),
        (json!({ "enum": ["a"] }), &["b"], "has no such choice"),
        (
            json!({ "type": "array", "items": { "enum": ["a"] } }),
            &["b"],
            "has no such choice",
        ),
        (json!({ "type": "object" }), &["{"], "needs JSON"),
    ] {
        assert_eq!(read(&schema, answers), Err(format!("“How?” {why}")));
    }
}

#[test]
fn schema_selects_the_input() {
    for (schema, wanted) in [
        (json!({ "type": "string" }), "<input type=\"text\""),
        (
            json!({ "type": "string", "format": "email" }),
            "<input type=\"email\"",
        ),
        (json!({ "type": "string", "maxLength": 1000 }), "<textarea"),
        (json!({ "type": "string", "format": "multiline" }), "<textarea"),
        (
            json!({ "type": "integer", "minimum": 1, "maximum": 9 }),
            "min=\"1\" max=\"9\" step=\"1\"",
        ),
        (json!({ "type": "number" }), "step=\"any\""),
        (
            json!({ "type": "boolean", "default": true }),
            "<input type=\"radio\" name=\"answers[q]\" value=\"true\" required checked>",
        ),
        (json!({ "enum": ["a", "b"] }), "value=\"b\" required>"),
        (
            json!({ "enum": (0..20).collect::<Vec<_>>() }),
            "<option value=\"19\">",
        ),
        (
            json!({ "type": "array", "items": { "enum": ["a"] } }),
            "<input type=\"checkbox\" name=\"answers[q]\" value=\"a\">",
        ),
        (json!({ "type": "object" }), "<textarea class=\"code\""),
    ] {
        let html = input(&schema);
        assert!(html.contains(wanted), "{schema}: {html}");
        assert!(html.contains("How &lt;b&gt;?"), "{html}");
        let is_labelled = html.contains("<label for=\"answer-0\">") || html.contains("<legend>");
        assert!(is_labelled, "{html}");
    }
}

#[test]
fn only_nullable_fields_are_optional() {
    let required = input(&json!({ "type": "string" }));
    assert!(
        required.contains(" required") && !required.contains("(optional)"),
        "{required}"
    );
    let optional = input(&json!({ "type": ["string", "null"] }));
    assert!(
        !optional.contains(" required") && optional.contains("(optional)"),
        "{optional}"
    );
}

#[test]
fn question_without_schema_accepts_any_text() {
    let question = json!({ "id": "q", "question": "How?" });
    let field = Field::of(&question).expect("a question");
    assert_eq!(field.read(&form(&[("answers[q]", "so")])), Ok(json!("so")));
    assert!(field.show(0, None).into_string().contains("<textarea"));
}

#[test]
fn submitted_values_are_escaped() {
    let hostile = "\"><script>";
    for schema in [json!({ "type": "string" }), json!({ "type": "object" })] {
        let question = json!({ "id": "q", "question": "How?", "schema": schema });
        let given = form(&[("answers[q]", hostile)]);
        let field = Field::of(&question).expect("a question");
        let html = field.show(0, Some(&given)).into_string();
        assert!(html.contains("&quot;&gt;&lt;script&gt;"), "{html}");
    }
}

#[test]
fn forms_are_bounded_and_reject_unknown_fields() {
    let many = "answers[a]=1&".repeat(MAX_FIELDS + 1);
    assert_eq!(Form::parse(many.as_bytes()), Err(FormError::TooMany));
    let unknown = FormError::Unknown("voter".to_owned());
    assert_eq!(Form::parse(b"action=accept&voter=boss"), Err(unknown));
    assert_eq!(
        Form::parse(b"action=accept&action=reject"),
        Err(FormError::Twice("action"))
    );
    assert!(matches!(
        Form::parse(&[b"x".as_slice(), &vec![b'y'; 100_000]].concat()),
        Err(FormError::Unknown(name)) if name.len() == 64
    ));
}
