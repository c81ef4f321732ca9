//! Filters over the items of a value: `sort`, `groupby`, `map`, `select` and what goes with them.

use std::rc::Rc;

use super::attributes::path;
use super::{apply, folded, integer, is_set, predicates, sorted_by_keys, type_error};
use crate::arguments::Given;
use crate::budget::{Budget, MAX_ITEMS, too_long};
use crate::value::{Items, Tuple, Value, equal};
use crate::{Error, ErrorKind};

/// Items with what they are compared by. `sort` knows several attributes, with commas between.
pub(super) fn keyed(
    items: Vec<Value>,
    attribute: Option<&Value>,
    case_sensitive: bool,
    several: bool,
    budget: &Budget,
) -> Result<Vec<(Value, Value)>, Error> {
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let of = |item: &Value| -> Result<Value, Error> {
        match attribute {
            None => folded(item.clone(), case_sensitive, budget),
            Some(Value::Str(names)) if several => {
                let name =
                    |name: &str| folded(path(&Value::str(name), item, None, budget)?, case_sensitive, budget);
                Value::list(names.text.split(',').map(name).collect::<Result<_, _>>()?, budget)
            }
            Some(attribute) => folded(path(attribute, item, None, budget)?, case_sensitive, budget),
        }
    };
    items.into_iter().map(|item| Ok((of(&item)?, item))).collect()
}

pub(super) fn groupby(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [attribute, default, case_sensitive] = given.bind(["attribute", "default", "case_sensitive"])?;
    let attribute = attribute.ok_or_else(|| type_error("`attribute` is missing"))?;
    let case_sensitive = is_set(case_sensitive.as_ref());
    let mut items = Vec::new();
    for item in value.items(budget)? {
        items.push((
            folded(path(&attribute, &item, default.as_ref(), budget)?, case_sensitive, budget)?,
            item,
        ));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (of, item) in sorted_by_keys(items, false, budget)? {
        match groups.last_mut() {
            Some((last, members)) if equal(last, &of, budget)? => members.push(item),
            _ => groups.push((of, vec![item])),
        }
    }
    let mut list = Vec::new();
    for (of, members) in groups {
        // Where case does not count, the group has the name that its first member has.
        let name = if case_sensitive { of } else { path(&attribute, &members[0], default.as_ref(), budget)? };
        let items = Items::new(vec![name, Value::list(members, budget)?], budget)?;
        list.push(Value::Tuple(Rc::new(Tuple { items, is_group: true })));
    }
    Value::list(list, budget)
}

/// What `map` and `select` go through: nothing of a value that is false, of whatever type, as in Jinja2.
fn items_if_true(value: &Value, budget: &Budget) -> Result<Vec<Value>, Error> {
    if value.is_true() { value.items(budget) } else { Ok(Vec::new()) }
}

pub(super) fn map(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let items = items_if_true(value, budget)?;
    let mapped: Result<Vec<Value>, Error> = if given.positional.is_empty() {
        let attribute = given.named.iter().find(|(name, _)| &**name == "attribute");
        let default = given.named.iter().find(|(name, _)| &**name == "default").map(|(_, value)| value);
        let Some((_, attribute)) = attribute else {
            return Err(type_error("`map` needs a filter or an attribute"));
        };
        if given.named.len() > 1 + usize::from(default.is_some()) {
            return Err(type_error("`map` takes `attribute` and `default`"));
        }
        items.iter().map(|item| path(attribute, item, default, budget)).collect()
    } else {
        let (name, rest) = given.without_first(budget)?;
        let name = name.to_str(budget)?;
        let apply = |item: Value| {
            budget.step(1)?;
            let value = apply(&name, item, &rest, budget)?;
            budget.make(value.as_str().map_or(0, str::len))?;
            Ok(value)
        };
        items.into_iter().map(apply).collect()
    };
    Value::iterator(mapped?, budget)
}

pub(super) fn select(
    value: &Value,
    given: &Given,
    attribute: Option<&Value>,
    wanted: bool,
    budget: &Budget,
) -> Result<Value, Error> {
    let (test, rest) = if given.positional.is_empty() {
        (None, given.clone())
    } else {
        let (test, rest) = given.without_first(budget)?;
        (Some(test.to_str(budget)?), rest)
    };
    let mut selected = Vec::new();
    for item in items_if_true(value, budget)? {
        budget.step(1)?;
        let of = match attribute {
            Some(attribute) => path(attribute, &item, None, budget)?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => predicates::test(test, &of, &rest, budget)?,
            None => of.is_true(),
        };
        if holds == wanted {
            selected.push(item);
        }
    }
    Value::iterator(selected, budget)
}

pub(super) fn parts(name: &str, value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [count, fill] = given.bind([if name == "batch" { "linecount" } else { "slices" }, "fill_with"])?;
    let count = usize::try_from(integer(count, 0)?).unwrap_or(0);
    let items = value.items(budget)?;
    let fill = fill.filter(|fill| !fill.is_none());
    if count == 0 {
        return Err(Error::new(ErrorKind::Other, "the number of parts is not valid"));
    }
    if count > MAX_ITEMS {
        return Err(too_long());
    }
    let mut lists = Vec::new();
    if name == "batch" {
        for chunk in items.chunks(count) {
            let mut list = chunk.to_vec();
            if let Some(fill) = &fill {
                list.resize(count, fill.clone());
            }
            lists.push(Value::list(list, budget)?);
        }
    } else {
        let (each, more) = (items.len() / count, items.len() % count);
        let mut at = 0;
        for number in 0..count {
            let end = at + each + usize::from(number < more);
            let mut list = items[at..end].to_vec();
            if let Some(fill) = &fill
                && number >= more
            {
                list.push(fill.clone());
            }
            lists.push(Value::list(list, budget)?);
            at = end;
        }
    }
    Value::iterator(lists, budget)
}
