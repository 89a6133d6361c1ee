//! Message framing: a compression flag, the length, and the message.

use bytes::Bytes;
use tonic::Status;

/// Number of bytes before a message.
pub(super) const HEAD: usize = 5;

/// Unwraps the message of a request that contains exactly one.
pub(super) fn open(body: &Bytes) -> Result<&[u8], Status> {
    let Some((head, message)) = body.split_first_chunk::<HEAD>() else {
        return Err(Status::invalid_argument("the request holds no message"));
    };
    let [compressed, length @ ..] = *head;
    match compressed {
        0 => {}
        1 => return Err(Status::unimplemented("compressed messages are not taken")),
        _ => return Err(Status::invalid_argument("the request holds no message")),
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err(Status::invalid_argument(
            "the request holds not exactly one message",
        ));
    }
    Ok(message)
}

/// Frames a message.
pub(super) fn seal(message: &[u8]) -> Result<Bytes, Status> {
    let length = u32::try_from(message.len());
    let length = length.map_err(|_| Status::out_of_range("the answer is larger than a message can be"))?;
    let mut out = Vec::with_capacity(HEAD + message.len());
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn message_roundtrips() {
        for message in [&b""[..], b"x", &[7; 70_000]] {
            let sealed = seal(message).unwrap();
            assert_eq!(open(&sealed).unwrap(), message);
        }
    }

    #[test]
    fn body_without_exactly_one_message_is_rejected() {
        for (body, wanted) in [
            (&b""[..], Code::InvalidArgument),
            (b"\0\0\0\0", Code::InvalidArgument),
            (b"\0\0\0\0\x01", Code::InvalidArgument),
            (b"\0\0\0\0\0x", Code::InvalidArgument),
            (b"\0\0\0\0\0\0\0\0\0\0", Code::InvalidArgument),
            (b"\0\xff\xff\xff\xffx", Code::InvalidArgument),
            (b"\x02\0\0\0\0", Code::InvalidArgument),
            (b"\x01\0\0\0\0", Code::Unimplemented),
        ] {
            assert_eq!(
                open(&Bytes::from_static(body)).unwrap_err().code(),
                wanted,
                "{body:?}"
            );
        }
    }
}
