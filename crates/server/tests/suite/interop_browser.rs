//! The page of an interrupt in Chromium with JavaScript disabled, driven by a minimal WebDriver client.

use std::{env, fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

use crate::{
    pages::{link, order_link},
    server::Server,
};

/// A browser starts slowly on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The WebDriver key of an element reference.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Chromium under chromedriver, emulating a phone. It exits with its driver, which holds the other end of its
/// pipe.
struct Browser {
    address: SocketAddr,
    session: String,
    _driver: Child,
    _profile: TempDir,
}

impl Browser {
    async fn start() -> Self {
        let program = env::var_os("WOPR_INTEROP_CHROMEDRIVER").filter(|program| !program.is_empty());
        let mut driver = Command::new(program.unwrap_or_else(|| "chromedriver".into()))
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromedriver starts; `cargo xtask test` installs it");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let reading = async {
            loop {
                let line = lines
                    .next_line()
                    .await
                    .unwrap()
                    .expect("chromedriver names its port");
                let port = line.split("successfully on port ").nth(1);
                if let Some(port) = port.and_then(|port| port.trim_end_matches('.').parse().ok()) {
                    return port;
                }
            }
        };
        let port: u16 = tokio::time::timeout(TIMEOUT, reading).await.unwrap();
        let profile = tempfile::tempdir().unwrap();
        let arguments = [
            "--headless".to_owned(),
            "--remote-debugging-pipe".to_owned(),
            "--no-sandbox".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--disable-sync".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let mut browser = Self {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            session: String::new(),
            _driver: driver,
            _profile: profile,
        };
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "performance": "ALL", "browser": "ALL" },
        } } });
        let made = browser.call("POST", "/session", &wanted).await;
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        browser
            .devtools(
                "Emulation.setDeviceMetricsOverride",
                json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true }),
            )
            .await;
        browser
            .devtools("Emulation.setScriptExecutionDisabled", json!({ "value": true }))
            .await;
        browser
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        let body = if method == "POST" {
            body.to_string()
        } else {
            String::new()
        };
        let asking = ask(self.address, method, &path, &body);
        let reply = tokio::time::timeout(TIMEOUT, asking).await;
        let (is_ok, mut answer) = reply.expect("the driver answers in time");
        assert!(is_ok, "{method} {path}: {answer}");
        answer["value"].take()
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.call("POST", "/goog/cdp/execute", &body).await
    }

    async fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url })).await;
    }

    async fn page(&self) -> String {
        let source = self.call("GET", "/source", &Value::Null).await;
        source.as_str().unwrap().to_owned()
    }

    /// Waits until the page contains `text`: a click returns before the next page has loaded.
    async fn shows(&self, text: &str) {
        let shown = async {
            while !self.page().await.contains(text) {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(TIMEOUT, shown).await.is_err() {
            panic!("'{text}' in {}", self.page().await);
        }
    }

    async fn element(&self, selector: &str) -> String {
        let wanted = json!({ "using": "css selector", "value": selector });
        let found = self.call("POST", "/element", &wanted).await;
        format!("/element/{}", found[ELEMENT].as_str().unwrap())
    }

    async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        self.call("POST", &format!("{element}/click"), &json!({})).await;
    }

    async fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        self.call("POST", &format!("{element}/clear"), &json!({})).await;
        let text = json!({ "text": text });
        self.call("POST", &format!("{element}/value"), &text).await;
    }

    /// Saves a screenshot of the whole page.
    async fn picture(&self, name: &str) {
        let metrics = self.devtools("Page.getLayoutMetrics", json!({})).await;
        let width = metrics["cssContentSize"]["width"].as_f64().unwrap();
        assert!(width <= 390.0, "the page scrolls sideways on a phone: {width}");
        let shot = self
            .devtools(
                "Page.captureScreenshot",
                json!({ "format": "png", "captureBeyondViewport": true }),
            )
            .await;
        let bytes = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// Asserts that every control has an accessible name.
    async fn controls_are_named(&self) {
        let tree = self.devtools("Accessibility.getFullAXTree", json!({})).await;
        let controls = ["textbox", "button", "radio", "checkbox", "spinbutton", "combobox"];
        let mut n_controls = 0;
        for node in tree["nodes"].as_array().unwrap() {
            let role = node["role"]["value"].as_str().unwrap_or("");
            if controls.contains(&role) {
                n_controls += 1;
                assert_ne!(node["name"]["value"].as_str().unwrap_or(""), "", "{node}");
            }
        }
        assert!(n_controls > 0, "{tree}");
    }

    /// Asserts that nothing violated the content security policy and only this server was requested.
    async fn stayed_here(&self, server: &Server) {
        let logged = |kind: &'static str| async move {
            let log = self.call("POST", "/se/log", &json!({ "type": kind })).await;
            log.as_array().unwrap().clone()
        };
        for entry in logged("browser").await {
            let message = entry["message"].as_str().unwrap();
            let is_policy =
                message.contains("Content Security Policy") || message.contains("Content-Security-Policy");
            assert!(!is_policy && entry["source"] != "security", "{entry}");
        }
        let here = format!("http://{}/", server.address);
        let mut n_requests = 0;
        for entry in logged("performance").await {
            let event: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            let event = &event["message"];
            if event["method"] == "Network.requestWillBeSent" {
                let url = event["params"]["request"]["url"].as_str().unwrap();
                // chrome:, about: and data: are the browser's own.
                let is_elsewhere =
                    url.contains("://") && !url.starts_with("chrome") && !url.starts_with(&here);
                assert!(!is_elsewhere, "the page asked {url}");
                n_requests += usize::from(url.starts_with(&here));
            }
        }
        assert!(n_requests > 0);
    }

    async fn quit(self) {
        self.call("DELETE", "", &Value::Null).await;
    }
}

/// Sends a request to the driver, which keeps the connection open even if asked to close it.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (bool, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        assert_ne!(
            stream.read_buf(&mut bytes).await.unwrap(),
            0,
            "the answer is whole"
        );
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        // The driver writes no space after a colon.
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.unwrap().trim().parse().unwrap();
        if let Some(body) = bytes.get(end + 4..end + 4 + length) {
            let is_ok = head.starts_with("http/1.1 200");
            return (is_ok, serde_json::from_slice(body).unwrap());
        }
    }
}

fn address(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address)
}

/// Returns the first event of a type in a run's log.
async fn event(server: &Server, run: &str, name: &str) -> Value {
    let path = format!("/v1/runs/{run}/events");
    let call = server.get(&path).header("accept", "application/json");
    let log = call.send().await.ok(200);
    let events = log["events"].as_array().unwrap();
    let found = events.iter().find(|event| event["type"] == name);
    found.unwrap_or_else(|| panic!("{name} in {log}"))["payload"].clone()
}

#[tokio::test]
async fn an_approval_is_answered_on_a_phone_without_javascript() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser
        .open("data:text/html,<title>off</title><script>document.title='on'</script>")
        .await;
    let title = browser.call("GET", "/title", &Value::Null).await;
    assert_eq!(title, "off", "JavaScript is off");

    let (run, path) = link(&server).await;
    browser.open(&address(&server, &path)).await;
    browser.shows("Send it to Ada?").await;
    browser.shows("<strong>Ada</strong>").await;
    browser.controls_are_named().await;
    browser.picture("approval-light").await;
    let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
    browser.devtools("Emulation.setEmulatedMedia", dark).await;
    browser.picture("approval-dark").await;

    // If a required field is missing, a button leads back to the form, which keeps the input.
    browser.click("button[value=refine]").await;
    browser.shows("say what should change").await;
    browser.picture("approval-refused").await;

    browser.fill("#feedback", "Well done.\nSend it.").await;
    browser.click("button[value=accept]").await;
    browser.shows("It was accepted").await;
    browser.picture("approval-answered").await;
    let received = event(&server, &run, "approval.received").await;
    assert_eq!(received["action"], "accept");
    assert_eq!(received["feedback"], "Well done.\nSend it.");

    // Reloading submits nothing again.
    browser.call("POST", "/refresh", &json!({})).await;
    browser.shows("It was accepted").await;
    browser.stayed_here(&server).await;
    browser.quit().await;
}

#[tokio::test]
async fn changes_are_requested_and_made_in_a_browser() {
    let server = Server::start().await;
    let browser = Browser::start().await;

    let (run, path) = link(&server).await;
    browser.open(&address(&server, &path)).await;
    browser.fill("#feedback", "Shorter, please").await;
    browser.click("button[value=refine]").await;
    browser.shows("Changes were asked for").await;
    let received = event(&server, &run, "approval.received").await;
    assert_eq!(received["refineFeedback"]["text"], "Shorter, please");

    let (run, path) = link(&server).await;
    browser.open(&address(&server, &path)).await;
    browser.fill("#edited", "Dear Ada,\n\nyes.").await;
    // The wrong button does not discard the edits.
    browser.click("button[value=accept]").await;
    browser.shows("you changed the content").await;
    browser.click("button[value=edit-accept]").await;
    browser.shows("accepted with edits").await;
    let received = event(&server, &run, "approval.received").await;
    assert_eq!(received["editedArtifactData"], "Dear Ada,\n\nyes.");
    browser.stayed_here(&server).await;
    browser.quit().await;
}

#[tokio::test]
async fn questions_are_answered_in_a_browser() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    let (run, path) = order_link(&server).await;
    browser.open(&address(&server, &path)).await;
    browser.controls_are_named().await;
    browser.picture("clarification").await;
    // The browser itself blocks a form without the required answers.
    browser.click("button[type=submit]").await;
    assert_eq!(server.snapshot(&run).await["status"], "waiting-input");
    browser.click("input[type=radio][value=large]").await;
    browser.fill("input[type=number]", "3").await;
    browser.click("button[type=submit]").await;
    browser.shows("Answered").await;
    let done = server.wait_for(&run, "completed").await;
    assert_eq!(
        done["variables"]["ask"]["answers"],
        json!({ "size": "large", "count": 3 })
    );
    browser.stayed_here(&server).await;
    browser.quit().await;
}

#[tokio::test]
async fn an_expired_link_says_so_in_a_browser() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    let (run, path) = link(&server).await;
    browser.open(&address(&server, &path)).await;
    server.clock.advance(400 * 24 * 3_600_000);
    // The page was open before the link expired.
    browser.click("button[value=accept]").await;
    browser.shows("This link has expired").await;
    browser.picture("expired").await;
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    browser.stayed_here(&server).await;
    browser.quit().await;
}
