//! Names: patterns, which bind them, and folds, which bind one in each round.
#![expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its input: some take it over, and all are called alike"
)]

use std::{borrow::Cow, rc::Rc};

use serde_json::Value;
use wopr_kernel::cost::Meter;

use super::{
    machine::{Flow, Item, Machine, Next, STEP, Stop},
    paths,
    term::{Alternatives, Fold, FoldKind, Pattern, Term},
};

/// The bindings of names, innermost first.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope<'t>(Option<Rc<Link<'t>>>);

#[derive(Debug)]
struct Link<'t> {
    level: usize,
    bound: Bound<'t>,
    below: Scope<'t>,
}

#[derive(Debug, Clone)]
pub(super) enum Bound<'t> {
    Value(Rc<Value>),
    Filter(&'t Term, Scope<'t>),
    Label(u64),
}

impl<'t> Scope<'t> {
    fn n_levels(&self) -> usize {
        self.0.as_ref().map_or(0, |link| link.level + 1)
    }

    pub(super) fn with(&self, bound: Bound<'t>) -> Self {
        Self(Some(Rc::new(Link {
            level: self.n_levels(),
            bound,
            below: self.clone(),
        })))
    }

    /// What was bound when there were `n_levels`.
    pub(super) fn below(&self, n_levels: usize, meter: &Meter<'_>) -> Flow<Self> {
        let mut scope = self.clone();
        while scope.n_levels() > n_levels {
            meter.charge(1)?;
            scope = scope.0.map(|link| link.below.clone()).unwrap_or_default();
        }
        Ok(scope)
    }

    pub(super) fn get(&self, level: usize, meter: &Meter<'_>) -> Flow<Option<Bound<'t>>> {
        let scope = self.below(level + 1, meter)?;
        Ok(scope.0.as_ref().map(|link| link.bound.clone()))
    }
}

impl<'t> Machine<'t, '_> {
    pub(super) fn bind(
        &self,
        pattern: &'t Pattern,
        value: Cow<'_, Value>,
        scope: &Scope<'t>,
        next: &mut dyn FnMut(&Scope<'t>) -> Flow,
    ) -> Flow {
        self.meter.charge(STEP)?;
        // Each part of a pattern waits for those after it.
        self.deeper(|| match pattern {
            Pattern::Variable => {
                let value = self.own(value)?;
                next(&scope.with(Bound::Value(Rc::new(value))))
            }
            Pattern::List(parts) => self.bind_list(parts, 0, &value, scope, next),
            Pattern::Object(parts) => self.bind_object(parts, &value, scope, scope, next),
            Pattern::Alternatives(alternatives) => self.bind_first(alternatives, &value, scope, next),
        })
    }

    /// Binds the first pattern with which the rest of the filter does not fail. What it gave until then is given.
    fn bind_first(
        &self,
        alternatives: &'t Alternatives,
        value: &Value,
        scope: &Scope<'t>,
        next: &mut dyn FnMut(&Scope<'t>) -> Flow,
    ) -> Flow {
        let level = scope.n_levels();
        let mut flow = Ok(());
        for (pattern, places) in &alternatives.patterns {
            flow = self.bind(pattern, Cow::Borrowed(value), scope, &mut |bound| {
                let mut all = scope.clone();
                for place in places {
                    let value = match place {
                        Some(place) => bound.get(level + place, self.meter)?,
                        None => None,
                    };
                    self.meter.charge(STEP)?;
                    all = all.with(value.unwrap_or_else(|| Bound::Value(Rc::new(Value::Null))));
                }
                next(&all)
            });
            match &flow {
                Err(Stop::Error(_)) => {}
                Ok(()) | Err(Stop::Break(_) | Stop::TooDeep | Stop::Spent) => break,
            }
        }
        flow
    }

    fn bind_list(
        &self,
        parts: &'t [Pattern],
        index: usize,
        value: &Value,
        scope: &Scope<'t>,
        next: &mut dyn FnMut(&Scope<'t>) -> Flow,
    ) -> Flow {
        let Some((part, rest)) = parts.split_first() else {
            return next(scope);
        };
        let item = paths::index(Cow::Borrowed(value), &Value::from(index))?;
        self.bind(part, item, scope, &mut |scope| {
            self.bind_list(rest, index + 1, value, scope, next)
        })
    }

    fn bind_object(
        &self,
        parts: &'t [(Term, Pattern)],
        value: &Value,
        outer: &Scope<'t>,
        scope: &Scope<'t>,
        next: &mut dyn FnMut(&Scope<'t>) -> Flow,
    ) -> Flow {
        let Some(((name, part), rest)) = parts.split_first() else {
            return next(scope);
        };
        self.run(name, outer, Item::borrowed(value), &mut |name| {
            let item = paths::index(Cow::Borrowed(value), &name.value)?;
            self.bind(part, item, scope, &mut |scope| {
                self.bind_object(rest, value, outer, scope, next)
            })
        })
    }

    pub(super) fn fold(&self, fold: &'t Fold, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        for init in self.collect(&fold.init, scope, input.plain())? {
            let mut state = init;
            self.run(&fold.source, scope, input.plain(), &mut |item| {
                self.bind(&fold.pattern, item.value, scope, &mut |scope| {
                    let before = std::mem::take(&mut state);
                    // An update without an output leaves null.
                    let mut states = self.collect(&fold.update, scope, Item::owned(before))?;
                    match &fold.kind {
                        FoldKind::Reduce => {}
                        FoldKind::Foreach(None) => {
                            for state in &states {
                                next(Item::borrowed(state))?;
                            }
                        }
                        FoldKind::Foreach(Some(extract)) => {
                            for state in &states {
                                self.run(extract, scope, Item::borrowed(state), next)?;
                            }
                        }
                    }
                    state = states.pop().unwrap_or_default();
                    Ok(())
                })
            })?;
            if let FoldKind::Reduce = fold.kind {
                self.make(input.again(), state, next)?;
            }
        }
        Ok(())
    }
}
