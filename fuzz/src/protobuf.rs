//! A2A's protocol buffers: encoded messages, and the variants of their JSON.

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

/// Bytes are decoded as a message, or rejected with the path of the field. A decoded message is canonical,
/// survives a round trip, and is accepted or rejected as a request. Canonicalizing a document twice changes
/// nothing. The first byte selects the message type.
///
/// # Panics
/// If a property does not hold.
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
    // Unknown enum values are decoded, so that the receiver of the document can reject them, but they cannot
    // be encoded.
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
