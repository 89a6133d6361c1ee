//! Telemetry for operators: logs, trace context, metrics.
//!
//! Logs go to standard error, as text or JSON; standard output belongs to commands. Every request has a span, a
//! trace context (continued from `traceparent` or new) and a line at `debug` under the target `wopr::access`.
//! Credentials and bodies are never logged. Lines are written by a thread of their own ([`flush`] waits for it).

mod metrics;
mod request;
mod throttled;
mod trace;
mod writer;

use std::io;

use tracing::{Level, Metadata, Subscriber, subscriber::set_global_default};
use tracing_subscriber::{EnvFilter, filter::filter_fn, fmt, fmt::MakeWriter, layer::SubscriberExt as _};

use crate::config::{Log, LogFormat};

pub use metrics::{METRICS_TYPE, Metrics, OpenStream, StoreStats};
pub use request::{Handled, NoFault, observe};
pub(crate) use throttled::{
    broken_off, cut_off, failed_inside, key_created, key_revoked, keys_not_read, not_accepted, not_listed,
    not_ready, not_served, secret_not_opened, secret_not_read, secret_removed, secret_set, token_minted,
    workflow_removed,
};
pub(crate) use trace::{trace_in, trace_of};
pub use writer::flush;

use writer::LogQueue;

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("read the setting log.level: {0}")]
    Level(#[from] tracing_subscriber::filter::ParseError),
    #[error("start the thread that writes the log: {0}")]
    Thread(#[from] io::Error),
    /// The process already has a subscriber.
    #[error("set up logging twice")]
    Twice,
}

/// Libraries that read what others send. Below `error` they log paths, header fields and bytes, and thus credentials; and
/// their warnings come as often as a client wants, such as one for each PING frame.
const READERS: [&str; 5] = ["h2", "hyper", "hyper_util", "rustls", "tonic"];

/// A library that logs what tool servers send, at every level and in any length. The host says itself what matters.
const TALKER: &str = "rmcp";

/// Returns `true` if an event or span cannot contain client data, and clients cannot cause any number of them, whatever the
/// configured level.
fn is_safe(about: &Metadata<'_>) -> bool {
    let target = about.target();
    let root = target.split_once("::").map_or(target, |(root, _)| root);
    root != TALKER && (*about.level() == Level::ERROR || !READERS.contains(&root))
}

/// Sets up logging for the process.
pub fn init(log: &Log) -> Result<(), InitError> {
    let filter = EnvFilter::builder().parse(&log.level)?;
    let queue = LogQueue::to_stderr()?;
    queue.clone().install();
    let set = match log.format {
        LogFormat::Text => set_global_default(
            fmt()
                .with_env_filter(filter)
                .with_writer(queue)
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
                .finish()
                .with(filter_fn(is_safe)),
        ),
        LogFormat::Json => set_global_default(json(filter, queue)),
    };
    set.map_err(|_| InitError::Twice)
}

/// Writes one JSON object per line. Its `span` is the innermost one: the run's, or else the request's.
fn json<W>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .json()
        .with_span_list(false)
        .finish()
        .with(filter_fn(is_safe))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Arc};

    use parking_lot::Mutex;
    use tracing::{debug, error, info, subscriber::with_default, trace, warn};
    use wopr_core::{RunId, RunKey, TenantId};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn libraries_that_read_requests_log_only_errors() {
        let written = Written::default();
        let writer = written.clone();
        let filter = EnvFilter::builder().parse("trace,h2::server=trace").unwrap();
        let logs = fmt()
            .with_env_filter(filter)
            .with_writer(move || writer.clone())
            .finish();
        with_default(logs.with(filter_fn(is_safe)), || {
            debug!(target: "h2::server", "malformed path token-1");
            trace!(target: "hyper::proto::h1::io", "read token-2");
            debug!(target: "h2", "token-3");
            warn!(target: "h2::proto::ping_pong", "recv PING ack that we never sent: token-5");
            info!(target: "tonic::status", "token-6");
            error!(target: "rmcp::service", "token-4");
            error!(target: "h2::server", "kept-1");
            debug!(target: "wopr::access", "kept-2");
            trace!(target: "h2other", "kept-3");
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert!(!text.contains("token-"), "{text}");
        assert_eq!(text.matches("kept-").count(), 3, "{text}");
    }

    #[test]
    fn lines_that_one_tenant_causes_are_bounded() {
        let written = Written::default();
        let writer = written.clone();
        let filter = EnvFilter::builder().parse("info").unwrap();
        let run = RunKey {
            tenant: TenantId::parse("a-loud-tenant").unwrap(),
            run: RunId::parse("run_0123456789abcdef").unwrap(),
        };
        with_default(json(filter, move || writer.clone()), || {
            for _ in 0..1_000 {
                broken_off(&run, &"no room");
                not_listed(&run, "no room");
                secret_not_opened(&run.tenant, "crm", &"forged");
                failed_inside(&"corrupt");
                keys_not_read(&"away");
            }
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1 + 1 + 1 + 60 + 1, "{text}");
    }

    #[test]
    fn json_lines_have_one_span_and_typed_numbers() {
        let written = Written::default();
        let writer = written.clone();
        let filter = EnvFilter::builder().parse("info").unwrap();
        with_default(json(filter, move || writer.clone()), || {
            let _request = tracing::info_span!("request", path = "/v1/runs").entered();
            let _run = tracing::info_span!("run", run = "run_1", tenant = "acme").entered();
            warn!(micros = 5_u64, "run failed");
        });
        let line: serde_json::Value = serde_json::from_slice(&written.0.lock()).unwrap();
        assert_eq!(line["span"]["run"], "run_1");
        assert_eq!(line["fields"]["micros"], 5);
        assert_eq!(line["fields"]["message"], "run failed");
        assert_eq!(line.get("spans"), None);
    }
}
