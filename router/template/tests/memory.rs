//! What a rendering takes it gives back: an allocator that counts, and chats of all kinds of templates. In a binary of
//! its own, because the allocator is the whole process's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, PoisonError};

use penstock_template::{Chat, ChatTemplates};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

struct Counting;

/// Bytes that are allocated and not yet given back.
static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: everything is the system's; only sizes are added up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Held by the test that runs: what others allocate would be counted too.
static ALONE: Mutex<()> = Mutex::new(());

/// What may be left of thousands of chats: what threads and the test keep, no chat's.
const SLACK: isize = 256 << 10;

/// Everything that a template may build and that may refer to itself.
const KNOTS: [&str; 12] = [
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{% macro g() %}{{ f }}{% endmacro %}{% if x %}{{ f(x - 1) }}{% endif %}{{ g() }}{% endmacro %}{{ f(3) }}",
    "{% set n = namespace() %}{% set n.self = n %}{% set n.list = [n, {'n': n}, (n,)] %}{{ n.list | length }}",
    "{% set n = namespace(a=1) %}{% macro f() %}{{ n.a }}{% endmacro %}{% set n.f = f %}{% set n.g = [f] %}{{ n.f() }}",
    "{% set n = namespace() %}{% set m = namespace(n=n) %}{% set n.m = m %}{% set n.get = {'n': n}.get %}{{ n.get('n').m.n == n }}",
    "{% set n = namespace() %}{% for x in [n] %}{% set n.loop = loop %}{{ loop.changed(loop, n) }}{% endfor %}{{ n.loop.changed(n.loop) }}",
    "{% set n = namespace() %}{% for x in [[1, [2]]] recursive %}{% set n.l = loop %}{{ x if x is number else loop(x) }}{% endfor %}",
    "{% set n = namespace() %}{% macro f() %}{% set n.c = caller %}{{ caller(1) }}{% endmacro %}{% call(x) f() %}{{ x }}{{ n.c }}{% endcall %}",
    "{% set n = namespace() %}{% set n.i = [n] | map(attribute='i') %}{% set n.j = joiner(n) %}{{ n.j() }}",
    "{% set n = namespace() %}{% macro f() %}{% set n.v = varargs %}{% set n.k = kwargs %}{% endmacro %}{{ f(n, f, k=f) }}",
    "{% set n = namespace() %}{% macro f() %}{% endmacro %}{% set n.d = dict(n, f=f, n=n) %}{{ n.d | length }}{{ raise_exception('no') }}",
    "{% set n = namespace(l=[1]) %}{% for i in range(1000) %}{% set n.l = [n.l, n.l] %}{% endfor %}",
];

fn load(template: &str) -> ChatTemplates {
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
    let tokens = tokens.as_object().expect("as the test made it").clone();
    let sources = [("default".to_owned(), template.to_owned())];
    ChatTemplates::compile(&sources, tokens, |_, reason| panic!("{template}: {reason}"))
}

fn chats() -> Vec<Chat> {
    let call = json!([{"id": "abcdef123", "type": "function", "function": {"name": "add", "arguments": {"a": [1, {"b": 2}]}}}]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "description": "one"}}, "required": ["a"]});
    let tools = json!([{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": schema}}]);
    let conversations = [
        json!([{"role": "user", "content": " hi "}]),
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
               {"role": "assistant", "content": "<think>hm</think>yes"}, {"role": "user", "content": "and?"}]),
        json!([{"role": "user", "content": "1+1"}, {"role": "assistant", "content": null, "tool_calls": call},
               {"role": "tool", "content": "2", "tool_call_id": "abcdef123", "name": "add"}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "one"}]}, {"role": "assistant", "content": "open"}]),
    ];
    let variables = Map::from_iter([("x".to_owned(), Value::from(vec![json!({}); 100]))]);
    conversations
        .iter()
        .flat_map(|messages| [None, tools.as_array().cloned()].map(|tools| (messages, tools)))
        .map(|(messages, tools)| Chat {
            messages: messages.as_array().expect("as the test made it").clone(),
            tools,
            variables: variables.clone(),
            ..Chat::default()
        })
        .collect()
}

#[test]
fn ten_thousand_chats_of_all_kinds_leave_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let shapes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/chat_templates");
    let mut templates: Vec<String> = std::fs::read_dir(shapes)
        .expect("as the test made it")
        .map(|entry| std::fs::read_to_string(entry.expect("as the test made it").path()).unwrap())
        .collect();
    assert!(templates.len() > 40);
    templates.extend(KNOTS.map(str::to_owned));
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../server/penstock/tiny/model/chat_template.jinja");
    templates.extend(std::fs::read_to_string(shipped));
    let prompts: Vec<ChatTemplates> = templates.iter().map(|template| load(template)).collect();
    let chats = chats();
    let mut rendered = 0;
    let mut answered = 0;
    let mut settled = 0;
    while rendered < 10_000 {
        for prompt in &prompts {
            for chat in &chats {
                answered += usize::from(prompt.render(chat, &CancellationToken::new()).is_ok());
                rendered += 1;
            }
        }
        // Every template was used, and so was everything that is made once.
        if settled == 0 {
            settled = LIVE.load(Ordering::Relaxed);
        }
    }
    assert!(answered > rendered / 2, "{answered} of {rendered}");
    let left = LIVE.load(Ordering::Relaxed) - settled;
    assert!(left < SLACK, "{rendered} chats left {left} bytes");
}

#[test]
fn a_large_variable_is_given_back_even_where_the_template_ties_it_to_itself() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let source = "{% set n = namespace(x=x) %}{% set n.self = n %}{% macro f(a) %}{{ n.x | length }}{% endmacro %}\
                  {% set n.f = f %}{{ f(x) }}";
    let prompt = load(source);
    let large = Chat {
        variables: Map::from_iter([("x".to_owned(), Value::from(vec![json!({}); 100_000]))]),
        ..Chat::default()
    };
    let mut settled = 0;
    for round in 0..10 {
        assert_eq!(prompt.render(&large, &CancellationToken::new()).expect("as the test made it"), "100000");
        if round == 1 {
            settled = LIVE.load(Ordering::Relaxed);
        }
    }
    let left = LIVE.load(Ordering::Relaxed) - settled;
    assert!(left < 8 << 20, "eight chats left {left} bytes");
}
