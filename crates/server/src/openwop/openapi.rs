//! The OpenAPI document, generated from the table of routes.
//!
//! The router uses the same table, so the document cannot list a missing route or omit an existing one.
//! Deriving it from handler signatures would need macros on types of another crate and would still not know
//! scopes; here both are data.

use serde_json::{Map, Value, json};

use super::{
    route::{Access, Exists, Input, Route},
    schemas,
    table::ROUTES,
};

const FORM: &str = "application/x-www-form-urlencoded";

/// The schema of an interrupt page's form.
fn form() -> Value {
    json!({
        "type": "object",
        "properties": {
            "action": { "type": "string", "description": "Of an approval." },
            "feedback": { "type": "string", "description": "Of an approval: feedback, the changes asked for, or the question." },
            "edited": { "type": "string", "description": "Of an approval with edit-accept: the content, as JSON unless it is a text." },
            "value": { "type": "string", "description": "Of other interrupts: the answer as JSON." },
        },
        "patternProperties": {
            "^answers\\[.+\\]$": { "type": "string", "description": "Of a clarification: the answer to the question with this id." },
        },
    })
}

/// The description of a status, common to all routes.
fn meaning(status: u16) -> &'static str {
    match status {
        200 => "The answer.",
        201 => "Created.",
        202 => "Accepted.",
        204 => "Done; no body.",
        303 => "The form was taken; the page says what became of it.",
        304 => "The version the caller knows is current.",
        400 => "The request breaks a rule; details.field names the place.",
        401 => "No credential, or none that is known.",
        403 => "The credential does not allow this; details.scopeRequired names a missing scope.",
        404 => "There is no such thing, or it is not the caller's.",
        405 => "The resource does not take this method.",
        408 => "The request did not arrive in time.",
        409 => "The state of the resource, or an idempotency key, does not allow this.",
        410 => "It was there and is over.",
        413 => "The body is larger than limits.maxRequestBodyBytes.",
        415 => "The body is not application/json.",
        422 => "Well-formed, but it does not fit what is asked for.",
        501 => "A part of the protocol that this host does not have.",
        503 => "Not now; Retry-After says when.",
        _ => "An error.",
    }
}

pub(super) fn document(origin: &str, is_conformance: bool) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        if route.exists == Exists::Conformance && !is_conformance {
            continue;
        }
        let item = paths.entry(route.path.to_owned()).or_insert_with(|| json!({}));
        item[route.verb.method().as_str().to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "wopr",
            "summary": "A durable workflow host: OpenWOP v1 over REST.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{ "url": origin }],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "An API key." },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "responses": responses(route),
    });
    let parameters: Vec<_> = path_parameters(route.path)
        .chain(route.params.iter().map(|param| {
            json!({
                "name": param.name,
                "in": param.place,
                "description": param.about,
                "schema": { "type": "string" },
            })
        }))
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    let body = |schema: &str, is_required: bool| {
        json!({
            "required": is_required,
            "content": { "application/json": { "schema": reference(schema) } },
        })
    };
    match route.input {
        Input::None => {}
        Input::Required(schema) => operation["requestBody"] = body(schema, true),
        Input::Optional(schema) => operation["requestBody"] = body(schema, false),
    }
    if route.is_page && !matches!(route.input, Input::None) {
        operation["requestBody"]["content"][FORM] = json!({ "schema": form() });
    }
    match route.access {
        Access::Public | Access::Token => operation["security"] = json!([]),
        Access::Scopes(scopes) => {
            let names: Vec<_> = scopes.iter().map(|scope| scope.as_str()).collect();
            operation["security"] = json!([{ "bearer": [] }]);
            operation["x-openwop-scopes"] = json!(names);
        }
    }
    operation
}

fn path_parameters(path: &'static str) -> impl Iterator<Item = Value> {
    path.split('{').skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        Some(json!({
            "name": name,
            "in": "path",
            "required": true,
            "schema": { "type": "string", "minLength": 1 },
        }))
    })
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    let success = route.success;
    let mut answer = json!({ "description": meaning(success.status) });
    if !success.media.is_empty() {
        let schema = success.schema.map_or_else(|| json!({}), reference);
        answer["content"] = json!({ success.media: { "schema": schema } });
    }
    if success.media == "text/event-stream" {
        answer["content"]["application/json"] = json!({ "schema": reference("PollResponse") });
    }
    if route.is_page {
        answer["content"]["text/html"] = json!({ "schema": { "type": "string" } });
        if !matches!(route.input, Input::None) {
            responses.insert("303".to_owned(), json!({ "description": meaning(303) }));
        }
    }
    if let Some(other) = success.or {
        let mut answer = answer.clone();
        answer["description"] = json!(meaning(other));
        responses.insert(other.to_string(), answer);
    }
    responses.insert(success.status.to_string(), answer);
    let takes_etag = route.params.iter().any(|param| param.name == "If-None-Match");
    if takes_etag {
        responses.insert("304".to_owned(), json!({ "description": meaning(304) }));
    }
    let authenticated: &[u16] = match route.access {
        Access::Public | Access::Token => &[],
        Access::Scopes(_) => &[401, 403],
    };
    for status in authenticated.iter().chain(route.errors) {
        let problem = json!({
            "description": meaning(*status),
            "content": { "application/json": { "schema": reference("ErrorEnvelope") } },
        });
        responses.insert(status.to_string(), problem);
    }
    Value::Object(responses)
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match member {
                        Value::String(target) if name == "$ref" => found.push(target.clone()),
                        member => references(member, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn references_resolve_and_schemas_are_used() {
        let document = document("http://localhost", true);
        let mut found = Vec::new();
        references(&document, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            let target = format!("#/components/schemas/{name}");
            assert!(found.contains(&target), "{name} is not used");
        }
    }

    #[test]
    fn document_describes_every_route_with_its_scopes() {
        let document = document("http://localhost", true);
        for route in ROUTES {
            let method = route.verb.method().as_str().to_ascii_lowercase();
            let operation = &document["paths"][route.path][&method];
            assert_eq!(operation["operationId"], route.id, "{route:?}");
            if matches!(route.access, Access::Scopes(_)) {
                assert!(operation["responses"]["401"].is_object(), "{route:?}");
            }
        }
        let hidden = self::document("http://localhost", false);
        assert!(
            hidden["paths"]
                .as_object()
                .unwrap()
                .keys()
                .all(|path| !path.contains("sample"))
        );
    }
}
