//! Adds up the tokens and the cost of models: for a node, for a run, and for a run with its child runs.

use std::collections::VecDeque;

use serde_json::Value;

use crate::client::Client;

/// The most runs of a tree that are added up.
const MAX_RUNS: usize = 200;

/// Tokens, and what they cost as far as their providers have a price.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spending {
    tokens: u64,
    usd: f64,
}

impl Spending {
    /// What one answer took, from the payload of `provider.usage`.
    pub(crate) fn of_usage(payload: &Value) -> Self {
        let count = |name: &str| payload.get(name).and_then(Value::as_u64);
        let parts = [count("inputTokens"), count("outputTokens")]
            .into_iter()
            .flatten()
            .sum();
        Self {
            tokens: count("totalTokens").unwrap_or(parts),
            usd: payload
                .get("costEstimateUsd")
                .and_then(Value::as_f64)
                .unwrap_or(0.0),
        }
    }

    /// What a run took itself, from `metrics` of its snapshot.
    fn of_metrics(metrics: &Value) -> Self {
        let cost = metrics.get("openwopCost");
        let tokens = cost.and_then(|cost| cost.get("tokens"));
        let count = |name: &str| tokens.and_then(|tokens| tokens.get(name)).and_then(Value::as_u64);
        let tokens = [count("input"), count("output")].into_iter().flatten().sum();
        let usd = cost.and_then(|cost| cost.get("usd")).and_then(Value::as_f64);
        Self {
            tokens,
            usd: usd.unwrap_or(0.0),
        }
    }

    /// Sums up a run and the runs below it; of a very large tree, the first ones.
    pub(crate) async fn of_tree(client: &Client, run: &str) -> Self {
        let mut sum = Self::default();
        let mut left = VecDeque::from([run.to_owned()]);
        let mut n_read = 0;
        while let Some(run) = left.pop_front().filter(|_| n_read < MAX_RUNS) {
            n_read += 1;
            // It is told beside the result, and never instead of it.
            let Ok(snapshot) = client.run(&run).await else {
                continue;
            };
            let metrics = snapshot.metrics.map(Value::Object).unwrap_or_default();
            sum.add(Self::of_metrics(&metrics));
            left.extend(snapshot.child_runs.into_iter().map(|child| child.run_id));
        }
        sum
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.usd += other.usd;
    }

    /// In words, such as `1234 tokens, 0.0021 USD`; `None` if no model was asked.
    pub(crate) fn words(self) -> Option<String> {
        let tokens = match self.tokens {
            0 => return None,
            1 => "1 token".to_owned(),
            n => format!("{n} tokens"),
        };
        // A cost that would be shown as nothing is none that anybody looks for.
        let usd = format!("{:.4}", self.usd);
        let usd = usd.trim_end_matches('0').trim_end_matches('.');
        Some(match usd {
            "0" => tokens,
            usd => format!("{tokens}, {usd} USD"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_and_cost_are_added_up_and_told() {
        let mut sum = Spending::default();
        assert_eq!(sum.words(), None);
        sum.add(Spending::of_usage(
            &json!({ "inputTokens": 30, "outputTokens": 4 }),
        ));
        assert_eq!(sum.words().as_deref(), Some("34 tokens"));
        sum.add(Spending::of_usage(
            &json!({ "inputTokens": 1, "outputTokens": 1, "totalTokens": 5, "costEstimateUsd": 0.0125 }),
        ));
        assert_eq!(sum.words().as_deref(), Some("39 tokens, 0.0125 USD"));
        sum.add(Spending::of_metrics(
            &json!({ "openwopCost": { "tokens": { "input": 1, "output": 0 }, "usd": 1.9875 } }),
        ));
        assert_eq!(sum.words().as_deref(), Some("40 tokens, 2 USD"));
        assert_eq!(Spending::of_metrics(&Value::Null).words(), None);
    }
}
