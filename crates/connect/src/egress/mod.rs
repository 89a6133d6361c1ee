//! The gate that every outbound connection goes through.
//!
//! ```text
//!   seam open? -> check request -> check URL -> resolve once -> check addresses -> connect to a checked address
//!   (seam)        (message)        (policy)     (resolve)       (policy)           (connector, dial)
//! ```
//!
//! The checks ([`classify`], [`Policy`]) are pure functions; only the implementations in [`Network`] do I/O.
//! The gate follows no redirects and uses no proxies, because both would lead to an unchecked address. It
//! does not retry, sign or decode, and does not restrict ports: a public address is reachable on every port
//! except 0. A response is read as a whole ([`Gate::request`]) or while it arrives ([`Gate::stream`]), over
//! HTTP/1.1 or HTTP/2.

mod address;
mod cidr;
mod connector;
mod dial;
mod error;
mod gate;
mod message;
mod policy;
mod resolve;
mod seam;
mod stream;
mod tls;

pub use address::{Class, Reason, classify};
pub use cidr::{Cidr, CidrError};
pub use dial::{Channel, Dial, SystemDial};
pub use error::{Cause, EgressError};
pub use gate::{AnswerShare, Gate, Limits, Network};
pub use message::{Request, Response, is_reserved_header};
pub(crate) use policy::read_url;
pub use policy::{Policy, Refusal};
pub use resolve::{Resolver, SystemResolver};
pub use seam::{Seam, Seams};
pub use stream::{LimitedBody, Protocol, StreamLimits};
pub use tls::{
    CertificateProblem, ClientTls, ClientTlsError, Identity, OtherAuthorities, TlsError, client_config,
};
