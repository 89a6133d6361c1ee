//! `core.conformance.side-effect`: an effect whose performances can be counted from outside.
//!
//! Every attempt appends exactly one line to a ledger and has it on disk before it answers, so a
//! test that kills the process can compare what was promised with what was done. Without a ledger
//! attempts are only counted. This is deliberately not idempotent: a repeated key is a repeated
//! line.

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

/// Performs countable side effects.
#[derive(Debug, Clone, Default)]
pub struct SideEffect {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ledger: Option<PathBuf>,
    /// Held while a line is written, on a blocking thread.
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
    /// Appends to the ledger, which is created when first needed.
    #[must_use]
    pub fn new(ledger: Option<PathBuf>) -> Self {
        Self {
            shared: Arc::new(Shared {
                ledger,
                ..Shared::default()
            }),
        }
    }

    /// How many attempts this process has performed.
    #[must_use]
    pub fn n_performed(&self) -> u64 {
        self.shared.performed.load(Ordering::Relaxed)
    }

    /// Performs one attempt. A ledger that cannot be written fails it, retryably.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the line back.
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

/// One write of one whole line in append mode, so other processes' lines do not interleave either.
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

/// Whether a crash left half a line, which the next one must not be glued to.
fn ends_torn(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
