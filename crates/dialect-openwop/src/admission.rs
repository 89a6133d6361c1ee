//! Rules that apply only to new definitions, beyond those that a definition needs to run.
//!
//! At registration a host refuses what it would otherwise accept and not honor. It checks these rules only
//! then: a definition that an earlier build accepted is loaded with [`Plan::compile`] alone, so that its runs
//! continue.

use std::collections::HashSet;

use serde_json::{Map, Value};
use wopr_kernel::NodeTypes;

use crate::{
    MAX_PROBLEMS, Problem, Problems, Spot,
    authoring::{Depth, push, walk},
    channel,
    decision::Decision,
    definition::{Definition, Node},
    measure::too_deep,
    node::{is_of_a_run, tool_workflow},
    plan::Plan,
    schema::{Allowance, Schema},
};

impl Plan {
    /// Accepts a new definition: parses and compiles it, and checks the rules for new definitions.
    ///
    /// # Errors
    /// Every problem, with its place and a JSON pointer.
    pub fn admit(document: Value, node_types: NodeTypes) -> Result<Self, Problems> {
        // The host's own workflow has a node that authors do not know.
        if document == tool_workflow() {
            return Self::compile(Definition::read(&document)?, node_types).map(|mut plan| {
                plan.definition.document = document;
                plan
            });
        }
        let decoded = Definition::read(&document).map(|definition| {
            let mut more = problems(&definition);
            more.extend(repeated_triggers(&document));
            (Self::compile(definition, node_types), more)
        });
        let (mut decoder, more) = match decoded {
            Ok((Ok(mut plan), more)) if more.is_empty() => {
                let shape = walk(&document, node_types, Depth::Shapes);
                if shape.is_empty() {
                    plan.definition.document = document;
                    return Ok(plan);
                }
                (shape, Vec::new())
            }
            Ok((compiled, more)) => (
                compiled.err().map_or_else(Vec::new, |Problems(found)| found),
                more,
            ),
            Err(Problems(found)) => (found, Vec::new()),
        };
        if !document.is_object() || too_deep(&document) {
            return Err(Problems(decoder));
        }
        // The decoder stops at the first problem of each part and has no pointers; only problems that no
        // other check found are kept.
        let mut all = walk(&document, node_types, Depth::Everything);
        let settings = all.iter().any(|found| found.pointer.starts_with("/settings"));
        decoder.retain(|problem| {
            let is_known = all.iter().any(|found| found.place == problem.place);
            let is_of_settings = problem.place == "settings" || problem.rule.starts_with("settings.");
            !(is_known || settings && is_of_settings)
        });
        all.extend(decoder.into_iter().map(|problem| {
            let pointer = pointer_of(&document, &problem.place);
            if problem.pointer.is_empty() {
                problem.at(pointer, Spot::Value)
            } else {
                problem
            }
        }));
        for problem in more {
            if all
                .iter()
                .all(|found| found.place != problem.place || !found.pointer.starts_with(&problem.pointer))
            {
                all.push(problem);
            }
        }
        all.truncate(MAX_PROBLEMS);
        Err(Problems(all))
    }
}

/// The JSON pointer of the part that a place names.
fn pointer_of(document: &Value, place: &str) -> String {
    for (list, what, id) in [
        ("nodes", "node", "id"),
        ("edges", "edge", "id"),
        ("variables", "variable", "name"),
    ] {
        let items = document.get(list).and_then(Value::as_array);
        for (index, item) in items.into_iter().flatten().enumerate() {
            let named = item.get(id).and_then(Value::as_str);
            if named.is_some_and(|id| Problem::new(format!("{what} '{id}'"), "").place == place) {
                return format!("/{list}/{index}");
            }
        }
    }
    String::new()
}

fn problems(definition: &Definition) -> Vec<Problem> {
    let nodes = definition.nodes.iter().enumerate();
    let nodes = nodes.flat_map(|(index, node)| {
        let place = format!("node '{}'", node.id);
        let rules = of_node(node, definition).into_iter();
        let rules = rules.map(|(part, rule)| (part.to_owned(), rule));
        let rules = rules.chain(decisions(node));
        rules.map(move |(part, rule)| {
            Problem::new(&place, rule).at(format!("/nodes/{index}{part}"), Spot::Value)
        })
    });
    let allowance = Allowance::default();
    let channels = definition.channels.iter().flat_map(|(name, declaration)| {
        let place = format!("channel '{name}'");
        let mut pointer = "/channels".to_owned();
        push(&mut pointer, &name[..name.floor_char_boundary(200)]);
        let is_variable = definition.variables.iter().any(|variable| variable.name == *name);
        let rule =
            is_variable.then(|| "a variable has the name, and whatever sets it would write here".to_owned());
        let rules = rule.into_iter().chain(of_channel(declaration, &allowance));
        rules.map(move |rule| Problem::new(&place, rule).at(&pointer, Spot::Name))
    });
    nodes.chain(channels).collect()
}

/// The triggers whose id an earlier one has. Nothing names a trigger but its id.
fn repeated_triggers(document: &Value) -> Vec<Problem> {
    let triggers = document.get("triggers").and_then(Value::as_array);
    let mut seen = HashSet::new();
    let repeated = triggers
        .into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(index, trigger)| {
            let id = trigger.get("id")?.as_str()?;
            let problem = || {
                Problem::new(format!("trigger {index}"), "the id is used twice")
                    .at(format!("/triggers/{index}/id"), Spot::Value)
            };
            (!seen.insert(id)).then(problem)
        });
    repeated.collect()
}

/// The decisions of a supervisor's settings that are none, whatever their templates become.
fn decisions(node: &Node) -> Vec<(String, String)> {
    if node.type_id != "core.orchestrator.supervisor" {
        return Vec::new();
    }
    let rules = node.config.get("rules").and_then(Value::as_array);
    let rules = rules.into_iter().flatten().enumerate().filter_map(|(n, rule)| {
        let decision = rule.get("decision")?;
        Some((
            format!("/config/rules/{n}/decision"),
            format!("config.rules[{n}].decision"),
            decision,
        ))
    });
    let otherwise = node.config.get("decision").map(|decision| {
        (
            "/config/decision".to_owned(),
            "config.decision".to_owned(),
            decision,
        )
    });
    let written = rules.chain(otherwise);
    let broken = written.filter_map(|(pointer, name, decision)| {
        let rule = Decision::check_written(decision).err()?;
        Some((pointer, format!("{name}: {rule}")))
    });
    broken.collect()
}

/// The rules that a node breaks, each with the part of the node that breaks it.
fn of_node(node: &Node, definition: &Definition) -> Vec<(&'static str, String)> {
    let mut rules: Vec<_> = node.agent.as_ref().map(agent_ref).unwrap_or_default();
    let mut rules: Vec<_> = rules.drain(..).map(|rule| ("/agent", rule)).collect();
    // A node `sub:0/gate` next to a child of `sub` would share an interrupt id with the child's `gate`.
    if node.id.as_str().contains('/') {
        let rule = "id has a '/', which separates the parts of interrupt ids";
        rules.push(("/id", rule.to_owned()));
    }
    rules.extend(node.inputs.iter().filter_map(|(name, port)| {
        let unknown = unknown_field(port)?;
        Some(("/inputs", format!("inputs.{name}: unknown field '{unknown}'")))
    }));
    for (port, _) in node
        .output_sensitivity
        .iter()
        .filter(|(_, mark)| !mark.is_boolean())
    {
        let rule = format!("outputSensitivity.{port} is not a boolean");
        rules.push(("/outputSensitivity", rule));
    }
    if node.artifact_type.is_some()
        && let Some(port) = shown_in_artifact(node, definition)
    {
        let rule = format!("'artifactType' shows the outputs to everyone, and '{port}' is sensitive");
        rules.push(("/artifactType", rule));
    }
    if let Some((path, name)) = output_mappings(&node.type_id, &node.config)
        .into_iter()
        .flat_map(|(path, mapping)| mapping.keys().map(move |name| (path.clone(), name)))
        .find(|(_, name)| definition.channels.contains_key(*name))
    {
        let rule = format!(
            "config.{} sets '{name}', which is a channel: only core.channelWrite writes to it",
            path.join(".")
        );
        rules.push((
            match path[0] {
                WORKER_OUTPUTS => "/config/perWorkerOutputMappings",
                _ => "/config/outputMapping",
            },
            rule,
        ));
    }
    rules
}

/// The member of a dispatch that has an output mapping for each worker.
const WORKER_OUTPUTS: &str = "perWorkerOutputMappings";

/// The mappings by which a node sets variables to what its children give back, each with its path in the node's `config`.
pub(crate) fn output_mappings<'c>(
    type_id: &str,
    config: &'c Map<String, Value>,
) -> Vec<(Vec<&'c str>, &'c Map<String, Value>)> {
    if !matches!(type_id, "core.subWorkflow" | "core.dispatch") {
        return Vec::new();
    }
    let mapping = |name| Some((vec![name], config.get(name)?.as_object()?));
    let mut mappings: Vec<_> = mapping("outputMapping").into_iter().collect();
    if type_id == "core.dispatch" {
        let workers = config.get(WORKER_OUTPUTS).and_then(Value::as_object);
        let workers = workers.into_iter().flatten();
        mappings.extend(workers.filter_map(|(worker, mapping)| {
            Some((vec![WORKER_OUTPUTS, worker.as_str()], mapping.as_object()?))
        }));
    }
    mappings
}

/// The rules that a channel's declaration breaks.
///
/// A declaration cannot restrict readers: expressions see every channel, so the host could not enforce it.
fn of_channel(declaration: &Value, allowance: &Allowance) -> Vec<String> {
    let mut rules: Vec<_> = of_access(declaration).into_iter().map(|(_, rule)| rule).collect();
    if declaration
        .get("sensitive")
        .is_some_and(|sensitive| !sensitive.is_boolean())
    {
        rules.push("'sensitive' is not a boolean".to_owned());
    }
    let default = declaration.get("default");
    match declaration
        .get("schema")
        .map(|schema| Schema::compile(schema, allowance))
    {
        Some(Err(rule)) => rules.push(format!("schema: {rule}")),
        Some(Ok(schema)) if default.is_some_and(|default| schema.validate_alone(default).is_err()) => {
            rules.push("'default' is not valid by 'schema'".to_owned());
        }
        Some(Ok(_)) | None => {}
    }
    let reducer = declaration.get("reducer").and_then(Value::as_str);
    if let (Some(reducer), Some(default)) = (reducer, default)
        && let Some(form) = channel::form_of(reducer)
        && !form.is_of(default)
    {
        rules.push(format!(
            "'default' is not {}, which '{reducer}' adds to",
            form.as_str()
        ));
    }
    rules
}

/// The rules that `access` of a channel breaks, each with the member of `access` that breaks it.
pub(crate) fn of_access(declaration: &Value) -> Vec<(Option<&str>, String)> {
    let mut rules = Vec::new();
    match declaration.get("access") {
        None => {}
        Some(Value::String(access)) if access == "public" => {}
        Some(Value::String(access)) if access == "private" => {
            let rule =
                "access 'private' lets no node read, which this host does not hold; name access.writers";
            rules.push((None, rule.to_owned()));
        }
        Some(Value::Object(access)) => {
            if let Some(unknown) = first_unknown(access, &["readers", "writers"]) {
                rules.push((Some(unknown), format!("access: unknown field '{unknown}'")));
            }
            for (side, entries) in access {
                let entries = entries.as_array();
                if !entries.is_some_and(|entries| entries.iter().all(Value::is_string)) {
                    rules.push((Some(side), format!("access.{side} is not an array of strings")));
                } else if side == "readers"
                    && !entries.is_some_and(|entries| entries.iter().any(|e| e == "*"))
                {
                    let rule = "access.readers is not held by this host, except with '*' among them";
                    rules.push((Some(side), rule.to_owned()));
                }
            }
        }
        Some(_) => {
            let rule = "'access' is none of public, private and an object";
            rules.push((None, rule.to_owned()));
        }
    }
    rules
}

/// A sensitive output that the node's artifact would show, as far as the outputs are known before the node
/// runs.
fn shown_in_artifact<'a>(node: &'a Node, definition: &Definition) -> Option<&'a str> {
    let is_sensitive = |name: &str| {
        let variable = definition.variables.iter().find(|variable| variable.name == name);
        let channel = definition
            .channels
            .get(name)
            .and_then(|channel| channel.get("sensitive"));
        variable.is_some_and(|variable| variable.sensitive) || channel == Some(&Value::Bool(true))
    };
    let mut ports = node.inputs.keys().map(String::as_str).chain(["text"]);
    node.marked()
        .next()
        .or_else(|| ports.find(|port| is_sensitive(port)))
}

/// The first field that a port of its type does not have. Compiling the port reports its other problems.
fn unknown_field(port: &Value) -> Option<&str> {
    let known: &[&str] = match port.get("type")?.as_str()? {
        "static" => &["type", "value"],
        "expression" => &["type", "expression"],
        "connection" => &["type", "nodeId", "outputKey", "optional"],
        "variable" => &["type", "variableName", "optional"],
        _ => return None,
    };
    first_unknown(port.as_object()?, known)
}

fn first_unknown<'a>(object: &'a Map<String, Value>, known: &[&str]) -> Option<&'a str> {
    let mut keys = object.keys().map(String::as_str);
    keys.find(|key| !known.contains(key))
}

/// String fields of an AgentRef, with their minimum and maximum number of characters.
const AGENT_TEXTS: [(&str, usize, usize); 5] = [
    ("agentId", 3, 256),
    ("name", 0, 256),
    ("memoryRef", 1, 256),
    ("version", 0, 64),
    ("sourceManifestId", 0, 256),
];

pub(crate) const MODEL_CLASSES: [&str; 9] = [
    "reasoning",
    "tool-using",
    "chat",
    "code",
    "vision",
    "multimodal",
    "embedding",
    "classification",
    "retrieval",
];

/// The rules that an AgentRef breaks. Only hosts with agent deployments resolve release channels (RFC 0082).
fn agent_ref(agent: &Value) -> Vec<String> {
    let Some(fields) = agent.as_object() else {
        return vec!["'agent' is not an object".to_owned()];
    };
    let mut rules = Vec::new();
    if !fields.contains_key("agentId") {
        rules.push("agent.agentId is missing".to_owned());
    }
    for (field, value) in fields {
        let text = value.as_str();
        let bounds = AGENT_TEXTS.iter().find(|(known, ..)| known == field);
        match (field.as_str(), bounds) {
            (_, Some((_, min, max))) => {
                if !text.is_some_and(|text| (*min..=*max).contains(&text.chars().count())) {
                    rules.push(format!(
                        "agent.{field} is not a string of {min} to {max} characters"
                    ));
                }
                if field == "memoryRef" && text.is_some_and(is_of_a_run) {
                    rules.push("agent.memoryRef begins with 'run:', as the scopes of runs do".to_owned());
                }
            }
            ("modelClass", None) => {
                if !text.is_some_and(|class| MODEL_CLASSES.contains(&class)) {
                    rules.push(format!(
                        "agent.modelClass is none of {}",
                        MODEL_CLASSES.join(", ")
                    ));
                }
            }
            ("channel", None) => rules.push(
                "agent.channel needs the capability agents.deployment, which this host does not have"
                    .to_owned(),
            ),
            (unknown, None) => rules.push(format!("agent: unknown field '{unknown}'")),
        }
    }
    rules
}
