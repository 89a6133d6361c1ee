//! Which open question a message answers: the one it names, or the only one its sender can mean.
//!
//! A message that names none counts only where a single question is open and nobody else has settled one since the
//! sender's last message or, where this process remembers it, the sender's last read. Otherwise "approve" could
//! approve what its sender never saw.

use serde::Deserialize;
use wopr_core::{NodeId, Seq};
use wopr_engine::View;
use wopr_wire::a2a::{error::A2aError, model::Message};

use super::{
    answer::{self, Selector},
    binding::{self, Since},
    error::Error,
    history,
    projection::Waiting,
    question,
    send::name_of,
    service::Service,
};
use crate::auth::Caller;

/// Messages that are looked through for the sender's last one.
const MAX_MESSAGES: usize = 100;

/// Where a message names its question.
const FIELD: &str = "message.metadata.openwop.interrupt";

impl Service {
    /// The open question that a message answers.
    pub(super) async fn meant(
        &self,
        caller: &Caller,
        view: &View,
        open: &[Waiting],
        message: &Message,
    ) -> Result<Waiting, Error> {
        let refused = |why: &str| {
            let ids: Vec<_> = open.iter().map(Waiting::id).collect();
            A2aError::invalid_param(FIELD, format!("{why} {}", ids.join(", ")))
        };
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
        let mut fitting: Vec<_> = open
            .iter()
            .filter(|waiting| {
                interrupt.as_ref().is_none_or(|id| waiting.id() == *id)
                    && node.as_ref().is_none_or(|node| waiting.visit.node == *node)
            })
            .collect();
        if let Some(token) = &token {
            fitting = self.opened_by(view, fitting, token).await?;
        }
        let [meant] = fitting.as_slice() else {
            return Err(match fitting.is_empty() {
                true => unknown().into(),
                false => refused("must name by interruptId which question the message answers:").into(),
            });
        };
        if interrupt.is_none() && token.is_none() && self.is_stale(caller, view, node.as_ref()).await? {
            let why = "must name the question by interruptId, since another was settled after its sender last \
                       looked; open are";
            return Err(refused(why).into());
        }
        Ok((*meant).clone())
    }

    /// Those of several questions that a token is for.
    async fn opened_by<'w>(
        &self,
        view: &View,
        open: Vec<&'w Waiting>,
        token: &str,
    ) -> Result<Vec<&'w Waiting>, Error> {
        let engine = self.host.engine();
        let claims = self.host.tokens().open(token, engine.now()).map_err(|_| {
            A2aError::invalid_param(
                "message.metadata.openwop.interruptToken",
                "is of no open interrupt",
            )
        })?;
        let mut fitting = Vec::new();
        for waiting in open {
            let asked = question::open_at(engine, view, waiting).await?.asked;
            let is_it = asked.is_some_and(|asked| {
                asked.key == claims.key
                    && asked.visit.node == claims.node
                    && asked.visit.ordinal == claims.ordinal
            });
            if is_it {
                fitting.push(waiting);
            }
        }
        Ok(fitting)
    }

    /// Whether somebody else has settled a question since the caller last looked.
    async fn is_stale(&self, caller: &Caller, view: &View, node: Option<&NodeId>) -> Result<bool, Error> {
        let seen = self
            .host
            .seen()
            .of(&view.key, &caller.principal)
            .unwrap_or_default();
        if seen >= view.run.head {
            return Ok(false);
        }
        let since = Since {
            run: &view.key,
            seq: seen.max(self.last_said(caller, view).await?),
            principal: &caller.principal,
            node,
        };
        Ok(binding::is_changed(self.host.engine(), since).await?)
    }

    /// Where the log ended when the caller's last message was taken.
    async fn last_said(&self, caller: &Caller, view: &View) -> Result<Seq, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Said {
            message_id: String,
        }
        let store = self.host.engine().store();
        let rows = store.messages(&view.key, MAX_MESSAGES).await?;
        let own = rows.iter().filter(|row| {
            let said = serde_json::from_slice::<Said>(&row.body);
            said.is_ok_and(|said| history::is_named(row, &name_of(caller, &said.message_id)))
        });
        Ok(own.map(|row| row.seq).max().unwrap_or_default())
    }
}
