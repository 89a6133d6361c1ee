//! Finds the route of a request.
//!
//! Paths are matched by hand because routing crates do not split a segment: OpenWOP's verbs
//! (`/v1/runs/{runId}:pause`) share one with a parameter. Segments are compared after percent-decoding, so an
//! encoded colon equals a colon.

use std::sync::LazyLock;

use http::Method;

use super::{
    route::{Exists, Route},
    table::{NOT_PROVIDED, ROUTES},
};
use crate::path::decode;

#[derive(Debug)]
pub(super) struct Found {
    pub(super) route: Option<&'static Route>,
    pub(super) params: Vec<String>,
    /// The methods of the path, if only the method did not match.
    pub(super) allowed: Vec<Method>,
}

#[derive(Debug)]
enum Segment {
    Literal(&'static str),
    /// A parameter with a fixed suffix. With an empty suffix, it matches anything except a verb.
    Param(&'static str),
    /// A parameter that matches anything.
    Any,
}

#[derive(Debug)]
struct Template {
    segments: Vec<Segment>,
    route: &'static Route,
}

/// All templates, by their number of segments.
static TEMPLATES: LazyLock<Vec<Vec<Template>>> = LazyLock::new(|| {
    let mut templates = Vec::<Vec<Template>>::new();
    for route in ROUTES {
        let segments: Vec<_> = route.path[1..].split('/').map(Segment::read).collect();
        let n_segments = segments.len();
        templates.resize_with(templates.len().max(n_segments + 1), Vec::new);
        templates[n_segments].push(Template { segments, route });
    }
    templates
});

impl Segment {
    fn read(text: &'static str) -> Self {
        match text.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            None => Self::Literal(text),
            // Only these are followed by verbs; ids of nodes and artifacts may contain colons.
            Some(("runId" | "activityToken", suffix)) => Self::Param(suffix),
            Some((_, _)) => Self::Any,
        }
    }

    fn take<'s>(&self, segment: &'s str) -> Option<Option<&'s str>> {
        match self {
            Self::Literal(text) => (*text == segment).then_some(None),
            Self::Param(suffix) => segment
                .strip_suffix(suffix)
                .filter(|id| !id.is_empty() && !id.contains(':'))
                .map(Some),
            Self::Any => (!segment.is_empty()).then_some(Some(segment)),
        }
    }
}

/// Finds the route of a request. `HEAD` matches like `GET`.
pub(super) fn find(method: &Method, path: &str, is_conformance: bool) -> Found {
    let mut found = Found {
        route: None,
        params: Vec::new(),
        allowed: Vec::new(),
    };
    let Some(segments) = decode(path) else {
        return found;
    };
    let wanted = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    for template in TEMPLATES.get(segments.len()).into_iter().flatten() {
        if template.route.exists == Exists::Conformance && !is_conformance {
            continue;
        }
        let pairs = || template.segments.iter().zip(&segments);
        if !pairs().all(|(wanted, given)| wanted.take(given).is_some()) {
            continue;
        }
        if template.route.verb.method() == *wanted {
            found.route = Some(template.route);
            // Copy the parameters only after a match: most templates do not match.
            let params = pairs().filter_map(|(wanted, given)| wanted.take(given).flatten());
            found.params = params.map(str::to_owned).collect();
            return found;
        }
        let method = template.route.verb.method();
        let is_get = method == Method::GET;
        found.allowed.push(method);
        if is_get {
            found.allowed.push(Method::HEAD);
        }
    }
    found
}

/// The reason for a 501, if the path belongs to an unsupported part of the protocol.
pub(super) fn not_provided(path: &str) -> Option<&'static str> {
    let segments = decode(path)?;
    let fits = |pattern: &str| {
        let mut rest = segments.iter();
        for wanted in pattern[1..].split('/') {
            if wanted == "**" {
                return rest.next().is_some();
            }
            let Some(given) = rest.next() else { return false };
            let is_match = match wanted.strip_prefix('*') {
                Some(suffix) => given.len() > suffix.len() && given.ends_with(suffix),
                None => given == wanted,
            };
            if !is_match {
                return false;
            }
        }
        rest.next().is_none()
    };
    NOT_PROVIDED
        .iter()
        .find(|(pattern, _)| fits(pattern))
        .map(|(_, reason)| *reason)
}

/// Returns `true` if the path is below `/v1`, where a missing credential is reported before an unknown path.
pub(super) fn is_versioned(path: &str) -> bool {
    decode(path).is_none_or(|segments| segments.first().is_some_and(|first| first == "v1"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn found(method: &Method, path: &str) -> Option<(&'static str, Vec<String>)> {
        let found = find(method, path, false);
        found.route.map(|route| (route.id, found.params))
    }

    #[test]
    fn matches_verbs_after_parameters() {
        let run = |id| Some((id, vec!["run_1".to_owned()]));
        assert_eq!(found(&Method::POST, "/v1/runs/run_1:pause"), run("pauseRun"));
        assert_eq!(found(&Method::POST, "/v1/runs/run_1%3Apause"), run("pauseRun"));
        assert_eq!(
            found(&Method::POST, "/v1/runs/run_1:cancel"),
            run("cancelRunByVerb")
        );
        assert_eq!(found(&Method::POST, "/v1/runs/run_1/cancel"), run("cancelRun"));
        assert_eq!(found(&Method::GET, "/v1/runs/run_1"), run("getRun"));
        assert_eq!(found(&Method::HEAD, "/v1/runs/run_1"), run("getRun"));
        for path in ["/v1/runs:bulk-cancel", "/v1/runs%3abulk-cancel"] {
            assert_eq!(found(&Method::POST, path), Some(("bulkCancelRuns", vec![])));
        }
        let activity = |id| Some((id, vec!["a.b".to_owned()]));
        assert_eq!(
            found(&Method::POST, "/v1/activities/a.b:heartbeat"),
            activity("heartbeatActivity")
        );
        assert_eq!(
            found(&Method::POST, "/v1/activities/a.b"),
            activity("submitActivity")
        );
        let two = vec!["run_1".to_owned(), "a:b/c".to_owned()];
        assert_eq!(
            found(&Method::POST, "/v1/runs/run_1/interrupts/a:b%2Fc"),
            Some(("resolveInterruptByRun", two))
        );
    }

    #[test]
    fn unknown_paths_are_not_found() {
        for path in [
            "/v1/runs/run_1:fly",
            "/v1/runs/:pause",
            "/v1/runs/",
            "/v1/runs/a:b:pause",
            "/v1/runs/%ff",
            "/v1/runs/%",
            "//v1/runs",
            "/v1/runs/run_1/events/",
            "/v1/host/sample/a2a/tasks/x",
            "",
        ] {
            let found = find(&Method::POST, path, false);
            assert!(found.route.is_none() && found.allowed.is_empty(), "{path}");
        }
        let found = find(&Method::PUT, "/v1/runs", false);
        assert_eq!(found.allowed, [Method::POST, Method::GET, Method::HEAD]);
        assert!(
            find(&Method::GET, "/v1/host/sample/a2a/tasks/x", true)
                .route
                .is_some()
        );
    }

    #[test]
    fn unsupported_paths_have_a_reason() {
        assert!(not_provided("/v1/runs/run_1/annotations").is_some());
        assert!(not_provided("/v1/webhooks/x").is_some());
        for path in [
            "/v1/prompts",
            "/v1/prompts/x",
            "/v1/prompts:render",
            "/v1/prompts%3Arender",
        ] {
            assert!(not_provided(path).is_some(), "{path}");
        }
        for path in ["/v1/runs/:fork", "/v1/webhooksx", "/v1/content", "/v1/runs/x"] {
            assert!(not_provided(path).is_none(), "{path}");
        }
    }

    #[test]
    fn operation_ids_and_paths_are_unique() {
        let mut ids = HashSet::new();
        let mut places = HashSet::new();
        for route in ROUTES {
            assert!(ids.insert(route.id), "{}", route.id);
            assert!(places.insert((route.verb, route.path)), "{route:?}");
            assert!(
                !route.summary.is_empty() && route.path.starts_with('/'),
                "{route:?}"
            );
        }
    }
}
