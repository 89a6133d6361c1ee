//! Selects the open interrupt that a message answers: the one it names, or the only one its sender can mean.
//!
//! A message that names none is accepted only if a single interrupt is open, and nobody else has resolved one
//! since the sender's last message or, if this process remembers it, the sender's last read. Otherwise
//! "approve" could approve something that the sender never saw.

use serde::Deserialize;
use wopr_app::{AskedAt, Looked, View};
use wopr_core::{NodeId, Seq};
use wopr_wire::a2a::{error::A2aError, model::Message};

use super::{
    answer::{self, Selector},
    error::Error,
    history,
    question::Question,
    send::name_of,
    service::Service,
};
use crate::{auth::Caller, tokens::Claims};

/// Maximum number of messages to search for the sender's last one.
const MAX_MESSAGES: usize = 100;

/// The field in which a message names its interrupt.
const FIELD: &str = "message.metadata.openwop.interrupt";

impl Service {
    /// Selects the open interrupt that a message answers.
    pub(super) async fn meant(
        &self,
        caller: &Caller,
        view: &View,
        open: Vec<Question>,
        message: &Message,
    ) -> Result<Question, Error> {
        let ids: Vec<_> = open.iter().map(|question| question.waiting.id()).collect();
        let refused = |why: &str| A2aError::invalid_param(FIELD, format!("{why} {}", ids.join(", ")));
        let unknown = || refused("names no open interrupt, which are");
        let Selector {
            interrupt,
            node,
            token,
        } = answer::selector(message)?;
        let node = match &node {
            None => None,
            Some(node) => Some(NodeId::parse(node).map_err(|_| unknown())?),
        };
        let claims = token.as_ref().map(|token| self.claims_of(token)).transpose()?;
        let mut fitting = open.into_iter().filter(|question| {
            let Question { waiting, asked, .. } = question;
            interrupt.as_ref().is_none_or(|id| waiting.id() == *id)
                && node.as_ref().is_none_or(|node| waiting.step.node == *node)
                && claims
                    .as_ref()
                    .is_none_or(|claims| is_for(claims, asked.as_ref()))
        });
        let Some(meant) = fitting.next() else {
            return Err(unknown().into());
        };
        if fitting.next().is_some() {
            return Err(refused("must name by interruptId which question the message answers:").into());
        }
        drop(fitting);
        if interrupt.is_none()
            && token.is_none()
            && self.is_stale(caller, view, &meant, node.as_ref()).await?
        {
            let why = "must name the question by interruptId, since another was settled after its sender last \
                       looked; open are";
            return Err(refused(why).into());
        }
        Ok(meant)
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

    /// Returns `true` if somebody else has resolved an interrupt since the caller last looked.
    async fn is_stale(
        &self,
        caller: &Caller,
        view: &View,
        meant: &Question,
        node: Option<&NodeId>,
    ) -> Result<bool, Error> {
        let looked = Looked {
            caller,
            node,
            said: self.last_said(caller, view).await?,
        };
        Ok(self.host.app().is_stale(view, &meant.way, looked).await?)
    }

    /// The head of the log when the caller's last message was accepted.
    async fn last_said(&self, caller: &Caller, view: &View) -> Result<Seq, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Said {
            message_id: String,
        }
        let rows = self.host.app().messages(&view.key, MAX_MESSAGES).await?;
        let own = rows.iter().filter(|row| {
            let said = serde_json::from_slice::<Said>(&row.body);
            said.is_ok_and(|said| history::is_named(row, &name_of(caller, &said.message_id)))
        });
        Ok(own.map(|row| row.seq).max().unwrap_or_default())
    }
}

/// Returns `true` if the token belongs to this interrupt.
fn is_for(claims: &Claims, asked: Option<&AskedAt>) -> bool {
    asked.is_some_and(|asked| {
        asked.key == claims.key && asked.step.node == claims.node && asked.step.ordinal == claims.ordinal
    })
}
