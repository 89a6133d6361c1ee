//! Canonical JSON (RFC 8785): exactly one text for each value.
//!
//! Members are sorted by UTF-16 code units, numbers are doubles written as in ECMAScript, and strings escape
//! only what they must. An integer that no double represents is written as the nearest double, as the RFC
//! implies. A value without a canonical form, such as an infinity or a map with non-string keys, is an error.
//! Signatures cover exactly these bytes.

use serde::Serialize;

#[derive(Debug, thiserror::Error)]
#[error("write canonical json")]
pub struct Error(#[from] serde_json::Error);

/// Writes a value in its canonical form, as UTF-8.
///
/// # Errors
/// Returns an error if JSON cannot represent the value.
pub fn to_vec<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    Ok(serde_json_canonicalizer::to_vec(value)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn text(value: &Value) -> String {
        String::from_utf8(to_vec(value).unwrap()).unwrap()
    }

    /// Test vectors of RFC 8785, appendix B: the bits of a double and its text.
    #[test]
    fn writes_numbers_of_appendix_b() {
        for (bits, wanted) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696_u64, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(text(&json!(f64::from_bits(bits))), wanted, "{bits:016x}");
        }
    }

    #[test]
    fn integers_are_written_as_doubles() {
        for (json, wanted) in [
            ("9007199254740991", "9007199254740991"),
            ("9007199254740993", "9007199254740992"),
            ("-9007199254740993", "-9007199254740992"),
            ("18446744073709551615", "18446744073709552000"),
            ("1000000000000000000000000", "1e+24"),
            ("-0", "0"),
            ("1.0", "1"),
            ("1e2", "100"),
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(text(&value), wanted, "{json}");
        }
    }

    /// RFC 8785, sections 3.2.2 and 3.2.3.
    #[test]
    fn rfc_examples_hold() {
        let value: Value = serde_json::from_str(
            r#"{
                "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
                "literals": [null, true, false]
            }"#,
        )
        .unwrap();
        assert_eq!(
            text(&value),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        let value: Value = serde_json::from_str(
            r#"{
                "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
                "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
                "\u00f6": "Latin Small Letter O With Diaeresis"
            }"#,
        )
        .unwrap();
        let canonical = text(&value);
        let order: Vec<_> = ["One", "Control", "Latin", "Euro", "Emoji", "Hebrew"]
            .iter()
            .map(|name| canonical.find(name).unwrap())
            .collect();
        assert!(
            canonical.starts_with(r#"{"\r":"Carriage Return","1":"One""#),
            "{canonical}"
        );
        assert!(order.is_sorted(), "{canonical}");
    }

    #[test]
    fn values_json_cannot_represent_are_rejected() {
        assert!(to_vec(&f64::NAN).is_err());
        assert!(to_vec(&f64::INFINITY).is_err());
    }

    proptest! {
        /// Third-party signatures depend on this.
        #[test]
        fn doubles_round_trip_bit_for_bit(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let canonical = to_vec(&number).unwrap();
            let read: f64 = serde_json::from_slice(&canonical).unwrap();
            prop_assert_eq!(to_vec(&read).unwrap(), canonical);
            prop_assert!(read == number);
        }
    }
}
