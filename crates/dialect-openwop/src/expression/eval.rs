//! Evaluates a syntax tree. Every step is charged; reading and creating values is charged where it happens.

use std::{borrow::Cow, collections::BTreeMap, rc::Rc};

use super::{
    ExpressionError,
    ast::{Args, Comparison, Expr, Loop, Operator, Post, Statement, Target},
    filters::{Call, MAX_ITEMS},
    out::Out,
    reads::{self, Read},
    value::{Fields, Map, Scope, Seq, Text, Val, compare_numbers, fail, float},
};
use crate::cost::Meter;

type Result<T> = std::result::Result<T, ExpressionError>;

/// Maximum number of items in a range.
const MAX_RANGE: usize = 1_000;

/// The state of one evaluation.
pub(super) struct Machine<'a, 'm, 'b> {
    pub(super) scope: &'m dyn Scope<'a>,
    pub(super) meter: &'m Meter<'b>,
    /// Loop variables, innermost last.
    locals: Vec<(&'a str, Val<'a>)>,
    /// What becomes of printed texts, by the paths that they were read from.
    fence: Option<Fence<'m>>,
}

/// See [`super::Template::render_fenced`].
type Fence<'m> = &'m dyn Fn(&[Read], String) -> String;

impl<'a, 'm, 'b> Machine<'a, 'm, 'b> {
    pub(super) fn new(scope: &'m dyn Scope<'a>, meter: &'m Meter<'b>) -> Self {
        Self {
            scope,
            meter,
            locals: Vec::new(),
            fence: None,
        }
    }

    pub(super) fn with_fence(self, fence: Fence<'m>) -> Self {
        Self {
            fence: Some(fence),
            ..self
        }
    }

    fn print(&mut self, expr: &'a Expr, out: &mut Out<'m, 'b>) -> Result<()> {
        let value = self.eval(expr)?;
        let Some(fence) = self.fence else {
            return out.print(&value);
        };
        let mut printed = Out::new(self.meter);
        printed.print(&value)?;
        let mut reads = Vec::new();
        reads::of_expression(expr, 0, &mut reads);
        for read in &mut reads {
            let is_local = |name: &String| self.locals.iter().any(|(local, _)| local == name);
            if read.path.first().is_some_and(is_local) {
                read.path = vec!["loop".to_owned()];
            }
        }
        out.push(&fence(&reads, printed.finish()?))
    }

    pub(super) fn render(&mut self, statements: &'a [Statement], out: &mut Out<'m, 'b>) -> Result<()> {
        for statement in statements {
            self.meter.charge(1)?;
            match statement {
                Statement::Text(text) => out.push(text)?,
                Statement::Print(expr) => self.print(expr, out)?,
                Statement::If(branches) => {
                    let mut body = &branches.otherwise;
                    for (condition, branch) in &branches.tested {
                        if self.eval(condition)?.is_true(self.meter)? {
                            body = branch;
                            break;
                        }
                    }
                    self.render(body, out)?;
                }
                Statement::For(each) => self.repeat(each, out)?,
            }
        }
        Ok(())
    }

    fn repeat(&mut self, each: &'a Loop, out: &mut Out<'m, 'b>) -> Result<()> {
        let mut items = self.eval(&each.over)?.items(self.meter)?;
        let outer = self.locals.len();
        if let Some(filter) = &each.filter {
            let mut kept = Vec::new();
            for item in items.iter() {
                self.bind(&each.target, item.clone())?;
                if self.eval(filter)?.is_true(self.meter)? {
                    self.meter.values(2)?;
                    kept.push(item);
                }
                self.locals.truncate(outer);
            }
            items = Seq::Made(Rc::new(kept));
        }
        if items.len() == 0 {
            return self.render(&each.otherwise, out);
        }
        for at in 0..items.len() {
            self.meter.charge(4)?;
            let turn = Turn {
                at,
                length: items.len(),
            };
            self.locals.push(("loop", Val::Map(Map::View(Rc::new(turn)))));
            self.bind(&each.target, items.get(at).unwrap_or(Val::Undefined))?;
            self.render(&each.body, out)?;
            self.locals.truncate(outer);
        }
        Ok(())
    }

    fn bind(&mut self, target: &'a Target, value: Val<'a>) -> Result<()> {
        self.meter.charge(1)?;
        match target {
            Target::Name(name) => self.locals.push((name, value)),
            Target::Parts(parts) => {
                let items = match value {
                    Val::Seq(items) if items.len() == parts.len() => items,
                    other => {
                        return Err(fail(format!(
                            "a loop takes {} values from each item, found {}",
                            parts.len(),
                            other.kind()
                        )));
                    }
                };
                for (part, item) in parts.iter().zip(items.iter()) {
                    self.bind(part, item)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn eval(&mut self, expr: &'a Expr) -> Result<Val<'a>> {
        self.meter.charge(1)?;
        match expr {
            Expr::None => Ok(Val::None),
            Expr::Bool(flag) => Ok(Val::Bool(*flag)),
            Expr::Int(n) => Ok(Val::Int(*n)),
            Expr::Float(n) => Ok(Val::Float(*n)),
            Expr::Text(text) => Ok(Val::Text(Text::Lent(text))),
            Expr::Name(name, _) => self.name(name),
            Expr::List(items) => self.list(items),
            Expr::Map(fields) => self.map(fields),
            Expr::Range(args) => self.range(args),
            Expr::Not(operand) => Ok(Val::Bool(!self.eval(operand)?.is_true(self.meter)?)),
            Expr::Negative(operand) => negative(&self.eval(operand)?),
            Expr::All(operands) => self.until(operands, false),
            Expr::Any(operands) => self.until(operands, true),
            Expr::Chain(first, rest) => self.chain(first, rest),
            Expr::Compare(first, rest) => self.compare(first, rest),
            Expr::If(choice) => {
                if self.eval(&choice.test)?.is_true(self.meter)? {
                    return self.eval(&choice.then);
                }
                match &choice.otherwise {
                    Some(otherwise) => self.eval(otherwise),
                    None => Ok(Val::Undefined),
                }
            }
            Expr::Post(value, posts) => self.posts(value, posts),
        }
    }

    fn name(&mut self, name: &'a str) -> Result<Val<'a>> {
        let (n_locals, n_bytes) = (self.locals.len() as u64, name.len() as u64);
        self.meter
            .charge(2 + n_locals / 4 + n_bytes / 16 + n_bytes * n_locals / 64)?;
        let local = self.locals.iter().rev().find(|(known, _)| *known == name);
        let found = local
            .map(|(_, value)| value.clone())
            .or_else(|| self.scope.get(name));
        Ok(found.unwrap_or(Val::Undefined))
    }

    fn list(&mut self, items: &'a [Expr]) -> Result<Val<'a>> {
        self.meter.values(items.len())?;
        let items = items.iter().map(|item| self.eval(item));
        Ok(Val::list(items.collect::<Result<_>>()?))
    }

    fn map(&mut self, fields: &'a [(Expr, Expr)]) -> Result<Val<'a>> {
        self.meter.object(fields.len())?;
        let mut made = BTreeMap::new();
        for (name, value) in fields {
            let name = match self.eval(name)? {
                // A borrowed name is charged for comparing; an owned one also for copying.
                Val::Text(Text::Lent(name)) => {
                    self.meter.bytes(name.len())?;
                    Cow::Borrowed(name)
                }
                Val::Text(Text::Made(name)) => {
                    self.meter.bytes(2 * name.len())?;
                    Cow::Owned(name.to_string())
                }
                Val::Int(n) => Cow::Owned(n.to_string()),
                other => return Err(fail(format!("{} is no name of a field", other.kind()))),
            };
            made.insert(name, self.eval(value)?);
        }
        Ok(Val::Map(Map::Made(Rc::new(made))))
    }

    fn range(&mut self, args: &'a [Expr]) -> Result<Val<'a>> {
        let mut numbers = Vec::with_capacity(args.len());
        for arg in args {
            let number = self.eval(arg)?.as_int();
            numbers.push(number.ok_or_else(|| fail("a range is of whole numbers"))?);
        }
        let (from, to, step) = match numbers[..] {
            [to] => (0, to, 1),
            [from, to] => (from, to, 1),
            [from, to, step] => (from, to, step),
            _ => return Err(fail("'range' takes one to three numbers")),
        };
        if step == 0 {
            return Err(fail("the step of a range is not 0"));
        }
        let mut items = Vec::new();
        let mut at = from;
        while (step > 0 && at < to) || (step < 0 && at > to) {
            if items.len() == MAX_RANGE {
                return Err(fail(format!("a range has at most {MAX_RANGE} items")));
            }
            self.meter.values(2)?;
            items.push(Val::Int(at));
            let Some(next) = at.checked_add(step) else { break };
            at = next;
        }
        Ok(Val::list(items))
    }

    /// Short-circuits: the first operand whose truth value is `decides`, else the last operand.
    fn until(&mut self, operands: &'a [Expr], decides: bool) -> Result<Val<'a>> {
        let mut value = Val::Undefined;
        for operand in operands {
            value = self.eval(operand)?;
            if value.is_true(self.meter)? == decides {
                break;
            }
        }
        Ok(value)
    }

    fn chain(&mut self, first: &'a Expr, rest: &'a [(Operator, Expr)]) -> Result<Val<'a>> {
        let mut value = self.eval(first)?;
        // All pieces of a concatenation are joined at once.
        if rest.iter().all(|(operator, _)| *operator == Operator::Join) {
            let mut out = Out::new(self.meter);
            out.print(&value)?;
            for (_, operand) in rest {
                let operand = self.eval(operand)?;
                out.print(&operand)?;
            }
            return out.finish().map(Val::text);
        }
        for (operator, operand) in rest {
            let operand = self.eval(operand)?;
            value = self.operate(*operator, &value, &operand)?;
        }
        Ok(value)
    }

    fn operate(&self, operator: Operator, left: &Val<'a>, right: &Val<'a>) -> Result<Val<'a>> {
        match (operator, left, right) {
            (Operator::Add, Val::Text(a), Val::Text(b)) => {
                let mut out = Out::new(self.meter);
                out.push(a.as_str())?;
                out.push(b.as_str())?;
                out.finish().map(Val::text)
            }
            (Operator::Add, Val::Seq(a), Val::Seq(b)) => {
                let length = a.len() + b.len();
                if length > MAX_ITEMS {
                    return Err(fail(format!(
                        "a sequence that is made has at most {MAX_ITEMS} items"
                    )));
                }
                self.meter.values(2 * length)?;
                Ok(Val::list(a.iter().chain(b.iter()).collect()))
            }
            _ => calculate(operator, left, right),
        }
    }

    fn compare(&mut self, first: &'a Expr, rest: &'a [(Comparison, Expr)]) -> Result<Val<'a>> {
        let mut left = self.eval(first)?;
        for (comparison, right) in rest {
            let right = self.eval(right)?;
            let meter = self.meter;
            let holds = match comparison {
                Comparison::Equal => left.equals(&right, meter)?,
                Comparison::NotEqual => !left.equals(&right, meter)?,
                Comparison::Less => left.order(&right, meter)?.is_lt(),
                Comparison::LessOrEqual => left.order(&right, meter)?.is_le(),
                Comparison::Greater => left.order(&right, meter)?.is_gt(),
                Comparison::GreaterOrEqual => left.order(&right, meter)?.is_ge(),
                Comparison::In => contains(&right, &left, meter)?,
                Comparison::NotIn => !contains(&right, &left, meter)?,
            };
            if !holds {
                return Ok(Val::Bool(false));
            }
            left = right;
        }
        Ok(Val::Bool(true))
    }

    fn posts(&mut self, value: &'a Expr, posts: &'a [Post]) -> Result<Val<'a>> {
        let mut value = self.eval(value)?;
        for post in posts {
            self.meter.charge(1)?;
            value = match post {
                Post::Field(name) => value.field(name, self.meter)?,
                Post::Call(call) => {
                    let method = &call.0;
                    return Err(fail(format!("{} has no method named {method}", value.kind())));
                }
                Post::Item(key) => {
                    let key = self.eval(key)?;
                    value.item(&key, self.meter)?
                }
                Post::Slice(slice) => {
                    let from = self.place(slice.from.as_ref())?;
                    let to = self.place(slice.to.as_ref())?;
                    self.slice(&value, from, to, slice.step)?
                }
                Post::Filter(filter, args) => {
                    let call = self.call(value, args)?;
                    self.meter.charge(filter.cost)?;
                    (filter.run)(call)?
                }
                Post::Test(asked) => {
                    let call = self.call(value, &asked.args)?;
                    self.meter.charge(asked.test.cost)?;
                    Val::Bool((asked.test.run)(call)? != asked.is_negated)
                }
            };
        }
        Ok(value)
    }

    fn call(&mut self, value: Val<'a>, args: &'a Args) -> Result<Call<'a, 'm, 'b>> {
        let mut by_place = Vec::with_capacity(args.by_place().len());
        for arg in args.by_place() {
            by_place.push(self.eval(arg)?);
        }
        let mut by_name = Vec::with_capacity(args.by_name().len());
        for (name, arg) in args.by_name() {
            by_name.push((&**name, self.eval(arg)?));
        }
        Ok(Call {
            meter: self.meter,
            value,
            by_place: by_place.into_iter(),
            by_name,
        })
    }

    fn place(&mut self, expr: Option<&'a Expr>) -> Result<Option<i128>> {
        let Some(expr) = expr else { return Ok(None) };
        match self.eval(expr)? {
            Val::None => Ok(None),
            value => match value.as_int() {
                Some(place) => Ok(Some(place)),
                None => Err(fail(format!(
                    "a slice goes from number to number, found {}",
                    value.kind()
                ))),
            },
        }
    }

    fn slice(&self, value: &Val<'a>, from: Option<i128>, to: Option<i128>, step: usize) -> Result<Val<'a>> {
        let bounds = |length: usize| {
            let place = |place: i128| {
                let place = if place < 0 { place + length as i128 } else { place };
                usize::try_from(place.max(0)).unwrap_or(usize::MAX).min(length)
            };
            (from.map_or(0, place), to.map_or(length, place))
        };
        match value {
            Val::Undefined | Val::None => Ok(Val::list(Vec::new())),
            Val::Text(text) => {
                let text = text.as_str();
                self.meter.bytes(16 * text.len())?;
                let (from, to) = bounds(text.chars().count());
                let kept = text.chars().take(to).skip(from).step_by(step);
                Ok(Val::text(kept.collect()))
            }
            Val::Seq(Seq::Lent(items)) if step == 1 => {
                let (from, to) = bounds(items.len());
                Ok(Val::Seq(Seq::Lent(items.get(from..to).unwrap_or_default())))
            }
            Val::Seq(items) => {
                let (from, to) = bounds(items.len());
                self.meter.values(2 * (to.saturating_sub(from) / step + 1))?;
                let kept = (from..to).step_by(step).filter_map(|at| items.get(at));
                Ok(Val::list(kept.collect()))
            }
            Val::Bool(_) | Val::Int(_) | Val::Float(_) | Val::Map(_) => {
                Err(fail(format!("value of type {} cannot be sliced", value.kind())))
            }
        }
    }
}

/// Whether a list contains a value, an object a field, or a text a substring.
pub(super) fn contains<'a>(container: &Val<'a>, value: &Val<'a>, meter: &Meter<'_>) -> Result<bool> {
    match container {
        Val::Undefined => Ok(false),
        Val::Text(text) => {
            let mut wanted = Out::new(meter);
            wanted.print(value)?;
            let wanted = wanted.finish()?;
            meter.charge(searching(text.as_str(), &wanted))?;
            Ok(text.as_str().contains(&wanted))
        }
        Val::Map(fields) => {
            meter.charge(1)?;
            let Some(name) = value.as_str() else {
                return Ok(false);
            };
            meter.bytes(name.len())?;
            Ok(fields.find(name, meter)?.is_some())
        }
        Val::Seq(items) => {
            for item in items.iter() {
                if item.equals(value, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Val::None | Val::Bool(_) | Val::Int(_) | Val::Float(_) => {
            Err(fail("cannot perform a containment check on this value"))
        }
    }
}

/// The cost of a substring search: the needle is preprocessed first. Callers do not search for a needle that is longer
/// than the text: except in `contains`, the standard library would preprocess it all the same.
pub(super) fn searching(text: &str, wanted: &str) -> u64 {
    let prepared = if wanted.len() > text.len() {
        0
    } else {
        wanted.len()
    };
    1 + text.len() as u64 / 8 + prepared as u64 / 2
}

fn negative<'a>(value: &Val<'a>) -> Result<Val<'a>> {
    match value {
        Val::Int(n) => n.checked_neg().map(Val::Int).ok_or_else(|| fail("overflow")),
        Val::Float(n) => Ok(Val::Float(-n)),
        other => Err(fail(format!("{} has no negative", other.kind()))),
    }
}

/// Applies an arithmetic operator to two numbers.
pub(super) fn calculate<'a>(operator: Operator, left: &Val<'a>, right: &Val<'a>) -> Result<Val<'a>> {
    let unfit = || {
        let (left, right) = (left.kind(), right.kind());
        let sign = sign(operator);
        fail(format!(
            "tried to use {sign} operator on unsupported types {left} and {right}"
        ))
    };
    if matches!(operator, Operator::Multiply) && !(left.is_number() && right.is_number()) {
        let other = if left.is_number() { right } else { left };
        return Err(fail(format!("{} is not a number", other.kind())));
    }
    let failed = || fail(format!("unable to calculate with {}", sign(operator)));
    let (a, b) = match (left, right) {
        (Val::Int(_) | Val::Bool(_), Val::Int(_) | Val::Bool(_)) => (
            left.as_int().ok_or_else(unfit)?,
            right.as_int().ok_or_else(unfit)?,
        ),
        _ => {
            let (a, b) = (
                left.as_float().ok_or_else(unfit)?,
                right.as_float().ok_or_else(unfit)?,
            );
            return calculate_floats(operator, a, b).ok_or_else(failed);
        }
    };
    let int = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::FloorDivide => floored(a, b).map(|(quotient, _)| quotient),
        Operator::Remainder => floored(a, b).map(|(_, remainder)| remainder),
        Operator::Power if b < 0 && a != 0 => return Ok(Val::Float(float(a).powf(float(b)))),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        Operator::Divide => return calculate_floats(operator, float(a), float(b)).ok_or_else(failed),
        Operator::Join => return Err(unfit()),
    };
    int.map(Val::Int).ok_or_else(failed)
}

fn calculate_floats<'a>(operator: Operator, a: f64, b: f64) -> Option<Val<'a>> {
    let float = match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide | Operator::FloorDivide | Operator::Remainder if b == 0.0 => return None,
        Operator::Divide => a / b,
        Operator::FloorDivide => (a / b).floor(),
        Operator::Remainder => {
            let remainder = a % b;
            if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) {
                remainder + b
            } else {
                remainder
            }
        }
        Operator::Power if a == 0.0 && b < 0.0 => return None,
        Operator::Power => a.powf(b),
        Operator::Join => return None,
    };
    Some(Val::Float(float))
}

/// Quotient and remainder of a division that rounds down.
fn floored(a: i128, b: i128) -> Option<(i128, i128)> {
    let (quotient, remainder) = (a.checked_div(b)?, a.checked_rem(b)?);
    if remainder != 0 && (remainder < 0) != (b < 0) {
        return Some((quotient.checked_sub(1)?, remainder.checked_add(b)?));
    }
    Some((quotient, remainder))
}

const fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Join => "~",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
    }
}

/// Whether a number is a multiple of another; no number is a multiple of 0.
pub(super) fn divides<'a>(value: &Val<'a>, by: &Val<'a>) -> bool {
    let zero = Val::Int(0);
    if compare_numbers(by, &zero).is_none_or(std::cmp::Ordering::is_eq) {
        return false;
    }
    let remainder = calculate(Operator::Remainder, value, by);
    remainder.is_ok_and(|rest| compare_numbers(&rest, &zero) == Some(std::cmp::Ordering::Equal))
}

/// The `loop` variable of one iteration.
#[derive(Debug)]
struct Turn {
    at: usize,
    length: usize,
}

const TURN: [&str; 9] = [
    "depth",
    "depth0",
    "first",
    "index",
    "index0",
    "last",
    "length",
    "revindex",
    "revindex0",
];

impl<'a> Fields<'a> for Turn {
    fn get(&self, name: &str) -> Option<Val<'a>> {
        Some(match name {
            "index" => Val::count(self.at + 1),
            "index0" => Val::count(self.at),
            "length" => Val::count(self.length),
            "revindex" => Val::count(self.length - self.at),
            "revindex0" => Val::count(self.length - self.at - 1),
            "first" => Val::Bool(self.at == 0),
            "last" => Val::Bool(self.at + 1 == self.length),
            "depth" => Val::Int(1),
            "depth0" => Val::Int(0),
            _ => return None,
        })
    }

    fn most(&self) -> usize {
        TURN.len()
    }

    fn all(&self) -> BTreeMap<Cow<'a, str>, Val<'a>> {
        let each = |name: &&'static str| Some((Cow::Borrowed(*name), self.get(name)?));
        TURN.iter().filter_map(each).collect()
    }
}
