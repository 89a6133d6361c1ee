//! The limit on open files, of which every connection takes one.
//!
//! Systems start programs with a low soft limit, for the sake of programs that use `select`. A program may
//! raise it up to the hard limit; servers and load generators do.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit if possible. Returns the resulting limit; `None` means unlimited.
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
    fn soft_limit_is_raised_to_the_hard_limit() {
        let allowed = raise();
        let bounds = getrlimit(Resource::Nofile);
        assert_eq!(allowed, bounds.current);
        assert_eq!(raise(), allowed);
    }
}
