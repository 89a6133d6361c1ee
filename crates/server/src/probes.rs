//! Places for probes: requests that only ask whether this host is alive or ready.
//!
//! A supervisor restarts a host that does not answer, so its probes never compete with strangers for memory. They have a
//! few places of their own. When all are taken, the connection that has held one for longest is closed, if that was
//! long enough for a client that reads; no number of addresses can keep the places by leaving answers unread.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{Method, Request};
use hyper::body::Body;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::connection::Line;

/// Probes that are answered at once, unread answers included.
const MAX_PROBES: usize = 64;
/// How long a probe keeps its place where others wait for it.
const LONG: Duration = Duration::from_secs(1);
/// The largest answer of a probe, a failure included.
const MAX_ANSWER: usize = 4 << 10;

/// The places of this process.
static PROBES: LazyLock<Arc<Probes>> = LazyLock::new(Arc::default);

#[derive(Debug, Default)]
struct Probes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were taken.
    places: VecDeque<Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    since: Instant,
    line: Line,
}

/// A place, until dropped.
#[derive(Debug)]
pub(crate) struct Probe {
    probes: Arc<Probes>,
    number: u64,
}

impl Probe {
    /// Takes a place for a request, if it is a probe and there is or can be made room for it.
    pub(crate) fn take<B: Body>(line: &Line, request: &Request<B>) -> Option<Self> {
        is_probe(request).then(|| Probes::take(&PROBES, line))?
    }

    /// Whether an answer is small enough to be one of a probe.
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

/// Claims that a request is a probe: one without a body, so that all it holds is its head.
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
    async fn a_probe_takes_the_place_of_one_whose_answer_nobody_reads() {
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
        // The first carries a caller's request too, which a probe does not end.
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
            builder.body(axum::body::Body::from(body)).unwrap()
        };
        assert!(is_probe(&request(Method::GET, "/healthz", "")));
        assert!(is_probe(&request(Method::HEAD, "/readyz?verbose", "")));
        assert!(!is_probe(&request(Method::GET, "/metrics", "")));
        assert!(!is_probe(&request(Method::POST, "/healthz", "")));
        assert!(!is_probe(&request(Method::GET, "/healthz", "body")));
    }
}
