//! The fields that say what a text has to be: TGI's grammars, OpenAI's response formats, vLLM's guided fields.

use penstock_core::constraint::{GrammarRequest, GrammarSource};
use serde_json::Value;

use crate::grammars;
use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::json::{no_tree, tree_of};
use crate::http::request_fields;
use crate::http::shortened::shortened;

/// A grammar, and the field that asked for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub field: &'static str,
    pub source: GrammarSource,
}

/// `grammar` of TGI's routes, to be compiled.
pub fn grammar_request(fields: &Fields) -> Result<Option<GrammarRequest>, ApiError> {
    let too_much = |why: String| ApiError::unusable(Place::path(request_fields::GRAMMAR.name), why);
    grammar(fields)?.map(|source| grammars::request(source).map_err(too_much)).transpose()
}

fn grammar(fields: &Fields) -> Result<Option<GrammarSource>, ApiError> {
    const NAME: &str = request_fields::GRAMMAR.name;
    match fields.tree(&request_fields::GRAMMAR)? {
        None => Ok(None),
        Some(grammar) => source_of(&NAME.into(), grammar, &TYPES[1..], nested),
    }
}

/// `response_format` of OpenAI's routes, and vLLM's names for the same. Only one grammar can be followed.
pub fn openai(fields: &Fields) -> Result<Option<Asked>, ApiError> {
    const FORMAT: &str = request_fields::RESPONSE_FORMAT.name;
    let format = fields.tree(&request_fields::RESPONSE_FORMAT)?;
    let format =
        format.map(|format| source_of(&FORMAT.into(), format, &TYPES, nested)).transpose()?.flatten();
    let mut asked = format.map(|source| Asked { field: FORMAT, source });
    let mut outputs = fields.tree(&request_fields::STRUCTURED_OUTPUTS)?;
    for (field, member, kind) in [
        (&request_fields::GUIDED_JSON, "json", "json"),
        (&request_fields::GUIDED_REGEX, "regex", "regex"),
        (&request_fields::GUIDED_CHOICE, "choice", "choice"),
        (&request_fields::GUIDED_GRAMMAR, "grammar", "lark"),
    ] {
        let member = outputs.as_mut().and_then(|outputs| taken(outputs, member));
        for (field, value) in
            [(field.name, fields.tree(field)?), (request_fields::STRUCTURED_OUTPUTS.name, member)]
        {
            let Some(value) = value else { continue };
            let more = source(&field.into(), kind, Some(value))?.map(|source| Asked { field, source });
            asked = one_of(asked, more)?;
        }
    }
    let object = outputs.map(|outputs| json_object(&outputs)).transpose()?.flatten();
    one_of(asked, object)
}

/// Under several names the same may be asked, as guidance does, which writes its grammar for every version of vLLM.
fn one_of(first: Option<Asked>, second: Option<Asked>) -> Result<Option<Asked>, ApiError> {
    match (&first, &second) {
        (Some(first), Some(second)) if first.source != second.source => {
            let text = format!("and `{}` must not both be given, unless they ask for the same", first.field);
            Err(ApiError::invalid(second.field, text))
        }
        _ => Ok(first.or(second)),
    }
}

/// `structured_outputs.json_object`. Any other member would ask for what is not here: those that are were taken.
fn json_object(outputs: &Value) -> Result<Option<Asked>, ApiError> {
    const FIELD: &str = request_fields::STRUCTURED_OUTPUTS.name;
    const MEMBER: &str = "json_object";
    // vLLM's own object has all of its members, those that ask for nothing as null or false.
    let is_given = |(_, value): &(&String, &Value)| !value.is_null() && *value != false;
    let mut asked = None;
    for (name, value) in outputs.as_object().into_iter().flatten().filter(is_given) {
        let place = Place::from(FIELD).member(shortened(name).into_owned());
        match (name.as_str(), value) {
            (MEMBER, Value::Bool(_)) => {
                asked = Some(Asked { field: FIELD, source: GrammarSource::JsonObject });
            }
            (MEMBER, _) => {
                let error = ApiError::invalid(place, "must be true or false");
                return Err(error.given(shortened(&value.to_string())));
            }
            _ => return Err(ApiError::invalid(place, "is not supported")),
        }
    }
    Ok(asked)
}

const TYPES: [&str; 7] = ["text", "json", "json_object", "json_schema", "regex", "choice", "lark"];

/// `text.format` of OpenAI's responses: a schema is beside its `type`. `None` for text.
pub fn response_text(place: &Place, format: Value) -> Result<Option<GrammarSource>, ApiError> {
    source_of(place, format, &TYPES, beside)
}

/// Anthropic's `output_config.format`.
pub fn message_output(place: &Place, format: Value) -> Result<Option<GrammarSource>, ApiError> {
    source_of(place, format, &["json_schema"], beside)
}

/// Takes a member that is not null; a schema of a megabyte is not copied.
fn taken(object: &mut Value, name: &str) -> Option<Value> {
    object.get_mut(name).filter(|value| !value.is_null()).map(Value::take)
}

/// Where a dialect has the schema of the type `json_schema`, which is taken.
type SchemaOf = fn(&Place, &mut Value) -> (Place, Option<Value>);

fn nested(place: &Place, format: &mut Value) -> (Place, Option<Value>) {
    let holder = taken(format, "value").or_else(|| taken(format, "json_schema"));
    let schema = holder.and_then(|mut holder| holder.get_mut("schema").map(Value::take));
    (place.member("json_schema").member("schema"), schema)
}

fn beside(place: &Place, format: &mut Value) -> (Place, Option<Value>) {
    (place.member("schema"), format.get_mut("schema").map(Value::take))
}

/// OpenAI's shapes and TGI's `{"type", "value"}`. `None` for text.
fn source_of(
    place: &Place,
    mut format: Value,
    types: &[&'static str],
    schema_of: SchemaOf,
) -> Result<Option<GrammarSource>, ApiError> {
    if !format.is_object() {
        return Err(ApiError::invalid(place, "must be an object").given(shortened(&format.to_string())));
    }
    let Some(&kind) = types.iter().find(|kind| format["type"].as_str() == Some(kind)) else {
        let text = format!("must be one of {}", types.join(", "));
        return Err(
            ApiError::invalid(place.member("type"), text).given(shortened(&format["type"].to_string()))
        );
    };
    if kind == "json_schema" {
        return match schema_of(place, &mut format) {
            (_, Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
                Ok(Some(GrammarSource::JsonSchema(schema)))
            }
            (at, _) => Err(ApiError::invalid(at, "must be an object, the JSON schema")),
        };
    }
    let is_given = |name: &str| format.get(name).is_some_and(|value| !value.is_null());
    // Some clients write as for llama.cpp, such as LangChain's.
    let is_beside = matches!(kind, "json" | "json_object") && !is_given("value");
    let name = if is_beside && is_given("schema") { "schema" } else { "value" };
    source(&place.member(name), kind, taken(&mut format, name))
}

/// `place` is that of `value`.
fn source(place: &Place, kind: &str, value: Option<Value>) -> Result<Option<GrammarSource>, ApiError> {
    const SCHEMA: &str = "must be a JSON schema, an object or a string that holds one";
    let wrong = |text: &'static str| Err(ApiError::invalid(place, text));
    let source = match (kind, value) {
        ("text", _) => return Ok(None),
        // TGI knows `json` only with a schema; OpenAI's `json_object` is any object.
        ("json_object", None) => GrammarSource::JsonObject,
        ("json", None) => return wrong("is required: the JSON schema"),
        ("json" | "json_object", Some(schema @ Value::Object(_))) => GrammarSource::JsonSchema(schema),
        ("json" | "json_object", Some(Value::String(text))) => match tree_of(&text) {
            Ok(schema @ Value::Object(_)) => GrammarSource::JsonSchema(schema),
            Ok(_) => return wrong(SCHEMA),
            Err(error) => {
                return Err(ApiError::invalid(place, no_tree(&error).unwrap_or_else(|| SCHEMA.into())));
            }
        },
        ("json" | "json_object", Some(_)) => return wrong(SCHEMA),
        ("regex", Some(Value::String(text))) => GrammarSource::Regex(text),
        ("regex", _) => return wrong("must be a string, the regular expression"),
        ("lark", Some(Value::String(text))) => GrammarSource::Lark(text),
        ("lark", _) => return wrong("must be a string, a grammar in Lark's notation"),
        (_, value) => {
            let text = |value| if let Value::String(text) = value { Some(text) } else { None };
            let texts = match value {
                Some(Value::Array(texts)) if !texts.is_empty() => texts.into_iter().map(text).collect(),
                _ => None,
            };
            let Some(texts) = texts else {
                return wrong("must be a list of strings that is not empty");
            };
            GrammarSource::Choice(texts)
        }
    };
    Ok(Some(source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    fn refusal(body: &str) -> String {
        let limits = limits();
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        openai(&fields)
            .and_then(|_| grammar(&fields))
            .err()
            .unwrap_or_else(|| panic!("{body} was taken"))
            .to_string()
    }

    fn asked(body: &str) -> Option<Asked> {
        let limits = limits();
        openai(&Fields::parse(body.as_bytes(), &limits).expect("JSON"))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_shape_of_a_grammar_is_understood() {
        let limits = limits();
        let schema = serde_json::json!({"type": "object", "properties": {}});
        for (format, source) in [
            (r#"{"type": "json_object"}"#.to_string(), GrammarSource::JsonObject),
            (
                format!(r#"{{"type": "json_object", "value": {schema}}}"#),
                GrammarSource::JsonSchema(schema.clone()),
            ),
            (
                format!(r#"{{"type": "json_object", "value": null, "schema": {schema}}}"#),
                GrammarSource::JsonSchema(schema.clone()),
            ),
            (format!(r#"{{"type": "json", "value": {schema}}}"#), GrammarSource::JsonSchema(schema.clone())),
            (
                r#"{"type": "json", "value": "{\"type\": \"string\"}"}"#.into(),
                GrammarSource::JsonSchema(serde_json::json!({"type": "string"})),
            ),
            (
                format!(r#"{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}"#),
                GrammarSource::JsonSchema(schema.clone()),
            ),
            (
                format!(r#"{{"type": "json_schema", "value": {{"schema": {schema}}}}}"#),
                GrammarSource::JsonSchema(schema.clone()),
            ),
            (r#"{"type": "regex", "value": "[a-z]+"}"#.into(), GrammarSource::Regex("[a-z]+".into())),
            (
                r#"{"type": "choice", "value": ["yes", "no"]}"#.into(),
                GrammarSource::Choice(vec!["yes".into(), "no".into()]),
            ),
            (
                r#"{"type": "lark", "value": "start: \"x\""}"#.into(),
                GrammarSource::Lark("start: \"x\"".into()),
            ),
        ] {
            let found = asked(&format!("{{\"response_format\": {format}}}"));
            assert_eq!(found, Some(Asked { field: "response_format", source: source.clone() }), "{format}");
            let body = format!("{{\"grammar\": {format}}}");
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            assert_eq!(grammar(&fields).ok().flatten(), Some(source), "{format}");
        }
        for (body, field, source) in [
            (r#"{"guided_regex": "a+"}"#, "guided_regex", GrammarSource::Regex("a+".into())),
            (r#"{"guided_choice": ["a"]}"#, "guided_choice", GrammarSource::Choice(vec!["a".into()])),
            (r#"{"guided_grammar": "start: x"}"#, "guided_grammar", GrammarSource::Lark("start: x".into())),
            (r#"{"guided_json": {}}"#, "guided_json", GrammarSource::JsonSchema(serde_json::json!({}))),
            (
                r#"{"structured_outputs": {"regex": "a+", "json": null}}"#,
                "structured_outputs",
                GrammarSource::Regex("a+".into()),
            ),
            (
                r#"{"structured_outputs": {"json_object": true, "structural_tag": null, "disable_fallback": false}}"#,
                "structured_outputs",
                GrammarSource::JsonObject,
            ),
        ] {
            assert_eq!(asked(body), Some(Asked { field, source }), "{body}");
        }
    }

    #[test]
    fn the_same_may_be_asked_by_several_names() {
        let limits = limits();
        for (body, field) in [
            // As guidance does.
            (
                r#"{"guided_grammar": "start: x", "structured_outputs": {"grammar": "start: x"}}"#,
                "guided_grammar",
            ),
            (r#"{"guided_json": "{\"a\": 1}", "structured_outputs": {"json": {"a": 1}}}"#, "guided_json"),
            (
                r#"{"response_format": {"type": "json_object"}, "structured_outputs": {"json_object": true}}"#,
                "response_format",
            ),
        ] {
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            let asked = openai(&fields).map_err(|error| error.to_string());
            assert_eq!(asked.map(|asked| asked.map(|asked| asked.field)), Ok(Some(field)), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, text) in [
            (r#"{"response_format": {"type": "yaml"}}"#, "`response_format.type` must be one of text, json,"),
            (r#"{"response_format": {}}"#, "`response_format.type`"),
            (r#"{"response_format": {"type": "json"}}"#, "`response_format.value` is required"),
            (
                r#"{"response_format": {"type": "json", "value": "{"}}"#,
                "`response_format.value` must be a JSON",
            ),
            (
                r#"{"grammar": {"type": "json", "value": "{\"type\": \"string\", \"type\": \"null\"}"}}"#,
                "`grammar.value` has `type` twice in one object",
            ),
            (r#"{"grammar": {"type": "json", "value": "{} {}"}}"#, "`grammar.value` must be a JSON schema"),
            (
                r#"{"response_format": {"type": "json_object", "schema": 5}}"#,
                "`response_format.schema` must be a",
            ),
            (r#"{"response_format": {"type": "regex"}}"#, "`response_format.value` must be a string"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "`response_format.json_schema.schema`"),
            (r#"{"grammar": {"type": "choice", "value": []}}"#, "`grammar.value` must be a list of strings"),
            (
                r#"{"grammar": {"type": "choice", "value": ["a", 5]}}"#,
                "`grammar.value` must be a list of strings",
            ),
            (r#"{"grammar": {"type": "lark", "value": 5}}"#, "`grammar.value` must be a string, a grammar"),
            (r#"{"guided_regex": 5}"#, "`guided_regex` must be a string"),
            (
                r#"{"guided_regex": "a", "response_format": {"type": "json_object"}}"#,
                "`guided_regex` and `response_format` must not both be given",
            ),
            (
                r#"{"guided_grammar": "start: x", "structured_outputs": {"grammar": "start: y"}}"#,
                "`structured_outputs` and `guided_grammar` must not both be given, unless they ask for the same",
            ),
            (
                r#"{"structured_outputs": {"regex": "a", "choice": ["a"]}}"#,
                "`structured_outputs` and `structured_outputs` must not both",
            ),
            (
                r#"{"structured_outputs": {"regex": "a", "json_object": true}}"#,
                "`structured_outputs` and `structured_outputs` must not both",
            ),
            (
                r#"{"structured_outputs": {"json_object": {}}}"#,
                "`structured_outputs.json_object` must be true or false. Given: {}",
            ),
            (
                r#"{"structured_outputs": {"structural_tag": "{}"}}"#,
                "`structured_outputs.structural_tag` is not supported",
            ),
            (r#"{"structured_outputs": {"jsn": {}}}"#, "`structured_outputs.jsn` is not supported"),
            (
                r#"{"structured_outputs": {"json": {}, "whitespace_pattern": " "}}"#,
                "`structured_outputs.whitespace_pattern` is not supported",
            ),
            (r#"{"response_format": 5}"#, "`response_format` must be an object. Given: 5"),
            (r#"{"grammar": {"type": "text"}}"#, "`grammar.type` must be one of json, json_object"),
            (r#"{"grammar": "x"}"#, "`grammar` must be an object"),
        ] {
            let refused = refusal(body);
            assert!(refused.contains(text), "{body}: {refused}");
        }
    }

    #[test]
    fn what_asks_for_nothing_is_taken() {
        let limits = limits();
        for body in [
            "{}",
            r#"{"response_format": {"type": "text"}}"#,
            r#"{"structured_outputs": {"json_object": false, "structural_tag": null}}"#,
        ] {
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            assert_eq!(openai(&fields), Ok(None), "{body}");
        }
    }
}
