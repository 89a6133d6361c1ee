//! Follows a run together with the runs below it.
//!
//! What a child run does is shown beside what the run itself does, so a child run that cannot be followed is left out. The
//! events of a child run come before the event of its parent that says that it has ended.

use std::{collections::VecDeque, time::Duration};

use anyhow::Result;
use futures_util::future::select_all;
use wopr_wire::openwop::event::RunEventDoc;

use crate::{client::Client, follow::Follower, render::text};

/// The most child runs that are followed at the same time.
const MAX_AT_ONCE: usize = 16;
/// The most child runs of a tree that are followed.
const MAX_RUNS: usize = 200;
/// How long the last events of a child run are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The events of a run, and of the runs below it if they are wanted.
pub(crate) struct Tree<'c> {
    client: &'c Client,
    top: Follower<'c>,
    mode: &'static str,
    below: Vec<Follower<'c>>,
    /// How many more child runs may be followed.
    n_left: usize,
    /// Read, and not returned yet.
    ready: VecDeque<RunEventDoc>,
}

impl<'c> Tree<'c> {
    /// Follows a run from its first event, with the runs below it if they are wanted.
    pub(crate) async fn start(
        client: &'c Client,
        run: &str,
        mode: &'static str,
        wants_children: bool,
    ) -> Result<Self> {
        Ok(Self {
            client,
            top: Follower::start(client, run, mode).await?,
            mode,
            below: Vec::new(),
            n_left: if wants_children { MAX_RUNS } else { 0 },
            ready: VecDeque::new(),
        })
    }

    /// Returns the next event, or `None` after the terminal one of the run at the top.
    pub(crate) async fn next(&mut self) -> Result<Option<RunEventDoc>> {
        if let Some(event) = self.ready.pop_front() {
            return Ok(Some(event));
        }
        loop {
            let event = tokio::select! {
                event = self.top.next() => match event? {
                    Some(event) => event,
                    None => return Ok(None),
                },
                (event, index) = first(&mut self.below), if !self.below.is_empty() => match event {
                    Ok(Some(event)) => event,
                    Ok(None) | Err(_) => {
                        self.below.swap_remove(index);
                        continue;
                    }
                },
            };
            if let Some(child) = ended_child(&event) {
                self.drain(child).await;
            }
            if event.event_type == "node.dispatched" {
                self.follow(text(&event.payload, "childRunId")).await;
            }
            self.ready.push_back(event);
            return Ok(self.ready.pop_front());
        }
    }

    async fn follow(&mut self, child: &str) {
        if self.n_left == 0 || self.below.len() >= MAX_AT_ONCE || child.is_empty() {
            return;
        }
        self.n_left -= 1;
        if let Ok(follower) = Follower::start(self.client, child, self.mode).await {
            self.below.push(follower);
        }
    }

    /// Reads what is left of a child run that has ended.
    async fn drain(&mut self, child: &str) {
        let Some(index) = self.below.iter().position(|follower| follower.run() == child) else {
            return;
        };
        let mut follower = self.below.swap_remove(index);
        let rest = async {
            while let Ok(Some(event)) = follower.next().await {
                self.ready.push_back(event);
            }
        };
        // What comes later is not shown.
        let _ = tokio::time::timeout(PATIENCE, rest).await;
    }
}

/// The next event of any of several runs, and which of them it is of.
async fn first(followers: &mut [Follower<'_>]) -> (Result<Option<RunEventDoc>>, usize) {
    let next = followers.iter_mut().map(|follower| Box::pin(follower.next()));
    let (event, index, _) = select_all(next).await;
    (event, index)
}

/// The child run whose end an event tells.
fn ended_child(event: &RunEventDoc) -> Option<&str> {
    let payload = &event.payload;
    let child = match event.event_type.as_str() {
        "core.workflowChain.event" => match text(payload, "phase") {
            "child.completed" | "child.failed" | "child.cancelled" => text(payload, "childRunId"),
            _ => "",
        },
        "vendor.wopr.child.ended" => text(payload, "childRunId"),
        "node.completed" => payload
            .pointer("/outputs/childRunId")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default(),
        _ => "",
    };
    (!child.is_empty()).then_some(child)
}
