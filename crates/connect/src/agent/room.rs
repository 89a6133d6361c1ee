//! Room for calls of each agent: how many may be under way at once.
//!
//! The engine's slots are for all calls of this host, and a request to an agent that is silent holds one for minutes. So
//! an agent has its own bound for each kind of request. A request that finds no room waits for a second, in which an agent
//! that answers has made some. After that it is put back for a while and holds nothing meanwhile. Messages that hang leave
//! room for looks and cancels, which is how they end.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use wopr_core::TenantId;
use wopr_engine::CancelError;

use crate::shares::{Share, Shares};

/// The most messages to one agent that wait for an answer: a quarter of what a host does at once by default. Recalls
/// count as messages, as they may send one.
const MAX_MESSAGES: usize = 64;
/// The most answers to questions of one agent that are under way.
const MAX_ANSWERS: usize = 16;
/// The most other requests to one agent that are under way.
const MAX_LOOKS: usize = 32;
/// A tenant may take this multiple of what it leaves free: three quarters of it all, if it is the only one.
const TIMES_FREE: usize = 3;
/// How long a request waits for room, and the first and the longest pause between two looks for it.
const PATIENCE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// When a request that found no room is tried again, and the latest time for that.
const AGAIN: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(30);
/// The time between two requests that are tried again, so that many of them keep the store no busier than a few.
const PACE: Duration = Duration::from_millis(5);

/// What a request to an agent is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Answer,
    Look,
}

/// Room that a request takes until it is dropped.
pub(super) type Taken = Share<u64>;

/// There is no room for a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom {
    /// When to try again.
    pub(super) after: Duration,
}

impl From<NoRoom> for CancelError {
    fn from(_: NoRoom) -> Self {
        Self::new("as many requests to the agent are under way as there may be at once".to_owned())
    }
}

/// The room of all agents.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<HashMap<String, Arc<Room>>>);

#[derive(Debug)]
struct Room {
    messages: Arc<Shares<u64>>,
    answers: Arc<Shares<u64>>,
    looks: Arc<Shares<u64>>,
    /// When the next request that finds no room is tried again.
    turn: Mutex<Instant>,
}

impl Rooms {
    /// Takes room for a request to an agent of the configuration, and waits a moment for it.
    pub(super) async fn take(&self, peer: &str, tenant: &TenantId, kind: Kind) -> Result<Taken, NoRoom> {
        let (since, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            match self.try_take(peer, tenant, kind) {
                Ok(taken) => return Ok(taken),
                Err(room) if since.elapsed() >= PATIENCE => return Err(room.turn()),
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn try_take(&self, peer: &str, tenant: &TenantId, kind: Kind) -> Result<Taken, Arc<Room>> {
        let room = {
            let mut rooms = self.0.lock();
            match rooms.get(peer) {
                Some(room) => Arc::clone(room),
                None => Arc::clone(rooms.entry(peer.to_owned()).or_insert_with(Room::new)),
            }
        };
        let shares = match kind {
            Kind::Message => &room.messages,
            Kind::Answer => &room.answers,
            Kind::Look => &room.looks,
        };
        shares.take(holder(tenant), 1).ok_or(room)
    }
}

impl Room {
    fn new() -> Arc<Self> {
        let shares = |most| Arc::new(Shares::new(most, TIMES_FREE));
        Arc::new(Self {
            messages: shares(MAX_MESSAGES),
            answers: shares(MAX_ANSWERS),
            looks: shares(MAX_LOOKS),
            turn: Mutex::new(Instant::now()),
        })
    }

    fn turn(&self) -> NoRoom {
        let now = Instant::now();
        let mut turn = self.turn.lock();
        *turn = (*turn + PACE).clamp(now + AGAIN, now + LATEST);
        NoRoom {
            after: turn.duration_since(now),
        }
    }
}

/// The name of a tenant among the holders of shares.
pub(super) fn holder(tenant: &TenantId) -> u64 {
    let mut hasher = DefaultHasher::new();
    tenant.as_str().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn kinds_agents_and_tenants_leave_room_to_one_another() {
        let rooms = Rooms::default();
        let (one, other) = (TenantId::parse("one").unwrap(), TenantId::parse("other").unwrap());
        let fill = |peer, tenant: &TenantId, kind| {
            let taken = std::iter::from_fn(|| rooms.try_take(peer, tenant, kind).ok());
            taken.collect::<Vec<_>>()
        };
        let messages = fill("silent", &one, Kind::Message);
        assert_eq!(messages.len(), MAX_MESSAGES * 3 / 4);
        assert!(!fill("silent", &other, Kind::Message).is_empty());
        assert_eq!(fill("silent", &one, Kind::Look).len(), MAX_LOOKS * 3 / 4);
        assert_eq!(fill("silent", &one, Kind::Answer).len(), MAX_ANSWERS * 3 / 4);
        assert_eq!(fill("healthy", &one, Kind::Message).len(), MAX_MESSAGES * 3 / 4);
        drop(messages);
        assert!(rooms.take("silent", &one, Kind::Message).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_an_agent_that_answers() {
        let rooms = Rooms::default();
        let tenant = TenantId::parse("one").unwrap();
        let mut taken: Vec<_> =
            std::iter::from_fn(|| rooms.try_take("busy", &tenant, Kind::Message).ok()).collect();
        let answered = async {
            // sleep: the clock is paused, and the room is free while the request waits.
            sleep(PATIENCE / 2).await;
            drop(taken.pop());
        };
        let (room, ()) = tokio::join!(rooms.take("busy", &tenant, Kind::Message), answered);
        assert!(room.is_ok());
        let since = Instant::now();
        assert!(rooms.take("busy", &tenant, Kind::Message).await.is_err());
        assert!(since.elapsed() >= PATIENCE && since.elapsed() < 2 * PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_find_no_room_come_back_one_after_the_other() {
        let rooms = Rooms::default();
        let tenant = TenantId::parse("one").unwrap();
        let take = || rooms.try_take("silent", &tenant, Kind::Message);
        let taken: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
        assert_eq!(taken.len(), MAX_MESSAGES * 3 / 4);
        let waits: Vec<_> = (0..10_000)
            .filter_map(|_| take().err())
            .map(|room| room.turn().after)
            .collect();
        assert_eq!(waits.len(), 10_000);
        assert!(waits.iter().all(|wait| (AGAIN..=LATEST).contains(wait)));
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(waits[100] - waits[50], 50 * PACE);
    }
}
