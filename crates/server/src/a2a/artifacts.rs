//! Converts the artifacts of a run to A2A artifacts.
//!
//! The content of an artifact is text or JSON. A JSON object whose only member is `file` or `files` holds
//! files. Each file is `{"url"}`, `{"bytes"}` in base64 or `{"blob"}`, with `name` and `mediaType`. `blob`
//! refers to bytes that arrived in a message, so a run can return its `inputs.files` unchanged.
//!
//! Readers without `artifacts:read` get an artifact whose only part is the URL of its content, and so do all readers of
//! an artifact that has no [`Room`].

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_app::{Error as AppError, Mask, REDACTED, View, VisibleRun};
use wopr_core::{Event, KernelEvent, NodeId, Recorded, RunKey, Seq};
use wopr_wire::{
    a2a::model::{Artifact, Part, PartContent},
    json::{Decode as _, Object},
};

use super::{
    error::Error,
    metadata::wrap,
    room::{File, Room},
};
use crate::auth::Caller;

const PAGE: u64 = 256;

/// Returns the run's artifacts, followed by those still being streamed with their text so far, if there is room for it.
pub(super) async fn of_run(
    room: &mut Room,
    caller: &Caller,
    view: &View,
    mask: &Mask,
) -> Result<Vec<Artifact>, Error> {
    let (host, run) = (Arc::clone(room.host()), VisibleRun::from(view));
    let app = host.app();
    let places: Vec<u64> = view.run.artifacts.iter().map(|artifact| artifact.seq.0).collect();
    let mut artifacts = Vec::with_capacity(places.len());
    let mut rest = places.as_slice();
    while let Some(&first) = rest.first() {
        // Cover as many of the next artifacts as fit in one page.
        let these = rest.iter().take_while(|place| **place < first + PAGE);
        let last = these.last().copied().unwrap_or(first);
        let limit = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
        let events = app.events_of(view, Seq(first), limit).await?;
        // A page of large events may end earlier.
        let Some(last) = events.last().map(|recorded| recorded.seq.0) else {
            break;
        };
        rest = &rest[rest.iter().take_while(|place| **place <= last).count()..];
        for recorded in events.iter() {
            artifacts.extend(created(room, caller, &run, recorded, mask).await?);
        }
    }
    for streaming in view.run.streaming(&view.plan) {
        // An unfinished artifact has no URL yet.
        if mask.keeps_contents() {
            break;
        }
        if let Some((artifact_type, name)) = streaming.artifact
            && room.take(&streaming.text)
        {
            let id = streaming.step.artifact(streaming.number);
            artifacts.push(artifact(
                id,
                artifact_type,
                name,
                vec![piece(mask, &streaming.step.node, streaming.text)],
            ));
        }
    }
    Ok(artifacts)
}

/// Returns the artifact that an event created, if any.
pub(super) async fn created(
    room: &mut Room,
    caller: &Caller,
    key: &VisibleRun,
    recorded: &Recorded,
    mask: &Mask,
) -> Result<Option<Artifact>, AppError> {
    let Event::Kernel(KernelEvent::ArtifactCreated {
        step,
        artifact: id,
        artifact_type,
        name,
        content,
    }) = &recorded.event
    else {
        return Ok(None);
    };
    let shown = if mask.keeps_contents() {
        None
    } else {
        parts(room, caller, key, &mask.content(&step.node, content)).await?
    };
    let parts = shown.unwrap_or_else(|| vec![address(room.host().public_url(), key, id)]);
    Ok(Some(artifact(id.clone(), artifact_type, name, parts)))
}

/// A chunk of an artifact that is still being streamed.
pub(super) fn piece(mask: &Mask, node: &NodeId, text: &str) -> Part {
    if mask.hides_output(node, "text") {
        Part::text(REDACTED)
    } else {
        Part::text(text)
    }
}

/// Links to the content of an artifact.
pub(super) fn address(public_url: &str, run: &RunKey, id: &str) -> Part {
    // An artifact id contains a node id, which may need escaping in a path. A run id never does.
    let escaped: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    let url = format!(
        "{public_url}/v1/runs/{}/artifacts/{}",
        run.run,
        escaped.replace('+', "%20")
    );
    let mut part = Part::from(PartContent::Url(url));
    part.media_type = Some("application/json".to_owned());
    part
}

pub(super) fn artifact(id: String, artifact_type: &str, name: &str, parts: Vec<Part>) -> Artifact {
    let mut about = Object::new();
    about.insert("artifactType".to_owned(), artifact_type.into());
    Artifact {
        artifact_id: id,
        name: Some(name.to_owned()).filter(|name| !name.is_empty()),
        description: None,
        parts,
        metadata: wrap(about),
        extensions: Vec::new(),
    }
}

/// The parts of an artifact; `None` if there is no room for them.
async fn parts(
    room: &mut Room,
    caller: &Caller,
    key: &VisibleRun,
    content: &Value,
) -> Result<Option<Vec<Part>>, AppError> {
    if !room.take(content) {
        return Ok(None);
    }
    if let Value::String(text) = content {
        return Ok(Some(vec![Part::text(text.clone())]));
    }
    let mut parts = Vec::new();
    for file in files(content) {
        match file_part(room, caller, key, file).await? {
            FilePart::Shown(part) => parts.push(*part),
            // One entry is not a file, so show the content as plain data.
            FilePart::NoFile => return Ok(Some(vec![Part::data(content.clone())])),
            FilePart::TooLarge => return Ok(None),
        }
    }
    if parts.is_empty() {
        parts.push(Part::data(content.clone()));
    }
    Ok(Some(parts))
}

/// Returns the files in the content; empty if the content is anything else.
fn files(content: &Value) -> &[Value] {
    let Some(members) = content.as_object().filter(|members| members.len() == 1) else {
        return &[];
    };
    match (members.get("file"), members.get("files")) {
        (Some(file), _) => std::slice::from_ref(file),
        (None, Some(Value::Array(files))) => files,
        (None, _) => &[],
    }
}

enum FilePart {
    Shown(Box<Part>),
    NoFile,
    TooLarge,
}

async fn file_part(
    room: &mut Room,
    caller: &Caller,
    key: &VisibleRun,
    file: &Value,
) -> Result<FilePart, AppError> {
    let text = |name: &str| file.get(name).and_then(Value::as_str);
    let mut part = match (text("url"), text("bytes"), text("blob")) {
        (Some(url), None, None) => json!({ "url": url }),
        (None, Some(bytes), None) => json!({ "raw": bytes }),
        (None, None, Some(id)) => {
            return Ok(match room.file(caller, key, id).await? {
                File::Read(blob) => {
                    let mut part = Part::from(PartContent::Raw(blob.bytes));
                    part.media_type = Some(text("mediaType").map_or(blob.media_type, str::to_owned));
                    part.filename = text("name").map(str::to_owned);
                    FilePart::Shown(Box::new(part))
                }
                File::Unknown => FilePart::NoFile,
                File::TooLarge => FilePart::TooLarge,
            });
        }
        _ => return Ok(FilePart::NoFile),
    };
    for (name, member) in [("mediaType", "mediaType"), ("filename", "name")] {
        if let Some(text) = text(member) {
            part[name] = text.into();
        }
    }
    let part = Part::decode(part);
    Ok(part.map_or(FilePart::NoFile, |part| FilePart::Shown(Box::new(part))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_with_one_file_member_hold_files() {
        for (content, n) in [
            (json!({"file": {"url": "https://a.example"}}), 1),
            (json!({"files": [{}, {}]}), 2),
            (json!({"files": []}), 0),
            (json!({"files": "a"}), 0),
            (json!({"file": {}, "text": "a"}), 0),
            (json!({"a": 1}), 0),
            (json!([1]), 0),
        ] {
            assert_eq!(files(&content).len(), n, "{content}");
        }
    }
}
