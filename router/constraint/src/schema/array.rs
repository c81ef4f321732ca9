//! The keywords of arrays.

use serde_json::{Map, Value, json};

use super::{Draft, Parts, Place, Result, Translator, any_of, count, invalid, least, logic, written};
use crate::error::Kind;

/// `contains` is met among this many first items. A text whose first match comes later is not written.
const CONTAINS_WITHIN: usize = 12;
/// Unique items are written out as the arrangements of so few values.
const MOST_ARRANGED: usize = 4;

impl<'a> Translator<'a> {
    pub(super) fn array(
        &mut self,
        members: &Map<String, Value>,
        place: &Place<'a>,
        parts: &mut Parts,
    ) -> Result<()> {
        let items = members.get("items");
        let (prefix, rest, rest_key) = match items {
            Some(Value::Array(prefix)) => {
                (Some((prefix, "items")), members.get("additionalItems"), "additionalItems")
            }
            _ => {
                let prefix = members.get("prefixItems").filter(|_| self.draft >= Draft::Of2020);
                let prefix = match prefix {
                    None => None,
                    Some(Value::Array(prefix)) => Some((prefix, "prefixItems")),
                    Some(_) => return Err(invalid(&place.member("prefixItems"), "an array of schemas")),
                };
                (prefix, items, "items")
            }
        };
        if let Some((prefix, key)) = prefix {
            let mut cores = Vec::new();
            for (index, item) in prefix.iter().enumerate() {
                cores.push(self.schema(item, &place.item(key, index))?);
            }
            parts.own.insert("prefixItems".into(), Value::Array(cores));
        }
        let alone = !["allOf", "anyOf", "oneOf", "$ref", "if", "contains"]
            .iter()
            .any(|key| members.contains_key(*key));
        let rest = match (rest, members.get("unevaluatedItems")) {
            (Some(rest), _) => Some((rest, rest_key)),
            (None, None | Some(Value::Bool(true))) => None,
            (None, Some(unevaluated)) if alone => Some((unevaluated, "unevaluatedItems")),
            _ => {
                return Err(place
                    .member("unevaluatedItems")
                    .refuse(Kind::Unsupported, "`unevaluatedItems` beside other schemas is not supported"));
            }
        };
        if let Some((rest, key)) = rest {
            let core = self.schema(rest, &place.member(key))?;
            parts.own.insert("items".into(), core);
        }

        let fewest =
            members.get("minItems").map(|value| least(value, &place.member("minItems"))).transpose()?;
        let most =
            members.get("maxItems").map(|value| count(value, &place.member("maxItems"))).transpose()?;
        let most = most.flatten();
        for (key, value) in [("minItems", fewest), ("maxItems", most)] {
            if let Some(value) = value {
                parts.own.insert(key.into(), value.into());
            }
        }
        if members.get("uniqueItems") == Some(&Value::Bool(true)) && most.is_none_or(|most| most > 1) {
            self.unique_items(members, place, parts)?;
        }
        if let Some(contained) = members.get("contains") {
            self.contains(contained, members, place, parts)?;
        }
        Ok(())
    }

    /// Writes unique items out where they are of few values; a grammar cannot compare others.
    fn unique_items(
        &mut self,
        members: &Map<String, Value>,
        place: &Place<'a>,
        parts: &mut Parts,
    ) -> Result<()> {
        let here = place.member("uniqueItems");
        let refused = || {
            here.refuse(
                Kind::Unsupported,
                "`uniqueItems` is only supported for items of up to 4 known values",
            )
        };
        let items = members.get("items").filter(|items| items.is_object()).ok_or_else(refused)?;
        let listed = self.few_values(items, &place.member("items")).ok_or_else(refused)?;
        if listed.len() > MOST_ARRANGED {
            return Err(refused());
        }
        let values = if listed.is_empty() { listed } else { written(&listed, &here)? };
        // By their places among the values.
        let mut arrangements: Vec<Vec<usize>> = vec![Vec::new()];
        let mut done = 0;
        while done < arrangements.len() {
            for at in 0..values.len() {
                if !arrangements[done].contains(&at) {
                    arrangements.push([arrangements[done].as_slice(), &[at]].concat());
                }
            }
            done += 1;
        }
        let mut options = Vec::new();
        for arrangement in arrangements {
            self.takes(arrangement.iter().map(|at| logic::size(&values[*at])).sum(), &here)?;
            let prefix: Vec<Value> = arrangement.iter().map(|at| json!({"const": values[*at]})).collect();
            let length = prefix.len();
            options.push(
                json!({"type": "array", "prefixItems": prefix, "items": false, "minItems": length, "maxItems": length}),
            );
        }
        self.nodes += options.len();
        options.push(json!({"type": ["null", "boolean", "number", "string", "object"]}));
        parts.after.push(any_of(options));
        Ok(())
    }

    fn contains(
        &mut self,
        contained: &Value,
        members: &Map<String, Value>,
        place: &Place<'a>,
        parts: &mut Parts,
    ) -> Result<()> {
        if self.draft > Draft::Seven {
            let here = place.member("minContains");
            let fewest = members.get("minContains").map(|value| least(value, &here)).transpose()?;
            if members.contains_key("maxContains") || fewest.is_some_and(|fewest| fewest > 1) {
                return Err(place.member("contains").refuse(
                    Kind::Unsupported,
                    "`contains` with a count other than one or more is not supported",
                ));
            }
            if fewest == Some(0) {
                return Ok(());
            }
        }
        let before = self.nodes;
        let core = self.schema(contained, &place.member("contains"))?;
        // What it is made of is there as often.
        self.add_nodes((self.nodes - before).saturating_mul(CONTAINS_WITHIN), place)?;
        self.takes(logic::size(&core).saturating_mul(CONTAINS_WITHIN), &place.member("contains"))?;
        let mut options = Vec::new();
        for index in 0..CONTAINS_WITHIN {
            let mut prefix = vec![Value::Bool(true); index];
            prefix.push(core.clone());
            options.push(json!({"type": "array", "prefixItems": prefix, "minItems": index + 1}));
        }
        options.push(json!({"type": ["null", "boolean", "number", "string", "object"]}));
        parts.after.push(any_of(options));
        Ok(())
    }
}
