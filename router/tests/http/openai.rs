//! OpenAI's routes, as its clients use them.

use http_body_util::Full;
use hyper::{Request, header};
use penstock_core::worker::mock::{Dictation, MockConfig};
use serde_json::{Value, json};

use crate::served::{END, Served, Setup, Vocabulary};

fn chat(more: Value) -> Value {
    let mut body = json!({"model": "any", "messages": [{"role": "user", "content": "hi"}], "temperature": 0,
        "max_tokens": 30});
    merge(&mut body, more);
    body
}

fn merge(body: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().expect("an object").extend(more);
}

#[tokio::test]
async fn a_chat_answer_has_openais_shape() {
    let served = Served::default().await;
    let answer = served.post("/v1/chat/completions", chat(json!({}))).await;
    let body = answer.good();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-") && id.len() > 20));
    assert!(body["created"].as_u64().is_some_and(|seconds| seconds > 1_600_000_000));
    assert_eq!(body["model"], "any");
    assert!(body["system_fingerprint"].as_str().is_some_and(|text| text.ends_with("-native")));
    let choice = &body["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["message"]["content"].is_string());
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(choice["finish_reason"], "length");
    // <|turn|>user hi<|end|><|turn|>assistant: 7 + 1 + 1 + 1 + 10 tokens
    let usage = &body["usage"];
    assert_eq!((usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()), (Some(20), Some(30)));
    assert_eq!(usage["total_tokens"], 50);
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert!(body.get("warnings").is_none());
    assert_eq!(answer.header("x-prompt-tokens"), "20");
    assert_eq!(answer.header("x-generated-tokens"), "30");
}

#[tokio::test]
async fn a_chat_stream_begins_with_the_role_and_ends_with_the_reason() {
    let served = Served::default().await;
    let whole = served.post("/v1/chat/completions", chat(json!({}))).await.good();
    let request = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let mut events = served.stream("/v1/chat/completions", request).await;
    assert_eq!(events.headers["content-type"], "text/event-stream");
    let mut chunks = events.rest().await;
    assert_eq!(chunks.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("JSON")).collect();

    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["model"] == "any"));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (usage, chunks) = chunks.split_last().expect("chunks");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 50);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    assert!(chunks[1..].iter().all(|chunk| chunk["choices"][0]["delta"].get("role").is_none()));
    let (last, others) = chunks.split_last().expect("chunks");
    assert!(others.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let text: String =
        chunks.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().expect("text")).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().expect("text"));
}

#[tokio::test]
async fn a_turn_that_ends_by_itself_says_stop() {
    let mut setup = Setup::default();
    setup.mock.eos_one_in = 10;
    let served = Served::ready(setup).await;
    let body = served.post("/v1/chat/completions", chat(json!({"max_tokens": 2000}))).await.good();
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let text = body["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(!text.contains("<|end|>"));
}

/// Agents have another key in each session, and the same instructions in all.
#[tokio::test]
async fn sessions_share_what_is_cached_unless_they_are_salted() {
    let served = Served::ready(Setup { flags: vec!["--strict-requests"], ..Setup::default() }).await;
    for (path, cached) in [
        ("/v1/responses", "/usage/input_tokens_details/cached_tokens"),
        ("/v1/chat/completions", "/usage/prompt_tokens_details/cached_tokens"),
        ("/v1/completions", "/usage/prompt_tokens_details/cached_tokens"),
        ("/v1/messages", "/usage/cache_read_input_tokens"),
    ] {
        // No other route's begins so.
        let system = format!("{path}: {}", "Use the tools. ".repeat(20));
        let asked = async |more: Value| {
            let user = json!([{"role": "user", "content": "hi"}]);
            let mut body = match path {
                "/v1/responses" => {
                    json!({"input": "hi", "instructions": system, "max_output_tokens": 1})
                }
                "/v1/completions" => json!({"prompt": system, "max_tokens": 1}),
                "/v1/messages" => json!({"messages": user, "system": system, "max_tokens": 1}),
                _ => json!({"messages": [{"role": "system", "content": system}, user[0]], "max_tokens": 1}),
            };
            merge(&mut body, more);
            let answer = served.post(path, body).await.good();
            answer.pointer(cached).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {answer}"))
        };
        let session = |key: &str| match path {
            "/v1/messages" => json!({}),
            _ => json!({"prompt_cache_key": key}),
        };
        assert_eq!(asked(session("a")).await, 0, "{path}");
        assert!(asked(session("b")).await > 200, "{path}");
        for salt in ["a", "b"] {
            assert_eq!(asked(json!({"cache_salt": salt})).await, 0, "{path}: {salt}");
        }
        assert!(asked(json!({"cache_salt": "b"})).await > 200, "{path}");
    }
}

/// They would be a plan that the workers refuse.
#[tokio::test]
async fn ends_beyond_the_vocabulary_are_not_held_back() {
    let mock = Setup::default().mock;
    let eos_ids = vec![END, mock.vocab_size, 999_999];
    let served = Served::ready(Setup { mock: MockConfig { eos_ids, ..mock }, ..Setup::default() }).await;
    let answer = served.post("/v1/chat/completions", chat(json!({"min_tokens": 30}))).await.good();
    assert_eq!(answer["usage"]["completion_tokens"], 30);
}

#[tokio::test]
async fn a_stop_string_is_left_out_of_answer_and_stream() {
    let served = Served::default().await;
    let free = served.post("/v1/chat/completions", chat(json!({}))).await.good();
    let free = free["choices"][0]["message"]["content"].as_str().expect("text").to_string();
    let stop: String = free.chars().filter(char::is_ascii).skip(8).take(2).collect();
    let expected = free.split(&stop).next().expect("a part");
    let body = served.post("/v1/chat/completions", chat(json!({"stop": stop}))).await.good();
    assert_eq!(body["choices"][0]["message"]["content"], expected);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let chunks = served.events("/v1/chat/completions", chat(json!({"stop": [stop], "stream": true}))).await;
    let text: String =
        chunks.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().expect("text")).collect();
    assert_eq!(text, expected);
}

#[tokio::test]
async fn n_answers_have_seeds_that_follow_each_other() {
    let served = Served::default().await;
    let request = |more| {
        let mut body = chat(json!({"temperature": 1}));
        merge(&mut body, more);
        body
    };
    let answer = served.post("/v1/chat/completions", request(json!({"n": 2, "seed": 10}))).await;
    assert_eq!((answer.header("x-prompt-tokens"), answer.header("x-generated-tokens")), ("20", "60"));
    let both = answer.good();
    let second = served.post("/v1/chat/completions", request(json!({"seed": 11}))).await.good();
    let choices = both["choices"].as_array().expect("a list");
    assert_eq!(choices.len(), 2);
    assert_eq!((choices[0]["index"].as_u64(), choices[1]["index"].as_u64()), (Some(0), Some(1)));
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    assert_eq!(choices[1]["message"], second["choices"][0]["message"]);
    assert_eq!(both["usage"]["prompt_tokens"], 20);
    assert_eq!(both["usage"]["completion_tokens"], 60);

    let stream = request(json!({"n": 2, "seed": 10, "stream": true}));
    let chunks = served.events("/v1/chat/completions", stream).await;
    for choice in choices {
        let own: Vec<_> =
            chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == choice["index"]).collect();
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(own.last().expect("chunks")["choices"][0]["finish_reason"], "length");
        let text: String =
            own.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().expect("text")).collect();
        assert_eq!(choice["message"]["content"], text);
    }
}

#[tokio::test]
async fn log_probabilities_come_with_bytes_and_alternatives() {
    let served = Served::default().await;
    let request = chat(json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 12}));
    let body = served.post("/v1/chat/completions", request.clone()).await.good();
    let content = body["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.len(), 12);
    for entry in content {
        assert!(entry["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0));
        let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).expect("bytes");
        assert_eq!(entry["token"], String::from_utf8_lossy(&bytes).as_ref());
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(3));
        assert!(entry["top_logprobs"][0]["bytes"].is_array());
    }
    let mut request = request;
    request["stream"] = json!(true);
    let chunks = served.events("/v1/chat/completions", request).await;
    let streamed: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].get(0))
        .cloned()
        .collect();
    assert_eq!(&streamed, content);
}

#[tokio::test]
async fn many_log_probabilities_are_told_in_pieces() {
    let served = Served::default().await;
    let chat = chat(json!({"logprobs": true, "top_logprobs": 5, "max_tokens": 500, "ignore_eos": true}));
    let completion =
        json!({"prompt": "abc", "max_tokens": 1000, "temperature": 0, "logprobs": 5, "ignore_eos": true});
    let choice = |chunk: &Value| chunk["choices"][0]["logprobs"].clone();
    for (path, mut request, lists) in [
        ("/v1/chat/completions", chat, &["content"][..]),
        ("/v1/completions", completion, &["tokens", "token_logprobs", "top_logprobs", "text_offset"]),
    ] {
        let answer = served.post(path, request.clone()).await;
        assert!(!answer.headers.contains_key("content-length"), "{path}");
        let whole = choice(&answer.good());
        request["stream"] = json!(true);
        let chunks = served.events(path, request.clone()).await;
        for list in lists {
            let streamed = chunks.iter().filter_map(|chunk| choice(chunk)[list].as_array().cloned());
            let streamed: Vec<Value> = streamed.flatten().collect();
            assert_eq!(streamed.len() as u64, request["max_tokens"].as_u64().expect("a number"));
            assert!(whole[list] == Value::from(streamed), "{path} {list}");
        }
    }

    let parameters = json!({"details": true, "top_n_tokens": 5, "max_new_tokens": 500});
    let answer = served.post("/generate", json!({"inputs": "abc", "parameters": parameters})).await;
    assert!(!answer.headers.contains_key("content-length"));
    let details = answer.good()["details"].clone();
    for list in ["tokens", "top_tokens"] {
        assert_eq!(
            details[list].as_array().map(|all| all.len() as u64),
            details["generated_tokens"].as_u64()
        );
    }
    assert!(details["top_tokens"][0][0]["text"].is_string());

    let body = json!({"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 5,
        "max_output_tokens": 500, "temperature": 0});
    let response = served.post("/v1/responses", body).await.good();
    let told = &response["output"][0]["content"][0]["logprobs"];
    assert!(told.as_array().is_some_and(|all| all.len() > 100), "{response}");
}

#[tokio::test]
async fn what_has_no_effect_is_named_in_the_answer() {
    let served = Served::default().await;
    let request = chat(json!({"store": true, "top_logprobs": 2}));
    let body = served.post("/v1/chat/completions", request.clone()).await.good();
    let warnings = json!(["`store` has no effect here", "`top_logprobs` has no effect without `logprobs`"]);
    assert_eq!(body["warnings"], warnings);
    let mut request = request;
    request["stream"] = json!(true);
    let chunks = served.events("/v1/chat/completions", request).await;
    assert_eq!(chunks[0]["warnings"], warnings);
    assert!(chunks[1..].iter().all(|chunk| chunk.get("warnings").is_none()));
}

#[tokio::test]
async fn what_asks_for_what_is_done_is_named_in_no_warning() {
    let served = Served::ready(Setup { flags: vec!["--strict-requests"], ..Setup::default() }).await;
    let quiet = json!({"store": false, "metadata": {}, "stream_options": {"include_obfuscation": false}});
    served.post("/v1/chat/completions", chat(quiet)).await.good();
    for more in [
        json!({"store": true}),
        json!({"metadata": {"a": "b"}}),
        json!({"metadata": 5}),
        json!({"stream_options": {"include_obfuscation": true}}),
    ] {
        assert_eq!(served.post("/v1/chat/completions", chat(more)).await.status, 422);
    }
}

#[tokio::test]
async fn tokens_of_messages_are_counted_with_warnings() {
    let asked = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        merge(&mut body, more);
        body
    };
    let (path, named) = ("/v1/messages/count_tokens", json!({"zz": 1, "speed": "fast"}));
    let served = Served::default().await;
    assert_eq!(served.post(path, asked(json!({}))).await.good(), json!({"input_tokens": 20}));
    assert_eq!(
        served.post(path, asked(named.clone())).await.good(),
        json!({"input_tokens": 20, "warnings": [
            "`zz` is not a field of this route and has no effect",
            "`speed` has no effect here: every answer comes as fast as it can",
        ]})
    );
    let served = Served::ready(Setup { flags: vec!["--strict-requests"], ..Setup::default() }).await;
    assert_eq!(served.post(path, asked(json!({}))).await.status, 200);
    let refused = served.post(path, asked(named)).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("zz")));
}

/// As clients send answers back that they have read into a class.
#[tokio::test]
async fn an_assistants_refusal_is_its_text_and_reasoning_needs_none() {
    let template = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}\
                    {% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}\
                    {% for c in m.tool_calls or [] %}{{ c.function.name }}(){% endfor %};{% endfor %}";
    let served = Served::ready(Setup { chat_template: template, ..Setup::default() }).await;
    let call = json!([{"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let refusal = json!({"type": "refusal", "refusal": "no"});
    for (said, shown) in [
        (json!({"content": null, "refusal": "no"}), "no"),
        (json!({"refusal": "no"}), "no"),
        (json!({"content": "yes", "refusal": null}), "yes"),
        (json!({"content": [refusal]}), "no"),
        (json!({"content": [{"type": "text", "text": "a"}, refusal]}), "ano"),
        (json!({"content": null, "reasoning_content": "Hm", "tool_calls": null}), "[Hm]"),
        (json!({"content": null, "reasoning": "Hm"}), "[Hm]"),
        (json!({"content": null, "refusal": null, "tool_calls": call}), "f()"),
    ] {
        let mut said = said;
        said["role"] = json!("assistant");
        let messages = json!([said, {"role": "user", "content": "x"}]);
        let text = served.post("/chat_tokenize", json!({"messages": messages})).await.good();
        assert_eq!(text["templated_text"], format!("assistant:{shown};user:x;"), "{messages}");
    }
    for (message, says) in [
        (json!({"role": "assistant", "content": null}), "`messages[0].content` is required"),
        (json!({"role": "assistant", "refusal": 5}), "`messages[0].content` is required"),
        (json!({"role": "user", "refusal": "no"}), "`messages[0].content` is required"),
        (
            json!({"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}),
            "`messages[0].content[0].refusal` must be a string",
        ),
    ] {
        let answer = served.post("/v1/chat/completions", json!({"messages": [message]})).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["message"]), (422, &json!(says)));
    }
}

/// As LiteLLM's `hosted_vllm` and Envoy's AI gateway send back what Claude Code had from them, and as Mistral writes it.
#[tokio::test]
async fn what_an_assistant_thought_in_parts_is_its_reasoning() {
    let template = "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}\
                    {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}\
                    {% for c in m.tool_calls or [] %}{{ c.function.name }}(){% endfor %};{% endfor %}";
    let served = Served::ready(Setup { chat_template: template, ..Setup::default() }).await;
    let call = json!([{"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let thinking = json!({"type": "thinking", "thinking": "Hm", "signature": "x"});
    let redacted = json!({"type": "redacted_thinking", "data": "x"});
    let mistral = json!({"type": "thinking", "thinking": [{"type": "text", "text": "H"}, {"type": "text", "text": "m"}]});
    let envoy = json!({"type": "thinking", "text": "Hm", "signature": ""});
    let text = json!({"type": "text", "text": "yes"});
    for (said, shown) in [
        (json!({"content": [thinking, text]}), "[Hm]yes"),
        (json!({"content": [envoy, text], "tool_calls": call}), "[Hm]yesf()"),
        (json!({"content": [mistral, text]}), "[Hm]yes"),
        (json!({"content": [thinking, redacted, thinking, text]}), "[HmHm]yes"),
        (json!({"content": [redacted, text]}), "yes"),
        (json!({"content": [{"type": "thinking", "thinking": ""}, text]}), "yes"),
        (json!({"content": [thinking], "tool_calls": call}), "[Hm]f()"),
        (json!({"content": [redacted]}), ""),
        (json!({"content": [thinking, text], "reasoning": "So"}), "[So]yes"),
        (json!({"content": [thinking, text], "reasoning_content": null}), "[Hm]yes"),
    ] {
        let mut said = said;
        said["role"] = json!("assistant");
        let messages = json!([said, {"role": "user", "content": "x"}]);
        let text = served.post("/chat_tokenize", json!({"messages": messages})).await.good();
        assert_eq!(text["templated_text"], format!("assistant:{shown};user:x;"), "{messages}");
        served.post("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1})).await.good();
    }
    let none = json!({"type": "thinking", "thinking": [{"type": "reference"}]});
    for (message, says) in [
        (
            json!({"role": "user", "content": [text, thinking]}),
            "`messages[0].content[1]` of type \"thinking\" is not supported yet: only text is",
        ),
        (
            json!({"role": "tool", "content": [redacted]}),
            "`messages[0].content[0]` of type \"redacted_thinking\" is not supported yet: only text is",
        ),
        (
            json!({"role": "assistant", "content": [text, none]}),
            "`messages[0].content[1].thinking` must be a string or a list of texts",
        ),
        (
            json!({"role": "assistant", "content": [{"type": "thinking", "signature": ""}]}),
            "`messages[0].content[0].thinking` must be a string or a list of texts",
        ),
    ] {
        let answer = served.post("/v1/chat/completions", json!({"messages": [message]})).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["message"]), (422, &json!(says)));
    }
}

/// Which in OpenAI's dialect begins a turn, whoever said the last message.
#[tokio::test]
async fn a_response_continues_no_message() {
    let served = Served::default().await;
    let said = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}]);
    let asked = json!({"input": said, "max_output_tokens": 3, "temperature": 0});
    let response = served.post("/v1/responses", asked).await.good();
    let chat = json!({"messages": said, "add_generation_prompt": true});
    let tokens = served.post("/chat_tokenize", chat).await.good()["tokenize_response"].clone();
    assert_eq!(response["usage"]["input_tokens"], tokens.as_array().map(Vec::len).expect("a list"));
}

#[tokio::test]
async fn several_prompts_are_answered_in_their_order() {
    let served = Served::default().await;
    let request = |prompt: Value| json!({"prompt": prompt, "max_tokens": 10, "temperature": 0});
    let both = served.post("/v1/completions", request(json!(["one", "three"]))).await.good();
    assert_eq!(both["object"], "text_completion");
    assert!(both["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    assert_eq!(both["model"], "test/model");
    for (prompt, index) in [("one", 0), ("three", 1)] {
        let alone = served.post("/v1/completions", request(json!(prompt))).await.good();
        let choice = &both["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], alone["choices"][0]["text"]);
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(choice["logprobs"], Value::Null);
    }
    let usage = &both["usage"];
    assert_eq!((usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()), (Some(8), Some(20)));

    let mut request = request(json!(["one", "three"]));
    merge(&mut request, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let chunks = served.events("/v1/completions", request).await;
    for index in [0, 1] {
        let own: Vec<_> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        let text: String = own.iter().map(|choice| choice["text"].as_str().expect("text")).collect();
        assert_eq!(both["choices"][index]["text"], text);
        let (last, others) = own.split_last().expect("chunks");
        assert_eq!(last["finish_reason"], "length");
        assert!(others.iter().all(|choice| choice["finish_reason"].is_null()));
    }
    assert_eq!(chunks.last().expect("chunks")["usage"], both["usage"]);
}

#[tokio::test]
async fn token_ids_are_a_prompt_too() {
    let served = Served::default().await;
    let request = |prompt: Value| json!({"prompt": prompt, "max_tokens": 10, "temperature": 0, "echo": true});
    let text = served.post("/v1/completions", request(json!("abc"))).await.good();
    let ids = served.post("/v1/completions", request(json!([64, 65, 66]))).await.good();
    let lists = served.post("/v1/completions", request(json!([[64, 65, 66]]))).await.good();
    assert!(text["choices"][0]["text"].as_str().is_some_and(|text| text.starts_with("abc")));
    assert_eq!(ids["choices"], text["choices"]);
    assert_eq!(lists["choices"], text["choices"]);
}

#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let served = Served::default().await;
    let request = json!({"prompt": "abc", "max_tokens": 2, "temperature": 0, "echo": true, "logprobs": 1});
    let body = served.post("/v1/completions", request.clone()).await.good();
    let logprobs = &body["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 5);
    assert_eq!(tokens[..3], [json!("a"), json!("b"), json!("c")]);
    assert!(logprobs["token_logprobs"][0].is_null());
    assert!(logprobs["token_logprobs"].as_array().expect("a list")[1..].iter().all(Value::is_number));
    assert_eq!(logprobs["text_offset"].as_array().expect("a list")[..4], [0, 1, 2, 3].map(Value::from));
    assert!(logprobs["top_logprobs"][0].is_null());
    // One alternative, and the token itself where it is another one: of the prompt's and of the text's tokens.
    for place in 1..5 {
        let alternatives = logprobs["top_logprobs"][place].as_object().expect("an object");
        let own = tokens[place].as_str().expect("text");
        assert!(alternatives.contains_key(own) && alternatives.len() <= 2, "{alternatives:?}");
    }

    let mut request = request;
    request["max_tokens"] = json!(0);
    let body = served.post("/v1/completions", request).await.good();
    assert_eq!(body["choices"][0]["text"], "abc");
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(["a", "b", "c"]));
    assert_eq!(body["choices"][0]["logprobs"]["top_logprobs"][1], logprobs["top_logprobs"][1]);
    assert_eq!(body["usage"]["completion_tokens"], 0);
}

/// LlamaIndex reads each entry as an object, and OpenAI's own type has no null there.
#[tokio::test]
async fn no_alternatives_are_the_token_alone() {
    let served = Served::default().await;
    let mut request =
        json!({"prompt": "abc", "max_tokens": 2, "temperature": 0, "echo": true, "logprobs": 0});
    let whole = served.post("/v1/completions", request.clone()).await.good();
    let logprobs = &whole["choices"][0]["logprobs"];
    let alternatives = logprobs["top_logprobs"].as_array().expect("a list");
    assert_eq!(alternatives.len(), 5);
    assert!(alternatives[0].is_null());
    for (place, entry) in alternatives.iter().enumerate().skip(1) {
        let token = logprobs["tokens"][place].as_str().expect("text");
        assert_eq!(*entry, json!({token: logprobs["token_logprobs"][place]}), "{place}");
    }
    request["stream"] = json!(true);
    let chunks = served.events("/v1/completions", request.clone()).await;
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["top_logprobs"].as_array());
    assert_eq!(parts.flatten().cloned().collect::<Vec<_>>(), *alternatives);
    request["echo"] = json!(false);
    let chunks = served.events("/v1/completions", request).await;
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["top_logprobs"].as_array());
    assert_eq!(parts.flatten().cloned().collect::<Vec<_>>(), alternatives[3..]);
}

#[tokio::test]
async fn offsets_of_an_echoed_prompt_are_those_of_its_text() {
    let vocabulary = || Vocabulary::Bytes(Vec::new());
    let mut setup = Setup { vocabulary: vocabulary(), ..Setup::default() };
    setup.mock.vocab_size = vocabulary().size();
    let served = Served::ready(setup).await;
    let prompt = "日本語 😀<|turn|>x";
    let request = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "echo": true, "logprobs": 0});
    let whole = served.post("/v1/completions", request.clone()).await.good();
    let offsets = whole["choices"][0]["logprobs"]["text_offset"].as_array().expect("a list").clone();
    let of_prompt = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 5, 13];
    assert_eq!(offsets[..16], of_prompt.map(Value::from));
    assert_eq!(offsets[16], 14);
    let mut request = request;
    request["stream"] = json!(true);
    let chunks = served.events("/v1/completions", request).await;
    let streamed =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), offsets);

    // As token ids: of them the special one is no text.
    let ids = vocabulary().tokens(prompt);
    let request = json!({"prompt": ids, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 0});
    let answer = served.post("/v1/completions", request).await.good();
    let offsets = answer["choices"][0]["logprobs"]["text_offset"].as_array().expect("a list").clone();
    assert_eq!(offsets[14..], [5, 5, 6].map(Value::from));
}

#[tokio::test]
async fn a_long_echoed_prompt_is_told_in_parts_that_come_to_the_whole() {
    let vocabulary = || Vocabulary::Bytes(Vec::new());
    let mut setup = Setup { vocabulary: vocabulary(), ..Setup::default() };
    setup.mock.vocab_size = vocabulary().size();
    let served = Served::ready(setup).await;
    // 640 tokens, most of them parts of characters.
    let long = "日本語 😀x ".repeat(40);
    let mut request =
        json!({"prompt": [long, "ab"], "max_tokens": 4, "temperature": 0, "echo": true, "logprobs": 2});
    let whole = served.post("/v1/completions", request.clone()).await.good();
    request["stream"] = json!(true);
    let chunks = served.events("/v1/completions", request).await;
    for (index, length) in [(0, 640), (1, 2)] {
        let choices =
            || chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let choice = &whole["choices"][index];
        let text: String = choices().filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(choice["text"], text);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let parts = choices().filter_map(|choice| choice["logprobs"][list].as_array());
            assert!(parts.clone().all(|part| part.len() <= 129));
            let together: Vec<_> = parts.flatten().cloned().collect();
            assert_eq!(together.len(), length + 4);
            assert_eq!(choice["logprobs"][list], Value::from(together), "{list}");
        }
    }
}

#[tokio::test]
async fn a_response_tells_log_probabilities_of_its_text_alone() {
    let vocabulary = || Vocabulary::Bytes(vec!["<think>", "</think>"]);
    let dictation = Dictation::default();
    let mut setup =
        Setup { vocabulary: vocabulary(), flags: vec!["--reasoning-parser", "think"], ..Setup::default() };
    setup.mock.vocab_size = vocabulary().size();
    setup.mock.dictation = dictation.clone();
    let served = Served::ready(setup).await;
    // The last text may be the beginning of a marker, and is told at the end.
    for text in ["hello", "é!", "<thi", "a <th"] {
        let said = format!("<think>abc</think>\n\n{text}");
        let bytes: Vec<Vec<u8>> = text.bytes().map(|byte| vec![byte]).collect();
        let mut tokens = vocabulary().tokens(&said);
        tokens.push(END);
        dictation.say(tokens);
        // A mock is dictated to where there is a penalty.
        let request =
            json!({"input": "hi", "include": ["message.output_text.logprobs"], "frequency_penalty": 0.1});
        let response = served.post("/v1/responses", request).await.good();
        let part = &response["output"][1]["content"][0];
        assert_eq!(part["text"], text, "{response}");
        let told = part["logprobs"].as_array().expect("a list").iter();
        let told = told.map(|entry| serde_json::from_value(entry["bytes"].clone()).expect("bytes"));
        assert_eq!(told.collect::<Vec<Vec<u8>>>(), bytes, "{text}");
    }
}

#[tokio::test]
async fn the_same_prompt_again_is_found_in_the_cache() {
    let served = Served::default().await;
    let prompt = "x".repeat(100);
    let request = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0});
    let first = served.post("/v1/completions", request.clone()).await.good();
    let again = served.post("/v1/completions", request).await.good();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");
    assert!((84..100).contains(&cached), "{cached}");
    assert_eq!(first["choices"], again["choices"]);
}

#[tokio::test]
async fn what_an_answer_finds_of_another_to_the_same_prompt_was_not_cached() {
    let served = Served::default().await;
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].clone();
    let asked = |prompt: char, more: Value| {
        let prompt = prompt.to_string().repeat(100);
        let mut body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 1, "seed": 1});
        merge(&mut body, more);
        body
    };
    let answer = served.post("/v1/completions", asked('a', json!({"n": 2}))).await;
    assert_eq!(cached(&answer.good()["usage"]), 0);
    let stream = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let chunks = served.events("/v1/completions", asked('b', stream)).await;
    assert_eq!(cached(&chunks.last().expect("chunks")["usage"]), 0);
    let chat = json!({"messages": [{"role": "user", "content": "c".repeat(100)}], "n": 2, "max_tokens": 3});
    assert_eq!(cached(&served.post("/v1/chat/completions", chat).await.good()["usage"]), 0);
}

/// As Ragas asks for three in one request. `--max-best-of`, 2 unless told otherwise, is for answers that are thrown away.
#[tokio::test]
async fn n_answers_are_bounded_by_the_places_alone() {
    let served = Served::default().await;
    let count = |answer: &Value| answer["choices"].as_array().expect("choices").len();
    let three = json!({"n": 3, "temperature": 1});
    assert_eq!(count(&served.post("/v1/chat/completions", chat(three)).await.good()), 3);
    let completion = |more: Value| {
        let mut body = json!({"prompt": "hello", "max_tokens": 2, "temperature": 1});
        merge(&mut body, more);
        served.post("/v1/completions", body)
    };
    assert_eq!(count(&completion(json!({"n": 5})).await.good()), 5);
    assert_eq!(count(&completion(json!({"n": 3, "best_of": 3})).await.good()), 3);
    for (more, says) in [
        (
            json!({"n": 3, "best_of": 4}),
            "`best_of` must be <= 2 (--max-best-of) where it is more than `n`. Given: 4",
        ),
        (json!({"n": 129}), "`n` must ask for <= 128 sequences (--max-concurrent-requests). Given: 129"),
    ] {
        let answer = completion(more).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["message"]), (422, &json!(says)));
    }
}

/// What OpenAPI says of `best_of` in chats is what they take.
#[tokio::test]
async fn chats_have_no_best_of() {
    let served = Served::default().await;
    assert_eq!(served.post("/v1/chat/completions", chat(json!({"n": 2, "best_of": 1}))).await.status, 200);
    let refused = served.post("/v1/chat/completions", chat(json!({"n": 2, "best_of": 2}))).await;
    assert_eq!(refused.status, 422);
    assert_eq!(refused.json()["error"]["message"], "`best_of` is not supported for chats; `n` is");
    let document = served.get("/api-doc/openapi.json").await.good();
    let most =
        |name: &str| document["components"]["schemas"][name]["properties"]["best_of"]["maximum"].clone();
    assert_eq!((most("ChatRequest"), most("CompletionRequest")), (json!(1), json!(u32::MAX)));
}

/// As OpenAI and Anthropic document it. What it comes to is the workers' own.
#[tokio::test]
async fn top_p_0_is_taken_on_routes_that_tgi_does_not_have() {
    let served = Served::default().await;
    let answer = json!({"input": "hello", "max_output_tokens": 2, "top_p": 0, "seed": -1});
    assert_eq!(served.post("/v1/responses", answer).await.good()["top_p"], 0);
    let message = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "top_p": 0});
    served.post("/v1/messages", message).await.good();
}

#[tokio::test]
async fn headers_count_as_usage_does() {
    let served = Served::default().await;
    for (body, counts) in [
        (json!({"prompt": "hello", "n": 2}), (5, 6)),
        (json!({"prompt": "hello", "best_of": 2}), (5, 6)),
        (json!({"prompt": ["hello", "you"], "n": 1, "best_of": 2}), (8, 12)),
    ] {
        let mut body = body;
        merge(&mut body, json!({"max_tokens": 3, "temperature": 1, "ignore_eos": true}));
        let answer = served.post("/v1/completions", body).await;
        let usage = &answer.good()["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&json!(counts.0), &json!(counts.1))
        );
        let header = |name: &str| answer.header(name).parse::<u32>().expect("a number");
        assert_eq!((header("x-prompt-tokens"), header("x-generated-tokens")), counts);
    }
}

#[tokio::test]
async fn the_served_model_is_listed() {
    let served = Served::default().await;
    let body = served.get("/v1/models").await.good();
    let length = &served.get("/info").await.good()["max_total_tokens"];
    assert!(length.is_u64());
    let model = json!({"id": "test/model", "object": "model", "created": 0, "owned_by": "test/model",
        "max_model_len": length});
    assert_eq!(body, json!({"object": "list", "data": [model]}));
    assert_eq!(served.get("/v1/models/test/model").await.good(), model);
}

/// n8n shows `display_name` in its list of models.
#[tokio::test]
async fn clients_of_anthropics_dialect_get_its_list_of_models() {
    let served = Served::default().await;
    let get = async |path: &str| {
        let request = Request::get(path).header(header::HOST, "localhost");
        let request = request.header("anthropic-version", "2023-06-01").body(Full::default());
        served.send(request.expect("valid")).await
    };
    let created_at = "1970-01-01T00:00:00Z";
    let info = served.get("/info").await.good();
    let most = info["max_total_tokens"].as_u64().expect("a number") - 1;
    let model = json!({"type": "model", "id": "test/model", "display_name": "test/model",
        "created_at": created_at, "max_input_tokens": info["max_input_tokens"], "max_tokens": most});
    let list = json!({"data": [model], "has_more": false, "first_id": "test/model", "last_id": "test/model"});
    assert_eq!(get("/v1/models").await.good(), list);
    assert_eq!(get("/v1/models/test/model").await.good(), model);
    let other = get("/v1/models/other").await;
    assert_eq!((other.status.as_u16(), &other.json()["error"]["type"]), (404, &json!("not_found_error")));
}
