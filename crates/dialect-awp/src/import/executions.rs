//! The histories of one import: that of the root, and those of its sub-workflows.
//!
//! Rows name executions as their engine did, and those names connect a parent with its children. Here they may get others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use wopr_kernel::{Catalog, Failure, MAX_EVENTS, NodeId, Startable, WorkflowId};

use super::{GivenChild, ImportError, next::worded};
use crate::{
    plan::Plan,
    rows::{GivenRow, GivenRows, RowError},
};

/// The most bytes of a name that an error shows.
const MAX_SHOWN: usize = 200;

/// The histories that are imported together.
#[derive(Debug)]
pub(super) struct Executions<'a> {
    plan: &'a Plan,
    root: &'a GivenRows,
    children: &'a [GivenChild<'a>],
    by_name: BTreeMap<&'a str, usize>,
}

/// A sub-workflow that the rows of its parent start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun {
    /// The row that says so.
    pub(super) row: usize,
    /// Which of the children it is.
    pub(super) child: usize,
}

impl<'a> Executions<'a> {
    /// Connects parents with their children.
    ///
    /// # Errors
    /// A row starts a child without a history, or that another row has started, or there is a history that none starts.
    pub(super) fn of(
        plan: &'a Plan,
        root: &'a GivenRows,
        children: &'a [GivenChild<'a>],
    ) -> Result<Self, ImportError> {
        let mut by_name = BTreeMap::new();
        for (index, child) in children.iter().enumerate() {
            let name = child.rows.execution.as_str();
            if name == root.execution || by_name.insert(name, index).is_some() {
                let reason = format!("there are two histories of the execution \"{name}\"");
                return Err(ImportError::whole(reason));
            }
        }
        let executions = Self {
            plan,
            root,
            children,
            by_name,
        };
        let mut begun = BTreeSet::new();
        executions.check_begun(root, &mut begun)?;
        // From the root on: children that start each other belong to nobody.
        let mut checked = BTreeSet::new();
        while let Some(next) = begun.difference(&checked).next().copied() {
            checked.insert(next);
            let rows = children[next].rows;
            executions
                .check_begun(rows, &mut begun)
                .map_err(|error| ImportError::from(error).of_child(&rows.execution))?;
        }
        match executions
            .by_name
            .iter()
            .find(|(_, child)| !begun.contains(child))
        {
            None => Ok(executions),
            Some((name, _)) => Err(ImportError::whole(format!(
                "there is a history of \"{name}\", and no row starts it as a sub-workflow"
            ))),
        }
    }

    fn check_begun(&self, rows: &GivenRows, begun: &mut BTreeSet<usize>) -> Result<(), RowError> {
        for (index, row) in rows.rows.iter().enumerate().filter(|(_, row)| starts_child(row)) {
            let name = row.text("childExecutionId").unwrap_or_default();
            let reason = match self.by_name.get(name) {
                None => format!(
                    "node \"{}\" has started the sub-workflow \"{}\": send its history along, with its definition",
                    clipped(row.node().unwrap_or_default()),
                    clipped(name)
                ),
                Some(child) if !begun.insert(*child) => {
                    format!("the sub-workflow \"{name}\" has been started by another row")
                }
                Some(_) => continue,
            };
            return Err(RowError::new(index, reason));
        }
        Ok(())
    }

    /// The children that these rows start, in their order.
    pub(super) fn begun(&self, rows: &GivenRows) -> Vec<Begun> {
        let rows = rows.rows.iter().enumerate().filter(|(_, row)| starts_child(row));
        let begun = rows.filter_map(|(row, given)| {
            let child = *self.by_name.get(given.text("childExecutionId")?)?;
            Some(Begun { row, child })
        });
        begun.collect()
    }

    pub(super) const fn root(&self) -> &'a GivenRows {
        self.root
    }

    /// The plans of the children.
    pub(super) fn plans(&self) -> impl Iterator<Item = &'a Plan> {
        self.children.iter().map(|child| child.plan)
    }

    pub(super) fn child(&self, begun: Begun) -> &'a GivenChild<'a> {
        &self.children[begun.child]
    }

    /// All histories with their plans.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'a Plan, &'a GivenRows)> {
        let children = self.children.iter().map(|child| (child.plan, child.rows));
        std::iter::once((self.plan, self.root)).chain(children)
    }

    pub(super) fn has_event(&self, name: &str) -> bool {
        let mut rows = self.all().flat_map(|(_, given)| &given.rows);
        rows.any(|row| row.is_event(name))
    }

    /// The children that a decision may start: those of these rows, from the first one on that has not started yet. Why it
    /// did not start others, the rows from the next command on say.
    pub(super) fn offered<'r>(
        &self,
        begun: &[Begun],
        rows: &'r GivenRows,
        command: Option<usize>,
    ) -> Offered<'r> {
        let next = begun.iter().take(MAX_EVENTS);
        let next = next.map(|begun| Arc::clone(&self.child(*begun).startable));
        Offered {
            next: Mutex::new(next.collect()),
            has_missed: AtomicBool::new(false),
            rows,
            failures: Mutex::new(Ok(command.unwrap_or(rows.rows.len()))),
        }
    }
}

/// A name as an error shows it. Rows may have any.
fn clipped(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_SHOWN)]
}

fn starts_child(row: &GivenRow) -> bool {
    row.is_command("StartSubworkflow")
}

/// The catalog of one decision: a workflow is the version that the next row of the history starts.
#[derive(Debug)]
pub(super) struct Offered<'r> {
    next: Mutex<Vec<Arc<dyn Startable>>>,
    has_missed: AtomicBool,
    rows: &'r GivenRows,
    /// The first row that may say why the next child did not start, or the one that cannot be read.
    failures: Mutex<Result<usize, RowError>>,
}

impl Offered<'_> {
    /// Whether a workflow was asked for of which no row starts a child.
    pub(super) fn has_missed(&self) -> bool {
        self.has_missed.load(Ordering::Relaxed)
    }

    /// Checks the rows that say why children did not start.
    pub(super) fn check(&self) -> Result<(), RowError> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.clone().map(drop)
    }
}

impl Catalog for Offered<'_> {
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<dyn Startable>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let first = next.iter().position(|child| child.workflow() == workflow);
        match first {
            Some(first) => Some(next.remove(first)),
            None => {
                self.has_missed.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    fn failure_of_start(&self, node: &NodeId, failure: Failure) -> Failure {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(next) = *failures else {
            return failure;
        };
        let mut rows = self.rows.rows.iter().enumerate().skip(next);
        let is_its = |row: &GivenRow| {
            row.is_command("FailNode") && row.node().is_none_or(|name| name == node.as_str())
        };
        let Some((index, row)) = rows.find(|(_, row)| is_its(row)) else {
            // The rows say something else than this failure, which the comparison finds.
            return failure;
        };
        match worded(index, row, failure.clone()) {
            Ok(worded) => {
                *failures = Ok(index + 1);
                worded
            }
            Err(error) => {
                *failures = Err(error);
                failure
            }
        }
    }

    fn knows(&self, workflow: &WorkflowId) -> bool {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.iter().any(|child| child.workflow() == workflow)
    }
}
