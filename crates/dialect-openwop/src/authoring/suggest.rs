//! "Did you mean": finds the existing name that is closest to an unknown one.

/// Longest name that is compared, in characters.
const MAX_NAME: usize = 64;
/// Maximum number of edit-distance table cells computed for one document.
const BUDGET: usize = 2_000_000;

/// Cost of considering a name without comparing it.
const LOOK: usize = 48;

/// Finds similar names within a budget for the whole document.
#[derive(Debug)]
pub(super) struct Suggest {
    left: usize,
}

impl Suggest {
    pub(super) const fn new() -> Self {
        Self { left: BUDGET }
    }

    /// The closest known name, if it is close enough to be the intended one.
    pub(super) fn closest<'a>(
        &mut self,
        wrong: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        let wrong = letters(wrong)?;
        // A common prefix such as `core.` does not make names similar.
        let last = wrong.rsplit(|c| *c == '.').next().map_or(0, <[char]>::len);
        let most = match last {
            0..=2 => 1,
            3..=5 => 2,
            _ => 3,
        };
        let mut best: Option<(usize, &str)> = None;
        for name in known {
            if self.left < LOOK {
                break;
            }
            self.left -= LOOK;
            let Some(candidate) = letters(name) else { continue };
            if candidate.len().abs_diff(wrong.len()) > most
                && !is_tail(&candidate, &wrong)
                && !is_tail(&wrong, &candidate)
            {
                continue;
            }
            let cells = candidate.len() * wrong.len();
            if cells > self.left {
                break;
            }
            self.left -= cells;
            let distance = if is_tail(&candidate, &wrong) || is_tail(&wrong, &candidate) {
                1
            } else {
                distance(&wrong, &candidate)
            };
            // A name that shares no letter has a distance of its full length.
            if distance <= most
                && distance < wrong.len().max(candidate.len())
                // Candidates come in arbitrary order, so ties are broken by name.
                && best.is_none_or(|best| (distance, name) < best)
            {
                best = Some((distance, name));
            }
        }
        best.map(|(_, name)| name)
    }

    /// A hint with the closest name.
    pub(super) fn hint<'a>(
        &mut self,
        wrong: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Option<String> {
        self.closest(wrong, known)
            .map(|name| format!("did you mean '{name}'?"))
    }
}

/// Normalizes a name: case does not count, and `-`, `_` and spaces are the same.
fn letters(name: &str) -> Option<Vec<char>> {
    let letters: Vec<_> = name
        .chars()
        .take(MAX_NAME + 1)
        .flat_map(char::to_lowercase)
        .map(|c| if matches!(c, '-' | ' ') { '_' } else { c })
        .collect();
    (letters.len() <= MAX_NAME).then_some(letters)
}

/// Whether `tail` is the last part of `whole`, as `template` is of `core.template`.
fn is_tail(whole: &[char], tail: &[char]) -> bool {
    tail.len() >= 3
        && whole
            .strip_suffix(tail)
            .is_some_and(|rest| rest.last().is_some_and(|c| matches!(c, '.' | '_')))
}

/// Edit distance: insertions, deletions, substitutions and transpositions of neighbors.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (above[j] + 1).min(row[j - 1] + 1).min(above[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row[j] = least;
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_closest_name() {
        let known = [
            "core.template",
            "core.delay",
            "core.approvalGate",
            "pay-now",
            "amount",
            "id",
        ];
        for (wrong, meant) in [
            ("core.tempalte", Some("core.template")),
            ("template", Some("core.template")),
            ("core.ApprovalGate", Some("core.approvalGate")),
            ("pay_now", Some("pay-now")),
            ("ammount", Some("amount")),
            ("ID", Some("id")),
            ("x", None),
            ("core.fly", None),
            ("something else", None),
            ("", None),
        ] {
            assert_eq!(Suggest::new().closest(wrong, known), meant, "{wrong}");
        }
    }

    #[test]
    fn suggestions_stop_when_the_budget_is_spent() {
        let names: Vec<_> = (0..2_000).map(|n| format!("{}{n:04}", "a".repeat(60))).collect();
        let mut suggest = Suggest::new();
        for _ in 0..100 {
            let _ = suggest.closest(&"b".repeat(64), names.iter().map(String::as_str));
        }
        assert!(suggest.left < 64 * 64);
    }
}
