//! What `/metrics` counts. Alone in its process, for the recorder is the process's.

use std::process::Command;

use penstock_core::worker::mock::Fault;
use serde_json::{Value, json};

use crate::life::{Gate, OpenedAtTheEnd, held, pass};
use crate::served::{Served, Setup, within};

/// The token of `~`.
const TILDE: u32 = 93;

#[test]
fn requests_are_counted() {
    run_alone("metrics::every_request_counts_once_and_every_end_has_its_cause");
}

#[test]
fn first_tokens_are_timed() {
    run_alone("metrics::a_first_token_behind_its_head_is_timed_once");
}

#[test]
fn the_first_token_of_any_candidate_is_timed() {
    run_alone("metrics::the_first_token_of_best_of_is_that_of_the_first_to_begin");
}

fn run_alone(test: &str) {
    let tests = std::env::current_exe().expect("the tests have a file");
    let run = Command::new(tests).args(["--ignored", "--exact", test]).output().expect("it can be run");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[tokio::test]
#[ignore = "is run by `first_tokens_are_timed`, in a process of its own"]
async fn a_first_token_behind_its_head_is_timed_once() {
    let gate = Gate::default();
    let served = Served::ready(held(gate.holding_from(0))).await;
    let _opened = OpenedAtTheEnd(gate.clone());
    let body = json!({"inputs": "hello", "parameters": {"max_new_tokens": 3}});
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": true});
    let late = async {
        let count = |info: &Value, of: &str| info[of].as_u64().unwrap_or_default();
        served
            .until_info(|info| count(info, "requests_running") + count(info, "requests_waiting") == 2)
            .await;
        pass(15).await;
    };
    let asked = (served.stream("/generate_stream", body), served.stream("/v1/chat/completions", chat));
    let (mut first, mut second, ()) = tokio::join!(asked.0, asked.1, late);
    let timed = async || {
        let text = String::from_utf8(served.get("/metrics").await.body.to_vec()).expect("UTF-8");
        let name = "penstock_time_to_first_token_duration_count ";
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    assert_eq!(timed().await, 0.0);
    // Nothing changes while the steps are held.
    let text = String::from_utf8(served.get("/metrics").await.body.to_vec()).expect("UTF-8");
    let gauge = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in\n{text}")).trim().parse().expect("a number")
    };
    let used = gauge("penstock_kv_blocks_used");
    let all = used + gauge("penstock_kv_blocks_cached") + gauge("penstock_kv_blocks_free");
    let usage = gauge("penstock_kv_cache_usage");
    assert!(usage > 0.0 && (usage - used / all).abs() < 1e-12, "{usage} {used} {all}");
    gate.open();
    first.rest().await;
    second.rest().await;
    assert_eq!(timed().await, 2.0);
}

#[tokio::test]
#[ignore = "is run by `the_first_token_of_any_candidate_is_timed`, in a process of its own"]
async fn the_first_token_of_best_of_is_that_of_the_first_to_begin() {
    let gate = Gate::default();
    // One candidate stands still after its first tokens, and the other waits for its place.
    let mut setup = held(gate.holding_from(4));
    setup.flags.extend(["--max-batch-size", "1"]);
    let served = Served::ready(setup).await;
    let _opened = OpenedAtTheEnd(gate.clone());
    let timed = async || {
        let text = String::from_utf8(served.get("/metrics").await.body.to_vec()).expect("UTF-8");
        let name = "penstock_time_to_first_token_duration_count ";
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    let parameters = json!({"max_new_tokens": 30, "best_of": 2, "do_sample": true});
    let asked = served.post("/generate", json!({"inputs": "hello", "parameters": parameters}));
    let meanwhile = within(async {
        while timed().await == 0.0 {}
        gate.open();
    });
    let (answer, ()) = tokio::join!(asked, meanwhile);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(timed().await, 1.0);
}

#[tokio::test]
#[ignore = "is run by `requests_are_counted`, in a process of its own"]
async fn every_request_counts_once_and_every_end_has_its_cause() {
    let mut setup = Setup::default();
    setup.mock.step_fixed = std::time::Duration::from_millis(3);
    setup.mock.state_bytes = 4096;
    setup.mock.snapshots = 8;
    setup.flags = vec!["--max-batch-size", "3"];
    setup.script = Box::new(|step| (step.fed == [TILDE; 3]).then_some(Fault::RowError(0)));
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
    assert_eq!(served.post("/generate", json!({"inputs": "~~~"})).await.status, 424);
    assert_eq!(served.post("/invocations", json!({"neither": 1})).await.status, 422);
    let several = json!({"prompt": ["hello", "you"], "n": 2, "temperature": 1, "max_tokens": 3});
    assert_eq!(served.post("/v1/completions", several).await.status, 200);
    let instance = json!({"inputs": "hello", "parameters": {"max_new_tokens": 2}});
    assert_eq!(served.post("/vertex", json!({"instances": [instance, instance]})).await.status, 200);
    assert_eq!(served.get("/no/such").await.status, 404);
    let endless = json!({"inputs": "hello", "parameters": {"max_new_tokens": 3000}});
    let mut stream = served.stream("/generate_stream", endless).await;
    stream.next_json().await;
    drop(stream);
    served.until_info(|info| info["requests_running"] == 0).await;

    assert_eq!(value("tgi_request_count").await, 8.0);
    assert_eq!(value("tgi_request_success").await, 4.0);
    assert_eq!(value("tgi_request_failure{err=\"validation\"}").await, 2.0);
    assert_eq!(value("tgi_request_failure{err=\"generation\"}").await, 1.0);
    assert_eq!(value("tgi_request_failure{err=\"dropped\"}").await, 1.0);
    assert_eq!(value("penstock_requests_in_flight").await, 0.0);
    assert_eq!(value("tgi_request_generated_tokens_sum").await, f64::from(4 + 2 * 4 + 4 * 3 + 2 * 2));
    assert_eq!(value("tgi_request_duration_count").await, 4.0);
    assert_eq!(value("tgi_request_generated_tokens_count").await, 4.0);
    // Those that were accepted: the failed one and the dropped one among them.
    assert_eq!(value("tgi_request_input_length_count").await, 6.0);
    assert_eq!(value("tgi_request_max_new_tokens_count").await, 6.0);
    assert_eq!(value("penstock_time_to_first_token_duration_count").await, 5.0);
    assert_eq!(value("penstock_finish_reason{reason=\"length\"}").await, f64::from(1 + 2 + 4 + 2));
    assert_eq!(value("penstock_errors{type=\"not_found\"}").await, 1.0);
    assert_eq!(value("penstock_errors{type=\"generation\"}").await, 1.0);
    assert_eq!(value("penstock_http_requests{route=\"unknown\",status=\"404\"}").await, 1.0);
    assert_eq!(value("penstock_http_requests{route=\"/generate\",status=\"424\"}").await, 1.0);
    assert_eq!(value("penstock_key_requests{key=\"none\",outcome=\"success\"}").await, 4.0);
    assert_eq!(value("penstock_adapter_requests{adapter=\"none\",outcome=\"success\"}").await, 4.0);
    assert_eq!(value("penstock_ready").await, 1.0);
    let states = async |name: &str, holder: &str| {
        value(&format!("penstock_{name}{{group=\"state\",holder=\"{holder}\"}}")).await
    };
    assert_eq!(states("state_places", "slots").await, 3.0);
    assert_eq!(states("state_places", "snapshots").await, 8.0);
    assert_eq!(states("states", "slots").await, 0.0);
    assert_eq!(states("states", "snapshots").await, value("penstock_state_snapshots_used").await);
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
