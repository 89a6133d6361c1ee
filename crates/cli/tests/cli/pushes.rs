//! Push notifications of a host that is killed, and the commands that manage them.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::binary::{Host, KEY, Place, examples};

/// More than anything here takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A receiver that records pushes by task, and accepts them or not.
struct Receiver {
    address: String,
    takes: Arc<AtomicBool>,
    taken: Arc<Mutex<BTreeMap<String, Vec<Value>>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap().to_string(),
            takes: Arc::new(AtomicBool::new(true)),
            taken: Arc::default(),
        };
        let (takes, taken) = (Arc::clone(&receiver.takes), Arc::clone(&receiver.taken));
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (takes, taken) = (Arc::clone(&takes), Arc::clone(&taken));
                thread::spawn(move || serve(stream, &takes, &taken));
            }
        });
        receiver
    }

    fn url(&self) -> String {
        format!("http://{}/push", self.address)
    }

    /// The sequence numbers of a task's pushes, in the order of arrival.
    fn places(&self, task: &str) -> Vec<u64> {
        let taken = self.taken.lock().unwrap();
        let bodies = taken.get(task).into_iter().flatten();
        bodies
            .map(|body| update(body)["metadata"]["openwop"]["sequence"].as_u64().unwrap())
            .collect()
    }

    fn has(&self, task: &str, state: &str) -> bool {
        let taken = self.taken.lock().unwrap();
        let mut bodies = taken.get(task).into_iter().flatten();
        bodies.any(|body| update(body)["status"]["state"] == state)
    }
}

fn update(body: &Value) -> &Value {
    body.get("statusUpdate").unwrap_or(&body["artifactUpdate"])
}

fn serve(stream: TcpStream, takes: &AtomicBool, taken: &Mutex<BTreeMap<String, Vec<Value>>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let answer = if takes.load(Ordering::SeqCst) {
            let body: Value = serde_json::from_slice(&body).ok()?;
            let task = update(&body)["taskId"].as_str()?.to_owned();
            taken.lock().ok()?.entry(task).or_default().push(body);
            "HTTP/1.1 204 No Content\r\n\r\n"
        } else {
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
        };
        writer.write_all(answer.as_bytes()).ok()?;
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        // sleep: what is waited for happens in other processes
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a host that may call loopback addresses and gives up deliveries after the given time.
fn serve_host(place: &mut Place, give_up: &str) -> Host {
    let args = [
        "serve",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "sqlite:wopr.db",
    ];
    let mut command = place.command(&args);
    command
        .arg("--workflows")
        .arg(examples())
        .env("WOPR_API_KEY", KEY)
        .env("WOPR_EGRESS_ALLOW", "127.0.0.0/8")
        .env("WOPR_A2A_PUSH_GIVE_UP", give_up);
    let host = Host::start(command);
    place.set("WOPR_SERVER", &host.origin);
    place.set("WOPR_API_KEY", KEY);
    host
}

fn rpc(host: &Host, method: &str, params: &Value) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let url = format!("{}/a2a", host.origin);
    runtime.block_on(async {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .build()
            .unwrap();
        let sent = client
            .post(url)
            .bearer_auth(KEY)
            .header("a2a-version", "1.0")
            .header("content-type", "application/json")
            .body(body.to_string())
            .send();
        let text = sent.await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    })
}

fn send(host: &Host, receiver: &Receiver, n: usize) -> String {
    let sent = rpc(
        host,
        "SendMessage",
        &json!({
            "message": {
                "messageId": format!("m{n}"), "role": "ROLE_USER", "parts": [{ "text": "Ada" }],
                "metadata": { "skillId": "hello" },
            },
            "configuration": { "taskPushNotificationConfig": { "url": receiver.url(), "token": "t" } },
        }),
    );
    sent["task"]["id"].as_str().unwrap().to_owned()
}

#[test]
fn crash_kills_lose_no_push_of_an_acknowledged_task() {
    let mut place = Place::new();
    let receiver = Receiver::start();
    let mut tasks = Vec::new();
    for round in 0..8 {
        // Every other time the receiver refuses, so that there are pending deliveries to lose.
        receiver.takes.store(round % 2 == 1, Ordering::SeqCst);
        let host = serve_host(&mut place, "24h");
        for n in 0..6 {
            tasks.push(send(&host, &receiver, round * 100 + n));
        }
        // Immediately, whatever the host is doing.
        host.kill();
    }
    receiver.takes.store(true, Ordering::SeqCst);
    let _host = serve_host(&mut place, "24h");
    for task in &tasks {
        until(&format!("{task} is told to its end"), || {
            receiver.has(task, "TASK_STATE_COMPLETED")
        });
        let places = receiver.places(task);
        // Pushes may be repeated, but must not arrive before earlier ones.
        let mut seen = Vec::new();
        for place in &places {
            if !seen.contains(place) {
                seen.push(*place);
            }
        }
        assert!(seen.is_sorted() && seen.len() >= 3, "{task}: {places:?}");
    }
    until("nothing waits any more", || {
        let listed = place.json(&["deliveries", "list", "--json"]);
        listed["deliveries"] == json!([])
    });
}

#[test]
fn given_up_deliveries_are_listed_and_retried() {
    let mut place = Place::new();
    let receiver = Receiver::start();
    receiver.takes.store(false, Ordering::SeqCst);
    let host = serve_host(&mut place, "1ms");
    let task = send(&host, &receiver, 1);
    let list = ["deliveries", "list", "--given-up", "--json"];
    until("everything is given up", || {
        let listed = place.json(&list);
        listed["deliveries"].as_array().unwrap().len() >= 3
    });
    let said = place.ends(0, &["deliveries", "list", "--run", &task]);
    assert!(
        said.out.contains("given-up") && said.out.contains("answered 503"),
        "{said:#?}"
    );
    assert!(!said.out.contains(&receiver.address), "{said:#?}");
    place.ends(2, &["deliveries", "retry", &task, "--event", "1"]);
    let unknown = "run_00000000000000000000000000000000";
    place.ends(4, &["deliveries", "retry", unknown]);
    place.ends(4, &["deliveries", "retry", &task, "--push", "unknown"]);
    place.ends(4, &["deliveries", "list", "--run", unknown]);
    receiver.takes.store(true, Ordering::SeqCst);
    let said = place.ends(0, &["deliveries", "retry", &task]);
    assert!(said.err.contains("are tried again"), "{said:#?}");
    until("it is told after all", || {
        receiver.has(&task, "TASK_STATE_COMPLETED")
    });
    assert_eq!(
        place.json(&["deliveries", "retry", &task, "--json"]),
        json!({ "retried": 0 })
    );
    let said = place.ends(0, &["deliveries", "list", "--run", &task]);
    assert!(said.err.contains("nothing waits"), "{said:#?}");
    host.kill();
}
