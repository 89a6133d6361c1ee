//! Formats of texts: `@csv`, `@sh`, `@base64d` and their like.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
    prelude::BASE64_STANDARD,
};
use serde_json::Value;
use wopr_kernel::cost::Meter;

use super::{
    machine::{Flow, Stop},
    term::Format,
    text::{self, shown},
};

/// Letters of base 32, by value.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// Reads what was written without padding, as jq does.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The format with a name.
pub(super) fn find(name: &str) -> Option<Format> {
    Some(match name {
        "text" => Format::Text,
        "json" => Format::Json,
        "csv" => Format::Csv,
        "tsv" => Format::Tsv,
        "html" => Format::Html,
        "uri" => Format::Uri,
        "urid" => Format::UriDecoded,
        "sh" => Format::Shell,
        "base64" => Format::Base64,
        "base64d" => Format::Base64Decoded,
        "base32" => Format::Base32,
        "base32d" => Format::Base32Decoded,
        _ => return None,
    })
}

/// A value in a format.
pub(super) fn write(format: Format, value: &Value, meter: &Meter<'_>) -> Flow<String> {
    if let Format::Json = format {
        return text::json(value, meter);
    }
    if let Format::Csv | Format::Tsv = format {
        return row(format, value, meter);
    }
    if let (Format::Shell, Value::Array(items)) = (format, value) {
        let words = items.iter().map(|item| shell_word(item, meter));
        return joined(words, " ", meter);
    }
    let plain = text::plain(value, meter)?;
    // What is written is at most six times as long.
    meter.bytes(6 * plain.len())?;
    let written = match format {
        Format::Text | Format::Json | Format::Csv | Format::Tsv => plain,
        Format::Html => html(&plain),
        Format::Uri => uri(&plain),
        Format::UriDecoded => {
            let wrong = || Stop::error(format!("{} is not a valid uri encoding", shown(value)));
            let bytes = percent_decoded(&plain).ok_or_else(wrong)?;
            String::from_utf8(bytes).map_err(|_| wrong())?
        }
        Format::Shell => shell_word(value, meter)?,
        Format::Base64 => BASE64_STANDARD.encode(plain),
        Format::Base64Decoded => base64_decoded(&plain, value)?,
        Format::Base32 => base32(plain.as_bytes()),
        Format::Base32Decoded => {
            let bytes = base32_decoded(&plain)
                .ok_or_else(|| Stop::error(format!("{} is not valid base32 data", shown(value))))?;
            lossy(&bytes)
        }
    };
    text::fits(written.len())?;
    Ok(written)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn joined(parts: impl Iterator<Item = Flow<String>>, separator: &str, meter: &Meter<'_>) -> Flow<String> {
    let mut joined = String::new();
    for (n, part) in parts.enumerate() {
        let part = part?;
        meter.bytes(part.len() + separator.len())?;
        text::fits(joined.len() + part.len() + separator.len())?;
        if n > 0 {
            joined.push_str(separator);
        }
        joined.push_str(&part);
    }
    Ok(joined)
}

/// A row of a table.
fn row(format: Format, value: &Value, meter: &Meter<'_>) -> Flow<String> {
    let is_csv = format == Format::Csv;
    let Value::Array(items) = value else {
        let name = if is_csv { "csv" } else { "tsv" };
        let shown = shown(value);
        return Err(Stop::error(format!(
            "{shown} cannot be {name}-formatted, only array"
        )));
    };
    let cells = items.iter().map(|item| match item {
        Value::Null => Ok(String::new()),
        Value::Bool(_) | Value::Number(_) => text::json(item, meter),
        Value::String(text) => {
            meter.bytes(2 * text.len() + 2)?;
            Ok(if is_csv {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                tab_escaped(text)
            })
        }
        Value::Array(_) | Value::Object(_) => {
            Err(Stop::error(format!("{} is not valid in a csv row", shown(item))))
        }
    });
    joined(cells, if is_csv { "," } else { "\t" }, meter)
}

fn tab_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\t' => escaped.push_str("\\t"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\\' => escaped.push_str("\\\\"),
            '\0' => escaped.push_str("\\0"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn shell_word(value: &Value, meter: &Meter<'_>) -> Flow<String> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => text::json(value, meter),
        Value::String(text) => {
            meter.bytes(4 * text.len() + 2)?;
            Ok(format!("'{}'", text.replace('\'', "'\\''")))
        }
        Value::Array(_) | Value::Object(_) => {
            let shown = shown(value);
            Err(Stop::error(format!("{shown} can not be escaped for shell")))
        }
    }
}

fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn uri(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|n| u8::try_from(n).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(bytes.next())? * 16 + digit(bytes.next())?,
            byte => byte,
        });
    }
    Some(decoded)
}

/// Decodes up to the first `=`. Bytes that are no text become replacement characters.
fn base64_decoded(text: &str, value: &Value) -> Flow<String> {
    let data = text.split('=').next().unwrap_or_default();
    if data
        .bytes()
        .any(|byte| !byte.is_ascii_alphanumeric() && !matches!(byte, b'+' | b'/'))
    {
        return Err(Stop::error(format!("{} is not valid base64 data", shown(value))));
    }
    match LENIENT.decode(data) {
        Ok(bytes) => Ok(lossy(&bytes)),
        Err(_) => Err(Stop::error(format!(
            "{} trailing base64 byte found",
            shown(value)
        ))),
    }
}

fn base32(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len() * 8 / 5 + 8);
    for chunk in bytes.chunks(5) {
        let mut group = [0_u8; 8];
        group[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(group);
        let n_letters = (8 * chunk.len()).div_ceil(5);
        for n in 0..8 {
            let letter = BASE32[usize::try_from(bits >> (35 - 5 * n) & 31).unwrap_or_default()];
            encoded.push(if n < n_letters { char::from(letter) } else { '=' });
        }
    }
    encoded
}

fn base32_decoded(text: &str) -> Option<Vec<u8>> {
    let data = text.trim_end_matches('=');
    let mut decoded = Vec::with_capacity(data.len() * 5 / 8);
    let (mut bits, mut n_bits) = (0_u32, 0);
    for byte in data.bytes() {
        let value = BASE32.iter().position(|letter| *letter == byte)?;
        bits = bits << 5 | u32::try_from(value).ok()?;
        n_bits += 5;
        if n_bits >= 8 {
            n_bits -= 8;
            decoded.push(u8::try_from(bits >> n_bits & 0xFF).ok()?);
            bits &= (1 << n_bits) - 1;
        }
    }
    Some(decoded)
}
