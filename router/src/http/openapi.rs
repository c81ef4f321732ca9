//! The OpenAPI document: made from the table of routes, the table of request fields with the limits of this server, and
//! the types of the answers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use serde_json::{Map, Value, json};

use crate::config::RouterArgs;
use crate::http::auth::X_API_KEY;
use crate::http::error::{Cause, Entry, Family};
use crate::http::request_fields::{self, Field, Kind, Low, Most};
use crate::http::routes::{Answer, Docs, ROUTES, RequestSchema, Route, Verb};
use crate::http::schemas::{self, reference};
use crate::http::state::Server;
use crate::limits::{Limits, PRIORITIES};

impl RequestSchema {
    const ALL: [RequestSchema; 10] = [
        RequestSchema::Generate,
        RequestSchema::Compat,
        RequestSchema::Chat,
        RequestSchema::Completion,
        RequestSchema::Invocation,
        RequestSchema::Vertex,
        RequestSchema::Infer,
        RequestSchema::Messages,
        RequestSchema::CountTokens,
        RequestSchema::Responses,
    ];

    fn name(self) -> &'static str {
        match self {
            RequestSchema::Generate => "GenerateRequest",
            RequestSchema::Compat => "CompatRequest",
            RequestSchema::Chat => "ChatRequest",
            RequestSchema::Completion => "CompletionRequest",
            RequestSchema::Invocation => "InvocationRequest",
            RequestSchema::Vertex => "VertexRequest",
            RequestSchema::Infer => "InferRequest",
            RequestSchema::Messages => "MessagesRequest",
            RequestSchema::CountTokens => "CountTokensRequest",
            RequestSchema::Responses => "ResponsesRequest",
        }
    }

    pub fn fields(self) -> Vec<&'static Field> {
        match self {
            RequestSchema::Generate => vec![&request_fields::INPUTS, &request_fields::PARAMETERS],
            RequestSchema::Compat => {
                vec![&request_fields::INPUTS, &request_fields::PARAMETERS, &request_fields::STREAM]
            }
            RequestSchema::Chat => request_fields::chat_fields(),
            RequestSchema::Completion => request_fields::completion_fields(),
            RequestSchema::Invocation => Vec::new(),
            RequestSchema::Vertex => vec![&request_fields::INSTANCES],
            RequestSchema::Infer => request_fields::KSERVE.to_vec(),
            RequestSchema::Messages | RequestSchema::CountTokens => request_fields::anthropic_fields(),
            RequestSchema::Responses => request_fields::responses_fields(),
        }
    }

    fn schema(self, limits: &Limits) -> Value {
        if self == RequestSchema::Invocation {
            let one_of = [RequestSchema::Compat, RequestSchema::Chat, RequestSchema::Completion]
                .map(|one| reference(one.name()));
            return json!({ "oneOf": one_of });
        }
        let mut schema = object(&self.fields(), limits);
        if matches!(self, RequestSchema::Messages | RequestSchema::CountTokens) {
            schema["properties"]["messages"]["items"] = reference("MessageParam");
        }
        if self == RequestSchema::Messages {
            // Which is optional elsewhere.
            schema["required"] = json!(["messages", "max_tokens"]);
        }
        schema
    }
}

/// The OpenAPI document, with the limits of this server. Made once, and shared by all answers.
pub async fn document(State(server): State<Arc<Server>>) -> Response<Body> {
    match server.loaded() {
        Ok(loaded) => {
            let text = || of_server(&loaded.limits, &server.config.args).to_string().into();
            let kind = HeaderValue::from_static("application/json");
            let mut response = Response::new(Body::from(loaded.openapi.get_or_init(text).clone()));
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Err(error) => error.response(Family::Tgi),
    }
}

fn of_server(limits: &Limits, args: &RouterArgs) -> Value {
    let mut paths = Map::new();
    for route in ROUTES.iter().filter(|route| route.is_served(args)) {
        let Some(docs) = &route.docs else { continue };
        let item = paths.entry(route.documented_path()).or_insert_with(|| json!({}));
        let method = match route.method {
            Verb::Get => "get",
            Verb::Post => "post",
        };
        item[method] = operation(route, docs, args);
    }
    let mut schemas = schemas::answers();
    schemas.extend(schemas::requests());
    schemas.insert("ChatMessage".into(), message());
    for request in RequestSchema::ALL {
        schemas.insert(request.name().into(), request.schema(limits));
    }
    schemas.insert("Parameters".into(), object(request_fields::TGI_PARAMETERS, limits));
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Penstock",
            "description": "A server for large language models, with the APIs of Text Generation Inference, OpenAI and Anthropic",
            "license": { "name": "Apache 2.0" },
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": X_API_KEY },
            },
        },
    })
}

fn operation(route: &Route, docs: &Docs, args: &RouterArgs) -> Value {
    let mut responses = Map::new();
    let mut content = Map::new();
    let mut answer = |media: &str, schema: Value| content.insert(media.into(), json!({ "schema": schema }));
    match docs.answer {
        Answer::Empty => {}
        Answer::Json(name) => drop(answer("application/json", reference(name))),
        Answer::Events(name) => drop(answer("text/event-stream", reference(name))),
        Answer::JsonOrEvents(name, event) => {
            answer("application/json", reference(name));
            answer("text/event-stream", reference(event));
        }
        Answer::Text(media) => drop(answer(media, json!({ "type": "string" }))),
    }
    let good = if content.is_empty() {
        json!({ "description": docs.about })
    } else {
        json!({ "description": docs.about, "content": content })
    };
    responses.insert("200".into(), good);
    let error = match (Family::of(route.path), docs.request) {
        // As the dialect of its body has it.
        (_, Some(RequestSchema::Invocation)) => {
            json!({ "anyOf": [reference("Error"), reference("OpenAiError")] })
        }
        (Family::Tgi, _) => reference("Error"),
        (Family::OpenAi, _) => reference("OpenAiError"),
        (Family::Anthropic, _) => reference("AnthropicError"),
    };
    let needs_key = args.is_guarded() && route.needs_key(args);
    let always: &[Cause] = match docs.request {
        None => &[Cause::Unavailable],
        Some(_) => &[
            Cause::MalformedBody,
            Cause::BodyTimeout,
            Cause::BodyTooLarge,
            Cause::NotJson,
            Cause::Validation,
            Cause::Generation,
            Cause::Overloaded,
            Cause::Internal,
            Cause::Unavailable,
        ],
    };
    let too_late = route.counted.then_some(Cause::Deadline);
    let unauthorized = needs_key.then_some(Cause::Unauthorized);
    let not_found = (route.path == "/v1/models/{*id}").then_some(Cause::NotFound);
    for cause in always.iter().copied().chain(too_late).chain(unauthorized).chain(not_found) {
        let Entry { about, remedy, .. } = cause.entry();
        let status = Family::of(route.path).status(cause);
        let content = json!({ "application/json": { "schema": error } });
        let description = format!("{about}. {remedy}");
        responses
            .insert(status.as_u16().to_string(), json!({ "description": description, "content": content }));
    }
    let mut operation = json!({ "summary": docs.about, "responses": responses });
    if let Some(request) = docs.request {
        let content = json!({ "application/json": { "schema": reference(request.name()) } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    let path = route.documented_path();
    let names = path.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let mut parameters: Vec<_> = names
        .map(|(name, _)| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
        })
        .collect();
    if route.counted {
        let Field { name, kind, about, .. } = &request_fields::DEADLINE;
        let Kind::Integer { least, most: Most::Is(most) } = kind else {
            unreachable!("the table says that it is a whole number with a fixed bound")
        };
        let schema = json!({ "type": "integer", "minimum": least, "maximum": most });
        parameters.push(json!({ "name": name, "in": "header", "description": about, "schema": schema }));
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if needs_key {
        operation["security"] = json!([{ "key": [] }, { "x-api-key": [] }]);
    }
    operation
}

fn message() -> Value {
    let parts = json!({ "type": "array", "items": { "type": "object" } });
    json!({
        "type": "object",
        "properties": {
            "role": { "type": "string" },
            "content": { "nullable": true, "oneOf": [{ "type": "string" }, parts] },
            "tool_calls": { "type": "array", "items": { "type": "object" }, "nullable": true },
        },
        "required": ["role"],
    })
}

fn object(fields: &[&Field], limits: &Limits) -> Value {
    let properties: Map<_, _> =
        fields.iter().map(|field| (field.name.to_string(), schema(field, limits))).collect();
    let required: Vec<_> =
        fields.iter().filter(|field| field.default == "required").map(|field| field.name).collect();
    let mut object = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn schema(field: &Field, limits: &Limits) -> Value {
    let mut schema = match field.kind {
        _ if field.name == request_fields::PARAMETERS.name => json!({ "allOf": [reference("Parameters")] }),
        _ if field.name == request_fields::MESSAGES.name => {
            let most = request_fields::MESSAGES_MOST;
            json!({ "type": "array", "minItems": 1, "maxItems": most, "items": reference("ChatMessage") })
        }
        _ if field.name == request_fields::INSTANCES.name => {
            let one_of = [RequestSchema::Generate, RequestSchema::Chat].map(|one| reference(one.name()));
            let most = limits.most(Most::Sequences);
            json!({ "type": "array", "minItems": 1, "maxItems": most, "items": { "anyOf": one_of } })
        }
        _ if field.name == request_fields::STOP_TOKEN_IDS.name => {
            let items = json!({ "type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1 });
            json!({ "type": "array", "maxItems": request_fields::STOP_TOKENS, "items": items })
        }
        _ if field.name == request_fields::PROMPT.name => {
            let id = json!({ "type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1 });
            let text = json!({ "type": "string", "minLength": 1 });
            let ids = json!({ "type": "array", "minItems": 1, "items": id });
            let most = limits.most(request_fields::PROMPTS);
            let one = json!({ "oneOf": [text, ids] });
            let several = json!({ "type": "array", "minItems": 1, "maxItems": most, "items": one });
            json!({ "oneOf": [text, ids, several] })
        }
        _ if field.name == request_fields::LOGIT_BIAS.name => {
            let bias = json!({ "type": "number", "minimum": -request_fields::BIAS, "maximum": request_fields::BIAS });
            let biases = json!({ "type": "object", "additionalProperties": bias, "maxProperties": request_fields::BIASES });
            json!({ "oneOf": [biases, { "type": "array", "items": { "type": "number" } }] })
        }
        _ if field.name == request_fields::INPUT.name => {
            let most = request_fields::MESSAGES_MOST;
            let items = json!({ "type": "array", "maxItems": most, "items": reference("InputItem") });
            json!({ "oneOf": [{ "type": "string" }, items] })
        }
        Kind::List { .. } if field.name == request_fields::KSERVE_INPUTS.name => {
            let byte = json!({ "type": "integer", "minimum": 0, "maximum": 255 });
            let item = json!({
                "type": "object",
                "properties": {
                    "name": { "type": "string", "maxLength": request_fields::NAME_LENGTH },
                    "shape": { "type": "array", "items": { "type": "integer", "minimum": 0 } },
                    "datatype": { "type": "string", "enum": ["BYTES", "UINT8"] },
                    "data": { "oneOf": [
                        { "type": "array", "minItems": 1, "maxItems": 1, "items": { "type": "string" } },
                        { "type": "array", "minItems": 1, "items": byte },
                    ]},
                },
                "required": ["name", "shape", "datatype", "data"],
            });
            json!({ "type": "array", "minItems": 1, "maxItems": limits.most(Most::Prompts), "items": item })
        }
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Integer { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": limits.most(most) })
        }
        Kind::Priority => {
            json!({ "type": "integer", "minimum": limits.highest_priority, "maximum": PRIORITIES.end() })
        }
        Kind::Number { low, high } => {
            let mut schema = json!({ "type": "number" });
            match low {
                Low::AtLeast(low) => schema["minimum"] = json!(low),
                Low::Above(low) => {
                    schema["minimum"] = json!(low);
                    schema["exclusiveMinimum"] = json!(true);
                }
            }
            if high.is_finite() {
                schema["maximum"] = json!(high);
            }
            schema
        }
        Kind::Prompt => json!({ "type": "string" }),
        Kind::Text { longest } => json!({ "type": "string", "maxLength": longest }),
        Kind::Texts { most, longest } => {
            let one = json!({ "type": "string", "minLength": 1, "maxLength": longest });
            let list = json!({ "type": "array", "items": one, "maxItems": limits.most(most) });
            json!({ "oneOf": [one, list] })
        }
        Kind::Object => json!({ "type": "object" }),
        Kind::List { most } => json!({ "type": "array", "maxItems": limits.most(most), "items": {} }),
        Kind::Any => json!({}),
    };
    if field.default == "required" {
        schema["description"] = json!(field.about);
    } else {
        schema["description"] = json!(format!("{}. Default: {}", field.about, field.default));
        schema["nullable"] = json!(true);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::Fields;
    use crate::http::fields::tests::limits;
    use crate::http::tgi::request::inputs_alone;

    #[test]
    fn every_reference_leads_somewhere() {
        let document = of_server(&limits(), &args(&[]));
        let text = document.to_string();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().expect("it was split at quotes");
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn keys_are_asked_for_where_auth_asks() {
        let document = of_server(&limits(), &args(&[]));
        let ways = document["paths"]["/generate"]["post"]["security"].as_array().expect("a list");
        let names: Vec<_> = ways.iter().flat_map(|way| way.as_object().expect("an object").keys()).collect();
        assert_eq!(names, ["key", "x-api-key"]);
        for name in names {
            assert!(document["components"]["securitySchemes"].get(name).is_some(), "{name}");
        }
        for path in ["/health", "/metrics"] {
            assert!(document["paths"][path]["get"].get("security").is_none());
        }
        let document = of_server(&limits(), &args(&["--guard-metrics"]));
        assert!(document["paths"]["/metrics"]["get"]["security"].is_array());
    }

    /// TGI's clients send it what they send /generate, and wrong parameters are refused there as well.
    #[test]
    fn a_body_of_tokenize_is_what_the_route_reads() {
        let limits = limits();
        let document = of_server(&limits, &args(&[]));
        let post = &document["paths"]["/tokenize"]["post"];
        let body = &post["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(*body, reference("GenerateRequest"));
        let members = document["components"]["schemas"]["GenerateRequest"]["properties"].as_object();
        let members: Vec<_> = members.expect("an object").keys().collect();
        assert_eq!(members, ["inputs", "parameters"]);
        let read = |parameters: Value| {
            let body = json!({"inputs": "x", "parameters": parameters}).to_string();
            let read = Fields::parse(body.as_bytes(), &limits).and_then(|fields| inputs_alone(&fields));
            read.map(|(inputs, warnings)| (inputs, warnings.lines().len())).map_err(|error| error.to_string())
        };
        for parameters in [json!(null), json!({}), json!({"truncate": 1, "top_k": 5})] {
            assert_eq!(read(parameters), Ok(("x".to_owned(), 0)));
        }
        for (parameters, says) in
            [(json!(5), "`parameters` must be"), (json!({"top_k": -1}), "`top_k` must be")]
        {
            let refused = read(parameters).expect_err("it is wrong");
            assert!(refused.contains(says), "{refused}");
        }
    }

    /// Texts and lists of tokens may stand side by side in a list of prompts.
    #[test]
    fn a_list_of_prompts_has_entries_of_both_kinds() {
        let schema = schema(&request_fields::PROMPT, &limits());
        let [text, ids, several] = &schema["oneOf"].as_array().expect("one of several")[..] else {
            panic!("{schema}")
        };
        assert_eq!(several["items"], json!({ "oneOf": [text, ids] }));
    }

    /// Of a server with keys and all routes.
    fn args(more: &[&str]) -> RouterArgs {
        use clap::{Args, FromArgMatches};
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let line = [&["penstock", "--api-key", "a", "--kserve"], more].concat();
        RouterArgs::from_arg_matches(&command.get_matches_from(line)).expect("flags")
    }

    /// What the document says of numbers is what validation says.
    #[test]
    fn bounds_are_those_of_validation() {
        let limits = limits();
        for field in
            request_fields::chat_fields().into_iter().chain(request_fields::TGI_PARAMETERS.iter().copied())
        {
            let schema = schema(field, &limits);
            let taken = |value: &str| {
                let body = format!("{{\"{}\": {value}}}", field.name);
                let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
                match field.kind {
                    Kind::Integer { .. } | Kind::Priority => fields.signed(field).is_ok(),
                    _ => fields.number(field).is_ok(),
                }
            };
            if let Some(least) = schema.get("minimum").and_then(Value::as_f64) {
                let exclusive = schema.get("exclusiveMinimum").is_some();
                assert_eq!(taken(&least.to_string()), !exclusive, "{}: {least}", field.name);
                assert!(!taken(&(least - 1.0).to_string()), "{} below {least}", field.name);
            }
            if let Some(most) = schema.get("maximum").and_then(Value::as_u64).filter(|most| *most < 1 << 40) {
                assert!(taken(&most.to_string()), "{}: {most}", field.name);
                assert!(!taken(&(most + 1).to_string()), "{} above {most}", field.name);
            }
        }
    }
}
