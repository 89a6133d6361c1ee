//! The protocol buffers of A2A: bytes of a message, and the spellings of its JSON.

use std::ptr;

use serde_json::Value;
use wopr_wire::{
    a2a::{
        exchange::{Form, Request},
        method::Version,
        protobuf::{self, Message},
    },
    json::Object,
};

/// Bytes are a message or are refused by the path. What is read is canonical already, is the same again once it was
/// written, and is taken or refused as a request. A document that is made canonical stays as it is from then on. The
/// first byte says which message.
///
/// # Panics
/// If a promise does not hold.
pub fn protobuf(data: &[u8]) {
    let Some((pick, bytes)) = data.split_first() else {
        return;
    };
    let known: Vec<_> = Version::ALL
        .iter()
        .flat_map(|version| {
            protobuf::messages(*version)
                .into_iter()
                .map(|message| (*version, message))
        })
        .collect();
    let (version, message) = known[usize::from(*pick) % known.len()];
    match protobuf::read(message, bytes) {
        Ok(object) => is_sound(version, message, &object),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(mut object) = serde_json::from_slice::<Object>(bytes) {
        protobuf::canonical(message, &mut object);
        let once = object.clone();
        protobuf::canonical(message, &mut object);
        assert_eq!(object, once, "made canonical twice it is another document");
    }
}

fn is_sound(version: Version, message: &Message, object: &Object) {
    let mut spelled = object.clone();
    protobuf::canonical(message, &mut spelled);
    assert_eq!(&spelled, object, "read from bytes, and not canonical");
    // Numbers of enumerations that nobody knows are read, for whoever takes the document to refuse, and not written.
    if let Ok(written) = protobuf::write(message, object) {
        assert_eq!(
            protobuf::read(message, &written).as_ref(),
            Ok(object),
            "written as {written:?}"
        );
    }
    for method in protobuf::methods(version) {
        if ptr::eq(method.request, message)
            && let Err(error) = Request::decode(
                method.operation,
                Form::proto(version),
                Value::Object(object.clone()),
            )
        {
            assert!(!error.to_string().is_empty());
        }
    }
}
