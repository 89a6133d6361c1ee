//! Push receivers for the tasks of third-party clients.
//!
//! Each client registers three receivers for a task that waits for input: one together with the first
//! message, one while the task waits, and one that it deletes immediately. Their URLs are the given address
//! followed by `/sent`, `/set` and `/removed`. The secrets of the first two are their names.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::HeaderMap;
use serde_json::Value;
use tokio::{sync::watch, time::timeout};

use crate::{
    interop::LIMIT,
    server::{Request, Response, Server, respond},
};

/// A received push.
#[derive(Debug, Clone)]
struct Pushed {
    headers: HeaderMap,
    body: Value,
}

impl Pushed {
    /// The state it reports in 0.3 terms, or that it contains an artifact.
    fn what(&self) -> String {
        let Self { body, .. } = self;
        let new_artifact = body.pointer("/metadata/openwop/artifactId");
        if body.get("artifactUpdate").is_some() || new_artifact.is_some() {
            return "artifact".to_owned();
        }
        let status = body.get("statusUpdate").unwrap_or(body);
        let state = status["status"]["state"].as_str().unwrap();
        let state = state.trim_start_matches("TASK_STATE_").to_lowercase();
        state.replace('_', "-")
    }

    /// Its sequence number in the task's log.
    fn sequence(&self) -> u64 {
        let Self { body, .. } = self;
        let items = [&body["statusUpdate"], &body["artifactUpdate"], body];
        let mut sequences = items
            .into_iter()
            .filter_map(|item| item["metadata"]["openwop"]["sequence"].as_u64());
        sequences.next().unwrap()
    }

    /// Checks the version and the sender's credentials.
    fn check(&self, version: &str, name: &str) {
        let Self { headers, body } = self;
        let media_type = match version {
            "1.0" => "application/a2a+json",
            _ => "application/json",
        };
        assert_eq!(headers["content-type"], media_type, "{body}");
        assert_eq!(body["kind"] == "task", version == "0.3", "{body}");
        if version == "1.0" {
            // As parsed by the official types.
            let read: a2a::StreamResponse = serde_json::from_value(body.clone()).unwrap();
            assert!(!matches!(read, a2a::StreamResponse::Task(_)), "{body}");
        }
        assert_eq!(headers["x-a2a-notification-token"], name, "{body}");
        assert_eq!(headers["a2a-notification-token"], name, "{body}");
        assert_eq!(headers["authorization"], format!("Bearer {name}"), "{body}");
    }
}

/// Receivers on one port.
#[derive(Debug)]
pub(crate) struct Receivers {
    server: Server,
    heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    pushes: Mutex<BTreeMap<String, Vec<Pushed>>>,
    news: watch::Sender<()>,
}

impl Heard {
    fn of(&self, path: &str) -> Vec<Pushed> {
        self.pushes.lock().unwrap().get(path).cloned().unwrap_or_default()
    }

    fn take(&self, request: &Request) -> Response {
        let body = serde_json::from_slice(request.body()).unwrap();
        let pushed = Pushed {
            headers: request.headers().clone(),
            body,
        };
        let path = request.uri().path().to_owned();
        self.pushes.lock().unwrap().entry(path).or_default().push(pushed);
        self.news.send_replace(());
        respond(204, "")
    }
}

impl Receivers {
    pub(crate) async fn start() -> Self {
        let heard = Arc::new(Heard::default());
        let shared = Arc::clone(&heard);
        let server = Server::start(move |request| {
            let heard = Arc::clone(&shared);
            async move { Some(heard.take(&request)) }
        });
        Self {
            server: server.await,
            heard,
        }
    }

    /// The base URL of a client's receivers.
    pub(crate) fn url(&self, client: &str) -> String {
        format!("{}/{client}", self.server.url())
    }

    /// Waits until a client's receivers got the final push, and checks all pushes.
    pub(crate) async fn check(&self, client: &str, version: &str) {
        let mut news = self.heard.news.subscribe();
        for name in ["sent", "set"] {
            let path = format!("/{client}/{name}");
            let ended = async {
                while !self
                    .heard
                    .of(&path)
                    .iter()
                    .any(|pushed| pushed.what() == "completed")
                {
                    news.changed().await.unwrap();
                }
            };
            let in_time = timeout(LIMIT, ended).await.is_ok();
            let pushes = self.heard.of(&path);
            assert!(in_time, "{path} hears the end: {pushes:#?}");
            for pushed in &pushes {
                pushed.check(version, name);
            }
            assert!(pushes.is_sorted_by_key(Pushed::sequence), "{path}: {pushes:#?}");
            let mut heard: Vec<_> = pushes
                .iter()
                .map(|pushed| (pushed.sequence(), pushed.what()))
                .collect();
            // Delivery is at least once, so pushes may be repeated.
            heard.dedup();
            let heard: Vec<_> = heard.iter().map(|(_, what)| what.as_str()).collect();
            let expected: &[&str] = match name {
                "sent" => &[
                    "working",
                    "artifact",
                    "input-required",
                    "working",
                    "artifact",
                    "completed",
                ],
                _ => &["working", "artifact", "completed"],
            };
            assert_eq!(heard, expected, "{path}");
        }
        let removed = self.heard.of(&format!("/{client}/removed"));
        assert!(removed.is_empty(), "{client}: {removed:#?}");
    }
}
