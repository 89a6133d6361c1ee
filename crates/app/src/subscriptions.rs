//! Push subscriptions of runs.
//!
//! A subscription is read, replaced and removed by the principal that registered it, and by callers with
//! `webhooks:manage`. Its body belongs to a protocol, which seals it and names its owner; the rule is here.
//!
//! Half of a run's subscriptions are kept for whoever started it: others who may read it cannot use them all up.

use wopr_core::{PrincipalId, Refusal, RunId, RunKey, Timestamp};
use wopr_engine::NewSubscription;
use wopr_store::{PushRow, Put};

use crate::{App, Caller, Error, Scope, VisibleRun};

/// Seals and opens the subscriptions of a protocol.
pub trait SealSubscription {
    type Subscription;

    /// Encodes a subscription for its run and id.
    ///
    /// # Errors
    /// [`Error::Internal`].
    fn seal(&self, run: &RunKey, id: &str, subscription: &Self::Subscription) -> Result<Vec<u8>, Error>;

    /// Decodes what [`Self::seal`] encoded.
    ///
    /// # Errors
    /// [`Error::Internal`].
    fn open(&self, run: &RunKey, id: &str, sealed: &[u8]) -> Result<Self::Subscription, Error>;

    fn owner(subscription: &Self::Subscription) -> &PrincipalId;
}

/// The permission to set or remove the subscription of a run with some id.
#[derive(Debug)]
pub struct SubscriptionSlot {
    run: RunKey,
    id: String,
    /// The most subscriptions of the run with this one; the host's limit where absent.
    most: Option<usize>,
}

/// A subscription that its reader manages.
#[derive(Debug)]
pub struct ManagedSubscription<T> {
    pub id: String,
    pub created_at: Timestamp,
    pub subscription: T,
}

/// The subscription that a caller asked for.
#[derive(Debug)]
pub enum FoundSubscription<T> {
    /// Its id and content.
    Managed(String, T),
    /// There is one, but the caller does not manage it.
    Hidden,
    None,
}

impl SubscriptionSlot {
    /// The slot of a run that does not exist yet, and so has no subscriptions.
    ///
    /// # Errors
    /// If the caller may not read runs.
    pub fn of_new_run(caller: &Caller, run: &RunId, id: String) -> Result<Self, Error> {
        caller.require(Scope::RunsRead)?;
        let run = RunKey::new(caller.tenant.clone(), run.clone());
        Ok(Self { run, id, most: None })
    }

    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl App {
    /// The subscriptions of a run that the caller manages, in the order of their creation, and of their ids where that is the
    /// same.
    pub async fn subscriptions<S: SealSubscription>(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        seal: &S,
    ) -> Result<Vec<ManagedSubscription<S::Subscription>>, Error> {
        caller.require(Scope::RunsRead)?;
        let mut managed = Vec::new();
        for row in self.engine.store().pushes(run).await? {
            let subscription = seal.open(run, &row.id, &row.body)?;
            if manages::<S>(caller, &subscription) {
                managed.push(ManagedSubscription {
                    id: row.id,
                    created_at: row.created_at,
                    subscription,
                });
            }
        }
        Ok(managed)
    }

    /// The subscription with this id, or the one set last among those that the caller manages.
    pub async fn subscription<S: SealSubscription>(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        id: Option<&str>,
        seal: &S,
    ) -> Result<FoundSubscription<S::Subscription>, Error> {
        caller.require(Scope::RunsRead)?;
        let mut found = FoundSubscription::None;
        let rows = self.engine.store().pushes(run).await?.into_iter().rev();
        for row in rows.filter(|row| id.is_none_or(|id| row.id == id)) {
            let subscription = seal.open(run, &row.id, &row.body)?;
            if manages::<S>(caller, &subscription) {
                return Ok(FoundSubscription::Managed(row.id, subscription));
            }
            found = FoundSubscription::Hidden;
        }
        Ok(found)
    }

    /// Requires that the caller may set or remove the subscription with this id, which need not exist.
    pub async fn subscription_slot<S: SealSubscription>(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        id: String,
        seal: &S,
    ) -> Result<SubscriptionSlot, Error> {
        match self.subscription(caller, run, Some(&id), seal).await? {
            FoundSubscription::Managed(..) | FoundSubscription::None => {}
            FoundSubscription::Hidden => caller.require(Scope::WebhooksManage)?,
        }
        Ok(SubscriptionSlot {
            run: RunKey::clone(run),
            id,
            most: self.most_for(caller, run, seal).await?,
        })
    }

    /// How many subscriptions a run may have with one of this caller, if that is less than the host's limit.
    async fn most_for<S: SealSubscription>(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        seal: &S,
    ) -> Result<Option<usize>, Error> {
        if caller.may(Scope::WebhooksManage) {
            return Ok(None);
        }
        let view = self.engine.view(run).await?;
        let starter = view.and_then(|view| Some(view.run.started.as_ref()?.principal.clone()));
        let Some(starter) = starter.filter(|starter| *starter != caller.principal) else {
            return Ok(None);
        };
        let limit = self.options.max_subscriptions;
        let mut most = limit.div_ceil(2);
        for row in self.engine.store().pushes(run).await? {
            let subscription = seal.open(run, &row.id, &row.body)?;
            most += usize::from(*S::owner(&subscription) == starter);
        }
        Ok(Some(most.min(limit)))
    }

    /// Adds a subscription, or replaces the one with the same id.
    pub async fn subscribe<S: SealSubscription>(
        &self,
        slot: SubscriptionSlot,
        seal: &S,
        subscription: &S::Subscription,
    ) -> Result<Put, Error> {
        let SubscriptionSlot { run, id, most } = slot;
        let view = self.engine.view(&run).await?;
        if view.is_some_and(|view| view.run.is_replay()) {
            return Err(Refusal::TellsNobody.into());
        }
        let row = self.subscription_row(&run, id, seal, subscription)?;
        let most = most.unwrap_or(self.options.max_subscriptions);
        Ok(self.engine.put_push(&run, row, most).await?)
    }

    /// A subscription to register with a command.
    pub fn new_subscription<S: SealSubscription>(
        &self,
        slot: SubscriptionSlot,
        seal: &S,
        subscription: &S::Subscription,
    ) -> Result<NewSubscription, Error> {
        let SubscriptionSlot { run, id, most } = slot;
        Ok(NewSubscription {
            row: self.subscription_row(&run, id, seal, subscription)?,
            run: run.run,
            most: most.unwrap_or(self.options.max_subscriptions),
        })
    }

    /// Removes a subscription and its pending deliveries, if it exists.
    pub async fn unsubscribe(&self, slot: SubscriptionSlot) -> Result<(), Error> {
        self.engine.store().drop_push(&slot.run, &slot.id).await?;
        Ok(())
    }

    fn subscription_row<S: SealSubscription>(
        &self,
        run: &RunKey,
        id: String,
        seal: &S,
        subscription: &S::Subscription,
    ) -> Result<PushRow, Error> {
        Ok(PushRow {
            body: seal.seal(run, &id, subscription)?,
            id,
            created_at: self.engine.now(),
        })
    }
}

fn manages<S: SealSubscription>(caller: &Caller, subscription: &S::Subscription) -> bool {
    *S::owner(subscription) == caller.principal || caller.may(Scope::WebhooksManage)
}
