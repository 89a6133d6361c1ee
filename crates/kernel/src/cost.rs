//! The cost of work, and how much of it one decision may do.
//!
//! Costs are counted in units, deterministically: the same definition, run and command cost the same on every
//! machine. One unit pays for about ten nanoseconds of reading, or for sixteen bytes of allocation, so a
//! budget bounds both processor time and memory. Every evaluation draws on the budget of its decision and has
//! a limit of its own.

use std::{cell::Cell, cmp::Ordering};

use serde_json::Value;

use crate::Object;

/// Maximum cost of evaluating one expression or template.
pub const EVALUATION: u64 = 1_000_000;
/// Maximum cost of one decision.
pub const MAX_DECISION_WORK: u64 = 3_000_000;
/// Minimum cost of an event in a decision whose work the caller limits: about two microseconds.
pub const EVENT: u64 = 200;
/// Beyond this a decision starts no further node; the next decision continues.
pub const DECISION_PAUSE: u64 = MAX_DECISION_WORK / 2;
/// Beyond this a decision consumes no further run message; the next decision does.
pub const MESSAGES_PAUSE: u64 = MAX_DECISION_WORK / 10;
/// Maximum size of a run's variables, channels and outputs; larger if its inputs are large.
pub const MAX_STATE: u64 = 1_500_000;
/// A run's state may be this many times as large as its inputs.
pub const STATE_PER_INPUT: u64 = 4;
/// Maximum nesting that is walked; actual values are far less deep.
pub const MAX_DEPTH: usize = 256;

/// Bytes that one unit pays for when they are created or compared.
const BYTES: u64 = 16;
/// Cost of a value in a list or an object, where it takes 32 bytes.
const VALUE: u64 = 2;
/// Cost of a string besides its bytes: one allocation and one deallocation.
const STRING: u64 = 2;
/// Cost of one leaf of an object's tree, which has room for eleven fields and takes about 630 bytes.
const LEAF: u64 = 40;
/// Fields per leaf of a large object: if it is built in key order, its leaves are half full and have nodes
/// above them.
const FIELDS_PER_LEAF: u64 = 5;
/// Fields that fit into one leaf.
const SMALL_OBJECT: u64 = 11;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work exceeds its budget")]
pub struct Exhausted;

#[derive(Debug)]
pub struct Budget {
    limit: u64,
    left: Cell<u64>,
}

impl Budget {
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            left: Cell::new(limit),
        }
    }

    /// Whether nothing is left, in which case the work may have needed more than the budget.
    pub fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// Units spent so far.
    pub fn spent(&self) -> u64 {
        self.limit - self.left.get()
    }

    /// Charges `units`. If fewer are left, fails and leaves none.
    pub fn spend(&self, units: u64) -> Result<(), Exhausted> {
        let left = self.left.get().checked_sub(units);
        self.left.set(left.unwrap_or(0));
        left.map(drop).ok_or(Exhausted)
    }

    /// A meter for one evaluation; dropping it charges what it counted to this budget.
    pub fn meter(&self) -> Meter<'_> {
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
pub struct Meter<'b> {
    granted: u64,
    left: Cell<u64>,
    budget: Option<&'b Budget>,
}

impl Meter<'_> {
    /// A meter that belongs to no decision.
    pub fn alone() -> Meter<'static> {
        Meter {
            granted: EVALUATION,
            left: Cell::new(EVALUATION),
            budget: None,
        }
    }

    pub fn charge(&self, units: u64) -> Result<(), Exhausted> {
        let left = self.left.get().checked_sub(units);
        self.left.set(left.unwrap_or(0));
        left.map(drop).ok_or(Exhausted)
    }

    /// Charges for bytes that are created or compared.
    pub fn bytes(&self, n: usize) -> Result<(), Exhausted> {
        self.charge(bytes(n))
    }

    /// Charges for values that are put into a list.
    pub fn values(&self, n: usize) -> Result<(), Exhausted> {
        self.charge((n as u64).saturating_mul(VALUE))
    }

    /// Charges for creating an object.
    pub fn object(&self, n_fields: usize) -> Result<(), Exhausted> {
        let n_fields = n_fields as u64;
        self.charge(leaves(n_fields).saturating_add(n_fields.saturating_mul(2 * VALUE)))
    }

    /// Units spent so far.
    pub fn spent(&self) -> u64 {
        self.granted - self.left.get()
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        if let Some(budget) = self.budget {
            // The budget held everything that it granted, so this cannot fail.
            let _ = budget.spend(self.granted - self.left.get());
        }
    }
}

pub fn bytes(n: usize) -> u64 {
    1 + n as u64 / BYTES
}

/// The cost of copying a value.
pub fn of_value(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE,
        Value::String(text) => VALUE + STRING + bytes(text.len()),
        Value::Array(items) => items.iter().map(of_value).sum::<u64>() + VALUE,
        Value::Object(fields) => VALUE + of_object(fields),
    }
}

/// The cost of copying an object.
pub fn of_object(fields: &Object) -> u64 {
    let each = |(name, field): (&String, &Value)| STRING + bytes(name.len()) + VALUE + of_value(field);
    leaves(fields.len() as u64) + fields.iter().map(each).sum::<u64>()
}

/// The cost of an object's tree.
const fn leaves(n_fields: u64) -> u64 {
    match n_fields {
        0 => 0,
        1..=SMALL_OBJECT => LEAF,
        _ => n_fields.div_ceil(FIELDS_PER_LEAF).saturating_mul(LEAF),
    }
}

/// Sorts the indexes `0..n` stably. A merge sort of our own: it stops when a comparison fails, and an
/// inconsistent order cannot make it panic.
pub fn merge_sort<E>(
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
