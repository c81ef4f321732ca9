//! Tokens to the syntax tree: Jinja2's grammar with the tags that chat templates may use (its own, loop
//! controls, and `generation` of transformers). What needs a loader (`include`, `import`, `extends`) is not
//! known, as there is none.

mod expressions;

use std::sync::Arc;

use crate::ast::{Body, Call, Expr, For, Macro, Statement, StatementKind, Target};
use crate::lexer::{SyntaxError, Token, tokenize};

/// Deeper nesting is refused: it would take the stack of whoever walks the tree.
const MAX_DEPTH: u32 = 64;
/// So are longer chains of operators, filters or subscripts, which are trees that lean to one side.
const MAX_CHAIN: u32 = 400;
/// And more links in one tag, since chains lean on chains.
const MAX_LINKS: u32 = 2000;
/// Bytes of the longest template.
const MAX_SOURCE: usize = 4 << 20;

pub fn parse(source: &str) -> Result<Body, SyntaxError> {
    if source.len() > MAX_SOURCE {
        let reason = format!("the template has {} bytes; {MAX_SOURCE} are allowed", source.len());
        return Err(SyntaxError { line: 1, reason });
    }
    let mut parser = Parser {
        tokens: tokenize(source)?,
        at: 0,
        depth: 0,
        links: 0,
        loops: 0,
        ahead: Vec::new(),
        macros: Vec::new(),
    };
    let body = parser.body(&[])?;
    Ok(body)
}

/// Which of the special names the body of a macro uses.
#[derive(Default)]
struct Uses {
    caller: bool,
    varargs: bool,
    kwargs: bool,
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: u32,
    /// Links of all chains in the tag that is parsed.
    links: u32,
    /// Loops around the place that is parsed, for `break`.
    loops: u32,
    /// Whether the loops around it look ahead.
    ahead: Vec<bool>,
    macros: Vec<Uses>,
}

type Parsed<T> = Result<T, SyntaxError>;

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Parsed<T> {
        Err(SyntaxError { line: self.line(), reason: reason.into() })
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Token::Operator(found) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if **found == *name)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.next();
        }
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    fn expect_operator(&mut self, operator: &str) -> Parsed<()> {
        if self.skip_operator(operator) { Ok(()) } else { self.fail(format!("`{operator}` is missing")) }
    }

    fn expect_name(&mut self) -> Parsed<Arc<str>> {
        match self.next() {
            Token::Name(name) => Ok(name),
            _ => self.fail("a name is missing"),
        }
    }

    fn end_block(&mut self) -> Parsed<()> {
        if matches!(self.peek(), Token::BlockEnd) {
            self.next();
            return Ok(());
        }
        self.fail("the tag goes on after its end")
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            return self.fail("it is nested too deeply");
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a tag of one of these names, which stays to be read; to the end without names.
    fn body(&mut self, ends: &[&str]) -> Parsed<Body> {
        self.deeper(|parser| {
            let mut body = Vec::new();
            loop {
                let line = parser.line();
                parser.links = 0;
                match parser.next() {
                    Token::Data(text) => body.push(Statement { line, kind: StatementKind::Text(text) }),
                    Token::VariableBegin => {
                        let value = parser.tuple(true, &[])?;
                        if !matches!(parser.next(), Token::VariableEnd) {
                            parser.at -= 1;
                            return parser.fail("the expression goes on after its end");
                        }
                        body.push(Statement { line, kind: StatementKind::Print(value) });
                    }
                    Token::BlockBegin => {
                        if ends.iter().any(|end| parser.is_name(end)) {
                            return Ok(body);
                        }
                        let kind = parser.statement()?;
                        body.push(Statement { line, kind });
                    }
                    Token::End if ends.is_empty() => return Ok(body),
                    Token::End => return parser.fail(format!("`{}` is missing", ends[ends.len() - 1])),
                    _ => return parser.fail("a tag is missing"),
                }
            }
        })
    }

    /// The body of a tag and its end.
    fn block(&mut self, end: &str) -> Parsed<Body> {
        self.end_block()?;
        let body = self.body(&[end])?;
        self.next();
        self.end_block()?;
        Ok(body)
    }

    fn statement(&mut self) -> Parsed<StatementKind> {
        let name = self.expect_name()?;
        Ok(match &*name {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set_statement()?,
            "macro" => {
                let name = self.expect_name()?;
                let parameters = self.parameters()?;
                StatementKind::Macro(self.macro_body(name, parameters, "endmacro")?)
            }
            "call" => {
                let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
                let call = self.expression(true)?;
                if !matches!(call, Expr::Call(..)) {
                    return self.fail("`call` needs a call");
                }
                let caller = self.macro_body("caller".into(), parameters, "endcall")?;
                StatementKind::CallBlock { caller, call }
            }
            "filter" => {
                let filters = vec![self.call()?];
                let filters = self.more_filters(filters)?;
                StatementKind::FilterBlock { filters, body: self.block("endfilter")? }
            }
            "with" => {
                let mut targets = Vec::new();
                while !matches!(self.peek(), Token::BlockEnd) {
                    if !targets.is_empty() {
                        self.expect_operator(",")?;
                    }
                    let target = self.target(false, &[])?;
                    self.expect_operator("=")?;
                    targets.push((target, self.expression(true)?));
                }
                StatementKind::With { targets, body: self.block("endwith")? }
            }
            "generation" => StatementKind::Scope(self.block("endgeneration")?),
            "autoescape" => {
                self.expression(true)?;
                StatementKind::Scope(self.block("endautoescape")?)
            }
            "block" => {
                self.expect_name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                self.end_block()?;
                let body = self.body(&["endblock"])?;
                self.next();
                if matches!(self.peek(), Token::Name(_)) {
                    self.next();
                }
                self.end_block()?;
                StatementKind::Scope(body)
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.fail(format!("`{name}` is in no loop"));
                }
                self.end_block()?;
                if &*name == "break" { StatementKind::Break } else { StatementKind::Continue }
            }
            name => return self.fail(format!("the tag `{name}` is not known")),
        })
    }

    fn if_statement(&mut self) -> Parsed<StatementKind> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let condition = self.tuple(false, &[])?;
            self.end_block()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                self.end_block()?;
                otherwise = self.body(&["endif"])?;
            }
            self.next();
            self.end_block()?;
            return Ok(StatementKind::If { branches, otherwise });
        }
    }

    fn for_statement(&mut self) -> Parsed<StatementKind> {
        let target = self.target(false, &["in"])?;
        if !self.skip_name("in") {
            return self.fail("`in` is missing");
        }
        let items = self.tuple(false, &["recursive"])?;
        let condition = if self.skip_name("if") { Some(self.expression(true)?) } else { None };
        let recursive = self.skip_name("recursive");
        self.end_block()?;
        self.loops += 1;
        self.ahead.push(false);
        let body = self.body(&["endfor", "else"]);
        let looks_ahead = self.ahead.pop().unwrap_or(true);
        self.loops -= 1;
        let body = body?;
        let mut otherwise = Vec::new();
        if self.skip_name("else") {
            self.end_block()?;
            otherwise = self.body(&["endfor"])?;
        }
        self.next();
        self.end_block()?;
        Ok(StatementKind::For(Arc::new(For {
            target,
            items,
            condition,
            recursive,
            looks_ahead,
            body,
            otherwise,
        })))
    }

    fn set_statement(&mut self) -> Parsed<StatementKind> {
        let target = self.target(true, &[])?;
        if self.skip_operator("=") {
            let value = self.tuple(true, &[])?;
            self.end_block()?;
            return Ok(StatementKind::Set { target, value });
        }
        let filters = self.more_filters(Vec::new())?;
        Ok(StatementKind::SetBlock { target, filters, body: self.block("endset")? })
    }

    fn more_filters(&mut self, mut filters: Vec<Call>) -> Parsed<Vec<Call>> {
        while self.skip_operator("|") {
            filters.push(self.call()?);
        }
        Ok(filters)
    }

    fn parameters(&mut self) -> Parsed<Vec<(Arc<str>, Option<Expr>)>> {
        self.expect_operator("(")?;
        let mut parameters: Vec<(Arc<str>, Option<Expr>)> = Vec::new();
        while !self.skip_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_name()?;
            let default = if self.skip_operator("=") { Some(self.expression(true)?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return self.fail(format!("the parameter `{name}` without a default follows one with"));
            }
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn macro_body(
        &mut self,
        name: Arc<str>,
        parameters: Vec<(Arc<str>, Option<Expr>)>,
        end: &str,
    ) -> Parsed<Arc<Macro>> {
        self.macros.push(Uses::default());
        let loops = std::mem::take(&mut self.loops);
        let body = self.block(end);
        self.loops = loops;
        let uses = self.macros.pop().unwrap_or_default();
        let body = body?;
        Ok(Arc::new(Macro {
            name,
            parameters,
            body,
            uses_caller: uses.caller,
            uses_varargs: uses.varargs,
            uses_kwargs: uses.kwargs,
        }))
    }

    fn target(&mut self, attributes: bool, ends: &[&str]) -> Parsed<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if !targets.is_empty() {
                is_tuple = true;
            }
            if is_tuple && (self.is_operator("=") || ends.iter().any(|end| self.is_name(end))) {
                break;
            }
            let target = if self.skip_operator("(") {
                let target = self.target(attributes, &[])?;
                self.expect_operator(")")?;
                target
            } else {
                let name = self.expect_name()?;
                if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
                    return self.fail(format!("`{name}` cannot be set"));
                }
                if attributes && self.skip_operator(".") {
                    Target::Attribute(name, self.expect_name()?)
                } else {
                    Target::Name(name)
                }
            };
            targets.push(target);
            if !self.skip_operator(",") {
                break;
            }
        }
        match targets.pop() {
            Some(only) if targets.is_empty() && !is_tuple => Ok(only),
            Some(last) => {
                targets.push(last);
                Ok(Target::Tuple(targets))
            }
            None => self.fail("a name is missing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: &str) -> String {
        parse(source).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (source, expected) in [
            ("one\n{% if %}", "line 2: an expression is missing"),
            ("{% for x of y %}{% endfor %}", "`in` is missing"),
            ("{% if x %}", "`endif` is missing"),
            ("{% include 'x' %}", "the tag `include` is not known"),
            ("{% break %}", "`break` is in no loop"),
            ("{{ a b }}", "goes on"),
            ("{% set true = 1 %}", "cannot be set"),
            ("{{ x is string is none }}", "cannot be chained"),
        ] {
            let text = error(source);
            assert!(text.contains(expected), "{source}: {text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = |depth: usize| format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth));
        assert!(parse(&deep(60)).is_ok());
        assert!(error(&deep(100_000)).contains("too deeply"));
        let ifs = |depth: usize| format!("{}{}", "{% if 1 %}".repeat(depth), "{% endif %}".repeat(depth));
        assert!(error(&ifs(100_000)).contains("too deeply"));
        assert!(error(&format!("{{{{ {} 1 }}}}", "not ".repeat(100_000))).contains("too deeply"));
        assert!(error(&format!("{{{{ {}1 }}}}", "-".repeat(100_000))).contains("too deeply"));
        for link in ["+ 1", "* 1", "| abs", ".x", "or 1", "and 1", "** 1", "if 1"] {
            assert!(error(&format!("{{{{ 1 {} }}}}", link.repeat(100_000))).contains("too long"), "{link}");
        }
        // Chains that lean on chains, as deep as a tree may get, and dropped again.
        let chains = |of: &str, depth: usize| {
            let links =
                format!("{}{}{}", ".x".repeat(of.len()), " * 1".repeat(of.len()), " + 1".repeat(of.len()));
            format!("{{{{ {}1{} }}}}", "(".repeat(depth), format!("){links}").repeat(depth))
        };
        assert!(parse(&chains("12345", 60)).is_ok());
        assert!(error(&chains(&"x".repeat(300), 60)).contains("too long"));
        assert!(error(&" ".repeat(MAX_SOURCE + 1)).contains("bytes"));
    }
}
