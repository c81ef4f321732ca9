//! Answers at random, from a seed: texts, reasoning, calls of six tools. Strings hold what is hard: quotes, backslashes,
//! line breaks, other writing systems, markers of all formats, and words (`sentinels`) that must not get lost.

use penstock_output::Tool;
use serde_json::{Map, Value, json};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    pub reasoning: String,
    pub before: String,
    pub calls: Vec<(String, Map<String, Value>)>,
    pub after: String,
}

pub fn tools() -> Vec<Tool> {
    let tool = |name: &str, parameters: Value| Tool { name: name.to_owned(), parameters };
    vec![
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            }}),
        ),
        tool(
            "search",
            json!({"type": "object", "properties": {
                "query": {"type": "string"},
                "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "filters": {"type": "object", "properties": {
                    "site": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
                }},
                "fields": {"type": "array", "items": {"type": "string"}},
            }}),
        ),
        tool(
            "write_file",
            json!({"type": "object", "properties": {
                "path": {"type": "string"}, "content": {"type": "string"}, "overwrite": {"type": "boolean"},
            }}),
        ),
        tool(
            "calculate",
            json!({"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}),
        ),
        tool("ping", json!({"type": "object", "properties": {}})),
        tool(
            "wide",
            json!({"$ref": "#/$defs/w", "$defs": {"w": {"properties": {"from": {"type": ["string", "null"]}}}}}),
        ),
    ]
}

/// Words that no format could mean by itself.
pub fn sentinel(random: &mut Random) -> String {
    let letters = b"abcdefghijklmnopqrstuvwxyz";
    let middle: String = (0..6).map(|_| char::from(*random.of(letters))).collect();
    format!("ß{middle}ß")
}

pub fn sentinels(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let begin = rest.find('ß')?;
            let word = rest.get(begin..begin + 10);
            match word {
                Some(word)
                    if word.ends_with('ß') && word[2..8].bytes().all(|byte| byte.is_ascii_lowercase()) =>
                {
                    rest = &rest[begin + 10..];
                    return Some(word);
                }
                _ => rest = &rest[begin + 2..],
            }
        }
    })
}

const HARD: &[&str] = &[
    "\"",
    "\\",
    "\n",
    "\t",
    "'",
    "é",
    "杭州",
    "😀",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "</",
    "`",
    "```",
    "\\n",
    "\\u0041",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call|>",
    "</function>",
    "<function=f>",
    "<arg_key>",
    "<｜DSML｜invoke name=\"f\">",
    "<|tool_call_begin|>",
    "<|start|>",
    "{\"name\": \"ping\"}",
    "ping()",
    ", ",
    ": ",
    "=",
    "\"\"\"",
    "'''",
    "<|\"|",
    "call:f{",
    "]<]minimax[",
    "&quot;",
    "null",
    "true",
    "7",
];

pub fn text(random: &mut Random, forbidden: &[&str]) -> String {
    let mut text = sentinel(random);
    for _ in 0..random.below(5) {
        text.push_str(if random.chance(2) { " " } else { "" });
        let hard = random.of(HARD);
        let with = format!("{text}{hard}{}", sentinel(random));
        if !forbidden.iter().any(|marker| with.contains(marker)) {
            text = with;
        }
    }
    text
}

/// Prose that holds no marker.
pub fn prose(random: &mut Random) -> String {
    let words = [
        "Let me", "see.", "a < b", "x[0]", "\"so\"", "it's", "1,", "2;", "{x}", "杭州", "<b>", "f(x)",
        "\n\n", "é",
    ];
    let mut text = sentinel(random);
    for _ in 0..random.below(6) {
        text = format!("{text} {} {}", random.of(&words), sentinel(random));
    }
    text
}

pub fn arguments(random: &mut Random, tool: &str, forbidden: &[&str]) -> Map<String, Value> {
    let mut arguments = Map::new();
    let mut put = |random: &mut Random, key: &str, value: Value| {
        if !random.chance(4) {
            arguments.insert(key.to_owned(), value);
        }
    };
    let some_text = |random: &mut Random| json!(text(random, forbidden));
    match tool {
        "get_weather" => {
            let city = some_text(random);
            put(random, "city", city);
            let days = random.below(1000) as i64 - 500;
            put(random, "days", json!(days));
            put(random, "unit", json!("celsius"));
        }
        "search" => {
            let query = some_text(random);
            put(random, "query", query);
            let limit = if random.chance(3) { Value::Null } else { json!(random.below(100)) };
            put(random, "limit", limit);
            let filters = json!({"site": some_text(random), "tags": [some_text(random), "x"]});
            put(random, "filters", filters);
            let fields = json!([some_text(random), some_text(random)]);
            put(random, "fields", fields);
        }
        "write_file" => {
            put(random, "path", json!("/tmp/a.rs"));
            let content = some_text(random);
            put(random, "content", content);
            let overwrite = random.chance(2);
            put(random, "overwrite", json!(overwrite));
        }
        "calculate" => {
            let x = random.below(100_000) as f64 / 1024.0;
            put(random, "x", json!(x));
            put(random, "y", json!(-3));
        }
        "wide" => {
            let from = some_text(random);
            put(random, "from", from);
        }
        _ => {}
    }
    arguments
}
