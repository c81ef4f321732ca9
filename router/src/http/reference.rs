//! What the API is, for those who use it: one list of routes and the tables of `limits` make the OpenAPI
//! document, the page at `/docs`, and `docs/http.md` (a test says when that one is stale).

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use serde_json::{Map, Value, json};

use crate::http::Server;
use crate::http::answers::{self, reference};
use crate::http::error::Family;
use crate::http::gate::OPEN;
use crate::http::tgi::json as json_response;
use crate::limits::{self, Field, Kind, Limits, Low, Most};

struct Route {
    method: &'static str,
    path: &'static str,
    about: &'static str,
    request: Option<Request>,
    /// The schema of the answer; None where it has no JSON.
    answer: Option<&'static str>,
    /// The schema of an event, where it can stream.
    event: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Generate,
    Compat,
    Tokenize,
    Chat,
    Completion,
    Invocation,
    Vertex,
    Infer,
}

const ROUTES: [Route; 29] = [
    post("/generate", "Generate a text", Request::Generate, "Generated", None),
    post(
        "/generate_stream",
        "Generate a text, token by token",
        Request::Generate,
        "TokenEvent",
        Some("TokenEvent"),
    ),
    post(
        "/",
        "As /generate, in a list of one; with `stream`, as /generate_stream",
        Request::Compat,
        "GeneratedList",
        Some("TokenEvent"),
    ),
    post("/v1/chat/completions", "Answer a chat", Request::Chat, "ChatCompletion", Some("ChatChunk")),
    post(
        "/v1/completions",
        "Continue one or several prompts",
        Request::Completion,
        "Completion",
        Some("CompletionChunk"),
    ),
    get("/v1/models", "The served model, in a list", Some("Models")),
    get("/v1/models/{id}", "The served model, by its name", Some("Model")),
    post("/tokenize", "The tokens of a text, special tokens added", Request::Tokenize, "Tokens", None),
    post(
        "/chat_tokenize",
        "The prompt that a chat becomes, and its tokens",
        Request::Chat,
        "ChatTokens",
        None,
    ),
    post(
        "/invocations",
        "Amazon SageMaker: a body of `/`, of a chat or of a completion, answered as there",
        Request::Invocation,
        "Invocation",
        Some("InvocationEvent"),
    ),
    post(
        "/vertex",
        "Google Vertex AI: several requests, answered together",
        Request::Vertex,
        "Predictions",
        None,
    ),
    get("/v2", "KServe (`--kserve`): what serves", Some("KserveServer")),
    get("/v2/health/live", "KServe: 200 while the server runs", Some("KserveLive")),
    get("/v2/health/ready", "KServe: as /health", Some("KserveReady")),
    get("/v2/models/{name}", "KServe: about the model; any name is taken", Some("KserveModel")),
    get("/v2/models/{name}/ready", "KServe: as /health", Some("KserveReady")),
    post("/v2/models/{name}/infer", "KServe: generate texts", Request::Infer, "Inferred", None),
    get("/v2/models/{name}/versions/{version}", "KServe: about the model", Some("KserveModel")),
    get("/v2/models/{name}/versions/{version}/ready", "KServe: as /health", Some("KserveReady")),
    post(
        "/v2/models/{name}/versions/{version}/infer",
        "KServe: generate texts",
        Request::Infer,
        "Inferred",
        None,
    ),
    get("/info", "What is served and within which limits", Some("Info")),
    get("/health", "200 when new requests are served now, else 503 with the reason", None),
    get("/ping", "As /health", None),
    get("/readyz", "As /health", None),
    get("/livez", "200 while the server runs, whatever its workers do", None),
    get("/", "A chat page where `Accept` names HTML, as browsers do; otherwise as /health", None),
    get("/metrics", "Prometheus metrics, as text", None),
    get("/docs", "This reference, as a page", None),
    get("/api-doc/openapi.json", "This reference, as an OpenAPI document", None),
];

const fn post(
    path: &'static str,
    about: &'static str,
    request: Request,
    answer: &'static str,
    event: Option<&'static str>,
) -> Route {
    Route { method: "post", path, about, request: Some(request), answer: Some(answer), event }
}

const fn get(path: &'static str, about: &'static str, answer: Option<&'static str>) -> Route {
    Route { method: "get", path, about, request: None, answer, event: None }
}

impl Request {
    const ALL: [Request; 8] = [
        Request::Generate,
        Request::Compat,
        Request::Tokenize,
        Request::Chat,
        Request::Completion,
        Request::Invocation,
        Request::Vertex,
        Request::Infer,
    ];

    fn name(self) -> &'static str {
        match self {
            Request::Generate => "GenerateRequest",
            Request::Compat => "CompatRequest",
            Request::Tokenize => "TokenizeRequest",
            Request::Chat => "ChatRequest",
            Request::Completion => "CompletionRequest",
            Request::Invocation => "InvocationRequest",
            Request::Vertex => "VertexRequest",
            Request::Infer => "InferRequest",
        }
    }

    fn fields(self) -> Vec<&'static Field> {
        match self {
            Request::Generate => vec![&limits::INPUTS, &limits::PARAMETERS],
            Request::Compat => vec![&limits::INPUTS, &limits::PARAMETERS, &limits::STREAM],
            Request::Tokenize => vec![&limits::INPUTS],
            Request::Chat => limits::chat_fields(),
            Request::Completion => limits::completion_fields(),
            Request::Invocation => Vec::new(),
            Request::Vertex => vec![&limits::INSTANCES],
            Request::Infer => limits::KSERVE.to_vec(),
        }
    }

    fn schema(self, limits: &Limits) -> Value {
        if self == Request::Invocation {
            let one_of =
                [Request::Compat, Request::Chat, Request::Completion].map(|one| reference(one.name()));
            return json!({ "oneOf": one_of });
        }
        object(&self.fields(), limits)
    }
}

/// The OpenAPI document, with the limits of this server.
pub async fn openapi(State(server): State<Arc<Server>>) -> Response<Body> {
    match server.loaded() {
        Ok(loaded) => {
            let args = &server.config.args;
            json_response(&document(&loaded.limits, args.is_guarded(), args.kserve))
        }
        Err(error) => error.response(Family::Tgi),
    }
}

pub async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(html(&markdown())));
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn document(limits: &Limits, guarded: bool, kserve: bool) -> Value {
    let mut paths = Map::new();
    for route in ROUTES.iter().filter(|route| kserve || !route.path.starts_with("/v2")) {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method] = operation(route, guarded);
    }
    let mut schemas = answers::schemas();
    schemas.insert("Message".into(), message());
    for request in Request::ALL {
        schemas.insert(request.name().into(), request.schema(limits));
    }
    schemas.insert("Parameters".into(), object(limits::TGI_PARAMETERS, limits));
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Penstock",
            "description": "A server for large language models, with the API of Text Generation Inference and OpenAI's",
            "license": { "name": "Apache 2.0" },
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, guarded: bool) -> Value {
    let mut responses = Map::new();
    let mut content = Map::new();
    if let Some(answer) = route.answer.filter(|answer| route.event != Some(*answer)) {
        content.insert("application/json".into(), json!({ "schema": reference(answer) }));
    }
    if let Some(event) = route.event {
        content.insert("text/event-stream".into(), json!({ "schema": reference(event) }));
    }
    match route.path {
        "/metrics" => drop(content.insert("text/plain".into(), json!({ "schema": { "type": "string" } }))),
        "/docs" => drop(content.insert("text/html".into(), json!({ "schema": { "type": "string" } }))),
        _ => {}
    }
    let good = if content.is_empty() {
        json!({ "description": route.about })
    } else {
        json!({ "description": route.about, "content": content })
    };
    responses.insert("200".into(), good);
    let error = match (Family::of(route.path), route.request) {
        // As the dialect of its body has it.
        (_, Some(Request::Invocation)) => json!({ "anyOf": [reference("Error"), reference("OpenAiError")] }),
        (Family::Tgi, _) => reference("Error"),
        (Family::OpenAi, _) => reference("OpenAiError"),
    };
    let needs_key = guarded && !(route.method == "get" && OPEN.contains(&route.path));
    let statuses: &[(&str, &str)] = match route.request {
        None => &[("503", "Not ready; the reason")],
        Some(_) => &[
            ("400", "No JSON, or it broke off"),
            ("408", "The body did not arrive in time"),
            ("413", "Larger than --payload-limit"),
            ("415", "Not application/json"),
            ("422", "A field is missing or out of its range; the message names it and its limit"),
            ("424", "The model failed this request"),
            ("429", "Too many requests; `Retry-After` says when to come back"),
            ("500", "An error of the server"),
            ("503", "Loading, recovering or draining; the reason"),
        ],
    };
    let generates = route.request.is_some() && !route.path.ends_with("tokenize");
    let too_late = generates.then_some(("504", "The deadline of `x-request-deadline-ms` passed"));
    let unauthorized = needs_key.then_some(("401", "The API key is missing or wrong"));
    let not_found = (route.path == "/v1/models/{id}").then_some(("404", "No model of this name"));
    for (status, about) in statuses.iter().copied().chain(too_late).chain(unauthorized).chain(not_found) {
        let content = json!({ "application/json": { "schema": error } });
        responses.insert(status.into(), json!({ "description": about, "content": content }));
    }
    let mut operation = json!({ "summary": route.about, "responses": responses });
    if let Some(request) = route.request {
        let content = json!({ "application/json": { "schema": reference(request.name()) } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    let names = route.path.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let mut parameters: Vec<_> = names
        .map(|(name, _)| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
        })
        .collect();
    if generates {
        let Field { name, kind, about, .. } = &limits::DEADLINE;
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
        operation["security"] = json!([{ "key": [] }]);
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
        _ if field.name == limits::PARAMETERS.name => json!({ "allOf": [reference("Parameters")] }),
        _ if field.name == limits::MESSAGES.name => {
            json!({ "type": "array", "minItems": 1, "items": reference("Message") })
        }
        _ if field.name == limits::INSTANCES.name => {
            let one_of = [Request::Generate, Request::Chat].map(|one| reference(one.name()));
            let most = limits.most(Most::Prompts);
            json!({ "type": "array", "minItems": 1, "maxItems": most, "items": { "anyOf": one_of } })
        }
        _ if field.name == limits::STOP_TOKEN_IDS.name => {
            let items = json!({ "type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1 });
            json!({ "type": "array", "maxItems": limits::STOP_TOKENS, "items": items })
        }
        _ if field.name == limits::PROMPT.name => {
            let id = json!({ "type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1 });
            let text = json!({ "type": "string", "minLength": 1 });
            let ids = json!({ "type": "array", "minItems": 1, "items": id });
            let most = limits.most(limits::PROMPTS);
            let several =
                |item: &Value| json!({ "type": "array", "minItems": 1, "maxItems": most, "items": item });
            json!({ "oneOf": [text, ids, several(&text), several(&ids)] })
        }
        _ if field.name == limits::LOGIT_BIAS.name => {
            let bias = json!({ "type": "number", "minimum": -limits::BIAS, "maximum": limits::BIAS });
            let biases =
                json!({ "type": "object", "additionalProperties": bias, "maxProperties": limits::BIASES });
            json!({ "oneOf": [biases, { "type": "array", "items": { "type": "number" } }] })
        }
        Kind::List if field.name == limits::KSERVE_INPUTS.name => {
            let byte = json!({ "type": "integer", "minimum": 0, "maximum": 255 });
            let item = json!({
                "type": "object",
                "properties": {
                    "name": { "type": "string" },
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
        Kind::Text => json!({ "type": "string" }),
        Kind::Texts { most } => {
            let one = json!({ "type": "string", "minLength": 1 });
            let list = json!({ "type": "array", "items": one, "maxItems": limits.most(most) });
            json!({ "oneOf": [one, list] })
        }
        Kind::Object => json!({ "type": "object" }),
        Kind::List => json!({ "type": "array", "items": {} }),
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

/// `docs/http.md`: with the flags that set a limit in place of their values.
fn markdown() -> String {
    let mut text = String::from(
        "# The HTTP API\n\n\
         Made from the tables in `router/src/limits.rs` and `router/src/http/reference.rs`; a running server has\n\
         the same at `/docs`, and as OpenAPI at `/api-doc/openapi.json`.\n\n\
         A field that is absent or `null` has its default. A wrong value is a 422 whose message names the field and\n\
         its limit. A field that has no effect, an unknown one or one that does nothing beside the others, is named\n\
         in `warnings` of the answer (of a stream, in the first event; of `/tokenize`, in headers `x-warning`); with\n\
         `--strict-requests` it is a 422. Errors are `{\"error\", \"error_type\"}`, on `/v1/*` OpenAI's\n\
         `{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`.\n\n\
         | route | |\n|---|---|\n",
    );
    for route in &ROUTES {
        let method = route.method.to_uppercase();
        let _ = writeln!(text, "| `{method} {}` | {} |", route.path, route.about);
    }
    let mut table = |title: &str, fields: &[&Field]| {
        let _ = write!(text, "\n## {title}\n\n| field | value | default | |\n|---|---|---|---|\n");
        for field in fields {
            let Field { name, default, about, .. } = field;
            let _ = writeln!(text, "| `{name}` | {} | {default} | {about} |", bounds(field));
        }
    };
    table("Headers of all that generate", &[&limits::DEADLINE]);
    table("`/generate`, `/generate_stream`, `/`", &Request::Compat.fields());
    table("`parameters` of these", limits::TGI_PARAMETERS);
    table("`/v1/chat/completions`, `/chat_tokenize`", &Request::Chat.fields());
    table("`/v1/completions`", &Request::Completion.fields());
    table("`/tokenize`", &Request::Tokenize.fields());
    table("`/vertex`", &Request::Vertex.fields());
    table("`/v2/models/{name}/infer`", &Request::Infer.fields());
    text
}

fn bounds(field: &Field) -> String {
    let most = |most: Most| match most {
        Most::Is(value) if value >= u64::from(u32::MAX) => None,
        Most::Is(value) if value == i32::MAX as u64 => None,
        Most::Is(value) => Some(value.to_string()),
        Most::BestOf => Some("`--max-best-of`".into()),
        Most::StopSequences => Some("`--max-stop-sequences`".into()),
        Most::TopTokens => Some("`--max-top-n-tokens`".into()),
        Most::InputTokens => Some("`--max-input-tokens`".into()),
        Most::Prompts => Some("`--max-client-batch-size`".into()),
    };
    match field.kind {
        Kind::Boolean => "true or false".into(),
        Kind::Integer { least, most: bound } => match most(bound) {
            Some(most) => format!("{least} to {most}"),
            None => format!("{least} or more"),
        },
        Kind::Number { low, high } => {
            let low = match low {
                Low::AtLeast(low) => format!("{low} or more"),
                Low::Above(low) => format!("above {low}"),
            };
            if high.is_finite() { format!("{low}, at most {high}") } else { low }
        }
        Kind::Text => "string".into(),
        Kind::Texts { most: bound } => {
            format!("string, or a list of at most {}", most(bound).unwrap_or_default())
        }
        Kind::Object => "object".into(),
        Kind::List => "list".into(),
        Kind::Any => "see right".into(),
    }
}

/// The little of Markdown that `markdown` writes.
fn html(markdown: &str) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Penstock: the HTTP API</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>\
         :root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
         padding:0 1rem}table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{text-align:left;\
         vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884}code{font-size:.9em}</style>",
    );
    let mut in_table = false;
    for line in markdown.lines() {
        let row = line.strip_prefix("| ").and_then(|row| row.strip_suffix('|'));
        if in_table && row.is_none() && !line.starts_with("|-") {
            page.push_str("</table>");
            in_table = false;
        }
        if let Some(row) = row {
            if !in_table {
                page.push_str("<table>");
                in_table = true;
            }
            page.push_str("<tr>");
            for cell in row.split(" | ") {
                let _ = write!(page, "<td>{}</td>", inline(cell.trim()));
            }
            page.push_str("</tr>");
        } else if let Some(title) = line.strip_prefix("## ") {
            let _ = write!(page, "<h2>{}</h2>", inline(title));
        } else if let Some(title) = line.strip_prefix("# ") {
            let _ = write!(page, "<h1>{}</h1>", inline(title));
        } else if !line.starts_with("|-") {
            let _ = writeln!(page, "{}", if line.is_empty() { "<p>".into() } else { inline(line) });
        }
    }
    if in_table {
        page.push_str("</table>");
    }
    page
}

/// Escaped, and what stands in backticks as code.
fn inline(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut parts = escaped.split('`');
    let mut line = parts.next().unwrap_or_default().to_string();
    for (place, part) in parts.enumerate() {
        line.push_str(if place % 2 == 0 { "<code>" } else { "</code>" });
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::Fields;
    use crate::http::fields::tests::limits;

    #[test]
    fn the_page_in_docs_is_what_the_tables_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/http.md");
        if std::env::var_os("PENSTOCK_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).expect("docs/ can be written");
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == markdown(),
            "docs/http.md is stale: PENSTOCK_WRITE_DOCS=1 cargo test -p penstock-router"
        );
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document(&limits(), true, true);
        let text = document.to_string();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().expect("it was split at quotes");
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn keys_are_asked_for_where_the_gate_asks() {
        let document = document(&limits(), true, true);
        assert!(document["paths"]["/generate"]["post"]["security"].is_array());
        assert!(document["paths"]["/health"]["get"].get("security").is_none());
    }

    /// What the document says of numbers is what validation says.
    #[test]
    fn bounds_are_those_of_validation() {
        let limits = limits();
        for field in limits::chat_fields().into_iter().chain(limits::TGI_PARAMETERS.iter().copied()) {
            let schema = schema(field, &limits);
            let taken = |value: &str| {
                let body = format!("{{\"{}\": {value}}}", field.name);
                let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
                match field.kind {
                    Kind::Integer { .. } => fields.signed(field).is_ok(),
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
