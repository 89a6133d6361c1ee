//! Times. The values are those that jq 1.8 gives, unless a comment says otherwise.

use serde_json::json;

use super::{check, evaluate};

#[test]
fn times_are_broken_down_and_assembled() {
    check(&[
        (
            "gmtime",
            json!(1_425_599_621),
            json!([2015, 2, 5, 23, 53, 41, 4, 63]),
        ),
        (
            "gmtime",
            json!(1_425_599_621.678),
            json!([2015, 2, 5, 23, 53, 41.677_999_973_297_12, 4, 63]),
        ),
        ("gmtime", json!(-1), json!([1969, 11, 31, 23, 59, 59, 3, 364])),
        (
            "gmtime",
            json!(-62_167_219_201_i64),
            json!([-1, 11, 31, 23, 59, 59, 5, 364]),
        ),
        ("localtime", json!(0), json!([1970, 0, 1, 0, 0, 0, 4, 0])),
        (
            "mktime",
            json!([2015, 2, 5, 23, 51, 47, 4, 63]),
            json!(1_425_599_507),
        ),
        ("mktime", json!([2015, 2, 5, 23, 51, 47.9]), json!(1_425_599_507)),
        ("mktime", json!([2015, 2, 5, 23, 51]), json!(1_425_599_460)),
        ("mktime", json!([2015, 14, 35, 25, 61, 70]), json!(1_459_821_730)),
        (
            "mktime",
            json!([-5, 2, 5, 23, 51, 47]),
            json!(-62_319_456_493_i64),
        ),
        ("gmtime | mktime", json!(1_425_599_621.678), json!(1_425_599_621)),
        (
            "try gmtime catch .",
            json!("a"),
            json!("gmtime() requires numeric inputs"),
        ),
        (
            "try mktime catch .",
            json!("a"),
            json!("mktime requires array inputs"),
        ),
        (
            "try mktime catch .",
            json!(["a", 1, 2, 3, 4, 5]),
            json!("mktime requires parsed datetime inputs"),
        ),
    ]);
}

#[test]
fn times_are_written() {
    check(&[
        ("todate", json!(1_425_599_621), json!("2015-03-05T23:53:41Z")),
        ("todate", json!(1_425_599_621.678), json!("2015-03-05T23:53:41Z")),
        (
            "todateiso8601, date",
            json!(-1),
            json!(["1969-12-31T23:59:59Z", "1969-12-31T23:59:59Z"]),
        ),
        (
            "todate",
            json!(-62_167_219_201_i64),
            json!("-001-12-31T23:59:59Z"),
        ),
        ("todate", json!([2015, 2, 5]), json!("2015-03-05T00:00:00Z")),
        (
            r#"strftime("%A, %B %d, %Y")"#,
            json!([2015, 2, 5, 23, 51, 47, 4, 63]),
            json!("Thursday, March 05, 2015"),
        ),
        // The days of the week and of the year follow from the date.
        (
            r#"strftime("%a %j")"#,
            json!([2015, 2, 5, 23, 51, 47, 6, 200]),
            json!("Thu 064"),
        ),
        (
            r#"strftime("%a %A %b %B %h %u %w %U %W %V %G %g")"#,
            json!(1_425_599_621),
            json!("Thu Thursday Mar March Mar 4 4 09 09 10 2015 15"),
        ),
        (
            r#"strftime("%C %y %m %d %e %j %H %I %M %S %p %s")"#,
            json!(1_425_599_621),
            json!("20 15 03 05  5 064 23 11 53 41 PM 1425599621"),
        ),
        (
            r#"strftime("%D|%F|%T|%R|%r|%c|%x|%X|%Z|%z|%%|%n|%t")"#,
            json!(1_425_599_621),
            json!(
                "03/05/15|2015-03-05|23:53:41|23:53|11:53:41 PM|Thu Mar  5 23:53:41 2015|03/05/15|23:53:41|UTC|+0000|%|\n|\t"
            ),
        ),
        (r#"strftime("%k %l %P")"#, json!(0), json!(" 0 12 am")),
        (
            r#"strftime("%Y %G %V %U")"#,
            json!(1_451_606_400),
            json!("2016 2015 53 00"),
        ),
        (
            r#"strftime("%Ec é %")"#,
            json!(-5),
            json!("Wed Dec 31 23:59:55 1969 é %"),
        ),
        (r#"strftime("")"#, json!(0), json!("")),
        (r#"strflocaltime("%H %Z")"#, json!(0), json!("00 UTC")),
        (
            r#"try strftime("%q") catch ."#,
            json!(0),
            json!("strftime/1: %q is not offered"),
        ),
        (
            "try strftime([]) catch .",
            json!(0),
            json!("strftime/1 requires a string format"),
        ),
        (
            "try todate catch .",
            json!("x"),
            json!("strftime/1 requires parsed datetime inputs"),
        ),
        (
            "dateadd(\"seconds\"; 3), datesub(\"seconds\"; 3)",
            json!(1),
            json!([4, -2]),
        ),
    ]);
}

#[test]
fn times_are_read() {
    check(&[
        ("fromdate", json!("2015-03-05T23:51:47Z"), json!(1_425_599_507)),
        ("fromdateiso8601", json!("2015-3-5T1:2:3Z"), json!(1_425_517_323)),
        // A leap second is the second after it, and a day too many is the first of the next month.
        ("fromdate", json!("2016-12-31T23:59:60Z"), json!(1_483_228_800)),
        ("fromdate", json!("2015-02-30T00:00:00Z"), json!(1_425_254_400)),
        (
            r#"strptime("%Y-%m-%dT%H:%M:%SZ")"#,
            json!("2015-03-05T23:51:47Z"),
            json!([2015, 2, 5, 23, 51, 47, 4, 63]),
        ),
        (
            r#"strptime("%A, %B %d, %Y")"#,
            json!("Thursday, March 05, 2015"),
            json!([2015, 2, 5, 0, 0, 0, 4, 63]),
        ),
        (
            r#"strptime("%a %b %e %T %Y")"#,
            json!("thu mar  5 01:02:03 2015"),
            json!([2015, 2, 5, 1, 2, 3, 4, 63]),
        ),
        // An offset is read and counts for nothing.
        (
            r#"[strptime("%Y-%m-%dT%H:%M:%S%z") | mktime]"#,
            json!("2015-03-05T23:51:47+01:30"),
            json!([1_425_599_507]),
        ),
        (
            r#"strptime("%d %B %Y") | mktime"#,
            json!("10 March 2015"),
            json!(1_425_945_600),
        ),
        (r#"strptime("%H:%M") | mktime"#, json!("10:20"), json!(37_200)),
        (
            r#"strptime("%D")"#,
            json!("03/05/15"),
            json!([2015, 2, 5, 0, 0, 0, 4, 63]),
        ),
        (r#"strptime("%y") | .[0]"#, json!("68"), json!(2068)),
        (r#"strptime("%y") | .[0]"#, json!("69"), json!(1969)),
        (r#"strptime("%C%y") | .[0]"#, json!("1868"), json!(1868)),
        (r#"strptime("%I:%M %p") | .[3]"#, json!("01:05 pm"), json!(13)),
        (
            r#"strptime("%B")"#,
            json!("may"),
            json!([1970, 4, 1, 0, 0, 0, 5, 120]),
        ),
        (r#"strptime("")"#, json!(""), json!([1970, 0, 1, 0, 0, 0, 4, 0])),
        // jq 1.8 in JavaScript reads these otherwise, and its glibc build as here.
        (r#"strptime("%I %p") | .[3]"#, json!("12 AM"), json!(0)),
        (r#"strptime("%Y %j") | .[1:3]"#, json!("2015 100"), json!([3, 10])),
        (
            r#"strptime("%s") | mktime"#,
            json!("1425599621"),
            json!(1_425_599_621),
        ),
        (r#"strptime("%H %Z") | .[3]"#, json!("7 CEST"), json!(7)),
    ]);
    for (format, text) in [
        ("%Y-%m-%d", "2015-03-05x"),
        ("%Y-%m-%d", "2015-13-05"),
        ("%Y", "12345"),
        ("%Y", "-5"),
        ("%d", "32"),
        ("%H", "24"),
        ("%S", "61"),
        ("%B", "Sept"),
        ("%q", "3"),
        ("%", "3"),
        ("%z", "+1"),
        ("%p", "ä"),
        ("%b", "jä"),
    ] {
        let source = format!("strptime({})", json!(format));
        let wrong = evaluate(&source, &json!(text)).expect_err(text);
        let expected = format!("date \"{text}\" does not match format \"{format}\"");
        assert_eq!(wrong.to_string(), expected);
    }
    let wrong = evaluate("fromdate", &json!(1)).expect_err("no text");
    assert_eq!(
        wrong.to_string(),
        "strptime/1 requires string inputs and arguments"
    );
}

/// jq goes on to years of six digits and beyond.
#[test]
fn years_beyond_four_digits_are_refused() {
    for (source, input) in [
        ("gmtime", json!(1e12)),
        ("gmtime", json!(-1e12)),
        ("gmtime", json!(1e300)),
        ("todate", json!(253_402_300_800_i64)),
        ("mktime", json!([10_000, 0, 1, 0, 0, 0])),
        ("mktime", json!([1e300, 0, 1, 0, 0, 0])),
        ("mktime", json!([2015, 1e12, 1e12, 1e12, 1e12, 1e12])),
        ("mktime", json!([9999, 11, 31, 24, 0, 0])),
        ("strftime(\"%Y\")", json!([2015, 0, -1e11])),
    ] {
        let refused = evaluate(source, &input).expect_err(source).to_string();
        assert_eq!(
            refused, "the year of a time is from -9999 to 9999",
            "{source} of {input}"
        );
    }
    assert_eq!(
        evaluate("todate", &json!(253_402_300_799_i64)),
        Ok(json!("9999-12-31T23:59:59Z"))
    );
}
