//! How many files this process may have open: every connection is one.
//!
//! Systems start programs with a low bound that they may raise themselves, up to a hard one. The low one is for programs
//! that use `select`; a server and its load generator raise it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the bound as far as the system lets us and says how many files may be open then; `None` is any number.
pub(crate) fn raise() -> Option<u64> {
    let bounds = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: bounds.maximum,
        maximum: bounds.maximum,
    };
    if bounds.current == bounds.maximum || setrlimit(Resource::Nofile, wanted).is_ok() {
        bounds.maximum
    } else {
        bounds.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_raised_to_the_hard_one() {
        let allowed = raise();
        let bounds = getrlimit(Resource::Nofile);
        assert_eq!(allowed, bounds.current);
        assert_eq!(raise(), allowed);
    }
}
