//! A bound on the comparisons of a search.

/// Steps for each byte of a text. A text that has nothing of a secret takes one or two.
const FOR_EACH: usize = 4;
/// Steps for a text of any length.
const FOR_ANY: usize = 64 << 10;

/// What is left of the comparisons of one search.
pub(super) struct Steps(usize);

/// The search took too many steps: the text repeats what the secret begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// The text with another one in the place of each range that `next` finds from a byte on; `None` if it finds none. After too
/// many steps, all of the text is replaced.
pub(super) fn replaced(
    text: &str,
    replacement: &str,
    mut next: impl FnMut(usize) -> Result<Option<(usize, usize)>, Exhausted>,
) -> Option<String> {
    let (mut replaced, mut rest) = (String::new(), 0);
    loop {
        match next(rest) {
            Err(Exhausted) => return Some(replacement.to_owned()),
            Ok(Some((start, end))) => {
                replaced.push_str(&text[rest..start]);
                replaced.push_str(replacement);
                rest = end;
            }
            Ok(None) if rest == 0 => return None,
            Ok(None) => {
                replaced.push_str(&text[rest..]);
                return Some(replaced);
            }
        }
    }
}

impl Steps {
    pub(super) fn for_text(n_bytes: usize) -> Self {
        Self(n_bytes.saturating_mul(FOR_EACH).saturating_add(FOR_ANY))
    }

    pub(super) fn take(&mut self) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }
}
