//! Warnings about texts: braces that will be shown literally, URLs that are not absolute, and unknown
//! settings.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{Problem, Spot, node::NodeKind, plan::Plan};

use super::{
    super::{
        suggest::Suggest,
        walk::{FoundText, Language},
    },
    Lint, Warnings, node_place, written,
};

pub(super) fn check(plan: &Plan, found: &[FoundText<'_>], warnings: &mut Warnings<'_>) {
    let variables = plan.variables().iter().map(|variable| variable.name.as_str());
    let names = plan
        .nodes
        .iter()
        .map(|node| node.id.as_str())
        .chain(variables)
        .collect();
    for text in found {
        if warnings.is_full() {
            return;
        }
        braces(plan, &names, text, warnings);
    }
    let mut suggest = Suggest::new();
    for node in 0..plan.nodes.len() {
        url(plan, node, warnings);
        settings(
            plan,
            &format!("/nodes/{node}/settings"),
            &node_place(&plan.definition, node),
            &NODE_SETTINGS,
            (&mut suggest, warnings),
        );
    }
    settings(
        plan,
        "/settings",
        "definition",
        &SETTINGS,
        (&mut suggest, warnings),
    );
    masking(plan, warnings);
}

/// Warns about another form of masking than the one that the host has.
fn masking(plan: &Plan, warnings: &mut Warnings<'_>) {
    let pointer = "/metadata/complianceConfig/maskingMode";
    let mode = plan.definition.document.pointer(pointer);
    let Some(mode) = mode.and_then(Value::as_str).filter(|mode| *mode != "mask") else {
        return;
    };
    let rule = format!("metadata.complianceConfig.maskingMode '{mode}' has no effect");
    let hint = "sensitive values are always shown as [REDACTED], which is the mode 'mask'".to_owned();
    let problem = Problem::new("definition", rule)
        .at(pointer.to_owned(), Spot::Value)
        .hint(Some(hint));
    warnings.add(Lint::NoEffect, problem);
}

/// Warns about template syntax in texts that are never rendered, and about foreign placeholders in those that
/// are.
fn braces(plan: &Plan, names: &HashSet<&str>, text: &FoundText<'_>, warnings: &mut Warnings<'_>) {
    let warn = |warnings: &mut Warnings<'_>, at: usize, rule: String, hint: String| {
        let problem = Problem::new(&text.place, rule)
            .at(&text.pointer, Spot::Text(at))
            .hint(Some(hint));
        warnings.add(Lint::LiteralBraces, problem);
    };
    match text.language {
        Language::Literal => {
            let mark = text.text.find("{{").or_else(|| text.text.find("{%"));
            if let Some(at) = mark {
                let rule = "the braces are shown as they stand: this text is no template";
                let hint = "say what depends on the run in the gate's title or description";
                return warn(warnings, at, rule.to_owned(), hint.to_owned());
            }
        }
        Language::Template | Language::Words => {}
        Language::Expression => return,
    }
    // Braces are common in JSON, code and prose, so only a name that exists is surely meant as a placeholder.
    let is_for_people = text.part.is_some_and(|(list, index)| {
        list == "nodes"
            && plan.nodes.get(index).is_some_and(|node| {
                matches!(
                    node.kind,
                    NodeKind::Approval(_) | NodeKind::Clarification { .. } | NodeKind::Interrupt { .. }
                )
            })
    });
    if let Some((at, whole, name)) = foreign(text.text, |name| is_for_people || names.contains(name)) {
        let rule = format!(
            "{} is no template of wopr, so it is text",
            written(&Value::from(whole))
        );
        warn(warnings, at, rule, format!("write {{{{ {name} }}}}"));
    }
}

/// The first `{name}` or `${name}` in a text whose name is accepted: its offset, the placeholder and the
/// name.
fn foreign(text: &str, mut accepts: impl FnMut(&str) -> bool) -> Option<(usize, &str, &str)> {
    let mut at = 0;
    // Bounds the work for long texts; one match is enough.
    for _ in 0..1_000 {
        let open = at + text.get(at..)?.find('{')?;
        let rest = &text[open + 1..];
        if rest.starts_with(['{', '%', '#']) {
            // Skips the contents of our own template tags.
            let end = rest
                .find("}}")
                .or_else(|| rest.find("%}"))
                .or_else(|| rest.find("#}"))?;
            at = open + 1 + end + 2;
            continue;
        }
        at = open + 1;
        let Some(end) = rest.bytes().take(100).position(|byte| byte == b'}') else {
            continue;
        };
        let name = rest[..end].trim();
        let is_path = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        let first = name.split('.').next().unwrap_or(name);
        if is_path && accepts(first) {
            let start = if text[..open].ends_with('$') {
                open - 1
            } else {
                open
            };
            return Some((start, &text[start..open + 1 + end + 1], name));
        }
    }
    None
}

/// Warns about a URL that is missing or not absolute.
fn url(plan: &Plan, node: usize, warnings: &mut Warnings<'_>) {
    let planned = &plan.nodes[node];
    if !matches!(planned.kind, NodeKind::Http(_)) || planned.inputs.iter().any(|(name, _)| name == "url") {
        return;
    }
    let url = plan.definition.nodes[node]
        .config
        .get("url")
        .and_then(Value::as_str);
    let place = node_place(&plan.definition, node);
    let Some(url) = url else {
        let problem = Problem::new(place, "has no URL: neither config.url nor an input url")
            .at(format!("/nodes/{node}"), Spot::Value)
            .hint(Some(
                "give it a config.url such as https://example.com/".to_owned(),
            ));
        return warnings.add(Lint::RelativeUrl, problem);
    };
    let start = url.trim_start();
    let is_absolute = ["http://", "https://"].iter().any(|scheme| {
        start
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    if !is_absolute && !start.starts_with("{{") && !start.starts_with("{%") {
        let problem = Problem::new(
            place,
            format!("config.url is {}, which is not absolute", written(&url.into())),
        )
        .at(format!("/nodes/{node}/config/url"), Spot::Value)
        .hint(Some(
            "begin it with https://, or with a variable that holds the origin".to_owned(),
        ));
        warnings.add(Lint::RelativeUrl, problem);
    }
}

/// The settings of a workflow, and those that a node may override.
const SETTINGS: [&str; 5] = [
    TIMEOUT,
    "maxRetries",
    "retryDelayMs",
    "budget",
    "maxLoopbackIterations",
];
const NODE_SETTINGS: [&str; 2] = ["maxRetries", "retryDelayMs"];
const TIMEOUT: &str = "timeout";

/// Warns about unknown settings: settings are open, so a mistyped one would be ignored silently.
fn settings(
    plan: &Plan,
    pointer: &str,
    place: &str,
    known: &[&str],
    (suggest, warnings): (&mut Suggest, &mut Warnings<'_>),
) {
    let settings = plan
        .definition
        .document
        .pointer(pointer)
        .and_then(Value::as_object);
    for name in settings.into_iter().flat_map(Map::keys).take(100) {
        if known.contains(&name.as_str()) {
            continue;
        }
        let is_of_workflow = !known.contains(&TIMEOUT) && [TIMEOUT, "timeoutMs"].contains(&name.as_str());
        let hint = match is_of_workflow {
            true => Some("it bounds a whole run, in settings of the definition".to_owned()),
            false => suggest.hint(name, known.iter().copied()),
        };
        if let Some(hint) = hint {
            let mut pointer = pointer.to_owned();
            super::super::position::push(&mut pointer, name);
            let problem = Problem::new(place, format!("settings.{name} is not known, and ignored"))
                .at(pointer, Spot::Name)
                .hint(Some(hint));
            warnings.add(Lint::UnknownSetting, problem);
        }
    }
}
