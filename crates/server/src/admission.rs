//! Admission of requests: accounts for what a request holds from its first byte to the last byte of its
//! response. A host owns one [`Admission`], so two hosts of one process share no limit.
//!
//! ```text
//!   head read -> authenticated? -- yes --> a request permit of its tenant
//!                       '--------- no ---> bytes of the unauthenticated budget, by network, until authenticated
//! ```
//!
//! A request is unauthenticated if it has no credential, or one that is unknown or not checked yet. Everything
//! that such requests make this host hold comes from one small budget: the state of a request, the body bytes
//! that may arrive before they are read, and the response until the client has read it. A single network never
//! gets more than half, and a part is reserved for networks from which a caller authenticated recently:
//! approvers, and callers whose token is not checked yet, come from there. Without room, a request gets a 503
//! without a body, which no flow-control window can hold back. Probes then have [slots](crate::probes) of their
//! own.
//!
//! A slot is taken before the request's task exists and released with the last byte written for it.

use std::sync::Arc;

use http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body::Body as HttpBody;
use parking_lot::Mutex;
use wopr_connect::{Share, Shares};

use crate::{
    answers::Answers,
    auth::Caller,
    body,
    connection::Line,
    credential_id::CredentialId,
    message::{Body, Response},
    paging::Paging,
    probes::{Probe, Probes},
};

/// Bytes held for unauthenticated requests.
const MAX_STRANGERS: usize = 36 << 20;
/// Additional bytes for networks from which a caller authenticated recently.
const MAX_NEIGHBORS: usize = 12 << 20;
/// Base cost of an unauthenticated request in bytes: its task and its stream.
const STATE: usize = 12 << 10;
/// Bytes per header field in addition to its text.
const FIELD: usize = 128;
/// A network may take at most this multiple of the free budget; alone it gets half.
const ADDRESS_TIMES_FREE: usize = 1;

/// Maximum number of authenticated requests in flight, including unread responses; or twice the maximum number
/// of connections, if that is more.
const MAX_REQUESTS: usize = 16_384;
/// Bytes of the runs that streams of snapshots keep.
const MAX_FOLLOWED: usize = 96 << 20;
/// A larger run counts as this many.
const MAX_FOLLOWED_EACH: usize = MAX_FOLLOWED / 4;
/// A tenant may take at most this multiple of the free permits; alone it gets three quarters.
const TENANT_TIMES_FREE: usize = 3;

/// Everything that requests of one host compete for.
#[derive(Debug)]
pub(crate) struct Admission {
    strangers: Arc<Shares<CredentialId>>,
    neighbors: Arc<Shares<CredentialId>>,
    /// Permits of authenticated requests.
    requests: Arc<Shares<CredentialId>>,
    /// Bytes of the bodies of authenticated requests.
    bodies: Arc<Shares<CredentialId>>,
    /// Bytes of runs that streams of snapshots keep, each as of its last event.
    followed: Arc<Shares<CredentialId>>,
    probes: Arc<Probes>,
    /// Bytes of large responses.
    pub(crate) answers: Answers,
    /// Turns to read pages of logs.
    pub(crate) paging: Paging,
}

impl Admission {
    pub(crate) fn new(max_connections: usize) -> Self {
        let n_requests = max_connections.saturating_mul(2).max(MAX_REQUESTS);
        Self {
            strangers: Arc::new(Shares::new(MAX_STRANGERS, ADDRESS_TIMES_FREE)),
            neighbors: Arc::new(Shares::new(MAX_NEIGHBORS, ADDRESS_TIMES_FREE)),
            requests: Arc::new(Shares::new(n_requests, TENANT_TIMES_FREE)),
            bodies: body::memory(),
            followed: Arc::new(Shares::new(MAX_FOLLOWED, TENANT_TIMES_FREE)),
            probes: Arc::default(),
            answers: Answers::default(),
            paging: Paging::default(),
        }
    }

    /// Opens an empty share of the memory for bodies, which is a separate budget for each kind of credential.
    pub(crate) fn share_of_body(&self, credential: CredentialId) -> Share<CredentialId> {
        match credential {
            CredentialId::Tenant(_) => self.bodies.share(credential),
            CredentialId::Neighbor(_) => self.neighbors.share(credential),
            CredentialId::Stranger(_) => self.strangers.share(credential),
        }
    }
}

/// What a stream of snapshots holds of the memory for them, until dropped.
#[derive(Debug)]
pub(crate) struct Followed(Share<CredentialId>);

impl Followed {
    pub(crate) fn new(admission: &Admission, credential: CredentialId) -> Self {
        Self(admission.followed.share(credential))
    }

    /// Charges the run that is kept now, instead of what was charged before.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn charge(&mut self, n_bytes: usize) -> Result<(), NoRoom> {
        let n_bytes = n_bytes.min(MAX_FOLLOWED_EACH);
        let n_before = self.0.amount();
        self.0.shrink_to(n_bytes);
        let has_room = n_bytes <= n_before || self.0.grow(n_bytes - n_before);
        has_room.then_some(()).ok_or(NoRoom)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("take a request beside so many others")]
pub(crate) struct NoRoom;

/// The admission of a request, until the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Slot(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    credential: CredentialId,
    place: Place,
    line: Line,
}

/// What a request is charged to.
#[derive(Debug)]
enum Place {
    /// A permit of its tenant.
    Tenant { _share: Share<CredentialId> },
    /// The unauthenticated budget.
    Memory(Memory),
    /// A probe slot.
    Probe { _probe: Probe },
}

/// Bytes held by an unauthenticated request: from the common budget, then from the reserve for known networks.
#[derive(Debug)]
struct Memory {
    common: Share<CredentialId>,
    kept: Option<Share<CredentialId>>,
}

impl Memory {
    fn of(admission: &Admission, credential: CredentialId) -> Self {
        let kept = match credential {
            CredentialId::Neighbor(_) => Some(admission.neighbors.share(credential)),
            CredentialId::Stranger(_) | CredentialId::Tenant(_) => None,
        };
        Self {
            common: admission.strangers.share(credential),
            kept,
        }
    }

    fn grow(&mut self, n_bytes: usize) -> bool {
        self.common.grow(n_bytes) || self.kept.as_mut().is_some_and(|kept| kept.grow(n_bytes))
    }
}

impl Slot {
    /// Admits a request, authenticated or not.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn take<B: HttpBody>(
        admission: &Admission,
        line: &Line,
        caller: Option<&Caller>,
        request: &Request<B>,
        window: usize,
    ) -> Result<Self, NoRoom> {
        let (credential, place) = match caller {
            Some(caller) => {
                let credential = CredentialId::caller(caller);
                let share = admission.requests.take(credential, 1).ok_or(NoRoom)?;
                (credential, Place::Tenant { _share: share })
            }
            None => {
                let credential = match line.has_known_address() {
                    true => CredentialId::neighbor(line.network()),
                    false => CredentialId::stranger(line.network()),
                };
                let n_bytes = STATE + size_of_head(request.headers()) + size_of_body(request.body(), window);
                let mut memory = Memory::of(admission, credential);
                let place = if memory.grow(n_bytes) {
                    Place::Memory(memory)
                } else {
                    let probe = Probe::take(&admission.probes, line, request).ok_or(NoRoom)?;
                    Place::Probe { _probe: probe }
                };
                (credential, place)
            }
        };
        let line = line.clone();
        match caller {
            Some(_) => line.begin_known(),
            None => line.begin_strange()?,
        }
        Ok(Self(Arc::new(Mutex::new(Held {
            credential,
            place,
            line,
        }))))
    }

    pub(crate) fn credential(&self) -> CredentialId {
        self.0.lock().credential
    }

    /// Charges the request to the tenant of a caller that was authenticated only now.
    ///
    /// # Errors
    /// If the tenant has no room; the slot stays unchanged.
    pub(crate) fn recognized(&self, admission: &Admission, caller: &Caller) -> Result<(), NoRoom> {
        let mut held = self.0.lock();
        if matches!(held.place, Place::Tenant { .. }) {
            return Ok(());
        }
        let credential = CredentialId::caller(caller);
        let share = admission.requests.take(credential, 1).ok_or(NoRoom)?;
        held.place = Place::Tenant { _share: share };
        held.credential = credential;
        held.line.end_strange();
        held.line.begin_known();
        Ok(())
    }

    /// Charges the response of an unauthenticated request.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn answers(&self, n_bytes: usize) -> Result<(), NoRoom> {
        let mut held = self.0.lock();
        let has_room = match &mut held.place {
            Place::Tenant { .. } => true,
            Place::Memory(memory) => memory.grow(n_bytes),
            Place::Probe { .. } => Probe::answers(n_bytes),
        };
        has_room.then_some(()).ok_or(NoRoom)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.place {
            Place::Tenant { .. } => self.line.end_known(),
            Place::Memory(_) | Place::Probe { .. } => self.line.end_strange(),
        }
    }
}

/// The credential that a request is charged to.
pub(crate) fn asker_of(extensions: &Extensions) -> CredentialId {
    extensions
        .get::<Slot>()
        .map_or(CredentialId::nobody(), Slot::credential)
}

fn size_of_head(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD)
        .sum()
}

/// The body bytes that may arrive before they are read.
fn size_of_body(body: &impl HttpBody, window: usize) -> usize {
    if body.is_end_stream() {
        return 0;
    }
    let upper = body.size_hint().upper().unwrap_or(u64::MAX);
    usize::try_from(upper).unwrap_or(usize::MAX).min(window)
}

/// Charges a response to its unauthenticated request. Without room, returns a refusal with the response's
/// extensions.
pub(crate) fn answered(slot: &Slot, response: Response, refused: impl FnOnce() -> Response) -> Response {
    let n_bytes = response.body().size_hint().exact().unwrap_or(0);
    match slot.answers(usize::try_from(n_bytes).unwrap_or(usize::MAX)) {
        Ok(()) => response,
        Err(NoRoom) => {
            let (mut head, _) = response.into_parts();
            let mut refused = refused();
            std::mem::swap(refused.extensions_mut(), &mut head.extensions);
            refused
        }
    }
}

/// Returns a 503 without a body: a body would wait for the client and hold more memory meanwhile.
pub(crate) fn refusal(is_http2: bool, is_grpc: bool) -> Response {
    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    fields.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    if is_grpc {
        let unavailable = HeaderValue::from(tonic::Code::Unavailable as i32);
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", unavailable);
        return response;
    }
    if !is_http2 {
        fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::credential_id::Network;

    #[tokio::test(start_paused = true)]
    async fn two_hosts_share_no_limit() {
        let (one, other) = (Admission::new(1), Admission::new(1));
        let tenant = CredentialId::number(1);
        let stranger = CredentialId::stranger(Network::of([192, 0, 2, 1].into()));
        let body = |admission: &Admission, credential| {
            let mut share = admission.share_of_body(credential);
            share.grow(16 << 20).then_some(share)
        };
        let mut held = Vec::new();
        for credential in [tenant, stranger] {
            held.extend(std::iter::from_fn(|| body(&one, credential)));
            assert!(body(&other, credential).is_some());
        }
        let requests = one.requests.take(tenant, MAX_REQUESTS / 2);
        assert!(requests.is_some() && one.requests.take(tenant, MAX_REQUESTS / 2).is_none());
        assert!(other.requests.take(tenant, MAX_REQUESTS / 2).is_some());
        let answer = || Bytes::from(vec![0; 16 << 20]);
        let mut unread = Vec::new();
        while let Ok(bytes) = one.answers.held(tenant, answer()).await {
            unread.push(bytes);
        }
        assert!(other.answers.held(tenant, answer()).await.is_ok());
    }

    #[test]
    fn body_counts_up_to_the_receive_window() {
        assert_eq!(size_of_body(&Body::empty(), 1_000), 0);
        assert_eq!(size_of_body(&Body::from("text"), 1_000), 4);
        assert_eq!(size_of_body(&Body::from(vec![0; 2_000]), 1_000), 1_000);
        let endless = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        assert_eq!(size_of_body(&Body::from_stream(endless), 1_000), 1_000);
    }

    #[test]
    fn refusal_has_no_body() {
        let refused = refusal(true, true);
        assert_eq!(refused.status(), StatusCode::OK);
        assert_eq!(refused.headers()["grpc-status"], "14");
        assert!(refused.body().is_end_stream());
        let refused = refusal(false, false);
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()["retry-after"], "1");
        assert_eq!(refused.headers()["connection"], "close");
        assert!(refused.body().is_end_stream());
    }
}
