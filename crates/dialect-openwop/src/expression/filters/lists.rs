//! Filters of lists and objects.

use std::cmp::Ordering;

use super::{Call, Filter, MAPPABLE, MAX_ITEMS, Result, many};
use crate::{
    cost::{Meter, merge_sort},
    expression::{
        ExpressionError,
        ast::Operator,
        eval::calculate,
        predicates::Test,
        value::{Map, Text, Val, fail},
    },
};

pub(super) fn dictsort<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let by_value = call.named("by").is_some_and(|by| by.as_str() == Some("value"));
    let is_exact = call.flag("case_sensitive")?;
    let is_reversed = call.flag("reverse")?;
    let meter = call.meter;
    let entries = entries(&call)?;
    call.done()?;
    let keyed = entries.into_iter().map(|(name, value)| {
        let name = Val::Text(name);
        let key = if by_value { value.clone() } else { name.clone() };
        (key, Val::list(vec![name, value]))
    });
    Ok(Val::list(sorted(
        &keyed.collect::<Vec<_>>(),
        is_exact,
        is_reversed,
        meter,
    )?))
}

pub(super) fn pairs<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let entries = entries(&call)?;
    call.done()?;
    let pairs = entries
        .into_iter()
        .map(|(name, value)| Val::list(vec![Val::Text(name), value]));
    Ok(Val::list(pairs.collect()))
}

fn entries<'a>(call: &Call<'a, '_, '_>) -> Result<Vec<(Text<'a>, Val<'a>)>> {
    let Val::Map(fields) = &call.value else {
        return Err(fail("cannot convert value into pairs"));
    };
    if fields.len(call.meter)? > MAX_ITEMS {
        return Err(many());
    }
    let entries = fields.entries(call.meter)?;
    // Each entry becomes a list of two.
    call.meter.values(6 * entries.len())?;
    Ok(entries)
}

pub(super) fn first<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let found = match &call.value {
        Val::Text(text) => text.as_str().chars().next().map(|c| Val::text(c.to_string())),
        Val::Seq(items) => items.get(0),
        Val::Map(Map::Lent(fields)) => fields.keys().next().map(|name| Val::Text(Text::Lent(name))),
        Val::Map(fields) => {
            let first = fields.entries(call.meter)?.into_iter().next();
            first.map(|(name, _)| Val::Text(name))
        }
        Val::Undefined | Val::None | Val::Bool(_) | Val::Int(_) | Val::Float(_) => {
            return Err(fail("cannot get first item from value"));
        }
    };
    call.done()?;
    Ok(found.unwrap_or(Val::Undefined))
}

pub(super) fn last<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let found = match &call.value {
        Val::Text(text) => text
            .as_str()
            .chars()
            .next_back()
            .map(|c| Val::text(c.to_string())),
        Val::Seq(items) => items.len().checked_sub(1).and_then(|at| items.get(at)),
        Val::Undefined | Val::None | Val::Bool(_) | Val::Int(_) | Val::Float(_) | Val::Map(_) => {
            return Err(fail("cannot get last item from value"));
        }
    };
    call.done()?;
    Ok(found.unwrap_or(Val::Undefined))
}

pub(super) fn map<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let attribute = call.named("attribute");
    let otherwise = call.named("default");
    let name = call.by_place.next();
    let mut items = call.items()?;
    let meter = call.meter;
    call.done()?;
    match (attribute, name) {
        (Some(path), None) => {
            for item in &mut items {
                *item = match path.as_str() {
                    Some(path) => item.path(path, meter)?,
                    None => item.item(&path, meter)?,
                };
                if let (true, Some(otherwise)) = (item.is_undefined(), &otherwise) {
                    *item = otherwise.clone();
                }
            }
        }
        (None, Some(name)) => {
            let name = name.as_str().filter(|name| MAPPABLE.contains(name));
            let filter = name.and_then(Filter::named).ok_or_else(not_mappable)?;
            for item in &mut items {
                meter.charge(2 + filter.cost)?;
                *item = (filter.run)(Call {
                    meter,
                    value: item.clone(),
                    by_place: Vec::new().into_iter(),
                    by_name: Vec::new(),
                })?;
            }
        }
        (None, None) | (Some(_), Some(_)) => return Err(not_mappable()),
    }
    Ok(Val::list(items))
}

fn not_mappable() -> ExpressionError {
    let names = MAPPABLE.join(", ");
    fail(format!("map takes attribute=… or one of {names}"))
}

/// The items for which a test holds, applied to the item itself or to the value at a path in it.
pub(super) fn chosen<'a>(mut call: Call<'a, '_, '_>, by_path: bool, wanted: bool) -> Result<Val<'a>> {
    let path = if by_path {
        Some(call.needed_text("attribute")?)
    } else {
        None
    };
    let test = match call.by_place.next() {
        None => None,
        Some(name) => {
            let test = name.as_str().and_then(by_name);
            Some(test.ok_or_else(|| fail("there is no such test"))?)
        }
    };
    let args: Vec<_> = call.by_place.by_ref().collect();
    let items = call.bounded()?;
    let meter = call.meter;
    call.done()?;
    let mut kept = Vec::new();
    for item in items.iter() {
        meter.charge(2)?;
        let value = match &path {
            Some(path) => item.path(path.as_str(), meter)?,
            None => item.clone(),
        };
        let holds = match test {
            None => value.is_true(meter)?,
            Some(test) => {
                meter.charge(test.cost + 2 * args.len() as u64)?;
                (test.run)(Call {
                    meter,
                    value,
                    by_place: args.clone().into_iter(),
                    by_name: Vec::new(),
                })?
            }
        };
        if holds == wanted {
            meter.values(2)?;
            kept.push(item);
        }
    }
    Ok(Val::list(kept))
}

/// A test by its name or by the equivalent operator.
fn by_name(name: &str) -> Option<&'static Test> {
    Test::named(match name {
        "==" => "eq",
        "!=" => "ne",
        "<" => "lt",
        "<=" => "le",
        ">" => "gt",
        ">=" => "ge",
        other => other,
    })
}

pub(super) fn reverse<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    if let Val::Text(text) = &call.value {
        call.meter.bytes(8 * text.as_str().len())?;
        let reversed = text.as_str().chars().rev().collect();
        call.done()?;
        return Ok(Val::text(reversed));
    }
    let mut items = call.items()?;
    call.done()?;
    items.reverse();
    Ok(Val::list(items))
}

pub(super) fn sort<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let is_reversed = call.optional_flag("reverse")?;
    let is_exact = call.optional_flag("case_sensitive")?;
    let attribute = call.optional_text("attribute")?;
    let items = call.items()?;
    let meter = call.meter;
    call.done()?;
    // Each byte may start a path, which takes one entry in the list of paths.
    let n_bytes = attribute.as_ref().map_or(0, |paths| paths.as_str().len());
    meter.charge(n_bytes as u64)?;
    let paths = attribute.as_ref().map_or_else(Vec::new, |attribute| {
        let paths = attribute.as_str().split(',').map(str::trim);
        paths.filter(|path| !path.is_empty()).collect()
    });
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        meter.values(2)?;
        let key = match paths[..] {
            [] => item.clone(),
            [path] => item.path(path, meter)?,
            _ => {
                meter.values(2 * paths.len())?;
                let parts = paths.iter().map(|path| {
                    let part = item.path(path, meter)?;
                    Ok(match part.as_str() {
                        Some(text) if !is_exact => {
                            meter.bytes(2 * text.len())?;
                            Val::text(text.to_ascii_lowercase())
                        }
                        _ => part,
                    })
                });
                Val::list(parts.collect::<Result<_>>()?)
            }
        };
        keyed.push((key, item));
    }
    Ok(Val::list(sorted(&keyed, is_exact, is_reversed, meter)?))
}

/// Sorts values by their keys; the sort is stable.
fn sorted<'a>(
    keyed: &[(Val<'a>, Val<'a>)],
    is_exact: bool,
    is_reversed: bool,
    meter: &Meter<'_>,
) -> Result<Vec<Val<'a>>> {
    meter.values(2 * keyed.len())?;
    let order: Result<_> = merge_sort(keyed.len(), |a, b| {
        let order = ordered(&keyed[a].0, &keyed[b].0, is_exact, meter)?;
        Ok(if is_reversed { order.reverse() } else { order })
    });
    Ok(order?.into_iter().map(|at| keyed[at].1.clone()).collect())
}

fn ordered<'a>(a: &Val<'a>, b: &Val<'a>, is_exact: bool, meter: &Meter<'_>) -> Result<Ordering> {
    if let (Some(a), Some(b), false) = (a.as_str(), b.as_str(), is_exact) {
        meter.charge(1 + a.len().min(b.len()) as u64 / 8)?;
        let (a, b) = (a.bytes(), b.bytes());
        return Ok(a
            .map(|c| c.to_ascii_lowercase())
            .cmp(b.map(|c| c.to_ascii_lowercase())));
    }
    a.order(b, meter)
}

pub(super) fn extreme<'a>(mut call: Call<'a, '_, '_>, replaces: fn(Ordering) -> bool) -> Result<Val<'a>> {
    let is_exact = call.flag("case_sensitive")?;
    let path = call.named_text("attribute")?;
    let items = call.bounded()?;
    let meter = call.meter;
    call.done()?;
    let mut found: Option<(Val<'a>, Val<'a>)> = None;
    for item in items.iter() {
        meter.charge(2)?;
        let key = match &path {
            Some(path) => item.path(path.as_str(), meter)?,
            None => item.clone(),
        };
        let is_better = match &found {
            None => true,
            Some((best, _)) => replaces(ordered(&key, best, is_exact, meter)?),
        };
        if is_better {
            found = Some((key, item));
        }
    }
    Ok(found.map_or(Val::Undefined, |(_, item)| item))
}

pub(super) fn sum<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let path = call.optional_text("attribute")?;
    if call.named("start").is_some() {
        return Err(fail("'start' is not offered"));
    }
    let items = call.bounded()?;
    let meter = call.meter;
    call.done()?;
    let mut total = Val::Int(0);
    for item in items.iter() {
        meter.charge(2)?;
        let item = match &path {
            Some(path) => item.path(path.as_str(), meter)?,
            None => item,
        };
        if item.is_undefined() {
            continue;
        }
        if !item.is_number() && !matches!(item, Val::Bool(_)) {
            return Err(fail(format!("can only sum numbers, got {}", item.kind())));
        }
        total = calculate(Operator::Add, &total, &item)?;
    }
    Ok(total)
}

pub(super) fn unique<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let is_exact = call.flag("case_sensitive")?;
    let path = call.named_text("attribute")?;
    let items = call.items()?;
    let meter = call.meter;
    call.done()?;
    let mut keyed = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        meter.values(4)?;
        let key = match &path {
            Some(path) => item.path(path.as_str(), meter)?,
            None => item.clone(),
        };
        keyed.push((key.clone(), Val::list(vec![key, Val::count(at)])));
    }
    // The sort is stable, so the first of several equal items is the first in the list.
    let mut kept: Vec<usize> = Vec::new();
    let mut before: Option<Val<'a>> = None;
    for pair in sorted(&keyed, is_exact, false, meter)? {
        let Val::Seq(pair) = pair else { continue };
        let (Some(key), Some(Val::Int(at))) = (pair.get(0), pair.get(1)) else {
            continue;
        };
        let is_new = match &before {
            None => true,
            Some(before) => ordered(before, &key, is_exact, meter)?.is_ne(),
        };
        if is_new {
            kept.extend(usize::try_from(at));
            before = Some(key);
        }
    }
    kept.sort_unstable();
    Ok(Val::list(
        kept.into_iter().filter_map(|at| items.get(at).cloned()).collect(),
    ))
}
