//! Whether the references of a core schema come to an end: a value can be finite, and no schema is only itself. And
//! whether what must hold together stays within what llguidance can intersect in time.

use serde_json::Value;

use super::Result;
use crate::error::{CompileError, Kind};

/// After so many rounds over the definitions the rest is taken to be finite.
const ROUNDS: usize = 64;

/// Refuses recursion without an end. `bodies` are the definitions by index, `paths` where they are in the source.
pub(super) fn recursion(root: &Value, bodies: &[Value], paths: &[&str]) -> Result<()> {
    in_place(bodies, paths)?;
    let mut finite = vec![false; bodies.len()];
    for _ in 0..ROUNDS {
        let mut changed = false;
        for index in (0..bodies.len()).rev() {
            if !finite[index] && is_finite(&bodies[index], &finite) {
                finite[index] = true;
                changed = true;
            }
        }
        if !changed {
            if is_finite(root, &finite) {
                return Ok(());
            }
            return Err(match finite.iter().position(|finite| !finite) {
                Some(index) => CompileError::at(
                    Kind::Unsatisfiable,
                    paths[index],
                    "infinite recursion: every value of this schema needs another one within it",
                ),
                None => CompileError::new(Kind::Unsatisfiable, "no value matches the schema"),
            });
        }
    }
    Ok(())
}

/// Expressions that one string may have to match together; the time of llguidance doubles with each.
const MOST_EXPRESSIONS: usize = 16;
/// Properties that one object may come to name; the time of llguidance grows with their square.
const MOST_PROPERTIES: usize = 3_000;

/// An upper bound of what comes together in one place.
#[derive(Clone, Copy, Default)]
struct Weight {
    expressions: usize,
    properties: usize,
}

impl Weight {
    fn add(self, other: Weight) -> Weight {
        Weight {
            expressions: self.expressions.saturating_add(other.expressions),
            properties: self.properties.saturating_add(other.properties),
        }
    }

    fn max(self, other: Weight) -> Weight {
        Weight {
            expressions: self.expressions.max(other.expressions),
            properties: self.properties.max(other.properties),
        }
    }
}

/// Refuses a schema of which too much must hold in one place.
pub(super) fn weight(root: &Value, bodies: &[Value]) -> Result<()> {
    let mut known = vec![None; bodies.len()];
    let weight = weigh(root, bodies, &mut known);
    let refused = |what: &str| {
        Err(CompileError::new(
            Kind::TooLarge,
            format!("the schema's `allOf` bring together more than {what}"),
        ))
    };
    if weight.expressions > MOST_EXPRESSIONS {
        return refused(&format!("{MOST_EXPRESSIONS} patterns and formats for one string"));
    }
    if weight.properties > MOST_PROPERTIES {
        return refused(&format!("{MOST_PROPERTIES} properties of one object"));
    }
    Ok(())
}

fn weigh(schema: &Value, bodies: &[Value], known: &mut Vec<Option<Weight>>) -> Weight {
    let Value::Object(members) = schema else { return Weight::default() };
    let mut within = Weight::default();
    let mut together = Weight::default();
    for (key, value) in members {
        match key.as_str() {
            "properties" | "patternProperties" => {
                for child in value.as_object().into_iter().flat_map(|children| children.values()) {
                    within = within.max(weigh(child, bodies, known));
                }
            }
            "items" | "additionalProperties" => within = within.max(weigh(value, bodies, known)),
            "prefixItems" => {
                for child in value.as_array().into_iter().flatten() {
                    within = within.max(weigh(child, bodies, known));
                }
            }
            "allOf" => {
                for part in value.as_array().into_iter().flatten() {
                    together = together.add(weigh(part, bodies, known));
                }
            }
            "anyOf" => {
                let mut most = Weight::default();
                for option in value.as_array().into_iter().flatten() {
                    most = most.max(weigh(option, bodies, known));
                }
                together = together.add(most);
            }
            "$ref" => {
                if let Some(index) = referred(schema) {
                    let weight = known[index].unwrap_or_else(|| {
                        // Within itself a definition is met only further down, where it adds nothing here.
                        known[index] = Some(Weight::default());
                        let weight = weigh(&bodies[index], bodies, known);
                        known[index] = Some(weight);
                        weight
                    });
                    together = together.add(weight);
                }
            }
            _ => {}
        }
    }
    let own = Weight {
        expressions: usize::from(members.contains_key("pattern")),
        properties: members
            .get("properties")
            .and_then(Value::as_object)
            .map_or(0, |properties| properties.len()),
    };
    own.max(within).add(together)
}

fn referred(schema: &Value) -> Option<usize> {
    schema.get("$ref")?.as_str()?.rsplit('/').next()?.parse().ok()
}

/// Whether some value of the schema is finite, given which definitions are known to have one.
fn is_finite(schema: &Value, known: &[bool]) -> bool {
    let Value::Object(members) = schema else { return schema != &Value::Bool(false) };
    if referred(schema).is_some_and(|index| !known[index]) {
        return false;
    }
    let branches = |key: &str| members.get(key).and_then(Value::as_array);
    if branches("allOf").is_some_and(|all| !all.iter().all(|part| is_finite(part, known))) {
        return false;
    }
    if branches("anyOf").is_some_and(|any| !any.iter().any(|option| is_finite(option, known))) {
        return false;
    }
    match members.get("type").and_then(Value::as_str) {
        Some("object") => {
            let required = branches("required").into_iter().flatten().filter_map(Value::as_str);
            let properties = members.get("properties");
            required
                .filter_map(|name| properties.and_then(|properties| properties.get(name)))
                .all(|property| is_finite(property, known))
        }
        Some("array") => {
            let least = members.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
            let prefix: &[Value] = branches("prefixItems").map_or(&[], Vec::as_slice);
            let rest =
                least <= prefix.len() || members.get("items").is_none_or(|items| is_finite(items, known));
            rest && prefix.iter().take(least).all(|item| is_finite(item, known))
        }
        _ => true,
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
