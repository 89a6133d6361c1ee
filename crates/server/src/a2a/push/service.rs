//! Operations on push configurations, including those sent along with a message.
//!
//! They require the scopes for reading the task; without them the task is not found. A URL is checked before
//! anything is stored, with no DNS lookup unless the result depends on it. Its addresses are checked at each
//! push.

use rand::{TryRngCore as _, rngs::OsRng};
use sha2::{Digest, Sha256};
use url::Url;
use wopr_app::{
    Error as AppError, FoundSubscription, NewSubscription, Put, SubscriptionSlot, View, VisibleRun,
};
use wopr_connect::secret_header;
use wopr_core::RunId;
use wopr_wire::a2a::{
    error::A2aError,
    method::Version,
    model::{
        DeleteTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigsRequest,
        ListTaskPushNotificationConfigsResponse, TaskPushNotificationConfig,
    },
};

use super::subscription::Subscription;
use crate::{
    Host,
    a2a::{
        error::Error,
        page,
        service::{Call, Service, require},
    },
    auth::{Caller, Scope},
    hex,
};

/// Maximum characters in the id of a configuration.
const MAX_ID: usize = 128;
/// Maximum bytes of a token, and of credentials.
const MAX_SECRET: usize = 4096;

/// Where a request contains the configuration.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The configuration is the request.
    Alone,
    /// The configuration accompanies a message.
    Along,
}

impl Place {
    /// The path of a member as the client wrote it.
    fn field(self, version: Version, member: &str) -> String {
        let config = match (self, version) {
            (Self::Alone, Version::V1_0) => return member.to_owned(),
            (Self::Alone, Version::V0_3) => "pushNotificationConfig",
            (Self::Along, Version::V1_0) => "configuration.taskPushNotificationConfig",
            (Self::Along, Version::V0_3) => "configuration.pushNotificationConfig",
        };
        format!("{config}.{member}")
    }
}

impl Service {
    /// Registers a configuration with a task, or replaces the one with the same id.
    pub(in crate::a2a) async fn create_push(
        &self,
        call: &Call,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig, Error> {
        let task = config.task_id.as_deref();
        let task = task.ok_or_else(|| A2aError::invalid_param("taskId", "is required"))?;
        let view = self.visible(call, task).await?;
        let run = VisibleRun::from(&view);
        let id = match &config.id {
            Some(id) => id.clone(),
            None if call.version == Version::V0_3 => unnamed_id(&view, &call.caller),
            None => random_id()?,
        };
        let (app, cipher) = (self.host.app(), self.host.cipher());
        let slot = app.subscription_slot(&call.caller, &run, id.clone(), cipher);
        let slot = slot.await?;
        let subscription = self.judged(call, &config, &id, Place::Alone).await?;
        match app.subscribe(slot, cipher, &subscription).await? {
            Put::Added | Put::Replaced => Ok(subscription.shown(&run, &id)),
            Put::Full => Err(Error::full(self.host.config().a2a.push_configs)),
            Put::Missing => Err(A2aError::task_not_found(task).into()),
        }
    }

    /// Reads a configuration; without an id, the one set last.
    pub(in crate::a2a) async fn get_push(
        &self,
        call: &Call,
        task: &str,
        id: Option<&str>,
    ) -> Result<TaskPushNotificationConfig, Error> {
        let run = VisibleRun::from(&self.visible(call, task).await?);
        let (app, cipher) = (self.host.app(), self.host.cipher());
        match app.subscription(&call.caller, &run, id, cipher).await? {
            FoundSubscription::Managed(id, subscription) => return Ok(subscription.shown(&run, &id)),
            FoundSubscription::Hidden => require(&call.caller, Scope::WebhooksManage)?,
            FoundSubscription::None => {}
        }
        // The error table has no other error for a missing configuration.
        Err(A2aError::task_not_found(task).into())
    }

    /// Lists the task's configurations that the caller manages, in the order they were set.
    pub(in crate::a2a) async fn list_pushes(
        &self,
        call: &Call,
        request: ListTaskPushNotificationConfigsRequest,
    ) -> Result<ListTaskPushNotificationConfigsResponse, Error> {
        let run = VisibleRun::from(&self.visible(call, &request.task_id).await?);
        let (app, cipher) = (self.host.app(), self.host.cipher());
        let managed = app.subscriptions(&call.caller, &run, cipher).await?;
        let from = match &request.page_token {
            None => 0,
            Some(token) => {
                let (at, id) = page::decode_push(token)?;
                managed.partition_point(|managed| (managed.created_at, &managed.id) <= (at, &id))
            }
        };
        let most = request
            .page_size
            .map_or(usize::MAX, |size| usize::try_from(size).unwrap_or(usize::MAX));
        let shown: Vec<_> = managed.iter().skip(from).take(most).collect();
        let next_page_token = match shown.last() {
            Some(last) if from + shown.len() < managed.len() => page::encode_push(last.created_at, &last.id),
            Some(_) | None => String::new(),
        };
        let configs = shown
            .iter()
            .map(|managed| managed.subscription.shown(&run, &managed.id));
        Ok(ListTaskPushNotificationConfigsResponse {
            configs: configs.collect(),
            next_page_token,
        })
    }

    /// Removes a configuration and its pending deliveries. Idempotent.
    pub(in crate::a2a) async fn delete_push(
        &self,
        call: &Call,
        request: DeleteTaskPushNotificationConfigRequest,
    ) -> Result<(), Error> {
        let run = VisibleRun::from(&self.visible(call, &request.task_id).await?);
        let (app, cipher) = (self.host.app(), self.host.cipher());
        let slot = app.subscription_slot(&call.caller, &run, request.id, cipher);
        app.unsubscribe(slot.await?).await?;
        Ok(())
    }

    /// Reads the configuration sent along with a message that answers a task. The append that accepts the
    /// message registers it.
    pub(in crate::a2a) async fn push_along(
        &self,
        call: &Call,
        view: &View,
        config: &TaskPushNotificationConfig,
        message_id: &str,
    ) -> Result<NewSubscription, Error> {
        let unnamed = || match call.version {
            Version::V0_3 => unnamed_id(view, &call.caller),
            Version::V1_0 => along_id(message_id),
        };
        let id = config.id.clone().unwrap_or_else(unnamed);
        let run = VisibleRun::from(view);
        let slot = self
            .host
            .app()
            .subscription_slot(&call.caller, &run, id, self.host.cipher());
        self.new_push(call, slot.await?, config).await
    }

    /// Reads the configuration sent along with a message that starts a task.
    pub(in crate::a2a) async fn push_of_new(
        &self,
        call: &Call,
        run: &RunId,
        config: &TaskPushNotificationConfig,
        message_id: &str,
    ) -> Result<NewSubscription, Error> {
        let unnamed = || match call.version {
            Version::V0_3 => run.to_string(),
            Version::V1_0 => along_id(message_id),
        };
        let id = config.id.clone().unwrap_or_else(unnamed);
        let slot = SubscriptionSlot::of_new_run(&call.caller, run, id)?;
        self.new_push(call, slot, config).await
    }

    async fn new_push(
        &self,
        call: &Call,
        slot: SubscriptionSlot,
        config: &TaskPushNotificationConfig,
    ) -> Result<NewSubscription, Error> {
        let subscription = self.judged(call, config, slot.id(), Place::Along).await?;
        let cipher = self.host.cipher();
        Ok(self.host.app().new_subscription(slot, cipher, &subscription)?)
    }

    /// Validates a configuration.
    async fn judged(
        &self,
        call: &Call,
        config: &TaskPushNotificationConfig,
        id: &str,
        place: Place,
    ) -> Result<Subscription, Error> {
        let version = call.version;
        let refused = |member: &str, rule: &str| A2aError::invalid_param(place.field(version, member), rule);
        // The protobuf form of 0.3 names a configuration by a path, so an id must not contain a slash.
        let is_id = |text: &str| {
            !text.is_empty()
                && text.chars().count() <= MAX_ID
                && !text.chars().any(|c| c.is_control() || c == '/')
        };
        if !is_id(id) {
            let rule = "must be 1 to 128 characters without slashes and control characters";
            return Err(refused("id", rule).into());
        }
        let subscription = Subscription::of(config, version, &call.caller.principal);
        let secrets = [
            ("token", subscription.token.clone()),
            ("authentication", subscription.scheme.clone()),
            ("authentication", subscription.authorization()),
        ];
        for (member, secret) in secrets {
            let Some(secret) = secret else { continue };
            if secret.len() > MAX_SECRET {
                return Err(refused(member, "must be at most 4096 bytes").into());
            }
            if secret_header(&secret).is_err() {
                return Err(refused(member, "cannot stand in a header").into());
            }
        }
        let judged = self.host.gate().register(&subscription.url).await;
        let url = judged
            .map_err(|refusal| refused("url", &format!("is refused: no notification may {refusal}")))?;
        Ok(Subscription {
            url: url.into(),
            ..subscription
        })
    }
}

/// Registers a subscription without secrets, whose URL has been checked.
pub(crate) async fn set(host: &Host, caller: &Caller, run: &VisibleRun, url: Url) -> Result<Put, AppError> {
    let subscription = Subscription::at(url, &caller.principal);
    let id = random_id().map_err(|_| AppError::Internal("no randomness for an id".into()))?;
    let (app, cipher) = (host.app(), host.cipher());
    let slot = app.subscription_slot(caller, run, id, cipher).await?;
    app.subscribe(slot, cipher, &subscription).await
}

fn random_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| {
        tracing::error!(%error, "no randomness for an id");
        A2aError::Internal
    })?;
    Ok(hex(&bytes))
}

/// The id of a configuration sent along with a message. Resending the message names the same one.
fn along_id(message_id: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(message_id.as_bytes()).into();
    hex(&digest[..16])
}

/// The id of a configuration without one in 0.3: that of the task, as for the servers of its SDKs. Whoever sets another
/// one replaces it; one of somebody else is not to be replaced.
fn unnamed_id(view: &View, caller: &Caller) -> String {
    let run = view.key.run.as_str();
    if view.summary.principal == caller.principal {
        return run.to_owned();
    }
    let digest: [u8; 32] = Sha256::digest(format!("{run} {}", caller.principal)).into();
    hex(&digest[..16])
}
