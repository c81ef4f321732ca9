//! A router that serves mock workers on a loopback port, and a client that sees every byte of its
//! answers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use penstock_core::health::Health;
use penstock_core::worker::WorkerSource;
use penstock_core::worker::mock::{MockConfig, MockSource, Script};
use penstock_router::RunError;
use penstock_router::config::{Config, ModelFiles, RouterArgs};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Longer than anything here takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The tokenizer has the printable ASCII characters, a space, the two bytes of é, and two special tokens.
pub const END: u32 = 97;
pub const VOCABULARY: u32 = 99;

/// What a tokenizer has.
#[derive(Default)]
pub enum Vocabulary {
    #[default]
    Ascii,
    /// All bytes, and special tokens of these names. Its end is named as few models name theirs.
    Bytes(Vec<&'static str>),
}

pub struct Setup {
    pub vocabulary: Vocabulary,
    pub mock: MockConfig,
    pub script: Script,
    pub flags: Vec<&'static str>,
    pub chat_template: &'static str,
    /// What the model's config.json has.
    pub model_config: Value,
    /// As the hub names the model's task.
    pub pipeline_tag: Option<&'static str>,
    /// The model's files are there once this is notified; else at once.
    pub fetched: Option<Arc<Notify>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            vocabulary: Vocabulary::Ascii,
            mock: MockConfig {
                vocab_size: VOCABULARY,
                eos_ids: vec![END],
                max_positions: 4000,
                ..MockConfig::default()
            },
            script: Box::new(|_| None),
            flags: Vec::new(),
            chat_template: "{% for m in messages %}<|turn|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}\
                {% if add_generation_prompt %}<|turn|>assistant {% endif %}",
            model_config: json!({}),
            pipeline_tag: Some("text-generation"),
            fetched: None,
        }
    }
}

pub struct Served {
    pub address: SocketAddr,
    pub workers: Arc<MockSource>,
    pub drain: CancellationToken,
    pub health: watch::Receiver<Health>,
    pub running: JoinHandle<Result<(), RunError>>,
    _folder: tempfile::TempDir,
}

impl Served {
    pub async fn default() -> Self {
        Self::ready(Setup::default()).await
    }

    pub async fn ready(setup: Setup) -> Self {
        let served = Self::start(setup, |_| {});
        served.until(|health| *health == Health::Ready).await;
        served
    }

    /// `before` may hold the workers back.
    pub fn start(setup: Setup, before: impl FnOnce(&MockSource)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        write_model(
            folder.path(),
            &setup.vocabulary.tokenizer(),
            setup.vocabulary.end(),
            setup.chat_template,
        );
        let model_config = folder.path().join("config.json");
        std::fs::write(model_config, setup.model_config.to_string()).expect("written");
        let sockets = folder.path().join("sockets");
        std::fs::create_dir(&sockets).expect("a folder");
        let workers = Arc::new(MockSource::with_script(setup.mock, sockets, setup.script));
        before(&workers);

        let args = args(&setup.flags);
        let socket = penstock_router::bind(&args).expect("any free port");
        let address = socket.local_addr().expect("bound");
        let config = Config {
            args,
            model_id: "test/model".into(),
            revision: None,
            num_shard: 1,
            speculate_model: None,
            pipeline_parallel: 1,
        };
        let health = watch::Sender::new(Health::Starting("reading flags".into()));
        let (seen, drain) = (health.subscribe(), CancellationToken::new());
        let files = ModelFiles {
            dir: folder.path().to_path_buf(),
            sha: Some("abc".into()),
            pipeline_tag: setup.pipeline_tag.map(Into::into),
            tokenizer: None,
        };
        let source: Arc<dyn WorkerSource> = workers.clone();
        let fetched = setup.fetched;
        let model = async move {
            if let Some(fetched) = fetched {
                fetched.notified().await;
            }
            Ok((files, source))
        };
        let run = penstock_router::run(socket, config, model, health, drain.clone());
        Self { address, workers, drain, health: seen, running: tokio::spawn(run), _folder: folder }
    }

    pub async fn until(&self, condition: impl FnMut(&Health) -> bool) {
        let mut health = self.health.clone();
        within(health.wait_for(condition)).await.expect("the router runs");
    }

    /// Waits until `/info` says so.
    pub async fn until_info(&self, condition: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let info = self.get("/info").await.json();
            if condition(&info) {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "waited too long, at last: {info}");
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).header(header::HOST, "localhost").body(Full::default()).expect("valid"))
            .await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, body.to_string())).await
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (response, _connection) = self.open(request).await;
        Answer::read(response).await
    }

    /// An answer whose body is still to come.
    pub async fn stream(&self, path: &str, body: Value) -> Events {
        let (response, connection) = self.open(post(path, body.to_string())).await;
        let (head, body) = response.into_parts();
        Events {
            status: head.status,
            headers: head.headers,
            body,
            buffer: Vec::new(),
            _connection: connection,
        }
    }

    /// All events of a stream that ends well.
    pub async fn events(&self, path: &str, body: Value) -> Vec<Value> {
        let mut events = self.stream(path, body).await;
        if events.status != 200 {
            let body = events.body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            panic!("{}: {}", events.status, String::from_utf8_lossy(&body));
        }
        let mut all = Vec::new();
        while let Some(event) = events.next().await {
            if event != "[DONE]" {
                all.push(serde_json::from_str(&event).unwrap_or_else(|_| panic!("not JSON: {event}")));
            }
        }
        all
    }

    async fn open(&self, request: Request<Full<Bytes>>) -> (Response<Incoming>, AbortOnDropHandle<()>) {
        let mut client = self.connect().await;
        let response = within(client.sender.send_request(request)).await.expect("an answer");
        (response, client.connection)
    }

    pub async fn connect(&self) -> Client {
        let stream = within(TcpStream::connect(self.address)).await.expect("the port is open");
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Client { sender, connection: AbortOnDropHandle::new(connection) }
    }
}

/// One connection. Dropped, the client is gone.
pub struct Client {
    pub sender: http1::SendRequest<Full<Bytes>>,
    pub connection: AbortOnDropHandle<()>,
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("in time")
}

pub fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.into()))
        .expect("valid")
}

pub fn args(flags: &[&str]) -> RouterArgs {
    let command = RouterArgs::augment_args(clap::Command::new("penstock"));
    let line = [&["penstock", "--hostname", "127.0.0.1", "--port", "0"], flags].concat();
    RouterArgs::from_arg_matches(&command.get_matches_from(line)).expect("the test's flags parse")
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = within(body.collect()).await.expect("a whole body").to_bytes();
        Self { status: head.status, headers: head.headers, body }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The body of a good answer.
    pub fn good(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).to_str().expect("text")
    }
}

/// Server-sent events as they come.
pub struct Events {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    buffer: Vec<u8>,
    _connection: AbortOnDropHandle<()>,
}

impl Events {
    /// The data of the next event; `None` at the end.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).expect("UTF-8");
                if event.starts_with(':') {
                    continue;
                }
                let data = event.strip_prefix("data: ").and_then(|data| data.strip_suffix("\n\n"));
                let data = data.unwrap_or_else(|| panic!("not framed as an event: {event:?}"));
                assert!(!data.contains('\n'), "one line: {data:?}");
                return Some(data.to_string());
            }
            match within(self.body.frame()).await {
                Some(frame) => {
                    let data = frame.expect("no broken connection").into_data().expect("data");
                    self.buffer.extend_from_slice(&data);
                }
                None => {
                    assert!(self.buffer.is_empty(), "the last event is cut");
                    return None;
                }
            }
        }
    }

    pub async fn next_json(&mut self) -> Value {
        let event = self.next().await.expect("an event");
        serde_json::from_str(&event).unwrap_or_else(|_| panic!("not JSON: {event}"))
    }

    pub async fn rest(&mut self) -> Vec<String> {
        let mut rest = Vec::new();
        while let Some(event) = self.next().await {
            rest.push(event);
        }
        rest
    }

    /// The whole body of an answer that is no stream.
    pub async fn body(self) -> Bytes {
        within(self.body.collect()).await.expect("a whole body").to_bytes()
    }
}

impl Vocabulary {
    pub fn size(&self) -> u32 {
        match self {
            Self::Ascii => VOCABULARY,
            Self::Bytes(special) => VOCABULARY + 256 - END + special.len() as u32,
        }
    }

    fn end(&self) -> &'static str {
        match self {
            Self::Ascii => "<|end|>",
            Self::Bytes(_) => "<|fin|>",
        }
    }

    /// Names by id. Byte-level BPE without merges spells a space Ġ, and é with its two bytes.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
        names.extend(["Ġ", "Ã", "©", self.end(), "<|turn|>"].map(String::from));
        if let Self::Bytes(special) = self {
            let others = (0..=255).map(|byte| byte_name(byte).to_string());
            let others: Vec<String> = others.filter(|name| !names.contains(name)).collect();
            names.extend(others);
            names.extend(special.iter().map(|name| name.to_string()));
        }
        names
    }

    /// A text's tokens, as the tokenizer has them.
    pub fn tokens(&self, text: &str) -> Vec<u32> {
        let names = self.names();
        let id = |name: &str| names.iter().position(|other| other == name).expect("a token") as u32;
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let special = names.iter().filter(|name| name.len() > 3 && rest.starts_with(*name));
            if let Some(name) = special.max_by_key(|name| name.len()) {
                tokens.push(id(name));
                rest = &rest[name.len()..];
                continue;
            }
            let first = rest.chars().next().map_or(0, char::len_utf8);
            tokens.extend(rest.bytes().take(first).map(|byte| id(&byte_name(byte).to_string())));
            rest = &rest[first..];
        }
        tokens
    }

    fn tokenizer(&self) -> Value {
        let names = self.names();
        let is_special = |id: u32| id == END || id == END + 1 || id >= VOCABULARY + 256 - END;
        let (special, plain): (Vec<_>, Vec<_>) = (0..).zip(&names).partition(|(id, _)| is_special(*id));
        let vocabulary: Value = plain.iter().map(|(id, name)| ((*name).clone(), json!(id))).collect();
        let special = special.iter().map(|(id, name)| {
            json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        });
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        json!({
            "version": "1.0",
            "added_tokens": special.collect::<Vec<_>>(),
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        })
    }
}

/// The character that byte-level BPE has for a byte.
fn byte_name(byte: u8) -> char {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !is_itself(*byte)).count() as u32;
    char::from_u32(256 + before).expect("a character")
}

fn write_model(folder: &Path, tokenizer: &Value, end: &str, chat_template: &str) {
    let config = json!({"eos_token": end, "chat_template": chat_template});
    let write =
        |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string()).expect("written");
    write("tokenizer.json", tokenizer);
    write("tokenizer_config.json", &config);
}
