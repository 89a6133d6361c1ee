//! Answers interrupts.
//!
//! An answer to an approval may name the principal whose vote it is, as `voter`. It is read here for all protocol
//! faces, once the kind of the question is known: in an answer to any other question, `voter` is a member like any
//! other. The kernel refuses an approval whose `voter` is not the one for whom it counts, so none is ignored.

use serde_json::Value;
use wopr_core::{
    Authority, Command, InterruptKind, Membership, NodeId, PrincipalId, Refusal, Resolve, RunKey, Seq,
};
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
}

/// An answer that comes with a token instead of a credential.
#[derive(Debug)]
pub struct TokenAnswer {
    pub node: NodeId,
    /// The id of the question, in the run that asks.
    pub interrupt: String,
    pub value: Value,
    /// Who is recorded as the answerer.
    pub by: PrincipalId,
    /// The principal for whom the token votes, so that a caller who obtains a token gets no second vote.
    pub holder: PrincipalId,
    /// Whether the question names a role or group of the holder.
    pub is_member: bool,
}

/// Why an answer does not count for the voter that it names.
enum NotTheVoter {
    Forbidden(Forbidden),
    Invalid(Refusal),
}

impl From<NotTheVoter> for NodeAnswerError {
    fn from(error: NotTheVoter) -> Self {
        match error {
            NotTheVoter::Forbidden(forbidden) => Self::NotTheVoter(forbidden),
            NotTheVoter::Invalid(refusal) => Self::Failed(refusal.into()),
        }
    }
}

impl From<NotTheVoter> for Error {
    fn from(error: NotTheVoter) -> Self {
        match error {
            NotTheVoter::Forbidden(forbidden) => forbidden.into(),
            NotTheVoter::Invalid(refusal) => refusal.into(),
        }
    }
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
        } = answer;
        let node = NodeId::parse(&node).map_err(|_| Error::from(Refusal::NoInterrupt))?;
        // A repeated answer means the question that the first one found.
        if interrupt.is_none()
            && let Some(once) = &side_rows.idempotency
            && let Some(done) = self.replay(once).await?
        {
            return Ok(done);
        }
        let opened = self.open(run).await?;
        let (interrupt, kind) = match interrupt {
            // Only an answer that names a voter depends on the kind.
            Some(id) if named_voter(&value).is_some() => {
                let question = self.question_at_node(opened.view(), node.as_str(), Some(&id));
                let kind = question.await?.map(|question| question.waiting.kind);
                (id, kind)
            }
            Some(id) => (id, None),
            None => self.interrupt_meant(caller, opened.view(), &node).await?,
        };
        let (voter, membership) = self.voter(caller, kind, &value)?;
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
        let (voter, membership) = self.voter(caller, Some(asked.kind), &value)?;
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
            voter,
            authority: Authority::Credential(membership),
            is_untrusted: true,
        };
        self.resolve_opened(opened, resolve, side_rows).await
    }

    /// Answers in the name of a token's holder. The protocol face has verified the token.
    pub async fn answer_by_token(
        &self,
        run: &VisibleRun,
        answer: TokenAnswer,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        let TokenAnswer {
            node,
            interrupt,
            value,
            mut by,
            mut holder,
            is_member,
        } = answer;
        if self.options.open_voting
            && let Some(name) = named_voter(&value)
            && self.is_open_approval(run, &interrupt).await?
        {
            by = principal(name)?;
            holder.clone_from(&by);
        }
        let resolve = Resolve {
            node,
            ordinal: None,
            interrupt: Some(interrupt.clone()),
            value,
            by,
            voter: Some(holder.to_string()),
            authority: Authority::Token { is_member },
            is_untrusted: true,
        };
        let done = self.command(run, Command::Resolve(resolve), side_rows).await;
        self.say_what_settled(run, Some(interrupt), done).await
    }

    async fn is_open_approval(&self, run: &VisibleRun, interrupt: &str) -> Result<bool, Error> {
        let view = self.view(run).await?.ok_or(Error::NoRun)?;
        let mut open = view.run.interrupts(&view.plan);
        Ok(open.any(|open| open.id() == interrupt && open.kind() == InterruptKind::Approval))
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
    /// cannot reach one that is opened meanwhile. Its kind is `None` if it is not open.
    async fn interrupt_meant(
        &self,
        caller: &Caller,
        view: &View,
        node: &NodeId,
    ) -> Result<(String, Option<InterruptKind>), NodeAnswerError> {
        let selector = Selector {
            node: Some(node),
            ..Selector::default()
        };
        let said = std::future::ready(Ok(Seq(0)));
        match self.select_question(caller, view, selector, said).await {
            Ok(selected) => {
                let waiting = selected.question.waiting;
                Ok((waiting.id(), Some(waiting.kind)))
            }
            // The run refuses the answer with the right error: the question of the node's latest execution is closed,
            // or the node never asked.
            Err(Unselected::NoneFits { .. }) => {
                let latest = view.run.latest_ordinal(&view.plan, node).unwrap_or(u32::MAX);
                Ok((format!("{node}:{latest}"), None))
            }
            Err(Unselected::Ambiguous { fitting, .. }) => Err(NodeAnswerError::Ambiguous(fitting)),
            Err(Unselected::Changed { fitting, .. }) => Err(NodeAnswerError::Changed(fitting)),
            Err(Unselected::Failed(error)) => Err(error.into()),
        }
    }

    /// The principal in whose name an answer to a question of this kind counts, if it is not the caller; and the roles
    /// and groups with which it counts.
    fn voter(
        &self,
        caller: &Caller,
        kind: Option<InterruptKind>,
        value: &Value,
    ) -> Result<(Option<String>, Membership), NotTheVoter> {
        let named = named_voter(value)
            .filter(|name| kind == Some(InterruptKind::Approval) && *name != caller.principal.as_str());
        let Some(name) = named else {
            return Ok((None, (*caller.membership).clone()));
        };
        // A caller who manages keys could create a key for the voter anyway.
        if !self.options.open_voting {
            caller
                .require(Scope::KeysManage)
                .map_err(NotTheVoter::Forbidden)?;
        }
        let voter = principal(name).map_err(NotTheVoter::Invalid)?;
        let membership = self.principals.membership(&caller.tenant, &voter);
        Ok((Some(voter.to_string()), membership))
    }
}

/// The voter that an answer names, if it answers an approval.
fn named_voter(value: &Value) -> Option<&str> {
    value.get("voter").and_then(Value::as_str)
}

fn principal(name: &str) -> Result<PrincipalId, Refusal> {
    PrincipalId::parse(name)
        .map_err(|_| Refusal::InvalidAnswer("voter must be 1 to 256 characters without spaces".to_owned()))
}
