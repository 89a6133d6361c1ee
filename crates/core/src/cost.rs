//! What work costs, and how much of it one decision may do.
//!
//! Costs are counted in units, deterministically: the same definition, run and command cost the same on every machine.
//! A unit pays for about ten nanoseconds of touching or for sixteen bytes of making, so a budget bounds processor time
//! and memory alike. Every evaluation draws on the budget of its decision, and is bounded by itself.

use std::{cell::Cell, cmp::Ordering};

use serde_json::Value;

use crate::Object;

/// The most one evaluation of an expression or a template may cost.
pub(crate) const EVALUATION: u64 = 1_000_000;
/// The most one decision may cost.
pub const MAX_DECISION_WORK: u64 = 3_000_000;
/// The least that an event costs a decision whose work is bounded by its caller: about two microseconds.
pub(crate) const EVENT: u64 = 200;
/// Past this a decision starts no further node; the next decision goes on.
pub(crate) const DECISION_PAUSE: u64 = MAX_DECISION_WORK / 2;
/// Past this a decision takes in no further run message; the next decision does.
pub(crate) const MESSAGES_PAUSE: u64 = MAX_DECISION_WORK / 10;
/// The most that a run may hold in variables, channels and outputs; more where its inputs are large.
pub(crate) const MAX_STATE: u64 = 1_500_000;
/// How often a run may hold its inputs.
pub(crate) const STATE_PER_INPUT: u64 = 4;
/// Deepest nesting that is walked; values are far less deep.
pub(crate) const MAX_DEPTH: usize = 256;

/// Bytes that a unit pays for making or comparing.
const BYTES: u64 = 16;
/// What a value costs in a list or an object: it takes 32 bytes there.
const VALUE: u64 = 2;
/// What a string costs beside its bytes: memory of its own, taken and given back.
const STRING: u64 = 2;
/// What a leaf of an object's tree costs: it has room for eleven fields and takes some 630 bytes.
const LEAF: u64 = 40;
/// Fields for which a large object has a leaf: one that was made in the order of its names has leaves that are half full,
/// and nodes above them.
const FIELDS_PER_LEAF: u64 = 5;
/// Fields that one leaf has room for.
const SMALL_OBJECT: u64 = 11;

/// The work was more than its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work exceeds its budget")]
pub(crate) struct Exhausted;

/// The budget of one decision.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    left: Cell<u64>,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            left: Cell::new(limit),
        }
    }

    /// Whether nothing is left, so that more may have been wanted than there was.
    pub(crate) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// What was spent so far.
    pub(crate) fn spent(&self) -> u64 {
        self.limit - self.left.get()
    }

    /// Pays; where there is too little left, nothing is left afterwards.
    pub(crate) fn spend(&self, units: u64) -> Result<(), Exhausted> {
        let left = self.left.get().checked_sub(units);
        self.left.set(left.unwrap_or(0));
        left.map(drop).ok_or(Exhausted)
    }

    /// The meter of one evaluation; what it counts is paid from here.
    pub(crate) fn meter(&self) -> Meter<'_> {
        let granted = self.left.get().min(EVALUATION);
        Meter {
            granted,
            left: Cell::new(granted),
            budget: Some(self),
        }
    }
}

/// Counts the work of one evaluation.
#[derive(Debug)]
pub(crate) struct Meter<'b> {
    granted: u64,
    left: Cell<u64>,
    budget: Option<&'b Budget>,
}

impl Meter<'_> {
    /// A meter outside of any decision.
    pub(crate) fn alone() -> Meter<'static> {
        Meter {
            granted: EVALUATION,
            left: Cell::new(EVALUATION),
            budget: None,
        }
    }

    /// Pays.
    pub(crate) fn charge(&self, units: u64) -> Result<(), Exhausted> {
        let left = self.left.get().checked_sub(units);
        self.left.set(left.unwrap_or(0));
        left.map(drop).ok_or(Exhausted)
    }

    /// Pays for bytes that are made or compared.
    pub(crate) fn bytes(&self, n: usize) -> Result<(), Exhausted> {
        self.charge(bytes(n))
    }

    /// Pays for values that are put into a list.
    pub(crate) fn values(&self, n: usize) -> Result<(), Exhausted> {
        self.charge((n as u64).saturating_mul(VALUE))
    }

    /// Pays for an object that is made.
    pub(crate) fn object(&self, n_fields: usize) -> Result<(), Exhausted> {
        let n_fields = n_fields as u64;
        self.charge(leaves(n_fields).saturating_add(n_fields.saturating_mul(2 * VALUE)))
    }

    /// What was spent so far.
    #[cfg(test)]
    pub(crate) fn spent(&self) -> u64 {
        self.granted - self.left.get()
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        if let Some(budget) = self.budget {
            // What was granted was there.
            let _ = budget.spend(self.granted - self.left.get());
        }
    }
}

pub(crate) fn bytes(n: usize) -> u64 {
    1 + n as u64 / BYTES
}

/// What a copy of a value costs.
pub(crate) fn of_value(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE,
        Value::String(text) => VALUE + STRING + bytes(text.len()),
        Value::Array(items) => items.iter().map(of_value).sum::<u64>() + VALUE,
        Value::Object(fields) => VALUE + of_object(fields),
    }
}

/// What a copy of an object costs.
pub(crate) fn of_object(fields: &Object) -> u64 {
    let each = |(name, field): (&String, &Value)| STRING + bytes(name.len()) + VALUE + of_value(field);
    leaves(fields.len() as u64) + fields.iter().map(each).sum::<u64>()
}

/// What the tree of an object costs.
const fn leaves(n_fields: u64) -> u64 {
    match n_fields {
        0 => 0,
        1..=SMALL_OBJECT => LEAF,
        _ => n_fields.div_ceil(FIELDS_PER_LEAF).saturating_mul(LEAF),
    }
}

/// The order of as many things, equal ones in theirs. A merge sort of ours: it ends where comparing fails, and no order
/// can upset it.
pub(crate) fn merge_sort<E>(
    n: usize,
    mut order: impl FnMut(usize, usize) -> Result<Ordering, E>,
) -> Result<Vec<usize>, E> {
    let mut sorted: Vec<usize> = (0..n).collect();
    let mut merged = Vec::with_capacity(n);
    let mut width = 1;
    while width < n {
        merged.clear();
        for run in sorted.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let ([a, after_a @ ..], [b, after_b @ ..]) = (left, right) {
                if order(*a, *b)?.is_gt() {
                    merged.push(*b);
                    right = after_b;
                } else {
                    merged.push(*a);
                    left = after_a;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut sorted, &mut merged);
        width *= 2;
    }
    Ok(sorted)
}
