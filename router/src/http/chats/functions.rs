//! The tools that a request brings and its choice among them, read from where its dialect has their parts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use penstock_output::Callable;
use serde_json::{Value, json};

use crate::http::chats::object::{Object, objects};
use crate::http::error::{ApiError, Place};
use crate::http::fields::{Fields, checked_name};
use crate::http::request_fields::{self, Field, Most};
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

const TOOLS: &str = request_fields::TOOLS.name;
const CHOICE: &str = request_fields::TOOL_CHOICE.name;

/// A tool of a request.
#[derive(Debug)]
pub struct Function {
    pub callable: Callable,
    /// Its argument is a text, not JSON.
    pub is_custom: bool,
    /// By it the client searches for more tools.
    pub is_search: bool,
    /// Not to be shown until a search has found it.
    is_deferred: bool,
    /// As templates show it.
    pub shown: Value,
    /// What the client calls it, of one that stands in a namespace.
    pub namespaced: Option<Namespaced>,
    name_at: Place,
}

/// A function of a namespace, as OpenAI's responses group functions. To the model it has one name.
#[derive(Clone, Debug)]
pub struct Namespaced {
    pub shown: String,
    pub namespace: String,
    pub name: String,
}

impl Namespaced {
    pub fn new(namespace: &str, name: &str) -> Self {
        // As models know the tools of MCP servers. Some clients end a namespace so itself.
        let between = if namespace.ends_with("__") { "" } else { "__" };
        let shown = format!("{namespace}{between}{name}");
        Self { shown, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// Where a dialect has the parts of a function.
pub struct Shape {
    /// A member of the tool, called as its type, has them; else the tool itself.
    is_nested: bool,
    /// Names of the schema.
    schemas: &'static [&'static str],
    has_namespaces: bool,
    /// Types of tools that its own servers run: left out, and named in `warnings`.
    hosted: &'static [&'static str],
}

/// Types may have a version behind, such as a date. Clients send them whatever answers: Codex has `web_search` in each request.
const HOSTED: [&str; 5] = ["web_search", "file_search", "code_interpreter", "image_generation", "mcp"];

impl Shape {
    /// TGI's own clients say `arguments`.
    pub const CHAT: Self =
        Self { is_nested: true, schemas: &["parameters", "arguments"], has_namespaces: false, hosted: &[] };
    pub const RESPONSES: Self =
        Self { is_nested: false, schemas: &["parameters"], has_namespaces: true, hosted: &HOSTED };
    pub const MESSAGES: Self =
        Self { is_nested: false, schemas: &["input_schema"], has_namespaces: false, hosted: &[] };

    /// Why a tool is left out, of one that is.
    pub fn left_out(&self, tool: &Object) -> Option<String> {
        let kind = tool.value("type").as_str()?;
        let is = |hosted: &&str| {
            kind.strip_prefix(hosted).is_some_and(|version| version.is_empty() || version.starts_with('_'))
        };
        if self.hosted.iter().any(is) {
            return Some(format!("this server runs no {}", shortened(kind)));
        }
        let is_search = self.has_namespaces && kind == TOOL_SEARCH && !is_clients_search(tool);
        is_search.then(|| {
            "this server searches for no tools, and the model knows those that are in the request".to_owned()
        })
    }
}

/// What the client says of calls.
pub enum Choice {
    Auto,
    None,
    Required,
    Function(String),
    Allowed { names: Vec<String>, is_required: bool },
}

impl Choice {
    /// A choice names a function of a namespace as the client calls it, which is enough where no other has that name.
    pub fn by_shown_names(self, functions: &[Function]) -> Self {
        let shown = |name: String| {
            if functions.iter().any(|function| function.callable.name == name) {
                return name;
            }
            let namespaced = functions.iter().filter_map(|function| function.namespaced.as_ref());
            let mut same = namespaced.filter(|namespaced| namespaced.name == name);
            match (same.next(), same.next()) {
                (Some(only), None) => only.shown.clone(),
                _ => name,
            }
        };
        match self {
            Self::Function(name) => Self::Function(shown(name)),
            Self::Allowed { names, is_required } => {
                Self::Allowed { names: names.into_iter().map(shown).collect(), is_required }
            }
            other => other,
        }
    }

    /// Of tools that may be called, those that are kept back may once they are found.
    pub fn without(self, kept_back: &[Function]) -> Result<Self, ApiError> {
        let is_kept_back = |name: &str| kept_back.iter().any(|function| function.callable.name == name);
        match self {
            Self::Function(name) if is_kept_back(&name) => {
                let name = shortened(&name);
                let text = format!("names a tool that `defer_loading` keeps back until it is found: {name}");
                Err(ApiError::invalid(CHOICE, text))
            }
            Self::Allowed { mut names, is_required } => {
                names.retain(|name| !is_kept_back(name));
                Ok(Self::Allowed { names, is_required })
            }
            other => Ok(other),
        }
    }
}

/// Letters and digits of any writing, and what joins the parts of names.
fn is_part_of_a_name(character: char) -> bool {
    character.is_alphanumeric() || "_-./:".contains(character)
}

/// A list of tools that stands elsewhere than in `tools`.
pub struct ToolList {
    pub place: Place,
    pub tools: Vec<Value>,
    /// A search has found them.
    pub are_found: bool,
}

/// The tools of a request, those of `tools` and then those of `additional` lists, each read by its dialect as any number of
/// functions. No two of a list have one name; of two lists the later one has the say.
pub fn functions(
    fields: &Fields,
    additional: &[ToolList],
    mut read: impl FnMut(&Object) -> Result<Vec<Function>, ApiError>,
) -> Result<Vec<Function>, ApiError> {
    let given = match fields.tree(&request_fields::TOOLS)? {
        Some(Value::Array(tools)) => tools,
        _ => Vec::new(),
    };
    let own = ToolList { place: TOOLS.into(), tools: given, are_found: false };
    let mut functions: Vec<Function> = Vec::with_capacity(own.tools.len());
    // The list that a name is of, and where its function is.
    let mut names = HashMap::with_capacity(own.tools.len());
    for (nth, list) in std::iter::once(&own).chain(additional).enumerate() {
        for tool in objects(&list.place, &list.tools) {
            for mut function in read(&tool?)? {
                function.is_deferred &= !list.are_found;
                match names.entry(function.callable.name.clone()) {
                    Entry::Vacant(name) => {
                        name.insert((nth, functions.len()));
                        functions.push(function);
                    }
                    Entry::Occupied(mut name) => {
                        let (list, index) = *name.get();
                        if list == nth {
                            let text = "is the same as another tool's";
                            return Err(ApiError::invalid(function.name_at, text));
                        }
                        // One that the model has been shown, or told that it was found, stays so.
                        function.is_deferred &= functions[index].is_deferred;
                        // In the place of the earlier one, so that the prompt begins as it did.
                        functions[index] = function;
                        name.insert((nth, index));
                    }
                }
            }
        }
    }
    // Of a namespace any number may have come.
    if functions.len() as u64 > request_fields::TOOLS_MOST {
        return Err(fields.too_many(TOOLS, Most::Is(request_fields::TOOLS_MOST), functions.len()));
    }
    Ok(functions)
}

/// Takes out those that the client has marked so, where it searches for tools: the model does not know them until they are found.
pub fn kept_back(functions: &mut Vec<Function>) -> Vec<Function> {
    match functions.iter().any(|function| function.is_search) {
        true => functions.extract_if(.., |function| function.is_deferred).collect(),
        false => Vec::new(),
    }
}

/// A tool as templates expect it: its schema under `parameters`, and no members that are null.
fn as_shown(mut tool: Value) -> Value {
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        function.retain(|_, value| !value.is_null());
        if !function.contains_key("parameters")
            && let Some(schema) = function.remove("arguments")
        {
            function.insert("parameters".to_owned(), schema);
        }
    }
    tool
}

impl Function {
    /// One of OpenAI's dialects, or all of a namespace.
    pub fn read(tool: &Object, shape: &Shape) -> Result<Vec<Self>, ApiError> {
        match tool.value("type").as_str() {
            Some("namespace") if shape.has_namespaces => Self::of_namespace(tool, shape),
            Some(TOOL_SEARCH) if shape.has_namespaces && is_clients_search(tool) => {
                Self::search(tool).map(|function| vec![function])
            }
            _ => Self::single(tool, shape).map(|function| vec![function]),
        }
    }

    fn single(tool: &Object, shape: &Shape) -> Result<Self, ApiError> {
        match tool.value("type").as_str() {
            Some("function") => Self::of(tool, shape),
            Some("custom") => Self::custom(tool, shape),
            kind => {
                let kinds = match shape.has_namespaces {
                    true => "\"function\", \"custom\" or a \"namespace\" of these",
                    false => "\"function\" or \"custom\"",
                };
                let why = match kind.is_some_and(|kind| OWN_FORMS.contains(&kind)) {
                    true => {
                        "the client runs this one, but its calls have a form of their own, which is not written here"
                    }
                    false => "this server runs no tools of its own",
                };
                let error = ApiError::invalid(tool.at("type"), format!("must be {kinds}: {why}"));
                Err(error.given(shortened(&tool.value("type").to_string())))
            }
        }
    }

    /// Those of a namespace, each with its name. What is said of all of them is said before the first.
    fn of_namespace(tool: &Object, shape: &Shape) -> Result<Vec<Self>, ApiError> {
        let namespace = checked(tool)?;
        let Value::Array(tools) = tool.value("tools") else {
            return Err(tool.wrong("tools", "must be a list of tools"));
        };
        let mut functions = Vec::with_capacity(tools.len());
        for inner in objects(&tool.at("tools"), tools) {
            let mut function = Self::single(&inner?, shape)?;
            let namespaced = Namespaced::new(namespace, &function.callable.name);
            checked_name(&function.name_at, &namespaced.shown)?;
            function.callable.name = namespaced.shown.clone();
            function.shown["function"]["name"] = json!(namespaced.shown);
            let of_all = tool.value("description").as_str().filter(|text| !text.is_empty());
            if let Some(of_all) = of_all.filter(|_| functions.is_empty()) {
                let own = &mut function.shown["function"]["description"];
                *own = match own.as_str() {
                    Some(own) => format!("{of_all}\n\n{own}").into(),
                    None => of_all.into(),
                };
            }
            function.namespaced = Some(namespaced);
            functions.push(function);
        }
        Ok(functions)
    }

    /// One that takes arguments in JSON.
    pub fn of(tool: &Object, shape: &Shape) -> Result<Self, ApiError> {
        let own = shape.own(tool, "function")?;
        let function = own.as_ref().unwrap_or(tool);
        let name = checked(function)?;
        let strict = function.value("strict");
        if !(strict.is_null() || strict.is_boolean()) {
            return Err(function.wrong("strict", "must be a boolean"));
        }
        for schema in shape.schemas {
            // OpenAI allows for functions that take nothing.
            if function.get(schema).is_some_and(|value| !value.is_object()) {
                return Err(function.wrong(schema, "must be an object, a JSON schema"));
            }
        }
        let given = shape.schemas.iter().find(|schema| function.get(schema).is_some());
        let schema = given.or(shape.schemas.last()).copied().unwrap_or_default();
        let shown = if own.is_some() {
            tool.whole()
        } else {
            let [description, schema] = ["description", schema].map(|member| function.value(member));
            let function =
                json!({"name": name, "description": description, "strict": strict, "parameters": schema});
            json!({"type": "function", "function": function})
        };
        Ok(Self {
            callable: Callable {
                name: name.to_owned(),
                schema: function.value(schema).clone(),
                at: function.at(schema).to_pointer(),
                lark: None,
                is_strict: strict == &Value::Bool(true),
            },
            is_custom: false,
            is_search: false,
            is_deferred: is_deferred(tool),
            namespaced: None,
            shown: as_shown(shown),
            name_at: function.at("name"),
        })
    }

    /// One that takes a text, which the model writes as the argument `input`.
    fn custom(tool: &Object, shape: &Shape) -> Result<Self, ApiError> {
        let own = shape.own(tool, "custom")?;
        let custom = own.as_ref().unwrap_or(tool);
        let name = checked(custom)?;
        let mut input = json!({"type": "string"});
        let mut at = custom.at("format");
        let mut lark = None;
        if let Some(format) = custom.get("format") {
            let format = Object::of(at.clone(), format)?;
            match format.kind()? {
                "text" => {}
                "grammar" => {
                    // Chats have its parts under `grammar`, responses beside `type`.
                    let grammar = match format.get("grammar") {
                        Some(grammar) => Object::of(format.at("grammar"), grammar)?,
                        None => Object::of(format.place.clone(), custom.value("format"))?,
                    };
                    let definition = grammar.text("definition")?;
                    match grammar.text("syntax")? {
                        "regex" => input["pattern"] = json!(format!("^(?:{definition})$")),
                        "lark" => {
                            lark = Some(definition.to_owned());
                            input["description"] =
                                json!(format!("A text of this grammar, in Lark's notation:\n{definition}"));
                        }
                        other => {
                            let error = grammar.wrong("syntax", "must be lark or regex");
                            return Err(error.given(shortened(other)));
                        }
                    }
                    at = grammar.at("definition");
                }
                other => {
                    return Err(format.wrong("type", "must be text or grammar").given(shortened(other)));
                }
            }
        }
        let schema = json!({
            "type": "object",
            "properties": {"input": input},
            "required": ["input"],
            "additionalProperties": false,
        });
        let shown = json!({"name": name, "description": custom.value("description"), "parameters": schema});
        Ok(Self {
            callable: Callable {
                name: name.to_owned(),
                schema,
                at: at.to_pointer(),
                lark,
                // A grammar is never left out.
                is_strict: custom.get("format").is_some(),
            },
            is_custom: true,
            is_search: false,
            is_deferred: is_deferred(tool),
            namespaced: None,
            shown: as_shown(json!({"type": "function", "function": shown})),
            name_at: custom.at("name"),
        })
    }

    /// A search for tools that the client makes: it has no name but its type, and the client says what it takes.
    fn search(tool: &Object) -> Result<Self, ApiError> {
        const SCHEMA: &str = "parameters";
        check_description(tool)?;
        if tool.get(SCHEMA).is_some_and(|schema| !schema.is_object()) {
            return Err(tool.wrong(SCHEMA, "must be an object, a JSON schema"));
        }
        let schema = tool.get(SCHEMA).cloned().unwrap_or_else(|| json!({"type": "object"}));
        let shown =
            json!({"name": TOOL_SEARCH, "description": tool.value("description"), "parameters": schema});
        Ok(Self {
            callable: Callable {
                name: TOOL_SEARCH.to_owned(),
                schema,
                at: tool.at(SCHEMA).to_pointer(),
                lark: None,
                is_strict: false,
            },
            is_custom: false,
            is_search: true,
            is_deferred: false,
            namespaced: None,
            shown: as_shown(json!({"type": "function", "function": shown})),
            name_at: tool.at("type"),
        })
    }
}

impl Shape {
    /// What has the parts of the tool, where that is not the tool itself. In chats it is the tool itself where that has a name: Cursor
    /// has custom tools of this form beside functions of the other.
    fn own<'a>(&self, tool: &Object<'a>, member: &'static str) -> Result<Option<Object<'a>>, ApiError> {
        match tool.get(member) {
            Some(own) if self.is_nested => Object::of(tool.at(member), own).map(Some),
            None if self.is_nested && tool.get("name").is_none() => {
                Err(ApiError::invalid(tool.at(member).member("name"), NAMELESS))
            }
            _ => Ok(None),
        }
    }
}

/// Tools of OpenAI's responses that the client runs, and that are called by items of their own.
const OWN_FORMS: [&str; 5] = ["local_shell", "shell", "apply_patch", "computer", "computer_use_preview"];

/// A search for tools: the type of the tool, and to the model its name.
pub const TOOL_SEARCH: &str = "tool_search";

/// Others a server makes.
fn is_clients_search(tool: &Object) -> bool {
    tool.value("execution") == "client"
}

fn is_deferred(tool: &Object) -> bool {
    tool.value("defer_loading") == &Value::Bool(true)
}

const NAMELESS: &str = "must be a string that is not empty";

/// The name of a tool whose name and description are in order.
fn checked<'a>(tool: &Object<'a>) -> Result<&'a str, ApiError> {
    let name = tool.value("name").as_str().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| tool.wrong("name", NAMELESS))?;
    checked_name(&tool.at("name"), name)?;
    if !name.chars().all(is_part_of_a_name) {
        let error = tool.wrong("name", "must be of letters, digits and `_`, `-`, `.`, `/`, `:`");
        // Quoted, since what is wrong may be a space.
        return Err(error.given(format!("{:?}", shortened(name))));
    }
    check_description(tool)?;
    Ok(name)
}

fn check_description(tool: &Object) -> Result<(), ApiError> {
    match tool.value("description") {
        Value::Null | Value::String(_) => Ok(()),
        _ => Err(tool.wrong("description", "must be a string")),
    }
}

/// A name that `tool_choice` has.
pub fn chosen(name: &str) -> Result<Choice, ApiError> {
    checked_name(&CHOICE.into(), name)?;
    Ok(Choice::Function(name.to_owned()))
}

/// `tool_choice` of OpenAI's dialects.
pub fn choice(
    fields: &Fields,
    shape: &Shape,
    functions: &[Function],
    warnings: &mut Warnings,
) -> Result<Choice, ApiError> {
    const FIELD: &Field = &request_fields::TOOL_CHOICE;
    let wrong = |choice: &Value| {
        let text = "must be \"auto\", \"none\", \"required\", the name of a function, \
                    {\"type\": \"function\", \"function\": {\"name\": ...}}, or {\"type\": \"allowed_tools\", ...}";
        ApiError::invalid(CHOICE, text).given(shortened(&choice.to_string()))
    };
    let Some(given) = fields.tree(FIELD)? else { return Ok(Choice::Auto) };
    if let Value::String(word) = &given {
        return match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            // TGI's way to name a function.
            _ => chosen(word),
        };
    }
    if given["type"] == TOOL_SEARCH {
        // Its reference does not have it, and its servers refuse it.
        let text = "of type \"tool_search\" is not supported, as at OpenAI: to have the model search first, name the search as a \
                    function, {\"type\": \"function\", \"name\": \"tool_search\"}";
        return Err(ApiError::invalid(CHOICE, text));
    }
    // Beside `type`, as OpenAI's responses have it, or under it, as chats do. The types of the hub's clients have no `type`.
    let name_of = |choice: &Value| {
        let name = match &choice["type"] {
            Value::Null => choice["function"]["name"].as_str(),
            Value::String(kind) if ["function", "custom"].contains(&kind.as_str()) => {
                choice[kind]["name"].as_str().or(choice["name"].as_str())
            }
            _ => None,
        };
        name.map(str::to_owned)
    };
    if given["type"] == "allowed_tools" {
        let (place, allowed) = match &given["allowed_tools"] {
            allowed @ Value::Object(_) => (Place::from(CHOICE).member("allowed_tools"), allowed),
            _ => (CHOICE.into(), &given),
        };
        let is_required = match allowed["mode"].as_str() {
            Some("required") => true,
            Some("auto") => false,
            _ => return Err(wrong(&given)),
        };
        let tools = allowed["tools"].as_array().ok_or_else(|| wrong(&given))?;
        let has_search = functions.iter().any(|function| function.is_search);
        let mut names = Vec::with_capacity(tools.len());
        for (tool, given_tool) in objects(&place.member("tools"), tools).zip(tools) {
            let tool = tool?;
            if has_search && tool.value("type") == TOOL_SEARCH {
                names.push(TOOL_SEARCH.to_owned());
            } else if let Some(why) = shape.left_out(&tool) {
                warnings.no_effect(&tool.place.to_string(), &format!("here: {why}"));
            } else {
                names.push(name_of(given_tool).ok_or_else(|| wrong(&given))?);
            }
        }
        return Ok(Choice::Allowed { names, is_required });
    }
    chosen(&name_of(&given).ok_or_else(|| wrong(&given))?)
}
