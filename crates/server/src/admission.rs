//! What a request holds from its first byte to the last byte of its answer, and who pays for it.
//!
//! ```text
//!   head read -> recognized? -- yes --> a place among the requests of its tenant
//!                     '-------- no ---> bytes of the strangers' memory, by address, until it is recognized
//! ```
//!
//! A stranger is whoever sent no credential, or one that is not known yet or never will be. Everything strangers make
//! this host hold comes from one small budget: the state of a request, what may arrive of its body before somebody reads
//! it, and its answer until the client has taken it. One address never has more than half, and a part is kept for
//! addresses from which a caller came lately: those who wait for an approval, or whose token is not known yet, come from
//! there. What finds no room is answered 503 in a head alone, which no window of the client can hold back. Probes have
//! [places](crate::probes) of their own then.
//!
//! A slot is taken before the task of a request exists and goes with the last byte that was written for it.

use std::sync::{Arc, LazyLock, OnceLock};

use axum::{
    body::{Body, HttpBody},
    response::Response,
};
use http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, header};
use parking_lot::Mutex;
use wopr_connect::{Share, Shares};

use crate::{auth::Caller, connection::Line, credential_id::CredentialId, probes::Probe};

/// Bytes that the requests of strangers hold at once.
const MAX_STRANGERS: usize = 36 << 20;
/// And beside these, from addresses from which a caller came lately.
const MAX_NEIGHBORS: usize = 12 << 20;
/// What a request of a stranger counts beside its fields, its body and its answer: its task and its stream.
const STATE: usize = 12 << 10;
/// What a field of a head takes beside its text.
const FIELD: usize = 128;
/// How many times what is left free one address may take of the strangers' memory: alone it has half.
const ADDRESS_TIMES_FREE: usize = 1;

/// Requests of callers that are in flight at once, answers that were not taken yet included; or twice the connections
/// there may be, if that is more.
const MAX_REQUESTS: usize = 16_384;
/// How many times what is left free one tenant may have: alone it has three quarters.
const TENANT_TIMES_FREE: usize = 3;

/// What this process has.
static STRANGERS: LazyLock<Arc<Shares<CredentialId>>> =
    LazyLock::new(|| Arc::new(Shares::new(MAX_STRANGERS, ADDRESS_TIMES_FREE)));
static NEIGHBORS: LazyLock<Arc<Shares<CredentialId>>> =
    LazyLock::new(|| Arc::new(Shares::new(MAX_NEIGHBORS, ADDRESS_TIMES_FREE)));
static REQUESTS: OnceLock<Arc<Shares<CredentialId>>> = OnceLock::new();

/// The requests of callers in this process, which the first host in it sizes.
pub(crate) fn requests(max_connections: usize) -> &'static Arc<Shares<CredentialId>> {
    let most = max_connections.saturating_mul(2).max(MAX_REQUESTS);
    REQUESTS.get_or_init(|| Arc::new(Shares::new(most, TENANT_TIMES_FREE)))
}

/// There is no room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("take a request beside so many others")]
pub(crate) struct NoRoom;

/// The place of a request, until the last clone of it is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Slot(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    credential: CredentialId,
    place: Place,
    line: Line,
}

/// Where a request has its place.
#[derive(Debug)]
enum Place {
    /// Among those of its tenant.
    Tenant { _share: Share<CredentialId> },
    /// In the strangers' memory.
    Memory(Memory),
    /// Among the probes.
    Probe { _probe: Probe },
}

/// What a stranger has of the memory: first of that of all, then of what is kept for addresses that are known.
#[derive(Debug)]
struct Memory {
    common: Share<CredentialId>,
    kept: Option<Share<CredentialId>>,
}

impl Memory {
    fn of(credential: CredentialId) -> Self {
        let kept = match credential {
            CredentialId::Neighbor(_) => Some(NEIGHBORS.share(credential)),
            CredentialId::Stranger(_) | CredentialId::Tenant(_) => None,
        };
        Self {
            common: STRANGERS.share(credential),
            kept,
        }
    }

    fn grow(&mut self, n_bytes: usize) -> bool {
        self.common.grow(n_bytes) || self.kept.as_mut().is_some_and(|kept| kept.grow(n_bytes))
    }
}

impl Slot {
    /// Takes a place for a request, by who was recognized.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn take<B: HttpBody>(
        line: &Line,
        caller: Option<&Caller>,
        request: &Request<B>,
        window: usize,
    ) -> Result<Self, NoRoom> {
        let (credential, place) = match caller {
            Some(caller) => {
                let credential = CredentialId::caller(caller);
                let share = requests(0).take(credential, 1).ok_or(NoRoom)?;
                (credential, Place::Tenant { _share: share })
            }
            None => {
                let credential = match line.has_known_address() {
                    true => CredentialId::neighbor(line.network()),
                    false => CredentialId::stranger(line.network()),
                };
                let n_bytes = STATE + size_of_head(request.headers()) + size_of_body(request.body(), window);
                let mut memory = Memory::of(credential);
                let place = if memory.grow(n_bytes) {
                    Place::Memory(memory)
                } else {
                    let probe = Probe::take(line, request).ok_or(NoRoom)?;
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

    /// Who pays.
    pub(crate) fn credential(&self) -> CredentialId {
        self.0.lock().credential
    }

    /// Has the tenant of a caller pay who was recognized only later.
    ///
    /// # Errors
    /// The tenant has no room; the slot is as it was.
    pub(crate) fn recognized(&self, caller: &Caller) -> Result<(), NoRoom> {
        let mut held = self.0.lock();
        if matches!(held.place, Place::Tenant { .. }) {
            return Ok(());
        }
        let credential = CredentialId::caller(caller);
        let share = requests(0).take(credential, 1).ok_or(NoRoom)?;
        held.place = Place::Tenant { _share: share };
        held.credential = credential;
        held.line.end_strange();
        held.line.begin_known();
        Ok(())
    }

    /// Counts an answer of a stranger.
    ///
    /// # Errors
    /// There is no room for it.
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

/// Who pays for a request that came over a connection; somebody without an address for any other.
pub(crate) fn asker_of(extensions: &Extensions) -> CredentialId {
    extensions
        .get::<Slot>()
        .map_or(CredentialId::nobody(), Slot::credential)
}

/// A share of the strangers' memory, or of what is kept of it for known addresses, that is empty yet.
pub(crate) fn share_of_stranger(credential: CredentialId) -> Share<CredentialId> {
    match credential {
        CredentialId::Neighbor(_) => NEIGHBORS.share(credential),
        CredentialId::Stranger(_) | CredentialId::Tenant(_) => STRANGERS.share(credential),
    }
}

fn size_of_head(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD)
        .sum()
}

/// What may arrive of a body before somebody reads it.
fn size_of_body(body: &impl HttpBody, window: usize) -> usize {
    if body.is_end_stream() {
        return 0;
    }
    let upper = body.size_hint().upper().unwrap_or(u64::MAX);
    usize::try_from(upper).unwrap_or(usize::MAX).min(window)
}

/// Counts an answer for a stranger; one without room becomes a refusal, which knows of the request what the answer did.
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

/// 503 in a head alone: what has a body waits for its client, and holds more while it does.
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
    use super::*;

    #[test]
    fn a_body_counts_as_far_as_it_may_arrive_unread() {
        assert_eq!(size_of_body(&Body::empty(), 1_000), 0);
        assert_eq!(size_of_body(&Body::from("text"), 1_000), 4);
        assert_eq!(size_of_body(&Body::from(vec![0; 2_000]), 1_000), 1_000);
        let endless = futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
        assert_eq!(size_of_body(&Body::from_stream(endless), 1_000), 1_000);
    }

    #[test]
    fn a_refusal_is_a_head_alone() {
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
