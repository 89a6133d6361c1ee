//! A peer and what was learned of it: its card, its token, and the interface that answered.
//!
//! Decides what goes where. The credential and the client certificate are for the peer's own places. An
//! authorization server or a key set that the operator names elsewhere gets the client certificate if it asks for
//! one, and may have a certificate of the peer's authorities or of the platform's.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use url::Url;
use wopr_wire::a2a::{method::Version, model::Secret};

use super::{
    card::Found,
    cards::{Cards, Lookup},
    error::Error,
    peer::{Credential, Peer, Transport, bearer},
    token::Tokens,
};
use crate::egress::Gate;
use crate::redact::Secrets;

/// The most credentials of earlier that are looked for in answers.
const MAX_EARLIER: usize = 8;

#[derive(Debug)]
pub(super) struct Known {
    pub(super) peer: Peer,
    /// What the peer was called with, oldest first: it may send back what it got with an earlier request.
    presented: Mutex<VecDeque<Secrets>>,
    /// The card that a client of 1.0 gets.
    cards: Cards,
    /// The card that a client of 0.3 gets. An agent of both versions may have one for each.
    old_cards: Cards,
    pub(super) tokens: Tokens,
    /// Nobody vouches for the card, which was logged.
    has_warned: AtomicBool,
    /// The interface that answered.
    pub(super) answering: Mutex<Option<Arc<Found>>>,
    /// For the peer's own places.
    own: Gate,
    /// For other places that the operator named.
    named: Gate,
    /// For places that only the peer's card names.
    others: Gate,
}

/// The credential to send now, and the texts to look for in answers.
pub(super) struct Presented {
    pub(super) header: Option<(HeaderName, HeaderValue)>,
    pub(super) secrets: Secrets,
    /// A token that was in use before, so the peer may have revoked it.
    pub(super) used_token: Option<Secret>,
}

impl Known {
    pub(super) fn new(peer: Peer, gate: &Gate) -> Self {
        let (own, named) = match &peer.tls {
            // Nothing but the operator says where its tasks are: there is no card.
            None if let Transport::TasksHttp(_) = peer.transport => {
                (gate.to_configured(&peer.url), gate.clone())
            }
            None => (gate.clone(), gate.clone()),
            Some(tls) => (gate.with_tls(&tls.own), gate.with_tls(&tls.named)),
        };
        Self {
            cards: Cards::default(),
            old_cards: Cards::default(),
            tokens: Tokens::default(),
            has_warned: AtomicBool::default(),
            answering: Mutex::default(),
            own,
            named,
            others: gate.clone(),
            presented: Mutex::default(),
            peer,
        }
    }

    /// A peer that takes the place of this one. What this one was called with still must not come back.
    pub(super) fn replaced_by(&self, peer: Peer, gate: &Gate) -> Self {
        let next = Self::new(peer, gate);
        next.presented.lock().clone_from(&self.presented.lock());
        next.note(self.peer.credential.secrets());
        next
    }

    /// Keeps a credential among those that were presented.
    fn note(&self, secrets: Secrets) {
        let mut presented = self.presented.lock();
        if !presented.contains(&secrets) {
            presented.push_back(secrets);
            if presented.len() > MAX_EARLIER {
                presented.pop_front();
            }
        }
    }

    /// The texts to look for in answers.
    fn secrets(&self) -> Secrets {
        let mut secrets = self.peer.credential.secrets();
        for presented in &*self.presented.lock() {
            secrets.join(presented);
        }
        secrets
    }

    /// Whether this is the first time that a card of the peer is found to have nobody who vouches for it. Both of its cards
    /// count as one.
    pub(super) fn is_first_warning(&self) -> bool {
        !self.has_warned.swap(true, Ordering::Relaxed)
    }

    /// The way to a place that a card names.
    pub(super) fn gate_to(&self, place: &Url) -> &Gate {
        match self.peer.is_own_place(place) {
            true => &self.own,
            false => &self.others,
        }
    }

    /// The way to a place that the operator named for this peer.
    pub(super) fn gate_to_named(&self, place: &Url) -> &Gate {
        match self.peer.is_own_place(place) {
            true => &self.own,
            false => &self.named,
        }
    }

    pub(super) async fn present(&self) -> Result<Presented, Error> {
        match &self.peer.credential {
            Credential::Missing { source } => Err(Error::CredentialMissing {
                source_name: source.clone(),
            }),
            Credential::OAuth2(oauth2) => {
                let gate = self.gate_to_named(&oauth2.token_url);
                let (token, was_used) = Box::pin(self.tokens.get(gate, oauth2)).await?;
                self.note(Secrets::of([token.expose()]));
                Ok(Presented {
                    header: bearer(&token).map(|value| (header::AUTHORIZATION, value)),
                    secrets: self.secrets(),
                    used_token: was_used.then_some(token),
                })
            }
            credential @ (Credential::None | Credential::Bearer(_) | Credential::Header { .. }) => {
                Ok(Presented {
                    header: credential.header(),
                    secrets: self.secrets(),
                    used_token: None,
                })
            }
        }
    }

    /// What is sent to a place that did not get the credential.
    pub(super) fn anonymous(&self) -> Presented {
        Presented {
            header: None,
            secrets: self.secrets(),
            used_token: None,
        }
    }

    /// The cards for clients of a version.
    pub(super) const fn cards(&self, version: Version) -> &Cards {
        match version {
            Version::V1_0 => &self.cards,
            Version::V0_3 => &self.old_cards,
        }
    }

    pub(super) fn lookup(&self, version: Version, presented: Presented) -> Lookup<'_> {
        Lookup {
            known: self,
            version,
            credential: presented.header,
            secrets: presented.secrets,
        }
    }
}
