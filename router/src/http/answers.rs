//! The schemas of every answer, for the OpenAPI document: exactly the members that are there, which
//! integration-tests/test_answers.py holds against a running server. `reference` says which route gives which.

use serde_json::{Map, Value, json};

/// All of them, by name.
pub fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    let mut add = |name: &str, schema: Value| all.insert(name.into(), schema);
    for (name, schema) in errors().into_iter().chain(tgi()).chain(openai()).chain(operators()) {
        add(name, schema);
    }
    all
}

pub fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn number() -> Value {
    json!({ "type": "number" })
}

fn boolean() -> Value {
    json!({ "type": "boolean" })
}

fn one_of(values: &[&str]) -> Value {
    json!({ "type": "string", "enum": values })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn or_null(schema: Value) -> Value {
    match schema.get("$ref") {
        // In OpenAPI 3.0 nothing may stand beside a reference.
        Some(_) => json!({ "allOf": [schema], "nullable": true }),
        None => {
            let mut schema = schema;
            schema["nullable"] = json!(true);
            schema
        }
    }
}

/// An object that has all of `always`, maybe some of `sometimes`, and nothing else.
fn object<const A: usize, const S: usize>(
    always: [(&str, Value); A],
    sometimes: [(&str, Value); S],
) -> Value {
    let required: Vec<_> = always.iter().map(|(name, _)| name.to_string()).collect();
    let members: Map<_, _> =
        always.into_iter().chain(sometimes).map(|(name, schema)| (name.to_string(), schema)).collect();
    json!({ "type": "object", "properties": members, "required": required, "additionalProperties": false })
}

/// What the request asked for and did not get.
fn warnings() -> (&'static str, Value) {
    let mut lines = list(text());
    lines["description"] = json!("Fields of the request that have no effect");
    ("warnings", lines)
}

type Schemas = Vec<(&'static str, Value)>;

fn errors() -> Schemas {
    let detail = object(
        [
            ("message", text()),
            ("type", text()),
            ("param", or_null(text())),
            ("code", text()),
            ("http_status_code", whole()),
        ],
        [],
    );
    vec![
        ("Error", object([("error", text()), ("error_type", or_null(text()))], [])),
        ("OpenAiError", object([("error", detail)], [])),
    ]
}

fn tgi() -> Schemas {
    let reason = || one_of(&["length", "eos_token", "stop_sequence"]);
    let told = || {
        [
            ("finish_reason", reason()),
            ("generated_tokens", whole()),
            ("seed", or_null(whole())),
            ("prefill", list(reference("PrefillToken"))),
            ("tokens", list(reference("Token"))),
        ]
    };
    let tops = || ("top_tokens", list(list(reference("Token"))));
    let mut candidate = object(told(), [tops()]);
    candidate["properties"]["generated_text"] = text();
    candidate["required"].as_array_mut().expect("it was made above").push(json!("generated_text"));
    let stream_details = object(
        [
            ("finish_reason", reason()),
            ("generated_tokens", whole()),
            ("seed", or_null(whole())),
            ("input_length", whole()),
        ],
        [],
    );
    vec![
        (
            "Token",
            object(
                [("id", whole()), ("text", text()), ("logprob", or_null(number())), ("special", boolean())],
                [],
            ),
        ),
        ("PrefillToken", object([("id", whole()), ("text", text()), ("logprob", or_null(number()))], [])),
        ("Candidate", candidate),
        ("Details", object(told(), [tops(), ("best_of_sequences", list(reference("Candidate")))])),
        ("Generated", object([("generated_text", text())], [("details", reference("Details")), warnings()])),
        ("GeneratedList", list(reference("Generated"))),
        ("StreamDetails", stream_details),
        (
            "TokenEvent",
            object(
                [
                    ("index", whole()),
                    ("token", reference("Token")),
                    ("generated_text", or_null(text())),
                    ("details", or_null(reference("StreamDetails"))),
                ],
                [("top_tokens", list(reference("Token"))), warnings()],
            ),
        ),
        ("TokenSpan", object([("id", whole()), ("text", text()), ("start", whole()), ("stop", whole())], [])),
        ("Tokens", list(reference("TokenSpan"))),
        (
            "ChatTokens",
            object(
                [("tokenize_response", list(reference("TokenSpan"))), ("templated_text", text())],
                [warnings()],
            ),
        ),
        ("Predictions", object([("predictions", list(text()))], [warnings()])),
        ("Invocation", any(&["GeneratedList", "ChatCompletion", "Completion"])),
        ("InvocationEvent", any(&["TokenEvent", "ChatChunk", "CompletionChunk"])),
    ]
}

fn any(names: &[&str]) -> Value {
    json!({ "anyOf": names.iter().map(|name| reference(name)).collect::<Vec<_>>() })
}

fn openai() -> Schemas {
    let reason = || one_of(&["stop", "length"]);
    let answer = |kind: &str, choice: Value, usage: Value| {
        object(
            [
                ("object", one_of(&[kind])),
                ("id", text()),
                ("created", whole()),
                ("model", text()),
                ("system_fingerprint", text()),
                ("choices", list(choice)),
                ("usage", usage),
            ],
            [warnings()],
        )
    };
    let usage = || reference("Usage");
    let chat_choice = object(
        [
            ("index", whole()),
            ("message", object([("role", one_of(&["assistant"])), ("content", text())], [])),
            ("logprobs", or_null(reference("ChatLogprobs"))),
            ("finish_reason", reason()),
        ],
        [],
    );
    let chunk_choice = object(
        [
            ("index", whole()),
            ("delta", object([("content", text())], [("role", one_of(&["assistant"]))])),
            ("logprobs", or_null(reference("ChatLogprobs"))),
            ("finish_reason", or_null(reason())),
        ],
        [],
    );
    let completion_choice = |reason: Value| {
        object(
            [
                ("index", whole()),
                ("text", text()),
                ("logprobs", or_null(reference("CompletionLogprobs"))),
                ("finish_reason", reason),
            ],
            [],
        )
    };
    let spelled = || [("token", text()), ("logprob", number()), ("bytes", list(whole()))];
    let [token, logprob, bytes] = spelled();
    let alternatives = json!({ "type": "object", "additionalProperties": number() });
    vec![
        (
            "Usage",
            object(
                [
                    ("prompt_tokens", whole()),
                    ("completion_tokens", whole()),
                    ("total_tokens", whole()),
                    ("prompt_tokens_details", object([("cached_tokens", whole())], [])),
                ],
                [],
            ),
        ),
        ("TokenLogprob", object(spelled(), [])),
        (
            "ChatLogprobs",
            object(
                [(
                    "content",
                    list(object(
                        [token, logprob, bytes, ("top_logprobs", list(reference("TokenLogprob")))],
                        [],
                    )),
                )],
                [],
            ),
        ),
        (
            "CompletionLogprobs",
            object(
                [
                    ("tokens", list(text())),
                    ("token_logprobs", list(or_null(number()))),
                    ("top_logprobs", list(or_null(alternatives))),
                    ("text_offset", list(whole())),
                ],
                [],
            ),
        ),
        ("ChatCompletion", answer("chat.completion", chat_choice, usage())),
        ("ChatChunk", answer("chat.completion.chunk", chunk_choice, or_null(usage()))),
        ("Completion", answer("text_completion", completion_choice(reason()), usage())),
        (
            "CompletionChunk",
            answer("text_completion", completion_choice(or_null(reason())), or_null(usage())),
        ),
        (
            "Model",
            object(
                [("id", text()), ("object", one_of(&["model"])), ("created", whole()), ("owned_by", text())],
                [],
            ),
        ),
        ("Models", object([("object", one_of(&["list"])), ("data", list(reference("Model")))], [])),
    ]
}

fn operators() -> Schemas {
    let strings =
        ["model_id", "model_pipeline_tag", "model_type", "model_dtype", "model_device_type", "device"]
            .into_iter()
            .chain(["device_name", "recipe", "router", "version"]);
    let counts = [
        "parameters",
        "vocab_size",
        "num_shard",
        "pipeline_parallel",
        "max_concurrent_requests",
        "max_best_of",
    ]
    .into_iter()
    .chain(["max_stop_sequences", "max_top_n_tokens", "max_input_tokens", "max_total_tokens"])
    .chain(["max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size"])
    .chain(["max_client_batch_size", "validation_workers", "kv_block_size", "kv_blocks"])
    .chain(["kv_blocks_used", "kv_blocks_cached", "kv_blocks_free", "requests_running"])
    .chain(["requests_waiting", "generated_tokens", "worker_restarts"]);
    let unknown = ["model_sha", "sha", "docker_label"].into_iter();
    let mut info = object([], []);
    for (name, schema) in strings
        .map(|name| (name, text()))
        .chain(counts.map(|name| (name, whole())))
        .chain(unknown.map(|name| (name, or_null(text()))))
    {
        info["properties"][name] = schema;
        info["required"].as_array_mut().expect("it was made above").push(json!(name));
    }
    let data = json!({ "oneOf": [
        { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 255 } },
        { "type": "array", "items": text(), "minItems": 1, "maxItems": 1 },
    ]});
    let output = object(
        [("name", text()), ("shape", list(whole())), ("datatype", one_of(&["BYTES"])), ("data", data)],
        [],
    );
    vec![
        ("Info", info),
        ("KserveServer", object([("name", text()), ("version", text()), ("extensions", list(text()))], [])),
        ("KserveLive", object([("live", boolean())], [])),
        ("KserveReady", object([("live", boolean()), ("ready", boolean())], [])),
        ("KserveModel", object([("name", text()), ("version", text()), ("extensions", list(text()))], [])),
        (
            "Inferred",
            object(
                [("model_name", text()), ("outputs", list(output))],
                [("id", text()), ("model_version", text()), warnings()],
            ),
        ),
    ]
}
