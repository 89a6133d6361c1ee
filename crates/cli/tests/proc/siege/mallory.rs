//! Mallory: a tenant with its own key who performs all known attacks.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{Attacks, Count, MALLORY, definitions};
use crate::{
    http::{Connection, write_request},
    server::{Response, Server},
};

/// Response timeout.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Response time of the slow peer.
const SLOW: Duration = Duration::from_secs(30);

/// Starts all attacks. The peer that Mallory's workflows call lives as long as the returned value.
pub(super) async fn begin(attacks: &mut Attacks) -> Server {
    let peer = Server::start(|request| async move {
        match request.uri().path() {
            "/slow" => {
                // sleep: the peer is slow
                sleep(SLOW).await;
                None
            }
            _ => Some(weighty_answer()),
        }
    })
    .await;
    let url = peer.url();
    for workflow in definitions::callers(&url).into_iter().chain(definitions::bombs()) {
        let registered = ask(attacks.address, "/v1/workflows", &workflow).await;
        assert_eq!(registered, Some(201), "{workflow}");
    }
    attacks.begin("weighty bodies", 8, weighty_bodies);
    let runs = |name: &'static str| move |address, _, count| run(address, name, count);
    attacks.begin("weighty peers", 4, runs("weighty"));
    attacks.begin("slow peers", 8, runs("slow"));
    attacks.begin("fork bombs", 2, runs("bomb-4"));
    let hostile = Arc::new(definitions::hostile());
    attacks.begin("hostile definitions", 4, move |address, n, count| {
        define(address, n, Arc::clone(&hostile), count)
    });
    peer
}

fn weighty_answer() -> Response {
    let body = weighty(4 << 20);
    let answer = http::Response::builder().header("content-type", "application/json");
    answer.body(Bytes::from(body)).unwrap()
}

/// Small objects, which take a hundred times their text size once parsed.
fn weighty(n_bytes: usize) -> String {
    format!("[{}0]", "{\"\":0},".repeat(n_bytes / 7))
}

/// Posts a document and returns the status, or `None` without a response.
pub(super) async fn ask(address: SocketAddr, path: &str, document: &Value) -> Option<u16> {
    post(address, path, document.to_string().as_bytes()).await
}

async fn post(address: SocketAddr, path: &str, body: &[u8]) -> Option<u16> {
    let asked = timeout(TIMEOUT, async {
        let mut connection = Connection::open(address).await?;
        let mut request = Vec::new();
        // The same credential in another spelling must be recognized as Mallory's.
        let fields = format!("authorization: bEARER   {MALLORY} \r\n");
        write_request(&mut request, "POST", path, &fields, Some(body));
        connection.send(&request).await
    });
    asked.await.ok()?.ok()
}

/// Registers a definition once. Returns the status and the response.
pub(super) async fn register(address: SocketAddr, key: &str, definition: &Value) -> (u16, String) {
    let mut connection = Connection::open(address).await.unwrap();
    let mut request = Vec::new();
    let fields = format!("authorization: Bearer {key}\r\n");
    let body = definition.to_string();
    write_request(
        &mut request,
        "POST",
        "/v1/workflows",
        &fields,
        Some(body.as_bytes()),
    );
    let status = connection.send(&request).await.unwrap();
    let mut answer = Vec::new();
    connection.body(&mut answer).await.unwrap();
    (status, String::from_utf8_lossy(&answer).into_owned())
}

/// Bodies that exceed the limit on parsed size, and others just below it.
async fn weighty_bodies(address: SocketAddr, n: u64, count: Count) {
    let inputs = if n.is_multiple_of(2) {
        weighty(8 << 20)
    } else {
        weighty(200 << 10)
    };
    let body = format!("{{\"workflowId\":\"weighty\",\"inputs\":{{\"a\":{inputs}}}}}");
    loop {
        post(address, "/v1/runs", body.as_bytes()).await;
        count.add();
        // sleep: between two attempts
        sleep(PAUSE).await;
    }
}

async fn run(address: SocketAddr, workflow: &'static str, count: Count) {
    let body = json!({ "workflowId": workflow });
    loop {
        ask(address, "/v1/runs", &body).await;
        count.add();
        // sleep: between two attempts
        sleep(PAUSE).await;
    }
}

/// Registers definitions one after another, and runs those that are accepted.
async fn define(address: SocketAddr, n: u64, hostile: Arc<Vec<Value>>, count: Count) {
    let mut next = usize::try_from(n).unwrap_or(0);
    loop {
        let definition = &hostile[next % hostile.len()];
        next += 1;
        if ask(address, "/v1/workflows", definition)
            .await
            .is_some_and(|status| status < 300)
        {
            let items: Vec<_> = (0..10_000).map(|n| json!({ "n": n })).collect();
            let inputs = json!({ "items": items, "text": "0".repeat(1 << 20) });
            let body = json!({ "workflowId": definition["id"], "inputs": inputs });
            ask(address, "/v1/runs", &body).await;
        }
        count.add();
        // sleep: between two attempts
        sleep(PAUSE).await;
    }
}
