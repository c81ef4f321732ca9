//! Jinja2 as Hugging Face transformers sets it up for chat templates: `ImmutableSandboxedEnvironment` with
//! `trim_blocks` and `lstrip_blocks`, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`
//! and its own `tojson`.
//!
//! Why not a library: a prompt must be the same to the byte, and templates print Python's values, add them,
//! divide them, format them with `%` and call their methods. The Jinja engines for Rust have a value model of
//! their own (no tuples, their own division, comparison and printing), which cannot be replaced from outside.
//! minijinja with shims for Python's methods, filters and printing gave 7,129 of the 7,644 prompts of
//! integration-tests/test_chat_templates.py; this gives all.
//!
//! `lexer` and `parser` make the tree of `ast`; `eval` walks it; `value`, `operators`, `format` and `methods`
//! are Python's objects, `filters` and `predicates` Jinja's. integration-tests/test_chat_templates.py holds all
//! of it to transformers.

mod ast;
mod eval;
mod filters;
mod format;
mod lexer;
mod methods;
mod operators;
mod parser;
mod predicates;
mod text;
mod value;

use serde_json::{Map, Value as Json};

use eval::Renderer;
pub use lexer::SyntaxError;
use value::Value;

/// Bytes of the longest text that a rendering may make.
pub const MAX_TEXT: usize = 32 << 20;

/// Bytes of a rendering's stack: the deepest calls that `eval` allows take a part of it in any build.
const STACK: usize = 32 << 20;

pub struct Template {
    body: ast::Body,
}

/// Why a rendering failed.
#[derive(Debug)]
pub struct Error {
    pub trouble: Trouble,
    /// What was raised, or a reason for the operator.
    pub message: String,
    /// Of the template, from 1; 0 when it is not known.
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The template's own complaint: `raise_exception`.
    Raised,
    /// Something is used that is not there.
    Undefined,
    /// An operation that these types do not have.
    Type,
    /// A filter, a test or a method of a name that is not known.
    Unknown,
    /// Too many steps.
    Fuel,
    /// Too long a text, or too much memory.
    Size,
    /// Calls within calls.
    Depth,
    Other,
}

impl Error {
    fn new(trouble: Trouble, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into(), line: 0 }
    }

    /// The innermost statement is the one that is told.
    fn at(mut self, line: u32) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

impl Template {
    pub fn compile(source: &str) -> Result<Self, SyntaxError> {
        Ok(Self { body: parser::parse(source)? })
    }

    /// On a thread with room for calls within calls, whatever the caller's has.
    pub fn render(&self, variables: &Map<String, Json>) -> Result<String, Error> {
        let rendering = || {
            let names = variables.iter().map(|(name, value)| (name.as_str().into(), Value::from_json(value)));
            Renderer::default().render(&self.body, names.collect())
        };
        let failed = |_: String| Error::new(Trouble::Other, "the rendering could not be run");
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, rendering).map_err(|error| failed(error.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(failed("it panicked".into())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str) -> String {
        let variables = json!({"text": "é<2>", "list": [1, 2.5, true, null, "it's"], "dict": {"b": 1, "a": "x", "items": 3}});
        let template = Template::compile(source).unwrap();
        template.render(variables.as_object().unwrap()).unwrap_or_else(|error| panic!("{source}: {error:?}"))
    }

    fn trouble(source: &str) -> Trouble {
        Template::compile(source).unwrap().render(&Map::new()).unwrap_err().trouble
    }

    #[test]
    fn values_are_printed_as_python_prints_them() {
        assert_eq!(
            render("{{ list }} {{ dict }}"),
            r#"[1, 2.5, True, None, "it's"] {'b': 1, 'a': 'x', 'items': 3}"#
        );
        assert_eq!(
            render("{{ (1,) }} {{ 1e20 }} {{ 1e-7 }} {{ 7 // -2 }} {{ 7 % -2 }}"),
            "(1,) 1e+20 1e-07 -4 -1"
        );
        assert_eq!(
            render("{{ '%s is %05.1f%%' % ('it', 2.25) }} {{ '{0!r:>5}|{x}'.format('a', x=1) }}"),
            "it is 002.2%   'a'|1"
        );
        assert_eq!(
            render("{{ dict | tojson(indent=1) }}"),
            "{\n \"b\": 1,\n \"a\": \"x\",\n \"items\": 3\n}"
        );
    }

    #[test]
    fn methods_go_before_keys_and_keys_before_methods() {
        assert_eq!(render("{{ dict.items() | list | length }} {{ dict['items'] }} {{ dict.b }}"), "3 3 1");
    }

    #[test]
    fn scopes_are_jinjas() {
        assert_eq!(render("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}"), "1");
        assert_eq!(
            render("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}"),
            "b"
        );
        assert_eq!(
            render("{% for x in [[1, [2]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}"),
            "12"
        );
    }

    #[test]
    fn troubles_have_their_kind() {
        assert_eq!(trouble("{{ a.b }}"), Trouble::Undefined);
        assert_eq!(trouble("{{ 1 + 'a' }}"), Trouble::Type);
        assert_eq!(trouble("{{ 1 | nothing }}"), Trouble::Unknown);
        assert_eq!(trouble("{{ raise_exception('no') }}"), Trouble::Raised);
        assert_eq!(trouble("{{ [].append(1) }}"), Trouble::Other);
    }

    #[test]
    fn what_does_not_end_is_stopped() {
        assert_eq!(
            trouble("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
            Trouble::Fuel
        );
        assert_eq!(trouble("{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}"), Trouble::Size);
        assert_eq!(
            trouble(
                "{% set n = namespace(x='x' * 100) %}{% for a in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
            ),
            Trouble::Size
        );
        assert_eq!(
            trouble(
                "{% set n = namespace(x=[1]) %}{% for a in range(90) %}{% set n.x = n.x + n.x %}{% endfor %}"
            ),
            Trouble::Size
        );
        assert_eq!(
            trouble(
                "{% set n = namespace(x=[]) %}{% for a in range(9000) %}{% set n.x = n.x + ['x' * 1000000] %}{% endfor %}"
            ),
            Trouble::Size
        );
        assert_eq!(trouble("{{ 'aa' | replace('a', 'b' * 30000000) }}"), Trouble::Size);
        assert_eq!(trouble("{{ '%999999999d' % 1 }}"), Trouble::Size);
        assert_eq!(trouble("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), Trouble::Depth);
        assert_eq!(trouble("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), Trouble::Depth);
    }
}
