//! Compares received pushes with the stream: complete since the subscription, first deliveries in order, and
//! nothing after the end.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{self, Instant};

use super::share;
use crate::chaos::{
    caller::{Caller, Request},
    ledger::{Ledger, Since, Subscription},
    observe::{self, Frame, View},
    receiver::Receiver,
};

/// Maximum backoff of a push: receivers refuse only a few times in a row.
const LIMIT: Duration = Duration::from_secs(60);
/// Interval between two polls of the pending deliveries.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits until every receiver got the end of its run, and compares its pushes with the log. Returns the
/// number of receivers.
pub(super) async fn check(caller: &mut Caller, receiver: &Receiver) -> usize {
    let ledger = &Arc::clone(caller.ledger());
    let subscriptions = ledger.subscriptions();
    let n_subscriptions = subscriptions.len();
    let shown = share(
        caller,
        subscriptions,
        |mut caller, subscription: Subscription| async move {
            let Subscription { run, version, .. } = &subscription;
            let frames = observe::replay(&mut caller, run, View::Task(*version)).await?;
            Some((subscription, frames))
        },
    );
    let shown = shown.await;
    ledger.hold(shown.len() == n_subscriptions, || {
        format!(
            "of {n_subscriptions} tasks with receivers {} are there",
            shown.len()
        )
    });
    let has_end = |receiver: &Receiver, (subscription, frames): &(Subscription, Vec<Frame>)| {
        let heard = receiver.heard(&subscription.name);
        heard.iter().any(|(_, frame)| Some(frame) == frames.last())
    };
    // Whatever is still missing is reported below.
    receiver
        .until(LIMIT, |receiver| shown.iter().all(|one| has_end(receiver, one)))
        .await;
    for (subscription, frames) in &shown {
        compare(ledger, subscription, &receiver.heard(&subscription.name), frames);
    }
    nothing_waits(caller).await;
    n_subscriptions
}

fn compare(ledger: &Ledger, subscription: &Subscription, heard: &[(String, Frame)], shown: &[Frame]) {
    let Subscription { run, since, .. } = subscription;
    let mut first: Vec<&Frame> = Vec::new();
    for (task, frame) in heard {
        ledger.hold(task == run, || format!("{subscription:?} heard of {task}"));
        match first.iter().find(|known| known.id() == frame.id()) {
            Some(known) => ledger.hold(*known == frame, || {
                format!("{subscription:?} heard {frame:?} after {known:?}")
            }),
            None => first.push(frame),
        }
    }
    let begins_well = match since {
        // A replay starts after the first event.
        Since::Beginning => !first.is_empty() && first.remove(0).is_state("working"),
        Since::Question => true,
    };
    let promised = match since {
        Since::Beginning => shown,
        Since::Question => {
            let asked = shown.iter().position(|frame| frame.is_state("input-required"));
            asked.map_or(shown, |asked| &shown[asked + 1..])
        }
    };
    ledger.hold(begins_well && first.iter().copied().eq(promised), || {
        format!("{subscription:?} heard {heard:?}, and its task showed {shown:?}")
    });
}

/// Checks that no deliveries are pending or given up.
async fn nothing_waits(caller: &mut Caller) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = caller.ask(&Request::get("/v1/host/wopr/deliveries")).await;
        let waiting = answer.body["deliveries"].as_array().map(Vec::as_slice);
        if answer.status == 200 && waiting.is_some_and(<[Value]>::is_empty) {
            return;
        }
        if Instant::now() > deadline {
            let waiting = &answer.body;
            return caller
                .ledger()
                .violated(format!("everything was told, and there waits {waiting}"));
        }
        // sleep: the last answers are on their way
        time::sleep(PAUSE).await;
    }
}
