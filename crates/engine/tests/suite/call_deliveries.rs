//! Deliveries to the peers of accepted calls: cancels are repeated for a day, answers while their call waits, and both are
//! listed and retried.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use wopr_core::{Command, InterruptKind, NodeTypes, RemoteQuestion, RunKey, RunStatus, Timestamp};
use wopr_engine::{
    Answered, Answering, Attempt, CallMessage, CancelError, Cancellation, Clock, Engine, Executor,
    ListedCallDelivery, Options, Outcome, Report, SideRows,
};
use wopr_store::{CallDeliveryFilter, MemoryStore};

use crate::harness::{answer, create, fresh, log, node, reaches, tenant, workflow};

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

/// What a peer says when its task is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Works,
    Asks,
    /// The host has a fault there.
    Panics,
    Done,
}

#[derive(Debug)]
struct State {
    says: Says,
    /// The time between two looks at a task that asks.
    asked_look: Duration,
    listens: bool,
    /// When it was looked at.
    looks: Vec<Instant>,
    /// When a cancel came.
    cancels: Vec<Instant>,
    /// When an answer came.
    answers: Vec<Instant>,
}

#[derive(Debug, Clone)]
struct Peer(Arc<Mutex<State>>);

impl Peer {
    fn says(&self, says: Says) {
        self.0.lock().says = says;
    }

    fn listens(&self, listens: bool) {
        self.0.lock().listens = listens;
    }
}

#[async_trait]
impl Executor for Peer {
    async fn run(&self, _: Attempt) -> Report {
        let (says, asked_look) = {
            let mut state = self.0.lock();
            state.looks.push(Instant::now());
            (state.says, state.asked_look)
        };
        match says {
            Says::Works => Report::Accepted {
                handle: json!("task"),
                check_after: Some(Duration::from_secs(30)),
            },
            Says::Asks => Report::Interrupted {
                handle: json!("asking"),
                question: RemoteQuestion {
                    key: "q".to_owned(),
                    kind: InterruptKind::Clarification,
                    data: json!({ "message": "Which colour?" }),
                },
                check_after: Some(asked_look),
            },
            Says::Panics => panic!("as the test wants"),
            Says::Done => Outcome::Done(json!({})).into(),
        }
    }

    async fn answer(&self, _: Answering) -> Result<Answered, CancelError> {
        let mut state = self.0.lock();
        if !state.listens {
            return Err(CancelError::new("away".to_owned()));
        }
        state.answers.push(Instant::now());
        Ok(Answered::Taken)
    }

    async fn cancel(&self, _: Cancellation) -> Result<(), CancelError> {
        let mut state = self.0.lock();
        if !state.listens {
            return Err(CancelError::new("away".to_owned()));
        }
        state.cancels.push(Instant::now());
        Ok(())
    }
}

struct World {
    engine: Engine,
    peer: Peer,
    run: RunKey,
}

impl World {
    /// A run that calls a peer.
    async fn calling(says: Says) -> Self {
        let peer = Peer(Arc::new(Mutex::new(State {
            says,
            asked_look: Duration::from_secs(10),
            listens: true,
            looks: Vec::new(),
            cancels: Vec::new(),
            answers: Vec::new(),
        })));
        let options = Options {
            node_types: NodeTypes { conformance: true },
            poll: Duration::from_secs(600),
            lease: Duration::from_secs(3_600),
            ..Options::default()
        };
        let clock = Arc::new(Virtual(Instant::now()));
        let store = Arc::new(MemoryStore::new());
        let engine = Engine::start(store, Arc::new(peer.clone()), clock, options);
        let engine = engine.await.expect("starts");
        let mut document = workflow(
            "w",
            &[node("call", "core.conformance.side-effect", json!({}))],
            &[],
        );
        document["settings"] = json!({ "maxRetries": 3, "retryDelayMs": 1 });
        engine.register(None, document).await.expect("registers");
        let run = fresh(create(&engine, "w", json!({}), SideRows::default()).await).key;
        Self { engine, peer, run }
    }

    /// Waits until the log has an event.
    async fn has(&self, event: &str) {
        let mut tail = self.engine.tail(&self.run);
        while !log(&self.engine, &self.run)
            .await
            .iter()
            .any(|kind| kind.contains(event))
        {
            tail.changed().await;
        }
    }

    async fn tell(&self, command: Command) {
        let told = self.engine.command(&self.run, command, SideRows::default());
        told.await.expect("is taken");
    }

    async fn cancel(&self) {
        self.tell(Command::Cancel {
            reason: None,
            by: None,
        })
        .await;
        reaches(&self.engine, &self.run, RunStatus::Cancelled).await;
    }

    /// Lists the deliveries that wait, or were given up.
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

    /// Lets virtual time pass.
    async fn pass(&self, time: Duration) {
        // sleep: virtual time
        tokio::time::sleep(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn call_whose_look_panics_fails_and_its_peer_is_told_to_stop() {
    let world = World::calling(Says::Works).await;
    world.has("EffectAccepted").await;
    world.peer.says(Says::Panics);
    let view = reaches(&world.engine, &world.run, RunStatus::Failed).await;
    let (failure, _) = view.run.error.as_ref().expect("failed");
    assert_eq!(failure.code, "internal_error");
    world.pass(Duration::from_secs(1)).await;
    let state = world.peer.0.lock();
    assert_eq!(
        (state.cancels.len(), state.looks.len()),
        (1, 2),
        "not attempted again"
    );
}

#[tokio::test(start_paused = true)]
async fn cancel_that_its_peer_does_not_hear_is_listed_until_it_does() {
    let world = World::calling(Says::Works).await;
    world.has("EffectAccepted").await;
    world.peer.listens(false);
    world.cancel().await;
    world.pass(Duration::from_secs(60)).await;
    let listed = world.listed(false).await;
    let [delivery] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!(
        (&delivery.run, &delivery.message),
        (&world.run.run, &CallMessage::Cancel)
    );
    assert_eq!(
        (&delivery.handle, delivery.step.node.as_str()),
        (&Some(json!("task")), "call")
    );
    assert!((2..20).contains(&delivery.n_failed), "{delivery:?}");
    assert_eq!(delivery.error.as_deref(), Some("tell the peer: away"));
    assert!(
        delivery.next_try_at.is_some() && delivery.given_up_at.is_none(),
        "{delivery:?}"
    );
    assert_eq!(world.listed(true).await, []);

    // A retry does not wait for the next try.
    world.peer.listens(true);
    let n_retried = world.engine.retry_call_deliveries(&world.run).await;
    assert_eq!(n_retried.expect("retries"), 1);
    world.pass(Duration::from_millis(10)).await;
    assert_eq!(world.peer.0.lock().cancels.len(), 1);
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn cancel_is_given_up_after_a_day_and_can_be_retried() {
    let world = World::calling(Says::Works).await;
    world.has("EffectAccepted").await;
    world.peer.listens(false);
    world.cancel().await;
    world.pass(DAY + Duration::from_secs(7_200)).await;
    let given_up = world.listed(true).await;
    let [delivery] = given_up.as_slice() else {
        panic!("{given_up:?}")
    };
    assert!(
        delivery.given_up_at.is_some() && delivery.next_try_at.is_none(),
        "{delivery:?}"
    );
    let n_failed = delivery.n_failed;
    world.pass(DAY).await;
    assert_eq!(
        world.listed(true).await[0].n_failed,
        n_failed,
        "not tried any more"
    );

    world.peer.listens(true);
    let n_retried = world.engine.retry_call_deliveries(&world.run).await;
    assert_eq!(n_retried.expect("retries"), 1);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.peer.0.lock().cancels.len(), 1);
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn peer_that_was_answered_is_looked_at_soon_and_asked_again_if_it_ignores_the_answer() {
    let world = World::calling(Says::Asks).await;
    reaches(&world.engine, &world.run, RunStatus::WaitingInput).await;
    // Between the looks at a task that asks.
    world.pass(Duration::from_secs(12)).await;
    world.tell(answer("call", json!({ "text": "green" }))).await;
    let answered = Instant::now();
    world.pass(Duration::from_secs(2)).await;
    {
        let state = world.peer.0.lock();
        assert_eq!(state.answers.len(), 1);
        let soon = state.looks.iter().filter(|look| **look >= answered).count();
        assert!(soon >= 4, "{soon} looks after the answer");
    }
    // It goes on asking the very same.
    reaches(&world.engine, &world.run, RunStatus::WaitingInput).await;
    let after = answered.elapsed();
    assert!((60..80).contains(&after.as_secs()), "{after:?}");
    world.tell(answer("call", json!({ "text": "blue" }))).await;
    world.peer.says(Says::Done);
    reaches(&world.engine, &world.run, RunStatus::Completed).await;
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.listed(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn answer_is_repeated_for_as_long_as_its_call_waits() {
    let world = World::calling(Says::Asks).await;
    reaches(&world.engine, &world.run, RunStatus::WaitingInput).await;
    world.peer.0.lock().asked_look = Duration::from_secs(600);
    world.peer.listens(false);
    world.tell(answer("call", json!({ "text": "green" }))).await;
    world.pass(DAY + DAY / 4).await;
    // Its question is not asked again: the answer is still under way.
    assert_eq!(
        world
            .engine
            .view(&world.run)
            .await
            .expect("reads")
            .expect("exists")
            .run
            .status,
        RunStatus::Running
    );
    let listed = world.listed(false).await;
    let interrupt = "call:0".to_owned();
    assert_eq!(listed[0].message, CallMessage::Answer { interrupt }, "{listed:?}");
    assert!(
        (300..450).contains(&listed[0].n_failed) && listed[0].given_up_at.is_none(),
        "{listed:?}"
    );
    assert_eq!(world.listed(true).await, []);

    // The peer is back.
    world.peer.listens(true);
    world.pass(Duration::from_secs(301)).await;
    assert_eq!(world.peer.0.lock().answers.len(), 1);
    assert_eq!(world.listed(false).await, []);
    world.peer.says(Says::Done);
    reaches(&world.engine, &world.run, RunStatus::Completed).await;
}

#[tokio::test(start_paused = true)]
async fn answer_that_nobody_waits_for_any_more_is_dropped() {
    let world = World::calling(Says::Asks).await;
    reaches(&world.engine, &world.run, RunStatus::WaitingInput).await;
    world.peer.0.lock().asked_look = Duration::from_secs(600);
    world.peer.listens(false);
    world.tell(answer("call", json!({ "text": "green" }))).await;
    world.pass(Duration::from_secs(3_600)).await;
    world.cancel().await;
    world.peer.listens(true);
    world.pass(Duration::from_secs(3_600)).await;
    let told = {
        let state = world.peer.0.lock();
        (state.answers.len(), state.cancels.len())
    };
    assert_eq!(told, (0, 1));
    assert_eq!(world.listed(false).await, []);
}
