//! What a model has to sum up before it reads a prompt.

use serde::{Deserialize, Serialize};
use wopr_kernel::{ModelMessage, Seq};

/// Turns of a loop that no longer fit into the prompt of the next one. Sizes are in characters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summarizing {
    /// What the model is asked.
    pub messages: Vec<ModelMessage>,
    /// Where its summary goes among the messages of the prompt.
    pub at: u64,
    pub n_turns: u64,
    /// The events of the turns, and that of the summary which stood for those before.
    pub replaces: Vec<Seq>,
    /// The text that replaces the turns if the model returns no summary.
    pub otherwise: String,
    /// The size of all turns, with the summary before.
    pub size: u64,
    /// The size of the turns that are kept.
    pub kept: u64,
}

impl Summarizing {
    /// The approximate payload in bytes.
    pub(crate) fn size(&self) -> usize {
        let said: usize = self.messages.iter().map(ModelMessage::size).sum();
        said + self.otherwise.len() + size_of::<Seq>() * self.replaces.len()
    }
}
