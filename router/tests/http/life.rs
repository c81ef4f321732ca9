//! The server from its first moment to its last: loading, disconnects, recovery, draining.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::HeaderValue;
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock_core::health::Health;
use penstock_core::worker::mock::{Fault, Script};
use penstock_router::RunError;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::served::{Events, Served, Setup, args, post, within};

/// Holds the workers' steps from the given one on until it is opened.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn holding_from(&self, first: u64) -> Script {
        let gate = self.clone();
        Box::new(move |step| {
            if step.number >= first {
                let (open, changed) = &*gate.0;
                let open = open.lock().expect("no panic under it");
                drop(changed.wait_while(open, |open| !*open).expect("no panic under it"));
            }
            None
        })
    }

    pub fn open(&self) {
        *self.0.0.lock().expect("no panic under it") = true;
        self.0.1.notify_all();
    }
}

/// Opens a gate when its test ends, also by a panic: behind a closed one the workers' thread would never end. Made after the
/// server, which waits for that thread.
pub struct OpenedAtTheEnd(pub Gate);

impl Drop for OpenedAtTheEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn generate(tokens: u32) -> Value {
    json!({"inputs": "hello", "parameters": {"max_new_tokens": tokens}})
}

async fn end_of(events: &mut Events) -> Value {
    serde_json::from_str(events.rest().await.last().expect("an event")).expect("JSON")
}

#[tokio::test]
async fn while_loading_every_route_says_so_and_the_process_is_alive() {
    let served = Served::start(Setup::default(), |workers| workers.hold());
    served.until(|health| *health == Health::Starting("loading the model".into())).await;
    for path in ["/health", "/ping", "/", "/readyz", "/info"] {
        let answer = served.get(path).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.headers.contains_key("retry-after"), "{path}");
        assert!(answer.json()["error"].as_str().is_some_and(|text| text.contains("loading the model")));
    }
    assert_eq!(served.get("/health").await.json()["error_type"], "healthcheck");
    for path in ["/generate", "/generate_stream", "/"] {
        let answer = served.post(path, generate(1)).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error_type"]), (503, &Value::Null));
    }
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let answer = served.post(path, json!({})).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &json!("unavailable")));
    }
    assert_eq!(served.get("/v1/models").await.status, 503);
    assert_eq!(served.get("/livez").await.status, 200);
    assert_eq!(served.get("/metrics").await.status, 200);

    served.workers.release();
    served.until(|health| *health == Health::Ready).await;
    for path in ["/health", "/ping", "/", "/readyz"] {
        let answer = served.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0), "{path}");
    }
    assert_eq!(served.post("/generate", generate(1)).await.status, 200);
}

/// What tells of the process alone is answered; all that generates or tells of the model is not.
#[tokio::test]
async fn while_loading_no_route_passes_for_one_of_a_loaded_model() {
    let setup = Setup { flags: vec!["--kserve"], ..Setup::default() };
    let served = Served::start(setup, |workers| workers.hold());
    served.until(|health| *health == Health::Starting("loading the model".into())).await;
    for (path, status) in [
        ("/health", 503),
        ("/ping", 503),
        ("/readyz", 503),
        ("/", 503),
        ("/info", 503),
        ("/v1/models", 503),
        ("/v1/models/test/model", 503),
        ("/v2/health/ready", 503),
        ("/v2/models/any", 503),
        ("/v2/models/any/ready", 503),
        ("/v2/models/any/versions/1", 503),
        ("/v2/models/any/versions/1/ready", 503),
        ("/api-doc/openapi.json", 503), // it has limits that the model sets
        ("/livez", 200),
        ("/metrics", 200),
        ("/docs", 200),
        ("/page/main.js", 200),
        ("/v2", 200),
        ("/v2/health/live", 200),
    ] {
        assert_eq!(served.get(path).await.status, status, "{path}");
    }
    served.workers.release();
    served.until(|health| *health == Health::Ready).await;
    assert_eq!(served.get("/v2/models/any").await.good()["name"], "any");
}

#[tokio::test]
async fn where_the_port_opens_when_the_model_is_ready_connections_are_refused_until_then() {
    let listening_late = || Setup { flags: vec!["--listen-when-ready"], ..Setup::default() };
    let served = Served::start(listening_late(), |workers| workers.hold());
    let refused = async || {
        let error = within(TcpStream::connect(served.address)).await.expect_err("nothing listens");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    };
    refused().await;
    served.until(|health| *health == Health::Starting("loading the model".into())).await;
    refused().await;
    served.workers.release();
    served.until(|health| *health == Health::Ready).await;
    assert_eq!(served.get("/health").await.status, 200);
    assert_eq!(served.post("/generate", generate(1)).await.status, 200);

    let served = Served::start(listening_late(), |workers| workers.hold());
    served.until(|health| *health == Health::Starting("loading the model".into())).await;
    served.drain.cancel();
    within(served.running).await.expect("no panic").expect("a stop is no failure");
}

#[tokio::test]
async fn a_model_that_is_being_downloaded_is_no_reason_to_end_the_process() {
    let fetched = Arc::new(Notify::new());
    let served = Served::start(Setup { fetched: Some(fetched.clone()), ..Setup::default() }, |_| {});
    tokio::task::yield_now().await; // it listens from its first step on
    assert_eq!(served.get("/livez").await.status, 200);
    assert_eq!(served.get("/metrics").await.status, 200);
    for path in ["/health", "/info", "/v1/models"] {
        assert_eq!(served.get(path).await.status, 503, "{path}");
    }
    assert_eq!(served.post("/generate", generate(1)).await.status, 503);
    fetched.notify_one();
    served.until(|health| *health == Health::Ready).await;
    assert_eq!(served.post("/generate", generate(1)).await.status, 200);
}

#[tokio::test]
async fn a_download_does_not_keep_the_server_from_stopping() {
    let served = Served::start(Setup { fetched: Some(Arc::default()), ..Setup::default() }, |_| {});
    tokio::task::yield_now().await; // it listens from its first step on
    assert_eq!(served.get("/livez").await.status, 200);
    served.drain.cancel();
    within(served.running).await.expect("no panic").expect("a stop is no failure");
}

#[tokio::test]
async fn ready_means_that_plans_reach_the_workers() {
    let served = Served::start(Setup::default(), |workers| workers.hold_runs());
    let mut asked = served.workers.runs_asked();
    within(asked.wait_for(|&asked| asked > 0)).await.expect("the workers run");
    let answer = served.get("/health").await;
    assert_eq!(answer.status, 503);
    assert!(answer.json()["error"].as_str().is_some_and(|text| text.contains("warming up")), "{answer:?}");
    assert_eq!(served.post("/generate", generate(1)).await.status, 503);

    served.workers.release_runs();
    served.until(|health| *health == Health::Ready).await;
    assert_eq!(served.post("/generate", generate(1)).await.status, 200);
}

#[tokio::test]
async fn info_has_tgis_fields_and_what_the_model_runs_on() {
    let served = Served::default().await;
    let info = served.get("/info").await.good();
    for (name, value) in [
        ("model_id", json!("test/model")),
        ("model_sha", json!("abc")),
        ("revision", Value::Null),
        ("max_concurrent_requests", json!(128)),
        ("max_best_of", json!(2)),
        ("max_stop_sequences", json!(4)),
        ("max_total_tokens", json!(4000)),
        ("max_input_tokens", json!(3999)),
        ("max_input_length", json!(3999)),
        ("max_client_batch_size", json!(4)),
        ("validation_workers", json!(2)),
        ("kv_blocks", json!(256)),
        ("kv_block_size", json!(16)),
        (
            "cache_groups",
            json!([{"kind": "full", "layers": 1, "bytes": 4, "pages_per_block": 1, "pages": 0}]),
        ),
        ("state_bytes", json!(0)),
        ("state_snapshots", json!(0)),
        ("max_batch_total_tokens", json!(4096)),
        ("docker_label", Value::Null),
    ] {
        assert_eq!(info[name], value, "{name}");
    }
    for name in ["router", "version", "model_dtype", "device", "device_name"] {
        assert!(info[name].is_string(), "{name}");
    }
}

#[tokio::test]
async fn with_a_draft_model_five_tokens_are_guessed_unless_a_number_is_given() {
    for (flags, most) in [(vec![], 5), (vec!["--speculate", "0"], 0), (vec!["--speculate", "2"], 2)] {
        let mut setup = Setup::default();
        setup.mock.wrong_draft_one_in = 2;
        setup.flags = flags;
        let info = Served::ready(setup).await.get("/info").await.good();
        assert_eq!(info["speculate"], json!(most));
    }
}

#[tokio::test]
async fn a_model_whose_layers_are_all_recurrent_is_served_from_its_states() {
    let recurrent = |draft_states| {
        let mut setup = Setup::default();
        setup.mock.full_tables = 0;
        setup.mock.pages = 0;
        setup.mock.state_bytes = 4096;
        setup.mock.snapshots = 8;
        setup.mock.world_size = 2;
        setup.mock.draft_states = draft_states;
        setup.flags = vec!["--speculate", "4", "--max-batch-size", "3"];
        setup
    };
    let info = Served::ready(recurrent(12)).await.get("/info").await.good();
    assert_eq!(info["speculate"], json!(4), "with states in front of drafts");
    let served = Served::ready(recurrent(0)).await;
    let info = served.get("/info").await.good();
    for (name, value) in [
        ("cache_groups", json!([{"kind": "state", "layers": 1, "bytes": 2 * 4096}])),
        ("state_bytes", json!(2 * 4096)),
        ("state_snapshots", json!(8)),
        ("state_snapshots_used", json!(0)),
        ("speculate", json!(0)),
        ("kv_blocks", json!(0)),
        ("max_batch_total_tokens", json!(3 * 4000)),
        ("max_total_tokens", json!(4000)),
    ] {
        assert_eq!(info[name], value, "{name}");
    }
    let mut texts = Vec::new();
    for _ in 0..2 {
        let body = json!({"prompt": "x".repeat(100), "max_tokens": 30, "temperature": 0});
        let answer = served.post("/v1/completions", body).await.good();
        texts.push(answer["choices"][0]["text"].clone());
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(*cached, json!(if texts.len() == 1 { 0 } else { 96 }));
    }
    assert_eq!(texts[0], texts[1]);
    served.until_info(|info| info["state_snapshots_used"] != 0).await;
}

#[tokio::test]
async fn workers_that_never_start_end_the_router_with_the_reason() {
    let served = Served::start(Setup::default(), |workers| workers.give_up());
    let error = within(served.running).await.expect("no panic").expect_err("no workers");
    assert!(matches!(error, RunError::Workers(_)));
    assert!(error.to_string().contains("no worker starts any more"), "{error}");
}

#[tokio::test]
async fn workers_that_never_give_a_token_end_the_router_with_the_reason() {
    // Nothing dies before all twenty are in: while workers are replaced, further requests are refused.
    let gate = Gate::default();
    let mut held = gate.holding_from(0);
    let script: Script = Box::new(move |step| held(step).or(Some(Fault::Die)));
    let served = Served::ready(Setup { script, ..Setup::default() }).await;
    let asked = futures::future::join_all((0..20).map(|_| served.post("/generate", generate(30))));
    let all_in = served.until_info(|info| {
        info["requests_running"].as_u64().unwrap_or_default()
            + info["requests_waiting"].as_u64().unwrap_or_default()
            == 20
    });
    let (answers, ()) = tokio::join!(asked, async {
        all_in.await;
        gate.open();
    });
    for answer in answers {
        assert!(answer.status.is_client_error() || answer.status.is_server_error(), "{answer:?}");
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    let error = within(served.running).await.expect("no panic").expect_err("no worker works");
    assert!(
        matches!(&error, RunError::Failed(why) if why.contains("12 times without giving a token")),
        "{error}"
    );
}

#[tokio::test]
async fn flags_that_the_model_contradicts_end_the_router() {
    let served =
        Served::start(Setup { flags: vec!["--max-total-tokens", "5000"], ..Setup::default() }, |_| {});
    let error = within(served.running).await.expect("no panic").expect_err("too long");
    assert!(error.to_string().contains("--max-total-tokens 5000"), "{error}");
}

#[tokio::test]
async fn a_taken_port_is_named_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let mut args = args(&[]);
    args.port = port.parse().expect("a port");
    let error = penstock_router::bind(&args).expect_err("taken");
    assert_eq!(error.to_string(), format!("--port {port}: another program listens on it"));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place_in_every_stage() {
    let gate = Gate::default();
    let script = gate.holding_from(4);
    let flags = vec!["--max-batch-size", "1"];
    let served = Served::ready(Setup { script, flags, ..Setup::default() }).await;
    let mut streaming = served.stream("/generate_stream", generate(3000)).await;
    streaming.next_json().await;
    // Two that wait in the queue, streamed and not.
    let (mut one, mut two) = (served.connect().await, served.connect().await);
    let queued = one.sender.send_request(post("/generate_stream", generate(3000).to_string()));
    let whole = two.sender.send_request(post("/v1/completions", json!({"prompt": "x"}).to_string()));
    let (queued, whole) = (tokio::spawn(queued), tokio::spawn(whole));
    served.until_info(|info| info["requests_waiting"] == 2).await;
    drop((one, two, streaming));
    gate.open();
    served
        .until_info(|info| {
            info["requests_waiting"] == 0 && info["requests_running"] == 0 && info["kv_blocks_used"] == 0
        })
        .await;
    assert!(
        within(queued).await.expect("no panic").is_err() && within(whole).await.expect("no panic").is_err()
    );
    // Each of the two streams alone would have taken 3,000.
    assert!(served.workers.steps() < 1000, "{} steps", served.workers.steps());
}

/// Its workers do nothing until they are let, and nobody takes that for a hang.
pub fn held(script: Script) -> Setup {
    Setup { script, flags: vec!["--step-timeout", "1000"], ..Setup::default() }
}

/// Lets so many seconds pass at once.
pub async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

fn streams() -> [(&'static str, Value); 5] {
    let messages = json!([{"role": "user", "content": "hello"}]);
    [
        ("/generate_stream", generate(3)),
        ("/v1/completions", json!({"prompt": "hello", "max_tokens": 3, "stream": true})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 3, "stream": true})),
        ("/v1/responses", json!({"input": "hello", "max_output_tokens": 3, "stream": true})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 3, "stream": true})),
    ]
}

#[tokio::test]
async fn a_stream_that_waits_long_has_its_head_and_signs_of_life_before_its_first_token() {
    for (path, body) in streams() {
        let gate = Gate::default();
        let served = Served::ready(held(gate.holding_from(0))).await;
        let _opened = OpenedAtTheEnd(gate.clone());
        let mut client = served.connect().await;
        let mut asked = Box::pin(client.sender.send_request(post(path, body.to_string())));
        tokio::select! {
            answer = &mut asked => panic!("{path}: {answer:?} before its first token"),
            () = served.until_info(|info| info["requests_running"] == 1) => pass(14).await,
        }
        let early = tokio::time::timeout(Duration::from_millis(20), &mut asked).await;
        assert!(early.is_err(), "{path}: {early:?} after 14 s");
        pass(1).await;
        let answer = within(asked).await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "text/event-stream", "{path}");
        let mut body = answer.into_body();
        for nth in 0..2 {
            let (frame, ()) = tokio::join!(within(body.frame()), pass(15));
            let sign = frame.expect("a frame").expect("no broken connection").into_data().expect("data");
            let sign = std::str::from_utf8(&sign).expect("UTF-8");
            let kinds: Vec<_> = sign.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
            match path {
                "/v1/chat/completions" | "/v1/completions" => {
                    let chunk = sign.strip_prefix("data: ").unwrap_or_else(|| panic!("{sign}"));
                    let chunk: Value = serde_json::from_str(chunk).expect("one chunk");
                    let choice = &chunk["choices"][0];
                    let is_chat = path == "/v1/chat/completions";
                    let text = if is_chat { &choice["delta"]["content"] } else { &choice["text"] };
                    let has_role = choice["delta"].get("role").is_some();
                    assert_eq!((text, has_role), (&json!(""), is_chat && nth == 0), "{sign}");
                }
                "/v1/responses" => {
                    let expected = ["response.created", "response.in_progress"];
                    assert_eq!(kinds, expected[nth..]);
                }
                "/v1/messages" => assert_eq!(kinds, [["message_start", "ping"][nth]], "{sign}"),
                _ => assert_eq!(sign, ":\n\n", "{path}"),
            }
        }
        gate.open();
        let rest = within(body.collect()).await.expect("a whole body").to_bytes();
        let rest = String::from_utf8(rest.to_vec()).expect("UTF-8");
        assert!(rest.matches("data: ").count() >= 3 && !rest.contains("\"error\":{"), "{path}: {rest}");
    }
}

#[tokio::test]
async fn what_fails_in_a_stream_that_has_only_its_head_is_its_last_event() {
    for (path, body) in streams() {
        let gate = Gate::default();
        let mut hold = gate.holding_from(0);
        let script: Script = Box::new(move |step| hold(step).or(Some(Fault::RowError(0))));
        let served = Served::ready(held(script)).await;
        let _opened = OpenedAtTheEnd(gate.clone());
        let mut client = served.connect().await;
        let mut asked = Box::pin(client.sender.send_request(post(path, body.to_string())));
        tokio::select! {
            answer = &mut asked => panic!("{path}: {answer:?} before its first token"),
            () = served.until_info(|info| info["requests_running"] == 1) => pass(15).await,
        }
        let answer = within(asked).await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        gate.open();
        let events = within(answer.into_body().collect()).await.expect("a whole body").to_bytes();
        let events = String::from_utf8(events.to_vec()).expect("UTF-8");
        let (_, data) = events.trim_end().rsplit_once("data: ").expect("an event");
        let kinds: Vec<_> = events.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let expected: &[&str] = match path {
            "/v1/responses" => &["response.created", "response.in_progress", "error", "response.failed"],
            "/v1/messages" => &["error"],
            _ => &[],
        };
        assert_eq!(kinds, expected, "{path}: {events}");
        let count = expected.len().max(1);
        assert!(
            events.matches("data: ").count() == count && data.contains("not a number"),
            "{path}: {events}"
        );
        served.until_info(|info| info["kv_blocks_used"] == 0 && info["requests_running"] == 0).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_of_which_it_has_only_the_head_is_noticed() {
    let gate = Gate::default();
    let served = Served::ready(held(gate.holding_from(0))).await;
    let _opened = OpenedAtTheEnd(gate.clone());
    let asked = served.stream("/generate_stream", generate(3000));
    let late = async {
        served.until_info(|info| info["requests_running"] == 1).await;
        pass(15).await;
    };
    let (events, ()) = tokio::join!(asked, late);
    drop(events);
    gate.open();
    served.until_info(|info| info["kv_blocks_used"] == 0 && info["requests_running"] == 0).await;
    assert!(served.workers.steps() < 1000, "{} steps", served.workers.steps());
}

#[tokio::test]
async fn a_stream_outlives_its_workers() {
    let undisturbed = Served::default().await;
    let expected = undisturbed.events("/generate_stream", generate(200)).await;

    let gate = Gate::default();
    let served = Served::ready(Setup { script: gate.holding_from(20), ..Setup::default() }).await;
    let mut events = served.stream("/generate_stream", generate(200)).await;
    let mut seen = vec![events.next_json().await];
    served.workers.hold();
    gate.open();
    served.workers.kill();
    served.until(|health| matches!(health, Health::Recovering(_))).await;
    let answer = served.post("/generate", generate(1)).await;
    assert_eq!(answer.status, 503);
    assert!(answer.json()["error"].as_str().is_some_and(|text| text.contains("restarted")), "{answer:?}");
    served.workers.release();
    seen.extend(events.rest().await.iter().map(|event| serde_json::from_str(event).expect("JSON")));
    assert_eq!(seen, expected);
    assert_eq!(served.get("/info").await.json()["worker_restarts"], 1);
}

#[tokio::test]
async fn draining_refuses_new_requests_and_finishes_running_ones() {
    let gate = Gate::default();
    let served = Served::ready(Setup { script: gate.holding_from(4), ..Setup::default() }).await;
    let mut events = served.stream("/generate_stream", generate(50)).await;
    events.next_json().await;
    served.drain.cancel();
    served.until(|health| *health == Health::Draining).await;
    let answer = served.post("/generate", generate(1)).await;
    assert_eq!(answer.status, 503);
    assert!(answer.json()["error"].as_str().is_some_and(|text| text.contains("shutting down")), "{answer:?}");
    assert_eq!(served.get("/health").await.status, 503);
    gate.open();
    let last = end_of(&mut events).await;
    assert_eq!(last["index"], 50);
    assert!(last["generated_text"].is_string());
    within(served.running).await.expect("no panic").expect("a good end");
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn draining_ends_streams_that_take_too_long_with_a_reason() {
    let mut setup = Setup { flags: vec!["--shutdown-timeout", "0"], ..Setup::default() };
    setup.mock.step_fixed = Duration::from_millis(2);
    let served = Served::ready(setup).await;
    let mut events = served.stream("/generate_stream", generate(3000)).await;
    events.next_json().await;
    served.drain.cancel();
    let last = end_of(&mut events).await;
    assert!(last["error"].as_str().is_some_and(|text| text.contains("shutting down")), "{last}");
    within(served.running).await.expect("no panic").expect("a good end");
}

#[tokio::test]
async fn a_drain_while_loading_ends_at_once() {
    let served = Served::start(Setup::default(), |workers| workers.hold());
    served.until(|health| *health == Health::Starting("loading the model".into())).await;
    served.drain.cancel();
    within(served.running).await.expect("no panic").expect("a good end");
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let served = Served::default().await;
    let mut client = served.connect().await;
    for tokens in 1..4 {
        let request = post("/generate", generate(tokens).to_string());
        let answer = within(client.sender.send_request(request)).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        within(answer.into_body().collect()).await.expect("a body");
    }
}

#[tokio::test]
async fn http2_is_spoken_without_an_upgrade() {
    let served = Served::default().await;
    let stream = TcpStream::connect(served.address).await.expect("the port is open");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::post(format!("http://{}/generate", served.address))
        .header("content-type", "application/json")
        .body(Full::<hyper::body::Bytes>::from(generate(3).to_string()))
        .expect("valid");
    let answer = within(sender.send_request(request)).await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_2));
}

/// Java's own client, which LangChain4j and Spring have, offers it with each request without TLS. Servers that take it for an upgrade
/// lose the body.
#[tokio::test]
async fn an_offer_to_go_on_in_http2_changes_nothing() {
    let served = Served::default().await;
    let mut client = served.connect().await;
    for (stream, is_chunked) in [(false, false), (false, true), (true, false), (true, true)] {
        let body =
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": stream});
        let mut request = post("/v1/chat/completions", body.to_string());
        let headers = request.headers_mut();
        for (name, value) in [
            ("connection", "Upgrade, HTTP2-Settings"),
            ("http2-settings", "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"),
            ("upgrade", "h2c"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if is_chunked {
            headers.insert("transfer-encoding", HeaderValue::from_static("chunked"));
        }
        within(client.sender.ready()).await.expect("the connection is kept");
        let answer = within(client.sender.send_request(request)).await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_11));
        let body = within(answer.into_body().collect()).await.expect("a body").to_bytes();
        let text = std::str::from_utf8(&body).expect("UTF-8");
        assert!(text.contains("chat.completion"), "{text}");
        assert_eq!(text.ends_with("data: [DONE]\n\n"), stream, "{text}");
    }
}

#[tokio::test]
async fn what_is_not_http_is_answered_and_closed() {
    let served = Served::default().await;
    let mut stream = TcpStream::connect(served.address).await.expect("the port is open");
    stream.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.expect("closed");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(served.post("/generate", generate(1)).await.status, 200);
}

/// What a route is told of the server, it is told before its body is there; its time runs, and a drain waits for it, from then on.
#[tokio::test]
async fn every_generating_route_begins_with_the_head() {
    let served =
        Served::start(Setup { flags: vec!["--kserve"], ..Setup::default() }, |workers| workers.hold());
    served.until(|health| *health == Health::Starting("loading the model".into())).await;
    for path in [
        "/generate",
        "/generate_stream",
        "/",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/invocations",
        "/vertex",
        "/v2/models/any/infer",
    ] {
        let mut stream = TcpStream::connect(served.address).await.expect("the port is open");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = [0; 12];
        within(stream.read_exact(&mut answer)).await.expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 503", "{path}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_gets_its_answer_though_it_is_still_being_sent() {
    let served = Served::default().await;
    let body = json!({"inputs": "x".repeat(8_000_000)}).to_string();
    let answer = served.send(post("/generate", body)).await;
    assert_eq!(answer.status, 413);
}
