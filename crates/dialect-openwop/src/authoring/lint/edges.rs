//! Warnings about single edges and their conditions.

use std::collections::HashMap;

use serde_json::{Value, json};
use wopr_kernel::Rules;

use crate::{
    ApprovalAction, Problem, Spot,
    cost::{self, Budget},
    definition::{EdgeCondition, Operator, TriggerRule},
    expression::Expression,
    node::NodeKind,
    plan::Plan,
};

use super::{Lint, Warnings, always_fails, edge_place, never_fails, parsing, written};

pub(super) fn check(plan: &Plan, constants: &[Option<bool>], warnings: &mut Warnings<'_>) {
    duplicates(plan, warnings);
    for (edge, constant) in constants.iter().enumerate() {
        if warnings.is_full() {
            return;
        }
        without_effect(plan, edge, warnings);
        condition(plan, edge, *constant, warnings);
    }
}

/// The truth value of each edge's condition, if it does not depend on the run.
pub(super) fn constants(plan: &Plan, budget: &Budget) -> Vec<Option<bool>> {
    let conditions = plan.definition.edges.iter().map(|edge| edge.condition.as_ref());
    conditions.map(|condition| constant(condition?, budget)).collect()
}

fn at(plan: &Plan, edge: usize, member: &str, rule: String, hint: &str) -> Problem {
    Problem::new(edge_place(&plan.definition, edge), rule)
        .at(format!("/edges/{edge}{member}"), Spot::Value)
        .hint((!hint.is_empty()).then(|| hint.to_owned()))
}

/// Warns about edges between the same nodes with the same rule and condition.
fn duplicates(plan: &Plan, warnings: &mut Warnings<'_>) {
    let mut seen = HashMap::new();
    for (index, edge) in plan.definition.edges.iter().enumerate() {
        let condition = edge.condition.as_ref().map(|condition| {
            let right = condition.right.as_ref().map(Value::to_string);
            (
                condition.operator as u8,
                &condition.left,
                right,
                &condition.expression,
            )
        });
        let key = (
            &edge.source_node_id,
            &edge.target_node_id,
            edge.trigger_rule as u8,
            condition,
        );
        if let Some(first) = seen.insert(key, index) {
            let rule = format!("says the same as the edge '{}'", plan.definition.edges[first].id);
            warnings.add(
                Lint::DuplicateEdge,
                at(plan, index, "", rule, "remove one of them"),
            );
        }
    }
}

fn without_effect(plan: &Plan, edge: usize, warnings: &mut Warnings<'_>) {
    let planned = &plan.edges[edge];
    let source = &plan.nodes[planned.source];
    if source.disabled || plan.nodes[planned.target].disabled {
        return;
    }
    let document = plan.definition.document.pointer(&format!("/edges/{edge}"));
    for (member, default) in [("sourceOutput", "output"), ("targetInput", "input")] {
        let value = document.and_then(|edge| edge.get(member)).and_then(Value::as_str);
        if let Some(value) = value.filter(|value| *value != default && !value.is_empty()) {
            let rule = format!("'{member}' is '{value}', which has no effect: edges carry no data");
            let hint = "give the target an input of type connection";
            warnings.add(Lint::NoEffect, at(plan, edge, &format!("/{member}"), rule, hint));
        }
    }
    let target = &plan.nodes[planned.target];
    // If it is the only edge of its kind, its target is unreachable, which another lint reports.
    if target.forward.len() < 2 && planned.slot.is_some() {
        return;
    }
    match planned.rule {
        TriggerRule::AnySuccess if always_fails(&source.kind) => {
            let rule = format!("is never taken: node '{}' always fails", source.id);
            let hint = "\"triggerRule\": \"any_failed\" follows a failure";
            warnings.add(Lint::NoEffect, at(plan, edge, "", rule, hint));
        }
        TriggerRule::AnyFailed if never_fails(plan, planned.source) => {
            let rule = format!("is never taken: node '{}' never fails", source.id);
            warnings.add(Lint::NoEffect, at(plan, edge, "/triggerRule", rule, "remove it"));
        }
        TriggerRule::AllSuccess
        | TriggerRule::AnySuccess
        | TriggerRule::AllComplete
        | TriggerRule::NoneFailed
        | TriggerRule::AnyFailed => {}
    }
}

fn condition(plan: &Plan, edge: usize, constant: Option<bool>, warnings: &mut Warnings<'_>) {
    let Some(condition) = &plan.definition.edges[edge].condition else {
        return;
    };
    let ignored = match condition.operator {
        Operator::Expression => [
            condition.left.is_some().then_some("left"),
            condition.right.is_some().then_some("right"),
        ],
        Operator::Truthy | Operator::Falsy => [
            condition.right.is_some().then_some("right"),
            condition.expression.is_some().then_some("expression"),
        ],
        Operator::Equals | Operator::NotEquals | Operator::Contains | Operator::Regex => {
            [condition.expression.is_some().then_some("expression"), None]
        }
    };
    for member in ignored.into_iter().flatten() {
        let rule = format!("condition.{member} has no effect in a condition of this type");
        let member = format!("/condition/{member}");
        warnings.add(
            Lint::NoEffect,
            at(
                plan,
                edge,
                &member,
                rule,
                "remove it, or give the condition another type",
            ),
        );
    }
    if let Some(holds) = constant {
        let rule = if holds {
            "the condition always holds"
        } else {
            "the condition never holds"
        };
        let hint = "name an output, a variable or an input in it; texts that are literals are in quotes";
        warnings.add(
            Lint::ConstantCondition,
            at(plan, edge, "/condition", rule.to_owned(), hint),
        );
        return;
    }
    never_holds(plan, edge, condition, warnings);
}

/// The truth value of a condition that reads nothing of the run, if the budget allows evaluating it.
fn constant(condition: &EdgeCondition, budget: &Budget) -> Option<bool> {
    let source = match condition.operator {
        Operator::Expression => condition.expression.as_deref()?,
        Operator::Equals
        | Operator::NotEquals
        | Operator::Contains
        | Operator::Regex
        | Operator::Truthy
        | Operator::Falsy => condition.left.as_deref()?,
    };
    parsing(budget, source).ok()?;
    let expression = Expression::parse(source).ok()?;
    if !expression.reads().is_empty() {
        return None;
    }
    match condition.operator {
        Operator::Expression | Operator::Truthy => expression.always_holds(budget).ok(),
        Operator::Falsy => expression.always_holds(budget).ok().map(|holds| !holds),
        Operator::Equals => Some(expression.always(budget).ok()? == condition.right),
        Operator::NotEquals => Some(expression.always(budget).ok()? != condition.right),
        Operator::Contains | Operator::Regex => None,
    }
}

/// Warns about comparisons with values that a well-known output never has.
fn never_holds(plan: &Plan, edge: usize, condition: &EdgeCondition, warnings: &mut Warnings<'_>) {
    let Some((left, Comparison::Is, right)) = comparison(condition) else {
        return;
    };
    if right == Value::Bool(true) {
        // The comparison may mean any truthy value.
        return;
    }
    let source = &plan.nodes[plan.edges[edge].source];
    let is_of_success = matches!(
        plan.edges[edge].rule,
        TriggerRule::AllSuccess | TriggerRule::AnySuccess
    );
    let at_right = if condition.operator == Operator::Expression {
        "/condition/expression"
    } else {
        "/condition/right"
    };
    if left == "status" {
        let possible: &[&str] = match (is_of_success, plan.edges[edge].rule) {
            (true, _) => &["completed"],
            (false, TriggerRule::AnyFailed) => &["failed"],
            (false, _) => &["completed", "failed"],
        };
        if right.as_str().is_none_or(|right| !possible.contains(&right)) {
            let list = possible.join(" or ");
            let rule = format!("the condition never holds: status is never {}", written(&right));
            let hint = format!("with this triggerRule it is {list}");
            warnings.add(Lint::NeverHolds, at(plan, edge, at_right, rule, &hint));
        }
        return;
    }
    let NodeKind::Approval(gate) = &source.kind else {
        return;
    };
    if left != "output.action" {
        return;
    }
    let Rules::Approval(rules) = &gate.rules else {
        return;
    };
    let names: Vec<_> = rules
        .actions
        .iter()
        .filter(|action| **action != ApprovalAction::Reject)
        .map(|action| action.as_str())
        .collect();
    let right_text = right.as_str().unwrap_or_default();
    if names.contains(&right_text) || !is_of_success {
        return;
    }
    if right_text == ApprovalAction::Reject.as_str() {
        let rule = format!(
            "the condition never holds: a rejected gate fails, and '{}' has no action then",
            source.id
        );
        let hint = "drop the condition and give the edge \"triggerRule\": \"any_failed\"";
        warnings.add(Lint::NeverHolds, at(plan, edge, at_right, rule, hint));
    } else {
        let rule = format!(
            "the condition never holds: the gate '{}' never answers {}",
            source.id,
            written(&right)
        );
        let hint = format!("its actions are {}", names.join(", "));
        warnings.add(Lint::NeverHolds, at(plan, edge, at_right, rule, &hint));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Is,
    IsNot,
}

/// The path, the comparison and the literal of a condition that consists of nothing else.
fn comparison(condition: &EdgeCondition) -> Option<(String, Comparison, Value)> {
    let path = |text: &str| {
        let text = text.trim();
        let is_path = !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        let text = text
            .strip_prefix("outputs.")
            .map_or_else(|| text.to_owned(), |rest| format!("output.{rest}"));
        is_path.then_some(text)
    };
    let left = condition.left.as_deref();
    match condition.operator {
        Operator::Equals => Some((path(left?)?, Comparison::Is, condition.right.clone()?)),
        Operator::NotEquals => Some((path(left?)?, Comparison::IsNot, condition.right.clone()?)),
        Operator::Truthy => Some((path(left?)?, Comparison::Is, Value::Bool(true))),
        Operator::Falsy => Some((path(left?)?, Comparison::IsNot, Value::Bool(true))),
        Operator::Contains | Operator::Regex => None,
        Operator::Expression => {
            let source = condition.expression.as_deref()?.trim();
            let source = source
                .strip_prefix("{{")
                .and_then(|source| source.strip_suffix("}}"))
                .unwrap_or(source);
            for (operator, comparison) in [("==", Comparison::Is), ("!=", Comparison::IsNot)] {
                if let Some((left, right)) = source.split_once(operator) {
                    return Some((path(left)?, comparison, literal(right.trim())?));
                }
            }
            match source.trim().strip_prefix("not ") {
                Some(left) => Some((path(left)?, Comparison::IsNot, Value::Bool(true))),
                None => Some((path(source)?, Comparison::Is, Value::Bool(true))),
            }
        }
    }
}

fn literal(text: &str) -> Option<Value> {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote)) {
            return (!inner.contains([quote, '\\'])).then(|| json!(inner));
        }
    }
    match text {
        "true" | "True" => Some(json!(true)),
        "false" | "False" => Some(json!(false)),
        number => number
            .parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .map(|n| json!(n)),
    }
}

/// What must hold for an edge to be taken.
pub(super) struct Claim {
    rule: TriggerRule,
    compared: Option<(String, Comparison, Value)>,
    /// Cost of comparing this claim with another one.
    pub(super) weight: u64,
}

impl Claim {
    pub(super) fn of(plan: &Plan, edge: usize) -> Self {
        let condition = plan.definition.edges[edge].condition.as_ref();
        let compared = condition.and_then(comparison);
        let weight = compared.as_ref().map_or(0, |(left, _, value)| {
            cost::bytes(left.len()) + cost::of_value(value)
        });
        Self {
            rule: plan.edges[edge].rule,
            compared,
            weight,
        }
    }

    /// Whether at most one of two edges of the same node can be taken.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let of_success = |rule| matches!(rule, TriggerRule::AllSuccess | TriggerRule::AnySuccess);
        let of_failure = |rule| rule == TriggerRule::AnyFailed;
        if of_success(self.rule) && of_failure(other.rule) || of_failure(self.rule) && of_success(other.rule)
        {
            return true;
        }
        // With any other rule, an edge that is not taken can still let its target start.
        let counts = |rule| of_success(rule) || of_failure(rule);
        if !counts(self.rule) || !counts(other.rule) {
            return false;
        }
        let (Some((left, is, value)), Some((other_left, other_is, other_value))) =
            (&self.compared, &other.compared)
        else {
            return false;
        };
        if left != other_left {
            return false;
        }
        let same = match (value.as_f64(), other_value.as_f64()) {
            (Some(one), Some(other)) => one == other,
            _ => value == other_value,
        };
        match (is, other_is) {
            (Comparison::Is, Comparison::Is) => {
                // `true` also stands for any truthy value.
                !same && ![value, other_value].contains(&&Value::Bool(true))
            }
            (Comparison::Is, Comparison::IsNot) | (Comparison::IsNot, Comparison::Is) => same,
            (Comparison::IsNot, Comparison::IsNot) => false,
        }
    }
}
