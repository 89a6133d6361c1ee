//! Answers interrupts.

use serde_json::Value;
use wopr_core::{Authority, Command, Membership, NodeId, PrincipalId, Refusal, Resolve, RunKey, Seq};
use wopr_engine::{Done, Opened, SideRows, View};

use crate::{App, AskedAt, Caller, Error, Forbidden, Scope, Selector, Unselected, VisibleRun};

/// An answer to the question that a node of a run shows.
#[derive(Debug)]
pub struct NodeAnswer {
    /// The id of the node, as the client sent it.
    pub node: String,
    /// The id of the question; `None` for the only one.
    pub interrupt: Option<String>,
    pub value: Value,
    /// The principal in whose name the answer counts, if it is not the caller.
    pub voter: Option<Voter>,
}

/// A principal in whose name somebody else answers.
#[derive(Debug)]
pub struct Voter {
    pub principal: String,
    pub membership: Membership,
}

/// Why an answer to a node did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum NodeAnswerError {
    /// The caller may not answer in the name of others.
    #[error("answer for another principal: {0}")]
    NotTheVoter(Forbidden),
    /// The node shows several questions, with these ids.
    #[error("select one of several questions")]
    Ambiguous(Vec<String>),
    /// The host does not know that the caller saw this question.
    #[error("answer a question that the caller may not have seen")]
    Changed(String),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl App {
    /// Answers the question that a node of a run shows. If a child asks, the answer is forwarded to it.
    pub async fn answer_at_node(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        answer: NodeAnswer,
        side_rows: SideRows,
    ) -> Result<Done, NodeAnswerError> {
        caller.require(Scope::ApprovalsRespond).map_err(Error::from)?;
        let NodeAnswer {
            node,
            interrupt,
            value,
            voter,
        } = answer;
        if let Some(voter) = &voter {
            self.require_voting(caller)?;
            if PrincipalId::parse(&voter.principal).is_err() {
                let rule = "voter must be 1 to 256 characters without spaces".to_owned();
                return Err(Error::from(Refusal::InvalidAnswer(rule)).into());
            }
        }
        let node = NodeId::parse(&node).map_err(|_| Error::from(Refusal::NoInterrupt))?;
        // A repeated answer means the question that the first one found.
        if interrupt.is_none()
            && let Some(once) = &side_rows.idempotency
            && let Some(done) = self.replay(once).await?
        {
            return Ok(done);
        }
        let opened = self.open(run).await?;
        let interrupt = match interrupt {
            Some(id) => id,
            None => self.interrupt_meant(caller, opened.view(), &node).await?,
        };
        let (voter, membership) = match voter {
            Some(voter) => (Some(voter.principal), voter.membership),
            None => (None, (*caller.membership).clone()),
        };
        let resolve = Resolve {
            node,
            ordinal: None,
            interrupt: Some(interrupt),
            value,
            by: caller.principal.clone(),
            voter,
            authority: Authority::Credential(membership),
            is_untrusted: false,
        };
        Ok(self.resolve_opened(opened, resolve, side_rows).await?)
    }

    /// Answers a question that [`Self::select_question`] found in `shown_by`. The answer goes directly to the
    /// run that asks, and only to this question: the run may have asked another one by now.
    pub async fn answer_question(
        &self,
        caller: &Caller,
        shown_by: Opened,
        asked: &AskedAt,
        value: Value,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::ApprovalsRespond)?;
        let opened = if asked.key == shown_by.view().key {
            shown_by
        } else {
            // Nothing large is held while another run waits for room.
            drop(shown_by);
            self.open(&asked.key).await?
        };
        let resolve = Resolve {
            node: asked.step.node.clone(),
            ordinal: None,
            interrupt: Some(asked.id()),
            value,
            by: caller.principal.clone(),
            voter: None,
            authority: Authority::Credential((*caller.membership).clone()),
            is_untrusted: true,
        };
        self.resolve_opened(opened, resolve, side_rows).await
    }

    /// Answers in the name of a token's holder. The protocol face has verified the token.
    pub async fn answer_by_token(
        &self,
        run: &VisibleRun,
        answer: Resolve,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        let interrupt = answer.interrupt.clone();
        let done = self.command(run, Command::Resolve(answer), side_rows).await;
        self.say_what_settled(run, interrupt, done).await
    }

    /// Stores messages of a run beside its log, for an answer that went to one of its children.
    pub async fn keep_messages(&self, run: &VisibleRun, side_rows: SideRows) -> Result<(), Error> {
        self.command(run, Command::RunMessages(Vec::new()), side_rows)
            .await?;
        Ok(())
    }

    async fn resolve_opened(
        &self,
        opened: Opened,
        resolve: Resolve,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        let (run, interrupt) = (opened.view().key.clone(), resolve.interrupt.clone());
        let command = Command::Resolve(resolve);
        let done = self.engine.command_opened(opened, command, side_rows).await;
        self.say_what_settled(&run, interrupt, done.map_err(Error::from))
            .await
    }

    /// Replaces the refusal of an answer that comes too late by what happened to its question.
    async fn say_what_settled(
        &self,
        run: &RunKey,
        interrupt: Option<String>,
        done: Result<Done, Error>,
    ) -> Result<Done, Error> {
        match (done, interrupt) {
            (Err(Error::Refused(Refusal::AlreadyResolved | Refusal::Terminal(_))), Some(interrupt)) => {
                Err(Error::Settled(self.settled_in(run, &interrupt).await?))
            }
            (done, _) => done,
        }
    }

    /// Finds the interrupt for an answer that names only its node. The answer is bound to this interrupt, so it
    /// cannot reach one that is opened meanwhile.
    async fn interrupt_meant(
        &self,
        caller: &Caller,
        view: &View,
        node: &NodeId,
    ) -> Result<String, NodeAnswerError> {
        let selector = Selector {
            node: Some(node),
            ..Selector::default()
        };
        let said = std::future::ready(Ok(Seq(0)));
        match self.select_question(caller, view, selector, said).await {
            Ok(selected) => Ok(selected.question.waiting.id()),
            // The run refuses the answer with the right error: the question of the node's latest execution is closed,
            // or the node never asked.
            Err(Unselected::NoneFits { .. }) => {
                let latest = view.run.latest_ordinal(&view.plan, node).unwrap_or(u32::MAX);
                Ok(format!("{node}:{latest}"))
            }
            Err(Unselected::Ambiguous { fitting, .. }) => Err(NodeAnswerError::Ambiguous(fitting)),
            Err(Unselected::Changed { fitting, .. }) => Err(NodeAnswerError::Changed(fitting)),
            Err(Unselected::Failed(error)) => Err(error.into()),
        }
    }

    /// Requires that the caller may answer in the name of others. A caller who manages keys could create a key
    /// for them anyway.
    fn require_voting(&self, caller: &Caller) -> Result<(), NodeAnswerError> {
        if self.options.open_voting {
            return Ok(());
        }
        caller
            .require(Scope::KeysManage)
            .map_err(NodeAnswerError::NotTheVoter)
    }
}
