//! Jinja2 as Hugging Face transformers sets it up for chat templates: `ImmutableSandboxedEnvironment` with
//! `trim_blocks` and `lstrip_blocks`, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`
//! and its own `tojson`.
//!
//! Why not a library: a prompt must be the same to the byte. minijinja 3.1.0 was measured with shims for Python's
//! methods, filters and printing, against what transformers makes of integration-tests/test_chat_templates.py: of the
//! templates in this repository 5,517 of 5,985 prompts are equal, of the originally published templates 7,964 of 8,545,
//! and it renders 570 that Jinja2 refuses. This interpreter renders all of the former as transformers does, and of the
//! latter 8,459 before the two differences that they showed were mended: filters over falsy values, and the tag of
//! transformers where a message continues. What minijinja's hooks cannot reach: `%` on strings, `1e-07` inside
//! containers and with `~`, that bools equal ints, errors of order, iterating over none, varargs of macros, `+` after
//! `{%`, and the scopes of macros and ifs.
//!
//! `chat` is how transformers calls a model's templates. `lexer` and `parser` make the tree of `ast`; `eval` walks it;
//! `value`, `operators`, `subscripts`, `format` and `methods` are Python's objects, `filters` Jinja's; `budget` bounds
//! what all of them may take. integration-tests/test_chat_templates.py holds all of it to transformers, and `fuzz/` searches for templates that break it.

mod arguments;
mod ast;
mod budget;
mod chat;
mod eval;
mod filters;
mod format;
mod lexer;
mod methods;
mod operators;
mod parser;
mod subscripts;
mod text;
mod value;

use std::collections::HashMap;

use serde_json::{Map, Value as Json};
use tokio_util::sync::CancellationToken;

use budget::{Budget, LIMITS, Limits};
pub use chat::{Chat, ChatError, ChatTemplates, InvalidChat, may_be_default};
use eval::Renderer;
pub use lexer::SyntaxError;
use value::Value;

/// Bytes of a rendering's stack: the deepest calls that `eval` allows take a part of it in any build.
const STACK: usize = 32 << 20;

/// The thread of a rendering could not be started, or it panicked.
const NOT_RUN: &str = "the rendering could not be run";

pub struct Template {
    body: ast::Body,
}

/// Why a rendering failed.
#[derive(Debug)]
pub struct Error {
    pub kind: ErrorKind,
    /// What was raised, or a reason for the operator.
    pub message: String,
    /// Of the template, from 1; 0 when it is not known.
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
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
    /// Too long a time.
    Time,
    /// Nobody waits for the text any more.
    Cancelled,
    /// Calls within calls.
    Depth,
    Other,
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), line: 0 }
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

    /// On a thread with room for calls within calls, whatever the caller's has. Ends soon after `client` is
    /// cancelled.
    pub fn render(&self, variables: &Map<String, Json>, client: &CancellationToken) -> Result<String, Error> {
        self.render_within(LIMITS, variables, client)
    }

    fn render_within(
        &self,
        limits: Limits,
        variables: &Map<String, Json>,
        client: &CancellationToken,
    ) -> Result<String, Error> {
        let rendering = || {
            let budget = Budget::new(limits, client);
            let value =
                |(name, json): (&String, &Json)| Ok((name.as_str().into(), Value::from_json(json, &budget)?));
            let variables = variables.iter().map(value).collect::<Result<HashMap<_, _>, Error>>()?;
            Renderer::new(variables, budget).render(&self.body)
        };
        let failed = |reason: String| {
            tracing::error!("a chat template could not be rendered: {reason}");
            Error::new(ErrorKind::Other, NOT_RUN)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, rendering).map_err(|error| failed(error.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(failed("it panicked".into())))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use serde_json::json;

    fn render(source: &str) -> String {
        let variables = json!({"text": "é<2>", "list": [1, 2.5, true, null, "it's"], "dict": {"b": 1, "a": "x", "items": 3}});
        let template = Template::compile(source).unwrap();
        template
            .render(variables.as_object().unwrap(), &CancellationToken::new())
            .unwrap_or_else(|error| panic!("{source}: {error:?}"))
    }

    fn failure(source: &str) -> Error {
        failure_within(LIMITS, source)
    }

    fn failure_within(limits: Limits, source: &str) -> Error {
        let template = Template::compile(source).unwrap();
        let rendered = template.render_within(limits, &Map::new(), &CancellationToken::new());
        let error = rendered.err().unwrap_or_else(|| panic!("{source}: it must fail"));
        assert_ne!(error.message, NOT_RUN, "{source}");
        error
    }

    fn kind(source: &str) -> ErrorKind {
        failure(source).kind
    }

    /// With a tenth of the steps, so that what spends them all is soon over.
    fn kind_of_spender(source: &str) -> ErrorKind {
        failure_within(Limits { steps: LIMITS.steps / 10, ..LIMITS }, source).kind
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
    fn a_loop_has_else_where_no_pass_got_to_the_end_of_its_body() {
        for (source, text) in [
            (
                "{% for a in [1, 2] %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% else %}E{% endfor %}",
                "2",
            ),
            ("{% for a in [1, 2] %}{{ a }}{% continue %}{% else %}E{% endfor %}", "12E"),
            ("{% for a in [1, 2] %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% else %}E{% endfor %}", "E"),
            ("{% for a in [1, 2] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% else %}E{% endfor %}", "1"),
            ("{% for a in [1, 2] if a > 2 %}{{ a }}{% else %}E{% endfor %}", "E"),
            ("{% for a in [1, 2] if a > 1 %}{{ loop.length }}{% continue %}{% else %}E{% endfor %}", "1E"),
            (
                "{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% break %}{% endfor %}{{ a }}{% else %}E{% endfor %}",
                "1E",
            ),
        ] {
            assert_eq!(render(source), text, "{source}");
        }
    }

    #[test]
    fn troubles_have_their_kind() {
        assert_eq!(kind("{{ a.b }}"), ErrorKind::Undefined);
        assert_eq!(kind("{{ 1 + 'a' }}"), ErrorKind::Type);
        assert_eq!(kind("{{ 1 | nothing }}"), ErrorKind::Unknown);
        assert_eq!(kind("{{ raise_exception('no') }}"), ErrorKind::Raised);
        assert_eq!(kind("{{ [].append(1) }}"), ErrorKind::Other);
    }

    #[test]
    fn what_does_not_end_is_stopped() {
        assert_eq!(
            kind("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
            ErrorKind::Fuel
        );
        assert_eq!(kind("{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}"), ErrorKind::Size);
        assert_eq!(
            kind(
                "{% set n = namespace(x='x' * 100) %}{% for a in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
            ),
            ErrorKind::Size
        );
        assert_eq!(
            kind(
                "{% set n = namespace(x=[1]) %}{% for a in range(90) %}{% set n.x = n.x + n.x %}{% endfor %}"
            ),
            ErrorKind::Size
        );
        assert_eq!(
            kind(
                "{% set n = namespace(x=[]) %}{% for a in range(9000) %}{% set n.x = n.x + ['x' * 1000000] %}{% endfor %}"
            ),
            ErrorKind::Size
        );
        assert_eq!(kind("{{ 'aa' | replace('a', 'b' * 30000000) }}"), ErrorKind::Size);
        assert_eq!(kind("{{ '%999999999d' % 1 }}"), ErrorKind::Size);
        assert_eq!(kind("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), ErrorKind::Depth);
        assert_eq!(kind("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), ErrorKind::Depth);
    }

    /// Lists within lists, each the only two elements of the next: 2 to the power of `levels` elements to visit.
    fn shared(name: &str, levels: usize) -> String {
        format!(
            "{{% set {name} = namespace(x=[1]) %}}{{% for i in range({levels}) %}}\
             {{% set {name}.x = [{name}.x, {name}.x] %}}{{% endfor %}}"
        )
    }

    #[test]
    fn what_is_nested_too_deeply_is_refused_where_it_is_made() {
        for step in ["[n.x]", "(n.x,)", "{1: n.x}", "[n.x] | map('list') | list", "[n.x].copy", "joiner(n.x)"]
        {
            let source = format!(
                "{{% set n = namespace(x=[1]) %}}{{% for i in range(100000) %}}{{% set n.x = {step} %}}{{% endfor %}}"
            );
            assert_eq!(kind(&source), ErrorKind::Other, "{step}");
        }
        for body in [
            "{% for y in [n.x] %}{% set n.x = loop %}{% endfor %}",
            "{% macro f() %}{% set n.x = varargs %}{% endmacro %}{{ f(n.x) }}",
            "{% macro f() %}{% set n.x = kwargs %}{% endmacro %}{{ f(a=n.x) }}",
            "{% set n.x = {'a': n.x}.items() %}",
            "{% set n.x = {'a': n.x} | items %}",
            "{% set n.x = [n.x] | groupby(0) %}",
            "{% set n.x = [n.x] | batch(1) | list %}",
        ] {
            let source =
                format!("{{% set n = namespace(x=[1]) %}}{{% for i in range(100000) %}}{body}{{% endfor %}}");
            assert_eq!(kind(&source), ErrorKind::Other, "{body}");
        }
    }

    #[test]
    fn every_visit_of_an_element_is_counted() {
        let two = shared("a", 60) + &shared("b", 60);
        for use_of_it in [
            "{{ a.x == b.x }}",
            "{{ a.x != b.x }}",
            "{{ a.x < b.x }}",
            "{{ a.x in [b.x] }}",
            "{{ [b.x].index(a.x) }}",
            "{{ [b.x].count(a.x) }}",
            "{{ [a.x, b.x] | sort }}",
            "{{ [a.x, b.x] | max }}",
            "{{ [{'k': a.x}, {'k': b.x}] | groupby('k') }}",
            "{{ {'k': a.x} == {'k': b.x} }}",
            "{{ {'k': a.x}.items() == {'k': b.x}.items() }}",
            "{% for i in [1, 2] %}{{ loop.changed(a.x if loop.first else b.x) }}{% endfor %}",
            "{{ [a.x] | select('eq', b.x) | list }}",
        ] {
            let kind = kind_of_spender(&(two.clone() + use_of_it));
            assert!(matches!(kind, ErrorKind::Fuel | ErrorKind::Time), "{use_of_it}: {kind:?}");
        }
        for use_of_it in [
            "{{ a.x }}",
            "{{ a.x | string }}",
            "{{ a.x | tojson }}",
            "{{ a.x | tojson(indent=100) }}",
            "{{ a.x | pprint }}",
            "{{ a.x | join('-') }}",
            "{{ '%s' % (a.x,) }}",
            "{{ '%r' | format(a.x) }}",
            "{{ '{}'.format(a.x) }}",
            "{{ a.x ~ 1 }}",
            "{{ a.x | urlencode }}",
            "{{ a.x | upper }}",
            "{{ [1][a.x] }}",
            "{{ raise_exception(a.x) }}",
        ] {
            let kind = kind_of_spender(&(two.clone() + use_of_it));
            assert!(
                matches!(kind, ErrorKind::Fuel | ErrorKind::Size | ErrorKind::Time | ErrorKind::Type),
                "{use_of_it}: {kind:?}"
            );
        }
        // The same of tuples, which are keys.
        let tuples = two.replace("[1]", "(1,)").replace("= [a.x, a.x]", "= (a.x, a.x)");
        for use_of_it in
            ["{{ {a.x: 1} }}", "{{ {}.get(a.x) }}", "{{ a.x in {} }}", "{{ [a.x] | unique | list }}"]
        {
            assert_eq!(kind(&(tuples.clone() + use_of_it)), ErrorKind::Size, "{use_of_it}");
        }
    }

    #[test]
    fn long_lists_and_texts_are_not_read_for_nothing() {
        let long =
            "{% set l = range(100000) | list %}{% set t = 'é' * 1000000 %}{% for i in range(100000) %}";
        for body in [
            "{% set y = 'a' in l %}",
            "{% set y = (l + [1]) | first %}",
            "{% set y = l.index(99999) %}",
            "{% set y = l | last %}{% set y = l | length %}{% set y = l | reverse | first %}",
            "{% set y = t[5] %}",
            "{% set y = t[-1] %}",
            "{% set y = t | length %}",
            "{% set y = t[1:2] %}",
            "{% set y = t.count('x') %}",
            "{% set y = t.find('x') %}",
            "{% set y = t.strip('xyz') %}",
            "{% set y = t.startswith('x', 5) %}",
            "{% set y = t is lower %}",
            "{% set y = t | int %}",
            "{% set y = t == t ~ '' %}",
            "{% set y = {t: 1} %}",
            "{% set y = l | map(attribute='a.b.c', default={}) | list %}",
            "{% set y = l | select('eq', 'x') | list %}",
            "{% set y = l | sum %}",
            "{% set y = l | sort(reverse=true) | list %}",
        ] {
            let kind = kind_of_spender(&format!("{long}{body}{{% endfor %}}"));
            assert!(matches!(kind, ErrorKind::Fuel | ErrorKind::Size | ErrorKind::Time), "{body}: {kind:?}");
        }
    }

    #[test]
    fn no_text_grows_beyond_its_bound() {
        for source in [
            "{{ '%1000000000s' % 'x' }}",
            "{{ '%*d' % (1000000000, 1) }}",
            "{{ ('%30000000s' * 1000) % ((1,) * 1000) }}",
            "{{ ('{0:30000000}' * 1000).format(1) }}",
            "{{ '{:1000000000}'.format(1) }}",
            "{{ 'x'.center(1000000000) }}",
            "{{ 'x'.ljust(30000000, '😀') }}",
            "{{ 'x' | center(1000000000) }}",
            "{{ 'x'.zfill(1000000000) }}",
            "{{ ('\n' * 1000000) | indent(1000000, blank=true) }}",
            "{{ ('\t' * 10000000).expandtabs(1000) }}",
            "{{ [[[1]]] | tojson(indent=1000000000) }}",
            "{{ [[[1]]] | tojson(indent='x' * 20000000) }}",
            "{{ [1, 2, 3] | tojson(separators=('x' * 20000000, '')) }}",
            "{{ range(1000) | join('x' * 1000000) }}",
            "{{ ('x' * 1000000).join(('a',) * 1000) }}",
            "{{ ('x' * 1000000).replace('', 'y' * 1000) }}",
            "{{ ('<' * 10000000) | escape }}",
            "{{ ('é' * 10000000) | urlencode }}",
            "{{ [1] * 1000000000000 }}",
            "{{ 'x' * 1000000000000 }}",
            "{{ ('x' * 30000000) | list }}",
            "{{ ('x,' * 10000000).split(',') }}",
            "{{ ('x ' * 10000000).split() }}",
            "{{ ('\n' * 10000000).splitlines() }}",
            "{{ [['\x01' * 10000000]] }}",
            "{{ ('\x01' * 10000000) | tojson }}",
            "{{ 'x' | batch(100000000, 1) | list }}",
            "{{ strftime_now('%c' * 2000000) }}",
            "{% macro f(n) %}{{ 'x' * 30000000 }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        ] {
            let kind = kind(source);
            assert!(matches!(kind, ErrorKind::Size | ErrorKind::Fuel), "{source}: {kind:?}");
        }
        assert_eq!(kind("{{ range(1000000000000) }}"), ErrorKind::Other);
    }

    #[test]
    fn filters_that_apply_filters_do_not_nest_without_end() {
        assert_eq!(kind("{{ 'a' | map(*(['map'] * 1000)) | list }}"), ErrorKind::Depth);
        assert_eq!(kind("{{ 'a' | map(*(['map'] * 100000)) | list }}"), ErrorKind::Size);
    }

    #[test]
    fn what_calls_and_loops_hold_at_once_is_bounded() {
        let long = "{% set l = [1] * 1000000 %}";
        for source in [
            "{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
            "{% macro f() %}{% for x in l %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
            "{% macro f(a=1) %}{{ caller(*l) }}{% endmacro %}{% call f() %}{{ varargs | length }}{{ f(*l) }}{% endcall %}",
            "{% macro f() %}{{ f(*l) }}{{ varargs | length }}{% endmacro %}{{ f() }}",
            "{% set n = namespace(l=0) %}{% for i in range(50) %}{% for x in l %}{% set n.l = [n.l, loop] %}{{ loop.last }}\
             {% break %}{% endfor %}{% endfor %}",
        ] {
            let kind = kind(&(long.to_owned() + source));
            assert!(matches!(kind, ErrorKind::Size | ErrorKind::Type), "{source}: {kind:?}");
        }
    }

    #[test]
    fn numbers_beyond_127_bits_are_an_error() {
        let least = "-170141183460469231731687303715884105727 - 1";
        for source in [
            format!("{{{{ -({least}) }}}}"),
            format!("{{{{ ({least}) | abs }}}}"),
            format!("{{{{ ({least}) // -1 }}}}"),
            format!("{{{{ ({least}) - 1 }}}}"),
            format!("{{{{ 2 * ({least}) }}}}"),
            "{{ 170141183460469231731687303715884105727 + 1 }}".into(),
            "{{ 2 ** 127 }}".into(),
            "{{ 10 ** 4000000000 }}".into(),
            "{{ 1e300 | int }}".into(),
            "{{ '%d' % 1e300 }}".into(),
            format!("{{{{ '{}' | int }}}}", "9".repeat(400)),
        ] {
            let error = failure(&source);
            assert!(error.message.contains("too large"), "{source}: {error:?}");
        }
        for source in [
            format!("{{{{ 'abc'[{least}] }}}}"),
            format!("{{{{ 'abc'[{least}:] }}}}"),
            format!("{{{{ [1, 2][::{least}] }}}}"),
            format!("{{{{ ({least}) % -1 }}}}"),
            format!("{{{{ ({least}) | round(-3) }}}}"),
            format!("{{{{ 'abc'.find('a', {least}) }}}}"),
            format!("{{{{ 'abc'.center({least}) }}}}"),
        ] {
            let rendered = Template::compile(&source).unwrap().render(&Map::new(), &CancellationToken::new());
            assert!(rendered.is_ok(), "{source}: {rendered:?}");
        }
    }

    #[test]
    fn order_may_contradict_itself() {
        let sorted = render("{{ ([3, 'nan' | float, 1, 2] * 100) | sort | length }}");
        assert_eq!(sorted, "400");
        assert_eq!(render("{{ [3, 1, 2] | sort(reverse=true) }}"), "[3, 2, 1]");
        assert_eq!(
            render(
                "{{ [{'k': 1, 'n': 'a'}, {'k': 0, 'n': 'b'}, {'k': 1, 'n': 'c'}] | sort(attribute='k') | map(attribute='n') | join }}"
            ),
            "bac"
        );
        assert_eq!(
            render(
                "{{ [{'k': 1, 'n': 'a'}, {'k': 0, 'n': 'b'}, {'k': 1, 'n': 'c'}] | sort(attribute='k', reverse=true) | map(attribute='n') | join }}"
            ),
            "acb"
        );
    }

    #[test]
    fn keys_that_are_equal_are_one() {
        assert_eq!(render("{{ {1: 'a', 1.0: 'b', true: 'c'} }}"), "{1: 'c'}");
        assert_eq!(render("{{ {(1, (2, 3)): 'a'}[(1.0, (2, 3))] }}"), "a");
        assert_eq!(render("{{ {range(0): 'a'}[range(5, 5)] }}{{ {none: 'b'}[none] }}"), "ab");
        assert_eq!(render("{% set n = namespace() %}{{ {n: 'a', namespace(): 'b'}[n] }}"), "a");
    }

    #[test]
    fn macros_see_the_scope_that_they_were_made_in_when_it_has_ended() {
        let source = "{% set n = namespace(f=none) %}{% for i in [1, 2] %}{% set own = i * 10 %}\
                      {% macro f(x) %}{{ own + x }}{% endmacro %}{% set n.f = f %}{% endfor %}{{ n.f(3) }}";
        assert_eq!(render(source), "23");
        let source = "{% set n = namespace(l=none) %}{% for i in [1] recursive %}{% set n.l = loop %}{{ i }}{% endfor %}\
                      {{ n.l([5, 6]) }}{{ n.l.index }}{{ n.l.changed(n.l) }}{{ n.l.changed(n.l) }}";
        assert_eq!(render(source), "1562TrueFalse");
    }

    const ENDLESS: &str = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";

    #[test]
    fn names_are_counted_however_many_there_are() {
        let names = |count: usize| (0..count).map(|at| format!("a{at}")).collect::<Vec<_>>().join(",");
        let many = names(100_000);
        for source in [
            format!("{{% macro f({many}) %}}{{% endmacro %}}{{{{ f() }}}}"),
            format!("{{% set {many} = range(100000) %}}"),
            format!("{{% for {many} in [range(100000)] %}}{{% endfor %}}"),
            (0..100_000).map(|at| format!("{{% set a{at} = 1 %}}")).collect(),
            // Each is looked for among all.
            format!("{{% set {} = range(5000) %}}{}", names(5000), "{{ nobody }}".repeat(300_000)),
        ] {
            let began = Instant::now();
            let kind = kind_of_spender(&source);
            assert!(matches!(kind, ErrorKind::Fuel | ErrorKind::Time), "{}: {kind:?}", &source[..40]);
            assert!(began.elapsed() < LIMITS.time * 2, "{}: {:?}", &source[..40], began.elapsed());
        }
    }

    #[test]
    fn a_long_text_that_is_looked_for_in_a_short_one_is_counted() {
        for use_of_it in ["'a'.find(t)", "'a' | replace(t, '')", "t in 'a'"] {
            let source = format!(
                "{{% set t = 'ab' * 16000000 %}}{{% for i in range(100000) %}}{{{{ {use_of_it} }}}}{{% endfor %}}"
            );
            let kind = kind_of_spender(&source);
            assert!(matches!(kind, ErrorKind::Fuel | ErrorKind::Time), "{use_of_it}: {kind:?}");
        }
    }

    #[test]
    fn a_clock_stops_what_steps_do_not() {
        let template = Template::compile(ENDLESS).unwrap();
        let error = template
            .render_within(Limits { time: Duration::ZERO, ..LIMITS }, &Map::new(), &CancellationToken::new())
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Time);
    }

    #[test]
    fn a_rendering_ends_when_nobody_waits_for_it() {
        let client = CancellationToken::new();
        client.cancel();
        let error = Template::compile(ENDLESS).unwrap().render(&Map::new(), &client).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled);
    }

    #[test]
    fn many_variables_do_not_slow_a_template_down() {
        let variables: Map<String, Json> = (0..100_000).map(|at| (format!("v{at}"), json!(at))).collect();
        let source = "{% for i in range(100000) %}{% set x = unheard %}{% set y = v99999 %}{% endfor %}done";
        let rendered = Template::compile(source).unwrap().render(&variables, &CancellationToken::new());
        assert_eq!(rendered.unwrap(), "done");
    }

    #[test]
    fn what_is_raised_is_shortened_and_says_so() {
        let error = failure("{{ raise_exception('é' * 1000000) }}");
        assert!(error.message.ends_with("é... (1996000 bytes more)"), "{}", error.message.len());
    }

    /// Pieces of templates, put together by chance: most fail, none may panic, take long or write much.
    fn pieces() -> impl proptest::strategy::Strategy<Value = String> {
        use proptest::prelude::*;
        let leaf = prop::sample::select(vec![
            "x",
            "y",
            "n",
            "n.x",
            "loop",
            "loop.index0",
            "messages",
            "text",
            "list",
            "dict",
            "1",
            "0",
            "-1",
            "2.5",
            "1e300",
            "'a'",
            "'é😀'",
            "none",
            "true",
            "[]",
            "{}",
            "()",
            "range(9)",
            "range",
            "namespace",
            "f",
            "caller",
            "varargs",
            "kwargs",
            "unheard",
            "170141183460469231731687303715884105727",
            "'nan' | float",
            "joiner()",
        ])
        .prop_map(str::to_owned);
        let name = prop::sample::select(
            "abs attr batch capitalize center count default dictsort e escape first float forceescape format groupby \
             indent int items join last length list lower map max min pprint random reject rejectattr replace reverse \
             round safe select selectattr slice sort string sum title tojson trim truncate unique upper urlencode \
             wordcount"
                .split(' ')
                .collect::<Vec<_>>(),
        );
        let method = prop::sample::select(
            "upper capitalize center count endswith expandtabs find format format_map index isdigit join ljust lstrip \
             partition removeprefix replace rfind rindex rjust rpartition rsplit split splitlines startswith strip \
             swapcase title zfill get items keys values copy append cycle changed"
                .split(' ')
                .collect::<Vec<_>>(),
        );
        let test = prop::sample::select(
            "defined none string mapping sequence iterable callable lower odd divisibleby(0) eq(x) in(x) sameas(x) \
             escaped filter gt(1) number"
                .split(' ')
                .collect::<Vec<_>>(),
        );
        let operator = prop::sample::select(vec![
            "+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "in", "not in", "and", "or",
        ]);
        let expression = leaf.prop_recursive(5, 40, 3, move |inner| {
            let two = (inner.clone(), inner.clone());
            prop_oneof![
                (inner.clone(), operator.clone(), inner.clone())
                    .prop_map(|(a, o, b)| format!("({a}) {o} ({b})")),
                (inner.clone(), name.clone()).prop_map(|(a, f)| format!("({a}) | {f}")),
                (inner.clone(), name.clone(), inner.clone())
                    .prop_map(|(a, f, b)| format!("({a}) | {f}({b})")),
                (two.clone(), name.clone(), inner.clone())
                    .prop_map(|((a, b), f, c)| format!("({a}) | {f}({b}, {c})")),
                (inner.clone(), method.clone(), inner.clone())
                    .prop_map(|(a, m, b)| format!("({a}).{m}({b})")),
                (inner.clone(), method.clone()).prop_map(|(a, m)| format!("({a}).{m}()")),
                (inner.clone(), test.clone()).prop_map(|(a, t)| format!("({a}) is {t}")),
                two.clone().prop_map(|(a, b)| format!("({a})[{b}]")),
                (two.clone(), inner.clone()).prop_map(|((a, b), c)| format!("({a})[{b}:{c}]")),
                two.clone().prop_map(|(a, b)| format!("[{a}, {b}]")),
                two.clone().prop_map(|(a, b)| format!("({a}, {b})")),
                two.clone().prop_map(|(a, b)| format!("{{{a}: {b}}}")),
                two.clone().prop_map(|(a, b)| format!("({a})({b})")),
                two.clone().prop_map(|(a, b)| format!("({a})(*{b})")),
                inner.clone().prop_map(|a| format!("-({a})")),
                inner.prop_map(|a| format!("({a}) * 1000000")),
            ]
        });
        let statement = expression.clone().prop_map(|e| format!("{{{{ {e} }}}}")).prop_recursive(
            4,
            24,
            3,
            move |inner| {
                let e = expression.clone();
                prop_oneof![
                    (inner.clone(), inner.clone()).prop_map(|(a, b)| a + &b),
                    (e.clone(), inner.clone()).prop_map(|(e, s)| format!("{{% set x = {e} %}}{s}")),
                    (e.clone(), inner.clone()).prop_map(|(e, s)| format!("{{% set n.x = {e} %}}{s}")),
                    (e.clone(), inner.clone())
                        .prop_map(|(e, s)| format!("{{% for y in {e} %}}{s}{{% endfor %}}")),
                    (e.clone(), inner.clone()).prop_map(|(e, s)| format!(
                        "{{% for y in {e} if y recursive %}}{s}{{{{ loop(y) }}}}{{% endfor %}}"
                    )),
                    (e.clone(), inner.clone()).prop_map(|(e, s)| format!("{{% if {e} %}}{s}{{% endif %}}")),
                    (inner.clone(), e.clone())
                        .prop_map(|(s, e)| format!("{{% macro f(x) %}}{s}{{% endmacro %}}{{{{ f({e}) }}}}")),
                    (inner.clone(), e.clone())
                        .prop_map(|(s, e)| format!("{{% call f({e}) %}}{s}{{% endcall %}}")),
                    (inner.clone())
                        .prop_map(|s| format!("{{% set x %}}{s}{{% endset %}}{{% set n.x = f %}}")),
                    inner.prop_map(|s| format!("{{% filter replace('', x) %}}{s}{{% endfilter %}}")),
                ]
            },
        );
        statement.prop_map(|s| format!("{{% set n = namespace(x=1) %}}{{% macro f() %}}{{% endmacro %}}{s}"))
    }

    fn holds_its_bounds(source: &str) {
        let Ok(template) = Template::compile(source) else { return };
        let variables =
            json!({"messages": [{"role": "user", "content": "é <x>\n"}], "text": "a b", "list": [1, [2]]});
        let variables = variables.as_object().unwrap();
        let rendered = template.render_within(
            Limits { time: Duration::from_millis(200), ..LIMITS },
            variables,
            &CancellationToken::new(),
        );
        match rendered {
            Ok(text) => assert!(text.len() <= budget::MAX_TEXT),
            Err(error) => assert_ne!(error.message, NOT_RUN, "{source}"),
        }
    }

    proptest::proptest! {
        // PROPTEST_CASES makes it a longer search.
        #![proptest_config(proptest::prelude::ProptestConfig { cases: 4 * proptest::prelude::ProptestConfig::default().cases, ..Default::default() })]

        #[test]
        fn templates_made_by_chance_hold_their_bounds(source in pieces()) {
            holds_its_bounds(&source);
        }

        #[test]
        fn texts_made_by_chance_are_templates_or_are_refused(
            source in r"(\{\{|\}\}|\{%-?|-?%\}|\{#|#\}|[a-z ]|if |for |in |endfor|endif|set |macro |raw|[-+*/|.,()\[\]{}'=é\n0-9]){0,40}"
        ) {
            holds_its_bounds(&source);
        }
    }
}
