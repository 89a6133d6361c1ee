//! The operations of the control plane.

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tool {
    Start,
    Status,
    Resume,
    SubmitActivity,
    Signal,
    Cancel,
    List,
}

impl Tool {
    pub const ALL: [Self; 7] = [
        Self::Start,
        Self::Status,
        Self::Resume,
        Self::SubmitActivity,
        Self::Signal,
        Self::Cancel,
        Self::List,
    ];

    /// The name by which the protocol calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "workflow_start",
            Self::Status => "workflow_status",
            Self::Resume => "workflow_resume",
            Self::SubmitActivity => "workflow_submit_activity",
            Self::Signal => "workflow_signal",
            Self::Cancel => "workflow_cancel",
            Self::List => "workflow_list",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }
}
