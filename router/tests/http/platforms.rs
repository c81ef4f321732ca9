//! What cloud platforms ask, and by which paths.

use serde_json::json;

use crate::served::{Served, Setup};

#[tokio::test]
async fn a_path_of_vertex_ai_that_has_a_route_keeps_it() {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
    let instance = json!({"inputs": "hi", "parameters": {"max_new_tokens": 3}});
    for flag in ["/v1/chat/completions", "/generate", "/", "/invocations", "/vertex", "/predict"] {
        let flags = vec!["--vertex-predict-route", flag, "--vertex-health-route", "/v1/models"];
        let served = Served::ready(Setup { flags, ..Setup::default() }).await;
        let answer = served.post("/v1/chat/completions", chat.clone()).await.good();
        assert_eq!(answer["object"], "chat.completion", "{flag}");
        let answer = served.post("/generate", instance.clone()).await.good();
        assert!(answer["generated_text"].is_string(), "{flag}: {answer}");
        for path in ["/", "/invocations"] {
            let answer = served.post(path, instance.clone()).await.good();
            assert!(answer[0]["generated_text"].is_string(), "{flag}: {answer}");
        }
        // What Vertex' `predict` sends, wherever it was told to.
        for path in ["/vertex", flag].into_iter().filter(|path| *path != "/v1/chat/completions") {
            let answer = served.post(path, json!({"instances": [instance, chat]})).await.good();
            let predictions = answer["predictions"].as_array().map(Vec::len);
            assert_eq!(predictions, Some(2), "{flag}, {path}: {answer}");
        }
        let models = served.get("/v1/models").await.good();
        assert_eq!(models["object"], "list", "{flag}");
    }
}

#[tokio::test]
async fn without_such_a_path_instances_are_of_vertex_alone() {
    let served = Served::default().await;
    let instances = json!({"instances": [{"inputs": "hi", "parameters": {"max_new_tokens": 3}}]});
    for path in ["/generate", "/", "/invocations"] {
        assert_eq!(served.post(path, instances.clone()).await.status, 422, "{path}");
    }
}

/// As many as batch predictions of Vertex AI send.
#[tokio::test]
async fn instances_are_as_many_as_are_served_at_once() {
    let served = Served::default().await;
    let instance = |place: usize| json!({"inputs": "x".repeat(place + 1), "parameters": {"max_new_tokens": 2, "return_full_text": true}});
    let many = |count| json!({"instances": (0..count).map(instance).collect::<Vec<_>>()});
    let answer = served.post("/vertex", many(64)).await.good();
    let predictions = answer["predictions"].as_array().expect("a list");
    assert_eq!(predictions.len(), 64);
    for (place, text) in predictions.iter().enumerate() {
        let text = text.as_str().expect("text");
        assert!(text.starts_with(&"x".repeat(place + 1)), "{place}: {text}");
        assert!(text.chars().count() <= place + 3, "in their order; {place}: {text}");
    }
    let answer = served.post("/vertex", many(129)).await;
    assert_eq!(answer.status, 422, "{answer:?}");
    let error = answer.json()["error"].to_string();
    assert!(
        error.contains("`instances` must have at most 128 (--max-concurrent-requests) entries"),
        "{error}"
    );
}
