//! Requests that are not served, and what the client is told.

use http_body_util::Full;
use hyper::header;
use hyper::{Method, Request};
use penstock_core::worker::mock::{Fault, Script};
use serde_json::{Value, json};

use crate::served::{Served, Setup, post};

const GENERATING: [&str; 5] =
    ["/generate", "/generate_stream", "/", "/v1/chat/completions", "/v1/completions"];

/// A body that the route takes.
fn taken(path: &str) -> Value {
    match path {
        "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        "/v1/completions" => json!({"prompt": "hi", "max_tokens": 2}),
        _ => json!({"inputs": "hi", "parameters": {"max_new_tokens": 2}}),
    }
}

/// The message of an error, which must have the shape of the route's family.
fn message(path: &str, body: &Value) -> String {
    if path.starts_with("/v1/") {
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{path}: {body}"));
        assert!(error["type"].is_string() && error["code"].is_string(), "{path}: {body}");
        assert!(error.contains_key("param"), "{path}: {body}");
        error["message"].as_str().expect("a message").to_string()
    } else {
        let members: Vec<_> = body.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(members, ["error", "error_type"], "{path}");
        assert!(body["error_type"].is_string(), "{path}: {body}"); // no route here is unavailable
        body["error"].as_str().expect("a message").to_string()
    }
}

#[tokio::test]
async fn framework_rejections_are_json_in_the_familys_shape() {
    let served = Served::ready(Setup { flags: vec!["--payload-limit", "500"], ..Setup::default() }).await;
    for path in GENERATING {
        let large = json!({"inputs": "x".repeat(600), "prompt": "x".repeat(600)}).to_string();
        let plain = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "text/plain")
            .body(Full::from(taken(path).to_string()))
            .expect("valid");
        for (request, status, says) in [
            (post(path, "{\"inputs\": "), 400, "not valid JSON"),
            (post(path, ""), 400, "empty"),
            (post(path, b"{\"inputs\": \"\xff\"}".to_vec()), 400, "UTF-8"),
            (post(path, "[]"), 422, "must be a JSON object"),
            (post(path, "{}"), 422, "is required"),
            (post(path, large), 413, "500 bytes (--payload-limit)"),
            (plain, 415, "application/json"),
        ] {
            let answer = served.send(request).await;
            assert_eq!(answer.status, status, "{path}: {answer:?}");
            assert_eq!(answer.header("content-type"), "application/json");
            let message = message(path, &answer.json());
            assert!(message.contains(says), "{path}: {message}");
        }
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_json_too() {
    let served = Served::ready(Setup { flags: vec!["--kserve"], ..Setup::default() }).await;
    for path in ["/nothing", "/v1/nothing", "/generate/"] {
        let answer = served.get(path).await;
        assert_eq!(answer.status, 404);
        assert!(message(path, &answer.json()).contains(path));
    }
    let answer = served.post("/v1/embeddings", json!({})).await;
    assert!(message("/v1/embeddings", &answer.json()).contains("Penstock generates text"));
    let answer = served.post("/v1/messages/nothing", json!({})).await;
    let error = &answer.json()["error"];
    assert_eq!((answer.status.as_u16(), &error["type"]), (404, &json!("not_found_error")), "{error}");
    for (method, path, allow) in [
        (Method::GET, "/generate", "POST"),
        (Method::GET, "/v1/chat/completions", "POST"),
        (Method::POST, "/info", "GET,HEAD"),
        (Method::POST, "/v1/models/any/name", "GET,HEAD"),
        (Method::POST, "/page/main.js", "GET,HEAD"),
        (Method::PUT, "/v2/models/any/infer", "POST"),
        (Method::DELETE, "/", "GET,HEAD,POST"),
    ] {
        let request = Request::builder().method(method.clone()).uri(path).header(header::HOST, "localhost");
        let answer = served.send(request.body(Full::default()).expect("valid")).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, allow), "{path}");
        let said = format!("this route does not take {method}; it takes {allow}");
        assert_eq!(message(path, &answer.json()), said, "{path}");
    }
    for (path, field) in
        [("/chat_tokenize", "messages"), ("/invocations", "inputs"), ("/vertex", "instances")]
    {
        let answer = served.post(path, json!({})).await;
        assert_eq!(answer.status, 422);
        assert!(message(path, &answer.json()).contains(&format!("`{field}`")), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_field_out_of_bounds_is_a_422_on_every_route() {
    let served = Served::default().await;
    for path in GENERATING {
        let openai = path.starts_with("/v1/");
        for (field, value) in [
            ("temperature", json!(-1)),
            ("top_p", json!(0)),
            ("top_p", json!(1.5)),
            ("frequency_penalty", json!(3)),
            ("seed", json!(-1)),
            ("seed", json!("7")),
            ("stop", json!(["a", "b", "c", "d", "e"])),
            ("best_of", json!(0)),
            ("best_of", json!(3)),
        ] {
            let mut body = taken(path);
            let place = if openai { &mut body } else { &mut body["parameters"] };
            place[field] = value;
            let answer = served.post(path, body).await;
            assert_eq!(answer.status, 422, "{path} {field}: {answer:?}");
            let body = answer.json();
            let message = message(path, &body);
            assert!(message.contains(&format!("`{field}`")), "{path}: {message}");
            match openai {
                true => assert_eq!(body["error"]["param"], field),
                false => assert!(message.starts_with("Input validation error: "), "{message}"),
            }
        }
    }
}

#[tokio::test]
async fn limits_of_the_prompt_are_named_in_the_dialects_own_words() {
    let flags = vec!["--max-input-tokens", "10", "--max-total-tokens", "20"];
    let served = Served::ready(Setup { flags, ..Setup::default() }).await;
    for path in ["/generate", "/generate_stream", "/"] {
        let body = json!({"inputs": "x".repeat(11), "parameters": {"max_new_tokens": 2}});
        let answer = served.post(path, body).await;
        assert_eq!(answer.status, 422);
        let text = message(path, &answer.json());
        assert!(text.contains("`inputs`") && text.contains("10") && text.contains("11"), "{text}");
        let answer =
            served.post(path, json!({"inputs": "hello", "parameters": {"max_new_tokens": 16}})).await;
        let text = message(path, &answer.json());
        assert!(text.contains("`max_new_tokens`") && text.contains("20"), "{text}");
    }
    for stream in [false, true] {
        let body = json!({"prompt": "x".repeat(11), "stream": stream});
        let answer = served.post("/v1/completions", body).await;
        assert_eq!(answer.status, 422);
        assert!(message("/v1/completions", &answer.json()).contains("`prompt`"));
        let body = json!({"prompt": "hello", "max_tokens": 16, "stream": stream});
        let answer = served.post("/v1/completions", body).await;
        let text = message("/v1/completions", &answer.json());
        assert!(text.contains("`max_tokens`") && !text.contains("max_new_tokens"), "{text}");
        let content = "x".repeat(11);
        let body = json!({"messages": [{"role": "user", "content": content}], "stream": stream});
        let answer = served.post("/v1/chat/completions", body).await;
        assert_eq!(answer.status, 422);
        assert!(message("/v1/chat/completions", &answer.json()).contains("`messages`"));
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_instance_is_told_in_its_own_words() {
    let flags = vec!["--max-input-tokens", "20", "--max-total-tokens", "30"];
    let served =
        Served::ready(Setup { flags, chat_template: "{{ messages[0].content }}", ..Setup::default() }).await;
    let chat = |content: &str, more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": content}]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    for (instance, says) in [
        (json!({"inputs": "x".repeat(21)}), "`inputs` must have <= 20 tokens"),
        (chat(&"x".repeat(21), json!({})), "`messages` must have <= 20 tokens"),
        (chat("hello", json!({"max_tokens": 26})), "`messages` tokens + `max_tokens` must be <= 30"),
        (chat("hello", json!({"max_completion_tokens": 26})), "`messages` tokens + `max_completion_tokens`"),
        (chat("hello", json!({"guided_regex": "("})), "`guided_regex`: "),
    ] {
        let answer = served.post("/vertex", json!({"instances": [{"inputs": "hi"}, instance]})).await;
        assert_eq!(answer.status, 422, "{answer:?}");
        let text = message("/vertex", &answer.json());
        assert!(text.contains(&format!("instances[1]: {says}")), "{text}");
    }
}

#[tokio::test]
async fn null_is_no_chat_of_an_instance() {
    let served = Served::default().await;
    let instance = json!({"inputs": "x", "messages": null, "parameters": {"max_new_tokens": 2}});
    assert_eq!(served.post("/invocations", instance.clone()).await.status, 200);
    let answer = served.post("/vertex", json!({"instances": [instance]})).await.good();
    assert_eq!(answer["predictions"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn prompts_of_the_wrong_kind_are_named() {
    let served = Served::default().await;
    for (prompt, says) in [
        (json!(""), "`prompt` cannot be empty"),
        (json!([]), "`prompt` cannot be empty"),
        (json!([[]]), "`prompt` cannot be empty"),
        (json!(7), "`prompt` must be a string, a list"),
        (json!([1.5]), "`prompt` must be a string, a list"),
        (json!([1, "a"]), "`prompt` must be a string, a list"),
        (json!([99]), "`prompt` must have token ids >= 0 and < 99. Given: 99"),
        (json!([-1]), "`prompt` must have token ids >= 0 and < 99. Given: -1"),
        (json!(["a", "b", "c", "d", "e"]), "`prompt` must have at most 4 (--max-client-batch-size) entries"),
    ] {
        let answer = served.post("/v1/completions", json!({"prompt": prompt})).await;
        assert_eq!(answer.status, 422);
        let text = message("/v1/completions", &answer.json());
        assert!(text.starts_with(says), "{prompt}: {text}");
    }
}

#[tokio::test]
async fn messages_of_the_wrong_kind_are_named() {
    let served = Served::default().await;
    for (messages, says) in [
        (json!([]), "`messages` must have at least one message"),
        (json!("hi"), "`messages` must be a list. Given: \"hi\""),
        (json!(["hi"]), "`messages[0]` must be an object"),
        (json!([{"content": "hi"}]), "`messages[0].role` must be a string"),
        (json!([{"role": "user"}]), "`messages[0].content` is required"),
        (json!([{"role": "user", "content": 7}]), "`messages[0].content` must be a string or a list"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "`messages[0].content[0]` of type \"image_url\" is not supported yet",
        ),
    ] {
        let answer = served.post("/v1/chat/completions", json!({"messages": messages})).await;
        assert_eq!(answer.status, 422);
        let text = message("/v1/chat/completions", &answer.json());
        assert!(text.starts_with(says), "{messages}: {text}");
    }
}

/// By OpenAI's status and code clients know that they have to send all of it; VS Code's Copilot looks for both.
#[tokio::test]
async fn an_answer_that_is_not_kept_is_not_found() {
    let served = Served::default().await;
    let asked = |name: &str| json!({"input": "hi", (name): "resp_x", "max_output_tokens": 1});
    let refused = served.post("/v1/responses", asked("previous_response_id")).await;
    let error = refused.json()["error"].clone();
    assert_eq!(
        (refused.status.as_u16(), &error["code"], &error["param"], &error["type"]),
        (
            400,
            &json!("previous_response_not_found"),
            &json!("previous_response_id"),
            &json!("invalid_request_error")
        )
    );
    let text = error["message"].as_str().expect("a text");
    assert!(text.ends_with("send the whole conversation as `input`"), "{text}");
    let refused = served.post("/v1/responses", asked("conversation")).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (422, &json!("validation")));
}

#[tokio::test]
async fn a_template_that_refuses_is_a_422_with_its_words() {
    let setup = Setup { chat_template: "{{ raise_exception('no such role') }}", ..Setup::default() };
    let served = Served::ready(setup).await;
    let answer = served.post("/v1/chat/completions", taken("/v1/chat/completions")).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["error"]["code"], "template_error");
    assert!(message("/v1/chat/completions", &answer.json()).contains("no such role"));
}

#[tokio::test]
async fn a_full_server_says_when_to_come_back_also_to_streams() {
    let mut setup = Setup { flags: vec!["--max-concurrent-requests", "2"], ..Setup::default() };
    setup.mock.step_fixed = std::time::Duration::from_millis(5);
    let served = Served::ready(setup).await;
    let endless = json!({"inputs": "hi", "parameters": {"max_new_tokens": 3000}});
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut stream = served.stream("/generate_stream", endless.clone()).await;
        stream.next_json().await;
        running.push(stream);
    }
    for path in GENERATING {
        let mut body = taken(path);
        if path.starts_with("/v1/") || path == "/" {
            body["stream"] = json!(true);
        }
        let answer = served.post(path, body).await;
        assert_eq!(answer.status, 429, "{path}: {answer:?}");
        assert!(answer.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds >= 1));
        assert_eq!(message(path, &answer.json()), "Model is overloaded");
    }
    // Too long a prompt is tokenized to know that, so that a full server does not get as far, nor for several answers.
    let long = "a".repeat(100_000);
    for (path, body) in [
        ("/generate", json!({"inputs": long})),
        ("/generate", json!({"inputs": long, "parameters": {"best_of": 2, "do_sample": true}})),
        ("/v1/completions", json!({"prompt": long, "n": 2})),
    ] {
        assert_eq!(served.post(path, body).await.status, 429, "{path}");
    }
    drop(running);
    served.until_info(|info| info["requests_running"] == 0).await;
    assert_eq!(served.post("/generate", taken("/generate")).await.status, 200);
}

#[tokio::test]
async fn a_request_of_more_sequences_than_there_are_places_is_told_that_it_cannot_be_served() {
    let flags = vec!["--max-concurrent-requests", "1"];
    let served = Served::ready(Setup { flags, ..Setup::default() }).await;
    let chat = json!([{"role": "user", "content": "hi"}]);
    for (path, body, field) in [
        ("/generate", json!({"inputs": "hi", "parameters": {"best_of": 2, "do_sample": true}}), "best_of"),
        ("/v1/completions", json!({"prompt": "hi", "n": 2}), "n"),
        ("/v1/completions", json!({"prompt": "hi", "best_of": 2, "stream": false}), "best_of"),
        ("/v1/completions", json!({"prompt": ["hi", "ho"], "stream": true}), "prompt"),
        ("/v1/chat/completions", json!({"messages": chat, "n": 2}), "n"),
    ] {
        let answer = served.post(path, body).await;
        assert_eq!(answer.status, 422, "{path}: {answer:?}");
        let says = format!("`{field}` must ask for <= 1 sequences (--max-concurrent-requests). Given: 2");
        assert!(message(path, &answer.json()).ends_with(&says), "{path}: {answer:?}");
    }
    let answer = served.post("/vertex", json!({"instances": [{"inputs": "hi"}, {"inputs": "ho"}]})).await;
    assert_eq!(answer.status, 422, "{answer:?}");
    let says = "`instances` must have at most 1 (--max-concurrent-requests) entries. Given: 2";
    assert!(message("/vertex", &answer.json()).ends_with(says), "{answer:?}");
    assert_eq!(served.post("/generate", taken("/generate")).await.status, 200);
}

#[tokio::test]
async fn a_failure_before_the_first_token_is_the_status_and_later_one_event() {
    for fails_at in [0, 4] {
        for path in GENERATING {
            let mut steps = 0;
            let script: Script = Box::new(move |_| {
                steps += 1;
                (steps == fails_at + 1).then_some(Fault::RowError(0))
            });
            let served = Served::ready(Setup { script, ..Setup::default() }).await;
            let mut body = taken(path);
            match path.starts_with("/v1/") {
                true => body["max_tokens"] = json!(20),
                false => body["parameters"]["max_new_tokens"] = json!(20),
            }
            if path != "/generate_stream" && path != "/generate" {
                body["stream"] = json!(true);
            }
            let mut events = served.stream(path, body).await;
            if fails_at == 0 || path == "/generate" {
                assert_eq!(events.status, 424, "{path}");
                let body = serde_json::from_slice(&events.body().await).expect("JSON");
                assert!(message(path, &body).contains("not a number"), "{body}");
                continue;
            }
            assert_eq!(events.status, 200);
            let events = events.rest().await;
            let (last, others) = events.split_last().expect("events");
            assert!(!others.is_empty() && others.iter().all(|event| !event.contains("error")), "{others:?}");
            let last = serde_json::from_str(last).expect("JSON, and no [DONE] after an error");
            assert!(message(path, &last).contains("not a number"), "{last}");
        }
    }
}

/// Which is `request-id` for Anthropic's clients.
#[tokio::test]
async fn an_answer_has_the_id_of_its_request_where_its_client_looks() {
    const CHAT: &str = "/v1/chat/completions";
    let served = Served::default().await;
    let mut wrong = taken(CHAT);
    wrong["temperature"] = json!(-1);
    for (path, body, status, has_both) in [
        ("/v1/messages", taken(CHAT), 200, true),
        ("/v1/messages", wrong, 400, true),
        ("/v1/messages/batches", json!({}), 404, true),
        (CHAT, taken(CHAT), 200, false),
    ] {
        let answer = served.post(path, body).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let id = answer.headers.get("x-request-id").expect("an id");
        assert_eq!(id.len(), 32);
        assert_eq!(answer.headers.get("request-id"), has_both.then_some(id), "{path}");
    }
}

#[tokio::test]
async fn other_origins_may_call_with_a_key() {
    // Of OpenAI's and Anthropic's clients in a browser.
    const HEADERS: &str = "anthropic-dangerous-direct-browser-access,anthropic-version,authorization,content-type,\
                           x-api-key,x-stainless-lang,x-stainless-retry-count";
    let served = Served::default().await;
    let preflight = Request::builder()
        .method(Method::OPTIONS)
        .uri("/generate")
        .header(header::ORIGIN, "https://example.com")
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, HEADERS)
        .body(Full::default())
        .expect("valid");
    let answer = served.send(preflight).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert_eq!(answer.header("access-control-allow-headers"), HEADERS);
}
