//! The machine that evaluates a compiled filter.
//!
//! A filter gives its outputs to a continuation, one after another, so nothing is kept that is not needed, and values
//! of the input are borrowed until something changes them. In an update or a `path(f)`, each value comes with the trail
//! by which it was reached.
//!
//! Each kind of term is a function of its own, which keeps the frames on the stack small. Paths are followed in
//! `walk.rs`; names are bound in `binding.rs`.
#![expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its input: some take it over, and all are called alike"
)]

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
};

use jaq_core::ops::{Cmp, Math};
use serde_json::Value;
use wopr_kernel::{
    Timestamp,
    cost::{self, Exhausted, Meter},
    measure::too_deep,
};

use super::{
    JqError,
    binding::{Bound, Scope},
    is_true, math,
    paths::Trail,
    search::Kept,
    term::{Hop, Pattern, Program, Term},
    text,
};

/// Maximum nesting of what waits for an output: filters, parts of a path, and parts of a pattern. Without optimization,
/// a level takes up to 6 KiB of the stack, and 5 KiB on average, so that all of them fit into 1 MiB.
const MAX_DEPTH: usize = 128;
/// As many bytes of an error that is no text as are shown.
const MAX_RAISED: usize = 200;
/// The cost of a step, besides what it reads and makes.
pub(super) const STEP: u64 = 4;

/// Why a filter stops before its last output.
#[derive(Debug)]
pub(super) enum Stop {
    /// An error, which `try` catches.
    Error(Box<Value>),
    /// `break`, to the label with this number.
    Break(u64),
    TooDeep,
    Spent,
}

impl Stop {
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self::Error(Box::new(Value::String(message.into())))
    }

    pub(super) fn into_error(self) -> JqError {
        match self {
            Self::Error(value) => JqError::Raised(match *value {
                Value::String(message) => message,
                other => format!("(not a string): {}", text::begin(&other, MAX_RAISED)),
            }),
            Self::Break(_) => JqError::Raised("break".to_owned()),
            Self::TooDeep => JqError::TooDeep,
            Self::Spent => JqError::TooMuchWork,
        }
    }
}

impl From<Exhausted> for Stop {
    fn from(Exhausted: Exhausted) -> Self {
        Self::Spent
    }
}

pub(super) type Flow<T = ()> = Result<T, Stop>;

/// A value on its way through a filter.
#[derive(Debug, Clone)]
pub(super) struct Item<'v> {
    pub(super) value: Cow<'v, Value>,
    /// How it was reached, if anybody asks.
    pub(super) trail: Option<Trail>,
}

impl<'v> Item<'v> {
    pub(super) fn owned(value: Value) -> Self {
        Self {
            value: Cow::Owned(value),
            trail: None,
        }
    }

    pub(super) fn borrowed(value: &'v Value) -> Self {
        Self {
            value: Cow::Borrowed(value),
            trail: None,
        }
    }

    /// The same item, borrowed.
    pub(super) fn again(&self) -> Item<'_> {
        Item {
            value: Cow::Borrowed(&self.value),
            trail: self.trail.clone(),
        }
    }

    /// The value alone, borrowed.
    pub(super) fn plain(&self) -> Item<'_> {
        Item::borrowed(&self.value)
    }
}

pub(super) type Next<'n> = &'n mut dyn FnMut(Item<'_>) -> Flow;

#[derive(Debug)]
pub(super) struct Machine<'t, 'm> {
    program: &'t Program,
    pub(super) now: Timestamp,
    pub(super) meter: &'m Meter<'m>,
    depth: Cell<usize>,
    n_labels: Cell<u64>,
    /// The patterns that were compiled last.
    pub(super) patterns: RefCell<Vec<Kept>>,
}

impl<'t, 'm> Machine<'t, 'm> {
    pub(super) fn new(program: &'t Program, now: Timestamp, meter: &'m Meter<'m>) -> Self {
        Self {
            program,
            now,
            meter,
            depth: Cell::new(0),
            n_labels: Cell::new(0),
            patterns: RefCell::default(),
        }
    }

    /// All outputs of the filter.
    pub(super) fn outputs(&self, input: &Value) -> Flow<Vec<Value>> {
        self.collect(&self.program.main, &Scope::default(), Item::borrowed(input))
    }

    pub(super) fn run(&self, term: &'t Term, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        self.meter.charge(STEP)?;
        self.deeper(|| self.step(term, scope, input, next))
    }

    /// Does a part of an evaluation one level deeper. Whatever may call itself through its continuation goes through
    /// here, so that the stack is bounded.
    pub(super) fn deeper(&self, part: impl FnOnce() -> Flow) -> Flow {
        let depth = self.depth.get();
        if depth >= MAX_DEPTH {
            return Err(Stop::TooDeep);
        }
        self.depth.set(depth + 1);
        let flow = part();
        self.depth.set(depth);
        flow
    }

    // Each arm is a call, so that the frame of this function, of which many are on the stack, stays small.
    fn step(&self, term: &'t Term, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        match term {
            Term::Identity => next(input),
            Term::Recurse => self.descend(input, next),
            Term::Literal(value) => self.give(input, value, next),
            Term::Text(format, pieces) => self.write(*format, pieces, scope, &input, next),
            Term::List(inner) => self.list(inner.as_deref(), scope, input, next),
            Term::Object(entries) => self.object(entries, scope, input, next),
            Term::Negate(inner) => self.negate(inner, scope, input, next),
            Term::Pipe(left, right) => self.pipe((left, right), scope, input, next),
            Term::Bind(source, pattern, body) => self.bound((source, pattern, body), scope, input, next),
            Term::Comma(items) => self.each_of(items, scope, input, next),
            Term::Alternative(left, right) => self.alternative(left, right, scope, input, next),
            Term::Or(left, right) => self.logic(true, (left, right), scope, input, next),
            Term::And(left, right) => self.logic(false, (left, right), scope, input, next),
            Term::Math(op, left, right) => self.calculate(*op, (left, right), scope, input, next),
            Term::Compare(op, left, right) => self.compare(*op, (left, right), scope, input, next),
            Term::Assign(left, change, right) => self.assign((left, *change, right), scope, input, next),
            Term::Label(inner) => self.labelled(inner, scope, input, next),
            Term::Break { level } => self.break_to(*level, scope),
            Term::Fold(fold) => self.fold(fold, scope, input, next),
            Term::Try(tried, caught) => self.attempt(tried, caught.as_deref(), scope, input, next),
            Term::If(cases, otherwise) => self.choose(cases, otherwise.as_deref(), scope, input, next),
            Term::Call {
                function,
                level,
                arguments,
            } => self.call(
                &self.program.functions[*function],
                (*level, arguments),
                scope,
                input,
                next,
            ),
            Term::Argument { level } => self.argument(*level, scope, input, next),
            Term::Variable { level } => self.variable(*level, scope, input, next),
            Term::Builtin(builtin, arguments) => self.builtin(*builtin, arguments, scope, input, next),
            Term::Number(function, arguments) => self.number(*function, arguments, scope, input, next),
            Term::Search(kind, arguments) => self.search(*kind, arguments, scope, input, next),
            Term::Substitute { is_global, arguments } => {
                self.substitute(*is_global, arguments, scope, input, next)
            }
            Term::Path(head, hops) => self.follow(head, hops, scope, input, next),
        }
    }

    fn pipe(
        &self,
        (left, right): (&'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        self.run(left, scope, input, &mut |item| self.run(right, scope, item, next))
    }

    fn each_of(&self, items: &'t [Term], scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        items
            .iter()
            .try_for_each(|item| self.run(item, scope, input.again(), next))
    }

    fn bound(
        &self,
        (source, pattern, body): (&'t Term, &'t Pattern, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        self.run(source, scope, input.plain(), &mut |item| {
            self.bind(pattern, item.value, scope, &mut |scope| {
                self.run(body, scope, input.again(), next)
            })
        })
    }

    fn calculate(
        &self,
        op: Math,
        sides: (&'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        self.pairs(sides, scope, input, &mut |left, right| {
            next(Item::owned(math::apply(op, left, right, self.meter)?))
        })
    }

    fn compare(
        &self,
        op: Cmp,
        sides: (&'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        self.pairs(sides, scope, input, &mut |left, right| {
            let holds = math::compare(op, &left, &right, self.meter)?;
            next(Item::owned(Value::Bool(holds)))
        })
    }

    /// Runs a filter with a new label, and goes on after it if it breaks to the label.
    fn labelled(&self, inner: &'t Term, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        let label = self.new_label();
        let scope = scope.with(Bound::Label(label));
        catch(label, self.run(inner, &scope, input, next))
    }

    fn break_to(&self, level: usize, scope: &Scope<'t>) -> Flow {
        match scope.get(level, self.meter)? {
            Some(Bound::Label(label)) => Err(Stop::Break(label)),
            Some(Bound::Value(_) | Bound::Filter(..)) | None => Err(Stop::error("break without a label")),
        }
    }

    fn call(
        &self,
        body: &'t Term,
        (level, arguments): (usize, &'t [Term]),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let mut inner = scope.below(level, self.meter)?;
        for argument in arguments {
            self.meter.charge(STEP)?;
            inner = inner.with(Bound::Filter(argument, scope.clone()));
        }
        self.run(body, &inner, input, next)
    }

    fn argument(&self, level: usize, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        match scope.get(level, self.meter)? {
            Some(Bound::Filter(filter, outer)) => self.run(filter, &outer, input, next),
            Some(Bound::Value(_) | Bound::Label(_)) | None => Err(Stop::error("no such argument")),
        }
    }

    fn variable(&self, level: usize, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        match scope.get(level, self.meter)? {
            Some(Bound::Value(value)) => self.give(input, &value, next),
            Some(Bound::Filter(..) | Bound::Label(_)) | None => Err(Stop::error("no such variable")),
        }
    }

    fn follow(
        &self,
        head: &'t Term,
        hops: &'t [Hop],
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        self.run(head, scope, input.again(), &mut |item| {
            self.walk(hops, scope, &input, item, next)
        })
    }

    /// Gives a value that was not reached from the input.
    pub(super) fn give(&self, input: Item<'_>, value: &Value, next: Next<'_>) -> Flow {
        match input.trail {
            None => next(Item::borrowed(value)),
            // Nothing can be reached from null, and nothing is lost.
            Some(_) if value.is_null() => next(Item::borrowed(value)),
            Some(_) => Err(Stop::error(format!(
                "Invalid path expression with result {}",
                text::shown(value)
            ))),
        }
    }

    /// Like [`Self::give`], with a value that was made.
    pub(super) fn make(&self, input: Item<'_>, value: Value, next: Next<'_>) -> Flow {
        match input.trail {
            None => next(Item::owned(value)),
            Some(_) => self.give(input, &value, next),
        }
    }

    /// A value as one's own, which is paid for if it has to be copied.
    pub(super) fn own(&self, value: Cow<'_, Value>) -> Flow<Value> {
        Ok(match value {
            Cow::Owned(value) => value,
            Cow::Borrowed(value) => {
                self.meter.charge(cost::of_value(value))?;
                value.clone()
            }
        })
    }

    pub(super) fn collect(&self, term: &'t Term, scope: &Scope<'t>, input: Item<'_>) -> Flow<Vec<Value>> {
        let mut outputs = Vec::new();
        self.run(term, scope, input, &mut |item| {
            self.meter.values(1)?;
            outputs.push(self.own(item.value)?);
            Ok(())
        })?;
        Ok(outputs)
    }

    pub(super) fn new_label(&self) -> u64 {
        self.n_labels.set(self.n_labels.get() + 1);
        self.n_labels.get()
    }

    /// A value that is built of others, which must not nest too deep.
    pub(super) fn built(&self, value: Value) -> Flow<Value> {
        self.meter.charge(cost::of_value(&value) / 4)?;
        match too_deep(&value) {
            true => Err(Stop::TooDeep),
            false => Ok(value),
        }
    }

    fn list(&self, inner: Option<&'t Term>, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        let items = match inner {
            None => Vec::new(),
            Some(inner) => self.collect(inner, scope, input.plain())?,
        };
        let list = self.built(Value::Array(items))?;
        self.make(input, list, next)
    }

    fn object(
        &self,
        entries: &'t [(Term, Term)],
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let mut made = vec![serde_json::Map::new()];
        for (name, value) in entries {
            let names = self.collect(name, scope, input.plain())?;
            let values = self.collect(value, scope, input.plain())?;
            if names.is_empty() || values.is_empty() {
                return Ok(());
            }
            let n_objects = made.len() * names.len() * values.len();
            self.meter.object(n_objects)?;
            let is_single = names.len() == 1 && values.len() == 1;
            let mut more = Vec::new();
            for mut object in made {
                for name in &names {
                    let Value::String(name) = name else {
                        return Err(Stop::error(format!(
                            "Object keys must be strings, not {}",
                            text::shown(name)
                        )));
                    };
                    for value in &values {
                        self.meter
                            .charge(cost::of_value(value) + cost::bytes(name.len()))?;
                        // With one of each, the object itself goes on.
                        let mut object = if is_single {
                            std::mem::take(&mut object)
                        } else {
                            self.meter.charge(cost::of_object(&object))?;
                            object.clone()
                        };
                        object.insert(name.clone(), value.clone());
                        more.push(object);
                    }
                }
            }
            made = more;
        }
        for object in made {
            let object = self.built(Value::Object(object))?;
            self.make(input.again(), object, next)?;
        }
        Ok(())
    }

    fn negate(&self, inner: &'t Term, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        self.run(
            inner,
            scope,
            input.plain(),
            &mut |item| match item.value.as_f64() {
                Some(n) => next(Item::owned(math::number(-n))),
                None => Err(Stop::error(format!(
                    "{} cannot be negated",
                    text::shown(&item.value)
                ))),
            },
        )
    }

    /// Each pair of outputs; those of the right side are the outer loop.
    fn pairs(
        &self,
        (left, right): (&'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: &mut dyn FnMut(Cow<'_, Value>, Cow<'_, Value>) -> Flow,
    ) -> Flow {
        let mut rights = self.collect(right, scope, input.plain())?;
        // The last one may take the input with it: a sum that grows is not copied each time.
        let Some(last) = rights.pop() else { return Ok(()) };
        for right in &rights {
            self.run(left, scope, input.plain(), &mut |left| {
                next(left.value, Cow::Borrowed(right))
            })?;
        }
        let input = Item {
            value: input.value,
            trail: None,
        };
        self.run(left, scope, input, &mut |left| {
            next(left.value, Cow::Borrowed(&last))
        })
    }

    fn logic(
        &self,
        settles: bool,
        (left, right): (&'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        self.run(left, scope, input.plain(), &mut |left| {
            if is_true(&left.value) == settles {
                return next(Item::owned(Value::Bool(settles)));
            }
            self.run(right, scope, input.plain(), &mut |right| {
                next(Item::owned(Value::Bool(is_true(&right.value))))
            })
        })
    }

    /// The true outputs of the left side, else those of the right one. Errors of the left side count as its end.
    fn alternative(
        &self,
        left: &'t Term,
        right: &'t Term,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let mut has_any = false;
        // What `next` stops with is not the left side's error.
        let mut from_next = None;
        let flow = self.run(left, scope, input.again(), &mut |item| {
            if !is_true(&item.value) {
                return Ok(());
            }
            has_any = true;
            next(item).map_err(|stop| {
                from_next = Some(stop);
                Stop::Break(0)
            })
        });
        match (from_next, flow) {
            (Some(stop), _) => Err(stop),
            (None, Ok(()) | Err(Stop::Error(_))) if has_any => Ok(()),
            (None, Ok(()) | Err(Stop::Error(_))) => self.run(right, scope, input, next),
            (None, Err(stop)) => Err(stop),
        }
    }

    fn attempt(
        &self,
        tried: &'t Term,
        caught: Option<&'t Term>,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let mut from_next = None;
        let flow = self.run(tried, scope, input.again(), &mut |item| {
            next(item).map_err(|stop| {
                from_next = Some(stop);
                Stop::Break(0)
            })
        });
        match (from_next, flow) {
            (Some(stop), _) => Err(stop),
            (None, Err(Stop::Error(error))) => match caught {
                None => Ok(()),
                Some(caught) => self.run(caught, scope, Item::owned(*error), next),
            },
            (None, flow) => flow,
        }
    }

    fn choose(
        &self,
        cases: &'t [(Term, Term)],
        otherwise: Option<&'t Term>,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let Some(((test, then), rest)) = cases.split_first() else {
            return match otherwise {
                None => next(input),
                Some(otherwise) => self.run(otherwise, scope, input, next),
            };
        };
        self.run(test, scope, input.plain(), &mut |found| {
            if is_true(&found.value) {
                self.run(then, scope, input.again(), next)
            } else {
                self.choose(rest, otherwise, scope, input.again(), next)
            }
        })
    }
}

/// Goes on after what broke to this label.
pub(super) fn catch(label: u64, flow: Flow) -> Flow {
    match flow {
        Err(Stop::Break(to)) if to == label => Ok(()),
        flow => flow,
    }
}
