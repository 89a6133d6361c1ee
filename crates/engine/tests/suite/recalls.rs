//! Calls that their run drops before an acceptance is recorded: recalled, found or not, listed and retried.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use wopr_core::{Command, NodeTypes, RunKey, RunStatus, Timestamp};
use wopr_engine::{
    Attempt, CallMessage, CancelError, Cancellation, Clock, Engine, Executor, ListedCallDelivery, Options,
    Outcome, Recalled, Recalling, Report, SideRows,
};
use wopr_store::{CallDeliveryFilter, MemoryStore, SqliteStore, Store};

use crate::harness::{create, fresh, node, reaches, tenant, workflow};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Follows the virtual time of the test.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let since = i64::try_from(self.0.elapsed().as_millis()).expect("a test ends");
        Timestamp::from_millis(1_000_000 + since)
    }
}

/// What comes back from a peer that gets the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    /// Nothing, ever.
    Silence,
    /// The connection breaks.
    Lost,
    /// It takes no message now.
    Refused,
    /// Nothing: its executor has no room for the message.
    NoRoom,
    /// It accepts the call a while after the message.
    AcceptedLate,
    Accepted,
}

#[derive(Debug)]
struct State {
    says: Says,
    /// What the peer has. `Err` if the peer cannot be asked, with the delay that it requests.
    has: Result<Recalled, Option<Duration>>,
    n_attempts: usize,
    /// Those that came with the word that the peer may have the message.
    n_repeats: usize,
    /// When it was asked what it has.
    recalls: Vec<Instant>,
    /// The handles of cancels.
    cancels: Vec<Value>,
}

#[derive(Debug, Clone)]
struct Peer(Arc<Mutex<State>>);

#[async_trait]
impl Executor for Peer {
    async fn run(&self, attempt: Attempt) -> Report {
        let says = {
            let mut state = self.0.lock();
            state.n_attempts += 1;
            state.n_repeats += usize::from(attempt.is_repeat || attempt.is_interrupted);
            state.says
        };
        let failed = |may_go_on| {
            Report::from(Outcome::Failed {
                code: "external_call_failed".to_owned(),
                message: "as the test wants".to_owned(),
                retryable: true,
                retry_after: None,
                may_go_on,
                is_timeout: false,
            })
        };
        let accepted = || Report::Accepted {
            handle: json!("task"),
            check_after: None,
        };
        match says {
            Says::Silence => std::future::pending().await,
            Says::Lost => failed(true),
            Says::Refused => failed(false),
            Says::NoRoom => Report::Unchanged {
                check_after: Some(Duration::from_secs(5)),
            },
            Says::AcceptedLate => {
                // sleep: virtual time
                tokio::time::sleep(Duration::from_secs(5)).await;
                accepted()
            }
            Says::Accepted => accepted(),
        }
    }

    fn may_go_on(&self, _: &str) -> bool {
        true
    }

    async fn recall(&self, _: Recalling) -> Result<Recalled, CancelError> {
        let mut state = self.0.lock();
        state.recalls.push(Instant::now());
        match &state.has {
            Ok(recalled) => Ok(recalled.clone()),
            Err(retry_after) => Err(CancelError::new("away".to_owned()).after(*retry_after)),
        }
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        self.0.lock().cancels.push(call.handle);
        Ok(())
    }
}

struct World {
    engine: Engine,
    peer: Peer,
    run: RunKey,
}

impl World {
    /// A run that calls a peer, and tries so many times again.
    async fn calling(store: Arc<dyn Store>, says: Says, retries: u64) -> Self {
        let peer = Peer(Arc::new(Mutex::new(State {
            says,
            has: Ok(Recalled::Found(json!("task"))),
            n_attempts: 0,
            n_repeats: 0,
            recalls: Vec::new(),
            cancels: Vec::new(),
        })));
        let options = Options {
            node_types: NodeTypes { conformance: true },
            poll: Duration::from_secs(600),
            lease: Duration::from_secs(60),
            ..Options::default()
        };
        let clock = Arc::new(Virtual(Instant::now()));
        let engine = Engine::start(store, Arc::new(peer.clone()), clock, options);
        let engine = engine.await.expect("starts");
        let call = node("call", "core.conformance.side-effect", json!({}));
        let mut document = workflow("w", &[call], &[]);
        document["settings"] = json!({ "maxRetries": retries, "retryDelayMs": 10_000 });
        engine.register(None, document).await.expect("registers");
        let run = fresh(create(&engine, "w", json!({}), SideRows::default()).await).key;
        pass(Duration::from_secs(1)).await;
        Self { engine, peer, run }
    }

    async fn cancel(&self) {
        let cancel = Command::Cancel {
            reason: None,
            by: None,
        };
        let told = self.engine.command(&self.run, cancel, SideRows::default());
        told.await.expect("is taken");
        reaches(&self.engine, &self.run, RunStatus::Cancelled).await;
    }

    async fn listed(&self, parked: bool) -> Vec<ListedCallDelivery> {
        let filter = CallDeliveryFilter {
            tenant: tenant(),
            run: None,
            principal: None,
            parked,
        };
        let listed = self.engine.call_deliveries(&filter, None, 100);
        listed.await.expect("reads")
    }

    fn counts(&self) -> (usize, usize) {
        let state = self.peer.0.lock();
        (state.recalls.len(), state.cancels.len())
    }
}

/// Lets virtual time pass.
async fn pass(time: Duration) {
    // sleep: virtual time
    tokio::time::sleep(time).await;
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

async fn silent_peer_is_asked_what_it_has(store: Arc<dyn Store>) {
    let world = World::calling(store, Says::Silence, 0).await;
    world.cancel().await;
    // The attempt goes on for a while: the peer may still accept the call.
    pass(Duration::from_secs(20)).await;
    let listed = world.listed(false).await;
    let recall = CallMessage::Recall { peer: None };
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0].message, &listed[0].handle), (&recall, &None));
    assert_eq!(world.counts(), (0, 0));
    pass(Duration::from_secs(20)).await;
    assert_eq!(world.counts(), (1, 1));
    assert_eq!(world.peer.0.lock().cancels, [json!("task")]);
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn silent_peer_of_a_cancelled_run_is_asked_what_it_has_in_memory() {
    silent_peer_is_asked_what_it_has(memory()).await;
}

#[tokio::test]
async fn lost_call_of_a_cancelled_run_is_recalled_in_sqlite() {
    let dir = tempfile::tempdir().expect("temp dir");
    let options = wopr_store::sqlite::Options::default();
    let store = SqliteStore::open(dir.path().join("wopr.db"), options).expect("opens");
    let world = World::calling(Arc::new(store), Says::Lost, 1).await;
    world.cancel().await;
    while world.counts() != (1, 1) || !world.listed(false).await.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.peer.0.lock().cancels, [json!("task")]);
}

#[tokio::test(start_paused = true)]
async fn call_that_is_accepted_after_its_run_was_cancelled_is_cancelled_by_its_handle() {
    let world = World::calling(memory(), Says::AcceptedLate, 0).await;
    world.cancel().await;
    pass(DAY).await;
    assert_eq!(world.counts(), (0, 1), "it need not be recalled");
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn peer_that_has_nothing_is_asked_once_more() {
    let world = World::calling(memory(), Says::Silence, 0).await;
    world.peer.0.lock().has = Ok(Recalled::Nothing);
    world.cancel().await;
    pass(DAY).await;
    assert_eq!(world.counts(), (2, 0));
    let recalls = world.peer.0.lock().recalls.clone();
    assert!(recalls[1] - recalls[0] >= Duration::from_secs(15), "{recalls:?}");
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn call_that_waits_for_room_was_not_sent() {
    for is_cancelled in [true, false] {
        let world = World::calling(memory(), Says::NoRoom, 0).await;
        pass(Duration::from_secs(30)).await;
        if is_cancelled {
            world.cancel().await;
        } else {
            world.peer.0.lock().says = Says::Refused;
            reaches(&world.engine, &world.run, RunStatus::Failed).await;
        }
        pass(DAY).await;
        assert_eq!(world.counts(), (0, 0));
        assert_eq!(world.listed(false).await, []);
        let state = world.peer.0.lock();
        assert_eq!((state.n_attempts > 5, state.n_repeats), (true, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_was_sent_when_there_was_room_is_recalled() {
    let world = World::calling(memory(), Says::NoRoom, 1).await;
    pass(Duration::from_secs(30)).await;
    world.peer.0.lock().says = Says::Silence;
    pass(Duration::from_secs(10)).await;
    world.cancel().await;
    pass(DAY).await;
    assert_eq!(world.counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn peer_whose_answer_leaves_nothing_is_not_asked_again() {
    let world = World::calling(memory(), Says::Lost, 1).await;
    world.peer.0.lock().has = Ok(Recalled::Over);
    world.cancel().await;
    pass(DAY).await;
    assert_eq!(world.counts(), (1, 0));
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn peer_gets_a_recalled_request_again_three_times_at_most() {
    for (recalled, n_recalls) in [
        (Recalled::Unanswered("it broke".to_owned()), 3),
        (Recalled::Unusable("it broke".to_owned()), 1),
    ] {
        let world = World::calling(memory(), Says::Lost, 1).await;
        world.peer.0.lock().has = Ok(recalled);
        world.cancel().await;
        pass(DAY).await;
        assert_eq!(world.counts(), (n_recalls, 0));
        let given_up = world.listed(true).await;
        assert_eq!(given_up.len(), 1, "{given_up:?}");
        assert_eq!(given_up[0].error.as_deref(), Some("it broke"));
        assert!(given_up[0].given_up_at.is_some(), "{given_up:?}");
        // The operator may have it tried again.
        let n_retried = world.engine.retry_call_deliveries(&world.run).await;
        assert_eq!(n_retried.expect("retries"), 1);
        pass(DAY).await;
        assert_eq!(world.counts(), (2 * n_recalls, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn call_is_recalled_if_its_run_is_cancelled_between_two_attempts() {
    let world = World::calling(memory(), Says::Lost, 3).await;
    assert_eq!(world.listed(false).await, [], "the next attempt may find it");
    world.cancel().await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.counts(), (1, 1));
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn call_whose_attempts_are_used_up_is_recalled_once() {
    let world = World::calling(memory(), Says::Lost, 2).await;
    pass(Duration::from_secs(15)).await;
    // What may have been sent before is not forgotten when a later attempt was certainly not.
    world.peer.0.lock().says = Says::Refused;
    reaches(&world.engine, &world.run, RunStatus::Failed).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.peer.0.lock().n_attempts, 3);
    assert_eq!(world.counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn call_that_no_peer_has_is_not_recalled() {
    let world = World::calling(memory(), Says::Refused, 1).await;
    reaches(&world.engine, &world.run, RunStatus::Failed).await;
    pass(DAY).await;
    assert_eq!(world.counts(), (0, 0));
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn call_that_a_later_attempt_finds_is_cancelled_by_its_handle() {
    let world = World::calling(memory(), Says::Lost, 3).await;
    world.peer.0.lock().says = Says::Accepted;
    pass(Duration::from_secs(15)).await;
    assert_eq!(world.peer.0.lock().n_attempts, 2);
    world.cancel().await;
    pass(DAY).await;
    assert_eq!(world.counts(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn peer_that_is_busy_is_left_alone_for_as_long_as_it_asks() {
    let world = World::calling(memory(), Says::Lost, 1).await;
    let busy = Duration::from_secs(600);
    world.peer.0.lock().has = Err(Some(busy));
    reaches(&world.engine, &world.run, RunStatus::Failed).await;
    pass(3 * busy).await;
    let recalls = world.peer.0.lock().recalls.clone();
    assert!(recalls.len() > 1, "{recalls:?}");
    assert!(
        recalls.windows(2).all(|pair| pair[1] - pair[0] >= busy),
        "{recalls:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn recall_is_given_up_after_a_day_and_can_be_retried() {
    let world = World::calling(memory(), Says::Lost, 1).await;
    world.peer.0.lock().has = Err(None);
    reaches(&world.engine, &world.run, RunStatus::Failed).await;
    pass(DAY + Duration::from_secs(7_200)).await;
    let given_up = world.listed(true).await;
    assert_eq!(given_up.len(), 1, "{given_up:?}");
    assert!(given_up[0].n_failed > 10, "{given_up:?}");
    assert_eq!(given_up[0].error.as_deref(), Some("tell the peer: away"));
    world.peer.0.lock().has = Ok(Recalled::Found(json!("task")));
    let n_retried = world.engine.retry_call_deliveries(&world.run).await;
    assert_eq!(n_retried.expect("retries"), 1);
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.peer.0.lock().cancels, [json!("task")]);
    assert_eq!(world.listed(false).await, []);
}
