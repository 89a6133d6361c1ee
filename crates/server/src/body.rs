//! Reading the bodies of requests: bounded in size, in time, and all of them together in memory, for every face alike.
//!
//! No credential has so much of the memory that nothing is left for others: the less is free, the less one may have.
//!
//! A text of many small values takes up to a hundred times its size once it is parsed. What it will take is known before,
//! bounded as well, and counts until the request is answered.
//!
//! A body that is refused is refused at once. What is left of it is the connection's to see to, so that its client gets
//! the answer though it is still sending.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody as _};
use futures_util::stream::StreamExt as _;
use parking_lot::Mutex;
use wopr_core::parsed_size;

use crate::{asker::Asker, auth::Caller};

/// Bytes of bodies that this process holds at once, each until its request has been read. Ten thousand connections with
/// bodies as large as allowed would take far more than any machine has.
const MAX_HELD: usize = 256 << 20;
/// What one body counts at most, so that a host which allows huge ones takes one now and then.
const MAX_COUNTED: usize = MAX_HELD / 2;
/// How many times what is left free the bodies of one credential may take: alone it has three quarters of the memory, and
/// whoever comes then has more than a tenth.
const TIMES_FREE: usize = 3;

/// Texts up to this size are not weighed: parsed, none of them takes more than half a megabyte.
const LIGHT: usize = 4 << 10;
/// What a parsed body takes beside its text counts from here on.
const COUNTED_FROM: usize = 64 << 10;
/// How many times the bound of a body it may take once it is parsed, and what it may in any case.
const TIMES_PARSED: usize = 8;
const LEAST_PARSED: usize = 16 << 20;

/// What this process has.
static MEMORY: LazyLock<Arc<Memory>> = LazyLock::new(|| Arc::new(Memory::new(MAX_HELD)));

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is larger than allowed.
    #[error("read a body beyond the limit")]
    TooLarge,
    /// It holds so many values that it would take more memory than allowed.
    #[error("parse a body of so many values")]
    TooManyValues,
    /// The client left.
    #[error("read a body that was cut off")]
    CutOff,
    /// It did not arrive in time.
    #[error("read a body in time")]
    Slow,
    /// Those of other requests fill the memory there is for bodies.
    #[error("read a body beside so many others")]
    Busy,
}

/// Bytes with their share of the memory, which is given back with the last of them.
struct Held<S> {
    bytes: Bytes,
    _share: S,
}

impl<S> AsRef<[u8]> for Held<S> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that give back their share of the memory with the last clone of them.
pub(crate) fn shared<S: Send + 'static>(bytes: Bytes, share: S) -> Bytes {
    Bytes::from_owner(Held { bytes, _share: share })
}

/// Bytes that may be held at once.
#[derive(Debug)]
struct Memory {
    most: usize,
    taken: Mutex<Taken>,
}

/// Of all, and of each who has any.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    each: HashMap<Asker, usize>,
}

impl Memory {
    fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
        }
    }

    /// Takes so many bytes; `false` if there is no room for them.
    fn take(&self, asker: Asker, n_bytes: usize) -> bool {
        let mut taken = self.taken.lock();
        let all = taken.all + n_bytes;
        let own = taken.each.get(&asker).map_or(n_bytes, |own| own + n_bytes);
        let has_room =
            (self.most.checked_sub(all)).is_some_and(|free| own <= free.saturating_mul(TIMES_FREE));
        if has_room {
            taken.all = all;
            taken.each.insert(asker, own);
        }
        has_room
    }

    fn give_back(&self, asker: Asker, n_bytes: usize) {
        let mut taken = self.taken.lock();
        taken.all -= n_bytes;
        if let Some(own) = taken.each.get_mut(&asker) {
            *own -= n_bytes;
            if *own == 0 {
                taken.each.remove(&asker);
            }
        }
    }
}

/// What a body has of the memory, until it is dropped.
struct Share {
    memory: Arc<Memory>,
    asker: Asker,
    n_bytes: usize,
}

impl Share {
    fn of(caller: Option<&Caller>) -> Self {
        Self {
            memory: Arc::clone(&MEMORY),
            asker: caller.map_or_else(Asker::anybody, Asker::caller),
            n_bytes: 0,
        }
    }

    fn grow(&mut self, n_bytes: usize) -> bool {
        let has_room = self.memory.take(self.asker, n_bytes);
        if has_room {
            self.n_bytes += n_bytes;
        }
        has_room
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.give_back(self.asker, self.n_bytes);
    }
}

/// The bytes that a body may take once it is parsed, where it may have so many.
pub(crate) fn parsed_limit(limit: usize) -> usize {
    limit.saturating_mul(TIMES_PARSED).max(LEAST_PARSED)
}

/// What a body takes of the memory once it is parsed, until this is dropped.
#[must_use]
pub(crate) struct Weight {
    _share: Option<Share>,
}

/// Looks how much a JSON text will take, and takes that of the memory, before it is parsed. `limit` is that of the text.
pub(crate) fn weigh(text: &[u8], caller: Option<&Caller>, limit: usize) -> Result<Weight, BodyError> {
    let n_parsed = if text.len() > LIGHT { parsed_size(text) } else { 0 };
    if n_parsed > parsed_limit(limit) {
        return Err(BodyError::TooManyValues);
    }
    weigh_parsed(n_parsed.saturating_sub(text.len()), caller)
}

/// Takes what a body takes beside its bytes, where that is known by other means.
pub(crate) fn weigh_parsed(n_bytes: usize, caller: Option<&Caller>) -> Result<Weight, BodyError> {
    if n_bytes < COUNTED_FROM {
        return Ok(Weight { _share: None });
    }
    let mut share = Share::of(caller);
    if share.grow(n_bytes.min(MAX_COUNTED)) {
        Ok(Weight { _share: Some(share) })
    } else {
        Err(BodyError::Busy)
    }
}

/// Reads a body of somebody, and of anybody where nobody has to say who it is.
pub(crate) async fn read(
    body: Body,
    caller: Option<&Caller>,
    limit: usize,
    patience: Duration,
) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        return Err(BodyError::TooLarge);
    }
    match tokio::time::timeout(patience, collect(body, limit, Share::of(caller))).await {
        Ok(read) => read,
        Err(_) => Err(BodyError::Slow),
    }
}

async fn collect(body: Body, limit: usize, mut share: Share) -> Result<Bytes, BodyError> {
    let capacity = usize::try_from(body.size_hint().lower()).unwrap_or(0);
    let mut stream = body.into_data_stream();
    let mut first = None;
    let mut rest: Vec<u8> = Vec::new();
    let mut total = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| BodyError::CutOff)?;
        let counted = chunk.len().min(MAX_COUNTED.saturating_sub(total));
        total += chunk.len();
        if total > limit {
            return Err(BodyError::TooLarge);
        }
        if !share.grow(counted) {
            return Err(BodyError::Busy);
        }
        // Most bodies arrive in one piece, which is then not copied.
        match (&first, rest.is_empty()) {
            (None, true) => first = Some(chunk),
            _ => {
                if let Some(first) = first.take() {
                    rest.reserve(capacity.max(total));
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&chunk);
            }
        }
    }
    let bytes = first.unwrap_or_else(|| Bytes::from(rest));
    Ok(shared(bytes, share))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn body(n_chunks: usize) -> Body {
        let chunks = (0..n_chunks).map(|_| Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1_000])));
        Body::from_stream(stream::iter(chunks.collect::<Vec<_>>()))
    }

    async fn of(memory: &Arc<Memory>, asker: u64, body: Body) -> Result<Bytes, BodyError> {
        let share = Share {
            memory: Arc::clone(memory),
            asker: Asker::number(asker),
            n_bytes: 0,
        };
        collect(body, 10_999, share).await
    }

    #[tokio::test]
    async fn bodies_share_the_memory_until_they_are_dropped() {
        let memory = Arc::new(Memory::new(10_000));
        let first = of(&memory, 1, body(6)).await.unwrap();
        assert_eq!((first.len(), memory.taken.lock().all), (6_000, 6_000));
        let refused = of(&memory, 2, body(5)).await;
        assert_eq!(refused, Err(BodyError::Busy));
        assert_eq!(memory.taken.lock().all, 6_000, "what was refused holds nothing");
        let second = of(&memory, 2, body(3)).await.unwrap();
        let part = first.slice(..10);
        drop(first);
        assert_eq!(memory.taken.lock().all, 9_000, "a part keeps the whole");
        drop((part, second));
        let Taken { all, each } = &*memory.taken.lock();
        assert!(*all == 0 && each.is_empty(), "{each:?}");
    }

    #[test]
    fn what_a_body_becomes_is_bounded_before_it_does() {
        let limit = 1 << 20;
        let text = format!("[{}0]", "{\"\":0},".repeat(limit / 8));
        assert!(text.len() < limit);
        assert!(matches!(
            weigh(text.as_bytes(), None, limit),
            Err(BodyError::TooManyValues)
        ));
        let numbers = format!("[{}0]", "1,".repeat(limit / 4));
        assert!(weigh(numbers.as_bytes(), None, limit).is_ok());
        let words = format!("\"{}\"", "x".repeat(limit - 2));
        assert!(weigh(words.as_bytes(), None, limit).is_ok_and(|weight| weight._share.is_none()));
        assert!(weigh(&text.as_bytes()[..LIGHT], None, 1).is_ok_and(|weight| weight._share.is_none()));
        let held: Vec<_> = std::iter::from_fn(|| weigh_parsed(16 << 20, None).ok()).collect();
        assert_eq!(held.len(), MAX_HELD * TIMES_FREE / (TIMES_FREE + 1) / (16 << 20));
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_holds_nothing() {
        let memory = Arc::new(Memory::new(100_000));
        assert_eq!(
            of(&memory, 1, body(10)).await.map(|bytes| bytes.len()),
            Ok(10_000)
        );
        assert_eq!(of(&memory, 1, body(11)).await, Err(BodyError::TooLarge));
        assert_eq!(memory.taken.lock().all, 0);
    }

    #[tokio::test]
    async fn nobody_takes_so_much_that_nothing_is_left_for_others() {
        let memory = Arc::new(Memory::new(10_000));
        let mut of_one = Vec::new();
        while let Ok(bytes) = of(&memory, 1, body(1)).await {
            of_one.push(bytes);
        }
        assert_eq!(of_one.len(), 7);
        let mut of_other = Vec::new();
        while let Ok(bytes) = of(&memory, 2, body(1)).await {
            of_other.push(bytes);
        }
        assert_eq!(of_other.len(), 2);
        // Who has much gives way before he takes more.
        of_one.truncate(5);
        assert_eq!(of(&memory, 1, body(3)).await, Err(BodyError::Busy));
        assert!(of(&memory, 3, body(1)).await.is_ok());
    }
}
