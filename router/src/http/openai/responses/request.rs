//! Requests to `/v1/responses`: their own fields and tools, read as the chat that asks for the same. What `input` has is read by `input`.

use penstock_core::prompt::Chat;
use serde_json::{Map, Value, json};

use crate::http::chats::effort::Effort;
use crate::http::chats::functions::Shape;
use crate::http::chats::object::Object;
use crate::http::chats::request::ChatRequest;
use crate::http::chats::tools::Tools;
use crate::http::constraints;
use crate::http::error::{ApiError, Cause, FieldNames, Place};
use crate::http::fields::{Fields, checked_name};
use crate::http::openai::params::{GenerationParams, include_usage};
use crate::http::openai::responses::answer::Echo;
use crate::http::openai::responses::input;
use crate::http::request_fields;
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

const NAMES: FieldNames = FieldNames::RESPONSES;
const INCLUDE: &str = request_fields::INCLUDE.name;

/// What asks for something that a server without memory of answers has not.
const REFUSED: [(&str, &str); 5] = [
    ("previous_response_id", "no answer is kept: send the whole conversation as `input`"),
    ("conversation", "no conversation is kept: send it whole as `input`"),
    ("background", "answers are not kept, so they cannot be fetched later"),
    ("prompt", "there are no prompt templates here: send `input`"),
    ("moderation", "texts are not judged here"),
];

/// What asks for nothing that could be missed in the text, and why.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("max_tool_calls", "here: this server runs no tools of its own"),
    ("context_management", "here: a conversation is never shortened"),
    ("stream_options", "here: events are not obfuscated"),
    ("prompt_cache_options", "here: every prompt is kept as long as there is memory"),
    ("prompt_cache_retention", "here: every prompt is kept as long as there is memory"),
    ("safety_identifier", "here but to be told back: `user` says who asks"),
];

/// What `include` may name. All but the first two ask for what is always there, or of tools that are not here.
const INCLUDED: [&str; 8] = [
    LOGPROBS,
    ENCRYPTED_REASONING,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];
const LOGPROBS: &str = "message.output_text.logprobs";
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// What a request to this route is.
pub struct ResponseRequest {
    pub chat: ChatRequest,
    /// Members of the answer that say what was asked.
    pub echo: Echo,
    pub service_tier: &'static str,
    pub reasoning_output: ReasoningOutput,
}

/// How reasoning is told.
#[derive(Clone, Copy)]
pub struct ReasoningOutput {
    /// As a summary, not as content.
    pub is_summary: bool,
    /// Once more as `encrypted_content`: clients send no thought back that has none.
    pub has_encrypted_content: bool,
}

pub fn parse(fields: &Fields, served: &str) -> Result<ResponseRequest, ApiError> {
    for (name, why) in REFUSED {
        if fields.value(name).is_some_and(|value| value != false) {
            let error = ApiError::invalid(name, format!("is not supported: {why}"));
            let is_previous = name == "previous_response_id";
            return Err(if is_previous { error.because(Cause::PreviousResponse) } else { error });
        }
    }
    let mut warnings = Warnings::default();
    let table = request_fields::responses_fields();
    let known = table.iter().map(|field| field.name);
    let known = known.chain(REFUSED.map(|(name, _)| name)).chain(WITHOUT_EFFECT.map(|(name, _)| name));
    let known: Vec<&str> = known.collect();
    warnings.unknown(fields, "", known.iter().copied());
    for (name, why) in WITHOUT_EFFECT {
        if fields.value(name).is_some() {
            warnings.no_effect(name, why);
        }
    }
    let whole = fields;
    let fields = &fields.only(&table);
    if fields.boolean(&request_fields::STORE)? == Some(true) {
        warnings.no_effect("store", "here: no answer is kept");
    }
    match fields.text(&request_fields::TRUNCATION)?.as_deref() {
        None | Some("disabled") => {}
        Some("auto") => warnings.no_effect("truncation", "here: a prompt that is too long is refused"),
        Some(other) => {
            let error = ApiError::invalid(request_fields::TRUNCATION.name, "must be auto or disabled");
            return Err(error.given(shortened(other)));
        }
    }
    // Told back as they are.
    fields.tree(&request_fields::RESPONSE_METADATA)?;
    fields.text(&request_fields::SAFETY_IDENTIFIER)?;
    let max_tokens = fields.small(&request_fields::MAX_OUTPUT_TOKENS)?;
    let (messages, additional) = input::messages(fields, &mut warnings)?;
    let tools = Tools::parse(fields, &Shape::RESPONSES, &additional, &mut warnings)?;
    let text = fields.tree(&request_fields::TEXT)?.map(|text| (grammar(&text, &mut warnings), text));
    let (grammar, text) = match text {
        Some((grammar, text)) => (grammar?, Some(text)),
        None => (None, None),
    };
    let variables = match fields.tree(&request_fields::CHAT_TEMPLATE_KWARGS)? {
        Some(Value::Object(variables)) => variables,
        _ => Map::new(),
    };
    let reasoning = fields.tree(&request_fields::REASONING)?;
    let (effort, is_summary) = match &reasoning {
        Some(reasoning) => effort_and_summary(reasoning)?,
        None => (None, false),
    };
    let Included { logprobs, encrypted_reasoning } = included(fields, &mut warnings)?;
    let mut top_logprobs = fields.small(&request_fields::TOP_LOGPROBS)?.unwrap_or(0);
    if top_logprobs > 0 && !logprobs {
        warnings.no_effect("top_logprobs", &format!("without `{LOGPROBS}` in `{INCLUDE}`"));
        top_logprobs = 0;
    }
    let params = GenerationParams { grammar, ..GenerationParams::read(fields, served, warnings)? };
    // An answer is a new item: it begins a turn, whoever said the last message.
    let chat = Chat { messages, variables, continue_final_message: Some(false), ..Chat::default() };
    let chat = ChatRequest {
        params,
        chat,
        effort,
        thinking: None,
        tools,
        max_tokens,
        logprobs,
        top_logprobs,
        names: NAMES,
    };
    let service_tier = service_tier(fields);
    let reasoning_output = ReasoningOutput { is_summary, has_encrypted_content: encrypted_reasoning };
    Ok(ResponseRequest { chat, echo: echo(whole, text, reasoning), service_tier, reasoning_output })
}

/// A body of this route that came to `/v1/chat/completions`, where it is answered as a chat. `messages` is empty there.
pub fn parse_as_chat(fields: &Fields, served: &str) -> Result<ChatRequest, ApiError> {
    let of_chats = [request_fields::MESSAGES.name, request_fields::STREAM_OPTIONS.name];
    let mut asked = parse(&fields.without(&of_chats), served)?.chat;
    let params = &mut asked.params;
    params.include_usage = include_usage(fields, params.stream, &mut params.warnings)?;
    Ok(asked)
}

/// What is told back as it was given, with defaults where it was not, also within `text` and `reasoning`.
fn echo(fields: &Fields, text: Option<Value>, reasoning: Option<Value>) -> Echo {
    let given = |name: &str, otherwise: Value| fields.value(name).unwrap_or(otherwise);
    let filled = |given: Option<Value>, mut all: Value| {
        for (name, value) in given.as_ref().and_then(Value::as_object).into_iter().flatten() {
            if !value.is_null() {
                all[name] = value.clone();
            }
        }
        all
    };
    Echo {
        instructions: given("instructions", Value::Null),
        max_output_tokens: given("max_output_tokens", Value::Null),
        max_tool_calls: given("max_tool_calls", Value::Null),
        metadata: given("metadata", json!({})),
        parallel_tool_calls: given("parallel_tool_calls", json!(true)),
        prompt_cache_key: given("prompt_cache_key", Value::Null),
        safety_identifier: given("safety_identifier", Value::Null),
        temperature: given("temperature", json!(1.0)),
        tool_choice: given("tool_choice", json!("auto")),
        tools: given("tools", json!([])),
        top_logprobs: given("top_logprobs", json!(0)),
        top_p: given("top_p", json!(1.0)),
        user: given("user", Value::Null),
        text: filled(text, json!({"format": {"type": "text"}})),
        reasoning: filled(reasoning, json!({"effort": null, "summary": null})),
    }
}

/// By which tier the request is served.
fn service_tier(fields: &Fields) -> &'static str {
    if fields.raw(&request_fields::PRIORITY).is_some() {
        return "default";
    }
    let raises = fields.limits().highest_priority < 0;
    match fields.value(request_fields::SERVICE_TIER.name).as_ref().and_then(Value::as_str) {
        Some("flex") => "flex",
        Some("priority") if raises => "priority",
        _ => "default",
    }
}

/// `text.format`.
fn grammar(text: &Value, warnings: &mut Warnings) -> Result<Option<constraints::Asked>, ApiError> {
    if !text["verbosity"].is_null() {
        warnings.no_effect("text.verbosity", "here");
    }
    let Some(format) = text.get("format").filter(|format| !format.is_null()) else { return Ok(None) };
    let source = constraints::response_text(&Place::path(NAMES.grammar), format.clone())?;
    Ok(source.map(|source| constraints::Asked { field: NAMES.grammar, source }))
}

/// Of `reasoning`: the effort, and whether a summary is asked for.
fn effort_and_summary(given: &Value) -> Result<(Option<Effort>, bool), ApiError> {
    let reasoning = Object::of(request_fields::REASONING.name.into(), given)?;
    let mut effort = None;
    if reasoning.get("effort").is_some() {
        let given = reasoning.text("effort")?;
        checked_name(&reasoning.at("effort"), given)?;
        effort = Some(Effort { field: "reasoning.effort", given: given.to_owned() });
    }
    let mut is_summary = false;
    for name in ["summary", "generate_summary"] {
        if reasoning.get(name).is_some() {
            // Some clients have a word for that they want none.
            is_summary |= reasoning.text(name)? != "none";
        }
    }
    Ok((effort, is_summary))
}

/// What `include` names.
#[derive(Default)]
struct Included {
    logprobs: bool,
    encrypted_reasoning: bool,
}

fn included(fields: &Fields, warnings: &mut Warnings) -> Result<Included, ApiError> {
    let given = fields.tree(&request_fields::INCLUDE)?.unwrap_or_default();
    let place = Place::from(INCLUDE);
    let mut included = Included::default();
    for (index, name) in given.as_array().into_iter().flatten().enumerate() {
        match name.as_str().filter(|name| INCLUDED.contains(name)) {
            Some(LOGPROBS) => included.logprobs = true,
            Some(ENCRYPTED_REASONING) => included.encrypted_reasoning = true,
            Some(name) => {
                let place = place.entry(index).to_string();
                warnings.no_effect(&place, &format!("here: there is no {name}"));
            }
            None => {
                let text = format!("must be one of {}", INCLUDED.join(", "));
                return Err(ApiError::invalid(place.entry(index), text).given(shortened(&name.to_string())));
            }
        }
    }
    Ok(included)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::http::chats::functions::{Function, functions};
    use crate::http::fields::tests::limits;

    pub fn parsed(more: Value) -> Result<ResponseRequest, ApiError> {
        let mut body = json!({"input": "Hi"});
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let (body, limits) = (body.to_string(), limits());
        parse(&Fields::parse(body.as_bytes(), &limits).expect("JSON"), "served")
    }

    pub fn refusal(more: Value) -> String {
        let text = more.to_string();
        parsed(more).err().unwrap_or_else(|| panic!("{text} was taken")).to_string()
    }

    /// As Cursor's agent asks.
    #[test]
    fn a_body_of_this_route_may_come_to_that_of_chats() {
        let body = json!({
            "model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false},
            "input": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            ],
            "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}],
            "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": false,
            "metadata": {"a": "b"},
        });
        let asked = |body: &Value| {
            let (body, limits) = (body.to_string(), limits());
            parse_as_chat(&Fields::parse(body.as_bytes(), &limits).expect("JSON"), "served")
        };
        let chat = asked(&body).expect("valid");
        assert!(chat.params.stream && chat.params.include_usage && chat.tools.is_some());
        assert_eq!((chat.chat.messages.len(), chat.params.warnings.lines()), (2, vec![]));
        assert_eq!(chat.effort.map(|effort| effort.given).as_deref(), Some("medium"));
        let mut silent = body;
        (silent["stream"], silent["stream_options"]["more"]) = (json!(false), json!(1));
        let lines = [
            "`stream_options.more` is not a field of this route and has no effect",
            "`stream_options` has no effect when the answer is not streamed",
        ];
        assert_eq!(asked(&silent).expect("valid").params.warnings.lines(), lines);
    }

    /// As Codex sends them.
    #[test]
    fn tools_that_run_on_the_server_are_left_out_by_name() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let tools = json!([
            function("shell"),
            {"type": "namespace", "name": "n", "tools": [function("f")]},
            {"type": "web_search", "external_web_access": false},
            {"type": "web_search_preview_2025_03_11"},
            {"type": "mcp", "server_label": "docs"},
        ]);
        let warned = |choice: &str| {
            let asked = parsed(json!({"tools": tools, "tool_choice": choice})).expect("valid").chat;
            assert!(asked.tools.is_some());
            asked.params.warnings.lines().join("; ")
        };
        let lines = "`tools[2]` has no effect here: this server runs no web_search; `tools[3]` has no effect here: this server \
                     runs no web_search_preview_2025_03_11; `tools[4]` has no effect here: this server runs no mcp";
        assert_eq!((warned("auto").as_str(), warned("required").as_str()), (lines, lines));
        let alone = json!({"tools": [{"type": "image_generation"}]});
        assert!(parsed(alone).expect("valid").chat.tools.is_none());
        let named = json!({"tools": tools, "tool_choice": {"type": "web_search"}});
        assert!(refusal(named).starts_with("`tool_choice` must be "));
        // Only its own versions.
        let other = refusal(json!({"tools": [{"type": "web_searcher"}]}));
        assert!(other.starts_with("`tools[0].type` must be "), "{other}");
    }

    /// What is said of a namespace is shown once.
    #[test]
    fn functions_of_a_namespace_are_shown_by_one_name() {
        let tools = json!([{"type": "namespace", "name": "n", "description": "All", "tools": [
            {"type": "function", "name": "f"}, {"type": "custom", "name": "g", "description": "Own"},
        ]}, {"type": "namespace", "name": "m", "description": "Both", "tools": [
            {"type": "function", "name": "f", "description": "One"},
        ]}]);
        let body = json!({"tools": tools}).to_string();
        let limits = limits();
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        let read = |tool: &Object| Function::read(tool, &Shape::RESPONSES);
        let functions = functions(&fields, &[], read).expect("valid");
        let shown = |function: &Function| {
            let shown = &function.shown["function"];
            assert_eq!(shown["name"], function.callable.name.as_str());
            json!([shown["name"], shown["description"]])
        };
        assert_eq!(
            functions.iter().map(shown).collect::<Vec<_>>(),
            [json!(["n__f", "All"]), json!(["n__g", "Own"]), json!(["m__f", "Both\n\nOne"])]
        );
    }

    #[test]
    fn fields_have_the_names_that_the_client_knows() {
        let format = |format: Value| json!({"tools": [{"type": "custom", "name": "f", "format": format}]});
        let namespace = |tools: Value| json!({"tools": [{"type": "namespace", "name": "n", "tools": tools}]});
        for (more, says) in [
            (json!({"max_output_tokens": 0}), "`max_output_tokens` must be a whole number >= 1"),
            (json!({"text": {"format": {"type": "xml"}}}), "`text.format.type` must be one of text"),
            (json!({"text": {"format": {"type": "json_schema"}}}), "`text.format.schema` must be an object"),
            (json!({"tools": [{"type": "function"}]}), "`tools[0].name` must be a string"),
            (
                json!({"tools": [{"type": "function", "name": "f", "parameters": 5}]}),
                "`tools[0].parameters` must be an",
            ),
            (
                json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}),
                "`tools[0].type` must be \"function\", \"custom\" or a \"namespace\" of these: this server runs no tools of its own",
            ),
            (
                json!({"tools": [{"type": "local_shell"}]}),
                "`tools[0].type` must be \"function\", \"custom\" or a \"namespace\" of these: the client runs this one",
            ),
            (namespace(json!(5)), "`tools[0].tools` must be a list of tools"),
            (
                namespace(json!([{"type": "function", "name": "f"}, {"type": "function", "name": "f"}])),
                "`tools[0].tools[1].name` is the same as another tool's",
            ),
            (
                namespace(json!([{"type": "namespace", "name": "n", "tools": []}])),
                "`tools[0].tools[0].type` must be \"function\"",
            ),
            (
                namespace(json!([{"type": "function", "name": "f".repeat(254)}])),
                "`tools[0].tools[0].name` must have at most 256 characters",
            ),
            (
                namespace(
                    (0..1025).map(|index| json!({"type": "function", "name": format!("f{index}")})).collect(),
                ),
                "`tools` must have at most 1024 entries. Given: 1025",
            ),
            (
                json!({"input": [{"type": "function_call", "call_id": "1", "namespace": 5, "name": "f", "arguments": "{}"}]}),
                "`input[0].namespace` must be a string",
            ),
            (format(json!({"type": "xml"})), "`tools[0].format.type` must be text or grammar. Given: xml"),
            (
                format(json!({"type": "grammar", "syntax": "ebnf", "definition": "x"})),
                "`tools[0].format.syntax` must be lark or regex. Given: ebnf",
            ),
            (
                format(json!({"type": "grammar", "syntax": "lark"})),
                "`tools[0].format.definition` must be a string",
            ),
            (json!({"reasoning": {"effort": 5}}), "`reasoning.effort` must be a string"),
            (json!({"reasoning": {"summary": 5}}), "`reasoning.summary` must be a string"),
            (json!({"metadata": 5}), "`metadata` must be an object. Given: 5"),
            (json!({"safety_identifier": 5}), "`safety_identifier` must be a string"),
            (json!({"truncation": "x"}), "`truncation` must be auto or disabled. Given: x"),
            (json!({"include": ["everything"]}), "`include[0]` must be one of message.output_text.logprobs"),
            (
                json!({"previous_response_id": "x"}),
                "`previous_response_id` is not supported: no answer is kept",
            ),
            (json!({"background": true}), "`background` is not supported"),
            (
                json!({"moderation": {"model": "m"}}),
                "`moderation` is not supported: texts are not judged here",
            ),
        ] {
            let refused = refusal(more);
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    #[test]
    fn the_tier_is_the_one_that_counts() {
        let tier = |more: Value| parsed(more).expect("valid").service_tier;
        assert_eq!(tier(json!({"service_tier": "flex"})), "flex");
        assert_eq!(tier(json!({"service_tier": "priority"})), "priority");
        assert_eq!(tier(json!({"service_tier": "flex", "priority": 0})), "default");
    }

    #[test]
    fn what_was_asked_is_told_back_with_its_defaults() {
        let told = |more: Value| {
            let echo = parsed(more).expect("valid").echo;
            (echo.text, echo.reasoning)
        };
        let (text, reasoning) =
            (json!({"format": {"type": "text"}}), json!({"effort": null, "summary": null}));
        assert_eq!(told(json!({})), (text.clone(), reasoning.clone()));
        assert_eq!(told(json!({"text": {"format": null}, "reasoning": {}})), (text, reasoning));
        assert_eq!(
            told(json!({"text": {"verbosity": "low"}, "reasoning": {"effort": "low"}})),
            (
                json!({"verbosity": "low", "format": {"type": "text"}}),
                json!({"effort": "low", "summary": null})
            )
        );
        let format = json!({"format": {"type": "json_object"}});
        assert_eq!(told(json!({"text": format})).0, format);
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let asked = parsed(json!({
            "store": true, "truncation": "auto", "top_logprobs": 2, "include": ["file_search_call.results", "reasoning.encrypted_content"],
            "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}, "n": 3,
            "safety_identifier": "u", "max_tool_calls": 2, "stream_options": {"include_obfuscation": false},
        }));
        let asked = asked.expect("valid");
        assert_eq!((&asked.echo.safety_identifier, &asked.echo.max_tool_calls), (&json!("u"), &json!(2)));
        let asked = asked.chat;
        let lines = asked.params.warnings.lines();
        for name in
            ["store", "truncation", "top_logprobs", "include[0]", "text.verbosity", "n", "max_tool_calls"]
        {
            assert!(lines.iter().any(|line| line.starts_with(&format!("`{name}`"))), "{name}: {lines:?}");
        }
        // These have one.
        for name in ["include[1]", "reasoning.summary"] {
            assert!(!lines.iter().any(|line| line.starts_with(&format!("`{name}`"))), "{name}: {lines:?}");
        }
        assert_eq!((asked.params.n, asked.top_logprobs), (1, 0));
        assert_eq!(asked.effort, Some(Effort { field: "reasoning.effort", given: "low".to_owned() }));
    }
}
