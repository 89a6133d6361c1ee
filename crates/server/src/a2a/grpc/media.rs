//! How gRPC is told from everything else over HTTP: by its media type.

use http::{HeaderMap, header};

/// The media type of gRPC; a suffix names the encoding of messages.
pub(super) const GRPC: &str = "application/grpc";

/// Claims that a request is one of gRPC.
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
    fn a_media_type_tells_grpc() {
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
