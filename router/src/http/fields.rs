//! Reads the fields of a JSON body one by one against the table of `request_fields`. A number out of its bounds,
//! a wrong type, a field given twice: each becomes an error that names the field, the limit and what was
//! given. `null` is the same as not given. Fields nobody asks for are named by `warnings`.

use std::borrow::Cow;
use std::collections::HashMap;

use penstock_core::scheduler::Priority;
use serde::de::DeserializeSeed;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::error::{ApiError, Cause, Place};
use crate::http::json::{Members, UniqueNames, finite, malformed, text_of, unreadable, whole_number};
use crate::http::request_fields::{self, Field, Kind, Low, Most, NAME_LENGTH};
use crate::http::shortened::shortened;
use crate::limits::{Limits, PRIORITIES};

/// A JSON object whose members are still text: each is read when its field is asked for.
pub struct Fields<'a> {
    members: HashMap<Cow<'a, str>, &'a RawValue>,
    limits: &'a Limits,
}

impl<'a> Fields<'a> {
    /// The whole body of a request.
    pub fn parse(body: &'a [u8], limits: &'a Limits) -> Result<Self, ApiError> {
        let raw = match serde_json::from_slice::<&RawValue>(body) {
            Ok(raw) => raw,
            Err(error) => return Err(malformed(body, &error)),
        };
        match Self::members(raw) {
            Some(members) => Self::unique(members, limits),
            None if is_object(raw) => Err(ApiError::new(Cause::Validation, format!("the body {NO_NAME}"))),
            None => Err(ApiError::new(Cause::Validation, "the body must be a JSON object")),
        }
    }

    fn members(raw: &'a RawValue) -> Option<Members<'a>> {
        serde_json::from_str(raw.get()).ok()
    }

    fn unique(members: Members<'a>, limits: &'a Limits) -> Result<Self, ApiError> {
        match members.twice {
            Some(name) => {
                let name = shortened(&name).into_owned();
                Err(ApiError::invalid(name, "is given twice"))
            }
            None => Ok(Self { members: members.by_name, limits }),
        }
    }

    /// Without the members that no field of `table` names.
    pub fn only(&self, table: &[&Field]) -> Self {
        let named = self.members.iter().filter(|(name, _)| table.iter().any(|field| field.name == *name));
        Self { members: named.map(|(name, raw)| (name.clone(), *raw)).collect(), limits: self.limits }
    }

    /// Without the members of these names.
    pub fn without(&self, names: &[&str]) -> Self {
        let others = self.members.iter().filter(|(name, _)| !names.contains(&name.as_ref()));
        Self { members: others.map(|(name, raw)| (name.clone(), *raw)).collect(), limits: self.limits }
    }

    pub fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// The text of a field; `None` when it is absent or null.
    pub fn raw(&self, field: &Field) -> Option<&'a RawValue> {
        self.given(field.name)
    }

    fn given(&self, name: &str) -> Option<&'a RawValue> {
        self.members.get(name).copied().filter(|raw| raw.get() != "null")
    }

    /// As it was given.
    pub fn value(&self, name: &str) -> Option<Value> {
        serde_json::from_str(self.given(name)?.get()).ok()
    }

    /// Which of these names are given.
    pub fn named<'n>(
        &self,
        names: &'n [&'static str],
    ) -> impl Iterator<Item = &'static str> + use<'n, 'a, '_> {
        names.iter().copied().filter(|name| self.given(name).is_some())
    }

    /// The names of what is given, in their order.
    pub fn names(&self) -> Vec<&str> {
        let given = self.members.iter().filter(|(_, raw)| raw.get() != "null");
        let mut names: Vec<_> = given.map(|(name, _)| name.as_ref()).collect();
        names.sort_unstable();
        names
    }

    pub fn boolean(&self, field: &Field) -> Result<Option<bool>, ApiError> {
        debug_assert!(matches!(field.kind, Kind::Boolean));
        self.raw(field)
            .map(|raw| match raw.get() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(self.wrong(field, raw)),
            })
            .transpose()
    }

    /// A whole number within the field's bounds.
    pub fn signed(&self, field: &Field) -> Result<Option<i128>, ApiError> {
        let bounds = match field.kind {
            Kind::Integer { least, most } => i128::from(least)..=i128::from(self.limits.most(most)),
            Kind::Priority => self.limits.highest_priority.into()..=(*PRIORITIES.end()).into(),
            _ => unreachable!("`{}` is no integer in the table", field.name),
        };
        let Some(raw) = self.raw(field) else { return Ok(None) };
        match whole_number(raw.get()) {
            Some(value) if bounds.contains(&value) => Ok(Some(value)),
            _ => Err(self.wrong(field, raw)),
        }
    }

    /// A whole number whose field has no negative values.
    pub fn unsigned(&self, field: &Field) -> Result<Option<u64>, ApiError> {
        Ok(self.signed(field)?.map(|value| u64::try_from(value).expect("the table's bounds are within u64")))
    }

    /// A whole number whose field has no values above 32 bits.
    pub fn small(&self, field: &Field) -> Result<Option<u32>, ApiError> {
        Ok(self.signed(field)?.map(|value| u32::try_from(value).expect("the table's bounds are within u32")))
    }

    /// How urgent it is.
    pub fn priority(&self) -> Result<Option<Priority>, ApiError> {
        let given = self.signed(&request_fields::PRIORITY)?;
        Ok(given.map(|value| Priority(i32::try_from(value).expect("the table's bounds are within i32"))))
    }

    pub fn number(&self, field: &Field) -> Result<Option<f64>, ApiError> {
        let Kind::Number { low, high } = field.kind else {
            unreachable!("`{}` is no number in the table", field.name)
        };
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let in_bounds = |value: &f64| {
            // The model computes in 32 bits: what is infinite there is refused here, and so is what is its own
            // bound there.
            let single = *value as f32;
            let above = match low {
                Low::AtLeast(low) => *value >= low,
                Low::Above(low) => *value > low && single > low as f32,
            };
            above && *value <= high && single.is_finite()
        };
        match finite(raw.get()).filter(in_bounds) {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(field, raw)),
        }
    }

    pub fn text(&self, field: &Field) -> Result<Option<Cow<'a, str>>, ApiError> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let text = text_of(raw).ok_or_else(|| self.wrong(field, raw))?;
        match field.kind {
            Kind::Text { longest } => self.not_longer(field, &text, longest)?,
            _ => debug_assert!(matches!(field.kind, Kind::Prompt)),
        }
        Ok(Some(text))
    }

    fn not_longer(&self, field: &Field, text: &str, longest: usize) -> Result<(), ApiError> {
        let Some(given) = longer_than(text, longest) else { return Ok(()) };
        Err(self.expected(field).given(format!("{given} characters")))
    }

    /// A string or a list of strings, none empty, at most as many and as long as the table says.
    pub fn texts(&self, field: &Field) -> Result<Vec<String>, ApiError> {
        let Kind::Texts { most, longest } = field.kind else {
            unreachable!("`{}` is no list of strings in the table", field.name)
        };
        let Some(raw) = self.raw(field) else { return Ok(Vec::new()) };
        let texts = if raw.get().starts_with('[') {
            serde_json::from_str::<Vec<String>>(raw.get()).ok()
        } else {
            text_of(raw).map(|text| vec![text.into_owned()])
        };
        let texts = texts.ok_or_else(|| self.wrong(field, raw))?;
        if texts.len() as u64 > self.limits.most(most) {
            return Err(self.too_many(field.name, most, texts.len()));
        }
        if texts.iter().any(String::is_empty) {
            return Err(ApiError::invalid(field.name, "must not contain an empty string"));
        }
        for text in &texts {
            self.not_longer(field, text, longest)?;
        }
        Ok(texts)
    }

    /// An object, to be read field by field.
    pub fn object(&self, field: &Field) -> Result<Option<Fields<'a>>, ApiError> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let members = Self::members(raw).ok_or_else(|| match is_object(raw) {
            true => ApiError::invalid(field.name, NO_NAME),
            false => self.wrong(field, raw),
        })?;
        Self::unique(members, self.limits).map_err(|error| error.of_member(field.name)).map(Some)
    }

    /// The entries of a list, at most as many as the table says, each to be read by `entry`.
    pub fn list(&self, field: &Field) -> Result<Option<Vec<&'a RawValue>>, ApiError> {
        let Kind::List { most } = field.kind else {
            unreachable!("`{}` is no list in the table", field.name)
        };
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let list: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| self.wrong(field, raw))?;
        if list.len() as u64 > self.limits.most(most) {
            return Err(self.too_many(field.name, most, list.len()));
        }
        Ok(Some(list))
    }

    /// An entry of `field`'s list that is an object, to be read field by field.
    pub fn entry(&self, field: &Field, index: usize, raw: &'a RawValue) -> Result<Fields<'a>, ApiError> {
        let place = Place::from(field.name).entry(index);
        let members = Self::members(raw).ok_or_else(|| {
            let predicate = if is_object(raw) { NO_NAME } else { "must be an object" };
            ApiError::invalid(&place, predicate)
        })?;
        Self::unique(members, self.limits).map_err(|error| error.within(place))
    }

    /// The members of an object whose names are data, in no order.
    pub fn entries(self) -> impl ExactSizeIterator<Item = (Cow<'a, str>, &'a RawValue)> {
        self.members.into_iter()
    }

    /// A field of any shape, as a tree in which no object has a name twice.
    pub fn tree(&self, field: &Field) -> Result<Option<Value>, ApiError> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let tree = match UniqueNames.deserialize(&mut serde_json::Deserializer::from_str(raw.get())) {
            Ok(tree) => tree,
            Err(error) => return Err(unreadable(field.name, &error)),
        };
        let fits = match field.kind {
            Kind::Object => tree.is_object(),
            Kind::List { .. } => tree.is_array(),
            _ => true,
        };
        if !fits {
            return Err(self.wrong(field, raw));
        }
        if let (Kind::List { most }, Value::Array(list)) = (field.kind, &tree)
            && list.len() as u64 > self.limits.most(most)
        {
            return Err(self.too_many(field.name, most, list.len()));
        }
        Ok(Some(tree))
    }

    pub fn required<T>(&self, field: &Field, value: Option<T>) -> Result<T, ApiError> {
        value.ok_or_else(|| ApiError::invalid(field.name, "is required"))
    }

    /// The field does not hold what the table says.
    pub fn wrong(&self, field: &Field, raw: &RawValue) -> ApiError {
        self.expected(field).given(shortened(raw.get()))
    }

    fn expected(&self, field: &Field) -> ApiError {
        let expects = field.kind.expects(self.limits);
        ApiError::invalid(field.name, format!("must be {expects}"))
    }

    pub fn too_many(&self, name: &'static str, most: Most, given: usize) -> ApiError {
        let limit = self.limits.describe(most);
        ApiError::invalid(name, format!("must have at most {limit} entries")).given(given.to_string())
    }
}

/// Whether what is JSON is an object, be its members unreadable.
fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// What an object has that is JSON and cannot be read.
const NO_NAME: &str = "has a name that is not valid Unicode";

/// The name of something in a part of the request that is no field of the table.
pub fn checked_name(place: &Place, name: &str) -> Result<(), ApiError> {
    let Some(given) = longer_than(name, NAME_LENGTH) else { return Ok(()) };
    let text = format!("must have at most {NAME_LENGTH} characters");
    Err(ApiError::invalid(place, text).given(format!("{given} characters")))
}

/// The characters of a text that has more than `most`.
fn longer_than(text: &str, most: usize) -> Option<usize> {
    // A character has at least one byte.
    let given = if text.len() > most { text.chars().count() } else { 0 };
    (given > most).then_some(given)
}

#[cfg(test)]
pub mod tests {
    use std::fmt;

    use penstock_core::adapter::Adapters;

    use super::*;
    use crate::http::error::Family;
    use crate::http::request_fields;

    pub fn limits() -> Limits {
        Limits {
            max_input_tokens: 1023,
            max_new_tokens: u32::MAX,
            max_total_tokens: 1024,
            max_best_of: 2,
            max_stop_sequences: 4,
            max_top_n_tokens: 5,
            max_client_batch_size: 4,
            max_concurrent_requests: 128,
            vocab_size: 1000,
            highest_priority: -5,
            strict_requests: false,
            images_left_out: false,
            adapters: Adapters::default(),
        }
    }

    fn message(error: ApiError) -> (u16, String) {
        let body: Value = serde_json::from_slice(&error.body(Family::OpenAi)).expect("JSON");
        (error.cause.status().as_u16(), body["error"]["message"].as_str().expect("text").to_string())
    }

    fn refused<T: fmt::Debug>(body: &str, read: impl Fn(&Fields) -> Result<T, ApiError>) -> (u16, String) {
        let limits = limits();
        let error = match Fields::parse(body.as_bytes(), &limits) {
            Ok(fields) => read(&fields).expect_err("refused"),
            Err(error) => error,
        };
        message(error)
    }

    #[test]
    fn a_short_text_has_a_length() {
        let limits = limits();
        let fits = format!(r#"{{"cache_salt": "{}"}}"#, "é".repeat(256));
        let fields = Fields::parse(fits.as_bytes(), &limits).expect("JSON");
        assert!(fields.text(&request_fields::CACHE_SALT).is_ok());
        let long = format!(r#"{{"cache_salt": "{}"}}"#, "x".repeat(257));
        let (status, text) = refused(&long, |f| f.text(&request_fields::CACHE_SALT).map(|_| ()));
        assert_eq!(status, 422);
        assert!(
            text.starts_with("`cache_salt` must be a string of at most 256 characters. Given: "),
            "{text}"
        );
    }

    #[test]
    fn a_number_out_of_bounds_names_field_limit_and_value() {
        let top_p = |fields: &Fields| fields.number(&request_fields::TOP_P);
        for (body, given) in [
            (r#"{"top_p": 0}"#, "0"),
            (r#"{"top_p": -0.5}"#, "-0.5"),
            (r#"{"top_p": 1.01}"#, "1.01"),
            (r#"{"top_p": 1e999}"#, "1e999"),
            (r#"{"top_p": -1e999}"#, "-1e999"),
            (r#"{"top_p": "0.5"}"#, r#""0.5""#),
            (r#"{"top_p": [1]}"#, "[1]"),
            (r#"{"top_p": true}"#, "true"),
        ] {
            let text = format!("`top_p` must be a number > 0 and <= 1. Given: {given}");
            assert_eq!(refused(body, top_p), (422, text), "{body}");
        }
    }

    #[test]
    fn what_is_infinite_in_32_bits_is_refused() {
        let (status, text) = refused(r#"{"temperature": 1e300}"#, |f| f.number(&request_fields::TEMPERATURE));
        assert_eq!((status, text.as_str()), (422, "`temperature` must be a finite number > 0. Given: 1e300"));
    }

    #[test]
    fn what_is_its_own_bound_in_32_bits_is_refused() {
        let (status, text) =
            refused(r#"{"repetition_penalty": 5e-324}"#, |f| f.number(&request_fields::REPETITION_PENALTY));
        let expected = "`repetition_penalty` must be a finite number > 0. Given: 5e-324";
        assert_eq!((status, text.as_str()), (422, expected));
    }

    #[test]
    fn nan_and_infinity_are_named_though_they_are_not_json() {
        for literal in ["NaN", "Infinity", "-Infinity"] {
            let body = format!("{{\"inputs\": \"x\",\n \"parameters\": {{\"temperature\" : {literal} }}}}");
            let (status, text) = refused(&body, |f| f.number(&request_fields::TEMPERATURE));
            assert_eq!(status, 422, "{body}");
            assert_eq!(text, format!("`temperature` must be a finite number. Given: {literal}"));
        }
    }

    #[test]
    fn a_whole_number_is_not_a_fraction_nor_a_string() {
        let read = |fields: &Fields| fields.small(&request_fields::MAX_NEW_TOKENS);
        for given in ["0", "-3", "1.5", "10.0", "1e3", "\"7\"", "4294967296", "99999999999999999999"] {
            let body = format!("{{\"max_new_tokens\": {given}}}");
            let (status, text) = refused(&body, read);
            assert_eq!(status, 422);
            assert_eq!(
                text,
                format!("`max_new_tokens` must be a whole number >= 1 and <= 4294967295. Given: {given}")
            );
        }
    }

    #[test]
    fn a_limit_of_the_server_is_named_with_its_flag() {
        let (_, text) = refused(r#"{"best_of": 3}"#, |f| f.small(&request_fields::BEST_OF));
        assert_eq!(text, "`best_of` must be a whole number >= 1 and <= 2 (--max-best-of). Given: 3");
        let (_, text) = refused(r#"{"stop": ["a","b","c","d","e"]}"#, |f| f.texts(&request_fields::STOP));
        assert_eq!(text, "`stop` must have at most 4 (--max-stop-sequences) entries. Given: 5");
    }

    #[test]
    fn the_whole_range_of_a_seed_is_kept() {
        let limits = limits();
        let fields = Fields::parse(br#"{"seed": 18446744073709551615}"#, &limits).expect("JSON");
        assert_eq!(fields.unsigned(&request_fields::SEED), Ok(Some(u64::MAX)));
        let (_, text) = refused(r#"{"seed": -1}"#, |f| f.unsigned(&request_fields::SEED));
        assert_eq!(text, "`seed` must be a whole number >= 0 and <= 18446744073709551615. Given: -1");
    }

    #[test]
    fn null_is_not_given() {
        let limits = limits();
        let body = br#"{"seed": null, "stop": null, "details": null, "top_p": null, "inputs": null}"#;
        let fields = Fields::parse(body, &limits).expect("JSON");
        assert_eq!(fields.unsigned(&request_fields::SEED), Ok(None));
        assert_eq!(fields.texts(&request_fields::STOP), Ok(vec![]));
        assert_eq!(fields.boolean(&request_fields::DETAILS), Ok(None));
        assert_eq!(fields.number(&request_fields::TOP_P), Ok(None));
        assert_eq!(fields.text(&request_fields::INPUTS), Ok(None));
    }

    #[test]
    fn a_name_given_twice_is_refused_at_every_depth() {
        let (status, text) = refused(r#"{"seed": 1, "s\u0065ed": 2}"#, |f| f.unsigned(&request_fields::SEED));
        assert_eq!((status, text.as_str()), (422, "`seed` is given twice"));
        let (status, text) = refused(r#"{"messages": [{"role": "user", "role": "user"}]}"#, |f| {
            f.tree(&request_fields::MESSAGES)
        });
        assert_eq!((status, text.as_str()), (422, "`messages` has `role` twice in one object"));
    }

    #[test]
    fn what_is_wrong_within_an_object_is_told_of_its_field() {
        let read = |fields: &Fields| fields.object(&request_fields::STREAM_OPTIONS).map(|_| ());
        let limits = limits();
        for (given, says) in [
            (r#"{"a": 1, "a": 2}"#, "`stream_options.a` is given twice"),
            (r#"{"\ud800": 1}"#, "`stream_options` has a name that is not valid Unicode"),
            ("[]", "`stream_options` must be an object. Given: []"),
        ] {
            let body = format!("{{\"stream_options\": {given}}}");
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            let error = read(&fields).expect_err("refused");
            assert_eq!((error.to_string().as_str(), error.param()), (says, Some("stream_options")));
        }
        let nothing = |_: &Fields| Ok(());
        let says = "the body has a name that is not valid Unicode";
        assert_eq!(refused(r#"{"\ud800": 1}"#, nothing), (422, says.into()));
    }

    #[test]
    fn hostile_nesting_is_refused() {
        let body = format!("{{\"messages\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
        let (status, text) = refused(&body, |f| f.tree(&request_fields::MESSAGES));
        assert_eq!((status, text.as_str()), (422, "`messages` is nested too deeply: at most 127 levels"));
    }

    #[test]
    fn text_keeps_escapes_and_unicode() {
        let limits = limits();
        let body = r#"{"inputs": "a\n\"\u00e9\ud83d\ude00é"}"#;
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        assert_eq!(fields.text(&request_fields::INPUTS).expect("text").as_deref(), Some("a\n\"é😀é"));
        let (status, text) =
            refused(r#"{"inputs": "\ud800"}"#, |f| f.text(&request_fields::INPUTS).map(|_| ()));
        assert_eq!(status, 422);
        assert!(text.starts_with("`inputs` must be a string"), "{text}");
    }

    #[test]
    fn what_is_no_json_object_says_so() {
        let nothing = |_: &Fields| Ok(());
        assert_eq!(refused("", nothing), (400, "the body is empty; a JSON object is expected".into()));
        assert_eq!(
            refused("{\"inputs\":", nothing),
            (400, "the body is not valid JSON: it ends too early".into())
        );
        assert_eq!(
            refused("{\"inputs\": x}", nothing),
            (400, "the body is not valid JSON at line 1, column 12".into())
        );
        assert_eq!(refused("[1]", nothing), (422, "the body must be a JSON object".into()));
        assert_eq!(refused("\"text\"", nothing).0, 422);
    }

    #[test]
    fn a_single_stop_string_is_a_list_of_one() {
        let limits = limits();
        let fields = Fields::parse(br#"{"stop": "END"}"#, &limits).expect("JSON");
        assert_eq!(fields.texts(&request_fields::STOP), Ok(vec!["END".to_string()]));
        let (_, text) = refused(r#"{"stop": ["", "a"]}"#, |f| f.texts(&request_fields::STOP));
        assert_eq!(text, "`stop` must not contain an empty string");
        let (_, text) = refused(r#"{"stop": [1]}"#, |f| f.texts(&request_fields::STOP));
        assert!(text.starts_with("`stop` must be a string or a list of at most 4"), "{text}");
    }

    #[test]
    fn a_text_has_a_length() {
        let limits = limits();
        // Characters, not bytes.
        let fits = format!(r#"{{"user": "{0}", "stop": "{1}"}}"#, "é".repeat(256), "é".repeat(1024));
        let fields = Fields::parse(fits.as_bytes(), &limits).expect("JSON");
        assert!(fields.text(&request_fields::USER).is_ok() && fields.texts(&request_fields::STOP).is_ok());
        let long = format!(r#"{{"user": "{0}", "stop": ["a", "{0}"]}}"#, "x".repeat(1_900_000));
        let (_, text) = refused(&long, |f| f.text(&request_fields::USER).map(|_| ()));
        let of = "of at most 256 characters. Given: 1900000 characters";
        assert_eq!(text, format!("`user` must be a string {of}"));
        let (_, text) = refused(&long, |f| f.texts(&request_fields::STOP));
        assert!(text.ends_with("of at most 1024 characters each. Given: 1900000 characters"), "{text}");
    }

    #[test]
    fn a_list_has_a_length() {
        let body = format!(r#"{{"tools": [{}0]}}"#, "0, ".repeat(1024));
        let (_, text) = refused(&body, |f| f.tree(&request_fields::TOOLS));
        assert_eq!(text, "`tools` must have at most 1024 entries. Given: 1025");
    }
}
