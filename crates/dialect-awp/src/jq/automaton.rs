//! The search of one text for a compiled pattern.
//!
//! It follows all ways through the automaton at once, byte by byte, so its work is bounded by the length of the text times
//! the size of the pattern; each state that it visits is charged.

use regex_automata::{
    nfa::thompson::State,
    util::{
        look::{Look, LookMatcher},
        primitives::StateID,
    },
};
use wopr_kernel::cost::Meter;

use super::{
    machine::Flow,
    pattern::{Flags, Regex},
};

/// Bytes that are passed over for a unit where no match can begin.
const SKIPPED: usize = 8;
/// Places that are copied for a unit when a state is visited.
const SLOTS: usize = 8;

/// Where a match and its groups are, in bytes: two places each.
pub(super) type Slots = Vec<Option<usize>>;

/// States to visit next, without those that were added already, in the order of preference.
#[derive(Debug)]
struct Threads {
    order: Vec<StateID>,
    /// When each state was added last.
    added: Vec<usize>,
    slots: Vec<Option<usize>>,
    n_slots: usize,
}

impl Threads {
    fn new(n_states: usize, n_slots: usize) -> Self {
        Self {
            order: Vec::with_capacity(n_states),
            added: vec![usize::MAX; n_states],
            slots: vec![None; n_states * n_slots],
            n_slots,
        }
    }

    fn slots(&mut self, id: StateID) -> &mut [Option<usize>] {
        let from = id.as_usize() * self.n_slots;
        &mut self.slots[from..from + self.n_slots]
    }
}

/// What is left to do when the ways on from a state are followed.
#[derive(Debug)]
enum Step {
    Visit(StateID),
    Restore(usize, Option<usize>),
}

/// What a search works with. Searches for the same pattern share it, one after another.
#[derive(Debug)]
pub(super) struct Cache {
    now: Threads,
    next: Threads,
    /// The places of the thread that is followed.
    slots: Slots,
    steps: Vec<Step>,
    /// Counts the places, to know which states were added at this one.
    round: usize,
}

/// A search for one pattern in one text.
pub(super) struct Search<'s> {
    meter: &'s Meter<'s>,
    regex: &'s Regex,
    text: &'s str,
    flags: Flags,
    cache: Cache,
    looks: LookMatcher,
}

impl<'s> Search<'s> {
    pub(super) fn new(
        meter: &'s Meter<'s>,
        regex: &'s Regex,
        text: &'s str,
        flags: Flags,
        n_slots: usize,
    ) -> Flow<Self> {
        // A search that goes on while another one begins keeps its own.
        let known = regex.cache.take().filter(|cache| cache.slots.len() == n_slots);
        let cache = match known {
            Some(cache) => cache,
            None => {
                let n_states = regex.nfa.states().len();
                meter.bytes(2 * n_states * (n_slots + 2) * size_of::<Option<usize>>())?;
                Cache {
                    now: Threads::new(n_states, n_slots),
                    next: Threads::new(n_states, n_slots),
                    slots: vec![None; n_slots],
                    steps: Vec::new(),
                    round: 0,
                }
            }
        };
        Ok(Self {
            meter,
            regex,
            text,
            flags,
            cache,
            looks: LookMatcher::new(),
        })
    }

    /// Leaves what it worked with to the next search.
    pub(super) fn end(self) {
        self.regex.cache.replace(Some(self.cache));
    }

    /// The first match from a place on. Of several that begin there, the preferred one; if the longest is wanted, the
    /// longest one wherever it begins.
    pub(super) fn find(&mut self, from: usize) -> Flow<Option<Slots>> {
        if !self.flags.is_longest {
            return self.simulate(from, false);
        }
        let mut best: Option<Slots> = None;
        let length = |slots: &Slots| slots[1].unwrap_or_default() - slots[0].unwrap_or_default();
        let places = self.text[from..].char_indices().map(|(at, _)| from + at);
        for at in places.chain([self.text.len()]) {
            let found = self.simulate(at, true)?;
            if let Some(found) = found
                && best.as_ref().is_none_or(|best| length(&found) > length(best))
            {
                best = Some(found);
            }
        }
        Ok(best)
    }

    fn simulate(&mut self, from: usize, is_anchored: bool) -> Flow<Option<Slots>> {
        let bytes = self.text.as_bytes();
        let mut found: Option<Slots> = None;
        self.cache.now.order.clear();
        self.cache.round += 1;
        let mut at = from;
        loop {
            if self.cache.now.order.is_empty() {
                if found.is_some() || (is_anchored && at > from) {
                    break;
                }
                if !is_anchored && let Some(first) = &self.regex.first {
                    let rest = bytes[at..].iter();
                    let skipped = rest.take_while(|byte| !first[usize::from(**byte)]).count();
                    self.meter.charge(1 + (skipped / SKIPPED) as u64)?;
                    at += skipped;
                    self.cache.round += 1;
                    if at == bytes.len() {
                        break;
                    }
                }
            }
            // The ways from here come last: what began earlier is preferred.
            let may_begin = found.is_none() && (!is_anchored || at == from) && self.text.is_char_boundary(at);
            if may_begin {
                self.cache.slots.fill(None);
                self.cache.slots[0] = Some(at);
                follow(
                    (self.meter, self.regex, self.text),
                    (&mut self.cache.now, &mut self.cache.steps, &self.looks),
                    (self.cache.round, self.regex.nfa.start_anchored(), at),
                    &mut self.cache.slots,
                )?;
            }
            self.step(at, &mut found)?;
            if at == bytes.len() {
                break;
            }
            at += 1;
        }
        Ok(found)
    }

    /// Takes all threads over the byte at a place, up to the first that matches.
    fn step(&mut self, at: usize, found: &mut Option<Slots>) -> Flow {
        let byte = self.text.as_bytes().get(at).copied();
        self.cache.next.order.clear();
        self.cache.round += 1;
        for n in 0..self.cache.now.order.len() {
            let id = self.cache.now.order[n];
            self.meter.charge(1)?;
            let to = match self.regex.nfa.state(id) {
                State::ByteRange { trans } => {
                    byte.filter(|byte| trans.matches_byte(*byte)).map(|_| trans.next)
                }
                State::Sparse(sparse) => byte.and_then(|byte| sparse.matches_byte(byte)),
                State::Dense(dense) => byte.and_then(|byte| dense.matches_byte(byte)),
                State::Match { .. } => {
                    let here = self.cache.now.slots(id);
                    let begins = here[0].unwrap_or_default();
                    if self.flags.ignores_empty && begins == at {
                        continue;
                    }
                    let mut here = here.to_vec();
                    here[1] = Some(at);
                    *found = Some(here);
                    // Longer ones are only wanted if the longest is.
                    if !self.flags.is_longest {
                        break;
                    }
                    continue;
                }
                State::Look { .. }
                | State::Union { .. }
                | State::BinaryUnion { .. }
                | State::Capture { .. }
                | State::Fail => None,
            };
            if let Some(to) = to {
                self.cache.slots.copy_from_slice(self.cache.now.slots(id));
                follow(
                    (self.meter, self.regex, self.text),
                    (&mut self.cache.next, &mut self.cache.steps, &self.looks),
                    (self.cache.round, to, at + 1),
                    &mut self.cache.slots,
                )?;
            }
        }
        std::mem::swap(&mut self.cache.now, &mut self.cache.next);
        Ok(())
    }
}

/// Adds a state, and those that are reached from it without a byte, to the threads.
fn follow(
    (meter, regex, text): (&Meter<'_>, &Regex, &str),
    (threads, steps, looks): (&mut Threads, &mut Vec<Step>, &LookMatcher),
    (round, from, at): (usize, StateID, usize),
    slots: &mut [Option<usize>],
) -> Flow {
    let mut n_visited = 0;
    steps.clear();
    steps.push(Step::Visit(from));
    while let Some(step) = steps.pop() {
        let mut id = match step {
            Step::Restore(slot, before) => {
                slots[slot] = before;
                continue;
            }
            Step::Visit(id) => id,
        };
        loop {
            if threads.added[id] == round {
                break;
            }
            threads.added[id] = round;
            n_visited += 1;
            match regex.nfa.state(id) {
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) | State::Match { .. } => {
                    threads.order.push(id);
                    n_visited += slots.len() / SLOTS;
                    threads.slots(id).copy_from_slice(slots);
                    break;
                }
                State::Look { look, next } => {
                    if !holds(looks, *look, text, at) {
                        break;
                    }
                    id = *next;
                }
                State::Union { alternates } => {
                    let Some((first, others)) = alternates.split_first() else {
                        break;
                    };
                    steps.extend(others.iter().rev().map(|id| Step::Visit(*id)));
                    id = *first;
                }
                State::BinaryUnion { alt1, alt2 } => {
                    steps.push(Step::Visit(*alt2));
                    id = *alt1;
                }
                State::Capture { next, slot, .. } => {
                    // The first two are the match itself, which the search knows.
                    let slot = slot.as_usize();
                    if slot >= 2 && slot < slots.len() {
                        steps.push(Step::Restore(slot, slots[slot]));
                        slots[slot] = Some(at);
                    }
                    id = *next;
                }
                State::Fail => break,
            }
        }
    }
    meter.charge(n_visited as u64)?;
    Ok(())
}

/// Whether an assertion holds at a place, with Oniguruma's meaning of the ends of texts and lines; see the translation
/// of patterns.
fn holds(looks: &LookMatcher, look: Look, text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let is_break = |at: usize| bytes.get(at) == Some(&b'\n');
    match look {
        Look::End => at == bytes.len() || (at + 1 == bytes.len() && is_break(at)),
        Look::EndCRLF => at == bytes.len(),
        Look::StartLF => at == 0 || (at < bytes.len() && is_break(at - 1)),
        Look::EndLF => at == bytes.len() || is_break(at),
        other => looks.matches(other, bytes, at),
    }
}
