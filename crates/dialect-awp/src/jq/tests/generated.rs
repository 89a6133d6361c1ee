//! Filters that are put together at random end within their budget, whatever they are.

use std::thread;

use serde_json::{Value, json};
use wopr_kernel::{
    Timestamp,
    cost::{Budget, EVALUATION},
};

use crate::jq::{Filter, JqError};

/// Random numbers that are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).expect("small")
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const FUNCTIONS: [&str; 57] = [
    "walk(F)",
    "tostream",
    "fromstream(F)",
    "fromstream(tostream)",
    "(1 | truncate_stream(F))",
    "combinations",
    "combinations(F)",
    "transpose",
    "bsearch(F)",
    "pick(F)",
    "pick(.a?)",
    "IN(F)",
    "IN(F; F)",
    "INDEX(F)",
    "INDEX(F; F)",
    "JOIN(F; F)",
    "gmtime",
    "mktime",
    "todate",
    "fromdate",
    "strftime(F)",
    "strptime(F)",
    "strftime(\"%c %G-%V %U %s\")",
    "strptime(\"%Y-%m-%dT%H:%M:%SZ\")",
    "strptime(\"%a %j %p %z\")",
    "test(F)",
    "test(P)",
    "[match(P; G)]",
    "capture(P; G)",
    "[scan(P)]",
    "[splits(P; G)]",
    "split(P; G)",
    "sub(P; F; G)",
    "gsub(P; F)",
    "@csv",
    "@tsv",
    "@html",
    "@sh",
    "@uri",
    "@urid",
    "@base64",
    "@base64d",
    "@base32",
    "@base32d",
    "format(F)",
    "pow(F; F)",
    "ldexp(F; F)",
    "jn(F; F)",
    "fma(F; F; F)",
    "frexp",
    "[tgamma, log, logb, significand, lgamma_r, modf]",
    "toboolean",
    "toarray",
    "implode",
    "trimstr(F)",
    "abs",
    "nth(F; F)",
];
const OTHERS: [&str; 24] = [
    ".",
    ".[]?",
    ".a?",
    "[F]",
    "(F, F)",
    "{ a: F }",
    "F | F",
    "F as [$x] ?// $x | [$x]",
    "try F catch .",
    "[limit(3; F)]",
    "map(F)?",
    "tostring",
    "tojson",
    "null",
    "-1",
    "1e300",
    "0.5",
    "range(3)",
    "\"\"",
    "\"%\"",
    "\"é\\n\"",
    "\"2015-03-05T23:51:47Z\"",
    "[[1, 2], [3]]",
    "explode?",
];
const PATTERNS: [&str; 22] = [
    "a",
    "é",
    ".",
    "^",
    "$",
    "\\\\z",
    "\\\\b",
    "\\\\w",
    "[^a]",
    "[[:alpha:]]",
    "(R)",
    "(?<n>R)",
    "(?:R|R)",
    "R*",
    "R+?",
    "R{2}",
    "(?i:R)",
    "\\\\pL",
    "\\\\B",
    "RR",
    "(?m:$)",
    "",
];
const FLAGS: [&str; 7] = ["", "g", "gi", "gn", "gl", "gx", "gp"];

/// A filter with its places filled in, up to a depth.
fn filled(template: &str, depth: usize, random: &mut Random) -> String {
    let mut filled = String::new();
    for letter in template.chars() {
        match letter {
            'F' => filled.push_str(&filter(depth + 1, random)),
            'P' => {
                filled.push('"');
                filled.push_str(&pattern(0, random));
                filled.push('"');
            }
            'G' => filled.push_str(&format!("\"{}\"", random.of(&FLAGS))),
            letter => filled.push(letter),
        }
    }
    filled
}

fn filter(depth: usize, random: &mut Random) -> String {
    if depth > 3 {
        return random.of(&[".", "null", "3", "\"a\"", "[1]"]).to_owned();
    }
    let template = match random.below(3) {
        0 => random.of(&OTHERS),
        _ => random.of(&FUNCTIONS),
    };
    format!("({})", filled(template, depth, random))
}

fn pattern(depth: usize, random: &mut Random) -> String {
    if depth > 4 {
        return "a".to_owned();
    }
    let parts = random.of(&PATTERNS).chars().map(|letter| match letter {
        'R' => pattern(depth + 1, random),
        letter => letter.to_string(),
    });
    // `\B` has an `R` only by its name, and the others none.
    parts.collect()
}

#[test]
fn random_filters_of_the_functions_stay_within_their_budget() {
    let inputs = [
        json!(null),
        json!({ "a": "aé ab\nb", "b": [1.5, -3, 1_425_599_621, "2015-03-05T23:51:47Z"], "c": { "d": [[], {}] } }),
        json!([["a", "b"], [1, 2, 3], null]),
        json!("aéa AB-12\n"),
        json!(1_425_599_621.678),
    ];
    let test = move || {
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let (mut n_evaluated, mut n_values) = (0, 0);
        for _ in 0..1_000 {
            let source = filter(0, &mut random);
            let Ok(filter) = Filter::compile(&source) else {
                continue;
            };
            for input in &inputs {
                let within = |units: u64| {
                    let budget = Budget::new(units);
                    let found = filter.evaluate(input, Timestamp::default(), &budget.meter());
                    (found, budget.spent())
                };
                let (found, spent) = within(2 * EVALUATION);
                assert!(spent <= EVALUATION, "{source} took {spent}");
                // With less, it gives the same or nothing.
                let (less, _) = within(spent / 2);
                assert!(less == found || less == Err(JqError::TooMuchWork), "{source}");
                n_evaluated += 1;
                n_values += usize::from(found.is_ok_and(|value| value != Value::Null));
            }
        }
        assert!(n_evaluated > 2_000, "{n_evaluated} were evaluated");
        assert!(n_values > 500, "{n_values} gave values");
    };
    // Half of the stack of a thread of the host.
    let done = thread::Builder::new().stack_size(1024 * 1024).spawn(test);
    done.expect("spawned").join().expect("no filter breaks a promise");
}
