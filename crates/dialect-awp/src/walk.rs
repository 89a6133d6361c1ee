//! Where the tokens of a run are.
//!
//! A run begins with one token. A parallel node puts it away and gives its branches tokens of their own: one branch after
//! another, or all of them at once. When enough branches have come to the join, the token goes on behind it, and those of
//! the other branches are gone; a branch that fails takes the parallel nodes with it whose joins cannot hold any more.
//!
//! A node is at one token at a time, and so is a parallel node until its branches have joined: another token that comes to
//! it waits before it. That bounds the tokens by the branches that the document has, and a parallel node and a branch name
//! one token. Nothing waits in a circle, because no parallel node is in a branch of its own.

use serde::{Deserialize, Serialize};

use crate::{
    definition::{Join, Kind},
    plan::Plan,
};

/// The tokens of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Walk {
    /// Whether all branches of a parallel node begin at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_together: bool,
    root: Place,
    /// The parallel nodes whose branches are walked, each after the one whose branch it is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    forks: Vec<Fork>,
}

/// A parallel node whose branches are walked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fork {
    pub(crate) node: usize,
    /// The branch that the node itself is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outer: Option<Branch>,
    pub(crate) branches: Vec<Place>,
}

/// A branch of a parallel node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Branch {
    pub(crate) fork: usize,
    pub(crate) index: usize,
}

/// How far the run or a branch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    #[default]
    NotBegun,
    /// Before a node, which starts next.
    Before(usize),
    /// At a node, which is under way.
    At(usize),
    /// In the branches of a parallel node.
    In(usize),
    Completed,
    Failed,
}

impl Place {
    pub(crate) const fn has_ended(self) -> bool {
        match self {
            Self::Completed | Self::Failed => true,
            Self::NotBegun | Self::Before(_) | Self::At(_) | Self::In(_) => false,
        }
    }
}

/// A parallel node that is left: its join holds, or cannot hold any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) fork: Fork,
    pub(crate) has_joined: bool,
}

impl Walk {
    /// Begins at a node.
    pub(crate) const fn begin(first: usize, is_together: bool) -> Self {
        Self {
            is_together,
            root: Place::Before(first),
            forks: Vec::new(),
        }
    }

    /// Whether a failure has left no way to go on.
    pub(crate) const fn has_failed(&self) -> bool {
        matches!(self.root, Place::Failed)
    }

    pub(crate) const fn is_together(&self) -> bool {
        self.is_together
    }

    /// The places of all tokens, and of branches without one, in the order of the branches.
    fn places(&self) -> impl Iterator<Item = (Option<Branch>, Place)> {
        let mut left = vec![(None, self.root)];
        std::iter::from_fn(move || {
            loop {
                let (branch, place) = left.pop()?;
                let Place::In(node) = place else {
                    return Some((branch, place));
                };
                if let Some(fork) = self.fork(node) {
                    let inner = fork.branches.iter().enumerate().rev();
                    left.extend(inner.map(|(index, place)| (Some(Branch { fork: node, index }), *place)));
                }
            }
        })
    }

    /// The node that starts next: that of the first token that is before a free one.
    pub(crate) fn next(&self, is_under_way: impl Fn(usize) -> bool) -> Option<usize> {
        self.places().find_map(|(_, place)| match place {
            Place::Before(node) if !is_under_way(node) && self.fork(node).is_none() => Some(node),
            Place::Before(_)
            | Place::NotBegun
            | Place::At(_)
            | Place::In(_)
            | Place::Completed
            | Place::Failed => None,
        })
    }

    /// Whether a token is at a node.
    pub(crate) fn is_at(&self, node: usize) -> bool {
        self.root == Place::At(node)
            || self
                .forks
                .iter()
                .any(|fork| fork.branches.contains(&Place::At(node)))
    }

    /// The branch whose token is at a node, the innermost one; `None` outside all branches.
    pub(crate) fn branch_of(&self, node: usize) -> Option<Branch> {
        self.forks.iter().find_map(|fork| {
            let index = fork.branches.iter().position(|place| *place == Place::At(node))?;
            Some(Branch {
                fork: fork.node,
                index,
            })
        })
    }

    /// Moves the first token that is before a node to it. Returns whether there is one.
    pub(crate) fn start(&mut self, node: usize) -> bool {
        let first = self.places().find(|(_, place)| *place == Place::Before(node));
        let Some((branch, _)) = first else {
            return false;
        };
        self.put(branch, Place::At(node));
        true
    }

    /// Moves the token at a node on: to the node that follows, or behind the last one.
    pub(crate) fn go_on(&mut self, plan: &Plan, node: usize, next: Option<usize>) -> Vec<Left> {
        let branch = self.branch_of(node);
        match next {
            Some(next) => self.move_to(plan, branch, next),
            None => {
                self.put(branch, Place::Completed);
                Vec::new()
            }
        }
    }

    /// A parallel node whose branches are walked.
    pub(crate) fn fork(&self, node: usize) -> Option<&Fork> {
        self.forks.iter().find(|fork| fork.node == node)
    }

    /// Gives the branches of a parallel node, at which a token is, tokens of their own.
    pub(crate) fn open(&mut self, plan: &Plan, node: usize) -> Vec<Left> {
        let outer = self.branch_of(node);
        self.put(outer, Place::In(node));
        self.forks.push(Fork {
            node,
            outer,
            branches: vec![Place::NotBegun; plan.graph.ways[node].len()],
        });
        let mut left = self.begin_next(plan, node);
        // A branch may join as it begins, and that may be enough.
        while self.is_together && self.first_not_begun(node).is_some() {
            left.extend(self.begin_next(plan, node));
        }
        left
    }

    /// Ends the branch whose token is at a node with a failure, and all parallel nodes whose joins cannot hold without it.
    /// Returns those, and the one whose `any` or `n_of_m` join can no longer hold: too few of its branches can still complete, although it does
    /// not need all.
    pub(crate) fn fail(&mut self, plan: &Plan, node: usize) -> (Vec<Left>, Option<usize>) {
        let mut branch = self.branch_of(node);
        let (mut left, mut broken) = (Vec::new(), None);
        loop {
            self.put(branch, Place::Failed);
            let Some(Branch { fork, .. }) = branch else {
                return (left, broken);
            };
            let Some(open) = self.fork(fork) else {
                return (left, broken);
            };
            let failed = open.branches.iter().filter(|place| **place == Place::Failed);
            let n_branches = open.branches.len();
            if n_branches - failed.count() >= wanted(plan, fork) {
                if !self.is_together {
                    left.extend(self.begin_next(plan, fork));
                }
                return (left, None);
            }
            if wanted(plan, fork) < n_branches {
                broken = Some(fork);
            }
            branch = self.close(fork, false, &mut left);
        }
    }

    fn first_not_begun(&self, node: usize) -> Option<usize> {
        let fork = self.fork(node)?;
        fork.branches.iter().position(|place| *place == Place::NotBegun)
    }

    /// Lets the next branch of a parallel node begin, if one is left.
    fn begin_next(&mut self, plan: &Plan, node: usize) -> Vec<Left> {
        match self.first_not_begun(node) {
            Some(index) => self.move_to(
                plan,
                Some(Branch { fork: node, index }),
                plan.graph.ways[node][index],
            ),
            None => Vec::new(),
        }
    }

    /// Moves a token before a node. If that is the join of its branch, the branch has ended there.
    fn move_to(&mut self, plan: &Plan, branch: Option<Branch>, next: usize) -> Vec<Left> {
        let (mut branch, mut next, mut left) = (branch, next, Vec::new());
        while let Some(Branch { fork, .. }) = branch {
            if plan.graph.next[fork] != Some(next) {
                break;
            }
            self.put(branch, Place::Completed);
            let Some(open) = self.fork(fork) else { return left };
            let completed = open.branches.iter().filter(|place| **place == Place::Completed);
            if completed.count() >= wanted(plan, fork) {
                // The join may be that of an outer branch, too.
                branch = self.close(fork, true, &mut left);
                continue;
            }
            let Some(index) = self.first_not_begun(fork) else {
                return left;
            };
            branch = Some(Branch { fork, index });
            next = plan.graph.ways[fork][index];
        }
        self.put(branch, Place::Before(next));
        left
    }

    fn put(&mut self, branch: Option<Branch>, place: Place) {
        match branch {
            None => self.root = place,
            Some(Branch { fork, index }) => {
                let fork = self.forks.iter_mut().find(|open| open.node == fork);
                if let Some(at) = fork.and_then(|fork| fork.branches.get_mut(index)) {
                    *at = place;
                }
            }
        }
    }

    /// Takes the tokens in a parallel node away. Returns the branch that the node is in.
    fn close(&mut self, node: usize, has_joined: bool, left: &mut Vec<Left>) -> Option<Branch> {
        let index = self.forks.iter().position(|fork| fork.node == node)?;
        let fork = self.forks.remove(index);
        let mut gone = vec![node];
        self.forks.retain(|inner| {
            let is_gone = inner.outer.is_some_and(|outer| gone.contains(&outer.fork));
            if is_gone {
                gone.push(inner.node);
            }
            !is_gone
        });
        let outer = fork.outer;
        left.push(Left { fork, has_joined });
        outer
    }
}

/// How many branches have to complete.
pub(crate) fn wanted(plan: &Plan, fork: usize) -> usize {
    match &plan.at(fork).kind {
        Kind::Parallel { join: Join::All, .. } => plan.graph.ways[fork].len(),
        Kind::Parallel { join: Join::Any, .. } => 1,
        Kind::Parallel {
            join: Join::Some(n), ..
        } => *n,
        _ => 0,
    }
}
