//! What operators see: logs, trace context, metrics.
//!
//! Logs go to standard error, as text or JSON; standard output belongs to commands. Every request has a span, a
//! trace context (continued from `traceparent` or begun) and a line at `debug` under the target `wopr::access`.
//! Nothing here ever sees a credential or a body.

mod metrics;
mod request;
mod trace;

use std::io;

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{Log, LogFormat};

pub use metrics::{METRICS_TYPE, Metrics, OpenStream, StoreStats};
pub use request::{Handled, observe};
pub use trace::TraceContext;

/// Why logging was not set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level is neither a level nor directives.
    #[error("read the setting log.level: {0}")]
    Level(#[from] tracing_subscriber::filter::ParseError),
    /// The process has a subscriber already.
    #[error("set up logging twice")]
    Twice,
}

/// Sets up logging for the process.
///
/// # Errors
/// See [`InitError`].
pub fn init(log: &Log) -> Result<(), InitError> {
    let filter = EnvFilter::builder().parse(&log.level)?;
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr);
    let set = match log.format {
        LogFormat::Text => tracing::subscriber::set_global_default(
            builder
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
                .finish(),
        ),
        LogFormat::Json => tracing::subscriber::set_global_default(builder.json().finish()),
    };
    set.map_err(|_| InitError::Twice)
}
