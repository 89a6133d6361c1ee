//! Bodies and queries of OpenWOP's REST API.

use wopr_wire::{
    json::{self, BodyError, Decode},
    openwop::{control, run, stream, task_state},
};

/// A body is parsed, or rejected with the name of the field. A parsed request to create a run survives a
/// round trip. Queries are parsed or rejected.
///
/// # Panics
/// If a property does not hold.
pub fn openwop(data: &[u8]) {
    if let Some(request) = read::<run::CreateRunRequest>(data) {
        let written = serde_json::to_vec(&request).unwrap();
        assert_eq!(json::from_slice(&written).as_ref(), Ok(&request));
    }
    if let Some(state) = read::<task_state::A2aTaskState>(data) {
        let written = serde_json::to_vec(&state).unwrap();
        assert_eq!(json::from_slice(&written).as_ref(), Ok(&state));
    }
    read::<control::CancelRequest>(data);
    read::<control::BulkCancelRequest>(data);
    read::<control::PauseRequest>(data);
    read::<control::ResumeRequest>(data);
    read::<control::ResolveInterruptRequest>(data);
    read::<control::ForkRequest>(data);
    read::<control::RunOptions>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let pairs: Vec<(String, String)> = url::form_urlencoded::parse(text.as_bytes())
            .into_owned()
            .collect();
        let of = |name: &str| {
            pairs
                .iter()
                .find(|(of, _)| of == name)
                .map(|(_, value)| value.as_str())
        };
        let _ = stream::StreamModes::parse(Some(of("streamMode").unwrap_or(text)));
        let _ = stream::parse_buffer(Some(of("bufferMs").unwrap_or(text)));
        let _ = stream::PollQuery::parse(Some(of("lastSequence").unwrap_or(text)), of("timeout"));
    }
}

fn read<T: Decode>(data: &[u8]) -> Option<T> {
    match json::from_slice_or_empty::<T>(data) {
        Ok(read) => Some(read),
        Err(BodyError::Syntax | BodyError::TooDeep) => None,
        Err(BodyError::Shape(error)) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}
