//! The parsed template. Holds nothing that belongs to one rendering, so that all share it.

use std::sync::Arc;

#[derive(Debug)]
pub struct Statement {
    pub line: u32,
    pub kind: StatementKind,
}

pub type Body = Vec<Statement>;

#[derive(Debug)]
pub enum StatementKind {
    Text(Arc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    For(Arc<For>),
    Set {
        target: Target,
        value: Expr,
    },
    /// `{% set x %}...{% endset %}`, with the filters that are applied to the text.
    SetBlock {
        target: Target,
        filters: Vec<Call>,
        body: Body,
    },
    Macro(Arc<Macro>),
    /// `{% call(...) f(...) %}...{% endcall %}`: the body is the macro `caller`.
    CallBlock {
        caller: Arc<Macro>,
        call: Expr,
    },
    FilterBlock {
        filters: Vec<Call>,
        body: Body,
    },
    With {
        targets: Vec<(Target, Expr)>,
        body: Body,
    },
    /// A body with names of its own: `generation`, `block`, `autoescape`.
    Scope(Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub struct For {
    pub target: Target,
    pub items: Expr,
    pub condition: Option<Expr>,
    pub recursive: bool,
    /// Whether the body asks `loop` for what is still to come, so that all items must be known.
    pub looks_ahead: bool,
    pub body: Body,
    pub otherwise: Body,
}

#[derive(Debug)]
pub struct Macro {
    pub name: Arc<str>,
    pub parameters: Vec<(Arc<str>, Option<Expr>)>,
    pub body: Body,
    /// What its body uses of the names that every macro has; without them, more arguments are an error.
    pub uses_caller: bool,
    pub uses_varargs: bool,
    pub uses_kwargs: bool,
}

#[derive(Debug)]
pub enum Target {
    Name(Arc<str>),
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

/// A filter, a test or a function with what is in its parentheses.
#[derive(Debug)]
pub struct Call {
    pub name: Arc<str>,
    pub arguments: Arguments,
}

#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Arc<str>, Expr)>,
    /// `*more` and `**more`.
    pub more_positional: Option<Box<Expr>>,
    pub more_named: Option<Box<Expr>>,
}

#[derive(Debug)]
pub enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Arguments),
    Filter(Box<Expr>, Call),
    Test(Box<Expr>, Call),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// `value if condition else otherwise`.
    Choice {
        value: Box<Expr>,
        condition: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Not,
    Minus,
    Plus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
