//! Which agent a command talks to, and how.

use anyhow::Result;
use clap::{Args, ValueEnum};
use wopr_wire::a2a::method::Version;

use crate::{
    agent::{Agent, Binding, Sought, Wanted},
    args::{Format, Remote},
};

/// Which agent, and how it is spoken to.
#[derive(Debug, Args)]
pub(super) struct Place {
    #[command(flatten)]
    pub(super) remote: Remote,
    /// Speak this version, whatever else the agent offers
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// Speak over this binding, whatever else the agent offers
    #[arg(long, value_enum)]
    binding: Option<Binding>,
    #[command(flatten)]
    pub(super) format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Protocol {
    #[value(name = "1.0")]
    V1,
    #[value(name = "0.3")]
    V03,
}

impl Place {
    /// The same with another agent, where one was named beside the flags.
    pub(super) fn at(mut self, agent: Option<String>) -> Self {
        if let Some(agent) = agent {
            self.remote.server = agent;
        }
        self
    }

    /// Finds the agent.
    pub(super) async fn agent(&self) -> Result<Agent> {
        let Remote {
            server,
            key,
            authorities,
        } = &self.remote;
        Agent::find(server, key.clone(), self.wanted(), &authorities.read()?).await
    }

    /// Finds the agent, or its card alone.
    pub(super) async fn card(&self) -> Result<Sought> {
        let Remote {
            server,
            key,
            authorities,
        } = &self.remote;
        Agent::try_find(server, key.clone(), self.wanted(), &authorities.read()?).await
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            version: self.protocol.map(|protocol| match protocol {
                Protocol::V1 => Version::V1_0,
                Protocol::V03 => Version::V0_3,
            }),
            binding: self.binding,
        }
    }
}
