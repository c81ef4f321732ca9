//! Whether the references of a core schema come to an end: a value can be finite, and no schema is only itself.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Result, logic};
use crate::error::{CompileError, Kind};

/// After so many rounds over the definitions the rest is taken to be finite.
const ROUNDS: usize = 64;

/// Refuses recursion without an end, and takes out what refers to definitions that no value matches: llguidance leaves an option or a
/// property out that is impossible where it stands, but not one whose definition is, and a text that has begun one that never ends could not
/// be completed. `bodies` are the definitions by index, `paths` where they are in the source.
pub(super) fn check(root: &mut Value, bodies: &mut [Value], paths: &[&str]) -> Result<()> {
    in_place(bodies, paths)?;
    let mut finite = vec![false; bodies.len()];
    for _ in 0..ROUNDS {
        let mut changed = false;
        for index in (0..bodies.len()).rev() {
            if !finite[index] && lack(&bodies[index], &finite).is_none() {
                finite[index] = true;
                changed = true;
            }
        }
        if changed {
            continue;
        }
        if let Some(lack) = lack(root, &finite) {
            return Err(without_value(lack, bodies, &finite, paths));
        }
        if finite.contains(&false) {
            take_out(root, &finite);
            bodies.iter_mut().for_each(|body| take_out(body, &finite));
            for (body, _) in bodies.iter_mut().zip(&finite).filter(|(_, finite)| !**finite) {
                *body = Value::Bool(false);
            }
        }
        return Ok(());
    }
    Ok(())
}

/// The definition at fault where the root lacks a finite value.
fn without_value(mut lack_of: Lack, bodies: &[Value], finite: &[bool], paths: &[&str]) -> CompileError {
    let mut seen = vec![false; bodies.len()];
    let mut at = None;
    while let Lack::Of(index) = lack_of {
        at = Some(index);
        if std::mem::replace(&mut seen[index], true) {
            let reason = "infinite recursion: every value of this schema needs another one within it";
            return CompileError::at(Kind::Unsatisfiable, paths[index], reason);
        }
        lack_of = lack(&bodies[index], finite).unwrap_or(Lack::OfValues);
    }
    let reason = "no value matches the schema";
    match at {
        Some(index) => CompileError::at(Kind::Unsatisfiable, paths[index], reason),
        None => CompileError::new(Kind::Unsatisfiable, reason),
    }
}

/// Writes `false` in place of references to definitions that are not finite.
fn take_out(schema: &mut Value, finite: &[bool]) {
    if referred(schema).is_some_and(|index| !finite[index]) {
        *schema = Value::Bool(false);
    }
    let Value::Object(members) = schema else { return };
    for (key, value) in members {
        match (key.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(children)) => {
                children.values_mut().for_each(|child| take_out(child, finite));
            }
            ("allOf" | "anyOf" | "prefixItems", Value::Array(children)) => {
                children.iter_mut().for_each(|child| take_out(child, finite));
            }
            ("items" | "additionalProperties", child) => take_out(child, finite),
            _ => {}
        }
    }
}

/// The index of the definition that a core refers to.
pub(super) fn referred(schema: &Value) -> Option<usize> {
    schema.get("$ref")?.as_str()?.rsplit('/').next()?.parse().ok()
}

/// Why a schema has no finite value.
enum Lack {
    /// This definition has none.
    Of(usize),
    /// There is none at all.
    OfValues,
}

/// Why no value of the schema is finite, given which definitions are known to have one; None where some may be.
fn lack(schema: &Value, known: &[bool]) -> Option<Lack> {
    // All that must hold together: one part may demand what another one describes.
    let mut parts = Vec::new();
    let mut todo = vec![schema];
    while let Some(part) = todo.pop() {
        let Value::Object(members) = part else {
            if *part == Value::Bool(false) {
                return Some(Lack::OfValues);
            }
            continue;
        };
        if let Some(index) = referred(part).filter(|index| !known[*index]) {
            return Some(Lack::Of(index));
        }
        todo.extend(list(members, "allOf"));
        parts.push(members);
    }
    let is =
        |members: &Map<String, Value>, kind: &str| members.get("type").is_some_and(|types| types == kind);
    let is_object = parts.iter().any(|members| is(members, "object"));
    let required: HashSet<&str> =
        parts.iter().flat_map(|members| list(members, "required")).filter_map(Value::as_str).collect();
    for members in parts {
        if lists_no_value_of_its_type(members) {
            return Some(Lack::OfValues);
        }
        if members.contains_key("anyOf") {
            let lacks: Option<Vec<Lack>> =
                list(members, "anyOf").iter().map(|option| lack(option, known)).collect();
            if let Some(lacks) = lacks {
                return lacks.into_iter().next().or(Some(Lack::OfValues));
            }
        }
        let properties = members.get("properties").and_then(Value::as_object).filter(|_| is_object);
        let demanded = properties.into_iter().flatten().filter(|(name, _)| required.contains(name.as_str()));
        if let Some(lack) = demanded.map(|(_, property)| property).find_map(|property| lack(property, known))
        {
            return Some(lack);
        }
        if is(members, "array") {
            let least = members.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
            let prefix = list(members, "prefixItems");
            let rest = members.get("items").filter(|_| least > prefix.len());
            if let Some(lack) = prefix.iter().take(least).chain(rest).find_map(|item| lack(item, known)) {
                return Some(lack);
            }
        }
    }
    None
}

fn list<'v>(members: &'v Map<String, Value>, key: &str) -> &'v [Value] {
    members.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn lists_no_value_of_its_type(members: &Map<String, Value>) -> bool {
    let Some(names) = members.get("type").and_then(logic::type_names) else { return false };
    let is_of_type = |value: &Value| {
        let is_whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
        names.contains(&logic::kind_of(value)) || names.contains(&"integer") && is_whole()
    };
    match (members.get("const"), members.get("enum")) {
        (Some(value), _) => !is_of_type(value),
        (None, Some(Value::Array(values))) => !values.iter().any(is_of_type),
        _ => false,
    }
}

/// Refuses a definition that leads to itself without a property or an item between.
fn in_place(bodies: &[Value], paths: &[&str]) -> Result<()> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Done,
    }
    let edges: Vec<Vec<usize>> = bodies
        .iter()
        .map(|body| {
            let mut found = Vec::new();
            let mut todo = vec![body];
            while let Some(schema) = todo.pop() {
                found.extend(referred(schema));
                for key in ["allOf", "anyOf"] {
                    todo.extend(schema.get(key).and_then(Value::as_array).into_iter().flatten());
                }
            }
            found
        })
        .collect();
    let mut seen = vec![Seen::No; bodies.len()];
    for start in 0..bodies.len() {
        let mut stack = vec![(start, 0)];
        while let Some((node, next)) = stack.pop() {
            if next == 0 {
                if seen[node] != Seen::No {
                    continue;
                }
                seen[node] = Seen::Open;
            }
            let Some(&child) = edges[node].get(next) else {
                seen[node] = Seen::Done;
                continue;
            };
            stack.push((node, next + 1));
            match seen[child] {
                Seen::Open => {
                    return Err(CompileError::at(
                        Kind::Unsupported,
                        paths[child],
                        "infinite recursion: the schema is only itself",
                    ));
                }
                Seen::No => stack.push((child, 0)),
                Seen::Done => {}
            }
        }
    }
    Ok(())
}
