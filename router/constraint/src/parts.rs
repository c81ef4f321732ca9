//! Texts that the server composes itself around what clients ask for: calls of tools in a model's own format, with
//! reasoning before them, as `penstock-output` composes them. Written as one Lark grammar.

use std::fmt::Write;

use penstock_output::Part;

use crate::{
    compiler::Stop,
    error::{CompileError, Kind},
    grammar::{choices, with_options},
    lark,
    limits::Limits,
    pattern, schema,
    vocabulary::Vocabulary,
};

const ANY: &str = r"/(.|\n)*/";
const SPACE: &str = r"/[ \t\r\n]+/";
const SPACE_OR_NONE: &str = r"/[ \t\r\n]*/";

/// A grammar as it is written.
pub(crate) struct Composed {
    pub(crate) lark: String,
    /// The special tokens that it asks for.
    pub(crate) special: Vec<u32>,
}

pub(crate) fn compose(
    parts: &[Part],
    vocabulary: &Vocabulary,
    limits: &Limits,
    stop: &Stop,
) -> Result<Composed, CompileError> {
    let mut writer = Writer { vocabulary, limits, stop, rules: String::new(), next: 0, special: Vec::new() };
    let start = writer.sequence(parts)?;
    Ok(Composed { lark: format!("start: {start}\n{}", writer.rules), special: writer.special })
}

struct Writer<'a> {
    vocabulary: &'a Vocabulary,
    limits: &'a Limits,
    stop: &'a Stop,
    rules: String,
    next: usize,
    special: Vec<u32>,
}

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
        self.stop.check(self.limits)?;
        Ok(match part {
            Part::Text(text) => self.text(text),
            Part::Json { schema, at } => {
                let core = schema::to_core(schema, self.limits, self.stop)
                    .map_err(|error| CompileError { path: format!("{at}{}", error.path), ..error })?;
                self.define('j', "", &format!("%json {}", with_options(core)))
            }
            Part::JsonObject => {
                let core = with_options(serde_json::json!({"type": "object"}));
                self.define('j', "", &format!("%json {core}"))
            }
            Part::Regex(expression) => {
                let checked = pattern::whole_text(expression)
                    .map_err(|reason| CompileError::new(Kind::Invalid, reason))?;
                self.define('R', "", &format!("/{checked}/"))
            }
            Part::Number => "/[0-9]{1,3}/".to_owned(),
            Part::Space => format!("({SPACE})?"),
            Part::Opening(text) if self.is_special_first(text) => {
                format!("({SPACE})? {}", self.text(text))
            }
            Part::Opening(text) => {
                let plain = self.plain(text);
                let opening =
                    self.define('O', "", &format!("{SPACE_OR_NONE} {}", lark::quoted(&text[..plain])));
                format!("{opening} {}", self.text(&text[plain..]))
            }
            Part::Choice(texts) => self.define('C', "", &choices(texts)?),
            Part::Until { marker, not_first } => self.until(marker, not_first.as_deref()),
            Part::Free { without, not_first } => self.free(without.as_deref(), not_first.as_deref()),
            Part::OneOf(choices) => {
                let mut written = Vec::with_capacity(choices.len());
                for choice in choices {
                    written.push(self.sequence(choice)?);
                }
                self.define('c', "", &written.join(" | "))
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
                    _ => {
                        let all = format!("{part} ({between} {part}){}", range(1));
                        if *least == 0 { format!("({all})?") } else { all }
                    }
                }
            }
        })
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

    fn until(&mut self, marker: &str, not_first: Option<&str>) -> String {
        if self.is_special_first(marker) {
            let free = self.free(None, not_first);
            return format!("{free} {}", self.text(marker));
        }
        // What of the marker comes before a special token; the rest follows.
        let plain = self.plain(marker);
        let body = format!("{ANY} {}", lark::quoted(&marker[..plain]));
        let terminal = self.terminal(&body, None, not_first);
        let lazy = self.define('u', "[lazy]", &terminal);
        format!("{lazy} {}", self.text(&marker[plain..]))
    }

    fn free(&mut self, without: Option<&str>, not_first: Option<&str>) -> String {
        let without = without.filter(|marker| !self.is_special_first(marker));
        let terminal = self.terminal(r"/(.|\n)+/", without, not_first);
        format!("{terminal}?")
    }

    /// A terminal that is `body`, less what is not to be in it.
    fn terminal(&mut self, body: &str, without: Option<&str>, not_first: Option<&str>) -> String {
        let mut terminal = format!("({body})");
        if let Some(marker) = without {
            let _ = write!(terminal, " & ~({ANY} {} {ANY})", lark::quoted(marker));
        }
        if let Some(marker) = not_first.filter(|marker| !self.is_special_first(marker)) {
            let _ = write!(terminal, " & ~({SPACE_OR_NONE} {} {ANY})", lark::quoted(marker));
        }
        self.define('F', "", &terminal)
    }
}
