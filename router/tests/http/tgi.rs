//! TGI's routes, as its clients use them.

use penstock_core::worker::mock::MockConfig;
use serde_json::{Value, json};

use crate::served::{END, Served, Setup};

fn text_of<'a>(tokens: impl IntoIterator<Item = &'a Value>) -> String {
    let visible = tokens.into_iter().filter(|token| token["special"] == false);
    visible.map(|token| token["text"].as_str().expect("text")).collect()
}

#[tokio::test]
async fn an_answer_without_details_is_only_the_text() {
    let served = Served::default().await;
    let answer =
        served.post("/generate", json!({"inputs": "hello", "parameters": {"max_new_tokens": 5}})).await;
    let body = answer.good();
    assert_eq!(body.as_object().expect("an object").keys().collect::<Vec<_>>(), ["generated_text"]);
    assert!(body["generated_text"].is_string());
}

#[tokio::test]
async fn details_tell_every_token_and_the_headers_where_the_time_went() {
    let served = Served::default().await;
    let parameters = json!({"max_new_tokens": 40, "details": true, "seed": 5});
    let answer = served.post("/generate", json!({"inputs": "hello", "parameters": parameters})).await;
    let body = answer.good();
    let details = &body["details"];
    assert_eq!(details["finish_reason"], "length");
    assert_eq!(details["generated_tokens"], 40);
    assert_eq!(details["seed"], Value::Null, "greedy");
    assert_eq!(details["prefill"], json!([]));
    assert!(details.get("top_tokens").is_none() && details.get("best_of_sequences").is_none());
    let tokens = details["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 40);
    assert_eq!(text_of(tokens), body["generated_text"].as_str().expect("text"));
    assert_eq!(
        tokens[0].as_object().expect("an object").keys().collect::<Vec<_>>(),
        ["id", "text", "logprob", "special"]
    );

    assert_eq!(answer.header("content-type"), "application/json");
    assert!(answer.header("x-compute-type").starts_with("1-"));
    assert_eq!(answer.header("x-compute-characters"), "5");
    assert_eq!(answer.header("x-prompt-tokens"), "5");
    assert_eq!(answer.header("x-generated-tokens"), "40");
    assert!(answer.header("x-compute-time").parse::<f64>().is_ok());
    for name in ["x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token"]
    {
        assert!(answer.header(name).parse::<u64>().is_ok(), "{name}");
    }
}

/// As TGI's tutorial asks a model that reads images, of which only the text is served here.
#[tokio::test]
async fn an_image_in_markdown_is_named_where_the_model_would_have_seen_it() {
    let rabbit = "![](https://x.org/rabbit.png)What is this a picture of?";
    let generate = |inputs: &str| json!({"inputs": inputs, "parameters": {"max_new_tokens": 2}});
    let chat = |content: Value| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2});
    let reads_images =
        json!({"model_type": "llava_next", "vision_config": {"model_type": "clip_vision_model"}});
    let served = async |model_config: &Value, flags: &[&'static str]| {
        let (model_config, flags) = (model_config.clone(), flags.to_vec());
        Served::ready(Setup { model_config, flags, ..Setup::default() }).await
    };
    let asked = [
        ("/generate", generate(rabbit), "inputs"),
        ("/v1/completions", json!({"prompt": rabbit, "max_tokens": 2}), "prompt"),
        ("/v1/chat/completions", chat(json!(rabbit)), "messages[0].content"),
        (
            "/v1/chat/completions",
            chat(json!([{"type": "text", "text": rabbit}])),
            "messages[0].content[0].text",
        ),
    ];
    let lenient = served(&reads_images, &[]).await;
    for (path, body, place) in &asked {
        let answer = lenient.post(path, body.clone()).await.good();
        let line = format!(
            "`{place}` has an image, which has no effect here: only text is supported, and the model reads the URL"
        );
        assert_eq!(answer["warnings"], json!([line]), "{path}");
        let embedded =
            body.to_string().replace("https://x.org/rabbit.png", "data:image/png;base64,iVBORw0KGgo=");
        let refused = lenient.post(path, serde_json::from_str(&embedded).expect("JSON")).await;
        assert_eq!(refused.status, 422, "{path}");
        let says = format!("`{place}` has an image as a data: URL, which is not supported yet: only text is");
        let said = String::from_utf8(refused.body.to_vec()).expect("UTF-8");
        assert!(said.contains(&says), "{path}: {said}");
    }
    let events = lenient.events("/generate_stream", generate(rabbit)).await;
    assert!(
        events[0]["warnings"][0].as_str().is_some_and(|line| line.starts_with("`inputs` has an image")),
        "{events:?}"
    );
    // What the model and its tools said, it may say again.
    let said = json!({"messages": [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": rabbit}, {"role": "user", "content": "and?"},
    ], "max_tokens": 2});
    assert!(lenient.post("/v1/chat/completions", said).await.good().get("warnings").is_none());

    let strict = served(&reads_images, &["--strict-requests"]).await;
    let text_alone = served(&json!({"model_type": "llama"}), &["--strict-requests"]).await;
    for (path, body, _) in asked {
        assert_eq!(strict.post(path, body.clone()).await.status, 422, "{path}");
        assert_eq!(text_alone.post(path, body).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn the_stream_says_what_the_answer_says() {
    let served = Served::default().await;
    let request =
        json!({"inputs": "hello", "parameters": {"max_new_tokens": 60, "details": true, "top_n_tokens": 2}});
    let whole = served.post("/generate", request.clone()).await.good();

    let mut events = served.stream("/generate_stream", request).await;
    assert_eq!(events.status, 200);
    assert_eq!(events.headers["content-type"], "text/event-stream");
    assert_eq!(events.headers["cache-control"], "no-cache");
    assert_eq!(events.headers["x-accel-buffering"], "no");
    assert_eq!(events.headers["x-compute-characters"], "5");
    assert!(events.headers.contains_key("x-compute-type"));
    assert!(!events.headers.contains_key("x-total-time"));
    let events: Vec<Value> = events
        .rest()
        .await
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON, and no [DONE]"))
        .collect();

    assert_eq!(events.len(), 60);
    let tokens: Vec<_> = events.iter().map(|event| event["token"].clone()).collect();
    assert_eq!(json!(tokens), whole["details"]["tokens"]);
    let tops: Vec<_> = events.iter().map(|event| event["top_tokens"].clone()).collect();
    assert_eq!(json!(tops), whole["details"]["top_tokens"]);
    assert!(tops.iter().all(|top| top.as_array().is_some_and(|top| top.len() == 2)));
    for (event, index) in events.iter().zip(1..) {
        assert_eq!(event["index"], index);
    }
    let (last, others) = events.split_last().expect("events");
    assert!(others.iter().all(|event| event["generated_text"].is_null() && event["details"].is_null()));
    assert_eq!(last["generated_text"], whole["generated_text"]);
    assert_eq!(
        last["details"],
        json!({"finish_reason": "length", "generated_tokens": 60, "seed": null, "input_length": 5})
    );
}

#[tokio::test]
async fn a_stream_without_details_has_none_at_its_end() {
    let served = Served::default().await;
    let request = json!({"inputs": "hello", "parameters": {"max_new_tokens": 3}});
    let events = served.events("/generate_stream", request).await;
    assert!(events[2]["generated_text"].is_string());
    assert!(events.iter().all(|event| event["details"].is_null() && event.get("top_tokens").is_none()));
}

#[tokio::test]
async fn prompt_tokens_have_log_probabilities_but_for_the_first() {
    let served = Served::default().await;
    let parameters = json!({"max_new_tokens": 2, "decoder_input_details": true});
    let body = served.post("/generate", json!({"inputs": "abc", "parameters": parameters})).await.good();
    let prefill = body["details"]["prefill"].as_array().expect("a list");
    let texts: Vec<_> = prefill.iter().map(|token| token["text"].as_str().expect("text")).collect();
    assert_eq!(texts, ["a", "b", "c"]);
    assert!(prefill[0]["logprob"].is_null());
    assert!(prefill[1]["logprob"].is_number() && prefill[2]["logprob"].is_number());
}

#[tokio::test]
async fn each_of_the_best_has_the_tokens_of_a_long_prompt() {
    let served = Served::default().await;
    let parameters =
        json!({"max_new_tokens": 2, "decoder_input_details": true, "best_of": 2, "do_sample": true});
    let request = json!({"inputs": "abcd".repeat(500), "parameters": parameters});
    let body = served.post("/generate", request.clone()).await.good();
    let details = &body["details"];
    for one in [details, &details["best_of_sequences"][0]] {
        let prefill = one["prefill"].as_array().expect("a list");
        assert_eq!(prefill.len(), 2000);
        assert!(prefill[0]["logprob"].is_null() && prefill[1999]["logprob"].is_number());
        assert_eq!((&prefill[1998]["text"], &prefill[1999]["text"]), (&json!("c"), &json!("d")));
        assert_eq!(one["tokens"].as_array().map(Vec::len), Some(2));
    }
    let listed = served.post("/", request).await.good();
    assert_eq!(listed[0]["details"]["prefill"].as_array().map(Vec::len), Some(2000));
}

#[tokio::test]
async fn a_stop_string_ends_the_text_and_stays_in_it() {
    let served = Served::default().await;
    let request = |parameters: Value| json!({"inputs": "hello", "parameters": parameters});
    let free = served.post("/generate", request(json!({"max_new_tokens": 50}))).await.good();
    let free = free["generated_text"].as_str().expect("text");
    let stop: String = free.chars().filter(char::is_ascii).nth(9).expect("50 tokens").into();
    let parameters = json!({"max_new_tokens": 50, "stop": [stop], "details": true});
    let body = served.post("/generate", request(parameters.clone())).await.good();
    let expected = &free[..free.find(&stop).expect("from it") + stop.len()];
    assert_eq!(body["generated_text"], expected);
    assert_eq!(body["details"]["finish_reason"], "stop_sequence");

    let events = served.events("/generate_stream", request(parameters)).await;
    let last = events.last().expect("events");
    assert_eq!(last["generated_text"], expected);
    assert_eq!(text_of(events.iter().map(|event| &event["token"])), expected);
}

#[tokio::test]
async fn the_end_of_sequence_token_is_reported_and_not_in_the_text() {
    let mut setup = Setup::default();
    setup.mock.eos_one_in = 10;
    let served = Served::ready(setup).await;
    let parameters = json!({"max_new_tokens": 2000, "details": true});
    let body = served.post("/generate", json!({"inputs": "hello", "parameters": parameters})).await.good();
    assert_eq!(body["details"]["finish_reason"], "eos_token");
    let last = body["details"]["tokens"].as_array().and_then(|tokens| tokens.last()).expect("tokens").clone();
    assert_eq!((last["id"].clone(), last["special"].clone()), (json!(END), json!(true)));
    assert_eq!(last["text"], "<|end|>");
    assert!(!body["generated_text"].as_str().expect("text").contains("<|end|>"));
}

#[tokio::test]
async fn a_seed_makes_sampling_repeatable() {
    let served = Served::default().await;
    let with = |seed: Value| json!({"max_new_tokens": 20, "do_sample": true, "details": true, "seed": seed});
    let body = |parameters: Value| json!({"inputs": "hello", "parameters": parameters});
    let first = served.post("/generate", body(with(json!(7)))).await.good();
    let again = served.post("/generate", body(with(json!(7)))).await.good();
    let other = served.post("/generate", body(with(json!(8)))).await.good();
    assert_eq!(first, again);
    assert_ne!(first["generated_text"], other["generated_text"]);
    assert_eq!(first["details"]["seed"], 7);
    let random = served.post("/generate", body(with(Value::Null))).await.good();
    let seed = random["details"]["seed"].clone();
    assert!(seed.is_u64());
    let again = served.post("/generate", body(with(seed))).await.good();
    assert_eq!(random["generated_text"], again["generated_text"]);
}

#[tokio::test]
async fn the_root_route_answers_a_list_with_the_prompt_in_the_text() {
    let served = Served::default().await;
    let request = json!({"inputs": "hello", "parameters": {"max_new_tokens": 5}});
    let text = served.post("/generate", request.clone()).await.good()["generated_text"].clone();
    let full = format!("hello{}", text.as_str().expect("text"));
    let answer = served.post("/", request.clone()).await;
    assert_eq!(answer.good(), json!([{"generated_text": full}]));
    assert_eq!(answer.header("x-generated-tokens"), "5");

    let mut request = request;
    request["stream"] = json!(true);
    let events = served.events("/", request.clone()).await;
    assert_eq!(events.last().expect("events")["generated_text"], full);
    request["parameters"]["return_full_text"] = json!(false);
    request["stream"] = json!(false);
    assert_eq!(served.post("/", request).await.good(), json!([{"generated_text": text}]));
}

#[tokio::test]
async fn the_prompt_goes_before_the_text_where_the_models_task_is_to_continue_it() {
    let encoder_decoder = || MockConfig { decoder_start_ids: vec![5], ..Setup::default().mock };
    for (pipeline_tag, mock, full_text) in [
        (Some("text-generation"), Setup::default().mock, true),
        (None, Setup::default().mock, true),
        (Some("text2text-generation"), Setup::default().mock, false),
        (Some("image-text-to-text"), Setup::default().mock, false),
        (None, encoder_decoder(), false),
        (Some("text-generation"), encoder_decoder(), true),
    ] {
        let case = format!("{pipeline_tag:?}, {:?}", mock.decoder_start_ids);
        let served = Served::ready(Setup { pipeline_tag, mock, ..Setup::default() }).await;
        assert_eq!(served.get("/info").await.good()["model_pipeline_tag"], json!(pipeline_tag), "{case}");
        let request =
            |stream| json!({"inputs": "hello", "parameters": {"max_new_tokens": 5}, "stream": stream});
        for path in ["/", "/invocations"] {
            let answer = served.post(path, request(false)).await.good();
            let text = answer[0]["generated_text"].as_str().expect("text");
            assert_eq!(text.starts_with("hello"), full_text, "{case}, {path}: {text}");
            let events = served.events(path, request(true)).await;
            assert_eq!(events.last().expect("events")["generated_text"], text, "{case}, {path}");
        }
    }
}

#[tokio::test]
async fn truncate_keeps_the_end_of_the_prompt() {
    let served = Served::default().await;
    let generate = async |inputs: &str, truncate: Value| {
        let parameters = json!({"max_new_tokens": 8, "truncate": truncate, "details": true});
        let answer = served.post("/generate", json!({"inputs": inputs, "parameters": parameters})).await;
        (answer.good()["generated_text"].clone(), answer.header("x-prompt-tokens").to_string())
    };
    let (cut, tokens) = generate("only the end", json!(3)).await;
    assert_eq!((cut, tokens), (generate("end", Value::Null).await.0, "3".to_string()));
}

#[tokio::test]
async fn tokenize_gives_a_bare_list_with_byte_offsets() {
    let served = Served::default().await;
    let body = served.post("/tokenize", json!({"inputs": "a é<|end|>"})).await.good();
    let spans = body.as_array().expect("a list");
    assert_eq!(spans[0], json!({"id": 64, "text": "a", "start": 0, "stop": 1}));
    let last = spans.last().expect("tokens");
    assert_eq!(last["id"], END);
    assert_eq!(last["text"], "<|end|>");
    assert_eq!((last["start"].as_u64(), last["stop"].as_u64()), (Some(4), Some(11)));
}

#[tokio::test]
async fn many_tokens_are_told_in_pieces_and_too_many_are_not() {
    let served = Served::default().await;
    let text = "a".repeat(1 << 18);
    let answer = served.post("/tokenize", json!({"inputs": text})).await;
    assert!(!answer.headers.contains_key("content-length"));
    assert_eq!(answer.good().as_array().map(Vec::len), Some(1 << 18));
    let chat = json!({"messages": [{"role": "user", "content": "a".repeat(100_000)}]});
    let answer = served.post("/chat_tokenize", chat).await.good();
    let told = answer["tokenize_response"].as_array().expect("a list");
    let texts: String = told.iter().map(|token| token["text"].as_str().expect("a text")).collect();
    assert_eq!(answer["templated_text"], texts);
    let answer = served.post("/tokenize", json!({"inputs": text + "a"})).await;
    assert_eq!(answer.status, 422);
    let error = answer.json()["error"].to_string();
    assert!(error.contains("`inputs` must have <= 262144 tokens"), "{error}");
}

#[tokio::test]
async fn without_a_limit_the_answer_fills_what_a_sequence_may_have() {
    let served = Served::ready(Setup { flags: vec!["--max-total-tokens", "50"], ..Setup::default() }).await;
    let body = json!({"inputs": "hello", "parameters": {"details": true}});
    let details = served.post("/generate", body).await.good()["details"].clone();
    assert_eq!(
        (details["generated_tokens"].as_u64(), details["finish_reason"].as_str()),
        (Some(45), Some("length"))
    );
}
