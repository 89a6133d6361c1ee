//! Response bodies that hold their request's admission slot until the connection has written them.
//!
//! The bytes of a body carry the slot, because the protocol buffers them after the body is gone. It also
//! buffers the head of a response and the end of its stream, so the slot is kept until the connection has
//! flushed all output once after the body was dropped.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::stall::Written;
use crate::{
    admission::Slot,
    body::shared,
    message::{Body, BoxError},
};

#[derive(Debug)]
pub(super) struct Charged {
    body: Body,
    slot: Slot,
    written: Written,
}

impl Charged {
    pub(super) const fn new(body: Body, slot: Slot, written: Written) -> Self {
        Self { body, slot, written }
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.written.keep(self.slot.clone());
    }
}

impl HttpBody for Charged {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map_ok(|frame| frame.map_data(|bytes| shared(bytes, self.slot.clone())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
