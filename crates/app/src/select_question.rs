//! Selects the open question that an answer means: the one it names, or the only one its sender can mean.
//!
//! An answer that names none is accepted only if a single question fits, and nobody else has settled one since
//! its sender last looked, as far as this process knows. Otherwise "approve" could approve something that the
//! sender never saw. Questions of child runs count where the run shows them.

use std::future::Future;

use wopr_core::{NodeId, RunKey, Seq, StepId};
use wopr_engine::View;

use crate::{
    App, Caller, Error, MAX_SHOWN, Question,
    staleness::{Among, Looked, is_stale},
};

/// What an answer says about its question. Empty if it means the only one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selector<'a> {
    /// The id of the question, as the run shows it.
    pub id: Option<&'a str>,
    /// The node of the run that shows the question.
    pub node: Option<&'a NodeId>,
    /// The execution that asks and the number of its interrupt, from an interrupt token.
    pub execution: Option<(&'a RunKey, &'a StepId, u32)>,
}

/// The question that an answer means.
#[derive(Debug)]
pub struct Selected {
    pub question: Question,
    /// The run asks nothing else.
    pub is_only: bool,
}

/// The reason that no question was selected. `open` lists the ids of all open questions.
#[derive(Debug, thiserror::Error)]
pub enum Unselected {
    #[error("find an open question that the answer fits")]
    NoneFits { open: Vec<String> },
    #[error("select one of several questions")]
    Ambiguous { fitting: Vec<String>, open: Vec<String> },
    /// Somebody else has settled a question since the caller looked, or the host does not know when the caller
    /// looked.
    #[error("select a question that the caller may not have seen")]
    Changed { fitting: String, open: Vec<String> },
    #[error(transparent)]
    Failed(#[from] Error),
}

impl App {
    /// Selects the open question of a run that an answer means. `said` is the end of the run's log when the
    /// caller's last message was accepted; it is awaited only if it matters.
    pub async fn select_question(
        &self,
        caller: &Caller,
        view: &View,
        selector: Selector<'_>,
        said: impl Future<Output = Result<Seq, Error>>,
    ) -> Result<Selected, Unselected> {
        let Selector { id, node, execution } = selector;
        let mut questions = self.questions_shown_at(view, node).await?;
        let is_only = questions.len() == 1 && view.run.interrupts(&view.plan).count() == 1;
        let ids: Vec<_> = questions.iter().map(|question| question.waiting.id()).collect();
        let fits = |question: &Question| {
            let asked = question.asked.as_ref();
            let is_executed = |(run, step, number): (&RunKey, &StepId, u32)| {
                asked.is_some_and(|asked| asked.key == *run && asked.step == *step && asked.number == number)
            };
            id.is_none_or(|id| question.waiting.id() == id) && execution.is_none_or(is_executed)
        };
        questions.retain(fits);
        let open = async || match node {
            None => Ok(ids),
            Some(_) => {
                let all = self.open_questions(view).await?.into_iter();
                Ok(all.map(|question| question.waiting.id()).collect())
            }
        };
        let question = match questions.len() {
            1 => questions.remove(0),
            0 => {
                return Err(open()
                    .await
                    .map_or_else(Unselected::Failed, |open| Unselected::NoneFits { open }));
            }
            _ => {
                let fitting = questions.iter().map(|question| question.waiting.id()).collect();
                let open = open().await?;
                return Err(Unselected::Ambiguous { fitting, open });
            }
        };
        // An answer to a question that was just settled is refused anyway.
        if id.is_none() && execution.is_none() && question.asked.is_some() {
            let looked = Looked {
                caller,
                among: node.map_or(Among::All, Among::At),
                said: said.await?,
            };
            let is_stale = is_stale(&self.engine, &self.last_reads, view, &question.way, looked).await;
            if is_stale.map_err(Error::from)? {
                let (fitting, open) = (question.waiting.id(), open().await?);
                return Err(Unselected::Changed { fitting, open });
            }
        }
        Ok(Selected { question, is_only })
    }

    /// Returns `true` if a caller that answers the one question it is shown may mean another one than this: if somebody
    /// else has settled one since it last looked or answered, if it was shown another one then, or if it repeats an
    /// answer whose outcome it was not shown.
    pub async fn may_mean_another(
        &self,
        caller: &Caller,
        view: &View,
        question: &Question,
    ) -> Result<bool, Error> {
        let looked = Looked {
            caller,
            among: Among::Answered {
                id: &question.waiting.id(),
            },
            said: Seq(0),
        };
        Ok(is_stale(&self.engine, &self.last_reads, view, &question.way, looked).await?)
    }

    /// The first open question shown at a node that has the given id, if any is given.
    pub async fn question_at_node(
        &self,
        view: &View,
        node: &str,
        id: Option<&str>,
    ) -> Result<Option<Question>, Error> {
        let Ok(node) = NodeId::parse(node) else {
            return Ok(None);
        };
        let mut questions = self.questions_shown_at(view, Some(&node)).await?.into_iter();
        let is_meant =
            |question: &Question| question.asked.is_some() && id.is_none_or(|id| question.waiting.id() == id);
        Ok(questions.find(is_meant))
    }

    /// The open questions shown at a node, or at any node.
    async fn questions_shown_at(&self, view: &View, node: Option<&NodeId>) -> Result<Vec<Question>, Error> {
        let mut questions = Vec::new();
        for open in view.run.interrupts(&view.plan) {
            if questions.len() >= MAX_SHOWN {
                break;
            }
            if node.is_none_or(|node| open.node == node) {
                questions.extend(self.questions_at(view, &open).await?);
            }
        }
        questions.truncate(MAX_SHOWN);
        Ok(questions)
    }

    /// The open questions of a run, oldest first, at most [`MAX_SHOWN`].
    pub async fn open_questions(&self, view: &View) -> Result<Vec<Question>, Error> {
        self.questions_shown_at(view, None).await
    }
}
