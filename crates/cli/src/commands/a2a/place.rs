//! The flags that select an agent, a protocol version and a binding.

use anyhow::Result;
use clap::{Args, ValueEnum};
use wopr_wire::a2a::method::Version;

use crate::{
    agent::{Agent, Binding, Sought, Wanted},
    args::{Format, Remote},
};

/// The agent, and how to call it.
#[derive(Debug, Args)]
pub(super) struct Place {
    #[command(flatten)]
    pub(super) remote: Remote,
    /// Use this protocol version only
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// Use this binding only
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
    /// Replaces the agent if one was named as an argument.
    pub(super) fn at(mut self, agent: Option<String>) -> Self {
        if let Some(agent) = agent {
            self.remote.server = agent;
        }
        self
    }

    pub(super) async fn agent(&self) -> Result<Agent> {
        let Remote {
            server,
            key,
            authorities,
        } = &self.remote;
        Agent::find(server, key.clone(), self.wanted(), &authorities.read()?).await
    }

    /// Finds the agent, or only its card if no interface can be used.
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
            binding: self.binding.map(Into::into),
        }
    }
}
