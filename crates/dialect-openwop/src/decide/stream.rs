//! Text streaming: each chunk is an event of its own, at an interval or immediately.
//!
//! A chunk is rendered when it is due, from the run's state at that time, and recorded; it is never rendered
//! again. Between two chunks the node waits for its timer, as a delay does. Its output `text` is the
//! concatenation of all chunks.

use serde_json::json;
use wopr_kernel::{KernelEvent, Seq, StepId, fields};

use crate::{
    Failure,
    expression::{Out, Val},
    node::{MAX_PIECES, Pieces},
};

use super::{Walk, node::failed};

/// Chunks emitted at once if there is no interval; then other nodes run.
const AT_ONCE: usize = 64;
/// Maximum size in bytes of a streamed text.
const MAX_TEXT: usize = 1024 * 1024;

struct Piece {
    text: String,
    is_last: bool,
}

impl Walk<'_, '_> {
    /// Emits the next chunks of a text, then waits for the rest or completes the node.
    pub(super) fn stream_on(&mut self, pieces: &Pieces, interval_ms: u64, step: &StepId, cause: Seq) {
        let mut cause = cause;
        for _ in 0..AT_ONCE {
            // A branch that begins here begins the stream again.
            self.begin_branch_with(step);
            let Some((_, active)) = self.active(step) else {
                return;
            };
            let (n, length) = (active.streamed.as_ref())
                .map_or((0, 0), |streamed| (streamed.n_pieces, streamed.text.len()));
            let piece = match self.piece(pieces, n as usize) {
                Ok(Some(piece)) => piece,
                Ok(None) => return self.complete_node(step, cause, fields(json!({ "text": "" }))),
                Err(failure) => return self.fail_node(step, cause, failure),
            };
            if length + piece.text.len() > MAX_TEXT {
                let failure = Failure::new(
                    "output_too_large",
                    format!("the text has more than {MAX_TEXT} bytes"),
                );
                return self.fail_node(step, cause, failure);
            }
            let is_last = piece.is_last;
            let said = KernelEvent::OutputChunk {
                step: step.clone(),
                index: n,
                chunk: piece.text,
                is_last,
                number: 0,
                end: None,
            };
            cause = self.record(Some(cause), said);
            if is_last {
                let text = self.active(step).and_then(|(_, active)| active.streamed.clone());
                let text = text.map_or_else(String::new, |streamed| streamed.text);
                return self.complete_node(step, cause, fields(json!({ "text": text })));
            }
            if interval_ms > 0 {
                break;
            }
        }
        let due = self.input.now.plus_millis(interval_ms);
        self.sleep(step.clone(), due);
    }

    /// Renders chunk `n`; `None` if there are no chunks at all.
    fn piece(&self, pieces: &Pieces, n: usize) -> Result<Option<Piece>, Failure> {
        match pieces {
            Pieces::Templates(templates) => templates
                .get(n)
                .map(|template| {
                    Ok(Piece {
                        text: self.render(template)?,
                        is_last: n + 1 == templates.len(),
                    })
                })
                .transpose(),
            Pieces::List(expression) => {
                let meter = self.budget.meter();
                let piece = expression.ask(&self.context(), &meter, |list| {
                    let Val::Seq(items) = list else {
                        return Ok(Err(NoList));
                    };
                    let length = items.len();
                    let text = items.get(n).map(|item| {
                        let mut out = Out::new(&meter);
                        out.say(&item)?;
                        out.finish()
                    });
                    Ok(Ok((length, text.transpose()?)))
                });
                let piece = piece.map_err(|error| failed("expression_failed", &error))?;
                let Ok((length, text)) = piece else {
                    return Err(Failure::new("invalid_input", "the expression gives no list"));
                };
                if length > MAX_PIECES {
                    let message = format!("the list has more than {MAX_PIECES} items");
                    return Err(Failure::new("output_too_large", message));
                }
                Ok(match text {
                    Some(text) => Some(Piece {
                        text,
                        is_last: n + 1 == length,
                    }),
                    None if n == 0 => None,
                    // The list has shrunk since the last chunk: an empty last chunk ends the stream.
                    None => Some(Piece {
                        text: String::new(),
                        is_last: true,
                    }),
                })
            }
        }
    }
}

/// The expression did not evaluate to a list.
struct NoList;
