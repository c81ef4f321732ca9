//! Streams of all dialects on connections that are kept, as the socket has them.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::served::{Served, Setup, post, within};

fn streams() -> [(&'static str, Value); 6] {
    let messages = json!([{"role": "user", "content": "hello"}]);
    [
        ("/generate_stream", json!({"inputs": "hello", "parameters": {"max_new_tokens": 40}})),
        ("/v1/completions", json!({"prompt": "hello", "max_tokens": 40, "stream": true, "temperature": 0})),
        (
            "/v1/completions",
            json!({"prompt": "hello", "max_tokens": 20, "n": 2, "stream": true, "stop": "!", "seed": 1}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 40, "stream": true, "temperature": 0, "logprobs": true}),
        ),
        (
            "/v1/messages",
            json!({"model": "m", "messages": messages, "max_tokens": 40, "stream": true, "temperature": 0}),
        ),
        (
            "/v1/responses",
            json!({"input": "hello", "max_output_tokens": 40, "stream": true, "temperature": 0}),
        ),
    ]
}

/// Without what differs from one answer to the next. Which of two choices speaks first is no matter.
fn lines(text: &[u8]) -> Vec<String> {
    fn scrub(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !name.ends_with("id") && !name.starts_with("created"));
                fields.remove("completed_at");
                fields.values_mut().for_each(scrub);
            }
            Value::Array(values) => values.iter_mut().for_each(scrub),
            _ => {}
        }
    }
    let text = std::str::from_utf8(text).expect("UTF-8");
    assert!(text.ends_with("\n\n"), "{text}");
    let mut lines: Vec<_> = text
        .lines()
        .map(|line| match line.strip_prefix("data: {") {
            None => line.to_owned(),
            Some(_) => {
                let mut value = serde_json::from_str(&line["data: ".len()..]).expect("JSON");
                scrub(&mut value);
                value.to_string()
            }
        })
        .collect();
    if text.contains("\"index\":1") && text.contains("text_completion") {
        lines.sort();
    }
    lines
}

/// What clients of HTTP/1.0 get goes through hyper.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_the_same_directly_and_by_hyper_on_every_route() {
    let mut setup = Setup::default();
    // So that each token finds its connection waiting.
    setup.mock.step_fixed = Duration::from_millis(1);
    let served = Served::ready(setup).await;
    let mut client = served.connect().await;
    for (path, body) in streams() {
        let body = body.to_string();
        let mut old = TcpStream::connect(served.address).await.expect("the port is open");
        let head = format!(
            "POST {path} HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        old.write_all((head + &body).as_bytes()).await.expect("open");
        let mut by_hyper = Vec::new();
        within(old.read_to_end(&mut by_hyper)).await.expect("it closes");
        let end = by_hyper.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;

        let answer = within(client.sender.send_request(post(path, body))).await.expect("kept");
        assert_eq!(answer.status(), 200, "{path}");
        let directly = within(answer.into_body().collect()).await.expect("a whole body").to_bytes();
        let (directly, by_hyper) = (lines(&directly), lines(&by_hyper[end..]));
        assert!(directly.len() > 40, "{path}: {directly:?}");
        assert_eq!(directly, by_hyper, "{path}");
    }
}
