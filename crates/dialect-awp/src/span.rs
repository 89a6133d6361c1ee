//! Where in a parallel node a token is.

use serde::{Deserialize, Serialize};
use wopr_kernel::Planned;

use crate::{definition::Kind, plan::Plan, state::State, walk::Branch};

/// The branch of a parallel node that is walked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParallelSpan {
    pub parallel_node_id: String,
    pub join_target_id: String,
    pub branch_name: String,
    pub branch_entry_node_id: String,
}

/// The innermost branch that the node is in at which a token is.
#[must_use]
pub(crate) fn of(plan: &Plan, state: &State, node: usize) -> Option<ParallelSpan> {
    let branch = state.walk.branch_of(node)?;
    of_branch(plan, branch)
}

pub(crate) fn of_branch(plan: &Plan, Branch { fork, index }: Branch) -> Option<ParallelSpan> {
    let Kind::Parallel { branches, .. } = &plan.at(fork).kind else {
        return None;
    };
    let branch = branches.get(index)?;
    let join = plan.graph.next[fork]?;
    Some(ParallelSpan {
        parallel_node_id: plan.node(fork).to_string(),
        join_target_id: plan.node(join).to_string(),
        branch_name: branch.name.clone(),
        branch_entry_node_id: branch.entry.clone(),
    })
}
