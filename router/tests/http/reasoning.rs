//! What a grammar and a stop string are to answers of models that reason and call tools, on each route for chats.

use penstock_core::worker::mock::{Dictation, MockConfig};
use serde_json::{Value, json};

use crate::served::{END, Served, Setup, Vocabulary};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Opens reasoning unless it is told not to. With a budget it says so there, as Seed-OSS' does.
const TEMPLATE: &str = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}\
    {% for m in messages %}<|turn|>{{ m.role }} {{ m.content }}{% endfor %}\
    {% if add_generation_prompt %}<|turn|>assistant {% if budget is defined %}{% if budget == 0 %}<think><budget>{% endif %}\
    {% elif enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

struct Model {
    served: Served,
    dictation: Dictation,
}

impl Model {
    async fn of(flags: &[&'static str]) -> Self {
        Self::of_template(TEMPLATE, flags).await
    }

    async fn of_template(chat_template: &'static str, flags: &[&'static str]) -> Self {
        let vocabulary = Vocabulary::Bytes(vec!["<think>", "</think>"]);
        let dictation = Dictation::default();
        let mock = MockConfig {
            vocab_size: vocabulary.size(),
            eos_ids: vec![END],
            max_positions: 4000,
            dictation: dictation.clone(),
            ..MockConfig::default()
        };
        let flags = [flags, &["--grammar-timeout-ms", "60000"]].concat();
        let served = Served::ready(Setup { vocabulary, mock, flags, chat_template, ..Setup::default() });
        Self { served: served.await, dictation }
    }

    /// The next texts, as far as their grammars allow it.
    fn says(&self, text: &str) {
        let mut tokens = Vocabulary::Bytes(vec!["<think>", "</think>"]).tokens(text);
        tokens.push(END);
        self.dictation.say(tokens);
    }

    async fn ask(&self, route: &str, more: Value) -> Value {
        let asked = json!([{"role": "user", "content": "Where?"}]);
        let mut body = match route {
            RESPONSES => json!({"input": asked, "max_output_tokens": 200, "frequency_penalty": 0.1}),
            MESSAGES => json!({"messages": asked, "max_tokens": 200}),
            _ => json!({"messages": asked, "max_tokens": 200, "frequency_penalty": 0.1}),
        };
        body["temperature"] = json!(0);
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        self.served.post(route, body).await.good()
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
           "additionalProperties": false})
}

const TEXT: &str = "{\"city\": \"Rome\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grammar_binds_what_follows_reasoning() {
    let model = Model::of(&[]).await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema()}});
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let not = json!({"enable_thinking": false});
    for (says, more, thought) in [
        // The prompt has opened it.
        ("Hm.</think>\n\n", json!({}), "Hm."),
        ("Hm.</think>", json!({"tools": tool, "tool_choice": "none"}), "Hm."),
        ("Hm.</think>", json!({"tools": tool}), "Hm."),
        // It has not: the model may.
        ("", json!({"chat_template_kwargs": not}), ""),
        ("<think>Hm.</think>", json!({"chat_template_kwargs": not}), "Hm."),
    ] {
        model.says(&format!("{says}{TEXT}"));
        for grammar in [("response_format", format.clone()), ("guided_json", schema())] {
            let mut body = more.clone();
            body[grammar.0] = grammar.1;
            let choice = model.ask(CHAT, body).await["choices"][0].take();
            let told = |key: &str| choice["message"][key].as_str().unwrap_or_default();
            assert_eq!((told("reasoning_content"), told("content")), (thought, TEXT), "{more}: {choice}");
            assert_eq!(choice["finish_reason"], "stop", "{more}");
        }
    }

    // What is not of the schema is not let through there.
    model.says("Hm.</think>Rome.");
    let message = model.ask(CHAT, json!({"response_format": format})).await["choices"][0]["message"].take();
    let content: Value = serde_json::from_str(message["content"].as_str().expect("a text")).expect("JSON");
    assert!(["Rome", "Oslo"].iter().any(|city| content["city"] == *city), "{message}");
    assert_eq!(message["reasoning_content"], "Hm.");

    // A Lark grammar binds all of the answer, which is content.
    model.says("Rome");
    let lark = json!({"response_format": {"type": "lark", "value": "start: \"Rome\" | \"Oslo\""}});
    let message = model.ask(CHAT, lark).await["choices"][0]["message"].take();
    assert!(message["content"] == "Rome" && message.get("reasoning_content").is_none(), "{message}");

    model.says(&format!("Hm.</think>\n{TEXT}"));
    let text = json!({"format": {"type": "json_schema", "name": "place", "schema": schema()}});
    let answer = model.ask(RESPONSES, json!({"text": text})).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hm.", "{answer}");
    assert_eq!(answer["output"][1]["content"][0]["text"], TEXT, "{answer}");

    // Nobody can say there what the mock writes: some text, at least, and no JSON but behind it.
    let format = json!({"format": {"type": "json_schema", "schema": schema()}});
    let answer = model.ask(MESSAGES, json!({"output_config": format})).await;
    assert_eq!(answer["content"][0]["type"], "thinking", "{answer}");
    assert!(answer["content"][0]["thinking"].as_str().is_some_and(|text| !text.starts_with('{')), "{answer}");
}

/// What the template adds may go on behind the marker, and so may a message that is continued. Other messages only speak of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_may_have_begun_before_the_prompts_last_words() {
    let model = Model::of(&[]).await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema()}});
    let (none, not) = (json!({"budget": 0}), json!({"budget": 1}));
    let asked = |text: &str| json!([{"role": "user", "content": text}]);
    let begun =
        |text: &str| json!([{"role": "user", "content": "Where?"}, {"role": "assistant", "content": text}]);
    for (says, messages, kwargs, thought) in [
        ("None.</budget></think>", asked("Where?"), &none, "None.</budget>"),
        ("None.</budget></think>", asked("What is <think>?"), &none, "None.</budget>"),
        ("Hm.</think>\n\n", begun("<think>\nFirst"), &not, "Hm."),
        ("", asked("What is <think>?"), &not, ""),
        ("", begun("There is <think> in it "), &not, ""),
        ("", begun("<think>\nFirst</think>\n"), &not, ""),
    ] {
        model.says(&format!("{says}{TEXT}"));
        let more = json!({"messages": messages, "chat_template_kwargs": kwargs, "response_format": format});
        let message = model.ask(CHAT, more).await["choices"][0]["message"].take();
        let told = |key: &str| message[key].as_str().unwrap_or_default();
        assert_eq!((told("reasoning_content"), told("content")), (thought, TEXT), "{messages}: {message}");
    }
}

/// Some clients show it twice that know both names, and some cannot read it at all.
#[tokio::test]
async fn reasoning_has_the_names_that_the_operator_wants() {
    const NAMES: [&str; 2] = ["reasoning_content", "reasoning"];
    for (flags, wanted) in [
        (&[][..], &NAMES[..]),
        (&["--reasoning-field", "both"], &NAMES),
        (&["--reasoning-field", "reasoning_content"], &NAMES[..1]),
        (&["--reasoning-field", "reasoning"], &NAMES[1..]),
    ] {
        let model = Model::of(flags).await;
        let has =
            |told: &Value| NAMES.into_iter().filter(|name| told.get(name).is_some()).collect::<Vec<_>>();
        model.says("Hm.</think>Rome.");
        let message = model.ask(CHAT, json!({})).await["choices"][0]["message"].take();
        assert_eq!(has(&message), wanted, "{flags:?}: {message}");
        assert!(wanted.iter().all(|name| message[name] == "Hm."), "{flags:?}: {message}");
        model.says("Hm.</think>Rome.");
        let asked = json!({"messages": [{"role": "user", "content": "Where?"}], "max_tokens": 200, "temperature": 0,
            "frequency_penalty": 0.1, "stream": true});
        let chunks = model.served.events(CHAT, asked).await;
        let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let thoughts: Vec<_> = deltas.filter(|delta| !has(delta).is_empty()).collect();
        assert!(
            !thoughts.is_empty() && thoughts.iter().all(|delta| has(delta) == wanted),
            "{flags:?}: {thoughts:?}"
        );
    }
}

#[tokio::test]
async fn tokens_of_reasoning_are_counted_alike() {
    let model = Model::of(&[]).await;
    let stream = json!({"messages": [{"role": "user", "content": "Where?"}], "max_tokens": 200, "temperature": 0,
        "frequency_penalty": 0.1, "stream": true, "stream_options": {"include_usage": true}});
    for (says, least, most) in [("Hm.</think>Rome.", 1, 3), ("</think>Rome.", 0, 0)] {
        model.says(says);
        let response = model.ask(RESPONSES, json!({})).await;
        let expected = &response["usage"]["output_tokens_details"]["reasoning_tokens"];
        assert!((least..=most).contains(&expected.as_u64().expect("a count")), "{says}: {response}");
        let counted = |usage: &Value| usage["completion_tokens_details"]["reasoning_tokens"].clone();
        assert_eq!(counted(&model.ask(CHAT, json!({})).await["usage"]), *expected, "{says}");
        let chunks = model.served.events(CHAT, stream.clone()).await;
        assert_eq!(counted(&chunks.last().expect("chunks")["usage"]), *expected, "{says}");
    }
}

/// Laguna XS-2.1 and others reason only if they are told to, which many clients cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_of_the_chat_template_have_defaults_which_a_request_goes_before() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>\
        {% if enable_thinking | default(false) %}<think>{% else %}<think></think>{% endif %}{% endif %}";
    let defaults = r#"{"enable_thinking": true}"#;
    for (flags, reasons) in [(&[][..], false), (&["--default-chat-template-kwargs", defaults], true)] {
        let model = Model::of_template(template, flags).await;
        let (on, off) = ("Hm.</think>Here.", "Here.");
        for (more, reasons) in [
            (json!({}), reasons),
            (json!({"chat_template_kwargs": {"enable_thinking": false}}), false),
            (json!({"chat_template_kwargs": {"enable_thinking": true}}), true),
            (json!({"chat_template_kwargs": {"other": 1}}), reasons),
            (json!({"reasoning_effort": "none"}), false),
            (json!({"reasoning_effort": "high"}), true),
        ] {
            model.says(if reasons { on } else { off });
            let answer = model.ask(CHAT, more.clone()).await;
            let message = &answer["choices"][0]["message"];
            let thought = if reasons { json!("Hm.") } else { Value::Null };
            assert_eq!(
                (&message["content"], &message["reasoning_content"]),
                (&json!("Here."), &thought),
                "{flags:?} {more}"
            );
        }
        for (thinking, reasons) in [(None, reasons), (Some("disabled"), false)] {
            model.says(if reasons { on } else { off });
            let more = thinking.map_or(json!({}), |kind| json!({"thinking": {"type": kind}}));
            let answer = model.ask(MESSAGES, more).await;
            let blocks = answer["content"].as_array().expect("blocks");
            assert_eq!(
                blocks.iter().any(|block| block["type"] == "thinking"),
                reasons,
                "{flags:?} {thinking:?}: {answer}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_ignore_eos_has_no_effect_beside_a_grammar_is_said_once() {
    let model = Model::of(&["--reasoning-parser", "none"]).await;
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema()}}]);
    let call = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {TEXT}}}\n</tool_call>");
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema()}});
    for (says, more, beside) in [
        (&*call, json!({}), Some("tools")),
        (&*call, json!({"tool_choice": "required"}), Some("tools")),
        (TEXT, json!({"response_format": format}), Some("response_format")),
        (TEXT, json!({"tool_choice": "none", "max_tokens": 30}), None),
    ] {
        model.says(says);
        let mut body = more.clone();
        body["tools"] = tools.clone();
        body["ignore_eos"] = json!(true);
        let answer = model.ask(CHAT, body).await;
        let warnings = beside.map(|field| json!([format!("`ignore_eos` has no effect beside `{field}`")]));
        assert_eq!(answer.get("warnings"), warnings.as_ref(), "{more}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_within_a_call_ends_no_call() {
    let model = Model::of(&["--reasoning-parser", "none"]).await;
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": schema()}}]);
    for (stop, reason, arguments) in [("\"city", "stop", "{"), ("</tool_call>", "tool_calls", TEXT)] {
        model.says(&format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {TEXT}}}\n</tool_call>"));
        let body = json!({"tools": tool, "tool_choice": "required", "stop": [stop]});
        let choice = model.ask(CHAT, body.clone()).await["choices"][0].take();
        assert_eq!(choice["finish_reason"], reason, "{choice}");
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], arguments, "{choice}");
        let mut streamed = body;
        for (key, value) in [
            ("stream", json!(true)),
            ("messages", json!([{"role": "user", "content": "Where?"}])),
            ("temperature", json!(0)),
            ("max_tokens", json!(200)),
            ("frequency_penalty", json!(0.1)),
        ] {
            streamed[key] = value;
        }
        let last = model.served.events(CHAT, streamed).await.pop().expect("a chunk");
        assert_eq!(last["choices"][0]["finish_reason"], reason, "{last}");

        let tool = json!([{"type": "function", "name": "f", "parameters": schema()}]);
        let body = json!({"tools": tool, "tool_choice": "required", "stop": [stop]});
        let answer = model.ask(RESPONSES, body).await;
        let status = if reason == "stop" { "incomplete" } else { "completed" };
        let call = &answer["output"][0];
        assert!(call["status"] == status && call["arguments"] == arguments, "{answer}");
        assert_eq!(answer["status"], "completed");

        let tool = json!([{"name": "f", "input_schema": schema()}]);
        let body = json!({"tools": tool, "tool_choice": {"type": "any"}, "stop_sequences": [stop]});
        let answer = model.ask(MESSAGES, body).await;
        let reason = if reason == "stop" { "stop_sequence" } else { "tool_use" };
        assert!(answer["stop_reason"] == reason && answer["stop_sequence"] == stop, "{answer}");
    }
}

/// Qwen 3.8's rule; and Kimi K2.5's, whose switch is `thinking`.
#[tokio::test]
async fn an_effort_that_the_template_refuses_is_the_nearest_on_every_route() {
    const STRICT: &str = "{% if reasoning_effort is defined and reasoning_effort not in ['xhigh', 'medium', 'low'] %}\
        {{ raise_exception('Unexpected reasoning effort ' ~ reasoning_effort) }}{% endif %}\
        {% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}{{ ' off' if thinking is false }}";
    let served = Served::ready(Setup { chat_template: STRICT, ..Setup::default() }).await;
    let body = |route: &str, effort: &str| {
        let asked = json!([{"role": "user", "content": "Where?"}]);
        match route {
            RESPONSES => json!({"input": asked, "max_output_tokens": 2, "reasoning": {"effort": effort}}),
            MESSAGES => json!({"messages": asked, "max_tokens": 2, "output_config": {"effort": effort}}),
            _ => json!({"messages": asked, "max_tokens": 2, "reasoning_effort": effort}),
        }
    };
    for (route, field) in
        [(CHAT, "reasoning_effort"), (RESPONSES, "reasoning.effort"), (MESSAGES, "output_config.effort")]
    {
        let answer = served.post(route, body(route, "high")).await.good();
        let line = format!(
            "`{field}` has no effect as \"high\", which the model's chat template does not know: \"xhigh\" is taken"
        );
        assert_eq!(answer["warnings"], json!([line]), "{route}: {answer}");
        for effort in ["low", "none"] {
            let answer = served.post(route, body(route, effort)).await.good();
            assert!(answer.get("warnings").is_none_or(|lines| lines == &json!([])), "{route}: {answer}");
        }
    }
    let prompt = async |effort: &str| {
        served.post("/chat_tokenize", body(CHAT, effort)).await.good()["templated_text"].take()
    };
    assert_eq!(prompt("high").await, "Where?xhigh");
    assert_eq!(prompt("none").await, "Where? off");
    let mut own = body(CHAT, "low");
    own["chat_template_kwargs"] = json!({"reasoning_effort": "high"});
    assert_eq!(served.post(CHAT, own).await.status, 422);
}
