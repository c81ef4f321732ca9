//! The schemas of the OpenAPI document that are derived from types. Those of the answers are derived from what is serialised, so
//! that they have exactly the members that are there, which integration-tests/test_answers.py holds against a running
//! server; `routes` says which route gives which. Those of entries of requests are derived from what they are read into;
//! `openapi` makes those of whole requests from the table of fields.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::http::anthropic::messages::MessageParam;
use crate::http::anthropic::{Event, Message, TokenCount};
use crate::http::block_events::Told;
use crate::http::error::{AnthropicError, OpenAiError, TgiError};
use crate::http::kserve::{About, Inferred, Live, Ready};
use crate::http::openai::chat::{ChatChunk, ChatCompletion};
use crate::http::openai::completions::{Completion, CompletionChunk};
use crate::http::openai::responses::answer::{Event as ResponseEvent, Response};
use crate::http::openai::responses::items::InputItem;
use crate::http::ops::{Info, Model, Models};
use crate::http::tgi::{Generated, StreamEvent};
use crate::http::tokenize::Span;
use crate::http::vertex::Predictions;

/// Of entries of requests, by name.
pub fn requests() -> Map<String, Value> {
    let mut all = SchemaSettings::openapi3().for_deserialize().into_generator();
    add::<InputItem>(&mut all, "InputItem");
    add::<MessageParam>(&mut all, "MessageParam");
    all.take_definitions(true)
}

/// Of answers, by name.
pub fn answers() -> Map<String, Value> {
    // What is written, in OpenAPI 3.0's words.
    let settings = SchemaSettings::openapi3().for_serialize().with_transform(RecursiveTransform(close));
    let mut all = settings.into_generator();
    add::<TgiError>(&mut all, "Error");
    add::<OpenAiError>(&mut all, "OpenAiError");
    add::<Generated>(&mut all, "Generated");
    add::<Vec<Generated>>(&mut all, "GeneratedList");
    add::<StreamEvent>(&mut all, "TokenEvent");
    add::<Vec<Span>>(&mut all, "Tokens");
    add::<Predictions>(&mut all, "Predictions");
    add::<ChatCompletion>(&mut all, "ChatCompletion");
    add::<ChatChunk>(&mut all, "ChatChunk");
    add::<Completion>(&mut all, "Completion");
    add::<CompletionChunk>(&mut all, "CompletionChunk");
    add::<Response>(&mut all, "Response");
    add::<ResponseEvent>(&mut all, "ResponseEvent");
    add::<AnthropicError>(&mut all, "AnthropicError");
    add::<Message>(&mut all, "Message");
    add::<Event>(&mut all, "MessageEvent");
    add::<TokenCount>(&mut all, "TokenCount");
    add::<Model>(&mut all, "Model");
    add::<Models>(&mut all, "Models");
    add::<Info>(&mut all, "Info");
    add::<Told>(&mut all, "BlockEvent");
    add::<About>(&mut all, "KserveServer");
    add::<About>(&mut all, "KserveModel");
    add::<Live>(&mut all, "KserveLive");
    add::<Ready>(&mut all, "KserveReady");
    add::<Inferred>(&mut all, "Inferred");
    let mut schemas = all.take_definitions(true);
    // Written piece by piece, from no one type.
    schemas.insert("ChatTokens".into(), chat_tokens());
    schemas.insert("Invocation".into(), any(&["GeneratedList", "ChatCompletion", "Completion"]));
    schemas.insert("InvocationEvent".into(), any(&["TokenEvent", "ChatChunk", "CompletionChunk"]));
    schemas
}

/// Those of its members come with it.
fn add<T: JsonSchema>(all: &mut SchemaGenerator, name: &str) {
    let schema = T::json_schema(all);
    all.definitions_mut().insert(name.into(), schema.to_value());
}

/// An object has no members but those that are described.
fn close(schema: &mut Schema) {
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".into(), json!(false));
    }
}

pub fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The kinds that the schema of a request's entry knows.
#[cfg(test)]
pub fn kinds(name: &str) -> Vec<String> {
    let schema = &requests()[name];
    let kind = |one: &Value| {
        let kind = &one["properties"]["type"];
        kind["const"].as_str().or(kind["enum"][0].as_str()).expect("each has a type").to_owned()
    };
    schema["oneOf"].as_array().expect("one of several").iter().map(kind).collect()
}

fn any(names: &[&str]) -> Value {
    json!({ "anyOf": names.iter().map(|name| reference(name)).collect::<Vec<_>>() })
}

fn chat_tokens() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "properties": {
            "tokenize_response": reference("Tokens"),
            "templated_text": text,
            "warnings": { "type": "array", "items": text },
        },
        "required": ["tokenize_response", "templated_text"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_is_known_without_its_type() {
        let schema = &requests()["InputItem"];
        for one in schema["oneOf"].as_array().expect("one of several") {
            let (kind, required) = (&one["properties"]["type"], &one["required"]);
            let is_message = kind["const"] == "message" || kind["enum"] == json!(["message"]);
            let names = required.as_array().expect("some are required");
            assert_eq!(names.contains(&json!("type")), !is_message, "{one}");
            assert!(!is_message || *required == json!(["role", "content"]), "{one}");
        }
    }
}
