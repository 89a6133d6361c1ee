//! Regular expressions in definitions, limited in size and in the work of a search.
//!
//! A pattern compiles to an automaton of bounded size. A lazy DFA with a small cache searches for it; the
//! cache belongs to the search, so memory does not grow with the searched text. If the cache does not help,
//! the search falls back to a step-by-step simulation and is charged at its worst-case cost.

use std::fmt;

use regex_automata::{
    Input,
    hybrid::dfa::{Cache, DFA},
    nfa::thompson::{self, NFA, WhichCaptures, pikevm::PikeVM},
    util::syntax,
};

use crate::cost::{Exhausted, Meter, bytes};

mod work;

pub use work::work;

/// Maximum length of a pattern, in bytes.
const MAX_SOURCE: usize = 4 * 1024;
/// Maximum size of a pattern's automaton, in bytes.
const MAX_AUTOMATON: usize = 256 * 1024;
/// Maximum nesting of groups in a pattern.
const MAX_NESTING: u32 = 50;
/// Size of a search's state cache, in bytes.
const CACHE: usize = 64 * 1024;
/// How often a search may clear its cache before the cache must prove useful.
const CLEARS: usize = 3;
/// Cost of setting up a search, in units.
const SEARCH: u64 = 200;

/// A compiled pattern.
#[derive(Clone)]
pub struct Pattern {
    source: Box<str>,
    dfa: DFA,
    slow: PikeVM,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.source).finish()
    }
}

impl Pattern {
    /// Compiles a pattern; the error says what is wrong with it.
    pub fn parse(source: &str) -> Result<Self, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("the pattern has more than {MAX_SOURCE} bytes"));
        }
        let config = thompson::Config::new()
            .nfa_size_limit(Some(MAX_AUTOMATON))
            .which_captures(WhichCaptures::None);
        let nfa: NFA = thompson::Compiler::new()
            .configure(config)
            .syntax(syntax::Config::new().nest_limit(MAX_NESTING))
            .build(source)
            .map_err(|error| describe(&error))?;
        let config = DFA::config()
            .cache_capacity(CACHE)
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(CLEARS))
            .minimum_bytes_per_state(Some(10))
            .unicode_word_boundary(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa.clone());
        Ok(Self {
            source: source.into(),
            dfa: dfa.map_err(|error| error.to_string())?,
            slow: PikeVM::new_from_nfa(nfa).map_err(|error| error.to_string())?,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// The approximate memory that it takes, in bytes.
    pub fn size(&self) -> usize {
        self.slow.get_nfa().memory_usage() + self.source.len()
    }

    /// Whether a text contains a match.
    pub fn is_match(&self, text: &str, meter: &Meter<'_>) -> Result<bool, Exhausted> {
        self.search(text, &mut Search::default(), meter)
    }

    /// Like [`Self::is_match`], but reuses the states that earlier searches for this pattern have found.
    pub(crate) fn search(
        &self,
        text: &str,
        search: &mut Search,
        meter: &Meter<'_>,
    ) -> Result<bool, Exhausted> {
        meter.charge(4 + text.len() as u64 / 4)?;
        let cache = match &mut search.cache {
            Some(cache) => cache,
            None => {
                meter.charge(SEARCH)?;
                search.cache.insert(self.dfa.create_cache())
            }
        };
        let found = self.dfa.try_search_fwd(cache, &Input::new(text).earliest(true));
        let done = cache.memory_usage() + cache.clear_count() * CACHE;
        meter.charge(bytes(done.saturating_sub(search.paid)))?;
        search.paid = search.paid.max(done);
        match found {
            Ok(found) => Ok(found.is_some()),
            Err(_) => {
                let n_states = self.slow.get_nfa().states().len() as u64;
                meter.charge((text.len() as u64 + 1).saturating_mul(n_states))?;
                let mut cache = self.slow.create_cache();
                Ok(self.slow.is_match(&mut cache, text))
            }
        }
    }
}

/// The state that several searches for one pattern share.
#[derive(Debug, Default)]
pub(crate) struct Search {
    cache: Option<Cache>,
    /// The cache work charged so far.
    paid: usize,
}

fn describe(error: &thompson::BuildError) -> String {
    match error.size_limit() {
        Some(_) => format!("the compiled pattern exceeds {MAX_AUTOMATON} bytes"),
        None => {
            let source = std::error::Error::source(error);
            source.map_or_else(|| error.to_string(), ToString::to_string)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> Result<bool, Exhausted> {
        Pattern::parse(pattern)
            .expect(pattern)
            .is_match(text, &Meter::alone())
    }

    #[test]
    fn patterns_match_as_written() {
        for (pattern, text, expected) in [
            ("^hello", "hello world", true),
            ("^world", "hello world", false),
            (r"^[\w.+-]+@[\w-]+\.[\w.]+$", "ada@example.com", true),
            (r"\bwor", "hello wörld word", true),
            (r"\bwor", "hello wörld sword", false),
            ("(?i)HELLO", "say hello", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, text), Ok(expected), "{pattern} on {text}");
        }
    }

    #[test]
    fn patterns_are_bounded_in_length_nesting_and_size() {
        for pattern in [
            "(?:.{100}){100}".to_owned(),
            "(a{1000}){1000}".to_owned(),
            "(".repeat(1_000) + &")".repeat(1_000),
            "a".repeat(MAX_SOURCE + 1),
            "(?:(?:(?:(?:a{10}){10}){10}){10}){10}".to_owned(),
        ] {
            assert!(Pattern::parse(&pattern).is_err(), "{}", &pattern[..20]);
        }
    }

    /// The text makes a lazy DFA create a state for almost every byte.
    #[test]
    fn search_cost_reflects_its_work() {
        let text: String = (0..200_000_u32)
            .map(|n| {
                if n.wrapping_mul(2_654_435_761) >> 31 == 0 {
                    'a'
                } else {
                    'b'
                }
            })
            .collect();
        assert_eq!(matches("[ab]*a[ab]{400}c", &text), Err(Exhausted));
        assert_eq!(matches("[ab]*c", &text), Ok(false));
    }
}
