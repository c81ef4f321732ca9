//! `if`, `oneOf` and `not`: what is true of a value when one schema holds and others do not.

use serde_json::{Map, Value, json};

use super::{Place, Result, Translator, all_of, any_of, logic, without};
use crate::error::{CompileError, Kind};

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

    /// `oneOf`: each of the options without the others. What kind of value it is decides which can match at all, so
    /// kinds for which the same is left are written together.
    pub(super) fn one_of(
        &mut self,
        options: &[Value],
        members: &Map<String, Value>,
        place: &Place<'a>,
    ) -> Result<Value> {
        let types = members.get("type");
        let required = members.get("required").and_then(Value::as_array);
        let demanded: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        let apart = |index: usize| {
            options[index + 1..].iter().all(|other| self.disjoint(&options[index], other, place))
        };
        if (0..options.len()).all(apart) {
            let mut cores = Vec::new();
            for (index, option) in options.iter().enumerate() {
                let here = Place { path: format!("{}/{index}", place.path), ..place.clone() };
                cores.push(self.schema(option, &here)?);
            }
            return Ok(any_of(cores));
        }
        let mut written: Vec<(Vec<&str>, Value)> = Vec::new();
        for kind in logic::KINDS {
            let possible = types.is_none_or(|types| {
                let names = types.as_array().map_or_else(|| vec![types], |names| names.iter().collect());
                names.iter().any(|name| *name == kind || *name == "integer" && kind == "number")
            });
            if !possible {
                continue;
            }
            let left = self.one_of_kind(options, kind, &demanded, place)?;
            if left == Value::Bool(false) {
                continue;
            }
            match written.iter_mut().find(|(_, same)| *same == left) {
                Some((kinds, _)) => kinds.push(kind),
                None => written.push((vec![kind], left)),
            }
        }
        if written.is_empty() && self.takes_a_fraction_once(options, place) {
            let reason = "`oneOf`: numbers with a fraction match one option alone, which cannot be written; use `anyOf`";
            return Err(place.refuse(Kind::Unsupported, reason));
        }
        let mut cores = Vec::new();
        for (kinds, left) in written {
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
        for (index, option) in options.iter().enumerate().filter(|(index, _)| can_match[*index]) {
            let mut all = vec![option.clone()];
            for (other_index, other) in options.iter().enumerate() {
                if other_index == index
                    || !can_match[other_index]
                    || self.disjoint_in(option, other, &[kind], demanded, place)
                {
                    continue;
                }
                let Some(negated) = self.negation_in(other, option, &[kind], demanded, place) else {
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
                    let path = format!("{}/{index}", place.path);
                    return Err(CompileError::at(Kind::Unsupported, path, reason));
                };
                if self.disjoint_in(&negated, option, &[kind], demanded, place) {
                    all = vec![Value::Bool(false)];
                    break;
                }
                all.push(negated);
            }
            left.push(all_of(all));
        }
        Ok(any_of(left))
    }

    /// A schema for all that `schema` refuses of what the rest accepts; Err where it cannot be written.
    pub(super) fn negated(&mut self, schema: &Value, context: &Value, place: &Place<'a>) -> Result<Value> {
        self.negation(schema, context, place).ok_or_else(|| {
            place.refuse(Kind::Unsupported, "the opposite of this schema cannot be written as a grammar")
        })
    }
}
