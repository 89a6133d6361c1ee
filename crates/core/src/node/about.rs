//! What a gate says it is about: texts that are templates, rendered when the gate opens.
//!
//! A rendered text is cut to its bound instead of failing the gate: its values may be anybody's, and a long prompt
//! is no reason to lose the question. Texts without template syntax stay as they are.

use serde_json::{Map, Value};

use crate::expression::{Template, is_template};

/// The artifact a gate is about.
pub(crate) const ARTIFACT: &str = "artifactId";
/// The name of a question.
pub(crate) const TITLE: &str = "title";

/// The texts, each with the characters it may have once it is rendered.
const TEXTS: [(&str, usize); 4] = [
    (TITLE, 200),
    ("description", 8_000),
    ("prompt", 8_000),
    (ARTIFACT, 256),
];

/// The templates among the texts of a gate.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// Each with the member of the interrupt's data it becomes.
    pub templates: Vec<Text>,
    /// Whether the definition names an artifact.
    pub names_artifact: bool,
}

/// A text that is a template.
#[derive(Debug)]
pub(crate) struct Text {
    pub name: &'static str,
    pub template: Template,
    /// The most characters of it that are shown.
    most: usize,
}

impl About {
    /// Reads the texts of a gate's data.
    ///
    /// # Errors
    /// A text is no template, though it looks like one.
    pub(super) fn read(data: &Map<String, Value>) -> Result<Self, String> {
        let mut about = Self {
            names_artifact: data.get(ARTIFACT).is_some_and(Value::is_string),
            ..Self::default()
        };
        for (name, most) in TEXTS {
            if let Some(Value::String(source)) = data.get(name)
                && is_template(source)
            {
                let template = Template::parse(source).map_err(|error| format!("config.{name}: {error}"))?;
                about.templates.push(Text { name, template, most });
            }
        }
        Ok(about)
    }
}

impl Text {
    /// A rendered text within its bound.
    pub(crate) fn cut(&self, text: &str) -> String {
        if text.chars().nth(self.most).is_none() {
            return text.to_owned();
        }
        let kept = text.chars().take(self.most - 1);
        kept.chain(['…']).collect()
    }
}

/// Adds to an interrupt's data the texts that stand beside it in the configuration.
pub(super) fn with_texts(mut data: Map<String, Value>, config: &Map<String, Value>) -> Map<String, Value> {
    for (name, _) in TEXTS {
        if let Some(text) = config.get(name).filter(|text| text.is_string())
            && !data.contains_key(name)
        {
            data.insert(name.to_owned(), text.clone());
        }
    }
    data
}
