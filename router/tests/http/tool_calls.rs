//! Calls of tools in every format, from request to answer: what a template and a format make of a prompt, a grammar, the text of a
//! model that knows neither, and the call that a client gets, whole and streamed; then the tool's result goes back. Once with
//! markers that are ordinary text, once with markers that are special tokens, as most models have them.

use penstock_core::worker::mock::{Dictation, MockConfig};
use penstock_output::{of_template, tool_formats};
use serde_json::{Value, json};

use crate::served::{END, Served, Setup, Vocabulary};

const CHAT: &str = "/v1/chat/completions";

/// Names that models' tokenizers have as special tokens. A format's are those that its markers are made of.
const SPECIAL: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|call|>",
    "<|end|>",
    "<|message_sep|>\n\n",
    "<|role_sep|>\n",
    "<|im_end|>",
    "<|function_call|>",
    "<|message_model|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "｜DSML｜",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
    "]<]minimax[>[",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<tool_sep>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<longcat_tool_call>",
    "</longcat_tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call_start|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|calls|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|action_start|>",
    "<|action_end|>",
    "<|plugin|>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|python_tag|>",
    "<think>",
    "</think>",
];

/// A template for tests of models that have one here, and else the text that tells the format.
fn template(format: &str) -> String {
    macro_rules! family {
        ($name:literal) => {
            include_str!(concat!("../../../integration-tests/chat_templates/", $name, ".jinja")).to_owned()
        };
    }
    let sign = match format {
        "harmony" => return family!("gpt_oss"),
        "qwen3_coder" => return family!("qwen3_coder"),
        "glm45" => return family!("glm4_5"),
        "command_r" => return family!("command_r_tools"),
        "mistral" => return family!("mistral_v3"),
        "nemotron" => return family!("nemotron"),
        "phi4_mini" => return family!("phi4_mini"),
        "granite" => return family!("granite3"),
        "hermes" => return family!("qwen2_5"),
        "pythonic" => return family!("llama3_3_pythonic"),
        "llama3_json" => return family!("llama3_1"),
        "inkling" => "<|content_thinking|><|message_model|>",
        "gigachat3" => "function call <|role_sep|>",
        "hyperclovax" => "-> tool/function_call",
        "kimi_k3" => "<|open|>tools<|sep|>",
        "kimi_k2" => "<|tool_calls_section_begin|>",
        "deepseek_v4" => "<｜DSML｜tool_calls>",
        "deepseek_v32" => "<｜DSML｜function_calls>",
        "deepseek_v3" => "<｜tool▁calls▁begin｜> ```json",
        "deepseek_v31" => "<｜tool▁calls▁begin｜>",
        "step3" => "<steptml:invoke",
        "minimax_m3" => "]<]minimax[>[",
        "minimax_m2" => "<minimax:tool_call>",
        "mimo" => "<parameter=example_parameter_1>value_1</parameter>",
        "seed_oss" => "<seed:tool_call>",
        "solar_open" => "<|tool_call:begin|>",
        "hunyuan_v3" => "<tool_sep> <arg_key>",
        "longcat" => "<longcat_tool_call>",
        "gemma4" => "<|tool_call>",
        "functiongemma" => "<start_function_call>",
        "lfm2" => "<|tool_call_start|>",
        "olmo3" => "<function_calls>",
        "command_a" => "<|START_ACTION|>",
        "internlm2" => "<|action_start|><|plugin|>",
        "apertus" => "<|tools_prefix|>",
        "granite_20b_fc" => "<function_call>",
        "jamba" => "<tool_calls>",
        "json" => "",
        other => panic!("no template for {other}"),
    };
    format!(
        "{{# {sign} #}}{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}\
         {{% for m in messages %}}<|turn|>{{{{ m.role }}}} {{{{ m.content or '' }}}}\
         {{% for c in m.tool_calls or [] %}}({{{{ c.function.name }}}} {{{{ c.function.arguments | tojson }}}}){{% endfor %}}\
         {{% endfor %}}<|turn|>assistant "
    )
}

struct Family {
    served: Served,
    vocabulary: Vocabulary,
    dictation: Dictation,
    format: &'static str,
}

impl Family {
    async fn of(format: &'static str, is_special: bool, flags: &[&'static str]) -> Self {
        let template = template(format);
        let (chosen, reasoning) = of_template(&template);
        // A template without a sign is no format's: then flags choose.
        assert_eq!(chosen.map_or("json", |format| format.name), format);
        let in_markers = |name: &&&str| {
            chosen.is_some_and(|format| format.has_in_markers(name))
                || reasoning.is_some_and(|format| format.has_in_markers(name))
        };
        let ends = chosen.map_or(&[][..], |format| format.stop_tokens);
        let special = SPECIAL.iter().filter(in_markers).chain(ends).copied();
        let special: Vec<&str> = if is_special { special.collect() } else { Vec::new() };
        let vocabulary = || Vocabulary::Bytes(special.clone());
        let dictation = Dictation::default();
        let mock = MockConfig {
            vocab_size: vocabulary().size(),
            eos_ids: vec![END],
            max_positions: 1 << 15,
            pages: 1 << 12,
            dictation: dictation.clone(),
            ..MockConfig::default()
        };
        let parser = ["--tool-call-parser", if chosen.is_some() { "auto" } else { "json" }];
        // Four formats at once on a machine that does other things as well.
        let patient = ["--grammar-timeout-ms", "60000"];
        let served = Served::ready(Setup {
            vocabulary: vocabulary(),
            mock,
            flags: [flags, &parser, &patient].concat(),
            chat_template: template.leak(),
            ..Setup::default()
        });
        Self { served: served.await, vocabulary: vocabulary(), dictation, format }
    }

    /// The model's next texts.
    fn says(&self, text: &str) {
        let mut tokens = self.vocabulary.tokens(text);
        tokens.push(END);
        self.dictation.say(tokens);
    }

    /// The prompt.
    async fn shown(&self, messages: &Value) -> String {
        let body = json!({"messages": messages, "tools": tools()});
        let text = self.served.post("/chat_tokenize", body).await.good()["templated_text"].clone();
        text.as_str().expect("a text").to_owned()
    }

    /// The one choice of an answer, which is the same streamed.
    async fn ask(&self, more: Value) -> Value {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Paris?"}], "tools": tools(), "max_tokens": 1500, "seed": 3,
            "temperature": 1, "frequency_penalty": 0.1, "logprobs": true
        });
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        let mut whole = self.served.post(CHAT, body.clone()).await.good()["choices"][0].clone();
        body["stream"] = json!(true);
        let chunks = self.served.events(CHAT, body).await;
        let streamed = put_together(&chunks);
        let calls = |choice: &Value| -> Vec<(Value, Value)> {
            let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            calls.iter().map(|call| (call["function"]["name"].clone(), arguments(call))).collect()
        };
        let text = |choice: &Value, key: &str| choice["message"][key].as_str().unwrap_or_default().to_owned();
        for key in ["content", "reasoning_content"] {
            assert_eq!(text(&whole, key), text(&streamed, key), "{}", self.format);
        }
        assert_eq!(calls(&whole), calls(&streamed), "{}", self.format);
        assert_eq!(whole["finish_reason"], streamed["finish_reason"], "{}", self.format);
        let tokens = whole["logprobs"]["content"].as_array().expect("log probabilities");
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| token["bytes"].as_array().expect("bytes"))
            .map(|byte| byte.as_u64().expect("a byte") as u8)
            .collect();
        whole["raw"] = json!(String::from_utf8(bytes).expect("UTF-8"));
        whole
    }
}

fn tools() -> Value {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "description": "Does it", "parameters":
            {"type": "object", "properties": properties, "required": required, "additionalProperties": false}}})
    };
    let forecast = json!({"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
               "exact": {"type": "boolean"}});
    json!([
        tool("get_forecast", forecast, json!(["city", "days"])),
        tool("add", json!({"a": {"type": "integer", "minimum": 0, "maximum": 9}}), json!(["a"])),
    ])
}

fn arguments(call: &Value) -> Value {
    let text = call["function"]["arguments"].as_str().expect("a text");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {call}"))
}

fn is_right(call: &Value) -> bool {
    let given = arguments(call);
    let keys: Vec<&String> = given.as_object().expect("an object").keys().collect();
    match call["function"]["name"].as_str() {
        Some("get_forecast") => {
            ["Paris", "Oslo"].iter().any(|city| given["city"] == *city)
                && (1..=9).any(|days| given["days"] == days)
                && given.get("exact").is_none_or(Value::is_boolean)
                && keys.iter().all(|key| ["city", "days", "exact"].contains(&key.as_str()))
        }
        Some("add") => (0..=9).any(|a| given["a"] == a) && keys == ["a"],
        _ => false,
    }
}

/// The choice that a stream's chunks are, as OpenAI's clients make it.
fn put_together(chunks: &[Value]) -> Value {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::<Value>::new());
    let mut reason = Value::Null;
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().expect("a number") as usize;
            if index == calls.len() {
                assert!(part["id"].is_string() && part["function"]["name"].is_string(), "{part}");
                calls.push(json!({"function": {"name": part["function"]["name"], "arguments": ""}}));
            }
            let so_far = calls[index]["function"]["arguments"].as_str().expect("a text");
            let more = part["function"]["arguments"].as_str().expect("a text");
            calls[index]["function"]["arguments"] = json!(format!("{so_far}{more}"));
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    json!({"message": {"content": content, "reasoning_content": reasoning, "tool_calls": calls},
           "finish_reason": reason})
}

/// However a client says that a function takes none, or TGI's clients what it takes.
#[tokio::test]
async fn earlier_calls_have_arguments() {
    let template = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for name, value in c.function.arguments | items %}\
                    {{ name }}={{ value }} {% endfor %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    let served = Served::ready(Setup { chat_template: template, ..Setup::default() }).await;
    let call = |function: Value| json!({"id": "0", "type": "function", "function": function});
    for (function, shown) in [
        (json!({"name": "f"}), "{}"),
        (json!({"name": "f", "arguments": null}), "{}"),
        (json!({"name": "f", "arguments": ""}), "{}"),
        (json!({"name": "f", "parameters": null}), "{}"),
        (json!({"name": "f", "parameters": {"a": 1}}), "a=1 {\"a\": 1}"),
        (json!({"name": "f", "arguments": "{\"a\": 2}", "parameters": {"a": 1}}), "a=2 {\"a\": 2}"),
    ] {
        let messages = json!([{"role": "assistant", "tool_calls": [call(function.clone())]}]);
        let text = served.post("/chat_tokenize", json!({"messages": messages})).await.good();
        assert_eq!(text["templated_text"], shown, "{function}");
    }
    let wrong = json!([{"role": "assistant", "tool_calls": [call(json!({"name": "f", "parameters": 5}))]}]);
    let answer = served.post(CHAT, json!({"messages": wrong})).await;
    let says = "`messages[0].tool_calls[0].function.parameters` must be a string or an object";
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["message"]), (422, &json!(says)));
    // The other dialects' too.
    let item = json!({"type": "function_call", "call_id": "0", "name": "f", "arguments": ""});
    let asked = json!({"input": [{"role": "user", "content": "x"}, item], "max_output_tokens": 2});
    let answer = served.post("/v1/responses", asked).await.good();
    assert_eq!(answer["usage"]["input_tokens"], 2);
}

/// A session has what its agent's tools returned in each request: nobody can take a screenshot out of it.
#[tokio::test]
async fn what_a_tool_returned_that_is_no_text_is_told_in_its_place() {
    let by_parts = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}\
                    {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";
    let by_text = "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}\
                   {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";
    let told = |noun: &str| {
        format!("[The tool returned {noun} here, which cannot be shown to you: you read only text.]")
    };
    let warned = |place: &str| {
        format!(
            "`{place}` has no effect here: only text is supported, and the model is told that a tool returned an image"
        )
    };
    let call = json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]});
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
    let chat = |role: &str, content: Value| {
        let last = json!({"role": role, "tool_call_id": "1", "content": content});
        json!({"messages": [{"role": "user", "content": "x"}, call, last], "max_tokens": 2})
    };
    for template in [by_parts, by_text] {
        let served = Served::ready(Setup { chat_template: template, ..Setup::default() }).await;
        let shows = |parts: Value| {
            let served = &served;
            let body = chat("tool", parts);
            async move { served.post("/chat_tokenize", body).await.good() }
        };
        let shown = shows(json!([{"type": "text", "text": "A"}, image])).await;
        assert_eq!(shown["templated_text"], format!("user:x;assistant:f{{}};tool:A{};", told("an image")));
        assert_eq!(shown["warnings"], json!([warned("messages[2].content[1]")]));
        let others =
            shows(json!([{"type": "file", "file": {}}, {"type": "input_audio", "input_audio": {}}])).await;
        let both = told("a file") + &told("a sound recording");
        assert_eq!(others["templated_text"], format!("user:x;assistant:f{{}};tool:{both};"));
        assert_eq!(shows(json!([{"type": "text", "text": "A"}])).await.get("warnings"), None);
        for (role, part, kind) in
            [("user", &image, "image_url"), ("tool", &json!({"type": "image"}), "image")]
        {
            let refused = served.post(CHAT, chat(role, json!([part]))).await;
            let says =
                format!("`messages[2].content[0]` of type \"{kind}\" is not supported yet: only text is");
            assert_eq!((refused.status.as_u16(), &refused.json()["error"]["message"]), (422, &json!(says)));
        }
    }
    let served = Served::ready(Setup { chat_template: by_text, ..Setup::default() }).await;
    let messages = |data: &str| {
        let image =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let called = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": [image]});
        json!({"max_tokens": 2, "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [called]},
            {"role": "user", "content": [result]},
        ]})
    };
    let warnings = json!([warned("messages[2].content[0].content[0]")]);
    // How large it is makes no difference to the prompt.
    for data in ["iVBORw0KGgo=", &"A".repeat(100_000)] {
        let counted = served.post("/v1/messages/count_tokens", messages(data)).await.good();
        let answer = served.post("/v1/messages", messages(data)).await.good();
        assert_eq!((&counted["warnings"], &answer["warnings"]), (&warnings, &warnings));
        let usage = &answer["usage"];
        let [new, cached] =
            ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().expect("a number"));
        assert_eq!(counted["input_tokens"], new + cached);
        let text = format!("user:x;assistant:f{{}};tool:{};", told("an image"));
        let listed =
            served.post("/tokenize", json!({"inputs": text, "add_special_tokens": false})).await.good();
        assert_eq!(listed.as_array().map(Vec::len), Some((new + cached) as usize));
    }
    let strict = Setup { chat_template: by_text, flags: vec!["--strict-requests"], ..Setup::default() };
    let refused = Served::ready(strict).await.post(CHAT, chat("tool", json!([image]))).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (422, &json!("messages[2].content[0]"))
    );
}

/// OpenAI's results are texts alone, so Goose and Agno put the pictures of one into a message of the user behind it.
#[tokio::test]
async fn a_picture_behind_a_result_is_told_as_the_tools() {
    let template = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}\
                    {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";
    let served = Served::ready(Setup { chat_template: template, ..Setup::default() }).await;
    let told = "[The tool returned an image here, which cannot be shown to you: you read only text.]";
    let user = |content: Value| json!({"role": "user", "content": content});
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
    let note = json!({"type": "text", "text": "Take note. "});
    let call = json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "See the next."});
    let answer = json!({"role": "assistant", "content": "A cat."});
    let before = "user:x;assistant:f{};tool:See the next.;";
    for (behind, place, shown) in [
        (vec![user(json!([image]))], "messages[3].content[0]", format!("user:{told};")),
        (vec![user(json!([note, image]))], "messages[3].content[1]", format!("user:Take note. {told};")),
        (
            vec![user(json!("Take note.")), user(json!([image])), answer.clone(), user(json!("y"))],
            "messages[4].content[0]",
            format!("user:Take note.;user:{told};assistant:A cat.;user:y;"),
        ),
    ] {
        let messages = [vec![user(json!("x")), call.clone(), result.clone()], behind].concat();
        let asked = json!({"messages": messages, "max_tokens": 2});
        let text = served.post("/chat_tokenize", json!({"messages": messages})).await.good();
        assert_eq!(text["templated_text"], format!("{before}{shown}"));
        let warnings = served.post(CHAT, asked).await.good()["warnings"].clone();
        let says = format!("`{place}` has no effect here: only text is supported, and the model is told");
        assert!(warnings[0].as_str().is_some_and(|line| line.starts_with(&says)), "{warnings}");
    }
    // What the user shows later on, or the system, is no tool's.
    for (behind, place) in [
        (vec![answer, user(json!([image]))], "messages[4].content[0]"),
        (vec![json!({"role": "system", "content": [image]})], "messages[3].content[0]"),
    ] {
        let messages = [vec![user(json!("x")), call.clone(), result.clone()], behind].concat();
        let refused = served.post(CHAT, json!({"messages": messages})).await;
        let says = format!("`{place}` of type \"image_url\" is not supported yet: only text is");
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["message"]), (422, &json!(says)));
    }
}

/// As clients of OpenAI's responses send the tools of MCP servers. The model knows each by one name.
#[tokio::test]
async fn a_function_of_a_namespace_is_called_as_its_client_calls_it() {
    const PATH: &str = "/v1/responses";
    let family = Family::of("hermes", false, &[]).await;
    let search = json!({"type": "function", "name": "search", "description": "Finds it", "parameters":
        {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}});
    let note = json!({"type": "custom", "name": "note"});
    let tools = json!([
        {"type": "namespace", "name": "mcp__docs", "description": "The library", "tools": [search, note]},
        {"type": "namespace", "name": "mcp__web__", "tools": [search]},
        search,
    ]);
    let body = |more: Value| {
        let mut body = json!({"input": "Find the sea.", "tools": tools, "max_output_tokens": 400, "frequency_penalty": 0.1});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        body
    };
    let calls = |output: &Value| -> Vec<Value> {
        let items = output.as_array().expect("items").iter();
        let told = |item: &Value| {
            json!([item["type"], item["namespace"], item["name"], item["arguments"], item["input"]])
        };
        items.map(told).collect()
    };
    family.says(
        "<tool_call>\n{\"name\": \"mcp__docs__search\", \"arguments\": {\"q\": \"sea\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"mcp__docs__note\", \"arguments\": {\"input\": \"x = 1\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"mcp__web__search\", \"arguments\": {\"q\": \"sky\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"search\", \"arguments\": {\"q\": \"air\"}}\n</tool_call>",
    );
    let expected = [
        json!(["function_call", "mcp__docs", "search", "{\"q\": \"sea\"}", null]),
        json!(["custom_tool_call", "mcp__docs", "note", null, "x = 1"]),
        json!(["function_call", "mcp__web__", "search", "{\"q\": \"sky\"}", null]),
        json!(["function_call", null, "search", "{\"q\": \"air\"}", null]),
    ];
    let whole = family.served.post(PATH, body(json!({}))).await.good();
    assert_eq!(calls(&whole["output"]), expected, "{whole}");
    assert_eq!(whole["tools"], tools);
    let stream = family.served.post(PATH, body(json!({"stream": true}))).await;
    let lines = std::str::from_utf8(&stream.body).expect("UTF-8").lines();
    let data = lines.filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
    let last = of("response.completed").next().expect("the last event");
    assert_eq!(calls(&last["response"]["output"]), expected);
    for kind in ["response.output_item.added", "response.output_item.done"] {
        let items: Vec<Value> =
            of(kind).map(|event| json!([event["item"]["namespace"], event["item"]["name"]])).collect();
        let named: Vec<Value> = expected.iter().map(|call| json!([call[1], call[2]])).collect();
        assert_eq!(items, named, "{kind}");
    }
    assert!(of("response.function_call_arguments.done").all(|event| event["name"] == "search"));

    for (choice, shown) in [
        (json!({"type": "custom", "name": "note"}), json!(["mcp__docs", "note"])),
        (json!({"type": "function", "name": "mcp__web__search"}), json!(["mcp__web__", "search"])),
        (json!({"type": "function", "name": "search"}), json!([null, "search"])),
    ] {
        let answer = family.served.post(PATH, body(json!({"tool_choice": choice}))).await.good();
        let item = &answer["output"][0];
        assert_eq!(json!([item["namespace"], item["name"]]), shown, "{answer}");
    }
}

/// As Codex sends all tools to models that it knows to be OpenAI's, which is what it asks for unless told otherwise; and what it has
/// of a session that another server began.
#[tokio::test]
async fn tools_among_the_items_are_called_as_others_are() {
    const PATH: &str = "/v1/responses";
    let family = Family::of("hermes", false, &[]).await;
    let exec = json!({"type": "custom", "name": "exec", "description": "Runs it"});
    let tools = json!([{"type": "namespace", "name": "functions", "description": "", "tools": [exec]}]);
    let item = json!({"type": "additional_tools", "role": "developer", "id": "at_1", "tools": tools});
    let input = json!([
        item,
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAAB"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List it."}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        item,
    ]);
    let body = json!({"input": input, "max_output_tokens": 400, "frequency_penalty": 0.1});
    let call =
        "<tool_call>\n{\"name\": \"functions__exec\", \"arguments\": {\"input\": \"ls -l\"}}\n</tool_call>";
    family.says(call);
    let answer = family.served.post(PATH, body).await.good();
    let call = &answer["output"][0];
    assert_eq!(
        json!([call["type"], call["namespace"], call["name"], call["input"]]),
        json!(["custom_tool_call", "functions", "exec", "ls -l"]),
        "{answer}"
    );
    let warnings = answer["warnings"].as_array().expect("two lines");
    for (line, place) in warnings.iter().zip(["`input[1]` has no effect", "`input[3]` has no effect"]) {
        assert!(line.as_str().is_some_and(|line| line.starts_with(place)), "{answer}");
    }
    assert_eq!(warnings.len(), 2);
}

/// Cursor's agent sends the body of a response to the address of chats, and reads the answer of a chat.
#[tokio::test]
async fn what_is_asked_as_a_response_is_answered_as_a_chat() {
    let family = Family::of("hermes", false, &[]).await;
    let path = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tools = json!([
        {"type": "function", "name": "Read", "description": "Reads a file", "parameters": path},
        {"type": "custom", "name": "ApplyPatch", "description": "Edits files"},
    ]);
    let input = json!([
        {"role": "system", "content": "You edit."},
        {"role": "user", "content": [{"type": "input_text", "text": "Edit a."}]},
        {"type": "function_call", "call_id": "call_1", "name": "Read", "arguments": "{\"path\": \"a\"}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "x = 0"},
    ]);
    let body = |more: Value| {
        let mut body = json!({"messages": [], "input": input, "tools": tools, "max_output_tokens": 400, "frequency_penalty": 0.1});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        body
    };
    family.says(
        "<tool_call>\n{\"name\": \"Read\", \"arguments\": {\"path\": \"b\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"ApplyPatch\", \"arguments\": {\"input\": \"x = 1\"}}\n</tool_call>",
    );
    let whole = family.served.post(CHAT, body(json!({}))).await.good();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&whole["object"], &choice["finish_reason"]),
        (&json!("chat.completion"), &json!("tool_calls"))
    );
    let patch = json!({"name": "ApplyPatch", "input": "x = 1"});
    let told = |call: &Value| json!([call["type"], call["function"]["name"], call["custom"]]);
    let calls: Vec<Value> =
        choice["message"]["tool_calls"].as_array().expect("calls").iter().map(told).collect();
    assert_eq!(calls, [json!(["function", "Read", null]), json!(["custom", null, patch])]);
    assert!(whole.get("warnings").is_none(), "{whole}");

    let options = json!({"include_usage": true, "include_obfuscation": false});
    let chunks = family.served.events(CHAT, body(json!({"stream": true, "stream_options": options}))).await;
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk.get("warnings").is_none())
    );
    let parts = chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"));
    let begun: Vec<Value> = parts.filter(|part| part["id"].is_string()).map(told).collect();
    assert_eq!(begun, calls);
    assert_eq!(chunks.last().expect("the usage")["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);

    // A chat is one, whatever else it has, and nothing is none.
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 1});
    let warnings = json!(["`input` is not a field of this route and has no effect"]);
    assert_eq!(family.served.post(CHAT, chat).await.good()["warnings"], warnings);
    let refused = family.served.post(CHAT, json!({"messages": []})).await;
    assert_eq!(refused.json()["error"]["message"], "`messages` must have at least one message");
}

/// As Haystack sends an answer back, and as ours come that have words behind a call.
#[tokio::test]
async fn a_text_behind_a_call_does_not_part_the_call_from_its_result() {
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let input = json!([
        said("user", "Paris?"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "1", "name": "get_forecast", "arguments": "{\"city\": \"Paris\"}"},
        said("assistant", "I look."),
        {"type": "function_call_output", "call_id": "1", "output": "21"},
        said("assistant", "It is 21."),
        said("user", "Oslo?"),
    ]);
    // They refuse a result without a call before it, or roles that take no turns.
    for template in [
        include_str!("../../../integration-tests/chat_templates/gpt_oss.jinja"),
        include_str!("../../../integration-tests/chat_templates/gemma3.jinja"),
        include_str!("../../../integration-tests/chat_templates/mistral_v3.jinja"),
    ] {
        let served = Served::ready(Setup { chat_template: template, ..Setup::default() }).await;
        for until in [5, 7] {
            let input = &input.as_array().expect("items")[..until];
            let body = json!({"input": input, "max_output_tokens": 2});
            served.post("/v1/responses", body).await.good();
        }
    }
}

/// As Codex searches for the tools of MCP servers, which are in no request until they are found.
#[tokio::test]
async fn tools_that_a_client_has_searched_for_are_called() {
    const PATH: &str = "/v1/responses";
    let family = Family::of("hermes", false, &[]).await;
    let query = json!({"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "number"}},
        "required": ["query"], "additionalProperties": false});
    let search = json!({"type": "tool_search", "execution": "client", "description": "Finds tools", "parameters": query});
    let user = json!({"role": "user", "content": "Find the sea."});
    let body = |input: Value, more: Value| {
        let mut body =
            json!({"input": input, "tools": [search], "max_output_tokens": 400, "frequency_penalty": 0.1});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        body
    };
    family.says(
        "<tool_call>\n{\"name\": \"tool_search\", \"arguments\": {\"query\": \"sea\", \"limit\": 8.0}}\n</tool_call>",
    );
    let whole = family.served.post(PATH, body(json!([user]), json!({}))).await.good();
    assert!(whole.get("warnings").is_none(), "{whole}");
    let call = &whole["output"][0];
    let of = |call: &Value| json!([call["type"], call["execution"], call["status"], call["arguments"]]);
    let expected = json!(["tool_search_call", "client", "completed", {"query": "sea", "limit": 8}]);
    assert_eq!(of(call), expected, "{whole}");
    let stream = family.served.post(PATH, body(json!([user]), json!({"stream": true}))).await;
    let lines = std::str::from_utf8(&stream.body).expect("UTF-8").lines();
    let data = lines.filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[2..4], ["response.output_item.added", "response.output_item.done"]);
    assert_eq!((kinds.len(), of(&events[3]["item"])), (5, expected));
    let cut = family.served.post(PATH, body(json!([user]), json!({"max_output_tokens": 60}))).await.good();
    assert_eq!(of(&cut["output"][0]), json!(["tool_search_call", "client", "incomplete", {}]), "{cut}");

    let function = json!({"type": "function", "name": "search", "defer_loading": true, "strict": false,
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}});
    let found = json!([{"type": "namespace", "name": "mcp__docs", "description": "The library", "tools": [function]}]);
    let output = json!({"type": "tool_search_output", "call_id": call["call_id"], "status": "completed", "execution": "client",
        "tools": found});
    family.says(
        "<tool_call>\n{\"name\": \"mcp__docs__search\", \"arguments\": {\"q\": \"sea\"}}\n</tool_call>",
    );
    let next = family.served.post(PATH, body(json!([user, call, output]), json!({}))).await.good();
    let item = &next["output"][0];
    assert_eq!(
        json!([item["type"], item["namespace"], item["name"], item["arguments"]]),
        json!(["function_call", "mcp__docs", "search", "{\"q\": \"sea\"}"]),
        "{next}"
    );
    assert!(next.get("warnings").is_none(), "{next}");
}

/// Which a request names by type alone.
#[tokio::test]
async fn tools_that_anthropic_defines_are_called_with_their_own_input() {
    let family = Family::of("hermes", false, &[]).await;
    let tools = json!([
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
        {"type": "memory_20250818", "name": "memory"},
    ]);
    for (name, commands) in [
        ("bash", vec![]),
        ("str_replace_based_edit_tool", vec!["view", "create", "str_replace", "insert"]),
        ("memory", vec!["view", "create", "str_replace", "insert", "delete", "rename"]),
    ] {
        let body = json!({
            "messages": [{"role": "user", "content": "Look."}], "tools": tools, "max_tokens": 1500, "temperature": 1,
            "seed": 3, "tool_choice": {"type": "tool", "name": name}
        });
        let answer = family.served.post("/v1/messages", body).await.good();
        let [call] = &answer["content"].as_array().expect("blocks")[..] else { panic!("{answer}") };
        assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!(name)));
        let command = &call["input"]["command"];
        match commands.is_empty() {
            true => assert!(command.is_null() || command.is_string(), "{call}"),
            false => assert!(commands.iter().any(|known| command == known), "{call}"),
        }
    }
}

/// Kimi's templates read a name and a number.
#[tokio::test]
async fn numbered_ids_of_several_choices_differ() {
    let family = Family::of("kimi_k2", true, &[]).await;
    family.says(
        "<|tool_calls_section_begin|>\
         <|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>\
         <|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{\"a\": 2}<|tool_call_end|>\
         <|tool_calls_section_end|>",
    );
    let messages = json!([
        {"role": "user", "content": "Paris?"},
        {"role": "assistant", "tool_calls": [{"id": "functions.add:0", "type": "function", "function": {"name": "add"}}]},
        {"role": "tool", "tool_call_id": "functions.add:0", "content": "4"},
    ]);
    let ids = |choice: &Value, key: &str| -> Vec<(u64, String)> {
        let index = choice["index"].as_u64().expect("a number");
        let calls = choice[key]["tool_calls"].as_array().into_iter().flatten();
        calls.filter_map(|call| call["id"].as_str()).map(|id| (index, id.to_owned())).collect()
    };
    for (n, after) in [(1, &[(0, "1"), (0, "2")][..]), (2, &[(0, "1"), (0, "2"), (1, "1001"), (1, "1002")])] {
        // The penalty has the mock say what it was told.
        let mut body = json!({"messages": messages, "tools": tools(), "max_tokens": 200, "n": n, "frequency_penalty": 0.1});
        let told: Vec<(u64, String)> =
            after.iter().map(|(choice, number)| (*choice, format!("functions.add:{number}"))).collect();
        let answer = family.served.post(CHAT, body.clone()).await.good();
        let choices = answer["choices"].as_array().expect("choices").iter();
        assert_eq!(choices.flat_map(|choice| ids(choice, "message")).collect::<Vec<_>>(), told, "{answer}");
        body["stream"] = json!(true);
        let chunks = family.served.events(CHAT, body).await;
        let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
        let mut streamed: Vec<_> = choices.flat_map(|choice| ids(choice, "delta")).collect();
        streamed.sort();
        assert_eq!(streamed, told);
    }
}

/// Calls that have to be, of a model that would write anything else.
async fn are_forced(format: &'static str, is_special: bool) -> String {
    let family = Family::of(format, is_special, &["--reasoning-parser", "none"]).await;
    for seed in 0..3 {
        let several = family.ask(json!({"tool_choice": "required", "seed": seed})).await;
        let calls = several["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        assert!(several["finish_reason"] == "tool_calls" && !calls.is_empty(), "{format}: {several}");
        assert!(calls.iter().all(is_right), "{format}: {several}");
        let ids: std::collections::HashSet<_> = calls.iter().map(|call| call["id"].to_string()).collect();
        assert_eq!(ids.len(), calls.len(), "{format}: {several}");
    }
    let named = json!({"type": "function", "function": {"name": "get_forecast"}});
    let named = family.ask(json!({"tool_choice": named})).await;
    let calls = named["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    assert!(calls.len() == 1 && is_right(&calls[0]), "{format}: {named}");
    assert_eq!(calls[0]["function"]["name"], "get_forecast");
    assert_eq!(named["message"]["content"], Value::Null, "{format}: {named}");
    named["raw"].as_str().expect("a text").to_owned()
}

/// Calls that the model chooses to write, in the words in which it was made to, and the rest of the conversation.
async fn are_chosen(format: &'static str, is_special: bool, call: &str) {
    let family = Family::of(format, is_special, &[]).await;
    let begins_the_answer = ["llama3_json", "pythonic", "json"].contains(&format);
    let before = if begins_the_answer { "" } else { "Let me see. " };
    // Some templates begin the model's thoughts.
    let asked = json!([{"role": "user", "content": "Paris?"}]);
    let thought = match family.shown(&asked).await {
        _ if format == "harmony" => "<|channel|>analysis<|message|>So.<|end|><|start|>assistant",
        _ if format == "inkling" => "<|content_thinking|>So.<|end_message|><|message_model|>",
        prompt if prompt.trim_end().ends_with("<think>") => "So.</think>",
        _ => "",
    };
    let said = match format {
        "harmony" => format!("<|channel|>commentary<|message|>{before}<|end|><|start|>assistant"),
        "inkling" => format!("<|content_text|>{before}<|end_message|><|message_model|>"),
        _ => before.to_owned(),
    };
    family.says(&format!("{thought}{said}{call}"));
    let chosen = family.ask(json!({})).await;
    let message = &chosen["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    assert!(calls.len() == 1 && is_right(&calls[0]), "{format}: {call:?} became {chosen}");
    assert_eq!(message["content"].as_str().unwrap_or_default(), before, "{format}");
    assert_eq!(chosen["finish_reason"], "tool_calls", "{format}");

    assert_eq!(
        message["reasoning_content"].as_str().unwrap_or_default(),
        if thought.is_empty() { "" } else { "So." }
    );

    let prose = "It will be < 5 degrees, or [so] he says: 1 } 2.";
    let channel = match format {
        "harmony" => "<|channel|>final<|message|>",
        "inkling" => "<|content_text|>",
        _ => "",
    };
    // Its calls begin so, too.
    let end = if format == "gigachat3" { "<|message_sep|>\n\n" } else { "" };
    family.says(&format!("{thought}{channel}{prose}{end}"));
    let answered = family.ask(json!({})).await;
    assert_eq!(answered["message"]["content"], prose, "{format}");
    assert!(
        answered["message"].get("tool_calls").is_none() && answered["finish_reason"] == "stop",
        "{format}"
    );

    // What came of it goes back.
    let conversation = json!([
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "Paris?"},
        message,
        {"role": "tool", "tool_call_id": calls[0]["id"], "name": "get_forecast", "content": "{\"degrees\": 4711}"},
    ]);
    let shown = family.shown(&conversation).await;
    let city = arguments(&calls[0])["city"].as_str().expect("a text").to_owned();
    for part in ["4711", "get_forecast", city.as_str()] {
        assert!(shown.contains(part), "{format}: {part} is not in {shown}");
    }
    // All that an answer had, in one message.
    if format == "harmony" {
        assert!(shown.contains("So.\n\nLet me see. "), "{shown}");
    }
    let answered = family.ask(json!({"messages": conversation})).await;
    assert_eq!(answered["message"]["content"], prose, "{format}");
}

/// Llama 3.1 ends texts so too where it has tools, and HyperCLOVA X all of its answers, whose files do not say it.
#[tokio::test]
async fn tokens_that_end_a_familys_answers_end_them_and_are_no_text() {
    for format in ["llama3_json", "hyperclovax"] {
        let family = Family::of(format, true, &[]).await;
        let ends = tool_formats().find(|known| known.name == format).expect("it exists").stop_tokens;
        assert!(!ends.is_empty());
        for end in ends {
            family.says(&format!("Hello.{end} And more."));
            for more in [json!({}), json!({"tools": null})] {
                let answer = family.ask(more).await;
                assert_eq!(
                    (&answer["message"]["content"], &answer["finish_reason"]),
                    (&json!("Hello."), &json!("stop")),
                    "{format} {end}: {answer}"
                );
            }
        }
    }
}

/// GPT-OSS' markers are made of words that clients stop at.
#[tokio::test]
async fn a_stop_string_within_the_name_of_a_marker_ends_nothing() {
    let family = Family::of("harmony", true, &[]).await;
    family.says(
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>It is late.",
    );
    for stop in ["end", "|", "<", "message"] {
        let answer = family.ask(json!({"stop": [stop]})).await;
        assert_eq!(answer["message"]["reasoning_content"], "So.", "{stop}: {answer}");
        assert_eq!(answer["message"]["content"], "It is late.", "{stop}: {answer}");
    }
    let answer = family.ask(json!({"stop": ["<|end|>"]})).await;
    assert_eq!(answer["message"]["reasoning_content"], "So.", "{answer}");
    assert_eq!(answer["message"]["content"].as_str().unwrap_or_default(), "", "{answer}");
}

/// Agents send stop strings that begin with a line end, as arguments and texts before calls end with one.
#[tokio::test]
async fn a_stop_string_that_may_begin_before_a_marker_changes_no_call() {
    let family = Family::of("gemma4", true, &[]).await;
    let write = json!({"type": "function", "function": {"name": "write", "parameters":
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}});
    family.says("Let me look.\n<|tool_call>call:write{text:<|\"|>x\n<|\"|>}<tool_call|>");
    for stop in [json!([]), json!(["\nObservation:"])] {
        let answer = family.ask(json!({"tools": [write], "stop": stop})).await;
        let calls = answer["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        let arguments = calls.iter().map(arguments).collect::<Vec<_>>();
        assert_eq!(arguments, [json!({"text": "x\n"})], "{stop}: {answer}");
        assert_eq!(answer["message"]["content"], "Let me look.\n", "{stop}");
    }
}

/// The others of its request are held to theirs, and the client is told.
#[tokio::test]
async fn calls_of_a_function_whose_schema_cannot_be_held_to_are_free() {
    let odd = json!({"type": "function", "function": {"name": "odd", "parameters":
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "x(?!y)z"}}, "minProperties": 1}}});
    let with = |odd: &Value| {
        let mut all = tools();
        all.as_array_mut().expect("a list").push(odd.clone());
        json!({"tools": all, "messages": [{"role": "user", "content": "Paris?"}], "max_tokens": 1500, "frequency_penalty": 0.1})
    };
    let mut strict = odd.clone();
    strict["function"]["strict"] = json!(true);
    let mut plain = odd.clone();
    plain["function"]["parameters"] = json!({"type": "object"});
    for (format, at, why, calls) in [
        (
            "hermes",
            "tools[2].function.parameters.properties.x.pattern",
            "a look-ahead other than at the start, behind `^`, or a look-behind is not supported",
            "<tool_call>\n{\"name\": \"odd\", \"arguments\": {\"x\": 5}}\n</tool_call>\
             <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 77}}\n</tool_call>",
        ),
        (
            "qwen3_coder",
            "tools[2].function.parameters",
            "in this model's format (qwen3_coder) `minProperties` is about the object as a whole",
            "<tool_call>\n<function=odd>\n<parameter=x>\n5\n</parameter>\n</function>\n</tool_call>\
             <tool_call>\n<function=add>\n<parameter=a>\n77\n</parameter>\n</function>\n</tool_call>",
        ),
    ] {
        let family = Family::of(format, false, &[]).await;
        family.says(calls);
        let line =
            format!("`{at}` has no effect on calls of its function, nor has the rest of its schema: {why}");
        let answer = family.served.post(CHAT, with(&odd)).await.good();
        assert_eq!(answer["warnings"], json!([line]), "{answer}");
        let called = answer["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        let [first, second, ..] = &called[..] else { panic!("{format}: {answer}") };
        assert!(
            first["function"]["name"] == "odd" && second["function"]["name"] == "add",
            "{format}: {answer}"
        );
        assert!(is_right(second), "{format}: {answer}");
        let mut streamed = with(&odd);
        streamed["stream"] = json!(true);
        let chunks = family.served.events(CHAT, streamed).await;
        assert_eq!(chunks[0]["warnings"], json!([line]), "{chunks:?}");
        let refused = family.served.post(CHAT, with(&strict)).await;
        let says = refused.json()["error"]["message"].to_string();
        assert!(
            refused.status == 422 && says.contains(why.rsplit(") ").next().expect("a text")),
            "{format}: {says}"
        );

        let exact = Family::of(format, false, &["--strict-requests"]).await;
        let refused = exact.served.post(CHAT, with(&odd)).await;
        let told = json!(format!("{line} (--strict-requests)"));
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["message"]), (422, &told));
        exact.served.post(CHAT, with(&plain)).await.good();
    }
}

async fn every_format(is_special: bool) {
    let mut running = tokio::task::JoinSet::new();
    let mut formats = tool_formats().map(|format| format.name);
    let mut wrong = Vec::new();
    loop {
        while running.len() < 4
            && let Some(format) = formats.next()
        {
            running.spawn(async move {
                let call = tokio::spawn(are_forced(format, is_special)).await.map_err(|_| format)?;
                tokio::spawn(async move { are_chosen(format, is_special, &call).await })
                    .await
                    .map_err(|_| format)
            });
        }
        match running.join_next().await {
            None => break,
            Some(ended) => wrong.extend(ended.expect("it runs to its end").err()),
        }
    }
    assert!(wrong.is_empty(), "{} formats: {wrong:?}", wrong.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_every_format_are_right_where_markers_are_text() {
    every_format(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_every_format_are_right_where_markers_are_special_tokens() {
    every_format(true).await;
}
