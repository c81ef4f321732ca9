//! Whether what must hold together in one place of a core schema stays within what llguidance can intersect in time, and in 32 bits.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::recursion::referred;
use super::{Result, decimal};
use crate::error::{CompileError, Kind};

/// Expressions that one string may have to match together; the time of llguidance doubles with each.
const MOST_EXPRESSIONS: usize = 16;
/// Properties that one object may come to name; the time of llguidance grows with their square.
const MOST_PROPERTIES: usize = 3_000;
/// Properties of one object that are weighed each by itself.
const MOST_WEIGHED: usize = 128;

/// Numbers whose multiples a value has to be, all at once: llguidance multiplies them in 32 bits.
#[derive(Clone, Copy, PartialEq)]
struct Divisors {
    /// Of their digits, without points.
    product: u64,
    count: u32,
    /// The most decimals that one has, and those that others have less, together.
    places: u32,
    tens: u32,
}

impl Default for Divisors {
    fn default() -> Divisors {
        Divisors { product: 1, count: 0, places: 0, tens: 0 }
    }
}

impl Divisors {
    fn of(value: &Value) -> Divisors {
        let (product, places) = decimal(value).unwrap_or((u64::MAX, 0));
        Divisors { product, count: 1, places, tens: 0 }
    }

    fn tens_at(self, places: u32) -> u32 {
        self.tens.saturating_add(self.count.saturating_mul(places - self.places))
    }

    fn add(self, other: Divisors) -> Divisors {
        let places = self.places.max(other.places);
        Divisors {
            product: self.product.saturating_mul(other.product),
            count: self.count.saturating_add(other.count),
            places,
            tens: self.tens_at(places).saturating_add(other.tens_at(places)),
        }
    }

    fn max(self, other: Divisors) -> Divisors {
        let places = self.places.max(other.places);
        Divisors {
            product: self.product.max(other.product),
            count: self.count.max(other.count),
            places,
            tens: self.tens_at(places).max(other.tens_at(places)),
        }
    }

    fn fit(self) -> bool {
        let tens = 10_u64.checked_pow(self.tens).unwrap_or(u64::MAX);
        self.count < 2 || self.product.saturating_mul(tens) <= u64::from(u32::MAX)
    }
}

/// An upper bound of what comes together in one place.
#[derive(Clone, Copy, Default, PartialEq)]
struct Load {
    expressions: usize,
    properties: usize,
    divisors: Divisors,
}

impl Load {
    fn add(self, other: Load) -> Load {
        Load {
            expressions: self.expressions.saturating_add(other.expressions),
            properties: self.properties.saturating_add(other.properties),
            divisors: self.divisors.add(other.divisors),
        }
    }

    fn max(self, other: Load) -> Load {
        Load {
            expressions: self.expressions.max(other.expressions),
            properties: self.properties.max(other.properties),
            divisors: self.divisors.max(other.divisors),
        }
    }
}

/// What a schema brings to the value itself, and to those within it. Of two schemas for one object only properties of the same name meet.
#[derive(Clone, Default)]
struct Weight<'v> {
    here: Load,
    named: BTreeMap<&'v str, Load>,
    /// To items, and to every property that is not in `named`.
    below: Load,
}

impl<'v> Weight<'v> {
    fn load(&self) -> Load {
        self.named.values().fold(self.here.max(self.below), |load, named| load.max(*named))
    }

    fn put(&mut self, name: &'v str, load: Load) {
        if self.named.len() < MOST_WEIGHED || self.named.contains_key(name) {
            self.named.insert(name, load);
        } else {
            self.below = self.below.max(load);
        }
    }

    /// Both hold, or one of them does.
    fn with(self, other: Weight<'v>, join: impl Fn(Load, Load) -> Load) -> Weight<'v> {
        let mut all = Weight {
            here: join(self.here, other.here),
            named: BTreeMap::new(),
            below: join(self.below, other.below),
        };
        for (name, load) in &self.named {
            all.put(name, join(*load, other.named.get(name).copied().unwrap_or(other.below)));
        }
        for (name, load) in other.named.iter().filter(|(name, _)| !self.named.contains_key(*name)) {
            all.put(name, join(self.below, *load));
        }
        all
    }
}

/// Refuses a schema of which too much must hold in one place.
pub(super) fn check(root: &Value, bodies: &[Value]) -> Result<()> {
    let mut known = vec![None; bodies.len()];
    let load = weigh(root, bodies, &mut known).load();
    let refused = |what: &str| {
        Err(CompileError::new(
            Kind::TooLarge,
            format!("the schema's `allOf` bring together more than {what}"),
        ))
    };
    if load.expressions > MOST_EXPRESSIONS {
        return refused(&format!("{MOST_EXPRESSIONS} patterns and formats for one string"));
    }
    if load.properties > MOST_PROPERTIES {
        return refused(&format!("{MOST_PROPERTIES} properties of one object"));
    }
    if !load.divisors.fit() {
        return Err(CompileError::new(
            Kind::Unsupported,
            "the `multipleOf` that `allOf` bring together for one number are too large to be combined",
        ));
    }
    Ok(())
}

fn weigh<'v>(schema: &'v Value, bodies: &'v [Value], known: &mut Vec<Option<Weight<'v>>>) -> Weight<'v> {
    let Value::Object(members) = schema else { return Weight::default() };
    let mut own = Weight {
        here: Load {
            expressions: usize::from(members.contains_key("pattern")),
            properties: members.get("properties").and_then(Value::as_object).map_or(0, Map::len),
            divisors: members.get("multipleOf").map_or_else(Divisors::default, Divisors::of),
        },
        ..Weight::default()
    };
    let mut together: Option<Weight> = None;
    let mut beside = |weight: Weight<'v>| {
        together = Some(match together.take() {
            Some(others) => others.with(weight, Load::add),
            None => weight,
        });
    };
    for (key, value) in members {
        match (key.as_str(), value) {
            ("properties", Value::Object(children)) => {
                for (name, child) in children {
                    let load = weigh(child, bodies, known).load();
                    if load != Load::default() {
                        own.put(name, load);
                    }
                }
            }
            ("patternProperties", Value::Object(children)) => {
                for child in children.values() {
                    own.below = own.below.max(weigh(child, bodies, known).load());
                }
            }
            ("prefixItems", Value::Array(children)) => {
                for child in children {
                    own.below = own.below.max(weigh(child, bodies, known).load());
                }
            }
            ("items" | "additionalProperties", child) => {
                own.below = own.below.max(weigh(child, bodies, known).load());
            }
            ("allOf", Value::Array(parts)) => {
                parts.iter().for_each(|part| beside(weigh(part, bodies, known)));
            }
            ("anyOf", Value::Array(options)) => {
                let options = options.iter().map(|option| weigh(option, bodies, known));
                if let Some(most) = options.reduce(|one, other| one.with(other, Load::max)) {
                    beside(most);
                }
            }
            ("$ref", _) => {
                if let Some(index) = referred(schema) {
                    if known[index].is_none() {
                        // Within itself a definition is met only further down, where it adds nothing here.
                        known[index] = Some(Weight::default());
                        known[index] = Some(weigh(&bodies[index], bodies, known));
                    }
                    beside(known[index].clone().unwrap_or_default());
                }
            }
            _ => {}
        }
    }
    match together {
        Some(together) => own.with(together, Load::add),
        None => own,
    }
}
