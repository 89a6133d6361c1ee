//! Assignments: `=`, `|=`, `+=` and their like.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    binding::Scope,
    is_true,
    machine::{Flow, Item, Machine, Next, Stop, catch},
    math, paths,
    term::{Change, Term},
};

impl<'t> Machine<'t, '_> {
    /// The paths of all outputs of a term.
    pub(super) fn paths_of(&self, term: &'t Term, scope: &Scope<'t>, value: &Value) -> Flow<Vec<Vec<Value>>> {
        let mut found = Vec::new();
        let tracked = Item {
            value: Cow::Borrowed(value),
            trail: Some(None),
        };
        self.run(term, scope, tracked, &mut |item| {
            // What was not reached from the input is null.
            if let Some(trail) = &item.trail {
                self.meter.values(1)?;
                found.push(paths::parts(trail, self.meter)?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    pub(super) fn assign(
        &self,
        (left, change, right): (&'t Term, Change, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        if let Change::Update = change {
            let value = self.own(input.value)?;
            let updated = self.update(left, scope, value, &mut |old| self.first(right, scope, old))?;
            return next(Item::owned(updated));
        }
        let mut rights = self.collect(right, scope, input.plain())?;
        // The last one takes the input with it.
        let Some(last) = rights.pop() else { return Ok(()) };
        for right in &rights {
            let value = self.own(Cow::Borrowed(&input.value))?;
            let updated = self.assign_one(left, change, scope, value, right)?;
            next(Item::owned(updated))?;
        }
        let value = self.own(input.value)?;
        let updated = self.assign_one(left, change, scope, value, &last)?;
        next(Item::owned(updated))
    }

    fn assign_one(
        &self,
        left: &'t Term,
        change: Change,
        scope: &Scope<'t>,
        value: Value,
        right: &Value,
    ) -> Flow<Value> {
        let copy = || self.own(Cow::Borrowed(right)).map(Some);
        self.update(left, scope, value, &mut |old| match change {
            Change::Set | Change::Update => copy(),
            Change::Math(op) => math::apply(op, Cow::Owned(old), Cow::Borrowed(right), self.meter).map(Some),
            Change::Alternative if is_true(&old) => Ok(Some(old)),
            Change::Alternative => copy(),
        })
    }

    /// Replaces each value that a term leads to; those without a replacement are deleted.
    fn update(
        &self,
        left: &'t Term,
        scope: &Scope<'t>,
        mut value: Value,
        replace: &mut dyn FnMut(Value) -> Flow<Option<Value>>,
    ) -> Flow<Value> {
        let mut deleted = Vec::new();
        for path in self.paths_of(left, scope, &value)? {
            let old = paths::get(&value, &path, self.meter)?;
            let old = self.own(old)?;
            match replace(old)? {
                Some(new) => paths::set(&mut value, &path, new, self.meter)?,
                None => deleted.push(path),
            }
        }
        self.delete_all(&mut value, deleted)?;
        Ok(value)
    }

    /// Deletes paths, the last ones first, so that none moves what another one leads to. Each is deleted once.
    pub(super) fn delete_all(&self, value: &mut Value, paths: Vec<Vec<Value>>) -> Flow {
        let paths = paths
            .into_iter()
            .map(|path| paths::from_front(value, path, self.meter).map(Value::Array));
        let paths: Vec<_> = paths.collect::<Flow<_>>()?;
        let sorted = wopr_kernel::cost::merge_sort(paths.len(), |a, b| {
            wopr_schema::order(&paths[b], &paths[a], self.meter)
        })?;
        let mut before = None;
        for at in sorted {
            let is_again = match before {
                Some(before) => wopr_schema::equal(before, &paths[at], self.meter)?,
                None => false,
            };
            before = Some(&paths[at]);
            if let (false, Value::Array(path)) = (is_again, &paths[at]) {
                paths::delete(value, path, self.meter)?;
            }
        }
        Ok(())
    }

    /// The first output of a term.
    pub(super) fn first(&self, term: &'t Term, scope: &Scope<'t>, input: Value) -> Flow<Option<Value>> {
        let label = self.new_label();
        let mut found = None;
        let flow = self.run(term, scope, Item::owned(input), &mut |item| {
            found = Some(self.own(item.value)?);
            Err(Stop::Break(label))
        });
        catch(label, flow)?;
        Ok(found)
    }
}
