//! Calls that end when their credential does, as long as they wait.
//!
//! Access is decided when a request begins. A call that waits, be it for work, for a run or for the rest of its own
//! body, must not go on when its key is revoked or its token expires: it would still get work and data. So it is
//! dropped, which gives back the work it was about to get, and answered with 401. [`while_valid`] stands around every
//! request, and whatever waits says so with [`wait`].
//!
//! Only waits are cut off. A write that is under way is finished and answered: after a 401, its client would repeat it.

use std::{
    cell::Cell,
    future::{pending, poll_fn},
    pin::pin,
    task::Poll,
};

use super::{AuthError, verdict::Validity};

tokio::task_local! {
    /// The call that this task answers. A task local, as waits are far below the middleware, in every face.
    static CALL: Call;
}

struct Call {
    validity: Validity,
    /// Why the call must not go on, once a wait was cut off.
    cut_off: Cell<Option<AuthError>>,
}

/// Answers a call, unless its credential ends while the call waits.
///
/// # Errors
/// The call was dropped, because its credential is no longer valid.
pub(crate) async fn while_valid<T>(
    validity: Option<Validity>,
    answer: impl Future<Output = T>,
) -> Result<T, AuthError> {
    let Some(validity) = validity else {
        return Ok(answer.await);
    };
    let call = Call {
        validity,
        cut_off: Cell::new(None),
    };
    let answered = async {
        let mut answer = pin!(answer);
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            Poll::Pending => match CALL.with(|call| call.cut_off.get()) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        })
        .await
    };
    CALL.scope(call, answered).await
}

/// Waits on behalf of the call that this task answers. Never completes if the credential of the call ends first: the
/// call is then dropped.
pub(crate) async fn wait<T>(waiting: impl Future<Output = T>) -> T {
    let Ok(validity) = CALL.try_with(|call| call.validity.clone()) else {
        return waiting.await;
    };
    let error = tokio::select! {
        biased;
        error = validity.ended() => error,
        done = waiting => return done,
    };
    CALL.with(|call| call.cut_off.set(Some(error)));
    pending().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        sync::{oneshot, watch},
        time::Instant,
    };

    use super::*;

    #[tokio::test]
    async fn a_call_that_waits_ends_with_its_key_and_drops_what_it_holds() {
        let is_over = watch::Sender::new(false);
        let validity = Validity::Key(is_over.subscribe());
        let (held, dropped) = oneshot::channel::<()>();
        let call = while_valid(Some(validity), async {
            let _held = held;
            wait(pending::<()>()).await;
        });
        let (answer, _) = tokio::join!(call, async { is_over.send_replace(true) });
        assert_eq!(answer, Err(AuthError::Revoked));
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn a_call_that_does_not_wait_is_finished() {
        let is_over = watch::Sender::new(false);
        let validity = Validity::Key(is_over.subscribe());
        let answer = while_valid(Some(validity), async {
            is_over.send_replace(true);
            tokio::task::yield_now().await;
            "written"
        });
        assert_eq!(answer.await, Ok("written"));
    }

    #[tokio::test]
    async fn a_wait_that_is_over_gives_nothing_to_a_key_that_has_ended() {
        let validity = Validity::Key(watch::Sender::new(true).subscribe());
        let call = while_valid(Some(validity), wait(std::future::ready("work")));
        assert_eq!(call.await, Err(AuthError::Revoked));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_ends_when_its_token_expires() {
        let validity = Validity::Until(Instant::now() + Duration::from_secs(5));
        let begun = Instant::now();
        let call = while_valid(Some(validity), wait(pending::<()>()));
        assert_eq!(call.await, Err(AuthError::Expired));
        assert_eq!(begun.elapsed().as_secs(), 5);
    }

    #[tokio::test]
    async fn a_call_whose_credential_does_not_end_waits_like_any_future() {
        assert_eq!(while_valid(None, wait(async { 1 })).await, Ok(1));
        assert_eq!(wait(async { 2 }).await, 2);
    }
}
