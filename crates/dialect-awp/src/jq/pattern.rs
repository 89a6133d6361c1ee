//! Regular expressions as jq writes them, translated and compiled.
//!
//! jq has those of Oniguruma with Perl's syntax. The translation keeps their meaning where it differs from that of
//! `regex-syntax`: `[` and `&&` in a class, braces that repeat nothing, `$` before a last line break, names of groups
//! that occur twice. What needs more than an automaton is refused by name: lookaround, references to groups, and groups
//! and repetitions that do not give back. A pattern is limited in length, nesting and compiled size.

use std::cell::RefCell;

use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_syntax::{ParserBuilder, ast};
use wopr_kernel::cost::{self, Meter};

use super::{
    automaton::Cache,
    machine::{Flow, Stop},
};

/// Maximum length of a pattern, in bytes.
const MAX_SOURCE: usize = 4 * 1024;
/// Maximum size of a compiled pattern, in bytes.
const MAX_AUTOMATON: usize = 256 * 1024;
/// Maximum nesting of groups in a pattern.
const MAX_NESTING: u32 = 50;
/// Maximum number of groups that capture.
const MAX_GROUPS: usize = 100;
/// Units for compiling the smallest pattern.
const COMPILE: u64 = 2_000;
/// Units for a microsecond of parsing.
const MICROSECOND: u64 = 100;
/// Bytes of an automaton that one unit pays for.
const BYTES: u64 = 2;

/// The flags of a search, as a text names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) is_global: bool,
    pub(super) ignores_case: bool,
    /// Spaces and comments of the pattern count for nothing.
    pub(super) is_extended: bool,
    pub(super) ignores_empty: bool,
    pub(super) is_longest: bool,
    /// `.` is also a line break.
    pub(super) dot_is_all: bool,
}

impl Flags {
    /// The flags in a text; none if it has another character.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut flags = Self::default();
        for letter in text.chars() {
            match letter {
                'g' => flags.is_global = true,
                'i' => flags.ignores_case = true,
                'x' => flags.is_extended = true,
                'n' => flags.ignores_empty = true,
                'l' => flags.is_longest = true,
                'p' => flags.dot_is_all = true,
                // `^` and `$` are the ends of the text anyway.
                's' => {}
                _ => return None,
            }
        }
        Some(flags)
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Regex {
    pub(super) nfa: NFA,
    /// The groups in order, each with its name if it has one.
    pub(super) groups: Vec<Option<String>>,
    /// The bytes that a match can begin with; none if it may be empty.
    pub(super) first: Option<Box<[bool; 256]>>,
    pub(super) cache: RefCell<Option<Cache>>,
}

/// Checks a pattern of a filter when the filter is compiled: its syntax, not its compiled size.
pub(super) fn check(source: &str, flags: Flags) -> Result<(), String> {
    let translated = Translator::translate(source, flags.is_extended)?;
    let mut parser = ast::parse::ParserBuilder::new();
    let parsed = parser.nest_limit(MAX_NESTING).build().parse(&translated.text);
    parsed
        .map(drop)
        .map_err(|error| format!("{} in {source:?}", error.kind()))
}

impl Regex {
    /// Compiles a pattern. The work is charged before it is done, as far as it is known.
    pub(super) fn compile(source: &str, flags: Flags, meter: &Meter<'_>) -> Flow<Self> {
        meter.charge(COMPILE + source.len() as u64)?;
        let wrong = |what: String| Stop::error(format!("Regex failure: {what}"));
        let translated = Translator::translate(source, flags.is_extended).map_err(wrong)?;
        // The work of a pattern that ignores case is seen only if the pattern says so.
        let case = if flags.ignores_case { "(?i)" } else { "" };
        let work = wopr_schema::pattern_work(&format!("{case}{}", translated.text));
        meter.charge((work as u64).saturating_mul(MICROSECOND))?;
        let parsed = ParserBuilder::new()
            .nest_limit(MAX_NESTING)
            .case_insensitive(flags.ignores_case)
            .dot_matches_new_line(flags.dot_is_all)
            .build()
            .parse(&translated.text);
        let parsed = parsed.map_err(|error| match error {
            regex_syntax::Error::Parse(error) => wrong(error.kind().to_string()),
            regex_syntax::Error::Translate(error) => wrong(error.kind().to_string()),
            error => wrong(error.to_string()),
        })?;
        let config = thompson::Config::new()
            .nfa_size_limit(Some(MAX_AUTOMATON))
            .which_captures(WhichCaptures::All);
        let built = thompson::Compiler::new()
            .configure(config)
            .build_from_hir(&parsed);
        let nfa = match built {
            Ok(nfa) => nfa,
            Err(error) => {
                // It was built up to the limit.
                meter.charge(MAX_AUTOMATON as u64 / BYTES)?;
                return Err(wrong(match error.size_limit() {
                    Some(limit) => format!("the pattern takes more than {limit} bytes"),
                    None => error.to_string(),
                }));
            }
        };
        meter.charge(nfa.memory_usage() as u64 / BYTES)?;
        Ok(Self {
            first: first_bytes(&nfa),
            nfa,
            groups: translated.groups,
            cache: RefCell::default(),
        })
    }

    /// How many places a search keeps: the two ends of the match and of each group.
    pub(super) fn n_slots(&self) -> usize {
        2 + 2 * self.groups.len()
    }

    /// The cost of keeping a compiled pattern.
    pub(super) fn cost(&self) -> u64 {
        cost::bytes(self.nfa.memory_usage())
    }
}

/// The bytes that a match can begin with, wherever it begins.
fn first_bytes(nfa: &NFA) -> Option<Box<[bool; 256]>> {
    let mut first = Box::new([false; 256]);
    let mut is_known = vec![false; nfa.states().len()];
    let mut waiting = vec![nfa.start_anchored()];
    while let Some(id) = waiting.pop() {
        if std::mem::replace(&mut is_known[id], true) {
            continue;
        }
        let mut bytes = |from: u8, to: u8| first[usize::from(from)..=usize::from(to)].fill(true);
        match nfa.state(id) {
            State::ByteRange { trans } => bytes(trans.start, trans.end),
            State::Sparse(sparse) => sparse.transitions.iter().for_each(|t| bytes(t.start, t.end)),
            State::Dense(dense) => (0..=u8::MAX)
                .filter(|byte| dense.matches_byte(*byte).is_some())
                .for_each(|byte| bytes(byte, byte)),
            State::Look { next, .. } | State::Capture { next, .. } => waiting.push(*next),
            State::Union { alternates } => waiting.extend(alternates.iter()),
            State::BinaryUnion { alt1, alt2 } => waiting.extend([*alt1, *alt2]),
            State::Fail => {}
            State::Match { .. } => return None,
        }
    }
    Some(first)
}

/// A pattern in the syntax of `regex-syntax`. `\z` is written as the end of a line that `\r\n` may end, which no other
/// part of a pattern can be, so that the search can tell it from `$`.
#[derive(Debug, Default)]
struct Translated {
    text: String,
    groups: Vec<Option<String>>,
}

const END_OF_TEXT: &str = "(?mR:$)";
const END_OR_LAST_BREAK: &str = "(?-m:$)";

struct Translator<'s> {
    rest: std::iter::Peekable<std::str::Chars<'s>>,
    done: Translated,
    /// Whether spaces count for nothing, for each group around this place.
    extended: Vec<bool>,
}

impl<'s> Translator<'s> {
    fn translate(source: &'s str, is_extended: bool) -> Result<Translated, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("the pattern has more than {MAX_SOURCE} bytes"));
        }
        let mut translator = Self {
            rest: source.chars().peekable(),
            done: Translated::default(),
            extended: vec![is_extended],
        };
        while let Some(letter) = translator.rest.next() {
            translator.part(letter)?;
        }
        Ok(translator.done)
    }

    fn is_extended(&self) -> bool {
        self.extended.last().copied().unwrap_or_default()
    }

    fn push(&mut self, text: &str) {
        self.done.text.push_str(text);
    }

    /// A character that stands for itself.
    fn literal(&mut self, letter: char) {
        // With a backslash these two are the ends of words.
        if letter.is_ascii_punctuation() && !matches!(letter, '<' | '>') {
            self.done.text.push('\\');
        }
        self.done.text.push(letter);
    }

    fn part(&mut self, letter: char) -> Result<(), String> {
        match letter {
            '\\' => self.escape(),
            '[' => self.class(),
            '(' => self.group(),
            ')' => {
                if self.extended.len() > 1 {
                    self.extended.pop();
                }
                self.push(")");
                Ok(())
            }
            '*' | '+' | '?' => {
                self.done.text.push(letter);
                self.after_repetition()
            }
            '{' => self.braces(),
            '}' | ']' => {
                self.literal(letter);
                Ok(())
            }
            '#' if self.is_extended() => {
                let _comment = self.rest.by_ref().find(|letter| *letter == '\n');
                Ok(())
            }
            letter if letter.is_ascii_whitespace() && self.is_extended() => Ok(()),
            // Special in none of the two, or in both alike.
            '.' | '^' | '$' | '|' => {
                self.done.text.push(letter);
                Ok(())
            }
            letter => {
                self.literal(letter);
                Ok(())
            }
        }
    }

    fn after_repetition(&mut self) -> Result<(), String> {
        if self.rest.peek() == Some(&'+') {
            return Err("possessive repetitions are not offered".to_owned());
        }
        if self.rest.next_if_eq(&'?').is_some() {
            self.push("?");
        }
        self.nothing_repeated_apart()
    }

    /// Refuses a repetition of what is repeated already, if spaces or a comment are between the two. Without them, the
    /// second one would mean something else.
    fn nothing_repeated_apart(&self) -> Result<(), String> {
        let mut ahead = self.rest.clone();
        let mut is_apart = false;
        loop {
            let mut comment = ahead.clone();
            if self.is_extended() && ahead.next_if(char::is_ascii_whitespace).is_some() {
                is_apart = true;
            } else if self.is_extended() && ahead.next_if_eq(&'#').is_some() {
                is_apart = ahead.any(|letter| letter == '\n');
            } else if [comment.next(), comment.next(), comment.next()] == [Some('('), Some('?'), Some('#')] {
                is_apart = comment.any(|letter| letter == ')');
                ahead = comment;
            } else {
                break;
            }
        }
        match ahead.peek() {
            Some('*' | '+' | '?' | '{') if is_apart => {
                Err("a repetition apart from what it repeats is not offered".to_owned())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// `{2}`, `{2,}` and `{2,3}` repeat; any other brace stands for itself.
    fn braces(&mut self) -> Result<(), String> {
        let mut ahead = self.rest.clone();
        let mut inside = String::new();
        let is_closed = loop {
            match ahead.next() {
                Some('}') => break true,
                Some(letter) if letter.is_ascii_digit() || letter == ',' => inside.push(letter),
                Some(_) | None => break false,
            }
        };
        let mut bounds = inside.split(',');
        let (from, to, more) = (bounds.next().unwrap_or_default(), bounds.next(), bounds.next());
        if !is_closed || from.is_empty() || more.is_some() {
            self.push("\\{");
            return Ok(());
        }
        let n = |text: &str| text.parse::<u32>().unwrap_or(u32::MAX);
        if to.is_some_and(|to| !to.is_empty() && n(to) < n(from)) {
            return Err(format!("{{{inside}}} repeats at least as often as at most"));
        }
        self.rest = ahead;
        self.push(&format!("{{{inside}}}"));
        if self.rest.next_if_eq(&'?').is_some() {
            self.push("?");
        }
        self.nothing_repeated_apart()
    }

    fn group(&mut self) -> Result<(), String> {
        let is_extended = self.is_extended();
        if self.rest.next_if_eq(&'?').is_none() {
            return self.capture(None);
        }
        let refused = |what: &str| Err(format!("{what} is not offered"));
        match self.rest.next() {
            Some(':') => {
                self.push("(?:");
                self.extended.push(is_extended);
                Ok(())
            }
            Some('#') => {
                let comment = self.rest.by_ref();
                comment
                    .find(|letter| *letter == ')')
                    .map(drop)
                    .ok_or_else(|| "a comment is not closed".to_owned())
            }
            Some('=' | '!') => refused("lookahead"),
            Some('>') => refused("a group that gives nothing back"),
            Some('(') => refused("a group with a condition"),
            Some('<') if matches!(self.rest.peek(), Some('=' | '!')) => refused("lookbehind"),
            Some('<') => self.named('>'),
            Some('\'') => self.named('\''),
            Some(letter) => self.flags(letter),
            None => Err("end pattern in group".to_owned()),
        }
    }

    fn capture(&mut self, name: Option<String>) -> Result<(), String> {
        if self.done.groups.len() >= MAX_GROUPS {
            return Err(format!("the pattern has more than {MAX_GROUPS} groups"));
        }
        self.done.groups.push(name);
        self.push("(");
        self.extended.push(self.is_extended());
        Ok(())
    }

    fn named(&mut self, end: char) -> Result<(), String> {
        let mut name = String::new();
        loop {
            match self.rest.next() {
                Some(letter) if letter == end => break,
                Some(letter) if letter.is_alphanumeric() || letter == '_' => name.push(letter),
                Some(letter) => return Err(format!("invalid char {letter:?} in group name")),
                None => return Err("end pattern in group".to_owned()),
            }
        }
        match name.chars().next() {
            None => Err("group name is empty".to_owned()),
            Some(letter) if letter.is_numeric() => Err(format!("invalid group name <{name}>")),
            Some(_) => self.capture(Some(name)),
        }
    }

    /// `(?i)` for the rest of the group, or `(?i:…)`.
    fn flags(&mut self, first: char) -> Result<(), String> {
        let (mut on, mut off, mut is_off, mut is_extended) = (String::new(), String::new(), false, None);
        let mut letter = first;
        let is_group = loop {
            match letter {
                '-' => is_off = true,
                'x' => is_extended = Some(!is_off),
                'i' | 'm' | 's' if is_off => off.push(letter),
                'i' | 'm' | 's' => on.push(letter),
                ':' => break true,
                ')' => break false,
                _ => return Err("undefined group option".to_owned()),
            }
            letter = self.rest.next().ok_or("end pattern in group")?;
        };
        let has_both = on.chars().any(|letter| off.contains(letter));
        on = on.chars().filter(|letter| !off.contains(*letter)).collect();
        let mut flags = String::new();
        for letter in "ims".chars() {
            if on.contains(letter) {
                flags.push(letter);
            }
        }
        let n_on = flags.len();
        for letter in "ims".chars().filter(|letter| off.contains(*letter)) {
            if flags.len() == n_on {
                flags.push('-');
            }
            flags.push(letter);
        }
        if has_both && flags.is_empty() {
            return Err("undefined group option".to_owned());
        }
        let before = self.is_extended();
        let after = is_extended.unwrap_or(before);
        if is_group {
            self.push(&format!("(?{flags}:"));
            self.extended.push(after);
            return Ok(());
        }
        if let Some(last) = self.extended.last_mut() {
            *last = after;
        }
        if !flags.is_empty() {
            self.push(&format!("(?{flags})"));
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        let letter = self.rest.next().ok_or("end pattern at escape")?;
        match letter {
            'A' | 'b' | 'B' => {
                self.literal('\\');
                self.done.text.pop();
                self.done.text.push(letter);
            }
            'z' => self.push(END_OF_TEXT),
            'Z' => self.push(END_OR_LAST_BREAK),
            '1'..='9' | 'k' | 'g' => return Err("a reference to a group is not offered".to_owned()),
            'G' | 'K' | 'R' | 'X' => return Err(format!("\\{letter} is not offered")),
            'Q' => self.quoted(),
            letter => return self.character(letter),
        }
        Ok(())
    }

    /// `\Q…\E`: everything between them stands for itself.
    fn quoted(&mut self) {
        while let Some(letter) = self.rest.next() {
            if letter == '\\' && self.rest.next_if_eq(&'E').is_some() {
                return;
            }
            self.literal(letter);
        }
    }

    /// An escape that is a character or a class, in a class of brackets as well.
    fn character(&mut self, letter: char) -> Result<(), String> {
        match letter {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => self.push(&format!("\\{letter}")),
            'p' | 'P' => return self.property(letter),
            't' | 'n' | 'r' | 'f' | 'a' => self.push(&format!("\\{letter}")),
            'e' => self.push("\\x1B"),
            'x' => return self.hexadecimal(),
            '0'..='7' => {
                let mut code = letter.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let Some(digit) = self.rest.peek().and_then(|letter| letter.to_digit(8)) else {
                        break;
                    };
                    self.rest.next();
                    code = 8 * code + digit;
                }
                self.push(&format!("\\x{{{code:X}}}"));
            }
            'c' | 'C' | 'M' | 'N' | 'O' => return Err(format!("\\{letter} is not offered")),
            letter => self.literal(letter),
        }
        Ok(())
    }

    fn property(&mut self, letter: char) -> Result<(), String> {
        if self.rest.next_if_eq(&'{').is_none() {
            self.literal(letter);
            return Ok(());
        }
        let is_negated = self.rest.next_if_eq(&'^').is_some() != (letter == 'P');
        let mut name = String::new();
        loop {
            match self.rest.next() {
                Some('}') => break,
                Some(letter) => name.push(letter),
                None => return Err("invalid character property name".to_owned()),
            }
        }
        let letter = if is_negated { 'P' } else { 'p' };
        self.push(&match posix(&name.to_ascii_lowercase()) {
            Some(class) if is_negated => format!("[^{class}]"),
            Some(class) => format!("[{class}]"),
            None => format!("\\{letter}{{{name}}}"),
        });
        Ok(())
    }

    fn hexadecimal(&mut self) -> Result<(), String> {
        let mut digits = String::new();
        if self.rest.next_if_eq(&'{').is_some() {
            while let Some(digit) = self.rest.next_if(char::is_ascii_hexdigit) {
                digits.push(digit);
            }
            if self.rest.next() != Some('}') || digits.is_empty() {
                return Err("invalid code point value".to_owned());
            }
        } else {
            while digits.len() < 2
                && let Some(digit) = self.rest.next_if(char::is_ascii_hexdigit)
            {
                digits.push(digit);
            }
            if digits.is_empty() {
                digits.push('0');
            }
        }
        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
        let code = code.ok_or("invalid code point value")?;
        self.push(&format!("\\x{{{:X}}}", u32::from(code)));
        Ok(())
    }

    /// A class in brackets. Brackets and `&&` in it stand for themselves.
    fn class(&mut self) -> Result<(), String> {
        self.push("[");
        if self.rest.next_if_eq(&'^').is_some() {
            self.push("^");
        }
        let mut is_first = true;
        // Whether the part before is one character, which may begin a range, and whether a range is open.
        let (mut may_begin, mut is_open) = (false, false);
        loop {
            let letter = self.rest.next().ok_or("premature end of char-class")?;
            let mut is_one = true;
            match letter {
                ']' if !is_first => break,
                '[' if self.rest.peek() == Some(&':') => {
                    self.posix_class()?;
                    is_one = false;
                }
                '\\' => match self.rest.next().ok_or("end pattern at escape")? {
                    'b' => self.push("\\x08"),
                    letter @ '1'..='7' => self.character(letter)?,
                    'R' | 'X' => return Err("\\R and \\X are not offered in a class".to_owned()),
                    letter => {
                        is_one = !stands_for_several(letter);
                        self.character(letter)?;
                    }
                },
                // A range; itself at an end, and next to what stands for several characters.
                '-' if may_begin && self.one_follows() => {
                    self.push("-");
                    (may_begin, is_open) = (false, true);
                    continue;
                }
                letter => self.literal(letter),
            }
            may_begin = is_one && !is_open;
            (is_first, is_open) = (false, false);
        }
        self.push("]");
        Ok(())
    }

    /// Whether the next part of a class is one character, which may end a range.
    fn one_follows(&self) -> bool {
        let mut ahead = self.rest.clone();
        match (ahead.next(), ahead.next()) {
            (None | Some(']'), _) | (Some('['), Some(':')) => false,
            (Some('\\'), Some(letter)) => !stands_for_several(letter),
            (Some(_), _) => true,
        }
    }

    fn posix_class(&mut self) -> Result<(), String> {
        let mut ahead = self.rest.clone();
        ahead.next();
        let is_negated = ahead.next_if_eq(&'^').is_some();
        let mut name = String::new();
        while let Some(letter) = ahead.next_if(char::is_ascii_alphabetic) {
            name.push(letter);
        }
        if (ahead.next(), ahead.next()) != (Some(':'), Some(']')) {
            self.literal('[');
            return Ok(());
        }
        let class = posix(&name).ok_or_else(|| format!("[:{name}:] is not a class"))?;
        self.rest = ahead;
        self.push(if is_negated { "[^" } else { "[" });
        self.push(class);
        self.push("]");
        Ok(())
    }
}

/// Whether this letter after a backslash stands for several characters.
const fn stands_for_several(letter: char) -> bool {
    matches!(letter, 'w' | 'W' | 'd' | 'D' | 's' | 'S' | 'h' | 'H' | 'p' | 'P')
}

/// What a class of POSIX has, in brackets.
fn posix(name: &str) -> Option<&'static str> {
    Some(match name {
        "alnum" => r"\p{Alphabetic}\p{M}\p{Nd}",
        "alpha" => r"\p{Alphabetic}\p{M}",
        "ascii" => r"\x00-\x7F",
        "blank" => r"\t\p{Zs}",
        "cntrl" => r"\p{Cc}",
        "digit" => r"\d",
        "graph" => r"[^\s\p{Cc}\p{Cn}]",
        "lower" => r"\p{Lowercase}",
        "print" => r"\p{Zs}[^\s\p{Cc}\p{Cn}]",
        "punct" => r"\p{P}\$\+<=>\^`\|~",
        "space" => r"\s",
        "upper" => r"\p{Uppercase}",
        "word" => r"\w",
        "xdigit" => "0-9A-Fa-f",
        _ => return None,
    })
}
