//! Anthropic's requests: their own fields and tools, read as the chat that asks for the same. Messages are read by `messages`.

use penstock_core::prompt::Chat;
use serde_json::{Value, json};

use crate::http::anthropic::client_tools::{self, ClientTool};
use crate::http::anthropic::messages;
use crate::http::chats::effort::{Effort, Thinking};
use crate::http::chats::functions::{self, Choice, Function, Shape};
use crate::http::chats::object::Object;
use crate::http::chats::request::ChatRequest;
use crate::http::chats::tools::Tools;
use crate::http::constraints::{self, Asked};
use crate::http::error::{ApiError, FieldNames, Place};
use crate::http::fields::{Fields, checked_name};
use crate::http::openai::params::GenerationParams;
use crate::http::request_fields;
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

pub const NAMES: FieldNames = FieldNames::MESSAGES;

/// Accepted, and named in no warning: they ask for nothing of the text.
const WITHOUT_EFFECT: [&str; 3] = ["service_tier", "betas", "cache_control"];

/// What asks for something that is nowhere here.
const REFUSED: [(&str, &str); 2] = [
    ("container", "there are no containers here, and no tools that run in them"),
    ("mcp_servers", "this server calls no other ones: send their tools as `tools`"),
];

/// What asks for nothing that could be missed in the text, and why.
const NAMED: [(&str, &str); 6] = [
    ("speed", "here: every answer comes as fast as it can"),
    ("inference_geo", "here: this server is in one place"),
    ("diagnostics", "here"),
    ("context_management", "here: a conversation is never shortened"),
    ("user_profile_id", "here: `metadata.user_id` says who asks"),
    ("workspace_id", "here"),
];

/// What a route asks of `max_tokens`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    Required,
    Optional,
}

/// Reads a request to `/v1/messages`, or one that counts its tokens.
pub fn parse(fields: &Fields, served: &str, needs: MaxTokens) -> Result<ChatRequest, ApiError> {
    let mut warnings = Warnings::default();
    let mut table = request_fields::anthropic_fields();
    let known = table.iter().map(|field| field.name);
    let known = known.chain(WITHOUT_EFFECT).chain(NAMED.map(|(name, _)| name));
    let known: Vec<&str> = known.collect();
    for (name, why) in REFUSED {
        if fields.value(name).is_some() {
            return Err(ApiError::invalid(name, format!("is not supported: {why}")));
        }
    }
    warnings.unknown(fields, "", known.iter().copied());
    for (name, why) in NAMED {
        if fields.value(name).is_some() {
            warnings.no_effect(name, why);
        }
    }
    // How LangChain.js spells "off" where nothing is set, as of `top_k`.
    if fields.value(request_fields::TOP_P.name).is_some_and(|top_p| top_p.as_f64() == Some(-1.0)) {
        table.retain(|field| field.name != request_fields::TOP_P.name);
    }
    let fields = fields.only(&table);
    let max_tokens = fields.small(&request_fields::MAX_TOKENS)?;
    if needs == MaxTokens::Required {
        fields.required(&request_fields::MAX_TOKENS, max_tokens)?;
    }
    let messages = messages::read(&fields, &mut warnings)?;
    let effort = effort(&fields)?;
    let thinking = thinking(&fields, &mut warnings)?;
    let params = GenerationParams {
        stop: fields.texts(&request_fields::STOP_SEQUENCES)?,
        user: user(&fields)?,
        grammar: output(&fields)?,
        ..GenerationParams::read(&fields, served, warnings)?
    };
    let (choice, is_single) = choice(&fields)?;
    let functions = functions::functions(&fields, &[], tool)?;
    if functions.is_empty() && matches!(choice, Choice::Required) {
        return Err(ApiError::invalid(request_fields::TOOL_CHOICE.name, "of type \"any\" needs `tools`"));
    }
    let tools = Tools::of(functions, choice, is_single)?;
    let chat = Chat { messages, ..Chat::default() };
    Ok(ChatRequest {
        params,
        chat,
        effort,
        thinking,
        tools,
        max_tokens,
        logprobs: false,
        top_logprobs: 0,
        names: NAMES,
    })
}

/// `metadata.user_id`.
fn user(fields: &Fields) -> Result<Option<String>, ApiError> {
    let metadata = fields.tree(&request_fields::ANTHROPIC_METADATA)?.unwrap_or_default();
    let user = &metadata["user_id"];
    if user.is_null() {
        return Ok(None);
    }
    let place = Place::from(request_fields::ANTHROPIC_METADATA.name).member("user_id");
    let name = user.as_str().ok_or_else(|| ApiError::invalid(&place, "must be a string"))?;
    checked_name(&place, name)?;
    Ok(Some(name.to_owned()))
}

/// `output_config.effort`.
fn effort(fields: &Fields) -> Result<Option<Effort>, ApiError> {
    const EFFORT: &str = "output_config.effort";
    let effort = fields.tree(&request_fields::OUTPUT_CONFIG)?.unwrap_or_default()["effort"].take();
    if effort.is_null() {
        return Ok(None);
    }
    let place = Place::path(EFFORT);
    let given = effort.as_str().ok_or_else(|| ApiError::invalid(&place, "must be a string"))?;
    checked_name(&place, given)?;
    Ok(Some(Effort { field: EFFORT, given: given.to_owned() }))
}

/// Of `thinking`.
fn thinking(fields: &Fields, warnings: &mut Warnings) -> Result<Option<Thinking>, ApiError> {
    const THINKING: &str = request_fields::THINKING.name;
    let Some(thinking) = fields.tree(&request_fields::THINKING)? else { return Ok(None) };
    let asked = match thinking["type"].as_str() {
        Some("enabled") => Thinking::Enabled,
        Some("adaptive") => Thinking::Adaptive,
        // Off, but for words between calls, which are told as thoughts: here they are text.
        Some("disabled" | "between_tools") => Thinking::Disabled,
        _ => {
            let error = ApiError::invalid(
                Place::from(THINKING).member("type"),
                "must be one of enabled, adaptive, disabled, between_tools",
            );
            return Err(error.given(shortened(&thinking["type"].to_string())));
        }
    };
    if thinking["display"].as_str().is_some_and(|display| display != "summarized") {
        warnings.no_effect("thinking.display", "here: reasoning is told as it is");
    }
    Ok(Some(asked))
}

/// `output_config.format`, or `output_format`, its older name.
fn output(fields: &Fields) -> Result<Option<Asked>, ApiError> {
    const CONFIG: &str = "output_config.format";
    const FORMAT: &str = request_fields::OUTPUT_FORMAT.name;
    let in_config = fields.tree(&request_fields::OUTPUT_CONFIG)?.unwrap_or_default()["format"].take();
    let (field, format) = match (in_config, fields.tree(&request_fields::OUTPUT_FORMAT)?) {
        (Value::Null, None) => return Ok(None),
        (Value::Null, Some(format)) => (FORMAT, format),
        (format, None) => (CONFIG, format),
        (_, Some(_)) => {
            return Err(ApiError::invalid(FORMAT, format!("and `{CONFIG}` must not both be given")));
        }
    };
    let source = constraints::message_output(&Place::path(field), format)?;
    Ok(source.map(|source| Asked { field, source }))
}

fn tool(tool: &Object) -> Result<Vec<Function>, ApiError> {
    let function = match tool.value("type") {
        Value::Null => custom(tool),
        Value::String(kind) if kind == "custom" => custom(tool),
        kind => match kind.as_str().and_then(ClientTool::of) {
            Some(own) => client_tool(tool, own),
            None => {
                let why = match kind.as_str().is_some_and(client_tools::shows_images) {
                    true => "the client runs this one, but images, which its results are, are not supported",
                    false => "this server runs no tools of its own",
                };
                let text = format!("must be \"custom\", or of a bash, text editor or memory tool: {why}");
                let error = ApiError::invalid(tool.at("type"), text);
                Err(error.given(shortened(&kind.to_string())))
            }
        },
    };
    function.map(|function| vec![function])
}

fn custom(tool: &Object) -> Result<Function, ApiError> {
    if tool.get("input_schema").is_none() {
        return Err(tool.wrong("input_schema", "must be an object, a JSON schema"));
    }
    Function::of(tool, &Shape::MESSAGES)
}

/// One that has its description and its schema by its type.
fn client_tool(tool: &Object, own: ClientTool) -> Result<Function, ApiError> {
    let name = tool.value("name");
    if name != own.name {
        let error = ApiError::invalid(tool.at("name"), format!("must be {:?} for this type", own.name));
        return Err(error.given(shortened(&name.to_string())));
    }
    let ClientTool { name, description, input_schema } = own;
    let whole = json!({"name": name, "description": description, "input_schema": input_schema,
                       "strict": tool.value("strict")});
    Function::of(&Object::of(tool.place.clone(), &whole)?, &Shape::MESSAGES)
}

/// `tool_choice`, and whether an answer may have one call at most.
fn choice(fields: &Fields) -> Result<(Choice, bool), ApiError> {
    const SINGLE: &str = "disable_parallel_tool_use";
    let Some(choice) = fields.tree(&request_fields::TOOL_CHOICE)? else { return Ok((Choice::Auto, false)) };
    let place = Place::from(request_fields::TOOL_CHOICE.name);
    let is_single = match &choice[SINGLE] {
        Value::Null => false,
        Value::Bool(is_single) => *is_single,
        other => {
            let error = ApiError::invalid(place.member(SINGLE), "must be true or false");
            return Err(error.given(shortened(&other.to_string())));
        }
    };
    let choice = match choice["type"].as_str() {
        Some("auto") => Choice::Auto,
        Some("any") => Choice::Required,
        Some("none") => Choice::None,
        Some("tool") => match choice["name"].as_str() {
            Some(name) => functions::chosen(name)?,
            None => return Err(ApiError::invalid(place.member("name"), "must be a string")),
        },
        _ => {
            let error = ApiError::invalid(place.member("type"), "must be one of auto, any, tool, none");
            return Err(error.given(shortened(&choice["type"].to_string())));
        }
    };
    Ok((choice, is_single))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    pub fn parsed(more: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let (body, limits) = (body.to_string(), limits());
        parse(&Fields::parse(body.as_bytes(), &limits).expect("JSON"), "served", MaxTokens::Required)
    }

    pub fn refusal(more: Value) -> String {
        let text = more.to_string();
        parsed(more).err().unwrap_or_else(|| panic!("{text} was taken")).to_string()
    }

    #[test]
    fn what_langchain_js_sends_where_nothing_is_set_is_off() {
        for (top_p, top_k) in [(json!(-1), json!(-1)), (json!(-1.0), json!(0))] {
            let asked = parsed(json!({"temperature": 1, "top_p": top_p, "top_k": top_k})).expect("valid");
            let sampling = &asked.params.sampling;
            assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (1.0, 1.0, 0));
            assert!(asked.params.warnings.is_empty());
        }
        for top_p in [json!(-0.5), json!(-2)] {
            assert!(refusal(json!({"top_p": top_p})).starts_with("`top_p` must be a number >= 0"));
        }
    }

    #[test]
    fn fields_have_the_names_that_the_client_knows() {
        let tool = json!({"name": "f", "input_schema": {"type": "object"}});
        for (more, says) in [
            (json!({"max_tokens": null}), "`max_tokens` is required"),
            (json!({"max_tokens": 0}), "`max_tokens` must be a whole number >= 1"),
            (json!({"stop_sequences": [""]}), "`stop_sequences` must not contain an empty string"),
            (json!({"stop_sequences": 5}), "`stop_sequences` must be a string or a list"),
            (json!({"tools": [{"name": "f"}]}), "`tools[0].input_schema` must be an object, a JSON schema"),
            (json!({"tools": [tool, tool]}), "`tools[1].name` is the same as another tool's"),
            (
                json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
                "`tools[0].type` must be \"custom\", or of a bash, text editor or memory tool: this server runs no tools of its own. \
                 Given: \"web_search_20250305\"",
            ),
            (
                json!({"tools": [{"type": "computer_20250124", "name": "computer"}]}),
                "`tools[0].type` must be \"custom\", or of a bash, text editor or memory tool: the client runs this one, but images",
            ),
            (json!({"tools": [{"type": 5}]}), "`tools[0].type` must be \"custom\""),
            (
                json!({"tools": [{"type": "bash_20250124", "name": "shell"}]}),
                "`tools[0].name` must be \"bash\" for this type. Given: \"shell\"",
            ),
            (
                json!({"tools": [{"type": "bash_20250124", "name": "bash", "strict": 5}]}),
                "`tools[0].strict` must be a boolean",
            ),
            (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "`tools[0].name` must be of letters"),
            (
                json!({"tools": [tool], "tool_choice": {"type": "tool"}}),
                "`tool_choice.name` must be a string",
            ),
            (
                json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "g"}}),
                "`tool_choice` names a tool",
            ),
            (
                json!({"tool_choice": {"type": "required"}}),
                "`tool_choice.type` must be one of auto, any, tool, none",
            ),
            (json!({"tool_choice": {"type": "any"}}), "`tool_choice` of type \"any\" needs `tools`"),
            (
                json!({"tools": [tool], "tool_choice": {"type": "auto", "disable_parallel_tool_use": "x"}}),
                "`tool_choice.disable_parallel_tool_use` must be true or false. Given: \"x\"",
            ),
            (json!({"thinking": {"type": "much"}}), "`thinking.type` must be one of"),
            (
                json!({"output_config": {"format": {"type": "regex"}}}),
                "`output_config.format.type` must be one of json_schema",
            ),
            (
                json!({"output_config": {"format": {"type": "json_schema"}}}),
                "`output_config.format.schema` must be an object",
            ),
            (
                json!({"output_format": {"type": "json_schema", "schema": 5}}),
                "`output_format.schema` must be an object",
            ),
            (
                json!({"output_config": {"format": {"type": "json_schema", "schema": {}}},
                       "output_format": {"type": "json_schema", "schema": {}}}),
                "`output_format` and `output_config.format` must not both be given",
            ),
            (json!({"metadata": {"user_id": 5}}), "`metadata.user_id` must be a string"),
            (json!({"output_config": {"effort": 5}}), "`output_config.effort` must be a string"),
            (json!({"container": "c"}), "`container` is not supported: there are no containers here"),
            (json!({"mcp_servers": []}), "`mcp_servers` is not supported"),
        ] {
            let refused = refusal(more);
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    /// With the members that each command takes, all of which the schema names.
    #[test]
    fn tools_that_anthropic_defines_take_what_its_models_know() {
        let edits = ["path", "view_range", "file_text", "old_str", "new_str", "insert_line"];
        let with = |more: &[&'static str]| [edits.as_slice(), more].concat();
        for (kind, name, commands, takes) in [
            ("bash_20241022", "bash", "", vec!["restart"]),
            ("bash_20250124", "bash", "", vec!["restart"]),
            (
                "text_editor_20241022",
                "str_replace_editor",
                "view create str_replace insert undo_edit",
                with(&[]),
            ),
            (
                "text_editor_20250124",
                "str_replace_editor",
                "view create str_replace insert undo_edit",
                with(&[]),
            ),
            (
                "text_editor_20250429",
                "str_replace_based_edit_tool",
                "view create str_replace insert",
                with(&[]),
            ),
            (
                "text_editor_20250728",
                "str_replace_based_edit_tool",
                "view create str_replace insert",
                with(&["insert_text"]),
            ),
            (
                "memory_20250818",
                "memory",
                "view create str_replace insert delete rename",
                with(&["insert_text", "old_path", "new_path"]),
            ),
        ] {
            let given = json!({"type": kind, "name": name, "cache_control": {"type": "ephemeral"}, "max_characters": 9});
            let body = json!({"tools": [given]});
            let limits = limits();
            let fields = Fields::parse(body.to_string().as_bytes(), &limits)
                .map(|fields| functions::functions(&fields, &[], tool));
            let functions = fields.expect("JSON").expect("valid");
            let [function] = &functions[..] else { panic!("{kind} is one function") };
            assert_eq!(function.callable.name, name);
            let schema = &function.callable.schema;
            assert_eq!(function.shown["function"]["parameters"], *schema);
            assert!(function.shown["function"]["description"].is_string());
            let named: Vec<&String> = schema["properties"].as_object().expect("an object").keys().collect();
            assert_eq!(named[0], "command", "{kind}");
            assert_eq!(named[1..], takes, "{kind}");
            let told = schema["properties"]["command"]["enum"].as_array().cloned().unwrap_or_default();
            let told: Vec<&str> = told.iter().filter_map(Value::as_str).collect();
            assert_eq!(told.join(" "), commands, "{kind}");
        }
    }

    #[test]
    fn fields_of_other_dialects_have_no_effect() {
        let asked = parsed(json!({"stop": "x", "n": 7, "response_format": {"type": "regex"}, "betas": []}));
        let params = asked.expect("valid").params;
        assert_eq!((params.n, params.stop.len(), params.grammar), (1, 0, None));
        assert_eq!(params.warnings.lines().len(), 3);
    }

    #[test]
    fn the_format_of_the_output_has_two_names() {
        let format = json!({"type": "json_schema", "schema": {}});
        for (more, field) in [
            (json!({"output_config": {"format": format}, "output_format": null}), "output_config.format"),
            (json!({"output_config": null, "output_format": format}), "output_format"),
            (json!({"output_config": {"effort": "low"}, "output_format": format}), "output_format"),
            (json!({"output_config": {"format": null}, "output_format": format}), "output_format"),
        ] {
            let asked = parsed(more).expect("valid").params.grammar.expect("a grammar");
            assert_eq!(asked.field, field);
        }
    }

    #[test]
    fn what_a_server_of_one_place_has_not_is_named() {
        let asked = parsed(json!({
            "speed": "fast", "inference_geo": "us", "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"},
        }));
        let asked = asked.expect("valid");
        let lines = asked.params.warnings.lines();
        let named: Vec<&str> = lines.iter().filter_map(|line| line.split('`').nth(1)).collect();
        assert_eq!(named, ["speed", "inference_geo", "thinking.display"]);
        assert_eq!(asked.effort, Some(Effort { field: "output_config.effort", given: "low".to_owned() }));
        assert_eq!(asked.thinking, Some(Thinking::Adaptive));
        for (kind, thinking) in [
            ("enabled", Thinking::Enabled),
            ("disabled", Thinking::Disabled),
            ("between_tools", Thinking::Disabled),
        ] {
            let asked = parsed(json!({"thinking": {"type": kind, "budget_tokens": 1024}})).expect("valid");
            assert_eq!(asked.thinking, Some(thinking));
        }
        assert_eq!(parsed(json!({})).expect("valid").thinking, None);
    }
}
