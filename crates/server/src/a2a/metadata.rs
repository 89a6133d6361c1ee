//! Our keys in metadata. Clients may nest them (`{"openwop":{"action":…}}`) or write them dotted
//! (`openwop.action`); we write them nested.

use serde_json::Value;
use wopr_wire::{a2a::model::Metadata, json::Object};

/// As many keys are compared one by one faster than a path is joined.
const FEW: usize = 4;

/// Finds a value by its path. Any part of the path may be written as one dotted key; the longest key wins.
pub(super) fn find<'m>(metadata: &'m Metadata, path: &[&str]) -> Option<&'m Value> {
    if metadata.is_empty() {
        return None;
    }
    for n in (1..=path.len()).rev() {
        let (head, rest) = path.split_at(n);
        let found = match (member(metadata, head), rest) {
            (Some(Value::Null) | None, _) => None,
            (Some(value), []) => Some(value),
            (Some(Value::Object(inner)), rest) => find(inner, rest),
            (Some(_), _) => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The member whose key is this path with dots.
fn member<'m>(metadata: &'m Metadata, path: &[&str]) -> Option<&'m Value> {
    match path {
        [name] => metadata.get(*name),
        // Every message is looked through for several paths, and nearly all have a key or two.
        _ if metadata.len() <= FEW => {
            let mut members = metadata.iter();
            let found = members.find(|(key, _)| key.split('.').eq(path.iter().copied()));
            found.map(|(_, value)| value)
        }
        _ => metadata.get(&path.join(".")),
    }
}

/// Collects the members of `openwop.interrupt`, nested or dotted.
pub(super) fn interrupt(metadata: &Metadata) -> Object {
    const NAMES: [&str; 12] = [
        "interruptId",
        "nodeId",
        "action",
        "approve",
        "decision",
        "feedback",
        "question",
        "refineFeedback",
        "editedArtifactData",
        "answers",
        "eventPayload",
        "value",
    ];
    NAMES
        .into_iter()
        .filter_map(|name| {
            let value = find(metadata, &["openwop", "interrupt", name])?;
            Some((name.to_owned(), value.clone()))
        })
        .collect()
}

/// Nests members under `openwop`.
pub(super) fn wrap(about: Object) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("openwop".to_owned(), Value::Object(about));
    metadata
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_and_dotted_keys_are_equivalent() {
        for document in [
            json!({"openwop": {"interrupt": {"action": "accept"}}}),
            json!({"openwop": {"interrupt.action": "accept"}}),
            json!({"openwop.interrupt": {"action": "accept"}}),
            json!({"openwop.interrupt.action": "accept"}),
            json!({"openwop": "not ours", "openwop.interrupt.action": "accept"}),
        ] {
            let metadata = document.as_object().unwrap();
            assert_eq!(
                find(metadata, &["openwop", "interrupt", "action"]),
                Some(&json!("accept")),
                "{document}"
            );
            assert_eq!(interrupt(metadata)["action"], "accept");
        }
        let many = json!({
            "a": 1, "b": 2, "c": 3, "d": 4, "openwop": {"x": 1}, "openwop.interrupt": {"action": "accept"},
        });
        let many = many.as_object().unwrap();
        assert!(many.len() > FEW);
        assert_eq!(interrupt(many)["action"], "accept");
        let metadata = json!({"openwop": {"interrupt": null, "x": 1}});
        assert_eq!(
            find(metadata.as_object().unwrap(), &["openwop", "interrupt"]),
            None
        );
        assert!(interrupt(metadata.as_object().unwrap()).is_empty());
    }
}
