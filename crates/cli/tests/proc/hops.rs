//! Three hosts, each a peer of the one before: what the last one asks reaches the client of the first, over REST and over
//! A2A, and answers and cancels go all the way down, also if the host in the middle is killed in between.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    calling::{answer, asked, cancel, outputs, register, say, snapshot, task, text_of, until, workflow},
    host::{Host, KEY},
    kills::{long, order},
    quarantine::{ask, create, reaches},
};

/// The first, the one in the middle, and the last.
struct Hosts {
    first: Host,
    middle: Host,
    last: Host,
    address: SocketAddr,
}

fn host(peer: Option<SocketAddr>) -> Host {
    let host = Host::new().staying();
    match peer {
        None => host,
        Some(peer) => host
            .variable("WOPR_A2A_PEER", format!("http://{peer}"))
            .variable("WOPR_A2A_PEER_TOKEN", KEY)
            .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8"),
    }
}

impl Hosts {
    /// Starts the hosts. Each offers the skills of the next one as its own.
    async fn start() -> Self {
        let mut last = host(None);
        let of_last = last.start().await;
        for definition in [order(), long()] {
            register(of_last, definition).await;
        }
        let mut middle = host(Some(of_last));
        let of_middle = middle.start().await;
        let mut first = host(Some(of_middle));
        let address = first.start().await;
        for address in [of_middle, address] {
            for skill in ["order", "long"] {
                register(address, workflow(skill, &json!({ "skill": skill }))).await;
            }
        }
        Self {
            first,
            middle,
            last,
            address,
        }
    }

    async fn kill_and_start_middle(&mut self) {
        self.middle.kill().await;
        self.middle.start().await;
    }

    async fn end(mut self) {
        for host in [&mut self.first, &mut self.middle, &mut self.last] {
            let status = host.terminate().await;
            assert!(status.success(), "stopped in order: {status}\n{}", host.said());
        }
    }
}

/// The only run of a host.
async fn only(address: SocketAddr) -> String {
    let (_, listed) = ask(address, "GET", "/v1/runs", None).await;
    let runs = listed["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1, "{listed:#}");
    runs[0]["runId"].as_str().unwrap().to_owned()
}

/// The question as a client of A2A sees it.
async fn shows(address: SocketAddr, run: &str, question: &str) {
    let shown = task(address, run).await;
    let status = &shown["status"];
    assert_eq!(status["state"], "TASK_STATE_INPUT_REQUIRED", "{shown:#}");
    assert!(text_of(&status["message"]).contains(question), "{shown:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_of_the_last_of_three_hosts_is_answered_by_the_client_of_the_first() {
    let mut hosts = Hosts::start().await;
    let first = hosts.address;
    let run = create(first, "order", json!({ "prompt": "paint" })).await;

    // Asked before the host in the middle dies, answered over REST while it is away.
    asked(first, &run, "Which colour?").await;
    shows(first, &run, "Which colour?").await;
    hosts.middle.kill().await;
    answer(first, &run, "green").await;
    hosts.middle.start().await;

    // Answered over A2A just before it dies.
    asked(first, &run, "Which size?").await;
    shows(first, &run, "Which size?").await;
    say(first, &run, "large").await;
    hosts.kill_and_start_middle().await;
    reaches(first, &run, "completed").await;
    let outputs = outputs(first, &run).await;
    let text = outputs["text"].as_str().unwrap();
    assert!(
        text.contains("paint") && text.contains("green") && text.contains("large"),
        "{outputs:#}"
    );
    let shown = task(first, &run).await;
    assert_eq!(text_of(&shown["artifacts"][0]), text, "{shown:#}");
    for address in [hosts.middle.listens(), hosts.last.listens()] {
        let one = only(address).await;
        reaches(address, &one, "completed").await;
    }
    hosts.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_at_the_first_of_three_hosts_reaches_the_last() {
    let mut hosts = Hosts::start().await;
    let first = hosts.address;
    let run = create(first, "long", json!({ "prompt": "wait" })).await;
    let last = hosts.last.listens();
    let is_running = async || {
        let (_, listed) = ask(last, "GET", "/v1/runs?status=running", None).await;
        listed["runs"].as_array().is_some_and(|runs| !runs.is_empty())
    };
    while !is_running().await {
        tokio::task::yield_now().await;
    }
    until(first, &run, "running", |run| run["status"] == "running").await;
    hosts.middle.kill().await;
    cancel(first, &run).await;
    reaches(first, &run, "cancelled").await;
    let bottom = only(last).await;
    assert_eq!(snapshot(last, &bottom).await["status"], Value::from("running"));
    hosts.middle.start().await;
    reaches(last, &bottom, "cancelled").await;
    let middle = hosts.middle.listens();
    reaches(middle, &only(middle).await, "cancelled").await;
    hosts.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_at_the_last_of_three_hosts_is_cancelled_at_the_first() {
    let hosts = Hosts::start().await;
    let first = hosts.address;
    let run = create(first, "order", json!({ "prompt": "paint" })).await;
    asked(first, &run, "Which colour?").await;
    let cancelled = crate::calling::rpc(first, "CancelTask", json!({ "id": run })).await;
    assert_eq!(
        cancelled["status"]["state"], "TASK_STATE_CANCELED",
        "{cancelled:#}"
    );
    for address in [hosts.middle.listens(), hosts.last.listens()] {
        reaches(address, &only(address).await, "cancelled").await;
    }
    hosts.end().await;
}
