//! `core.conformance.side-effect`: an effect whose executions can be counted from outside.
//!
//! Every attempt appends one line to a ledger and syncs it to disk before it completes, so a test that kills
//! the process can compare the recorded outcomes with the actual executions. Without a ledger, attempts are
//! only counted. The effect is deliberately not idempotent: a repeated key adds another line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::Serialize;
use serde_json::{Value, json};
use tracing::error;
use wopr_core::RunKey;
use wopr_engine::Outcome;

#[derive(Debug, Clone, Default)]
pub struct SideEffect {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ledger: Option<PathBuf>,
    /// Held while a blocking thread writes a line.
    writing: Mutex<()>,
    performed: AtomicU64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    key: &'a str,
    run_id: &'a str,
    payload: &'a Value,
}

impl SideEffect {
    /// Appends to the ledger and creates it on first use.
    #[must_use]
    pub fn new(ledger: Option<PathBuf>) -> Self {
        Self {
            shared: Arc::new(Shared {
                ledger,
                ..Shared::default()
            }),
        }
    }

    /// The number of attempts that this process has executed.
    #[must_use]
    pub fn n_performed(&self) -> u64 {
        self.shared.performed.load(Ordering::Relaxed)
    }

    /// Executes one attempt. If the ledger cannot be written, the attempt fails as retryable.
    ///
    /// # Cancel safety
    /// Not cancel safe: the line may be written after the future is dropped.
    pub async fn perform(&self, run: &RunKey, key: &str, payload: &Value) -> Outcome {
        if self.shared.ledger.is_some() {
            let line = Line {
                key,
                run_id: run.run.as_str(),
                payload,
            };
            let written = match serde_json::to_string(&line) {
                Ok(line) => self.write(line).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = written {
                error!(%error, "side effect ledger not written");
                return Outcome::Failed {
                    code: "external_call_failed".to_owned(),
                    message: "failed to write the side effect ledger".to_owned(),
                    retryable: true,
                    retry_after: None,
                    may_go_on: false,
                    is_timeout: false,
                };
            }
        }
        self.shared.performed.fetch_add(1, Ordering::Relaxed);
        Outcome::Done(json!({ "performed": true, "key": key }))
    }

    async fn write(&self, line: String) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let write = move || {
            let _turn = shared.writing.lock().unwrap_or_else(PoisonError::into_inner);
            shared
                .ledger
                .as_deref()
                .map_or(Ok(()), |ledger| append(ledger, &line))
        };
        tokio::task::spawn_blocking(write)
            .await
            .map_err(io::Error::other)?
    }
}

/// Appends a line with a single write, so that lines of several processes do not interleave.
fn append(ledger: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(ledger)?;
    let mut bytes = Vec::with_capacity(line.len() + 2);
    if ends_torn(&mut file)? {
        bytes.push(b'\n');
    }
    bytes.extend_from_slice(line.as_bytes());
    bytes.push(b'\n');
    file.write_all(&bytes)?;
    file.sync_all()
}

/// Returns `true` if a crash left an incomplete last line, which the next line must not continue.
fn ends_torn(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
