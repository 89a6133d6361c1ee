//! Files of messages that a call sends on. Their bytes are rows beside the log, and are read when the request is made, so
//! neither the log nor the row of the effect has them.
//!
//! A call names a file by the id of its row. Ids come from workflows and from what others say, so an id alone gives
//! access to nothing: the row has to be one of the call's own run, of a run that it was forked from, or of a run above
//! these. All of them are of one tenant.
//!
//! The bytes count as memory of effects until the attempt is over. Without room for them the call waits.

use std::{collections::BTreeMap, fmt, pin::Pin, sync::Arc};

use wopr_core::RunKey;
use wopr_store::{BlobRow, ReadError};

use crate::{Engine, Keep, logs::store_failed};

/// The most bytes of files that one message takes from rows, as often as it names them.
pub const MAX_BYTES: usize = 8 << 20;
/// The most different files of one message that are read from rows.
pub const MAX_BLOBS: usize = 256;
/// How often the bytes of a message are in memory while it is sent: as they were read, in the message, in what is kept
/// of it to send it again, in base64, and in the body of the request.
const COPIES: usize = 5;
/// How many calls read files at once. What they read counts once it is read.
pub(crate) const READERS: usize = 4;
/// The most runs in which a file is looked for: as many levels of child runs as there may be, and forks of them.
const MAX_RUNS: usize = 64;

/// A file of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// Why the files of a call were not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobsError {
    #[error("find the file {0}")]
    Unknown(String),
    #[error("take more than {} MiB of files of messages", MAX_BYTES >> 20)]
    TooLarge,
    #[error("take more than {MAX_BLOBS} files of messages")]
    TooMany,
    /// The call is to be tried again a little later.
    #[error("find room for files of messages")]
    NoRoom,
    /// The call is to be tried again a little later.
    #[error("read files of messages")]
    Unavailable,
}

/// Reads the files that a call names.
#[derive(Clone)]
pub struct Blobs(Arc<dyn Fn(Vec<String>) -> ReadingBlobs + Send + Sync>);

/// The future of a read.
pub type ReadingBlobs = Pin<Box<dyn Future<Output = Result<BTreeMap<String, Blob>, BlobsError>> + Send>>;

impl Blobs {
    /// Calls a function to read.
    pub fn new(read: impl Fn(Vec<String>) -> ReadingBlobs + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Knows no file.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|ids| {
            Box::pin(async move {
                let first = ids.into_iter().next();
                first.map_or_else(|| Ok(BTreeMap::new()), |id| Err(BlobsError::Unknown(id)))
            })
        })
    }

    /// Reads files by their ids. An id that is given several times counts as often.
    ///
    /// # Errors
    /// One of them is not known to the run, they are too many or too large, or cannot be read now.
    pub async fn read(&self, ids: Vec<String>) -> Result<BTreeMap<String, Blob>, BlobsError> {
        match ids.is_empty() {
            true => Ok(BTreeMap::new()),
            false => (self.0)(ids).await,
        }
    }
}

impl fmt::Debug for Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blobs").finish_non_exhaustive()
    }
}

/// The runs whose files a run may name, itself first, as far as they are known.
struct Lineage {
    known: Vec<RunKey>,
    is_whole: bool,
}

impl Lineage {
    fn of(run: &RunKey) -> Self {
        Self {
            known: vec![run.clone()],
            is_whole: false,
        }
    }
}

impl Engine {
    /// Reads a file that a run refers to: one of a message to it, to a run that it was forked from, or to a run above
    /// these.
    pub async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError> {
        self.find_blob(&mut Lineage::of(run), id).await
    }

    /// Reads the files of calls of a run. The memory that they take is held by `keep`.
    pub(crate) fn blobs(&self, run: &RunKey, keep: &Keep) -> Blobs {
        let (shared, run, keep) = (Arc::downgrade(&self.shared), run.clone(), keep.clone());
        Blobs::new(move |ids| {
            let (shared, run, keep) = (shared.clone(), run.clone(), keep.clone());
            Box::pin(async move {
                let shared = shared.upgrade().ok_or(BlobsError::Unavailable)?;
                Self { shared }.read_blobs(&run, &keep, ids).await
            })
        })
    }

    async fn read_blobs(
        &self,
        run: &RunKey,
        keep: &Keep,
        ids: Vec<String>,
    ) -> Result<BTreeMap<String, Blob>, BlobsError> {
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for id in ids {
            *times.entry(id).or_default() += 1;
        }
        if times.len() > MAX_BLOBS {
            return Err(BlobsError::TooMany);
        }
        let turn = self.shared.blob_readers.acquire().await;
        let _turn = turn.map_err(|_| BlobsError::Unavailable)?;
        let mut lineage = Lineage::of(run);
        let (mut blobs, mut left) = (BTreeMap::new(), MAX_BYTES);
        for (id, times) in times {
            let row = match self.find_blob(&mut lineage, &id).await {
                Ok(row) => row,
                Err(error) => {
                    store_failed("cannot read files of a message", &error);
                    return Err(BlobsError::Unavailable);
                }
            };
            let Some(BlobRow {
                media_type, bytes, ..
            }) = row
            else {
                return Err(BlobsError::Unknown(id));
            };
            let n_bytes = bytes.len().saturating_mul(times);
            left = left.checked_sub(n_bytes).ok_or(BlobsError::TooLarge)?;
            blobs.insert(id, Blob { media_type, bytes });
        }
        let taken = (MAX_BYTES - left) * COPIES;
        let slot = self.shared.effects.take_bytes(&run.tenant, taken);
        keep.until_recorded(slot.ok_or(BlobsError::NoRoom)?);
        Ok(blobs)
    }

    async fn find_blob(&self, lineage: &mut Lineage, id: &str) -> Result<Option<BlobRow>, ReadError> {
        let mut at = 0;
        loop {
            if at == lineage.known.len() && !self.extend(lineage).await? {
                return Ok(None);
            }
            if let Some(row) = self.shared.store.blob(&lineage.known[at], id).await? {
                return Ok(Some(row));
            }
            at += 1;
        }
    }

    /// Adds the next run to a lineage: what the last one was forked from, else the one that started it.
    async fn extend(&self, lineage: &mut Lineage) -> Result<bool, ReadError> {
        if lineage.is_whole || lineage.known.len() >= MAX_RUNS {
            return Ok(false);
        }
        let Some(last) = lineage.known.last() else {
            return Ok(false);
        };
        let next = self.beginning(last).await?.and_then(|started| {
            let source = started.fork.as_ref().map(|fork| &fork.source);
            let above = started.parent.as_ref().map(|parent| &parent.run);
            source.or(above).map(|next| last.sibling(next.clone()))
        });
        lineage.is_whole = next.is_none();
        lineage.known.extend(next);
        Ok(!lineage.is_whole)
    }
}
