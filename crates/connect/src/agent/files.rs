//! The files of a message, as workflows have them: an address, bytes in base64, or the id of a file that came with a message.
//!
//! Three forms are one here: an entry of `inputs.files`, a file of an artifact, and a file part of an earlier answer. A
//! member that is in none of them is refused, because the agent would not see it. The bytes of a file that came with a
//! message are read when the request is about to be sent. They are in no log.

use serde_json::{Map, Value};
use wopr_engine::{Blobs, BlobsError};
use wopr_wire::{
    a2a::model::{Part, PartContent, SendMessageRequest},
    json::Decode as _,
};

use super::failure::cut;

/// The media type that the store gives a file whose sender named none.
const UNNAMED_TYPE: &str = "application/octet-stream";

/// A request whose files of messages have not been read.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) request: SendMessageRequest,
    blobs: Vec<Missing>,
}

/// The bytes that a part does not have yet.
#[derive(Debug)]
struct Missing {
    /// Place of the part in the message, and of its file in the list that the workflow gives.
    part: usize,
    file: usize,
    blob: String,
}

/// Why a request was not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incomplete {
    /// It never will be, for this reason.
    Invalid(String),
    /// Its files cannot be read now.
    Later,
}

impl Draft {
    pub(super) const fn new(request: SendMessageRequest) -> Self {
        Self {
            request,
            blobs: Vec::new(),
        }
    }

    /// Adds the files of a call to its message.
    ///
    /// # Errors
    /// Says which of them has no form that is known.
    pub(super) fn add(&mut self, files: &[Value]) -> Result<(), String> {
        let parts = &mut self.request.message.parts;
        for (index, file) in files.iter().enumerate() {
            let (part, blob) = read(file).map_err(|rule| cut(&format!("files[{index}] {rule}")))?;
            self.blobs.extend(blob.map(|blob| Missing {
                part: parts.len(),
                file: index,
                blob,
            }));
            parts.push(part);
        }
        Ok(())
    }

    /// Reads the files that came with messages.
    pub(super) async fn complete(self, blobs: &Blobs) -> Result<SendMessageRequest, Incomplete> {
        let Self {
            mut request,
            blobs: missing,
        } = self;
        let ids = missing.iter().map(|missing| missing.blob.clone()).collect();
        let read = match blobs.read(ids).await {
            Ok(read) => read,
            Err(error) => return Err(why(error, &missing)),
        };
        for Missing { part, blob, .. } in &missing {
            let (Some(part), Some(blob)) = (request.message.parts.get_mut(*part), read.get(blob)) else {
                return Err(Incomplete::Later);
            };
            part.content = PartContent::Raw(blob.bytes.clone());
            if part.media_type.is_none() && blob.media_type != UNNAMED_TYPE {
                part.media_type = Some(blob.media_type.clone());
            }
        }
        Ok(request)
    }
}

fn why(error: BlobsError, missing: &[Missing]) -> Incomplete {
    match error {
        BlobsError::Unknown(id) => {
            let file = missing.iter().find(|missing| missing.blob == id);
            let index = file.map_or(0, |missing| missing.file);
            Incomplete::Invalid(cut(&format!(
                "files[{index}] names the blob '{id}', which is no file of a message to this run, to one that it was \
                 forked from, or to one above it"
            )))
        }
        error @ (BlobsError::TooLarge | BlobsError::TooMany) => {
            Incomplete::Invalid(format!("a message cannot {error}"))
        }
        BlobsError::NoRoom | BlobsError::Unavailable => Incomplete::Later,
    }
}

/// Reads a file. Returns its part, and its id if it came with a message: then the part has no bytes yet.
fn read(file: &Value) -> Result<(Part, Option<String>), String> {
    let Value::Object(members) = file else {
        return Err("is not an object".to_owned());
    };
    let (mut part, mut blob, mut content) = (Map::new(), None, None);
    // An expression leaves a member null that it has no value for.
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        let member = match name.as_str() {
            "bytes" | "raw" => "raw",
            "url" => "url",
            "blob" => "blob",
            "name" | "filename" => "filename",
            "mediaType" => "mediaType",
            "metadata" => "metadata",
            // It says how large the file was when it came.
            "size" => continue,
            _ => {
                return Err(format!(
                    "has the member '{name}', which a file does not have: it has url, bytes or blob, and may have name \
                     and mediaType"
                ));
            }
        };
        if matches!(member, "raw" | "url" | "blob")
            && let Some(other) = content.replace(name)
        {
            return Err(format!("has both {other} and {name}"));
        }
        if member == "blob" {
            let id = value.as_str().ok_or("has a blob that is no text")?;
            blob = Some(id.to_owned());
            part.insert("raw".to_owned(), "".into());
        } else if part.insert(member.to_owned(), value.clone()).is_some() {
            return Err("has both name and filename".to_owned());
        }
    }
    let Some(content) = content else {
        return Err("has neither url nor bytes nor blob".to_owned());
    };
    let part = Part::decode(Value::Object(part)).map_err(|error| {
        let error = error.to_string();
        match content.as_str() {
            "bytes" => error.replacen("raw", "bytes", 1),
            _ => error,
        }
    })?;
    Ok((part, blob))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use wopr_engine::Blob;
    use wopr_wire::{
        a2a::model::{Message, Role, SendMessageConfiguration},
        json::Object,
    };

    use super::*;

    fn draft(files: &Value) -> Result<Draft, String> {
        let mut draft = Draft::new(SendMessageRequest {
            tenant: None,
            message: Message::new("m", Role::User, vec![Part::text("see")]),
            configuration: SendMessageConfiguration::default(),
            metadata: Object::new(),
        });
        draft.add(files.as_array().unwrap())?;
        Ok(draft)
    }

    /// Knows `b`, a text, and `o`, whose type nobody named. Others come with an error.
    fn blobs(error: fn(String) -> BlobsError) -> Blobs {
        Blobs::new(move |ids| {
            Box::pin(async move {
                let mut read = BTreeMap::new();
                for id in ids {
                    let media_type = match id.as_str() {
                        "b" => "text/plain",
                        "o" => UNNAMED_TYPE,
                        _ => return Err(error(id)),
                    };
                    let blob = Blob {
                        media_type: media_type.to_owned(),
                        bytes: b"\0\x01\x02".to_vec(),
                    };
                    read.insert(id, blob);
                }
                Ok(read)
            })
        })
    }

    #[tokio::test]
    async fn file_of_every_form_becomes_a_part_with_its_name_and_type() {
        for (file, wanted) in [
            (
                json!({ "blob": "b", "name": "b.bin", "mediaType": "a/b", "size": 3 }),
                json!({ "raw": "AAEC", "filename": "b.bin", "mediaType": "a/b" }),
            ),
            (
                json!({ "blob": "b" }),
                json!({ "raw": "AAEC", "mediaType": "text/plain" }),
            ),
            (
                json!({ "blob": "o", "mediaType": null }),
                json!({ "raw": "AAEC" }),
            ),
            (
                json!({ "bytes": "AAEC", "name": "n.bin", "mediaType": "a/b" }),
                json!({ "raw": "AAEC", "filename": "n.bin", "mediaType": "a/b" }),
            ),
            (
                json!({ "bytes": "AAEC", "filename": "n.bin" }),
                json!({ "raw": "AAEC", "filename": "n.bin" }),
            ),
            (
                json!({ "raw": "AAEC", "filename": "n.bin", "metadata": { "k": 1 } }),
                json!({ "raw": "AAEC", "filename": "n.bin", "metadata": { "k": 1 } }),
            ),
            (
                json!({ "url": "https://a.example/x", "name": "x.png" }),
                json!({ "url": "https://a.example/x", "filename": "x.png" }),
            ),
        ] {
            let request = draft(&json!([file]))
                .unwrap()
                .complete(&blobs(BlobsError::Unknown))
                .await;
            let parts = serde_json::to_value(request.unwrap().message.parts).unwrap();
            assert_eq!(parts, json!([{ "text": "see" }, wanted]), "{file}");
        }
    }

    #[test]
    fn file_of_another_form_is_refused_by_its_place() {
        for (file, wanted) in [
            (json!("a"), "is not an object"),
            (json!({ "name": "a" }), "has neither url nor bytes nor blob"),
            (json!({ "url": "u", "bytes": "" }), "has both bytes and url"),
            (json!({ "blob": "b", "url": "u" }), "has both blob and url"),
            (json!({ "bytes": "", "raw": "" }), "has both bytes and raw"),
            (
                json!({ "url": "u", "name": "a", "filename": "b" }),
                "has both name and filename",
            ),
            (json!({ "blob": 1 }), "has a blob that is no text"),
            (
                json!({ "url": "u", "mimeType": "a/b" }),
                "has the member 'mimeType', which a file does not have: it has url, bytes or blob, and may have name and \
                 mediaType",
            ),
            (
                json!({ "text": "t" }),
                "has the member 'text', which a file does not have: it has url, bytes or blob, and may have name and \
                 mediaType",
            ),
        ] {
            let refused = draft(&json!([{ "url": "u" }, file])).unwrap_err();
            assert_eq!(refused, format!("files[1] {wanted}"));
        }
        let refused = draft(&json!([{ "bytes": "%" }])).unwrap_err();
        assert!(refused.starts_with("files[0] bytes "), "{refused}");
    }

    #[tokio::test]
    async fn file_that_cannot_be_read_is_named_or_read_later() {
        let files = json!([{ "url": "u" }, { "blob": "b" }, { "blob": "other" }]);
        let complete = async |error| draft(&files).unwrap().complete(&blobs(error)).await.unwrap_err();
        let Incomplete::Invalid(said) = complete(BlobsError::Unknown).await else {
            panic!("it is not there");
        };
        assert!(said.starts_with("files[2] names the blob 'other'"), "{said}");
        let said = "a message cannot take more than 8 MiB of files of messages".to_owned();
        assert_eq!(
            complete(|_| BlobsError::TooLarge).await,
            Incomplete::Invalid(said)
        );
        assert_eq!(complete(|_| BlobsError::NoRoom).await, Incomplete::Later);
        assert_eq!(complete(|_| BlobsError::Unavailable).await, Incomplete::Later);
    }
}
