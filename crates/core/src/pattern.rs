//! Regular expressions of definitions, bounded in size and in the work of a search.
//!
//! A pattern is compiled to an automaton of bounded size and searched by a lazy DFA with a small cache, which belongs
//! to the search: nothing grows with what was searched. Where the cache does not help, the search goes on step by step,
//! and is paid for as the worst that can be.

use std::fmt;

use regex_automata::{
    Input,
    hybrid::dfa::{Cache, DFA},
    nfa::thompson::{self, NFA, WhichCaptures, pikevm::PikeVM},
    util::syntax,
};

use crate::cost::{Exhausted, Meter, bytes};

mod work;

pub(crate) use work::work;

/// Longest source of a pattern.
const MAX_SOURCE: usize = 4 * 1024;
/// Largest automaton of a pattern.
const MAX_AUTOMATON: usize = 256 * 1024;
/// Deepest nesting of groups in a pattern.
const MAX_NESTING: u32 = 50;
/// What a search keeps of the states it has seen.
const CACHE: usize = 64 * 1024;
/// How often a search drops what it keeps before it must show that this helps.
const CLEARS: usize = 3;
/// What setting up a search costs.
const SEARCH: u64 = 200;

/// A pattern made ready to search.
#[derive(Clone)]
pub(crate) struct Pattern {
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
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
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

    /// The pattern as written.
    pub(crate) fn as_str(&self) -> &str {
        &self.source
    }

    /// About the bytes it takes.
    pub(crate) fn size(&self) -> usize {
        self.slow.get_nfa().memory_usage() + self.source.len()
    }

    /// Whether a text has a match.
    pub(crate) fn is_match(&self, text: &str, meter: &Meter<'_>) -> Result<bool, Exhausted> {
        self.search(text, &mut Search::default(), meter)
    }

    /// Whether a text has a match; with what earlier searches of this pattern have found out.
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

/// What searches of one pattern have found out so far.
#[derive(Debug, Default)]
pub(crate) struct Search {
    cache: Option<Cache>,
    /// For how much of it was paid.
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

    /// States that a lazy DFA would have to make for each byte.
    #[test]
    fn a_search_is_paid_for_as_the_work_it_is() {
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
