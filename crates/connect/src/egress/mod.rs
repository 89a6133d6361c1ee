//! The one gate every outbound connection goes through.
//!
//! ```text
//!   seam open? -> request sane? -> url arm -> resolve once -> address arm -> connect to a checked address
//!   (seam)        (message)        (policy)   (resolve)       (policy)       (connector, dial)
//! ```
//!
//! The judgements ([`classify`], [`Policy`]) are pure; only what stands in [`Network`] touches one. A
//! redirect is never followed and a proxy never asked: both would move the connection to a place
//! nobody checked. What is not here: retries, signing, decoding of bodies, and a choice of ports
//! (a public address is reachable on every port except 0).

mod address;
mod cidr;
mod connector;
mod dial;
mod gate;
mod message;
mod policy;
mod resolve;
mod seam;
mod tls;

pub use address::{Class, Reason, classify};
pub use cidr::{Cidr, CidrError};
pub use dial::{Channel, Dial, SystemDial};
pub use gate::{AnswerShare, Cause, EgressError, Gate, Limits, Network};
pub use message::{Request, Response};
pub use policy::{Policy, Refusal};
pub use resolve::{Resolver, SystemResolver};
pub use seam::{Seam, Seams};
pub use tls::{TlsError, client_config};
