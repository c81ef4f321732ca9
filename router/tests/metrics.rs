//! What `/metrics` counts. Alone in its process: the recorder is the process's.

#[path = "http/served.rs"]
#[allow(dead_code)]
mod served;

use serde_json::json;

use served::{Served, Setup};

#[tokio::test]
async fn every_request_counts_once_and_every_end_has_its_cause() {
    let mut setup = Setup::default();
    setup.mock.step_fixed = std::time::Duration::from_millis(1);
    let served = Served::ready(setup).await;
    let value = async |line: &str| {
        let text = String::from_utf8(served.get("/metrics").await.body.to_vec()).expect("UTF-8");
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse::<f64>().ok());
        found.unwrap_or(0.0)
    };

    let body = json!({"inputs": "hello", "parameters": {"max_new_tokens": 4}});
    assert_eq!(served.post("/generate", body).await.status, 200);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2});
    assert_eq!(served.post("/v1/chat/completions", chat).await.status, 200);
    assert_eq!(served.post("/generate", json!({})).await.status, 422);
    assert_eq!(served.post("/tokenize", json!({"inputs": "x"})).await.status, 200);
    let endless = json!({"inputs": "hello", "parameters": {"max_new_tokens": 3000}});
    let mut stream = served.stream("/generate_stream", endless).await;
    stream.next_json().await;
    drop(stream);
    served.until_info(|info| info["requests_running"] == 0).await;

    assert_eq!(value("tgi_request_count").await, 4.0);
    assert_eq!(value("tgi_request_success").await, 3.0);
    assert_eq!(value("tgi_request_failure{err=\"validation\"}").await, 1.0);
    assert_eq!(value("tgi_request_failure{err=\"dropped\"}").await, 1.0);
    assert_eq!(value("tgi_request_generated_tokens_sum").await, 12.0);
    assert_eq!(value("tgi_request_duration_count").await, 3.0);
    assert_eq!(value("penstock_time_to_first_token_duration_count").await, 3.0);
    assert!(value("penstock_steps{method=\"decode\"}").await > 0.0);
    let answer = served.get("/metrics").await;
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    let text = String::from_utf8(answer.body.to_vec()).expect("UTF-8");
    for name in [
        "tgi_queue_size",
        "tgi_batch_current_size",
        "penstock_kv_blocks_used",
        "tgi_batch_inference_duration",
    ] {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help in\n{text}");
    }
}
