//! The texts that describe a gate. They may be templates, rendered when the gate opens.
//!
//! A rendered text that is too long is truncated instead of failing the gate: anybody may supply its values,
//! and a long prompt is no reason to lose the interrupt. Texts without template syntax stay unchanged.

use serde_json::{Map, Value};

use crate::{
    expression::{Template, is_template},
    schema::Allowance,
};

/// The data member that names the artifact a gate is about.
pub(crate) const ARTIFACT: &str = "artifactId";
/// The data member with the title of an interrupt.
pub(crate) const TITLE: &str = "title";

/// The text members, each with its maximum number of characters once rendered.
const TEXTS: [(&str, usize); 4] = [
    (TITLE, 200),
    ("description", 8_000),
    ("prompt", 8_000),
    (ARTIFACT, 256),
];

/// The templates among a gate's texts.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// Each with the data member that it renders.
    pub templates: Vec<Text>,
    /// Whether the definition names an artifact.
    pub names_artifact: bool,
}

#[derive(Debug)]
pub(crate) struct Text {
    pub name: &'static str,
    pub template: Template,
    /// Maximum number of characters shown.
    most: usize,
}

impl About {
    /// Parses the texts of a gate's data; fails if a text with template syntax is not a valid template.
    pub(super) fn read(data: &Map<String, Value>, allowance: &Allowance) -> Result<Self, String> {
        let mut about = Self {
            names_artifact: data.get(ARTIFACT).is_some_and(Value::is_string),
            ..Self::default()
        };
        for (name, most) in TEXTS {
            if let Some(Value::String(source)) = data.get(name)
                && is_template(source)
            {
                let template = Template::compile(source, allowance)
                    .map_err(|error| format!("config.{name}: {error}"))?;
                about.templates.push(Text { name, template, most });
            }
        }
        Ok(about)
    }
}

impl Text {
    /// Truncates a rendered text to its limit.
    pub(crate) fn cut(&self, text: &str) -> String {
        if text.chars().nth(self.most).is_none() {
            return text.to_owned();
        }
        let kept = text.chars().take(self.most - 1);
        kept.chain(['…']).collect()
    }
}

/// Copies the texts that are next to `data` in the configuration into the interrupt's data.
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
