//! Which of the loaded adapters a request asks for: by `adapter_id`, as TGI's clients do, or by `model`, as OpenAI's do, where any other
//! name means the served model alone.

use std::fmt::Write;

use penstock_core::adapter::{Adapter, Adapters};

use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::request_fields;
use crate::http::shortened::shortened;

/// Most names that a message lists; `/v1/models` has all.
const LISTED: usize = 8;

/// By `adapter_id`. One that is not loaded is an error: an answer without it would be wrong.
pub fn by_id(fields: &Fields) -> Result<Option<Adapter>, ApiError> {
    let Some(id) = fields.text(&request_fields::ADAPTER_ID)? else { return Ok(None) };
    let adapters = &fields.limits().adapters;
    adapters.named(&id).map(Some).ok_or_else(|| {
        let loaded = match listed(adapters) {
            Some(names) => format!("names no loaded adapter; loaded: {names}"),
            None => "names no loaded adapter: none is loaded, --lora-adapters loads some".to_owned(),
        };
        ApiError::invalid(request_fields::ADAPTER_ID.name, loaded).given(shortened(&id))
    })
}

/// By `adapter_id` and `model` together, which may not name two.
pub fn one_of(by_id: Option<Adapter>, by_model: Option<Adapter>) -> Result<Option<Adapter>, ApiError> {
    match (by_id, by_model) {
        (Some(one), Some(other)) if one != other => {
            let sentence = "`adapter_id` and `model` name two adapters; a request has one";
            Err(ApiError::together(request_fields::ADAPTER_ID.name, sentence))
        }
        _ => Ok(by_id.or(by_model)),
    }
}

/// Their names for a message; `None`: there are none.
pub fn listed(adapters: &Adapters) -> Option<String> {
    let names: Vec<String> = adapters.names().take(LISTED).map(|name| shortened(name).into_owned()).collect();
    let further = adapters.names().count() - names.len();
    let mut list = names.join(", ");
    if further > 0 {
        write!(list, " and {further} more, which /v1/models lists").expect("a string");
    }
    (!names.is_empty()).then_some(list)
}

#[cfg(test)]
pub mod tests {
    use penstock_proto::ModelDescription;

    use super::*;
    use crate::http::error::Family;
    use crate::http::fields::tests::limits;
    use crate::limits::Limits;

    pub fn loaded(names: &[&str]) -> Adapters {
        let adapter = |name: &&str| penstock_proto::Adapter { name: (*name).into(), digest: "00".repeat(32) };
        let adapters = names.iter().map(adapter).collect();
        Adapters::of(&ModelDescription { adapters, ..ModelDescription::default() }).expect("names")
    }

    fn asked(names: &[&str], body: &str) -> Result<Option<u32>, String> {
        let limits = Limits { adapters: loaded(names), ..limits() };
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        let adapter = by_id(&fields).map(|adapter| adapter.map(|adapter| adapter.number.get()));
        adapter.map_err(|error| String::from_utf8(error.body(Family::Tgi)).expect("UTF-8"))
    }

    #[test]
    fn an_adapter_is_asked_for_by_its_name_and_null_is_none() {
        assert_eq!(asked(&["a", "b"], r#"{"adapter_id": "b"}"#), Ok(Some(2)));
        assert_eq!(asked(&["a", "b"], r#"{"adapter_id": null}"#), Ok(None));
        assert_eq!(asked(&[], "{}"), Ok(None));
    }

    #[test]
    fn an_unknown_adapter_is_an_error_that_lists_those_that_are_loaded() {
        let many: Vec<String> = (0..11).map(|at| format!("a{at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (names, text) in [
            (&[][..], "none is loaded, --lora-adapters loads some. Given: c"),
            (&["a", "org/b"], "loaded: a, org/b. Given: c"),
            (&many, "loaded: a0, a1, a2, a3, a4, a5, a6, a7 and 3 more, which /v1/models lists. Given: c"),
        ] {
            let error = asked(names, r#"{"adapter_id": "c"}"#).expect_err("there is none");
            assert!(error.contains("`adapter_id` names no loaded adapter"), "{error}");
            assert!(error.contains(text), "{error}");
        }
    }
}
