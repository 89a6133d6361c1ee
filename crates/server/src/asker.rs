//! Whose a request is, where what there is of memory is shared out: callers with one credential are one.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use http::{HeaderMap, HeaderValue, header};

use crate::auth::Caller;

/// A credential, by a hash: two that share one share a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asker(u64);

impl Asker {
    /// By the credential of a request; those without one are one too.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut hasher = DefaultHasher::new();
        let credential = headers.get(header::AUTHORIZATION);
        credential.map(HeaderValue::as_bytes).hash(&mut hasher);
        Self(hasher.finish())
    }

    /// By who was let in; for what is told when the request is long gone.
    pub(crate) fn caller(caller: &Caller) -> Self {
        let mut hasher = DefaultHasher::new();
        (&caller.tenant, &caller.key_id).hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Everybody who calls what is open to all, whatever credential they show: nobody looked at it.
    pub(crate) fn anybody() -> Self {
        Self(0)
    }

    #[cfg(test)]
    pub(crate) const fn number(number: u64) -> Self {
        Self(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_tells_whose_it_is() {
        let with = |credential: &'static str| {
            let credential = HeaderValue::from_static(credential);
            Asker::of(&HeaderMap::from_iter([(header::AUTHORIZATION, credential)]))
        };
        assert_eq!(with("Bearer a"), with("Bearer a"));
        assert_ne!(with("Bearer a"), with("Bearer b"));
        assert_ne!(with(""), Asker::of(&HeaderMap::new()));
    }
}
