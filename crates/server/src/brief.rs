//! The texts of workflows as lists and agent cards repeat them: cut, so that a list of however many workflows of
//! however long texts has a bounded size. The document of a workflow has them whole.

use std::borrow::Cow;

/// How many bytes the texts of all workflows of a list may have, roughly.
const ALL: usize = 2 << 20;
/// The bounds of one workflow's share of them.
const LEAST: usize = 256;
const MOST: usize = 4_096;
/// Longest name, title, tag or example, in bytes.
const LABEL: usize = 256;
/// Where a text was cut.
const CUT: char = '…';

/// What a list repeats of each workflow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brief {
    most: usize,
}

impl Brief {
    /// For a list of so many workflows.
    pub(crate) fn among(n_workflows: usize) -> Self {
        Self {
            most: (ALL / n_workflows.max(1)).clamp(LEAST, MOST),
        }
    }

    pub(crate) fn description(self, text: &str) -> Cow<'_, str> {
        cut(text, self.most)
    }

    /// The first of several short texts, such as tags.
    pub(crate) fn labels<'t>(self, texts: impl Iterator<Item = &'t str>) -> Vec<String> {
        let mut left = self.most;
        let fit = texts.map(label).take_while(|text| {
            let fits = text.len() <= left;
            left = left.saturating_sub(text.len());
            fits
        });
        fit.map(Cow::into_owned).collect()
    }
}

/// A name or a title.
pub(crate) fn label(text: &str) -> Cow<'_, str> {
    cut(text, LABEL)
}

fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let begin = &text[..text.floor_char_boundary(most)];
    Cow::Owned(format!("{begin}{CUT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_list_has_the_texts_whole() {
        let brief = Brief::among(3);
        let text = "é".repeat(MOST / 2);
        assert_eq!(brief.description(&text), text);
        assert_eq!(brief.labels(["a", "b"].into_iter()), ["a", "b"]);
    }

    #[test]
    fn texts_are_cut_at_a_character_and_lists_have_a_bound() {
        let long = "é".repeat(9_000);
        let cut = Brief::among(1).description(&long).into_owned();
        assert!(cut.ends_with("é…") && cut.len() <= MOST + CUT.len_utf8());
        assert!(label(&long).len() <= LABEL + CUT.len_utf8());
        for n in [1, 100, 4_000] {
            let brief = Brief::among(n);
            let labels = brief.labels(std::iter::repeat_n(long.as_str(), 1_000));
            let n_bytes = brief.description(&long).len() + labels.concat().len();
            assert!(n * n_bytes <= 2 * ALL + 100 * n, "{n}: {n_bytes}");
        }
    }
}
