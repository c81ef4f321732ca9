//! Python's two ways of formatting strings: `'%s' % value` and `'{}'.format(value)`.

use std::fmt::Write;
use std::sync::Arc;

use super::arguments::Given;
use super::budget::{Budget, too_large};
use super::subscripts::{get, item};
use super::value::{Value, float, lookup};
use super::{Error, ErrorKind};

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::Other, format!("a format: {reason}"))
}

/// What stands between `%` and its letter, or after the colon in braces.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    comma: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn pad(&self, body: String, default: char, budget: &Budget) -> Result<String, Error> {
        let missing = self.width.saturating_sub(body.chars().count());
        let fill = self.fill.unwrap_or(' ');
        budget.fits(missing.saturating_mul(fill.len_utf8()).saturating_add(body.len()))?;
        budget.step(missing / 64)?;
        let (before, after) = match self.align.unwrap_or(default) {
            '<' => (0, missing),
            '^' => (missing / 2, missing - missing / 2),
            '=' => {
                let sign = usize::from(body.starts_with(['-', '+', ' ']));
                let (sign, digits) = body.split_at(sign);
                return Ok(format!("{sign}{}{digits}", fill.to_string().repeat(missing)));
            }
            _ => (missing, 0),
        };
        let fill = |count: usize| fill.to_string().repeat(count);
        Ok(format!("{}{body}{}", fill(before), fill(after)))
    }

    fn signed(&self, body: String, negative: bool) -> String {
        match (negative, self.sign) {
            (true, _) => format!("-{body}"),
            (false, Some(sign @ ('+' | ' '))) => format!("{sign}{body}"),
            _ => body,
        }
    }

    fn group(&self, digits: String) -> String {
        let Some(comma) = self.comma else { return digits };
        let (whole, rest) = digits.find('.').map_or((&digits[..], ""), |at| digits.split_at(at));
        let mut out = String::new();
        for (at, c) in whole.chars().enumerate() {
            if at > 0 && (whole.len() - at).is_multiple_of(3) {
                out.push(comma);
            }
            out.push(c);
        }
        out + rest
    }

    fn integer(&self, number: i128) -> Result<String, Error> {
        let magnitude = number.unsigned_abs();
        let body = match self.kind {
            Some('x') => format!("{}{magnitude:x}", if self.alternate { "0x" } else { "" }),
            Some('X') => format!("{}{magnitude:X}", if self.alternate { "0X" } else { "" }),
            Some('o') => format!("{}{magnitude:o}", if self.alternate { "0o" } else { "" }),
            Some('b') => format!("{}{magnitude:b}", if self.alternate { "0b" } else { "" }),
            _ => self.group(magnitude.to_string()),
        };
        Ok(self.signed(body, number < 0))
    }

    fn float(&self, number: f64) -> Result<String, Error> {
        let precision = self.precision.unwrap_or(6);
        if precision > 1000 {
            return Err(invalid("the precision is too large"));
        }
        let magnitude = number.abs();
        let body = if !number.is_finite() {
            if number.is_nan() { "nan".into() } else { "inf".into() }
        } else {
            match self.kind {
                Some('f' | 'F') => self.group(format!("{magnitude:.precision$}")),
                Some('%') => format!("{:.precision$}%", magnitude * 100.0),
                Some('e' | 'E') => exponent(&format!("{magnitude:.precision$e}")),
                Some('g' | 'G') => general(magnitude, precision.max(1)),
                _ => match self.precision {
                    Some(precision) => general(magnitude, precision.max(1)),
                    None => self.group(float(magnitude)),
                },
            }
        };
        let body = if matches!(self.kind, Some('E' | 'G')) { body.to_uppercase() } else { body };
        Ok(self.signed(body, number < 0.0))
    }
}

/// Rust's exponents to Python's: at least two digits and a sign.
fn exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(magnitude: f64, precision: usize) -> String {
    let scientific = format!("{magnitude:.*e}", precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let strip = |digits: &str| {
        if digits.contains('.') {
            digits.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            digits.to_owned()
        }
    };
    if power < -4 || power >= precision as i32 {
        let (digits, _) = scientific.split_once('e').unwrap_or((&scientific, ""));
        return exponent(&format!("{}e{power}", strip(digits)));
    }
    strip(&format!("{magnitude:.*}", (precision as i32 - 1 - power).max(0) as usize))
}

/// `format % values`.
pub fn percent(format: &str, values: &Value, budget: &Budget) -> Result<String, Error> {
    budget.read(format)?;
    let arguments: Vec<Value> = match values {
        Value::Tuple(_) => values.items(budget)?,
        other => vec![other.clone()],
    };
    let mut used = 0;
    let mut named = false;
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        budget.step(1)?;
        let mut of_name = None;
        if chars.peek() == Some(&'(') {
            chars.next();
            let mut name = String::new();
            loop {
                match chars.next() {
                    Some(')') => break,
                    Some(c) => name.push(c),
                    None => return Err(invalid("a name does not end")),
                }
            }
            let Value::Dict(items) = values else { return Err(invalid("it needs a mapping")) };
            named = true;
            of_name = Some(lookup(items, &name).cloned().ok_or_else(|| invalid("a name is missing"))?);
        }
        let mut spec = Spec::default();
        let mut zero = false;
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => zero = true,
                '#' => spec.alternate = true,
                ' ' if spec.sign == Some('+') => {}
                sign => spec.sign = Some(sign),
            }
        }
        let mut next = || {
            used += 1;
            arguments.get(used - 1).cloned().ok_or_else(|| invalid("there are not enough arguments"))
        };
        let mut number = |chars: &mut std::iter::Peekable<std::str::Chars>| -> Result<Option<usize>, Error> {
            if chars.next_if_eq(&'*').is_some() {
                return Ok(usize::try_from(next()?.as_int().unwrap_or(0)).ok());
            }
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            if digits.is_empty() {
                return Ok(None);
            }
            digits.parse().map(Some).map_err(|_| invalid("a width is too large"))
        };
        spec.width = number(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars)?.unwrap_or(0));
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let kind = chars.next().ok_or_else(|| invalid("it is incomplete"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match of_name {
            Some(value) => value,
            None => {
                used += 1;
                arguments.get(used - 1).cloned().ok_or_else(|| invalid("there are not enough arguments"))?
            }
        };
        spec.kind = Some(kind);
        let body = match kind {
            's' | 'r' | 'a' => {
                let text: Arc<str> =
                    if kind == 's' { value.to_str(budget)? } else { value.repr(budget)?.into() };
                budget.read(&text)?;
                match spec.precision {
                    Some(most) => text.chars().take(most).collect(),
                    None => text.to_string(),
                }
            }
            'c' => match &value {
                Value::Str(text) if text.text.chars().count() == 1 => text.text.to_string(),
                other => other
                    .as_int()
                    .and_then(|code| u32::try_from(code).ok())
                    .and_then(char::from_u32)
                    .ok_or_else(|| invalid("`%c` needs a character"))?
                    .to_string(),
            },
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let number = match &value {
                    Value::Float(number) if number.is_finite() && "diu".contains(kind) => {
                        if number.abs() < 1e38 { *number as i128 } else { return Err(too_large()) }
                    }
                    other => other.as_int().ok_or_else(|| invalid("a number is missing"))?,
                };
                spec.integer(number)?
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                spec.float(value.as_number().ok_or_else(|| invalid("a number is missing"))?)?
            }
            _ => return Err(invalid("a letter is not known")),
        };
        if zero && spec.align.is_none() && !matches!(kind, 's' | 'r' | 'a' | 'c') {
            spec.fill = Some('0');
            spec.align = Some('=');
        }
        budget.push(&mut out, &spec.pad(body, '>', budget)?)?;
    }
    let all_used = named || used >= arguments.len() || matches!(values, Value::Dict(_) | Value::List(_));
    // A single value that nothing takes is an error too, but for mappings and lists.
    if all_used { Ok(out) } else { Err(invalid("not all arguments are used")) }
}

/// Fields are numbered by hand or all by themselves.
#[derive(Default)]
struct Numbering {
    automatic: usize,
    by_hand: bool,
}

/// `format.format(...)`.
pub fn braces(format: &str, given: &Given, budget: &Budget) -> Result<String, Error> {
    fill(format, given, &mut Numbering::default(), 0, budget)
}

fn fill(
    format: &str,
    given: &Given,
    numbering: &mut Numbering,
    depth: u32,
    budget: &Budget,
) -> Result<String, Error> {
    if depth > 1 {
        return Err(invalid("it is nested too deeply"));
    }
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        budget.push(&mut out, &rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(invalid("a single `}`"));
        }
        let mut open = 1;
        let end = rest.char_indices().find(|(_, c)| {
            open += i32::from(*c == '{') - i32::from(*c == '}');
            open == 0
        });
        let (end, _) = end.ok_or_else(|| invalid("a single `{`"))?;
        let field = replacement(&rest[..end], given, numbering, depth, budget)?;
        budget.push(&mut out, &field)?;
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn replacement(
    field: &str,
    given: &Given,
    numbering: &mut Numbering,
    depth: u32,
    budget: &Budget,
) -> Result<String, Error> {
    budget.read(field)?;
    // Looked for one by one.
    budget.step(1 + given.named.len())?;
    let (name, spec) = match field.find(':') {
        Some(at) => (&field[..at], &field[at + 1..]),
        None => (field, ""),
    };
    let (name, conversion) = match name.find('!') {
        Some(at) => (&name[..at], Some(&name[at + 1..])),
        None => (name, None),
    };
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let mut value = if first.is_empty() {
        numbering.automatic += 1;
        given.positional.get(numbering.automatic - 1).cloned()
    } else if let Ok(at) = first.parse::<usize>() {
        numbering.by_hand = true;
        given.positional.get(at).cloned()
    } else {
        given.named.iter().find(|(given, _)| **given == *first).map(|(_, value)| value.clone())
    }
    .ok_or_else(|| invalid("an argument is missing"))?;
    if numbering.by_hand && numbering.automatic > 0 {
        return Err(invalid("fields with and without numbers"));
    }
    while !path.is_empty() {
        let missing = || invalid("a field is missing");
        if let Some(rest) = path.strip_prefix('[') {
            let end = rest.find(']').ok_or_else(missing)?;
            let index = &rest[..end];
            let index = index.parse().map_or_else(|_| Value::str(index), Value::Int);
            value = item(&value, &index, budget)?.ok_or_else(missing)?;
            path = &rest[end + 1..];
        } else {
            let rest = &path[1..];
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let Value::Namespace(names) = &value else { return Err(missing()) };
            let names = names.upgrade().ok_or_else(missing)?;
            let found = get(&names.borrow(), &Value::str(&rest[..end]), budget)?;
            value = found.ok_or_else(missing)?;
            path = &rest[end..];
        }
    }
    match conversion {
        Some("r" | "a") => value = Value::str(value.repr(budget)?),
        Some("s") => value = Value::Str(super::value::Text { text: value.to_str(budget)?, safe: false }),
        Some(_) => return Err(invalid("a conversion is not known")),
        None => {}
    }
    let spec = fill(spec, given, numbering, depth + 1, budget)?;
    formatted(&value, &spec, budget)
}

/// `format(value, spec)`.
fn formatted(value: &Value, text: &str, budget: &Budget) -> Result<String, Error> {
    if text.is_empty() {
        return Ok(value.to_str(budget)?.to_string());
    }
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let mut spec = Spec::default();
    if chars.len() > 1 && matches!(chars[1], '<' | '>' | '^' | '=') {
        spec.fill = Some(chars[0]);
        spec.align = Some(chars[1]);
        at = 2;
    } else if matches!(chars[0], '<' | '>' | '^' | '=') {
        spec.align = Some(chars[0]);
        at = 1;
    }
    let peek = |at: usize| chars.get(at).copied();
    if let Some(sign @ ('+' | '-' | ' ')) = peek(at) {
        spec.sign = Some(sign);
        at += 1;
    }
    if peek(at) == Some('#') {
        spec.alternate = true;
        at += 1;
    }
    if peek(at) == Some('0') {
        if spec.align.is_none() {
            spec.align = Some('=');
        }
        spec.fill = spec.fill.or(Some('0'));
        at += 1;
    }
    let number = |at: &mut usize| {
        let start = *at;
        while peek(*at).is_some_and(|c| c.is_ascii_digit()) {
            *at += 1;
        }
        chars[start..*at].iter().collect::<String>().parse::<usize>().ok()
    };
    spec.width = number(&mut at).unwrap_or(0);
    if let Some(comma @ (',' | '_')) = peek(at) {
        spec.comma = Some(comma);
        at += 1;
    }
    if peek(at) == Some('.') {
        at += 1;
        spec.precision = Some(number(&mut at).ok_or_else(|| invalid("a precision is missing"))?);
    }
    spec.kind = peek(at);
    if at + 1 < chars.len() {
        return Err(invalid("it goes on after its end"));
    }
    match value {
        Value::Str(text) => {
            if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') || spec.sign.is_some() {
                return Err(invalid("it is none for text"));
            }
            let body = spec
                .precision
                .map_or_else(|| text.text.to_string(), |most| text.text.chars().take(most).collect());
            spec.pad(body, '<', budget)
        }
        Value::Bool(_) if spec.kind.is_none() => {
            let as_int = value.as_int().unwrap_or(0);
            let body = spec.integer(as_int)?;
            spec.pad(body, '>', budget)
        }
        Value::Bool(_) | Value::Int(_) => {
            let number = value.as_int().unwrap_or(0);
            let body = match spec.kind {
                None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n') => spec.integer(number)?,
                Some('c') => u32::try_from(number)
                    .ok()
                    .and_then(char::from_u32)
                    .ok_or_else(|| invalid("a character is missing"))?
                    .to_string(),
                Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => spec.float(number as f64)?,
                Some(_) => return Err(invalid("it is none for numbers")),
            };
            spec.pad(body, '>', budget)
        }
        Value::Float(number) => {
            if !matches!(spec.kind, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%')) {
                return Err(invalid("it is none for numbers"));
            }
            let body = spec.float(*number)?;
            spec.pad(body, '>', budget)
        }
        _ => Err(invalid("this value takes none")),
    }
}

/// `strftime` of now, local time. What C's does not know stays as it is written.
pub fn now(format: &str, budget: &Budget) -> Result<String, Error> {
    let now = chrono::Local::now().naive_local();
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        budget.step(1)?;
        budget.push(&mut out, &rest[..at])?;
        rest = &rest[at..];
        let flags = rest[1..].chars().take_while(|c| matches!(c, '-' | '_' | '0' | '^' | '#')).count();
        let Some(letter) = rest[1 + flags..].chars().next() else { break };
        let (item, after) = rest.split_at(1 + flags + letter.len_utf8());
        let item_text = match letter {
            '%' => "%".into(),
            // A time without a zone.
            'z' | 'Z' => String::new(),
            'f' => now.format("%6f").to_string(),
            _ => {
                let mut text = String::new();
                let plain: String = item.chars().filter(|c| !matches!(c, '^' | '#')).collect();
                match write!(text, "{}", now.format(&plain)) {
                    Ok(()) if item.contains('^') => text.to_uppercase(),
                    Ok(()) => text,
                    Err(_) => item.to_owned(),
                }
            }
        };
        budget.push(&mut out, &item_text)?;
        rest = after;
    }
    Ok(out + rest)
}
