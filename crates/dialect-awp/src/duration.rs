//! Durations: digits and a unit, such as `30s`; milliseconds without a unit.

/// Reads a duration, in milliseconds.
///
/// # Errors
/// It is no duration of this form.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "\"{}\" is no duration: use digits and ms, s, m or h",
            clipped(text)
        )
    };
    let n_digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(n_digits);
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    let factor = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    n.checked_mul(factor)
        .filter(|ms| *ms <= MOST)
        .ok_or_else(|| format!("\"{}\" is longer than ten years", clipped(text)))
}

/// Ten years, in milliseconds.
pub(crate) const MOST: u64 = 10 * 366 * 24 * 3_600_000;

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(40)]
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        let read: Vec<_> = ["5", "5ms", "2s", "2 S", "3m", "24h", "0"]
            .map(|text| parse(text).ok())
            .into();
        assert_eq!(
            read,
            [
                Some(5),
                Some(5),
                Some(2_000),
                Some(2_000),
                Some(180_000),
                Some(86_400_000),
                Some(0)
            ]
        );
        for text in [
            "",
            "s",
            "1.5s",
            "1d",
            "PT1S",
            "-1s",
            " 1s",
            "1 s s",
            "99999999999999999999",
            "999999999h",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
