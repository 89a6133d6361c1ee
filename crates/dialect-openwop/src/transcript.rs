//! What a model that leads is told of the turns before, within the bounds of its supervisor.
//!
//! A turn is a decision and what followed from it. Where all turns are too much, the oldest are left out, or a model
//! sums them up first. Which turns that are is a function of the log alone, so every repetition chooses the same.

use wopr_kernel::{Seq, fence};

use crate::{
    node::Bounds,
    state::{MAX_PAST, MAX_TOLD, Past, Summary},
};

/// The most characters in which one turn is told: two texts of [`MAX_TOLD`] bytes, which grow where they are
/// neutralised, and the words around them.
pub(crate) const MAX_TURN_TOLD: usize = 11_000;
/// The same of a summary.
pub(crate) const MAX_SUMMARY_TOLD: usize = 5_500;
/// The longest part of a decision that stands in a summary without a model, in bytes.
const MAX_LINE: usize = 200;
/// The longest part of the summary before it.
const MAX_BEFORE: usize = 512;

/// The turns before, in the words in which a model is told of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Transcript {
    /// The summary, if there is one, and then a message for each turn, the oldest first.
    pub(crate) messages: Vec<String>,
    /// What has to be summed up before the messages are read. Then they have neither it nor an earlier summary.
    pub(crate) excess: Option<Excess>,
}

/// Turns that no longer fit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// In the words of the transcript, with the last summary before them.
    pub(crate) messages: Vec<String>,
    pub(crate) n_turns: usize,
    /// The events of the turns, after that of the summary that stood for those before.
    pub(crate) replaces: Vec<Seq>,
    /// What stands for them if the model says nothing.
    pub(crate) otherwise: String,
    /// The characters of the whole transcript.
    pub(crate) size: usize,
}

/// The size of texts, in the unit of budgets.
pub(crate) fn size(messages: &[String]) -> usize {
    messages.iter().map(|text| text.chars().count()).sum()
}

/// The message that gives a summary of earlier turns to the model.
pub(crate) fn told_summary(text: &str) -> String {
    format!(
        "What happened in earlier turns, summed up:\n{}",
        fence("summary", text)
    )
}

impl Transcript {
    pub(crate) fn of(past: &[Past], summary: Option<&Summary>, bounds: &Bounds) -> Self {
        let summed_up = summary.map(|summary| told_summary(&summary.text));
        let events = events(past);
        let n_events = events.len();
        if let Some(kept) = bounds.kept
            && past.len() > kept
        {
            let all: Vec<_> = summed_up.iter().cloned().chain(turns(&events)).collect();
            let size = size(&all);
            let is_over = n_events > bounds.window
                // The next decision takes the place of the oldest.
                || past.len() >= MAX_PAST
                || bounds.budget.is_some_and(|budget| size > budget);
            if is_over {
                return Self::with_excess(past, summary, all, size, kept);
            }
        }
        let mut left = &events[n_events.saturating_sub(bounds.window)..];
        if let Some(budget) = bounds.budget {
            let room = budget.saturating_sub(size(summed_up.as_slice()));
            let mut used = 0;
            let fits = left.iter().rev().take_while(|event| {
                used += event.text.chars().count() + event.breaks();
                used <= room
            });
            left = &left[left.len() - fits.count()..];
        }
        Self {
            messages: summed_up.into_iter().chain(turns(left)).collect(),
            excess: None,
        }
    }

    fn with_excess(
        past: &[Past],
        summary: Option<&Summary>,
        mut all: Vec<String>,
        size: usize,
        kept: usize,
    ) -> Self {
        let n_turns = past.len() - kept;
        let messages = all.split_off(all.len() - kept);
        let old = &past[..n_turns];
        let events = old.iter().flat_map(|past| [past.decided, past.ended]);
        let before = summary.map(|summary| summary.at);
        Self {
            messages,
            excess: Some(Excess {
                messages: all,
                n_turns,
                replaces: before.into_iter().chain(events.flatten()).collect(),
                otherwise: without_a_model(old, summary),
                size,
            }),
        }
    }
}

/// An event of a turn, as the model reads it.
struct Told {
    text: String,
    /// Whether another event of the same turn follows.
    goes_on: bool,
}

impl Told {
    /// The line breaks behind it.
    fn breaks(&self) -> usize {
        usize::from(self.goes_on)
    }
}

/// The events of turns, the oldest first.
fn events(past: &[Past]) -> Vec<Told> {
    let mut events = Vec::with_capacity(2 * past.len());
    for past in past {
        events.push(Told {
            text: format!("You decided:\n{}", fence("decision", &past.decision)),
            goes_on: past.followed.is_some(),
        });
        events.extend(past.followed.as_ref().map(|text| Told {
            text: format!("What followed:\n{}", fence("workers", text)),
            goes_on: false,
        }));
    }
    events
}

/// A message for each turn.
fn turns(events: &[Told]) -> impl Iterator<Item = String> {
    let of_turns = events.split_inclusive(|event| !event.goes_on);
    of_turns.map(|turn| {
        let texts: Vec<_> = turn.iter().map(|event| event.text.as_str()).collect();
        texts.join("\n")
    })
}

/// The decisions of turns, each on a line of its own.
fn without_a_model(past: &[Past], summary: Option<&Summary>) -> String {
    let mut lines =
        vec!["The model gave no summary of these decisions, of which the beginnings are:".to_owned()];
    lines.extend(past.iter().map(|past| cut(&past.decision, MAX_LINE).to_owned()));
    if let Some(summary) = summary {
        lines.push("Before them:".to_owned());
        lines.push(cut(&summary.text, MAX_BEFORE).to_owned());
    }
    cut(&lines.join("\n"), MAX_TOLD).to_owned()
}

/// The beginning of a text, of at most so many bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn past(n: u64, decision: &str, followed: Option<&str>) -> Past {
        Past {
            decision: decision.to_owned(),
            followed: followed.map(ToOwned::to_owned),
            decided: Some(Seq(10 * n)),
            ended: followed.map(|_| Seq(10 * n + 5)),
        }
    }

    fn turns(n: u64) -> Vec<Past> {
        let turn = |n| past(n, &format!("decision {n} {}", "x".repeat(1_000)), Some("result"));
        (1..=n).map(turn).collect()
    }

    #[test]
    fn what_fits_is_told_as_it_is() {
        let bounds = Bounds {
            window: 32,
            budget: Some(11_000),
            kept: None,
        };
        let transcript = Transcript::of(&turns(8), None, &bounds);
        assert_eq!(transcript.messages.len(), 8);
        assert_eq!(transcript.excess, None);
    }

    #[test]
    fn the_oldest_events_are_left_out_where_nobody_sums_up() {
        let bounds = Bounds {
            window: 32,
            budget: Some(11_000),
            kept: None,
        };
        let transcript = Transcript::of(&turns(16), None, &bounds);
        assert!(transcript.messages.len() < 16);
        assert!(size(&transcript.messages) <= 11_000);
        let last = transcript.messages.last().map(String::as_str).unwrap_or_default();
        assert!(last.contains("decision 16"), "{last}");
        assert_eq!(transcript.excess, None);
    }

    #[test]
    fn either_bound_makes_an_excess_of_all_turns_but_the_kept_ones() {
        let summary = Summary {
            text: "earlier".to_owned(),
            at: Seq(3),
        };
        for (n, window, budget) in [(16, 32, None), (5, 8, None), (15, 32, Some(16_500))] {
            let bounds = Bounds {
                window,
                budget,
                kept: Some(1),
            };
            let transcript = Transcript::of(&turns(n), Some(&summary), &bounds);
            assert_eq!(transcript.messages.len(), 1, "{n}");
            let excess = transcript.excess.expect("too much");
            assert_eq!(excess.n_turns as u64, n - 1);
            assert_eq!(
                excess.messages.len() as u64,
                n,
                "the summary is summed up with them"
            );
            assert_eq!(excess.replaces[..3], [Seq(3), Seq(10), Seq(15)]);
            assert_eq!(excess.replaces.len() as u64, 1 + 2 * (n - 1));
            assert!(excess.otherwise.contains("decision 1 "), "{}", excess.otherwise);
            assert!(
                excess.otherwise.ends_with("Before them:\nearlier"),
                "{}",
                excess.otherwise
            );
        }
        let bounds = Bounds {
            window: 32,
            budget: Some(16_500),
            kept: Some(1),
        };
        assert_eq!(Transcript::of(&turns(8), Some(&summary), &bounds).excess, None);
    }

    proptest! {
        /// So the bounds that a supervisor may have leave room for what has to be told.
        #[test]
        fn a_turn_and_a_summary_have_a_largest_size(
            parts in vec(prop_oneof!["[<＜‹〈]/?U.?NTRUSTED".boxed(), "\\PC{0,40}".boxed()], 0..600),
        ) {
            let text = Past::cut(parts.concat());
            let turn = past(1, &text, Some(&text));
            let told: Vec<_> = super::turns(&events(&[turn])).collect();
            prop_assert!(size(&told) <= MAX_TURN_TOLD, "{}", size(&told));
            let summary = [told_summary(cut(&text, MAX_TOLD))];
            prop_assert!(size(&summary) <= MAX_SUMMARY_TOLD);
        }
    }
}
