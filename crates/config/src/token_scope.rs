//! The scopes of the protocol: what its tokens are given, and what errors name.

use serde::Deserialize;

use wopr_app::{Scope, Scopes};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    Start,
    Resume,
    ReadHistory,
    SubmitActivity,
}

impl TokenScope {
    const ALL: [Self; 4] = [Self::Start, Self::Resume, Self::ReadHistory, Self::SubmitActivity];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Resume => "resume",
            Self::ReadHistory => "read_history",
            Self::SubmitActivity => "submit_activity",
        }
    }

    /// The scopes of this host that it stands for.
    pub const fn scopes(self) -> Scopes {
        match self {
            Self::Start => Scopes::one(Scope::RunsCreate)
                .with(Scopes::one(Scope::RunsCancel))
                .with(Scopes::one(Scope::WorkflowsWrite))
                .with(Scopes::one(Scope::ManifestRead)),
            // A signal is an answer, too.
            Self::Resume => Scopes::one(Scope::ApprovalsRespond),
            Self::ReadHistory => Scopes::one(Scope::RunsRead).with(Scopes::one(Scope::ManifestRead)),
            Self::SubmitActivity => Scopes::one(Scope::ActivitiesWork),
        }
    }

    /// The protocol's scope that includes a missing scope of this host; the narrowest, if several do.
    pub fn needed(lacking: Scope) -> Option<Self> {
        let all = [Self::ReadHistory, Self::Resume, Self::SubmitActivity, Self::Start];
        all.into_iter().find(|scope| scope.scopes().has(lacking))
    }

    /// Those that a caller with these scopes has in full.
    pub fn granted(scopes: Scopes) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |scope| scopes.covers(scope.scopes()))
    }
}
