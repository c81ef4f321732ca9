//! Texts that the server composes itself around what clients ask for: calls of tools in a model's own format, with
//! reasoning before them, as `penstock-output` composes them. Written as one Lark grammar.

use std::{collections::HashMap, fmt::Write, sync::Arc};

use llguidance::api::TopLevelGrammar;
use penstock_output::{Part, Words};
use serde_json::{Map, Value};

use crate::{
    ecma::from_ecma,
    error::{CompileError, Kind},
    free_text::FreeText,
    grammar,
    guidance::{classify, with_options},
    lark,
    limits::Limits,
    pattern::{self, Strings},
    quoted,
    schema::{self, Count},
    source::Source,
    stop::Stop,
    vocabulary::Vocabulary,
};

const ANY: &str = r"/(.|\n)*/";
/// Space where a model writes some. It is bounded, because a model that may emit space without end sometimes does.
const SPACE: &str = r"/[ \t\r\n]{1,8}/";
const SPACE_OR_NONE: &str = r"/[ \t\r\n]{0,8}/";
/// All space that a parser skips.
const ANY_SPACE: &str = r"/[ \t\r\n]*/";

/// A key that stands without marks, as its reader takes it.
const BARE_KEY: &str = r#"/[^:,{}\[\]<"\s][^:,{}\[\]<]*/"#;

/// A grammar as it is written.
pub(crate) struct Composed {
    pub(crate) lark: String,
    /// The special tokens that it asks for.
    pub(crate) special: Vec<u32>,
    /// None: no part of the text is free.
    pub(crate) free_text: Option<FreeText>,
    /// Grammars that it refers to, by name.
    pub(crate) nested: Vec<(String, String)>,
    /// Why parts are not as they were asked for.
    pub(crate) unbound: Vec<CompileError>,
    /// A character of values that the vocabulary cannot spell.
    pub(crate) missing: Option<char>,
}

/// Some part of it may be as it was not asked for.
pub(crate) fn has_choice(parts: &[Part]) -> bool {
    parts.iter().any(|part| match part {
        Part::IfPossible { .. } => true,
        Part::OneOf(all) | Part::SomeOf { members: all, .. } => all.iter().any(|parts| has_choice(parts)),
        Part::Repeat { part, .. } => has_choice(part),
        _ => false,
    })
}

/// `apart`: what was asked for is compiled by itself, to find what cannot be.
pub(crate) fn compose(
    parts: &[Part],
    vocabulary: &Arc<Vocabulary>,
    limits: &Limits,
    stop: &Stop,
    apart: bool,
) -> Result<Composed, CompileError> {
    let mut writer = Writer {
        apart,
        vocabulary,
        limits,
        stop,
        rules: String::new(),
        next: 0,
        special: Vec::new(),
        markers: Vec::new(),
        has_free: false,
        nested: Vec::new(),
        unbound: Vec::new(),
        missing: None,
        has_expressions: false,
        known: HashMap::new(),
    };
    let start = writer.sequence(parts)?;
    // What expressions let follow may change with any character.
    let is_free = !writer.has_expressions && (writer.has_free || !writer.markers.is_empty());
    Ok(Composed {
        lark: format!("start: {start}\n{}", writer.rules),
        special: writer.special,
        free_text: is_free.then(|| FreeText::new(writer.markers)),
        nested: writer.nested,
        unbound: writer.unbound,
        missing: writer.missing,
    })
}

struct Writer<'a> {
    apart: bool,
    vocabulary: &'a Arc<Vocabulary>,
    limits: &'a Limits,
    stop: &'a Stop,
    rules: String,
    next: usize,
    special: Vec<u32>,
    /// Texts that mean something within free text.
    markers: Vec<String>,
    /// Text is free that may end the answer. GPT-OSS' has no markers, which are special tokens.
    has_free: bool,
    nested: Vec<(String, String)>,
    unbound: Vec<CompileError>,
    missing: Option<char>,
    has_expressions: bool,
    /// Rules of parts that stand in several places.
    known: HashMap<String, String>,
}

/// The longest text whose length is bounded; a lexer counts every character of it.
const LONGEST_COUNTED: u64 = 100_000;

impl Writer<'_> {
    /// The name of a new rule or, in capitals, terminal.
    fn name(&mut self, kind: char) -> String {
        self.next += 1;
        format!("{kind}{}", self.next)
    }

    fn define(&mut self, kind: char, attribute: &str, body: &str) -> String {
        let name = self.name(kind);
        let _ = writeln!(self.rules, "{name}{attribute}: {body}");
        name
    }

    fn sequence(&mut self, parts: &[Part]) -> Result<String, CompileError> {
        let mut written = Vec::with_capacity(parts.len());
        for part in parts {
            written.push(self.part(part)?);
        }
        written.retain(|part| !part.is_empty());
        Ok(if written.is_empty() { "\"\"".to_owned() } else { written.join(" ") })
    }

    fn part(&mut self, part: &Part) -> Result<String, CompileError> {
        if !matches!(
            part,
            Part::Json { .. }
                | Part::Quoted { .. }
                | Part::Words { .. }
                | Part::Until { .. }
                | Part::Free { .. }
                | Part::Braced(_)
                | Part::BareKey(_)
                | Part::Repeat { .. }
                | Part::IfPossible { .. }
        ) {
            return self.written(part);
        }
        let content = format!("{part:?}");
        if let Some(known) = self.known.get(&content) {
            return Ok(known.clone());
        }
        let written = self.written(part)?;
        self.known.insert(content, written.clone());
        Ok(written)
    }

    fn written(&mut self, part: &Part) -> Result<String, CompileError> {
        self.stop.check(self.limits)?;
        Ok(match part {
            Part::Text(text) => self.text(text),
            Part::Json { schema, at } => {
                let (core, missing) = schema::to_core(schema, self.limits, self.stop)
                    .and_then(|core| grammar::spelled(core, self.vocabulary))
                    .map_err(|error| CompileError { path: format!("{at}{}", error.path), ..error })?;
                self.missing = self.missing.or(missing);
                self.define('j', "", &format!("%json {}", with_options(core)))
            }
            Part::Quoted { lark, at } => {
                let placed = |error: CompileError| {
                    let path =
                        if error.path.is_empty() { at.clone() } else { format!("{at} {}", error.path) };
                    CompileError { path, ..error }
                };
                self.checked(lark).map_err(placed)?;
                let name = self.name('q');
                self.nested.push((name.clone(), quoted::lark(lark).map_err(placed)?));
                format!("@{name}")
            }
            Part::JsonObject => {
                let core = with_options(serde_json::json!({"type": "object"}));
                self.define('j', "", &format!("%json {core}"))
            }
            Part::Braced(quote) => self.braced(quote)?,
            Part::BareKey(quote) => {
                let bare = self.define('K', "", BARE_KEY);
                let quoted = self.marked(Words::Expression(r"(.|\n)+"), quote)?;
                self.define('k', "", &format!("{bare} | {quoted}"))
            }
            Part::Regex(expression) => {
                self.has_expressions = true;
                let checked = pattern::whole_text(expression)
                    .map_err(|reason| CompileError::new(Kind::Invalid, reason))?;
                self.define('R', "", &format!("/{checked}/"))
            }
            Part::Expression(expression) => self.define('R', "", &format!("/{expression}/")),
            Part::Number => "/[0-9]{1,3}/".to_owned(),
            Part::Space => format!("({SPACE})?"),
            Part::Opening(text) if self.is_special_first(text) => {
                format!("({SPACE})? {}", self.text(text))
            }
            Part::Opening(text) => {
                self.markers.push(text.clone());
                let plain = self.plain(text);
                let opening =
                    self.define('O', "", &format!("{SPACE_OR_NONE} {}", lark::quoted(&text[..plain])));
                format!("{opening} {}", self.text(&text[plain..]))
            }
            Part::Choice(texts) => self.define('C', "", &lark::choices(texts)?),
            Part::Until { marker, without, not_first } => self.until(marker, without, not_first.as_deref()),
            Part::Free { without, not_first } => {
                self.has_free = true;
                self.free(without, not_first.as_deref())
            }
            Part::Words { words, without, not_first, close } => {
                self.words(words, without, not_first, close)?
            }
            Part::OneOf(choices) => {
                let mut written = Vec::with_capacity(choices.len());
                for choice in choices {
                    written.push(self.sequence(choice)?);
                }
                self.define('c', "", &written.join(" | "))
            }
            // What was written of it before it failed stays, and nothing refers to it.
            Part::IfPossible { asked, instead, at } => match self.if_possible(asked, at) {
                Err(error) if error.kind.is_of_the_source() => {
                    self.unbound.push(error);
                    self.sequence(instead)?
                }
                asked => asked?,
            },
            Part::SomeOf { members, between } => {
                let between = self.sequence(between)?;
                // From the last to the first: what may follow one, and all that may begin with it or a later one.
                let (mut rest, mut any) = (String::new(), None);
                for member in members.iter().rev() {
                    let member = self.sequence(member)?;
                    let member = self.define('p', "", &member);
                    let begins = match any {
                        Some(later) => self.define('c', "", &format!("{member} {rest} | {later}")),
                        None => member.clone(),
                    };
                    rest = self.define('r', "", &format!("({between} {member})? {rest}"));
                    any = Some(begins);
                }
                any.unwrap_or_default()
            }
            Part::Repeat { part, between, least, most } => {
                let part = self.sequence(part)?;
                let part = self.define('p', "", &part);
                let between = self.sequence(between)?;
                let range = |less: u32| match most {
                    Some(most) => format!("{{{},{}}}", least.saturating_sub(less), most.saturating_sub(less)),
                    None => format!("{{{},}}", least.saturating_sub(less)),
                };
                match most {
                    Some(0) => String::new(),
                    _ if between == "\"\"" => format!("({part}){}", range(0)),
                    Some(1) if *least == 1 => part,
                    Some(1) => format!("({part})?"),
                    _ => {
                        let all = format!("{part} ({between} {part}){}", range(1));
                        if *least == 0 { format!("({all})?") } else { all }
                    }
                }
            }
        })
    }

    /// A client's grammar by itself: what is wrong is told with its place there.
    fn if_possible(&mut self, asked: &[Part], at: &str) -> Result<String, CompileError> {
        if self.apart {
            let alone =
                grammar::compile(&Source::Parts(asked.to_vec()), self.vocabulary, self.limits, self.stop);
            alone.map_err(|error| match error.path.is_empty() {
                true => CompileError { path: at.to_owned(), ..error },
                false => error,
            })?;
        }
        self.sequence(asked)
    }

    fn checked(&self, text: &str) -> Result<(), CompileError> {
        lark::check(text)?;
        let grammar = TopLevelGrammar::from_lark(text.to_owned());
        let source = Source::Lark(text.to_owned());
        let parser = self.vocabulary.parser(grammar);
        parser.map(|_| ()).map_err(|cause| classify(&cause, &source))
    }

    /// Literals and special tokens in turn.
    fn text(&mut self, text: &str) -> String {
        let mut written = Vec::new();
        let mut rest = text;
        while let Some((at, name, id)) = self.vocabulary.special_in(rest) {
            if at > 0 {
                written.push(lark::quoted(&rest[..at]));
            }
            written.push(format!("<[{id}]>"));
            self.special.push(id);
            rest = &rest[at + name..];
        }
        if !rest.is_empty() {
            written.push(lark::quoted(rest));
        }
        written.join(" ")
    }

    /// Bytes before the first special token.
    fn plain(&self, text: &str) -> usize {
        self.vocabulary.special_in(text).map_or(text.len(), |(at, ..)| at)
    }

    fn is_special_first(&self, marker: &str) -> bool {
        self.vocabulary.special_in(marker).is_some_and(|(at, ..)| at == 0)
    }

    fn until(&mut self, marker: &str, without: &[String], not_first: Option<&str>) -> String {
        if self.is_special_first(marker) {
            let free = self.free(without, not_first);
            return format!("{free} {}", self.text(marker));
        }
        // What of the marker comes before a special token; the rest follows.
        let plain = self.plain(marker);
        self.markers.push(marker[..plain].to_owned());
        let body = format!("{ANY} {}", lark::quoted(&marker[..plain]));
        let terminal = self.terminal(&body, without, not_first);
        self.ended(&terminal, &marker[plain..])
    }

    fn free(&mut self, without: &[String], not_first: Option<&str>) -> String {
        let terminal = self.terminal(r"/(.|\n)+/", without, not_first);
        format!("{terminal}?")
    }

    /// A terminal that is `body`, less what is not to be in it. Special tokens are in no text.
    fn terminal(&mut self, body: &str, without: &[String], not_first: Option<&str>) -> String {
        self.markers.extend(without.iter().cloned().chain(not_first.map(str::to_owned)));
        let mut terminal = format!("({body})");
        let markers = without.iter().filter(|marker| !self.is_special_first(marker));
        terminal.push_str(&without_any(markers));
        if let Some(marker) = not_first.filter(|marker| !self.is_special_first(marker)) {
            let _ = write!(terminal, " & ~({ANY_SPACE} {} {ANY})", lark::quoted(marker));
        }
        self.define('F', "", &terminal)
    }

    /// One of `words` and `close`. The parser looks for markers in the text of tokens, so those that are special must not
    /// be spelled either.
    fn words(
        &mut self,
        words: &[Words],
        without: &[String],
        not_first: &str,
        close: &str,
    ) -> Result<String, CompileError> {
        let mut choices = Vec::with_capacity(words.len());
        let mut may_be_empty = false;
        for word in words {
            choices.push(match word {
                Words::Expression(expression) => format!("/{expression}/"),
                Words::Exactly(texts) => {
                    may_be_empty |= texts.iter().any(String::is_empty);
                    lark::choices(texts)?
                }
                Words::String { schema, at } => {
                    may_be_empty |= schema.is_empty() || schema.keys().all(|key| key == "maxLength");
                    string(schema)
                        .map_err(|error| CompileError { path: format!("{at}{}", error.path), ..error })?
                }
            });
        }
        let mut body = format!("({})", choices.join(" | "));
        body.push_str(&without_any(without.iter()));
        if !not_first.is_empty() {
            let _ = write!(body, " & ~(/[{}](.|\n)*/)", pattern::literal_text(not_first));
        }
        let plain = self.plain(close);
        if plain == 0 {
            let body = self.define('W', "", &format!("({body}) & /(.|\n)+/"));
            let body = if may_be_empty { format!("({body})?") } else { body };
            return Ok(format!("{body} {}", self.text(close)));
        }
        let body = self.define('W', "", &body);
        let closed = self.define('W', "", &format!("{body} {}", lark::quoted(&close[..plain])));
        Ok(self.ended(&closed, &close[plain..]))
    }

    /// Words between two of `mark`.
    fn marked(&mut self, words: Words, mark: &str) -> Result<String, CompileError> {
        let words = self.words(&[words], &[mark.to_owned()], "", mark)?;
        Ok(format!("{} {words}", self.text(mark)))
    }

    /// Any value with bare keys, and strings between two of `mark`.
    fn braced(&mut self, mark: &'static str) -> Result<String, CompileError> {
        let key = self.part(&Part::BareKey(mark))?;
        let string = self.marked(Words::String { schema: Map::new(), at: String::new() }, mark)?;
        let schema = serde_json::json!({"type": ["number", "boolean", "null"]});
        let other = self.part(&Part::Json { schema, at: String::new() })?;
        let value = self.name('v');
        let member = format!("{key} \":\" {value}");
        let object = format!(r#""{{" ({member} ("," {member})*)? "}}""#);
        let list = format!(r#""[" ({value} ("," {value})*)? "]""#);
        let _ = writeln!(self.rules, "{value}: {string} | {other} | {object} | {list}");
        Ok(value)
    }

    /// A terminal that ends with a marker, or with what of it comes before a special token, which is `rest`.
    fn ended(&mut self, terminal: &str, rest: &str) -> String {
        if rest.is_empty() {
            return self.define('u', "[lazy]", terminal);
        }
        // What comes before may stand in the text too; only the special token says that it was the marker.
        format!("{terminal} {}", self.text(rest))
    }
}

/// To follow a terminal: none of these is in it.
fn without_any<'a>(markers: impl Iterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = markers.map(|marker| lark::quoted(marker)).collect();
    if quoted.is_empty() { String::new() } else { format!(" & ~({ANY} ({}) {ANY})", quoted.join(" | ")) }
}

/// The strings that these keywords of a JSON schema accept, as a terminal.
fn string(schema: &Map<String, Value>) -> Result<String, CompileError> {
    let count = |key: &str| match schema.get(key) {
        None => Ok(None),
        Some(value) => match Count::read(value) {
            Count::Of(count) if count <= LONGEST_COUNTED => Ok(Some(count)),
            Count::Endless if key == "maxLength" => Ok(None),
            Count::Invalid => {
                let reason = "expected an integer that is not negative";
                Err(CompileError::at(Kind::Invalid, format!("/{key}"), reason))
            }
            _ => {
                let reason =
                    format!("a length above {LONGEST_COUNTED} is not supported where a text is not JSON");
                Err(CompileError::at(Kind::Unsupported, format!("/{key}"), reason))
            }
        },
    };
    let mut all = Vec::new();
    match (count("minLength")?, count("maxLength")?) {
        (None, None) => all.push(ANY.to_owned()),
        (least, None) => all.push(format!(r"/(.|\n){{{},}}/", least.unwrap_or(0))),
        (_, Some(0)) => all.push("\"\"".to_owned()),
        (least, Some(most)) if least.unwrap_or(0) > most => {
            return Err(CompileError::new(Kind::Unsatisfiable, "no value matches the schema"));
        }
        (least, Some(most)) => all.push(format!(r"/(.|\n){{{},{most}}}/", least.unwrap_or(0))),
    }
    if let Some(value) = schema.get("pattern") {
        let refused = |reason: String| CompileError::at(Kind::Unsupported, "/pattern", reason);
        let text = value.as_str().ok_or_else(|| refused("expected a string".into()))?;
        for expression in from_ecma(text, Strings::Plain).map_err(refused)? {
            all.push(format!("/{}/", pattern::whole_of_search(&expression).map_err(refused)?));
        }
    }
    if let Some(expression) = schema.get("format").and_then(Value::as_str).and_then(schema::format_expression)
    {
        let whole = pattern::whole_text(expression);
        let whole = whole.map_err(|reason| CompileError::at(Kind::Unsupported, "/format", reason))?;
        all.push(format!("/{whole}/"));
    }
    Ok(format!("({})", all.join(" & ")))
}
