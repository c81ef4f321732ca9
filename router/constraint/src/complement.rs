//! The opposite of an expression, written as another one: every text that an expression does not match at its start. JSON schema's
//! strings go to llguidance as expressions, which have no complement.
//!
//! The expression is made an automaton over sets of characters, the automaton deterministic and small; then one state after the other
//! is taken out, and the ways through it are written between those that are left. Source: Brzozowski and McCluskey, "Signal flow
//! graph techniques for sequential circuit state diagrams", 1963.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};

use crate::{
    pattern::{self, Strings},
    weight::{self, Cases},
};

/// Limits on the automatons, for their time: some milliseconds.
const MOST_PLACES: usize = 400;
const MOST_SETS: usize = 32;
const MOST_STATES: usize = 24;
/// Of an expression, as [`weight::of_expression`] has it: reading it takes as long.
const MOST_WEIGHT: usize = 100_000;
/// The longest expression that is written; what a lexer makes of it grows with it.
const LONGEST: usize = 20_000;

/// An expression for every text that `expression` does not match at its start. `expression` is in the syntax of regex-syntax, and may
/// have anchors anywhere.
pub(crate) fn not_at_start(expression: &str, strings: Strings) -> Result<String, String> {
    if weight::of_expression(expression, Cases::Own) > MOST_WEIGHT {
        return Err(too_large());
    }
    let hir = regex_syntax::parse(expression).map_err(|cause| pattern::reason(&cause.to_string()))?;
    let mut matching = Places::default();
    let start = matching.add()?;
    let accepting = matching.append(&hir, start)?;
    let automaton = Automaton::of_others(&matching, accepting, strings)?.smallest();
    let inside = automaton.expression()?;
    Ok(format!("^(?:{})$", inside.unwrap_or_else(|| pattern::NOTHING.into())))
}

fn too_large() -> String {
    "the opposite of a look-ahead would be too large an expression".into()
}

/// A nondeterministic automaton.
#[derive(Default)]
struct Places {
    steps: Vec<Vec<(Step, usize)>>,
    sets: Vec<ClassUnicode>,
    /// Parts of the expression that were appended.
    parts: usize,
}

/// What leads from one place to another.
#[derive(Clone, Copy)]
enum Step {
    Free,
    /// A character of this set.
    Character(usize),
    AtStart,
    AtEnd,
}

impl Places {
    fn add(&mut self) -> Result<usize, String> {
        if self.steps.len() == MOST_PLACES {
            return Err(too_large());
        }
        self.steps.push(Vec::new());
        Ok(self.steps.len() - 1)
    }

    fn step(&mut self, from: usize, step: Step) -> Result<usize, String> {
        let to = self.add()?;
        self.steps[from].push((step, to));
        Ok(to)
    }

    fn character(&mut self, from: usize, set: ClassUnicode) -> Result<usize, String> {
        let number = self.sets.iter().position(|known| *known == set).unwrap_or(self.sets.len());
        if number == self.sets.len() {
            self.sets.push(set);
        }
        self.step(from, Step::Character(number))
    }

    /// The place behind `hir`, which begins at `from`.
    fn append(&mut self, hir: &Hir, from: usize) -> Result<usize, String> {
        self.parts += 1;
        if self.parts > 4 * MOST_PLACES {
            return Err(too_large());
        }
        match hir.kind() {
            HirKind::Empty => Ok(from),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|_| too_large())?;
                text.chars().try_fold(from, |at, character| self.character(at, only(character)))
            }
            HirKind::Class(Class::Unicode(class)) => self.character(from, class.clone()),
            HirKind::Class(Class::Bytes(class)) => {
                self.character(from, class.to_unicode_class().ok_or_else(too_large)?)
            }
            HirKind::Look(Look::Start) => self.step(from, Step::AtStart),
            HirKind::Look(Look::End) => {
                // Some engines take the place before a line end at the end for the end too.
                let line_end = self.character(from, only('\n'))?;
                let end = self.step(from, Step::AtEnd)?;
                self.steps[line_end].push((Step::AtEnd, end));
                Ok(end)
            }
            HirKind::Look(_) => Err("a word boundary is not supported".into()),
            HirKind::Capture(capture) => self.append(&capture.sub, from),
            HirKind::Concat(parts) => parts.iter().try_fold(from, |at, part| self.append(part, at)),
            HirKind::Alternation(choices) => {
                let behind = self.add()?;
                for choice in choices {
                    let end = self.append(choice, from)?;
                    self.steps[end].push((Step::Free, behind));
                }
                Ok(behind)
            }
            HirKind::Repetition(repetition) => {
                let mut at = from;
                for _ in 0..repetition.min {
                    at = self.append(&repetition.sub, at)?;
                }
                let behind = self.add()?;
                let Some(most) = repetition.max else {
                    let again = self.step(at, Step::Free)?;
                    let end = self.append(&repetition.sub, again)?;
                    self.steps[end].push((Step::Free, again));
                    self.steps[again].push((Step::Free, behind));
                    return Ok(behind);
                };
                for _ in repetition.min..most {
                    self.steps[at].push((Step::Free, behind));
                    at = self.append(&repetition.sub, at)?;
                }
                self.steps[at].push((Step::Free, behind));
                Ok(behind)
            }
        }
    }

    /// Which places are reached without a character.
    fn reached(&self, from: impl IntoIterator<Item = usize>, at_start: bool, at_end: bool) -> Vec<bool> {
        let mut reached = vec![false; self.steps.len()];
        let mut todo: Vec<usize> = from.into_iter().collect();
        while let Some(place) = todo.pop() {
            if std::mem::replace(&mut reached[place], true) {
                continue;
            }
            todo.extend(self.steps[place].iter().filter_map(|(step, to)| match step {
                Step::Free => Some(*to),
                Step::AtStart => at_start.then_some(*to),
                Step::AtEnd => at_end.then_some(*to),
                Step::Character(_) => None,
            }));
        }
        reached
    }
}

fn only(character: char) -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new(character, character)])
}

/// A deterministic automaton, which begins in the first state.
struct Automaton {
    /// Sets of characters that no state tells apart.
    sets: Vec<ClassUnicode>,
    states: Vec<State>,
}

struct State {
    may_end: bool,
    /// The state behind each of the sets; None where no text goes on.
    next: Vec<Option<usize>>,
}

impl Automaton {
    /// The texts that do not begin with one that leads to `accepting`.
    fn of_others(matching: &Places, accepting: usize, strings: Strings) -> Result<Automaton, String> {
        let mut sets = vec![pattern::characters(strings)];
        for set in &matching.sets {
            let halves = sets.iter().flat_map(|known| {
                let (mut within, mut without) = (known.clone(), known.clone());
                within.intersect(set);
                without.difference(set);
                [within, without]
            });
            sets = halves.filter(|half| !half.ranges().is_empty()).collect();
            if sets.len() > MOST_SETS {
                return Err(too_large());
            }
        }
        // The sets are in a set of the expression as a whole, or not at all.
        let has = |set: &ClassUnicode, part: &ClassUnicode| {
            let first = part.ranges()[0].start();
            set.ranges().iter().any(|range| (range.start()..=range.end()).contains(&first))
        };
        let within: Vec<Vec<bool>> =
            sets.iter().map(|part| matching.sets.iter().map(|set| has(set, part)).collect()).collect();
        let mut known = vec![matching.reached([0], true, false)];
        let mut states: Vec<State> = Vec::new();
        if known[0][accepting] {
            return Ok(Automaton { sets, states });
        }
        while states.len() < known.len() {
            let places = &known[states.len()];
            let is_first = states.is_empty();
            let places: Vec<usize> = (0..places.len()).filter(|place| places[*place]).collect();
            let at_end = matching.reached(places.iter().copied(), is_first, true);
            let mut next = Vec::new();
            for within in &within {
                let steps = places.iter().flat_map(|place| &matching.steps[*place]);
                let taken = steps.filter_map(|(step, to)| match step {
                    Step::Character(set) if within[*set] => Some(*to),
                    _ => None,
                });
                let behind = matching.reached(taken, false, false);
                if behind[accepting] {
                    next.push(None);
                    continue;
                }
                // The first one differs from others of the same places: it is at the start.
                let number = known.iter().skip(1).position(|known| *known == behind);
                let number = number.map_or(known.len(), |number| number + 1);
                if number == MOST_STATES {
                    return Err(too_large());
                }
                if number == known.len() {
                    known.push(behind);
                }
                next.push(Some(number));
            }
            states.push(State { may_end: !at_end[accepting], next });
        }
        Ok(Automaton { sets, states })
    }

    /// The same with one state for all that the same texts lead on from. Source: Moore, "Gedanken-experiments on sequential machines",
    /// 1956.
    fn smallest(self) -> Automaton {
        let mut groups: Vec<usize> = self.states.iter().map(|state| usize::from(state.may_end)).collect();
        let mut count = 0;
        loop {
            let mut kinds: Vec<(usize, Vec<Option<usize>>)> = Vec::new();
            let refined: Vec<usize> = self
                .states
                .iter()
                .zip(&groups)
                .map(|(state, group)| {
                    let next = state.next.iter().map(|next| next.map(|next| groups[next])).collect();
                    let kind = (*group, next);
                    kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                        kinds.push(kind);
                        kinds.len() - 1
                    })
                })
                .collect();
            groups = refined;
            if kinds.len() == count {
                break;
            }
            count = kinds.len();
        }
        let first_of = |group: usize| groups.iter().position(|of| *of == group).unwrap_or_default();
        let states = (0..count).map(|group| {
            let state = &self.states[first_of(group)];
            let next = state.next.iter().map(|next| next.map(|next| groups[next])).collect();
            State { may_end: state.may_end, next }
        });
        Automaton { states: states.collect(), sets: self.sets }
    }

    /// Of all texts that may end; None where there is none.
    fn expression(&self) -> Result<Option<String>, String> {
        let count = self.states.len();
        if count == 0 {
            return Ok(None);
        }
        // Between every two states, and from the first one to an end that is behind all.
        let mut ways: Vec<Vec<Option<String>>> = vec![vec![None; count + 1]; count + 1];
        for (from, state) in self.states.iter().enumerate() {
            for (to, way) in ways[from].iter_mut().enumerate() {
                let mut taken = ClassUnicode::empty();
                for (set, _) in self.sets.iter().zip(&state.next).filter(|(_, next)| **next == Some(to)) {
                    taken.union(set);
                }
                *way = (!taken.ranges().is_empty()).then(|| class(&taken));
            }
            ways[from][count] = state.may_end.then(String::new);
        }
        // The first state is not taken out: what leads back to it is written at the end.
        let mut left: Vec<usize> = (1..count).collect();
        loop {
            let all: Vec<usize> = left.iter().copied().chain([0, count]).collect();
            // The one of the fewest ways.
            let ways_through = |state: usize| {
                let into = all.iter().filter(|from| **from != state && ways[**from][state].is_some()).count();
                let out = all.iter().filter(|to| **to != state && ways[state][**to].is_some()).count();
                into * out
            };
            let Some(at) = (0..left.len()).min_by_key(|at| ways_through(left[*at])) else { break };
            let out = left.swap_remove(at);
            let around = repeated(ways[out][out].take());
            for from in all.iter().copied().filter(|from| *from != out) {
                let Some(before) = ways[from][out].take() else { continue };
                for to in all.iter().copied().filter(|to| *to != out) {
                    if let Some(after) = &ways[out][to] {
                        let through = format!("{before}{around}{after}");
                        let way = match ways[from][to].take() {
                            Some(other) => format!("(?:{other}|{through})"),
                            None => through,
                        };
                        if way.len() > LONGEST {
                            return Err(too_large());
                        }
                        ways[from][to] = Some(way);
                    }
                }
            }
        }
        let around = repeated(ways[0][0].take());
        Ok(ways[0][count].take().map(|end| format!("{around}{end}")))
    }
}

fn repeated(way: Option<String>) -> String {
    way.map_or(String::new(), |way| format!("(?:{way})*"))
}

fn class(set: &ClassUnicode) -> String {
    let ranges = set.ranges().iter().map(|range| {
        let (first, last) = (pattern::literal(range.start()), pattern::literal(range.end()));
        if first == last { first } else { format!("{first}-{last}") }
    });
    format!("[{}]", ranges.collect::<String>())
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::{Regex, RegexBuilder};

    use super::*;

    fn regex(expression: &str) -> Regex {
        let mut builder = RegexBuilder::new();
        let parsed = builder.mk_regex(expression).unwrap();
        builder.to_regex(parsed)
    }

    /// Every text of up to `longest` of these characters.
    fn texts(characters: &str, longest: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut done = 0;
        while done < all.len() {
            if all[done].chars().count() < longest {
                let longer: Vec<String> =
                    characters.chars().map(|next| format!("{}{next}", all[done])).collect();
                all.extend(longer);
            }
            done += 1;
        }
        all
    }

    #[test]
    fn a_text_matches_either_an_expression_at_its_start_or_its_opposite() {
        for expression in [
            "",
            "a",
            "a|bc",
            ".*aa",
            ".*a.*b",
            "[ab]*c",
            "a{2,3}b",
            "(?:ab)*c",
            "(?:a|b)*abb",
            "b?",
            "[^a]b",
            ".{3}",
            "(?s:.)*c",
            "a+?b",
            "[a-b]{2}|c",
            "é",
            "[^é]a",
            "(?i)A",
            ".*[^a-c]",
            r"[a&&b]",
            "(?:a*)*b",
        ] {
            let opposite = not_at_start(expression, Strings::Plain).unwrap();
            let mut opposite = regex(&opposite);
            let (mut beginning, mut whole) = (regex(&format!("(?:{expression})(?s:.)*")), regex(expression));
            let at_end = not_at_start(&format!("(?:{expression})$"), Strings::Plain).unwrap();
            let mut at_end = regex(&at_end);
            for text in texts("abcé\n", 4) {
                assert_ne!(opposite.is_match(&text), beginning.is_match(&text), "{expression} and {text:?}");
                // The end, or the line end there.
                let is_whole =
                    whole.is_match(&text) || text.strip_suffix('\n').is_some_and(|line| whole.is_match(line));
                assert_ne!(at_end.is_match(&text), is_whole, "{expression}$ and {text:?}");
            }
        }
    }

    #[test]
    fn anchors_may_stand_anywhere() {
        for (expression, matching, others) in [
            ("^a", vec!["a", "ab"], vec!["", "ba"]),
            ("a$|b", vec!["a", "ba", "a\n"], vec!["", "ab", "c"]),
            ("^$", vec!["", "\n"], vec!["a", "\n\n"]),
            ("^(?:a$|^b)", vec!["a", "ba"], vec!["ab", ""]),
            ("a^b", vec![], vec!["ab", "b"]),
            ("(?:^a)*$", vec!["", "a"], vec!["aa"]),
        ] {
            let mut opposite = regex(&not_at_start(expression, Strings::Plain).unwrap());
            for text in matching {
                assert!(!opposite.is_match(text), "{expression} and {text:?}");
            }
            for text in others {
                assert!(opposite.is_match(text), "{expression} and {text:?}");
            }
        }
    }

    #[test]
    fn equal_states_are_one() {
        let states = |expression: &str| {
            let mut matching = Places::default();
            let start = matching.add().unwrap();
            let accepting = matching.append(&regex_syntax::parse(expression).unwrap(), start).unwrap();
            Automaton::of_others(&matching, accepting, Strings::Plain).unwrap().smallest().states.len()
        };
        assert_eq!(states("(?s:.)*aa"), 2);
        assert_eq!(states(".*aa"), 3);
        assert_eq!(states("(?:ac|bc)d"), 4);
    }

    #[test]
    fn what_would_be_too_large_is_refused() {
        for expression in [
            ".*a.{8}",
            "(?:a{50}){50}",
            "(?:(?:){1000}){1000}a{1000}",
            ".*x{1,1000}",
            r"(?:\p{L}\d|\p{Lu}){20}",
            "(?:a*b?){300}",
            r"\p{L}".repeat(1_000).as_str(),
        ] {
            let refused = not_at_start(expression, Strings::Plain).unwrap_err();
            assert!(refused.contains("too large"), "{expression}: {refused}");
        }
        // Each set halves the others.
        let halving = (0..8).map(|bit| {
            let has: String = (0..256_u32)
                .filter(|code| code >> bit & 1 == 1)
                .map(|code| format!("\\u{{{:X}}}", 0x4e00 + code))
                .collect();
            format!("[{has}]")
        });
        assert!(not_at_start(&halving.collect::<String>(), Strings::Plain).is_err());
    }

    #[test]
    fn what_no_string_of_json_has_is_in_no_set() {
        let opposite = not_at_start(r"[\x00-\x1f]|[\t\n]", Strings::OfJson).unwrap();
        assert!(!opposite.contains("u{0}") && opposite.contains("u{8}"), "{opposite}");
    }
}
