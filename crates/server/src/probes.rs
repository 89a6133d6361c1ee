//! Reserved slots for liveness and readiness probes.
//!
//! A supervisor restarts a host that does not answer, so probes never compete with unauthenticated clients for
//! memory. They have a few slots of their own. When all are taken, the connection that has held a slot longest
//! is closed, if it had enough time to read its response. Clients that leave responses unread therefore cannot
//! occupy the slots, however many addresses they use.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use http::{Method, Request};
use hyper::body::Body;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::connection::Line;

/// Maximum number of probes in flight, including unread responses.
const MAX_PROBES: usize = 64;
/// How long a probe keeps its slot while others want it.
const LONG: Duration = Duration::from_secs(1);
/// Maximum size of a probe's response, errors included, in bytes.
const MAX_ANSWER: usize = 4 << 10;

/// The slots of one host.
#[derive(Debug, Default)]
pub(crate) struct Probes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    places: VecDeque<Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    since: Instant,
    line: Line,
}

/// A slot, held until dropped.
#[derive(Debug)]
pub(crate) struct Probe {
    probes: Arc<Probes>,
    number: u64,
}

impl Probe {
    /// Takes a slot if the request is a probe and a slot is free or can be freed.
    pub(crate) fn take<B: Body>(probes: &Arc<Probes>, line: &Line, request: &Request<B>) -> Option<Self> {
        is_probe(request).then(|| Probes::take(probes, line))?
    }

    /// Returns `true` if a response of this size may use a probe's slot.
    pub(crate) const fn answers(n_bytes: usize) -> bool {
        n_bytes <= MAX_ANSWER
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let mut state = self.probes.0.lock();
        state.places.retain(|place| place.number != self.number);
    }
}

impl Probes {
    fn take(probes: &Arc<Self>, line: &Line) -> Option<Probe> {
        let now = Instant::now();
        let mut state = probes.0.lock();
        if state.places.len() >= MAX_PROBES {
            let is_spent = |place: &Place| place.since + LONG <= now && place.line.may_leave();
            let spent = state.places.iter().position(is_spent)?;
            if let Some(place) = state.places.remove(spent) {
                place.line.leave();
            }
        }
        let number = state.next;
        state.next += 1;
        state.places.push_back(Place {
            number,
            since: now,
            line: line.clone(),
        });
        Some(Probe {
            probes: Arc::clone(probes),
            number,
        })
    }
}

/// Returns `true` for a probe without a body, which needs no memory beyond its head.
fn is_probe<B: Body>(request: &Request<B>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
        && matches!(request.uri().path(), "/healthz" | "/readyz")
        && request.body().is_end_stream()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::connection::{Bounds, Crowd};

    #[tokio::test(start_paused = true)]
    async fn a_new_probe_evicts_an_unread_one() {
        let crowd = Arc::new(Crowd::new(Bounds { each: 0, all: 1_000 }));
        let seat = || crowd.arrive(IpAddr::from([192, 0, 2, 1])).unwrap();
        let probes = Arc::new(Probes::default());
        let stuck: Vec<_> = (0..MAX_PROBES).map(|_| seat()).collect();
        let held: Vec<_> = stuck
            .iter()
            .map(|seat| Probes::take(&probes, seat.line()))
            .collect();
        assert!(held.iter().all(Option::is_some));
        assert!(
            Probes::take(&probes, seat().line()).is_none(),
            "they had no time yet"
        );
        tokio::time::advance(LONG).await;
        // The first connection also serves an authenticated request, so it must not be closed for a probe.
        stuck[0].line().begin_known();
        assert!(Probes::take(&probes, seat().line()).is_some());
        let has_left = |n: usize| stuck[n].line().told_to_leave().now_or_never().is_some();
        assert!(!has_left(0) && has_left(1) && !has_left(2));
        drop(held);
        assert!(probes.0.lock().places.is_empty());
    }

    #[test]
    fn only_requests_without_a_body_are_probes() {
        let request = |method: Method, path: &str, body: &'static str| {
            let builder = Request::builder().method(method).uri(path);
            builder.body(crate::message::Body::from(body)).unwrap()
        };
        assert!(is_probe(&request(Method::GET, "/healthz", "")));
        assert!(is_probe(&request(Method::HEAD, "/readyz?verbose", "")));
        assert!(!is_probe(&request(Method::GET, "/metrics", "")));
        assert!(!is_probe(&request(Method::POST, "/healthz", "")));
        assert!(!is_probe(&request(Method::GET, "/healthz", "body")));
    }
}
