//! How much memory a JSON text may take once it is parsed.
//!
//! A text of many small values takes up to a hundred times its size. What it will take is estimated before it is
//! parsed, by one measure for requests, for the answers of peers and for what the command line reads.

use wopr_core::{parsed_limit, parsed_size};

/// Texts up to this size are not weighed: parsed, none of them takes more than half a megabyte.
const LIGHT: usize = 4 << 10;

/// A JSON text would take more memory than allowed once it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("parse JSON of so many values that it would take over {limit} bytes of memory")]
pub struct TooManyValues {
    /// In bytes.
    pub limit: usize,
}

/// The bytes that a JSON text will take beside itself once it is parsed; `limit` is the bound of the text.
///
/// # Errors
/// They are more than allowed.
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
    fn a_text_is_weighed_by_its_values_and_not_by_its_size() {
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
