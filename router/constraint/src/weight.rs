//! What regular expressions cost those who read them, by their text, before anyone does: llguidance and regex-syntax cannot be
//! interrupted. Whoever takes expressions from clients adds up what one source has, and refuses what is too much.

/// What the expressions of one source may weigh together: a second or two for who reads them, who cannot be interrupted, and some
/// 50 MB.
const MOST_WEIGHT: usize = 4_000_000;
/// Of a character that stands for itself, of one that stands for both cases or for more, and of a set of Unicode, which is hundreds of
/// ranges.
const WEIGHT_OF_SEVERAL: usize = 8;
const WEIGHT_OF_CASES: usize = 32;
const WEIGHT_OF_SET: usize = 512;
/// Of a negative look-ahead, of which an automaton is made.
const WEIGHT_OF_OPPOSITE: usize = 2_048;
/// What may be left out makes a lexer take together all that may follow: this many, squared, weigh one.
const OPTIONS_OF_WEIGHT: usize = 2;
/// The ranges of a class are kept in order as they are read: so many of them, squared, weigh one.
const RANGES_OF_WEIGHT: usize = 16;

pub(crate) fn check(weight: usize) -> Result<(), String> {
    if weight > MOST_WEIGHT {
        return Err("the expression has too many characters, sets or ranges".into());
    }
    Ok(())
}

/// Whether letters stand for themselves in both cases.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Cases {
    Own,
    Both,
}

/// What reading an expression costs, about; some thousands take a millisecond.
pub(crate) fn of_expression(expression: &str, cases: Cases) -> usize {
    let in_both = cases == Cases::Both || expression.contains("(?i");
    let of_set = if in_both { 2 * WEIGHT_OF_SET } else { WEIGHT_OF_SET };
    let mut weight = of_text(expression, if in_both { Cases::Both } else { cases });
    let mut options = 0;
    let mut ranges = None;
    let mut before = ' ';
    for character in expression.chars() {
        let is_escaped = before == '\\';
        match (character, &mut ranges) {
            ('p' | 'P' | 'w' | 'W' | 'd' | 'D' | 's' | 'S', _) if is_escaped => weight += of_set,
            (_, Some(ranges)) if is_escaped => *ranges += 1,
            (_, None) if is_escaped => {}
            (']', Some(count)) => {
                weight = weight.saturating_add(squared(*count, RANGES_OF_WEIGHT));
                ranges = None;
            }
            (_, Some(ranges)) => *ranges += 1,
            ('[', None) => {
                weight += WEIGHT_OF_SEVERAL;
                ranges = Some(0);
            }
            ('.', None) => weight += WEIGHT_OF_SEVERAL,
            ('*' | '{', None) => options += 1,
            ('?', None) if before != '(' => options += 1,
            _ => {}
        }
        before = if is_escaped { ' ' } else { character };
    }
    weight.saturating_add(squared(options, OPTIONS_OF_WEIGHT))
}

/// What an ECMAScript expression weighs beside the expressions that are made of it.
pub(crate) fn of_opposites(expression: &str) -> usize {
    expression.matches("(?!").count().saturating_mul(WEIGHT_OF_OPPOSITE)
}

/// The weight of a text that stands for itself.
pub(crate) fn of_text(text: &str, cases: Cases) -> usize {
    match cases {
        Cases::Own => text.len(),
        Cases::Both => text.len() * WEIGHT_OF_CASES,
    }
}

/// The weight of what takes the square of how many there are.
pub(crate) fn squared(count: usize, of_weight: usize) -> usize {
    (count / of_weight).saturating_mul(count / of_weight)
}

/// The weight of what may be left out, so often, in one terminal.
pub(crate) fn of_options(count: usize) -> usize {
    squared(count, OPTIONS_OF_WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::whole_text;

    #[test]
    fn expressions_that_take_long_to_read_are_refused() {
        let range = |at: u32| char::from_u32(0x10000 + 2 * at).unwrap();
        for expression in [
            r"\w".repeat(20_000),
            r"[\p{L}]".repeat(20_000),
            format!("(?i){}", "a".repeat(200_000)),
            "(?:ab)*".repeat(10_000),
            "a?".repeat(10_000),
            format!("[{}]", (0..100_000).rev().map(range).collect::<String>()),
        ] {
            assert!(whole_text(&expression).is_err(), "{}", expression.len());
        }
        for expression in ["a".repeat(1_000_000), r"\w+ ".repeat(2_000), format!("[{}]", "a-z".repeat(2_000))]
        {
            assert!(check(of_expression(&expression, Cases::Own)).is_ok(), "{}", expression.len());
        }
    }
}
