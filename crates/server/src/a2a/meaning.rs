//! Reads which question a message answers, and says why a message that names none was refused. The application
//! selects the question.

use serde::Deserialize;
use wopr_app::{Error as AppError, MessageRow, Selected, Selector, Unselected, View, VisibleRun};
use wopr_core::{NodeId, Seq, StepId};
use wopr_wire::a2a::{error::A2aError, model::Message};

use super::{
    answer,
    error::Error,
    history,
    send::{answer_name, name_of},
    service::Service,
};
use crate::{auth::Caller, tokens::Claims};

/// Maximum number of messages to search for the sender's last one.
const MAX_MESSAGES: usize = 100;

/// The field in which a message names its interrupt.
const FIELD: &str = "message.metadata.openwop.interrupt";

impl Service {
    /// Selects the open question that a message answers.
    pub(super) async fn meant(
        &self,
        caller: &Caller,
        view: &View,
        message: &Message,
    ) -> Result<Selected, Error> {
        let app = self.host.app();
        let answer::Selector {
            interrupt,
            node,
            token,
        } = answer::selector(message)?;
        let Ok(node) = node.as_deref().map(NodeId::parse).transpose() else {
            let open = app.open_questions(view).await?;
            let ids: Vec<_> = open.iter().map(|question| question.waiting.id()).collect();
            return Err(unknown(&ids).into());
        };
        let claims = token.as_ref().map(|token| self.claims_of(token)).transpose()?;
        let execution = claims.map(
            |Claims {
                 key,
                 node,
                 ordinal,
                 number,
                 ..
             }| (key, StepId { node, ordinal }, number),
        );
        let selector = Selector {
            id: interrupt.as_deref(),
            node: node.as_ref(),
            execution: execution.as_ref().map(|(run, step, number)| (run, step, *number)),
        };
        let said = self.last_said(caller, view);
        let selected = app.select_question(caller, view, selector, said).await;
        selected.map_err(|error| match error {
            Unselected::NoneFits { open } => unknown(&open).into(),
            Unselected::Ambiguous { fitting: _, open } => {
                refused("must name by interruptId which question the message answers:", &open).into()
            }
            Unselected::Changed { fitting: _, open } => refused(
                "must name the question by interruptId, since another was settled after its sender last looked; \
                 open are",
                &open,
            )
            .into(),
            Unselected::Failed(error) => error.into(),
        })
    }

    fn claims_of(&self, token: &str) -> Result<Claims, A2aError> {
        let now = self.host.app().now();
        self.host.tokens().open(token, now).map_err(|_| {
            A2aError::invalid_param(
                "message.metadata.openwop.interruptToken",
                "is of no open interrupt",
            )
        })
    }

    /// The head of the log when the caller's last message was accepted.
    async fn last_said(&self, caller: &Caller, view: &View) -> Result<Seq, AppError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Said {
            message_id: String,
        }
        let is_own = |row: &MessageRow| {
            let said = serde_json::from_slice::<Said>(&row.body);
            said.is_ok_and(|said| {
                let name = name_of(caller, &said.message_id);
                history::is_named(row, [&answer_name(&name), &name])
            })
        };
        let run = VisibleRun::from(view);
        self.host.app().last_message(&run, MAX_MESSAGES, is_own).await
    }
}

fn unknown(open: &[String]) -> A2aError {
    refused("names no open interrupt, which are", open)
}

fn refused(why: &str, open: &[String]) -> A2aError {
    A2aError::invalid_param(FIELD, format!("{why} {}", open.join(", ")))
}
