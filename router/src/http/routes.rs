//! The one table of routes. The router (by `handlers`), auth, the limits on connections, the OpenAPI document and `docs/http.md` are all
//! made from it, so that a new route is one entry here and guarded unless its entry says otherwise.

use crate::config::RouterArgs;
use crate::http::page;

pub struct Route {
    pub method: Verb,
    /// As the router matches it: `{name}` is one segment, `{*name}` the rest.
    pub path: &'static str,
    pub access: Access,
    /// It generates: a request is counted in the metrics, has a line in the log and maybe a span, and takes a deadline.
    pub counted: bool,
    /// The flag without which it is not served, if there is one.
    is_asked_for: Option<fn(&RouterArgs) -> bool>,
    /// `None`: no part of the API.
    pub docs: Option<Docs>,
    pub handler: Handler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// And HEAD.
    Get,
    Post,
}

/// Who may ask, where the server has API keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Who has a key.
    Guarded,
    /// Everybody: it holds no secret.
    Open,
    /// Everybody; and it tells whether the server lives or serves, so that it is answered in the reserve of
    /// connections as well.
    Probe,
    /// Everybody, unless `--guard-metrics`: metrics name the keys.
    Metrics,
    /// Everybody, where a file has the name; `/page/NAME`.
    PageFile,
}

/// What answers; `handlers` has its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    Generate,
    GenerateStream,
    Compat,
    ChatCompletions,
    Completions,
    Responses,
    Messages,
    CountTokens,
    Models,
    Model,
    Tokenize,
    ChatTokenize,
    Invocations,
    Vertex,
    KserveServer,
    KserveLive,
    KserveReady,
    KserveModel,
    KserveInfer,
    Info,
    Health,
    Alive,
    Index,
    Metrics,
    BlockEvents,
    Docs,
    OpenApi,
    PageFile,
}

/// The bodies that routes take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequestSchema {
    Generate,
    Compat,
    Chat,
    Completion,
    Invocation,
    Vertex,
    Infer,
    Messages,
    CountTokens,
    Responses,
}

/// What the OpenAPI document and `docs/http.md` say of a route.
pub struct Docs {
    pub about: &'static str,
    pub request: Option<RequestSchema>,
    pub answer: Answer,
}

/// What a good answer holds: nothing, JSON or events of a schema, or text of a media type.
#[derive(Clone, Copy)]
pub enum Answer {
    Empty,
    Json(&'static str),
    Events(&'static str),
    JsonOrEvents(&'static str, &'static str),
    Text(&'static str),
}

pub static ROUTES: [Route; 34] = [
    post("/generate", Handler::Generate).counted().takes(
        RequestSchema::Generate,
        Answer::Json("Generated"),
        "Generate a text",
    ),
    post("/generate_stream", Handler::GenerateStream).counted().takes(
        RequestSchema::Generate,
        Answer::Events("TokenEvent"),
        "Generate a text, token by token",
    ),
    post("/", Handler::Compat).counted().takes(
        RequestSchema::Compat,
        Answer::JsonOrEvents("GeneratedList", "TokenEvent"),
        "As /generate, in a list of one; with `stream`, as /generate_stream",
    ),
    post("/v1/chat/completions", Handler::ChatCompletions).counted().takes(
        RequestSchema::Chat,
        Answer::JsonOrEvents("ChatCompletion", "ChatChunk"),
        "Answer a chat",
    ),
    post("/v1/completions", Handler::Completions).counted().takes(
        RequestSchema::Completion,
        Answer::JsonOrEvents("Completion", "CompletionChunk"),
        "Continue one or several prompts",
    ),
    post("/v1/responses", Handler::Responses).counted().takes(
        RequestSchema::Responses,
        Answer::JsonOrEvents("Response", "ResponseEvent"),
        "Answer in OpenAI's newer dialect; nothing is kept",
    ),
    post("/v1/messages", Handler::Messages).counted().takes(
        RequestSchema::Messages,
        Answer::JsonOrEvents("Message", "MessageEvent"),
        "Answer a chat in Anthropic's dialect",
    ),
    post("/v1/messages/count_tokens", Handler::CountTokens).takes(
        RequestSchema::CountTokens,
        Answer::Json("TokenCount"),
        "Tokens of the prompt that such a chat becomes",
    ),
    get("/v1/models", Handler::Models).answers(Answer::Json("Models"), "The served model and its LoRA adapters, in a list"),
    get("/v1/models/{*id}", Handler::Model).answers(Answer::Json("Model"), "The served model or an adapter, by its name"),
    post("/tokenize", Handler::Tokenize).takes(
        RequestSchema::Generate,
        Answer::Json("Tokens"),
        "The tokens of the `inputs` of a body of /generate, special tokens added; its `parameters` are only checked",
    ),
    post("/chat_tokenize", Handler::ChatTokenize).takes(
        RequestSchema::Chat,
        Answer::Json("ChatTokens"),
        "The prompt that a chat becomes, and its tokens",
    ),
    post("/invocations", Handler::Invocations).counted().takes(
        RequestSchema::Invocation,
        Answer::JsonOrEvents("Invocation", "InvocationEvent"),
        "Amazon SageMaker: a body of `/`, of a chat or of a completion, answered as there",
    ),
    post("/vertex", Handler::Vertex).counted().takes(
        RequestSchema::Vertex,
        Answer::Json("Predictions"),
        "Google Vertex AI: several requests, answered together",
    ),
    get("/v2", Handler::KserveServer)
        .kserve()
        .answers(Answer::Json("KserveServer"), "KServe (`--kserve`): what serves"),
    get("/v2/health/live", Handler::KserveLive)
        .kserve()
        .access(Access::Probe)
        .answers(Answer::Json("KserveLive"), "KServe: 200 while the server runs"),
    get("/v2/health/ready", Handler::KserveReady)
        .kserve()
        .access(Access::Probe)
        .answers(Answer::Json("KserveReady"), "KServe: as /health"),
    get("/v2/models/{name}", Handler::KserveModel)
        .kserve()
        .answers(Answer::Json("KserveModel"), "KServe: about the model; any name is taken"),
    get("/v2/models/{name}/ready", Handler::KserveReady)
        .kserve()
        .answers(Answer::Json("KserveReady"), "KServe: as /health"),
    post("/v2/models/{name}/infer", Handler::KserveInfer).kserve().counted().takes(
        RequestSchema::Infer,
        Answer::Json("Inferred"),
        "KServe: generate texts",
    ),
    get("/v2/models/{name}/versions/{version}", Handler::KserveModel)
        .kserve()
        .answers(Answer::Json("KserveModel"), "KServe: about the model"),
    get("/v2/models/{name}/versions/{version}/ready", Handler::KserveReady)
        .kserve()
        .answers(Answer::Json("KserveReady"), "KServe: as /health"),
    post("/v2/models/{name}/versions/{version}/infer", Handler::KserveInfer).kserve().counted().takes(
        RequestSchema::Infer,
        Answer::Json("Inferred"),
        "KServe: generate texts",
    ),
    get("/info", Handler::Info).answers(Answer::Json("Info"), "What is served and within which limits"),
    get("/health", Handler::Health)
        .access(Access::Probe)
        .answers(Answer::Empty, "200 when new requests are served now, else 503 with the reason"),
    get("/ping", Handler::Health).access(Access::Probe).answers(Answer::Empty, "As /health"),
    get("/readyz", Handler::Health).access(Access::Probe).answers(Answer::Empty, "As /health"),
    get("/livez", Handler::Alive)
        .access(Access::Probe)
        .answers(Answer::Empty, "200 while the server runs, whatever its workers do"),
    get("/", Handler::Index).access(Access::Probe).answers(
        Answer::Empty,
        "A chat page where `Accept` names HTML, as browsers do; otherwise as /health",
    ),
    get("/metrics", Handler::Metrics)
        .access(Access::Metrics)
        .answers(Answer::Text("text/plain"), "Prometheus metrics, as text"),
    get("/block_events", Handler::BlockEvents).with_block_events().answers(
        Answer::Events("BlockEvent"),
        "What the prefix cache gains and loses (`--block-events`), see block-events.md",
    ),
    get("/docs", Handler::Docs)
        .access(Access::Open)
        .answers(Answer::Text("text/html"), "This reference, as a page"),
    get("/api-doc/openapi.json", Handler::OpenApi)
        .access(Access::Open)
        .answers(Answer::Empty, "This reference, as an OpenAPI document"),
    get("/page/{name}", Handler::PageFile).access(Access::PageFile),
];

const fn get(path: &'static str, handler: Handler) -> Route {
    Route::new(Verb::Get, path, handler)
}

const fn post(path: &'static str, handler: Handler) -> Route {
    Route::new(Verb::Post, path, handler)
}

impl Route {
    const fn new(method: Verb, path: &'static str, handler: Handler) -> Self {
        let access = Access::Guarded;
        Self { method, path, access, counted: false, is_asked_for: None, docs: None, handler }
    }

    const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    const fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    const fn kserve(mut self) -> Self {
        self.is_asked_for = Some(|args| args.kserve);
        self
    }

    const fn with_block_events(mut self) -> Self {
        self.is_asked_for = Some(|args| args.block_events);
        self
    }

    const fn takes(mut self, request: RequestSchema, answer: Answer, about: &'static str) -> Self {
        self.docs = Some(Docs { about, request: Some(request), answer });
        self
    }

    const fn answers(mut self, answer: Answer, about: &'static str) -> Self {
        self.docs = Some(Docs { about, request: None, answer });
        self
    }

    /// Its path as OpenAPI writes it.
    pub fn documented_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    pub fn is_served(&self, args: &RouterArgs) -> bool {
        self.is_asked_for.is_none_or(|is_asked_for| is_asked_for(args))
    }

    /// Whether `path` is one of its, as the router sees it.
    pub fn matches(&self, path: &str) -> bool {
        let mut given = path.split('/');
        for segment in self.path.split('/') {
            match given.next() {
                Some(rest) if segment.starts_with("{*") => return !rest.is_empty() || given.next().is_some(),
                Some(one) if segment.starts_with('{') && !one.is_empty() => {}
                Some(one) if segment == one => {}
                _ => return false,
            }
        }
        given.next().is_none()
    }

    /// Whether a request to it needs a key, where the server has any; of the page's files `is_open` knows more.
    pub fn needs_key(&self, args: &RouterArgs) -> bool {
        match self.access {
            Access::Guarded | Access::PageFile => true,
            Access::Metrics => args.guard_metrics,
            Access::Open | Access::Probe => false,
        }
    }
}

/// Whether reading `path` (GET, HEAD) needs no key. Paths are compared letter by letter, as the router matches them: no
/// other spelling of one reaches a route.
pub fn is_open(args: &RouterArgs, path: &str) -> bool {
    let mut reads = ROUTES.iter().filter(|route| route.method == Verb::Get);
    page::is_file(path) || reads.any(|route| route.path == path && !route.needs_key(args))
}

/// The route that is served at `path`, if there is one.
pub fn route_of(args: &RouterArgs, method: Verb, path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.method == method && route.is_served(args) && route.matches(path))
}

/// The route that a client means by a path that is none: the longest of those with which it ends, segment by segment, be it without
/// their `/v1`. Clients put a route behind the address that they were given, and differ in whether that has `/v1`.
pub fn meant(path: &str) -> Option<&'static Route> {
    let given = segments(path);
    let is_end = |route: &&Route| {
        let whole = segments(route.path);
        let short = whole.strip_prefix(&["v1"]).unwrap_or(&whole);
        !short.is_empty() && given.ends_with(short)
    };
    let told = ROUTES.iter().filter(|route| route.docs.is_some() && route.is_asked_for.is_none());
    told.filter(|route| !route.path.contains('{')).filter(is_end).max_by_key(|route| route.path.len())
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).collect()
}

/// What tells whether the server lives or serves.
pub fn probes() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().filter(|route| route.access == Access::Probe).map(|route| route.path)
}

/// What the route of this path takes, as the header `Allow` has it.
pub fn methods(path: &str) -> String {
    let mut methods = Vec::new();
    for route in ROUTES.iter().filter(|route| route.path == path) {
        match route.method {
            Verb::Get => methods.extend(["GET", "HEAD"]),
            Verb::Post => methods.push("POST"),
        }
    }
    methods.sort_unstable();
    methods.join(",")
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn args(flags: &[&str]) -> RouterArgs {
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let line = [&["penstock"], flags].concat();
        RouterArgs::from_arg_matches(&command.get_matches_from(line)).expect("flags")
    }

    #[test]
    fn no_route_that_does_work_is_open() {
        let args = args(&[]);
        for route in &ROUTES {
            let works = route.method == Verb::Post;
            assert!(!works || route.needs_key(&args), "{}", route.path);
            assert!(works || !route.counted, "{}", route.path);
        }
    }

    #[test]
    fn the_route_of_a_path_is_the_one_that_the_router_finds() {
        let plain = args(&[]);
        let handler =
            |args: &RouterArgs, method, path| route_of(args, method, path).map(|route| route.handler);
        for (method, path, expected) in [
            (Verb::Post, "/v1/chat/completions", Some(Handler::ChatCompletions)),
            (Verb::Get, "/v1/chat/completions", None),
            (Verb::Post, "/", Some(Handler::Compat)),
            (Verb::Get, "/", Some(Handler::Index)),
            (Verb::Get, "/v1/models", Some(Handler::Models)),
            (Verb::Get, "/v1/models/", None),
            (Verb::Get, "/v1/models/owner/name", Some(Handler::Model)),
            (Verb::Post, "/v1/endpoints/1/deployedModels/2:predict", None),
            (Verb::Post, "/generate/", None),
            (Verb::Post, "/v2/models/any/infer", None),
        ] {
            assert_eq!(handler(&plain, method, path), expected, "{path}");
        }
        let kserve = args(&["--kserve"]);
        assert_eq!(handler(&kserve, Verb::Post, "/v2/models/any/infer"), Some(Handler::KserveInfer));
        assert_eq!(handler(&kserve, Verb::Post, "/v2/models//infer"), None);
        assert_eq!(handler(&kserve, Verb::Post, "/v2/models/a/b/infer"), None);
    }

    #[test]
    fn a_wrong_path_means_the_longest_route_that_it_ends_with() {
        for (path, route) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("//v1//chat/completions", Some("/v1/chat/completions")),
            ("/openai/v1/completions", Some("/v1/completions")),
            ("/v1/chat/completions/models", Some("/v1/models")),
            ("/v1/v1/messages/count_tokens", Some("/v1/messages/count_tokens")),
            ("/messages", Some("/v1/messages")),
            ("/v1/generate", Some("/generate")),
            ("/api/health", Some("/health")),
            // By whole segments, of what every server has.
            ("/xchat/completionsx", None),
            ("/chat", None),
            ("/v1", None),
            ("/v1/block_events", None),
            ("/models/name", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(meant(path).map(|route| route.path), route, "{path}");
        }
    }

    #[test]
    fn what_is_open_is_read_without_a_key_by_no_other_spelling() {
        let plain = args(&[]);
        for open in ["/", "/health", "/v2/health/live", "/metrics", "/docs", "/page/main.js"] {
            assert!(is_open(&plain, open), "{open}");
        }
        for closed in [
            "/info",
            "/health/",
            "//health",
            "/Health",
            "/%68ealth",
            "/page/none.js",
            "/page/{name}",
            "/v1/models",
        ] {
            assert!(!is_open(&plain, closed), "{closed}");
        }
        let guarded = args(&["--guard-metrics", "--api-key", "a"]);
        assert!(!is_open(&guarded, "/metrics") && is_open(&guarded, "/health"));
    }
}
