//! Recognizes gRPC requests by their media type.

use http::{HeaderMap, header};

/// The gRPC media type. A suffix names the message encoding.
pub(super) const GRPC: &str = "application/grpc";

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.strip_prefix(GRPC))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_grpc_media_types() {
        for (value, wanted) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; x=1", true),
            ("application/grpc-web", false),
            ("application/grpcx", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            assert_eq!(is_grpc(&headers), wanted, "{value}");
        }
    }
}
