//! Expressions: operators by precedence, what follows a value, and the arguments of calls, filters and tests.

use std::sync::Arc;

use super::{MAX_CHAIN, MAX_LINKS, Parsed, Parser};
use crate::ast::{Arguments, Binary, Call, Comparison, Expr, Unary};
use crate::lexer::Token;

impl Parser {
    /// An expression, or several with commas between, which are a tuple.
    pub(super) fn tuple(&mut self, with_choice: bool, ends: &[&str]) -> Parsed<Expr> {
        let first = self.expression(with_choice)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_operator(",") {
            let ended = matches!(self.peek(), Token::VariableEnd | Token::BlockEnd)
                || self.is_operator(")")
                || ends.iter().any(|end| self.is_name(end));
            if ended {
                break;
            }
            items.push(self.expression(with_choice)?);
        }
        Ok(Expr::Tuple(items))
    }

    pub(super) fn expression(&mut self, with_choice: bool) -> Parsed<Expr> {
        self.deeper(|parser| {
            let mut value = parser.or()?;
            let mut links = 0;
            while with_choice && parser.skip_name("if") {
                parser.link(&mut links)?;
                let condition = Box::new(parser.or()?);
                let otherwise =
                    if parser.skip_name("else") { Some(Box::new(parser.expression(true)?)) } else { None };
                value = Expr::Choice { value: Box::new(value), condition, otherwise };
            }
            Ok(value)
        })
    }

    /// Counts the links of a chain.
    pub(super) fn link(&mut self, links: &mut u32) -> Parsed<()> {
        *links += 1;
        self.links += 1;
        if *links > MAX_CHAIN || self.links > MAX_LINKS {
            return self.fail("an expression is too long");
        }
        Ok(())
    }

    fn or(&mut self) -> Parsed<Expr> {
        let mut left = self.and()?;
        let mut links = 0;
        while self.skip_name("or") {
            self.link(&mut links)?;
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed<Expr> {
        let mut left = self.not()?;
        let mut links = 0;
        while self.skip_name("and") {
            self.link(&mut links)?;
            left = Expr::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    pub(super) fn not(&mut self) -> Parsed<Expr> {
        if self.skip_name("not") {
            return self.deeper(|parser| Ok(Expr::Unary(Unary::Not, Box::new(parser.not()?))));
        }
        self.compare()
    }

    fn compare(&mut self) -> Parsed<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Operator("==") => Comparison::Equal,
                Token::Operator("!=") => Comparison::NotEqual,
                Token::Operator("<") => Comparison::Less,
                Token::Operator("<=") => Comparison::LessOrEqual,
                Token::Operator(">") => Comparison::Greater,
                Token::Operator(">=") => Comparison::GreaterOrEqual,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name) if &**name == "not" => {
                    if !matches!(&self.tokens[self.at + 1].0, Token::Name(name) if &**name == "in") {
                        break;
                    }
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Parsed<Expr> {
        let mut left = self.concat()?;
        let mut links = 0;
        loop {
            let operator = match self.peek() {
                Token::Operator("+") => Binary::Add,
                Token::Operator("-") => Binary::Subtract,
                _ => return Ok(left),
            };
            self.next();
            self.link(&mut links)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(self.concat()?));
        }
    }

    fn concat(&mut self) -> Parsed<Expr> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_operator("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Parsed<Expr> {
        let mut left = self.power()?;
        let mut links = 0;
        loop {
            let operator = match self.peek() {
                Token::Operator("*") => Binary::Multiply,
                Token::Operator("/") => Binary::Divide,
                Token::Operator("//") => Binary::FloorDivide,
                Token::Operator("%") => Binary::Modulo,
                _ => return Ok(left),
            };
            self.next();
            self.link(&mut links)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(self.power()?));
        }
    }

    fn power(&mut self) -> Parsed<Expr> {
        let mut left = self.unary(true)?;
        let mut links = 0;
        while self.skip_operator("**") {
            self.link(&mut links)?;
            left = Expr::Binary(Binary::Power, Box::new(left), Box::new(self.unary(true)?));
        }
        Ok(left)
    }

    fn unary(&mut self, with_filters: bool) -> Parsed<Expr> {
        let sign = match self.peek() {
            Token::Operator("-") => Some(Unary::Minus),
            Token::Operator("+") => Some(Unary::Plus),
            _ => None,
        };
        let value = match sign {
            Some(sign) => {
                self.next();
                self.deeper(|parser| Ok(Expr::Unary(sign, Box::new(parser.unary(false)?))))?
            }
            None => self.primary()?,
        };
        let value = self.postfix(value)?;
        if with_filters { self.filters_and_tests(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        Ok(match self.next() {
            Token::Name(name) => match &*name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => {
                    if &*name == "loop" && !self.is_of_the_past() {
                        self.ahead.fill(true);
                    }
                    for uses in &mut self.macros {
                        match &*name {
                            "caller" => uses.caller = true,
                            "varargs" => uses.varargs = true,
                            "kwargs" => uses.kwargs = true,
                            _ => {}
                        }
                    }
                    Expr::Name(name)
                }
            },
            Token::Str(text) => {
                if !matches!(self.peek(), Token::Str(_)) {
                    return Ok(Expr::Str(text));
                }
                let mut joined = text.to_string();
                while let Token::Str(more) = self.peek() {
                    joined.push_str(more);
                    self.next();
                }
                Expr::Str(joined.into())
            }
            Token::Int(number) => Expr::Int(number),
            Token::Float(number) => Expr::Float(number),
            Token::Operator("(") => {
                if self.skip_operator(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let value = self.tuple(true, &[])?;
                self.expect_operator(")")?;
                value
            }
            Token::Operator("[") => {
                let mut items = Vec::new();
                while !self.skip_operator("]") {
                    if !items.is_empty() {
                        self.expect_operator(",")?;
                        if self.skip_operator("]") {
                            break;
                        }
                    }
                    items.push(self.expression(true)?);
                }
                Expr::List(items)
            }
            Token::Operator("{") => {
                let mut items = Vec::new();
                while !self.skip_operator("}") {
                    if !items.is_empty() {
                        self.expect_operator(",")?;
                        if self.skip_operator("}") {
                            break;
                        }
                    }
                    let key = self.expression(true)?;
                    self.expect_operator(":")?;
                    items.push((key, self.expression(true)?));
                }
                Expr::Dict(items)
            }
            _ => {
                self.at = self.at.saturating_sub(1);
                return self.fail("an expression is missing");
            }
        })
    }

    /// Whether what follows `loop` is known before the loop is over.
    fn is_of_the_past(&self) -> bool {
        let known = ["index", "index0", "first", "previtem", "depth", "depth0", "cycle", "changed"];
        self.is_operator(".")
            && matches!(&self.tokens[self.at + 1].0, Token::Name(name) if known.contains(&&**name))
    }

    fn postfix(&mut self, mut value: Expr) -> Parsed<Expr> {
        let mut links = 0;
        while let Token::Operator("." | "[" | "(") = self.peek() {
            self.link(&mut links)?;
            if self.skip_operator(".") {
                value = match self.next() {
                    Token::Name(name) => Expr::Attribute(Box::new(value), name),
                    Token::Int(index) => Expr::Item(Box::new(value), Box::new(Expr::Int(index))),
                    _ => return self.fail("a name is missing after `.`"),
                };
            } else if self.skip_operator("[") {
                value = self.subscript(value)?;
            } else {
                value = Expr::Call(Box::new(value), self.arguments()?);
            }
        }
        Ok(value)
    }

    fn subscript(&mut self, value: Expr) -> Parsed<Expr> {
        let mut parts: [Option<Box<Expr>>; 3] = [None, None, None];
        let mut colons = 0;
        loop {
            if self.skip_operator("]") {
                break;
            }
            if self.skip_operator(":") {
                colons += 1;
                if colons > 2 {
                    return self.fail("a slice has three parts");
                }
                continue;
            }
            if self.skip_operator(",") || parts[colons].is_some() {
                return self.fail("a subscript is one value or one slice");
            }
            parts[colons] = Some(Box::new(self.expression(true)?));
        }
        if colons > 0 {
            return Ok(Expr::Slice(Box::new(value), parts));
        }
        match parts[0].take() {
            Some(index) => Ok(Expr::Item(Box::new(value), index)),
            None => self.fail("a subscript is missing"),
        }
    }

    fn filters_and_tests(&mut self, mut value: Expr) -> Parsed<Expr> {
        let mut links = 0;
        loop {
            if self.skip_operator("|") {
                self.link(&mut links)?;
                value = Expr::Filter(Box::new(value), self.call()?);
            } else if self.skip_name("is") {
                self.link(&mut links)?;
                value = self.test(value)?;
            } else if self.is_operator("(") {
                self.link(&mut links)?;
                value = Expr::Call(Box::new(value), self.arguments()?);
            } else {
                return Ok(value);
            }
        }
    }

    /// The name of a filter or a test, and what is in parentheses after it.
    pub(super) fn call(&mut self) -> Parsed<Call> {
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
        Ok(Call { name, arguments })
    }

    fn dotted_name(&mut self) -> Parsed<Arc<str>> {
        let mut name = self.expect_name()?.to_string();
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(name.into())
    }

    fn test(&mut self, value: Expr) -> Parsed<Expr> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else {
            let begins = match self.peek() {
                Token::Name(name) => !matches!(&**name, "else" | "or" | "and"),
                Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Operator("[" | "{") => true,
                _ => false,
            };
            if begins && self.is_name("is") {
                return self.fail("tests cannot be chained with `is`");
            }
            let mut arguments = Arguments::default();
            if begins {
                let argument = self.primary()?;
                arguments.positional.push(self.postfix(argument)?);
            }
            arguments
        };
        let test = Expr::Test(Box::new(value), Call { name, arguments });
        Ok(if negated { Expr::Unary(Unary::Not, Box::new(test)) } else { test })
    }

    fn arguments(&mut self) -> Parsed<Arguments> {
        self.expect_operator("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.skip_operator(")") {
            if !first {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            first = false;
            if self.skip_operator("**") {
                arguments.more_named = Some(Box::new(self.expression(true)?));
            } else if self.skip_operator("*") {
                arguments.more_positional = Some(Box::new(self.expression(true)?));
            } else if matches!(self.peek(), Token::Name(_))
                && matches!(&self.tokens[self.at + 1].0, Token::Operator("="))
            {
                let name = self.expect_name()?;
                self.next();
                arguments.named.push((name, self.expression(true)?));
            } else {
                if !arguments.named.is_empty() {
                    return self.fail("a positional argument follows a named one");
                }
                arguments.positional.push(self.expression(true)?);
            }
        }
        Ok(arguments)
    }
}
