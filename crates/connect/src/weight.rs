//! Estimates the memory that a JSON text takes once it is parsed.
//!
//! A text of many small values can take a hundred times its size. The estimate is made before parsing, in the
//! same way for client requests, for responses of peers and for input of the command line.

use wopr_core::{parsed_limit, parsed_size};

/// Texts up to this size are not checked: parsed, none of them takes more than 512 KiB.
const LIGHT: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("parse JSON of so many values that it would take over {limit} bytes of memory")]
pub struct TooManyValues {
    /// In bytes.
    pub limit: usize,
}

/// Estimates the additional bytes that a JSON text takes once it is parsed; `limit` is the size limit of the text.
///
/// # Errors
/// Returns an error if the parsed text would exceed the memory limit derived from `limit`.
pub fn weigh(text: &[u8], limit: usize) -> Result<usize, TooManyValues> {
    if text.len() <= LIGHT {
        return Ok(0);
    }
    let limit = parsed_limit(limit);
    let n_bytes = parsed_size(text);
    if n_bytes > limit {
        return Err(TooManyValues { limit });
    }
    Ok(n_bytes.saturating_sub(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_depends_on_values_not_on_size() {
        let limit = 1 << 20;
        let text = format!("[{}0]", "{\"\":0},".repeat(limit / 8));
        assert!(text.len() < limit);
        assert_eq!(
            weigh(text.as_bytes(), limit),
            Err(TooManyValues { limit: 24 << 20 })
        );
        let numbers = format!("[{}0]", "1,".repeat(limit / 4));
        assert!(weigh(numbers.as_bytes(), limit).is_ok_and(|n| n > 10 << 20));
        let words = format!("\"{}\"", "x".repeat(limit - 2));
        assert!(weigh(words.as_bytes(), limit).is_ok_and(|n| n < 100));
        assert_eq!(weigh(&text.as_bytes()[..LIGHT], 1), Ok(0));
        assert_eq!(parsed_limit(10 << 20), 24 << 20);
        assert_eq!(parsed_limit(100 << 20), 200 << 20);
    }
}
