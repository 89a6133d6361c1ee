//! Limits unauthenticated connections and decides which one is closed when there are too many.
//!
//! A connection is unauthenticated ("strange") until a request on it is authenticated. Unauthenticated
//! connections are limited per network and in total, which leaves room for callers; authenticated connections
//! are only limited by `max_connections`. At a limit, a new connection replaces the one that has been silent
//! longest, if that is long enough, or else the oldest one, if that is old enough; otherwise the new connection
//! is refused. A network from which a caller authenticated recently may exceed the total.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::pace;
use crate::{admission::NoRoom, credential_id::Network};

/// How long a new connection may be silent while others wait for its place: more than a round trip around the
/// world.
const SHORT: Duration = Duration::from_secs(1);
/// How long an unauthenticated connection keeps its place by being busy while others wait for it.
const LONG: Duration = Duration::from_secs(30);
/// How long a network is remembered after a caller authenticated from it.
const KNOWN: Duration = Duration::from_secs(3600);
/// Maximum number of remembered networks; the least recently used one is forgotten.
const MAX_KNOWN: usize = 4_096;
/// Maximum number of concurrent unauthenticated requests per connection. Further ones are refused, and the
/// connection is closed if it carries no authenticated request.
const MAX_STRANGE_REQUESTS: usize = 32;
/// Like [`MAX_STRANGE_REQUESTS`], while there are many unauthenticated connections. Requests that arrive at
/// once cause work before they can be paced.
const MAX_CROWDED_REQUESTS: usize = 8;
/// Beyond this many unauthenticated connections, each has the same share of what they may send together.
pub(super) const FREE: usize = 256;

/// Limits of unauthenticated connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Per network; 0 means no limit.
    pub(crate) each: usize,
    /// In total, except for remembered networks.
    pub(crate) all: usize,
}

/// All unauthenticated connections.
#[derive(Debug)]
pub(crate) struct Crowd {
    bounds: Bounds,
    state: Mutex<State>,
    /// A copy of the count in `state`, which is read for every piece that arrives.
    n_strange: AtomicUsize,
    /// How many of them pause, as they sent more than their share.
    n_resting: AtomicUsize,
    /// When the first piece of the next connection may be read.
    next_first: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<Network, BTreeMap<u64, Arc<Guest>>>,
    n_strange: usize,
    known: HashMap<Network, Instant>,
    next: u64,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    network: Network,
    arrived: Instant,
    is_known: AtomicBool,
    n_strange: AtomicUsize,
    n_known: AtomicUsize,
    /// Unauthenticated requests that began since the last [`Line::take_begun`].
    n_begun: AtomicUsize,
    leaves: Notify,
}

/// A connection that is being served, until dropped.
#[derive(Debug)]
pub(crate) struct Seat(Line);

/// A connection that pauses, until dropped.
#[derive(Debug)]
pub(super) struct Resting(Arc<Crowd>);

/// A handle by which requests refer to their connection.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    crowd: Arc<Crowd>,
    guest: Arc<Guest>,
}

impl Crowd {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
            n_strange: AtomicUsize::new(0),
            n_resting: AtomicUsize::new(0),
            next_first: Mutex::new(None),
        }
    }

    /// Admits a connection if there is room or room can be made.
    pub(crate) fn arrive(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let network = Network::of(address);
        let now = Instant::now();
        let mut state = self.state.lock();
        let n_own = state.places.get(&network).map_or(0, BTreeMap::len);
        if self.bounds.each > 0 && n_own >= self.bounds.each && !state.dismiss(network, now) {
            return None;
        }
        if state.n_strange >= self.bounds.all && !state.is_known(network, now) {
            let most = state.places.iter().max_by_key(|(_, guests)| guests.len());
            let most = most.map(|(network, _)| *network)?;
            if !state.dismiss(most, now) {
                return None;
            }
        }
        let number = state.next;
        state.next += 1;
        let guest = Arc::new(Guest {
            number,
            network,
            arrived: now,
            is_known: AtomicBool::new(false),
            n_strange: AtomicUsize::new(0),
            n_known: AtomicUsize::new(0),
            n_begun: AtomicUsize::new(0),
            leaves: Notify::new(),
        });
        let guests = state.places.entry(network).or_default();
        guests.insert(number, Arc::clone(&guest));
        state.n_strange += 1;
        self.n_strange.store(state.n_strange, Ordering::Relaxed);
        drop(state);
        let crowd = Arc::clone(self);
        Some(Seat(Line { crowd, guest }))
    }

    /// Returns `true` if new connections will soon be refused; silent ones then get less time.
    fn is_crowded(&self, network: Network) -> bool {
        let state = self.state.lock();
        let n_own = state.places.get(&network).map_or(0, BTreeMap::len);
        (self.bounds.each > 0 && n_own >= self.bounds.each / 2) || state.n_strange >= self.bounds.all / 2
    }
}

impl State {
    /// Closes the oldest silent connection of a network, or else its oldest one, if it is old enough.
    fn dismiss(&mut self, network: Network, now: Instant) -> bool {
        let Some(guests) = self.places.get(&network) else {
            return false;
        };
        let is_silent = |guest: &Guest| guest.n_strange.load(Ordering::Relaxed) == 0;
        let mut rested = guests.values().take_while(|guest| guest.arrived + SHORT <= now);
        let first = || guests.values().next().filter(|guest| guest.arrived + LONG <= now);
        let found = rested.find(|guest| is_silent(guest)).or_else(first);
        let Some(guest) = found.map(Arc::clone) else {
            return false;
        };
        self.forget(&guest);
        guest.leaves.notify_one();
        true
    }

    /// Removes a connection from the unauthenticated ones.
    fn forget(&mut self, guest: &Guest) {
        let Some(guests) = self.places.get_mut(&guest.network) else {
            return;
        };
        if guests.remove(&guest.number).is_some() {
            self.n_strange -= 1;
        }
        if guests.is_empty() {
            self.places.remove(&guest.network);
        }
    }

    fn is_known(&self, network: Network, now: Instant) -> bool {
        self.known.get(&network).is_some_and(|since| *since + KNOWN > now)
    }

    fn know(&mut self, network: Network, now: Instant) {
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&network) {
            let oldest = self.known.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(network, now);
    }
}

impl Seat {
    pub(crate) const fn line(&self) -> &Line {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Line { crowd, guest } = &self.0;
        if !guest.is_known.load(Ordering::Relaxed) {
            let mut state = crowd.state.lock();
            state.forget(guest);
            crowd.n_strange.store(state.n_strange, Ordering::Relaxed);
        }
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.0.n_resting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Line {
    pub(crate) fn network(&self) -> Network {
        self.guest.network
    }

    /// Reduces `timeout`, the time that the client may be silent, if there are many unauthenticated
    /// connections.
    pub(crate) fn timeout(&self, timeout: Duration) -> Duration {
        if self.crowd.is_crowded(self.guest.network) {
            timeout.min(SHORT * 2)
        } else {
            timeout
        }
    }

    /// Waits until the connection must be closed at once.
    pub(crate) async fn told_to_leave(&self) {
        self.guest.leaves.notified().await;
    }

    /// Marks the connection as authenticated.
    pub(crate) fn known(&self) {
        if !self.guest.is_known.swap(true, Ordering::Relaxed) {
            let mut state = self.crowd.state.lock();
            state.forget(&self.guest);
            self.crowd.n_strange.store(state.n_strange, Ordering::Relaxed);
            state.know(self.guest.network, Instant::now());
        }
    }

    /// Returns `true` if a caller authenticated from this network recently.
    pub(crate) fn has_known_address(&self) -> bool {
        self.is_known()
            || self
                .crowd
                .state
                .lock()
                .is_known(self.guest.network, Instant::now())
    }

    /// Returns `true` if the connection carries no authenticated request.
    pub(crate) fn may_leave(&self) -> bool {
        self.guest.n_known.load(Ordering::Relaxed) == 0
    }

    /// Closes the connection at once.
    pub(crate) fn leave(&self) {
        self.guest.leaves.notify_one();
    }

    /// Returns `true` if a caller authenticated on this connection.
    pub(super) fn is_known(&self) -> bool {
        self.guest.is_known.load(Ordering::Relaxed)
    }

    /// The number of unauthenticated connections.
    pub(super) fn n_strange_connections(&self) -> usize {
        self.crowd.n_strange.load(Ordering::Relaxed)
    }

    /// The number of unauthenticated connections that pause.
    pub(super) fn n_resting(&self) -> usize {
        self.crowd.n_resting.load(Ordering::Relaxed)
    }

    /// Counts the connection among those that pause.
    pub(super) fn rests(&self) -> Resting {
        self.crowd.n_resting.fetch_add(1, Ordering::Relaxed);
        Resting(Arc::clone(&self.crowd))
    }

    /// Schedules the first piece of this connection, and returns how long it has to wait.
    pub(super) fn wait_for_first(&self, now: Instant) -> Duration {
        let mut next = self.crowd.next_first.lock();
        let (wait, then) = pace::turn(*next, now);
        *next = Some(then);
        wait
    }

    /// Returns and resets the number of unauthenticated requests that began on this connection.
    pub(super) fn take_begun(&self) -> usize {
        self.guest.n_begun.swap(0, Ordering::Relaxed)
    }

    /// Counts an authenticated request as begun.
    pub(crate) fn begin_known(&self) {
        self.guest.n_known.fetch_add(1, Ordering::Relaxed);
        self.known();
    }

    /// Counts an authenticated request as ended.
    pub(crate) fn end_known(&self) {
        self.guest.n_known.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an unauthenticated request as begun.
    ///
    /// # Errors
    /// If the connection carries too many. It is closed if it carries no authenticated request.
    pub(crate) fn begin_strange(&self) -> Result<(), NoRoom> {
        self.guest.n_begun.fetch_add(1, Ordering::Relaxed);
        let n_before = self.guest.n_strange.fetch_add(1, Ordering::Relaxed);
        let most = if self.n_strange_connections() > FREE {
            MAX_CROWDED_REQUESTS
        } else {
            MAX_STRANGE_REQUESTS
        };
        if n_before < most {
            return Ok(());
        }
        self.end_strange();
        if self.may_leave() {
            self.leave();
        }
        Err(NoRoom)
    }

    /// Counts an unauthenticated request as ended or authenticated.
    pub(crate) fn end_strange(&self) {
        self.guest.n_strange.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn crowd(each: usize, all: usize) -> Arc<Crowd> {
        Arc::new(Crowd::new(Bounds { each, all }))
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn has_left(seat: &Seat) -> bool {
        seat.0.told_to_leave().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn new_connection_replaces_a_silent_one_of_its_network() {
        let crowd = crowd(2, 100);
        let first = crowd.arrive(address(1)).unwrap();
        let second = crowd.arrive(address(1)).unwrap();
        assert!(crowd.arrive(address(1)).is_none(), "both had no time to speak");
        let _other = crowd.arrive(address(2)).expect("it has a bound of its own");
        tokio::time::advance(SHORT).await;
        first.line().begin_strange().unwrap();
        let _third = crowd.arrive(address(1)).expect("the second is silent");
        assert!(has_left(&second) && !has_left(&first));
    }

    #[tokio::test(start_paused = true)]
    async fn busy_connections_keep_their_place_only_for_a_while() {
        let crowd = crowd(2, 100);
        let seats = [
            crowd.arrive(address(1)).unwrap(),
            crowd.arrive(address(1)).unwrap(),
        ];
        for seat in &seats {
            seat.line().begin_strange().unwrap();
        }
        tokio::time::advance(LONG - SHORT).await;
        assert!(crowd.arrive(address(1)).is_none());
        tokio::time::advance(SHORT).await;
        assert!(crowd.arrive(address(1)).is_some());
        assert!(has_left(&seats[0]) && !has_left(&seats[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn authenticated_connections_do_not_count() {
        let crowd = crowd(1, 100);
        let seats: Vec<_> = (0..10)
            .map(|_| {
                let seat = crowd.arrive(address(1)).expect("all others are known");
                seat.line().begin_known();
                seat.line().end_known();
                seat
            })
            .collect();
        tokio::time::advance(SHORT * 10).await;
        let _stranger = crowd.arrive(address(1)).unwrap();
        assert!(!seats.iter().any(has_left));
        drop(seats);
        assert_eq!(crowd.state.lock().n_strange, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn known_network_may_exceed_the_total() {
        let crowd = crowd(0, 3);
        crowd.arrive(address(9)).unwrap().line().known();
        let _seats: Vec<_> = (0..3).map(|n| crowd.arrive(address(n)).unwrap()).collect();
        assert!(crowd.arrive(address(4)).is_none());
        let _known = crowd.arrive(address(9)).unwrap();
        tokio::time::advance(SHORT).await;
        assert!(crowd.arrive(address(4)).is_some(), "one of the silent left");
        tokio::time::advance(KNOWN).await;
        assert!(
            !crowd
                .state
                .lock()
                .is_known(Network::of(address(9)), Instant::now())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn network_with_most_connections_loses_one_first() {
        let crowd = crowd(0, 3);
        let single = crowd.arrive(address(1)).unwrap();
        let many = [
            crowd.arrive(address(2)).unwrap(),
            crowd.arrive(address(2)).unwrap(),
        ];
        tokio::time::advance(SHORT).await;
        let _newcomer = crowd.arrive(address(3)).unwrap();
        assert!(has_left(&many[0]) && !has_left(&many[1]) && !has_left(&single));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_timeout_is_short_when_crowded() {
        let crowd = crowd(4, 100);
        let first = crowd.arrive(address(1)).unwrap();
        let long = SHORT * 30;
        assert_eq!(first.line().timeout(long), long);
        let _second = crowd.arrive(address(1)).unwrap();
        assert_eq!(first.line().timeout(long), SHORT * 2);
        assert_eq!(crowd.arrive(address(2)).unwrap().line().timeout(long), long);
    }

    #[test]
    fn excess_unauthenticated_requests_close_the_connection() {
        let crowd = crowd(0, 100);
        let seat = crowd.arrive(address(1)).unwrap();
        let line = seat.line();
        for _ in 0..MAX_STRANGE_REQUESTS {
            line.begin_strange().unwrap();
        }
        line.begin_known();
        assert_eq!(line.begin_strange(), Err(NoRoom));
        assert!(!has_left(&seat), "a caller has requests there");
        line.end_known();
        assert_eq!(line.begin_strange(), Err(NoRoom));
        assert!(has_left(&seat));
    }

    #[test]
    fn number_of_known_networks_is_limited() {
        let mut state = State::default();
        let now = Instant::now();
        for n in 0..=MAX_KNOWN {
            let n = u32::try_from(n).unwrap();
            state.know(
                Network::of(IpAddr::from(n.to_be_bytes())),
                now + Duration::from_secs(n.into()),
            );
        }
        assert_eq!(state.known.len(), MAX_KNOWN);
        assert!(!state.known.contains_key(&Network::of(IpAddr::from([0; 4]))));
    }
}
