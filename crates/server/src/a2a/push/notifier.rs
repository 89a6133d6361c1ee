//! The engine's notifier: opens the subscription, writes the body in its version, and sends it through the
//! gate.

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use wopr_app::{Delivery, Undelivered, Update, View};
use wopr_connect::{Push, egress::Gate, push, secret_header};
use wopr_core::Recorded;
use wopr_wire::a2a::method::Version;

use super::{
    subscription::{Subscription, SubscriptionCipher},
    update::{self, Kept},
};

/// Delivers task updates to subscriptions.
#[derive(Debug)]
pub(crate) struct Notifier {
    cipher: SubscriptionCipher,
    gate: Gate,
    public_url: String,
}

impl Notifier {
    pub(crate) const fn new(cipher: SubscriptionCipher, gate: Gate, public_url: String) -> Self {
        Self {
            cipher,
            gate,
            public_url,
        }
    }

    fn push(&self, delivery: &Delivery) -> Result<Push, Undelivered> {
        let Delivery {
            run,
            push: id,
            receiver,
            seq,
            body,
        } = delivery;
        let subscription = self.cipher.open(run, id, receiver).map_err(|error| {
            tracing::error!(%run, push = id, %error, "push configuration not readable");
            undelivered("could not open the configuration: the master key is another one, or it was changed")
        })?;
        let kept = Kept::read(body).map_err(|error| {
            tracing::error!(%run, %error, "update not understood");
            undelivered("could not read the update")
        })?;
        let body = kept
            .body(subscription.version, run, seq.0, &self.public_url)
            .map_err(|_| undelivered("could not write the update"))?;
        let header =
            |text: &str| secret_header(text).map_err(|_| undelivered("could not put a secret into a header"));
        Ok(Push {
            url: subscription
                .url
                .parse()
                .map_err(|_| undelivered("could not read the url"))?,
            token: subscription.token.as_deref().map(header).transpose()?,
            authorization: subscription.authorization().as_deref().map(header).transpose()?,
            content_type: HeaderValue::from_static(content_type(&subscription)),
            body: Bytes::from(body),
            trace: kept.trace,
        })
    }
}

/// The media type that the specification of each version requires.
const fn content_type(subscription: &Subscription) -> &'static str {
    match subscription.version {
        Version::V0_3 => "application/json",
        Version::V1_0 => "application/a2a+json",
    }
}

fn undelivered(reason: &str) -> Undelivered {
    Undelivered {
        reason: reason.to_owned(),
        retry_after: None,
    }
}

#[async_trait]
impl wopr_app::Notifier for Notifier {
    fn updates(&self, before: &View, events: &[Recorded]) -> Vec<Update> {
        update::updates(before, events)
    }

    async fn deliver(&self, delivery: &Delivery) -> Result<(), Undelivered> {
        let ready = self.push(delivery)?;
        push(&self.gate, ready).await
    }
}
