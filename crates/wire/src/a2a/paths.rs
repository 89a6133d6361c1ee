//! The paths of the HTTP+JSON binding in both versions, relative to the address of an interface.
//!
//! The server and the client use the same table. The versions differ in the prefix of all paths ([`prefix`]),
//! in one path, and in the request field that a path sets ([`bind`]). Segments must be percent-decoded first:
//! some clients write the colon of a verb as `%3A`.

use serde_json::Value;

use super::method::{Operation, Version};
use crate::json::{DecodeError, Object};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Get,
    Post,
    Delete,
}

impl Verb {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Get, Self::Post, Self::Delete]
            .into_iter()
            .find(|verb| verb.as_str() == name)
    }
}

/// The location of an operation: its verbs, the preferred one first, and its path.
#[derive(Debug)]
struct Row {
    operation: Operation,
    verbs: &'static [Verb],
    path: &'static str,
    /// The path in 0.3, where it differs.
    old_path: Option<&'static str>,
}

const fn row(operation: Operation, verbs: &'static [Verb], path: &'static str) -> Row {
    Row {
        operation,
        verbs,
        path,
        old_path: None,
    }
}

const CONFIGS: &str = "tasks/{task}/pushNotificationConfigs";
const CONFIG: &str = "tasks/{task}/pushNotificationConfigs/{config}";

const ROWS: [Row; 11] = [
    row(Operation::SendMessage, &[Verb::Post], "message:send"),
    row(Operation::SendStreamingMessage, &[Verb::Post], "message:stream"),
    row(Operation::ListTasks, &[Verb::Get], "tasks"),
    row(Operation::GetTask, &[Verb::Get], "tasks/{task}"),
    row(Operation::CancelTask, &[Verb::Post], "tasks/{task}:cancel"),
    // The specification's text says POST, its protocol buffers GET.
    row(
        Operation::SubscribeToTask,
        &[Verb::Post, Verb::Get],
        "tasks/{task}:subscribe",
    ),
    row(Operation::CreatePushConfig, &[Verb::Post], CONFIGS),
    row(Operation::ListPushConfigs, &[Verb::Get], CONFIGS),
    row(Operation::GetPushConfig, &[Verb::Get], CONFIG),
    row(Operation::DeletePushConfig, &[Verb::Delete], CONFIG),
    Row {
        operation: Operation::GetExtendedAgentCard,
        verbs: &[Verb::Get],
        path: "extendedAgentCard",
        old_path: Some("card"),
    },
];

impl Row {
    const fn path(&self, version: Version) -> &'static str {
        match (version, self.old_path) {
            (Version::V0_3, Some(path)) => path,
            (Version::V0_3 | Version::V1_0, _) => self.path,
        }
    }
}

/// The path segment between the address of an interface and the paths of a version.
#[must_use]
pub const fn prefix(version: Version) -> Option<&'static str> {
    match version {
        Version::V0_3 => Some("v1"),
        Version::V1_0 => None,
    }
}

/// The ids that a path contains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub task: Option<String>,
    pub config: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The operation and its path template; `None` if the path exists but not with this verb.
    pub operation: Option<(Operation, &'static str)>,
    pub names: Names,
    pub verbs: Vec<Verb>,
}

/// Returns `false` if no path of a version begins with this segment. Cheaper than [`find`], as most requests are of other
/// APIs.
#[must_use]
pub fn may_begin(version: Version, segment: &str) -> bool {
    let name = segment.split_once(':').map_or(segment, |(name, _)| name);
    ROWS.iter().any(|row| row.path(version).starts_with(name))
}

/// Looks up a path of a version; returns `None` if the path does not exist.
#[must_use]
pub fn find(version: Version, verb: Option<Verb>, segments: &[impl AsRef<str>]) -> Option<Found> {
    let mut found: Option<Found> = None;
    for row in &ROWS {
        let Some(names) = matches(row.path(version), segments) else {
            continue;
        };
        let found = found.get_or_insert(Found {
            operation: None,
            names,
            verbs: Vec::new(),
        });
        found.verbs.extend(row.verbs);
        if verb.is_some_and(|verb| row.verbs.contains(&verb)) {
            found.operation = Some((row.operation, row.path(version)));
        }
    }
    // A POST to a last segment with a colon calls a custom method; an unknown one does not exist, so 405
    // would be wrong.
    let is_unknown = |found: &Found| found.operation.is_none() && !found.verbs.contains(&Verb::Post);
    let has_colon = segments.last().is_some_and(|last| last.as_ref().contains(':'));
    found.filter(|found| !(verb == Some(Verb::Post) && has_colon && is_unknown(found)))
}

/// Matches segments against a template. A parameter accepts any text, colons included. If the text ends in a
/// verb that the table defines at this place, the last colon separates that verb.
fn matches(template: &str, segments: &[impl AsRef<str>]) -> Option<Names> {
    let mut names = Names::default();
    let mut wanted = template.split('/');
    for segment in segments {
        let (wanted, given) = (wanted.next()?, segment.as_ref());
        let Some((name, ending)) = wanted.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
            if wanted == given {
                continue;
            }
            return None;
        };
        let value = given.strip_suffix(ending)?;
        if value.is_empty() || (ending.is_empty() && ends_in_verb(template, given)) {
            return None;
        }
        match name {
            "task" => names.task = Some(value.to_owned()),
            _ => names.config = Some(value.to_owned()),
        }
    }
    wanted.next().is_none().then_some(names)
}

/// Returns `true` if the table has `template` followed by a verb, and the segment ends in that verb.
fn ends_in_verb(template: &str, segment: &str) -> bool {
    let mut endings = ROWS.iter().filter_map(|row| row.path.strip_prefix(template));
    endings.any(|ending| ending.starts_with(':') && segment.ends_with(ending))
}

/// Copies the ids of a path into the request, under the field names of the version: separate fields in 1.0,
/// resource names in 0.3.
///
/// # Errors
/// Returns an error if the request already contains a different value.
pub fn bind(
    version: Version,
    operation: Operation,
    names: &Names,
    request: &mut Object,
) -> Result<(), DecodeError> {
    let Names { task, config } = names;
    let Some(task) = task else { return Ok(()) };
    let is_push = match operation {
        Operation::CreatePushConfig
        | Operation::GetPushConfig
        | Operation::ListPushConfigs
        | Operation::DeletePushConfig => true,
        Operation::SendMessage
        | Operation::SendStreamingMessage
        | Operation::GetTask
        | Operation::ListTasks
        | Operation::CancelTask
        | Operation::SubscribeToTask
        | Operation::GetExtendedAgentCard => false,
    };
    match (version, config) {
        (Version::V1_0, config) => {
            put(request, if is_push { "taskId" } else { "id" }, task)?;
            match config {
                Some(config) => put(request, "id", config),
                None => Ok(()),
            }
        }
        (Version::V0_3, Some(config)) => put(
            request,
            "name",
            &format!("tasks/{task}/pushNotificationConfigs/{config}"),
        ),
        (Version::V0_3, None) => {
            let field = if is_push { "parent" } else { "name" };
            put(request, field, &format!("tasks/{task}"))
        }
    }
}

/// Removes from a request the fields that its path carries, before the rest becomes a query: the reverse of [`bind`].
pub fn unbind(version: Version, names: &Names, request: &mut Object) {
    let fields: &[&str] = match (version, &names.task) {
        (_, None) => &[],
        (Version::V1_0, Some(_)) => &["taskId", "id"],
        (Version::V0_3, Some(_)) => &["name", "parent"],
    };
    for field in fields {
        request.remove(*field);
    }
}

fn put(request: &mut Object, field: &str, value: &str) -> Result<(), DecodeError> {
    match request.get(field) {
        None | Some(Value::Null) => {
            request.insert(field.to_owned(), value.into());
            Ok(())
        }
        Some(Value::String(given)) if given.is_empty() || given == value => {
            request.insert(field.to_owned(), value.into());
            Ok(())
        }
        Some(_) => Err(DecodeError::invalid("is not the one in the path").in_field(field)),
    }
}

/// The verbs of an operation, the preferred one first. Some agents support only the other one.
#[must_use]
pub fn verbs(operation: Operation) -> &'static [Verb] {
    row_of(operation).verbs
}

fn row_of(operation: Operation) -> &'static Row {
    let row = ROWS.iter().find(|row| row.operation == operation);
    row.expect("the table has a row for every operation")
}

/// The verb and the path that call an operation, relative to the address of an interface and without a
/// leading slash. Reserved characters in ids are percent-encoded.
#[must_use]
pub fn path_of(version: Version, operation: Operation, names: &Names) -> (Verb, String) {
    let row = row_of(operation);
    let mut path = match prefix(version) {
        Some(prefix) => format!("{prefix}/{}", row.path(version)),
        None => row.path(version).to_owned(),
    };
    for (place, name) in [("{task}", &names.task), ("{config}", &names.config)] {
        path = path.replace(place, &escape(name.as_deref().unwrap_or_default()));
    }
    (row.verbs[0], path)
}

/// Percent-encodes text for use as a path segment or a query value.
#[must_use]
pub fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(version: Version, verb: Verb, path: &str) -> String {
        let segments: Vec<_> = path.split('/').collect();
        match find(version, Some(verb), &segments) {
            None => "nothing".to_owned(),
            Some(Found {
                operation: Some((operation, _)),
                names: Names { task, config },
                ..
            }) => {
                let mut text = format!("{operation:?}");
                for name in [task, config].into_iter().flatten() {
                    text += &format!(" {name}");
                }
                text
            }
            Some(Found { verbs, .. }) => format!("takes {verbs:?}"),
        }
    }

    #[test]
    fn paths_resolve_to_operations() {
        use Verb::{Delete, Get, Post};
        use Version::{V0_3, V1_0};
        for (version, verb, path, wanted) in [
            (V1_0, Post, "message:send", "SendMessage"),
            (V0_3, Post, "message:stream", "SendStreamingMessage"),
            (V1_0, Get, "tasks", "ListTasks"),
            (V1_0, Get, "tasks/t-1", "GetTask t-1"),
            (V1_0, Post, "tasks/t:cancel", "CancelTask t"),
            (V1_0, Post, "tasks/t:subscribe", "SubscribeToTask t"),
            (V0_3, Get, "tasks/t:subscribe", "SubscribeToTask t"),
            (
                V1_0,
                Post,
                "tasks/t/pushNotificationConfigs",
                "CreatePushConfig t",
            ),
            (V1_0, Get, "tasks/t/pushNotificationConfigs", "ListPushConfigs t"),
            (
                V1_0,
                Get,
                "tasks/t/pushNotificationConfigs/c",
                "GetPushConfig t c",
            ),
            (
                V0_3,
                Delete,
                "tasks/t/pushNotificationConfigs/c",
                "DeletePushConfig t c",
            ),
            (V1_0, Get, "extendedAgentCard", "GetExtendedAgentCard"),
            (V0_3, Get, "card", "GetExtendedAgentCard"),
            (V0_3, Get, "extendedAgentCard", "nothing"),
            (V1_0, Get, "card", "nothing"),
            (V1_0, Get, "message:send", "takes [Post]"),
            (V1_0, Delete, "tasks/t:subscribe", "takes [Post, Get]"),
            (
                V1_0,
                Delete,
                "tasks/t/pushNotificationConfigs",
                "takes [Post, Get]",
            ),
            (V1_0, Get, "tasks/t:cancel", "takes [Post]"),
            (V1_0, Post, "tasks/:cancel", "nothing"),
            // Other colons are part of the id.
            (V1_0, Get, "tasks/t:fly", "GetTask t:fly"),
            (V1_0, Post, "tasks/t:fly", "nothing"),
            (V1_0, Post, "tasks/t/pushNotificationConfigs/c:fly", "nothing"),
            (V1_0, Post, "tasks/t", "takes [Get]"),
            (V1_0, Delete, "tasks/t:fly", "takes [Get]"),
            (V1_0, Get, "tasks/urn:a:b", "GetTask urn:a:b"),
            (V0_3, Get, "tasks/urn:a:b", "GetTask urn:a:b"),
            (V1_0, Get, "tasks/:", "GetTask :"),
            (V1_0, Get, "tasks/t:cancel:", "GetTask t:cancel:"),
            (V1_0, Get, "tasks/t:Cancel", "GetTask t:Cancel"),
            (V1_0, Get, "tasks/tcancel", "GetTask tcancel"),
            (V1_0, Get, "tasks/message:send", "GetTask message:send"),
            (V1_0, Post, "tasks/a:b:cancel", "CancelTask a:b"),
            (V0_3, Post, "tasks/a:b:cancel", "CancelTask a:b"),
            (V1_0, Get, "tasks/urn:a:b:subscribe", "SubscribeToTask urn:a:b"),
            (V1_0, Post, "tasks/t:cancel:subscribe", "SubscribeToTask t:cancel"),
            (
                V1_0,
                Get,
                "tasks/t:cancel/pushNotificationConfigs",
                "ListPushConfigs t:cancel",
            ),
            (
                V1_0,
                Get,
                "tasks/a:b/pushNotificationConfigs/a.b:c",
                "GetPushConfig a:b a.b:c",
            ),
            (
                V0_3,
                Delete,
                "tasks/t/pushNotificationConfigs/urn:uuid:1",
                "DeletePushConfig t urn:uuid:1",
            ),
            (
                V1_0,
                Get,
                "tasks/t/pushNotificationConfigs/x:cancel",
                "GetPushConfig t x:cancel",
            ),
            (V1_0, Get, "tasks/", "nothing"),
            (V1_0, Get, "tasks/t/", "nothing"),
            (V1_0, Get, "tasks/t/pushNotificationConfigs/c/d", "nothing"),
            (V1_0, Post, "messages:send", "nothing"),
            (V1_0, Get, "", "nothing"),
        ] {
            assert_eq!(found(version, verb, path), wanted, "{verb:?} {path}");
        }
    }

    #[test]
    fn written_paths_resolve_to_their_operation() {
        for version in Version::ALL {
            for operation in Operation::ALL {
                let names = Names {
                    task: Some("t/1:x".to_owned()),
                    config: Some("c:cancel".to_owned()),
                };
                let (verb, path) = path_of(*version, *operation, &names);
                let mut segments: Vec<_> = path
                    .split('/')
                    .map(|segment| segment.replace("%2F", "/").replace("%3A", ":"))
                    .collect();
                if let Some(prefix) = prefix(*version) {
                    assert_eq!(segments.remove(0), prefix);
                }
                let found = find(*version, Some(verb), &segments).unwrap();
                assert_eq!(found.operation.unwrap().0, *operation, "{path}");
                if path.contains("tasks/") {
                    assert_eq!(found.names.task, names.task);
                }
                if path.contains("Configs/") {
                    assert_eq!(found.names.config, names.config);
                }
            }
        }
    }

    #[test]
    fn path_fields_are_left_out_of_the_query() {
        for version in Version::ALL {
            for (operation, config) in [
                (Operation::GetTask, None),
                (Operation::GetPushConfig, Some("c".to_owned())),
                (Operation::ListPushConfigs, None),
            ] {
                let names = Names {
                    task: Some("t".to_owned()),
                    config,
                };
                let mut request = json!({"pageSize": 1}).as_object().unwrap().clone();
                bind(*version, operation, &names, &mut request).unwrap();
                unbind(*version, &names, &mut request);
                assert_eq!(Value::Object(request), json!({"pageSize": 1}));
            }
        }
        let mut request = json!({"id": "i", "name": "n"}).as_object().unwrap().clone();
        unbind(Version::V1_0, &Names::default(), &mut request);
        assert_eq!(request.len(), 2);
        assert_eq!(verbs(Operation::SubscribeToTask), [Verb::Post, Verb::Get]);
    }

    #[test]
    fn path_ids_become_request_fields() {
        let names = |config: Option<&str>| Names {
            task: Some("t".to_owned()),
            config: config.map(str::to_owned),
        };
        for (version, operation, config, given, wanted) in [
            (
                Version::V1_0,
                Operation::GetTask,
                None,
                json!({}),
                json!({"id": "t"}),
            ),
            (
                Version::V1_0,
                Operation::CancelTask,
                None,
                json!({"id": "t", "metadata": {}}),
                json!({"id": "t", "metadata": {}}),
            ),
            (
                Version::V1_0,
                Operation::GetPushConfig,
                Some("c"),
                json!({"taskId": ""}),
                json!({"taskId": "t", "id": "c"}),
            ),
            (
                Version::V1_0,
                Operation::CreatePushConfig,
                None,
                json!({"id": "mine", "taskId": null}),
                json!({"id": "mine", "taskId": "t"}),
            ),
            (
                Version::V0_3,
                Operation::GetTask,
                None,
                json!({}),
                json!({"name": "tasks/t"}),
            ),
            (
                Version::V0_3,
                Operation::ListPushConfigs,
                None,
                json!({}),
                json!({"parent": "tasks/t"}),
            ),
            (
                Version::V0_3,
                Operation::DeletePushConfig,
                Some("c"),
                json!({}),
                json!({"name": "tasks/t/pushNotificationConfigs/c"}),
            ),
        ] {
            let mut request = given.as_object().unwrap().clone();
            bind(version, operation, &names(config), &mut request).unwrap();
            assert_eq!(Value::Object(request), wanted);
        }
        for (version, given, wanted) in [
            (Version::V1_0, json!({"id": "u"}), "id is not the one in the path"),
            (Version::V1_0, json!({"id": 7}), "id is not the one in the path"),
            (
                Version::V0_3,
                json!({"name": "tasks/u"}),
                "name is not the one in the path",
            ),
        ] {
            let mut request = given.as_object().unwrap().clone();
            let refused = bind(version, Operation::CancelTask, &names(None), &mut request);
            assert_eq!(refused.unwrap_err().to_string(), wanted);
        }
    }
}
