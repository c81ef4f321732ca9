//! `if`, `oneOf` and `not`: what is true of a value when one schema holds and others do not.

use serde_json::{Map, Value, json};

use super::{Place, Result, Translator, all_of, any_of, logic, without};
use crate::error::{CompileError, Kind};

/// In as many ways options without others may be met, where a tag tells them apart too: each is a schema for llguidance, of which its parser
/// follows all that are still possible.
const MOST_WAYS: usize = 100;

impl<'a> Translator<'a> {
    /// `if`, `then` and `else`: either the condition and what then holds, or its negation and what else holds.
    pub(super) fn conditional(&mut self, members: &Map<String, Value>, place: &Place<'a>) -> Result<Value> {
        let condition = &members["if"];
        let says_more = |schema: &&Value| !logic::accepts_all(schema);
        let (then, otherwise) =
            (members.get("then").filter(says_more), members.get("else").filter(says_more));
        if then.is_none() && otherwise.is_none() {
            return Ok(Value::Bool(true));
        }
        let negated = self.negated(condition, &without("if", members), &place.member("if"))?;
        let mut options = Vec::new();
        let holds = self.schema(condition, &place.member("if"))?;
        let then = then.map_or(Ok(Value::Bool(true)), |then| self.schema(then, &place.member("then")))?;
        options.push(all_of(vec![holds, then]));
        let fails = self.schema(&negated, &place.member("if"))?;
        let otherwise = otherwise
            .map_or(Ok(Value::Bool(true)), |otherwise| self.schema(otherwise, &place.member("else")))?;
        options.push(all_of(vec![fails, otherwise]));
        Ok(any_of(options))
    }

    /// `oneOf`: each of the options, where no value matches two. Else each with a property that tells them apart, if one is named for that; or
    /// each without the others; or, where that cannot be written, each with such a property that was found. What has the property is in one
    /// option at most, so no more is accepted than by `oneOf`; what has not is left out.
    pub(super) fn one_of(
        &mut self,
        options: &[Value],
        members: &Map<String, Value>,
        place: &Place<'a>,
    ) -> Result<Value> {
        let required = members.get("required").and_then(Value::as_array);
        let demanded: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        if self.are_apart(options, &[], place) {
            return self.each(options, None, place);
        }
        // Of OpenAPI, and in what pydantic writes.
        let named = members.get("discriminator").and_then(|tag| tag.get("propertyName")?.as_str());
        if let Some(tag) = named.filter(|tag| self.is_tag(tag, options, &demanded, place)) {
            return self.each(options, Some(tag), place);
        }
        let left = self.left_by_kind(options, members.get("type"), &demanded, place);
        let are_few = left.as_ref().is_ok_and(|left| {
            left.iter().map(|(_, left)| ways(left)).fold(0, usize::saturating_add) <= MOST_WAYS
        });
        if !are_few && let Some(tag) = self.tag(options, &demanded, place) {
            return self.each(options, Some(&tag), place);
        }
        let mut cores = Vec::new();
        for (kinds, left) in left? {
            // What is left is not where the source has it, so an error names `oneOf` as a whole.
            let within = |error: CompileError| CompileError { path: place.path.clone(), ..error };
            let core = self.schema(&left, place).map_err(within)?;
            // A type beside a reference would have to be merged into what it means, which recursion does not allow.
            let others: Vec<&str> = logic::KINDS.into_iter().filter(|kind| !kinds.contains(kind)).collect();
            let is_typed = self.disjoint_in(&left, &Value::Bool(true), &others, &[], place);
            let typed = if is_typed { Value::Bool(true) } else { json!({"type": kinds}) };
            cores.push(all_of(vec![typed, core]));
        }
        Ok(any_of(cores))
    }

    /// No value with these properties, if it is an object, matches two of the options.
    fn are_apart(&self, options: &[Value], demanded: &[&str], place: &Place<'a>) -> bool {
        options.iter().enumerate().all(|(index, one)| {
            let others = &options[index + 1..];
            others.iter().all(|other| self.disjoint_in(one, other, &logic::KINDS, demanded, place))
        })
    }

    fn is_tag(&self, name: &str, options: &[Value], demanded: &[&str], place: &Place<'a>) -> bool {
        self.are_apart(options, &[demanded, &[name]].concat(), place)
    }

    /// A property of listed values in the first option by which all options are told apart.
    fn tag(&self, options: &[Value], demanded: &[&str], place: &Place<'a>) -> Option<String> {
        let (mut first, mut base) = (self.meant(options.first()?).into_owned(), place.base);
        while let Some(reference) = first.get("$ref").and_then(Value::as_str).filter(|_| self.step()) {
            let target = self.document.find(reference, base)?;
            (first, base) = (self.meant(target.value).into_owned(), target.base);
        }
        let properties = first.get("properties")?.as_object()?;
        let is_listed = |schema: &Value| schema.get("const").or(schema.get("enum")).is_some();
        let mut names = properties.iter().filter(|(_, schema)| is_listed(schema)).map(|(name, _)| name);
        names.find(|name| self.is_tag(name, options, demanded, place)).cloned()
    }

    /// Any of the options; of their objects those that have `tag`.
    fn each(&mut self, options: &[Value], tag: Option<&str>, place: &Place<'a>) -> Result<Value> {
        let mut cores = Vec::new();
        for (index, option) in options.iter().enumerate() {
            let here = Place { path: format!("{}/{index}", place.path), ..place.clone() };
            let known = self.definitions.len();
            let core = self.schema(option, &here)?;
            cores.push(match tag {
                Some(tag) => self.demanding(core, tag, known),
                None => core,
            });
        }
        Ok(any_of(cores))
    }

    /// Each of the options without the others, in the source's keywords. What kind of value it is decides which can match at all, so kinds
    /// for which the same is left are written together.
    fn left_by_kind(
        &self,
        options: &[Value],
        types: Option<&Value>,
        demanded: &[&str],
        place: &Place<'a>,
    ) -> Result<Vec<(Vec<&'static str>, Value)>> {
        let mut written: Vec<(Vec<&str>, Value)> = Vec::new();
        for kind in logic::KINDS {
            let possible = types.is_none_or(|types| {
                let names = types.as_array().map_or_else(|| vec![types], |names| names.iter().collect());
                names.iter().any(|name| *name == kind || *name == "integer" && kind == "number")
            });
            if !possible {
                continue;
            }
            let left = self.one_of_kind(options, kind, demanded, place)?;
            if left == Value::Bool(false) {
                continue;
            }
            match written.iter_mut().find(|(_, same)| *same == left) {
                Some((kinds, _)) => kinds.push(kind),
                None => written.push((vec![kind], left)),
            }
        }
        Ok(written)
    }

    /// What `oneOf` leaves of the values of one kind, in the source's keywords.
    fn one_of_kind(
        &self,
        options: &[Value],
        kind: &str,
        demanded: &[&str],
        place: &Place<'a>,
    ) -> Result<Value> {
        let typed = json!({"type": kind});
        let can_match: Vec<bool> = options
            .iter()
            .map(|option| !self.disjoint_in(option, &typed, &[kind], demanded, place))
            .collect();
        let mut left = Vec::new();
        let fractions = logic::fractions();
        let has_none = |schema: &Value| self.disjoint_in(schema, &fractions, &[kind], demanded, place);
        let mut left_out = None;
        for (index, option) in options.iter().enumerate().filter(|(index, _)| can_match[*index]) {
            let mut all = vec![option.clone()];
            for (other_index, other) in options.iter().enumerate() {
                if other_index == index
                    || !can_match[other_index]
                    || self.disjoint_in(option, other, &[kind], demanded, place)
                {
                    continue;
                }
                let refused = || {
                    let reason = if self.steps.get() == 0 {
                        format!(
                            "`oneOf`: its options take more than {} comparisons to tell apart; use `anyOf`",
                            logic::STEPS
                        )
                    } else {
                        format!(
                            "`oneOf`: a value may match this and /{other_index} too, which cannot be told apart; use `anyOf`"
                        )
                    };
                    CompileError::at(Kind::Unsupported, format!("{}/{index}", place.path), reason)
                };
                let negated =
                    self.negation_in(other, option, &[kind], demanded, place).ok_or_else(refused)?;
                if self.disjoint_in(&negated, option, &[kind], demanded, place) {
                    if kind == "number" && has_none(other) && !has_none(option) {
                        left_out = Some(refused());
                    }
                    all = vec![Value::Bool(false)];
                    break;
                }
                all.push(negated);
            }
            left.push(all_of(all));
        }
        match (any_of(left), left_out) {
            // There are numbers, which are not written.
            (Value::Bool(false), Some(error)) => Err(error),
            (left, _) => Ok(left),
        }
    }

    /// A schema for all that `schema` refuses of what the rest accepts; Err where it cannot be written.
    pub(super) fn negated(&mut self, schema: &Value, context: &Value, place: &Place<'a>) -> Result<Value> {
        self.negation(schema, context, place).ok_or_else(|| {
            place.refuse(Kind::Unsupported, "the opposite of this schema cannot be written as a grammar")
        })
    }
}

/// The combinations of options that a schema of the source is multiplied out to.
fn ways(schema: &Value) -> usize {
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    let options = list("anyOf").map_or(1, |options| options.iter().map(ways).fold(0, usize::saturating_add));
    list("allOf").into_iter().flatten().map(ways).fold(options, usize::saturating_mul)
}
