//! The cause of a store error: what happened, and the error that it came from.
//!
//! One failed commit is the answer to every append of its group, so a cause is shared instead of copied. Its
//! text is complete, with the causes that a driver keeps out of its own message; the error behind it is the
//! [`source`](std::error::Error::source), for callers that look for a code.

use std::{error::Error, fmt, sync::Arc};

#[derive(Debug, Clone)]
pub struct Cause {
    text: Arc<str>,
    /// `None` if the store itself noticed what happened.
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Cause {
    /// The cause is this error, in its own words.
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        let text = error.to_string();
        Self::about(text, error)
    }

    /// The cause is this error, described by a text that contains the error's own.
    pub fn about(text: impl Into<Arc<str>>, source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            text: text.into(),
            source: Some(Arc::new(source)),
        }
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self {
            text: text.into(),
            source: None,
        }
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        Self {
            text: text.into(),
            source: None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}
