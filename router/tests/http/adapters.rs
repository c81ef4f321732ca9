//! LoRA adapters, as requests choose them: the mock worker's text depends on the one that it was told.

use std::collections::HashSet;

use penstock_core::worker::mock::{Fault, MockConfig};
use serde_json::{Value, json};

use crate::served::{Served, Setup};

fn setup() -> Setup {
    let setup = Setup::default();
    let adapters = ["org/a", "b"].map(str::to_owned).to_vec();
    Setup { mock: MockConfig { adapters, ..setup.mock }, ..setup }
}

fn generate(adapter: Value) -> Value {
    json!({"inputs": "hi", "parameters": {"max_new_tokens": 20, "adapter_id": adapter}})
}

fn chat(more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 20});
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().expect("an object").extend(more);
    body
}

async fn generated(served: &Served, adapter: Value) -> String {
    let answer = served.post("/generate", generate(adapter)).await.good();
    answer["generated_text"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn adapter_id_chooses_the_adapter_and_null_the_model_alone() {
    let (served, plain) = (Served::ready(setup()).await, Served::default().await);
    let alone = generated(&served, Value::Null).await;
    let texts = [generated(&served, json!("org/a")).await, generated(&served, json!("b")).await];
    assert_eq!(alone, generated(&plain, Value::Null).await, "the model alone is as without adapters");
    let different: HashSet<_> = texts.iter().chain([&alone]).collect();
    assert_eq!(different.len(), 3, "{texts:?} {alone}");
    // With the prefix cache warm for all three.
    assert_eq!(generated(&served, json!("org/a")).await, texts[0]);
    assert_eq!(generated(&served, json!("b")).await, texts[1]);
    assert_eq!(generated(&served, Value::Null).await, alone);
}

#[tokio::test]
async fn an_unknown_adapter_is_a_422_that_says_which_are_loaded() {
    let (served, plain) = (Served::ready(setup()).await, Served::default().await);
    for (path, body) in [
        ("/generate", generate(json!("c"))),
        ("/", generate(json!("c"))),
        ("/invocations", generate(json!("c"))),
        ("/vertex", json!({"instances": [generate(json!("c"))]})),
        ("/v1/chat/completions", chat(json!({"adapter_id": "c"}))),
        ("/v1/completions", json!({"prompt": "hi", "adapter_id": "c"})),
    ] {
        for (served, loaded) in [
            (&served, "`adapter_id` names no loaded adapter; loaded: org/a, b. Given: c"),
            (
                &plain,
                "`adapter_id` names no loaded adapter: none is loaded, --lora-adapters loads some. Given: c",
            ),
        ] {
            let answer = served.post(path, body.clone()).await;
            assert_eq!(answer.status, 422, "{path}: {answer:?}");
            assert!(answer.json().to_string().contains(loaded), "{path}: {answer:?}");
        }
    }
    let answer =
        served.post("/v1/chat/completions", chat(json!({"adapter_id": "b", "model": "org/a"}))).await;
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.json().to_string().contains("`adapter_id` and `model` name two adapters"), "{answer:?}");
}

/// Of each dialect's answer, how it was asked by `model` and what that came back as.
#[tokio::test]
async fn a_model_that_is_an_adapters_name_chooses_it_in_every_dialect() {
    let served = Served::ready(setup()).await;
    let responses = json!({"input": "hi", "temperature": 0, "max_output_tokens": 20});
    let messages =
        json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 20});
    let completion = json!({"prompt": "hi", "temperature": 0, "max_tokens": 20});
    for (path, body, text) in [
        ("/v1/chat/completions", chat(json!({})), "/choices/0/message/content"),
        ("/invocations", chat(json!({})), "/choices/0/message/content"),
        ("/v1/completions", completion, "/choices/0/text"),
        ("/v1/responses", responses, "/output/0/content/0/text"),
        ("/v1/messages", messages, "/content/0/text"),
    ] {
        let mut texts = Vec::new();
        for model in ["org/a", "b", "test/model", "any"] {
            let mut body = body.clone();
            body["model"] = json!(model);
            let answer = served.post(path, body).await.good();
            assert_eq!(answer["model"], model, "{path}");
            texts.push(answer.pointer(text).unwrap_or_else(|| panic!("{path}: {answer}")).to_string());
        }
        let different: HashSet<_> = texts.iter().collect();
        assert_eq!(different.len(), 3, "{path}: {texts:?}");
        assert_eq!(texts[2], texts[3], "{path}: another name is the model alone");
    }
    let answer = served.post("/v1/chat/completions", chat(json!({"adapter_id": "b"}))).await.good();
    assert_eq!(answer["model"], "b");
}

#[tokio::test]
async fn every_choice_and_every_chunk_of_a_stream_is_the_adapters() {
    let served = Served::ready(setup()).await;
    let whole = served.post("/v1/chat/completions", chat(json!({"model": "b", "n": 3}))).await.good();
    let texts: HashSet<_> =
        (0..3).map(|choice| whole["choices"][choice]["message"]["content"].to_string()).collect();
    assert_eq!(texts.len(), 1, "greedy choices are alike: {whole}");
    let mut events = served.stream("/v1/chat/completions", chat(json!({"model": "b", "stream": true}))).await;
    let chunks = events.rest().await;
    let chunks: Vec<Value> = chunks.iter().filter_map(|chunk| serde_json::from_str(chunk).ok()).collect();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(chunks.iter().all(|chunk| chunk["model"] == "b"), "{chunks:?}");
    assert!(texts.contains(&json!(text).to_string()), "{text} {texts:?}");
}

#[tokio::test]
async fn what_is_cached_of_one_adapter_is_no_others() {
    let served = Served::ready(setup()).await;
    let cached = async |model: &str| {
        let body = chat(json!({"model": model, "messages": [{"role": "user", "content": "x".repeat(100)}]}));
        let answer = served.post("/v1/chat/completions", body).await.good();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    for model in ["org/a", "b", "any"] {
        assert_eq!(cached(model).await, 0, "{model}");
    }
    for model in ["org/a", "b", "other"] {
        assert!(cached(model).await >= 96, "{model}");
    }
}

#[tokio::test]
async fn a_sequence_keeps_its_adapter_when_the_workers_are_replaced() {
    let undisturbed = Served::ready(setup()).await;
    let script = Box::new(|step: penstock_core::worker::mock::Step<'_>| {
        (step.incarnation == 1 && step.number == 5).then_some(Fault::Die)
    });
    let served = Served::ready(Setup { script, ..setup() }).await;
    let text = generated(&served, json!("b")).await;
    assert_eq!(text, generated(&undisturbed, json!("b")).await);
    assert_eq!(served.get("/info").await.good()["worker_restarts"], 1);
}

#[tokio::test]
async fn adapters_are_listed_behind_the_model() {
    let served = Served::ready(setup()).await;
    let models = served.get("/v1/models").await.good();
    let data = models["data"].as_array().expect("a list");
    let listed: Vec<Value> =
        data.iter().map(|model| json!([model["id"], model["root"], model["parent"]])).collect();
    assert_eq!(
        listed,
        [
            json!(["test/model", null, null]),
            json!(["org/a", "org/a", "test/model"]),
            json!(["b", "b", "test/model"])
        ]
    );
    assert_eq!(served.get("/v1/models/org/a").await.good(), data[1]);
    assert_eq!(served.get("/v1/models/b").await.good()["parent"], "test/model");
    assert_eq!(served.get("/v1/models/test/model").await.good(), data[0]);
    let unknown = served.get("/v1/models/c").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.json().to_string().contains("with the adapters org/a, b"), "{unknown:?}");
    assert_eq!(served.get("/info").await.good()["adapters"], json!(["org/a", "b"]));
    let plain = Served::default().await;
    assert_eq!(plain.get("/info").await.good()["adapters"], json!([]));
    assert_eq!(plain.get("/v1/models").await.good()["data"][0].get("root"), None);
}

/// The mock answers `Describe` with what it was made with.
#[tokio::test]
async fn an_adapter_with_the_models_name_ends_the_start() {
    let setup = Setup::default();
    let mock = MockConfig { adapters: vec!["test/model".into()], ..setup.mock };
    let served = Served::start(Setup { mock, ..setup }, |_| {});
    let error =
        served.running.await.expect("no panic").expect_err("which one a request asks for is not clear");
    assert!(error.to_string().contains("--lora-adapters: test/model is the served model's name"), "{error}");
}

/// No other test has an adapter of this name: the metrics are the process's.
#[tokio::test]
async fn requests_are_counted_by_adapter() {
    let setup = Setup::default();
    let mock = MockConfig { adapters: vec!["counted".into()], ..setup.mock };
    let served = Served::ready(Setup { mock, ..setup }).await;
    for _ in 0..2 {
        generated(&served, json!("counted")).await;
    }
    let line = "penstock_adapter_requests{adapter=\"counted\",outcome=\"success\"} 2";
    let began = std::time::Instant::now();
    loop {
        let metrics = served.get("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        if text.contains(line) {
            assert!(text.contains("# HELP penstock_adapter_requests "));
            return;
        }
        assert!(began.elapsed() < crate::served::DEADLINE, "{text}");
    }
}
