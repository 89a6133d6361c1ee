//! Who is connected, and who has to leave when too many are.
//!
//! A connection is strange until a request over it is recognized. Strange connections are bounded for each address and
//! altogether, so that those of nobody leave room for callers; connections of callers are bounded by their whole number
//! alone. Where a bound is reached, whoever has been silent for longest gives way to the newcomer, if that was long
//! enough; where all are busy, whoever came first, if that is long ago; else the newcomer is turned away. An address from which a caller came lately may go beyond the
//! bound of all addresses.

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

use crate::{admission::NoRoom, credential_id::Network};

/// How long a newcomer may be silent where others wait for its place: more than a round trip around the world.
const SHORT: Duration = Duration::from_secs(1);
/// How long a stranger keeps its place by being busy, where others wait for it.
const LONG: Duration = Duration::from_secs(30);
/// For how long an address is known after a caller came from it.
const KNOWN: Duration = Duration::from_secs(3600);
/// How many addresses are known at once; the one that was heard of least lately is forgotten.
const MAX_KNOWN: usize = 4_096;
/// Requests of strangers over one connection at once. More are refused, and end one that has no others.
const MAX_STRANGE_REQUESTS: usize = 32;
/// The same while connections are crowded: what a stranger sends at once is work before it can be held up.
const MAX_CROWDED_REQUESTS: usize = 8;
/// Strange connections that are no crowd.
pub(super) const FREE: usize = 256;

/// How many strange connections there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// From one address; 0 is no bound.
    pub(crate) each: usize,
    /// From all addresses that are not known.
    pub(crate) all: usize,
}

/// Everybody who is connected and strange.
#[derive(Debug)]
pub(crate) struct Crowd {
    bounds: Bounds,
    state: Mutex<State>,
    /// A copy of what the state says, read for every piece that arrives.
    n_strange: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<Network, BTreeMap<u64, Arc<Guest>>>,
    n_strange: usize,
    known: HashMap<Network, Instant>,
    next: u64,
}

/// A connection.
#[derive(Debug)]
struct Guest {
    number: u64,
    network: Network,
    arrived: Instant,
    is_known: AtomicBool,
    n_strange: AtomicUsize,
    n_known: AtomicUsize,
    /// Requests of strangers that began since it was asked last.
    n_begun: AtomicUsize,
    leaves: Notify,
}

/// A connection that is served, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat(Line);

/// What requests know of their connection.
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
        }
    }

    /// Takes a connection, if there is or can be made room for it.
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

    /// Whether new connections are about to be turned away: those that say nothing then have little time.
    fn is_crowded(&self, network: Network) -> bool {
        let state = self.state.lock();
        let n_own = state.places.get(&network).map_or(0, BTreeMap::len);
        (self.bounds.each > 0 && n_own >= self.bounds.each / 2) || state.n_strange >= self.bounds.all / 2
    }
}

impl State {
    /// Has the one leave who came first of those at an address that are silent; or of all that came long ago.
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

    /// Counts a connection no more among the strange ones.
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

impl Line {
    pub(crate) fn network(&self) -> Network {
        self.guest.network
    }

    /// How long the client may be silent, where it may be so for `timeout`.
    pub(crate) fn timeout(&self, timeout: Duration) -> Duration {
        if self.crowd.is_crowded(self.guest.network) {
            timeout.min(SHORT * 2)
        } else {
            timeout
        }
    }

    /// Waits until the connection has to end at once.
    pub(crate) async fn told_to_leave(&self) {
        self.guest.leaves.notified().await;
    }

    /// A caller was recognized on this connection, which is not strange any more.
    pub(crate) fn known(&self) {
        if !self.guest.is_known.swap(true, Ordering::Relaxed) {
            let mut state = self.crowd.state.lock();
            state.forget(&self.guest);
            self.crowd.n_strange.store(state.n_strange, Ordering::Relaxed);
            state.know(self.guest.network, Instant::now());
        }
    }

    /// Whether a caller came lately from the address of this connection.
    pub(crate) fn has_known_address(&self) -> bool {
        self.is_known()
            || self
                .crowd
                .state
                .lock()
                .is_known(self.guest.network, Instant::now())
    }

    /// Whether the connection carries no request of a caller.
    pub(crate) fn may_leave(&self) -> bool {
        self.guest.n_known.load(Ordering::Relaxed) == 0
    }

    /// Has the connection end at once.
    pub(crate) fn leave(&self) {
        self.guest.leaves.notify_one();
    }

    /// Whether a caller was recognized on this connection.
    pub(super) fn is_known(&self) -> bool {
        self.guest.is_known.load(Ordering::Relaxed)
    }

    /// How many connections are strange.
    pub(super) fn n_strange_connections(&self) -> usize {
        self.crowd.n_strange.load(Ordering::Relaxed)
    }

    /// How many requests of strangers began on this connection since this was asked last.
    pub(super) fn take_begun(&self) -> usize {
        self.guest.n_begun.swap(0, Ordering::Relaxed)
    }

    /// A request of a caller begins.
    pub(crate) fn begin_known(&self) {
        self.guest.n_known.fetch_add(1, Ordering::Relaxed);
        self.known();
    }

    /// A request of a caller has ended.
    pub(crate) fn end_known(&self) {
        self.guest.n_known.fetch_sub(1, Ordering::Relaxed);
    }

    /// A request of a stranger begins.
    ///
    /// # Errors
    /// There are too many on this connection, which ends if it has no others.
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

    /// A request of a stranger has ended, or was recognized.
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
    async fn the_longest_silent_gives_way_to_a_newcomer_of_its_address() {
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
    async fn being_busy_keeps_a_place_for_a_while_only() {
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
    async fn connections_of_callers_do_not_count() {
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
    async fn a_known_address_finds_room_where_strangers_fill_the_rest() {
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
    async fn the_address_with_most_connections_gives_way_first() {
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
    async fn silence_is_short_where_it_is_crowded() {
        let crowd = crowd(4, 100);
        let first = crowd.arrive(address(1)).unwrap();
        let long = SHORT * 30;
        assert_eq!(first.line().timeout(long), long);
        let _second = crowd.arrive(address(1)).unwrap();
        assert_eq!(first.line().timeout(long), SHORT * 2);
        assert_eq!(crowd.arrive(address(2)).unwrap().line().timeout(long), long);
    }

    #[test]
    fn too_many_requests_of_strangers_end_a_connection_that_carries_no_others() {
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
    fn addresses_are_known_up_to_a_bound() {
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
