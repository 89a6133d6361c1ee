//! Views of a run: the state that faces show.

use crate::{Activity, Fork, ForkMode, InterruptKind, NodeId, Parent, Planned, RunId, StepId, Timestamp};

use super::{Active, Artifact, Child, Open, Pending, Phase, Run, Wait};

/// The interrupt that a run waits for, as faces show it.
#[derive(Debug, Clone, Copy)]
pub struct OpenInterrupt<'a> {
    pub node: &'a NodeId,
    pub ordinal: u32,
    /// Where the interrupt was opened.
    pub asked: Asked<'a>,
}

/// Where an interrupt was opened.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// In this run.
    Here(&'a Open),
    /// In a child run, with the kind and id of its interrupt. The id begins with the execution that mirrors
    /// it.
    Child(&'a RunId, InterruptKind, &'a str),
}

/// The text that a node is streaming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streaming<'a> {
    pub step: StepId,
    /// How many artifacts the execution made before.
    pub number: u32,
    /// The type and the human-readable name of the artifact that the text becomes part of.
    pub artifact: Option<(&'a str, &'a str)>,
    /// The text streamed so far.
    pub text: &'a str,
    /// Whether the last chunk has come.
    pub is_whole: bool,
}

impl OpenInterrupt<'_> {
    /// The execution that waits.
    #[must_use]
    pub fn step(&self) -> StepId {
        StepId {
            node: self.node.clone(),
            ordinal: self.ordinal,
        }
    }

    #[must_use]
    pub fn kind(&self) -> InterruptKind {
        match self.asked {
            Asked::Here(open) => open.kind,
            Asked::Child(_, kind, _) => kind,
        }
    }

    /// The id and key of the interrupt. The id of a child's interrupt begins with the path to the child:
    /// `sub:0/gate:0`.
    #[must_use]
    pub fn id(&self) -> String {
        match self.asked {
            Asked::Here(open) => self.step().interrupt(open.number),
            Asked::Child(_, _, id) => id.to_owned(),
        }
    }
}

impl Run {
    /// The scope of what its agents remember, unless a node names another one: that of its parent if it shares
    /// it, else its own.
    #[must_use]
    pub fn memory_scope(&self, own: &RunId) -> String {
        match &self.started {
            Some(started) => started.memory_scope(own),
            None => own.memory_scope(),
        }
    }

    /// The artifact with this id, or the latest artifact of the node with this id.
    #[must_use]
    pub fn artifact(&self, id: &str) -> Option<&Artifact> {
        let newest = || self.artifacts.iter().rev();
        newest()
            .find(|artifact| artifact.id == id)
            .or_else(|| newest().find(|artifact| artifact.node() == Some(id)))
    }

    /// The texts that nodes are streaming now, in the order of the definition.
    pub fn streaming<'a>(&'a self, plan: &'a dyn Planned) -> impl Iterator<Item = Streaming<'a>> {
        self.nodes.iter().enumerate().filter_map(|(position, state)| {
            let Phase::Active(active) = &state.phase else {
                return None;
            };
            let streamed = active.streamed.as_ref()?;
            Some(Streaming {
                step: StepId {
                    node: plan.node(position).clone(),
                    ordinal: active.ordinal,
                },
                number: active.n_artifacts,
                artifact: plan.artifact(position),
                text: &streamed.text,
                is_whole: streamed.is_whole,
            })
        })
    }

    /// `None` if this run is not a child. The fork of a child is none: nobody waits for it.
    #[must_use]
    pub fn parent(&self) -> Option<&Parent> {
        let started = self.started.as_ref().filter(|started| started.fork.is_none());
        started.and_then(|started| started.parent.as_ref())
    }

    /// Where the run was forked from.
    #[must_use]
    pub fn fork(&self) -> Option<&Fork> {
        self.started.as_ref().and_then(|started| started.fork.as_ref())
    }

    /// Whether the run is a replay, which calls nobody.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.fork().is_some_and(|fork| fork.mode == ForkMode::Replay)
    }

    /// Whether the run is a fork that still takes from its source.
    #[must_use]
    pub fn is_catching_up(&self) -> bool {
        let forked = self.forked.as_ref();
        forked.is_some_and(|forked| !forked.has_caught_up) && !self.status.is_terminal()
    }

    /// The first open interrupt, here or in a child.
    #[must_use]
    pub fn interrupt<'a>(&'a self, plan: &'a dyn Planned) -> Option<OpenInterrupt<'a>> {
        self.interrupts(plan).next()
    }

    /// All open interrupts, in the order in which they were opened.
    pub fn interrupts<'a>(&'a self, plan: &'a dyn Planned) -> impl Iterator<Item = OpenInterrupt<'a>> {
        let active = self
            .waiting
            .iter()
            .filter_map(|&position| match &self.nodes[position].phase {
                Phase::Active(active) => Some((plan.node(position), active)),
                Phase::Idle | Phase::Completed | Phase::Failed(_) | Phase::Skipped | Phase::Cancelled => None,
            });
        active.flat_map(|(node, active)| {
            let (own, members) = match &active.wait {
                Wait::Interrupt(open) => (Some(Asked::Here(open)), &[][..]),
                Wait::Children(members) => (None, members.as_slice()),
                Wait::Effect(pending) => (pending.question.as_deref().map(Asked::Here), &[][..]),
                Wait::Work | Wait::Retry { .. } => (None, &[][..]),
            };
            let mirrored = members.iter().filter_map(|member| {
                let (kind, id) = member.mirror.as_ref()?;
                Some(Asked::Child(&member.run, *kind, id))
            });
            own.into_iter().chain(mirrored).map(|asked| OpenInterrupt {
                node,
                ordinal: active.ordinal,
                asked,
            })
        })
    }

    /// Whether a step is under way.
    #[must_use]
    pub fn is_active(&self, plan: &dyn Planned, step: &StepId) -> bool {
        let state = plan
            .position(&step.node)
            .and_then(|position| self.nodes.get(position));
        state.is_some_and(|state| match &state.phase {
            Phase::Active(active) => active.ordinal == step.ordinal,
            Phase::Idle | Phase::Completed | Phase::Failed(_) | Phase::Skipped | Phase::Cancelled => false,
        })
    }

    /// Whether an attempt of a step waits for its call.
    #[must_use]
    pub fn awaits_call(&self, plan: &dyn Planned, step: &StepId, attempt: u32) -> bool {
        self.call(plan, step, attempt).is_some()
    }

    /// How many calls of an execution have ended, after which it went on.
    #[must_use]
    pub fn n_calls(&self, plan: &dyn Planned, step: &StepId) -> Option<u32> {
        let position = plan.position(&step.node)?;
        match &self.nodes.get(position)?.phase {
            Phase::Active(active) if active.ordinal == step.ordinal => Some(active.n_calls),
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        }
    }

    /// The call that an attempt of a step waits for.
    #[must_use]
    pub fn call(&self, plan: &dyn Planned, step: &StepId, attempt: u32) -> Option<&Pending> {
        let position = plan.position(&step.node)?;
        match &self.nodes.get(position)?.phase {
            Phase::Active(Active {
                ordinal,
                attempt: current,
                wait: Wait::Effect(pending),
                ..
            }) if (*ordinal, *current) == (step.ordinal, attempt) => Some(pending),
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        }
    }

    /// The children of this run, oldest first. A branch has those of its source whose ends it has got, and none that its
    /// source waited for where it left.
    pub fn own_children(&self) -> impl DoubleEndedIterator<Item = &Child> {
        // Those that the source waits for are dropped once the branch goes its own way.
        let is_beginning = self
            .fork()
            .is_some_and(|fork| fork.mode == ForkMode::Branch && !self.has_caught_up());
        let is_own = move |child: &&Child| match is_beginning {
            true => child.ended && !child.is_left,
            false => !child.is_of_source,
        };
        self.children.iter().filter(is_own)
    }

    fn has_caught_up(&self) -> bool {
        self.forked.is_none_or(|forked| forked.has_caught_up)
    }

    /// What the ids of a child's interrupts begin with; see [`super::Child::path`].
    #[must_use]
    pub fn path_to(&self, child: &RunId) -> Option<String> {
        let mut children = self.children.iter().rev();
        children.find(|known| known.run == *child).map(Child::path)
    }

    /// The calls that wait for a worker, with their step and attempt, in the order of the definition.
    pub fn activities<'a>(
        &'a self,
        plan: &'a dyn Planned,
    ) -> impl Iterator<Item = (StepId, u32, &'a Activity)> {
        let calls = self.pending_calls(plan);
        calls
            .filter_map(|(step, active, pending)| Some((step, active.attempt, &**pending.activity.as_ref()?)))
    }

    /// The calls of a type that steps wait for: the step, the attempt, and how many calls the step had made before.
    pub fn calls_of<'a>(
        &'a self,
        plan: &'a dyn Planned,
        provider: &'a str,
    ) -> impl Iterator<Item = (StepId, u32, u32)> {
        let calls = self.pending_calls(plan);
        let calls = calls.filter(move |(_, _, pending)| pending.provider == provider);
        calls.map(|(step, active, _)| (step, active.attempt, active.n_calls))
    }

    /// The steps that wait for the outcome of a call, with what they wait for.
    fn pending_calls<'a>(
        &'a self,
        plan: &'a dyn Planned,
    ) -> impl Iterator<Item = (StepId, &'a Active, &'a Pending)> {
        self.nodes.iter().enumerate().filter_map(|(position, state)| {
            let Phase::Active(active) = &state.phase else {
                return None;
            };
            let Wait::Effect(pending) = &active.wait else {
                return None;
            };
            let step = StepId {
                node: plan.node(position).clone(),
                ordinal: active.ordinal,
            };
            Some((step, active, &**pending))
        })
    }

    /// The ordinal of the node's latest execution.
    #[must_use]
    pub fn latest_ordinal(&self, plan: &dyn Planned, node: &NodeId) -> Option<u32> {
        let state = self.nodes.get(plan.position(node)?)?;
        state.next_ordinal.checked_sub(1)
    }

    /// Each node that has started, with the name of its state and the number of its executions.
    pub fn node_states<'a>(
        &'a self,
        plan: &'a dyn Planned,
    ) -> impl Iterator<Item = (&'a NodeId, &'static str, u32)> {
        self.nodes.iter().enumerate().filter_map(|(position, state)| {
            let word = match &state.phase {
                Phase::Idle => return None,
                Phase::Active(active) => match active.wait {
                    Wait::Interrupt(_) => "suspended",
                    Wait::Effect(ref pending) if pending.question.is_some() => "suspended",
                    Wait::Children(_) | Wait::Work | Wait::Effect(_) => "running",
                    Wait::Retry { .. } => "retrying",
                },
                Phase::Completed => "completed",
                Phase::Failed(_) => "failed",
                Phase::Skipped => "skipped",
                Phase::Cancelled => "cancelled",
            };
            Some((plan.node(position), word, state.next_ordinal))
        })
    }

    /// The node that a client would call current: the first that waits, else the first that is active.
    #[must_use]
    pub fn current_node<'a>(&self, plan: &'a dyn Planned) -> Option<&'a NodeId> {
        let position = self.waiting.first().copied().or_else(|| {
            self.nodes
                .iter()
                .position(|state| matches!(state.phase, Phase::Active(_)))
        })?;
        Some(plan.node(position))
    }

    /// When the run reaches its duration limit if it keeps running; `None` without a limit or while it is not
    /// running.
    #[must_use]
    pub fn duration_deadline(&self) -> Option<Timestamp> {
        let limit = self.started.as_ref()?.limits.run_duration_ms?;
        Some(
            self.running_since?
                .plus_millis(limit.saturating_sub(self.active_ms)),
        )
    }
}
