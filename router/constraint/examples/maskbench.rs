//! Runs the cases of MaskBench (arXiv 2501.10868) through the crate and prints what it prints.
//!
//! `maskbench CASES [--json] [--failures] [--slowest N] [--vocabulary N]`: CASES is a file of JSON lines, or a folder of JSON files, each
//! `{"schema": ..., "tests": [{"valid": ..., "data": ...}]}`. Every instance is written as Python's `json.dumps` would,
//! tokenized, and walked: a mask before each token. A grammar has the properties in the schema's order, so an instance
//! that is refused as it is given is tried once more in that order. One thread; nothing is cached between cases.

mod order;
mod synthetic;

use std::{
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use penstock_constraint::{Cancel, Compiler, Grammar, Kind, Limits, Matcher, Source};
use serde_json::{Value, json};

/// Python's separators: `", "` and `": "`.
struct PythonFormat;

impl serde_json::ser::Formatter for PythonFormat {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

fn dumps(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, PythonFormat);
    serde::Serialize::serialize(value, &mut serializer).expect("a value in memory is written");
    out
}

struct Case {
    name: String,
    schema: Value,
    tests: Vec<(bool, Value)>,
}

fn case(name: String, mut value: Value) -> Option<Case> {
    let schema = value.get_mut("schema")?.take();
    let tests = value.get("tests")?.as_array()?;
    let tests =
        tests.iter().filter_map(|test| Some((test.get("valid")?.as_bool()?, test.get("data")?.clone())));
    let tests = tests.collect();
    Some(Case { name, schema, tests })
}

fn read(path: &Path) -> io::Result<Vec<Case>> {
    if path.is_dir() {
        let mut paths: Vec<_> = std::fs::read_dir(path)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        return paths
            .iter()
            .filter_map(|path| {
                let name = path.file_stem()?.to_string_lossy().into_owned();
                let text = match std::fs::read_to_string(path) {
                    Ok(text) => text,
                    Err(cause) => return Some(Err(cause)),
                };
                serde_json::from_str(&text).ok().and_then(|value| case(name, value)).map(Ok)
            })
            .collect();
    }
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    Ok(lines
        .filter_map(|(index, line)| {
            let value: Value = serde_json::from_str(line).ok()?;
            let name = value
                .get("name")
                .and_then(Value::as_str)
                .map_or(format!("line {}", index + 1), str::to_owned);
            case(name, value)
        })
        .collect())
}

#[derive(Default)]
struct Report {
    cases: usize,
    passing: usize,
    compile_errors: usize,
    timeouts: usize,
    /// Cases of which some instance was judged wrongly, and those instances.
    refused: usize,
    refused_instances: usize,
    /// Valid instances that are refused with their properties in the order in which the case has them.
    refused_as_given: usize,
    accepted: usize,
    accepted_instances: usize,
    instances: usize,
    masks: Vec<Timed>,
    first_masks: Vec<Duration>,
}

/// A mask that was computed: how long by the wall clock, and as the thread was running; of which case, and what stood before it.
struct Timed {
    wall: Duration,
    running: Duration,
    case: usize,
    before: String,
}

/// Whether every token of the text is in the mask before it, and the end at last.
fn walk(
    grammar: &Grammar,
    vocabulary: &synthetic::Vocabulary,
    text: &[u8],
    case: usize,
    masks: &mut Vec<Timed>,
) -> Result<(), String> {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; grammar.mask_words()];
    let mut at = 0_usize;
    let mut timed = |matcher: &mut Matcher, mask: &mut [u32], at: usize| {
        let (start, running) = (Instant::now(), synthetic::cpu_time());
        let computed = matcher.mask(mask);
        let (running, wall) = (synthetic::cpu_time() - running, start.elapsed());
        let before = String::from_utf8_lossy(&text[at.saturating_sub(60)..at]).into_owned();
        masks.push(Timed { wall, running, case, before });
        computed
    };
    for token in vocabulary.tokenize(text) {
        let computed = timed(&mut matcher, &mut mask, at);
        let around = String::from_utf8_lossy(&text[at..(at + 40).min(text.len())]).into_owned();
        computed.map_err(|error| format!("{error} at {around:?}"))?;
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            return Err(format!("not allowed: {around:?}"));
        }
        matcher.advance(token).map_err(|error| format!("{error} at {around:?}"))?;
        at += vocabulary.tokens[token as usize].bytes.len();
    }
    timed(&mut matcher, &mut mask, at).map_err(|error| format!("{error} at the end"))?;
    let may_end = mask[vocabulary.eos as usize / 32] >> (vocabulary.eos % 32) & 1 == 1;
    if may_end { Ok(()) } else { Err("the text may not end".into()) }
}

fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cases = None;
    let (mut as_json, mut show_failures, mut size, mut slowest) = (false, false, 128_000, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => as_json = true,
            "--failures" => show_failures = true,
            "--slowest" => slowest = arguments.next().ok_or("--slowest wants a number")?.parse()?,
            "--vocabulary" => size = arguments.next().ok_or("--vocabulary wants a size")?.parse()?,
            _ => cases = Some(argument),
        }
    }
    let path = cases.ok_or("usage: maskbench CASES [--json] [--failures] [--slowest N] [--vocabulary N]")?;
    let cases = read(Path::new(&path))?;
    let vocabulary = synthetic::Vocabulary::new(size);
    let limits = Limits { timeout: Duration::from_secs(10), cache_bytes: 0, ..Limits::default() };
    let compiler = Compiler::new(vocabulary.tokens.clone(), size, &[vocabulary.eos], limits)?;

    let mut report = Report { cases: cases.len(), ..Report::default() };
    for (number, case) in cases.iter().enumerate() {
        report.instances += case.tests.len();
        let source = Source::JsonSchema(case.schema.clone());
        let start = Instant::now();
        // The first mask is computed when a grammar is compiled.
        let compiled = compiler.compile(source, &Cancel::new());
        let elapsed = start.elapsed();
        let grammar = match compiled {
            Ok(grammar) => grammar,
            Err(error) => {
                report.compile_errors += 1;
                report.timeouts += usize::from(error.kind == Kind::TimedOut);
                if show_failures {
                    eprintln!("{}: {:?}: {error}", case.name, error.kind);
                }
                continue;
            }
        };
        report.first_masks.push(elapsed);
        let (mut refused, mut accepted) = (0, 0);
        for (valid, data) in &case.tests {
            let mut text = dumps(data);
            let mut result = walk(&grammar, &vocabulary, &text, number, &mut report.masks);
            if result.is_err() {
                let ordered = dumps(&order::of_schema(&case.schema, data));
                if ordered != text {
                    report.refused_as_given += usize::from(*valid);
                    text = ordered;
                    result = walk(&grammar, &vocabulary, &text, number, &mut report.masks);
                }
            }
            refused += usize::from(*valid && result.is_err());
            accepted += usize::from(!*valid && result.is_ok());
            if show_failures && *valid != result.is_ok() {
                let text: String = String::from_utf8_lossy(&text).chars().take(300).collect();
                let verdict = result.err().unwrap_or("accepted, but not valid".into());
                eprintln!("{}: {verdict}: {text}", case.name);
            }
        }
        report.refused += usize::from(refused > 0);
        report.refused_instances += refused;
        report.accepted += usize::from(accepted > 0);
        report.accepted_instances += accepted;
        report.passing += usize::from(refused == 0 && accepted == 0);
    }
    report.masks.sort_by_key(|mask| std::cmp::Reverse(mask.running));
    for Timed { wall, running, case, before } in report.masks.iter().take(slowest) {
        let (running, wall) = (running.as_micros(), wall.as_micros());
        eprintln!("{running} us ({wall} by the clock): {} behind {before:?}", cases[*case].name);
    }
    let (mut walls, mut runs): (Vec<Duration>, Vec<Duration>) =
        report.masks.iter().map(|mask| (mask.wall, mask.running)).unzip();
    walls.sort();
    runs.sort();
    report.first_masks.sort();
    let times =
        |sorted: &[Duration]| [0.5, 0.99, 0.999].map(|share| percentile(sorted, share).round() as u64);
    let (tbm, cpu, ttfm) = (times(&walls), times(&runs), times(&report.first_masks));
    if as_json {
        let out = json!({
            "cases": report.cases, "instances": report.instances, "passing": report.passing,
            "compile_errors": report.compile_errors, "timeouts": report.timeouts,
            "valid_refused": report.refused, "valid_refused_instances": report.refused_instances,
            "valid_refused_in_the_order_given": report.refused_as_given,
            "invalid_accepted": report.accepted, "invalid_accepted_instances": report.accepted_instances,
            "vocabulary": size, "masks": report.masks.len(),
            "tbm_us": {"p50": tbm[0], "p99": tbm[1], "p99.9": tbm[2]},
            "tbm_cpu_us": {"p50": cpu[0], "p99": cpu[1], "p99.9": cpu[2]},
            "ttfm_us": {"p50": ttfm[0], "p99": ttfm[1], "p99.9": ttfm[2]},
        });
        println!("{out:#}");
        return Ok(());
    }
    println!("| cases of {}, vocabulary of {size} | |\n|---|---|", report.cases);
    println!("| passing | {} |", report.passing);
    println!("| compile errors (of which timeouts) | {} ({}) |", report.compile_errors, report.timeouts);
    println!("| valid refused: cases (instances) | {} ({}) |", report.refused, report.refused_instances);
    println!("| of valid instances, only in the schema's order | {} |", report.refused_as_given);
    println!("| invalid accepted: cases (instances) | {} ({}) |", report.accepted, report.accepted_instances);
    println!("| TBM µs p50 / p99 / p99.9 of {} | {} / {} / {} |", report.masks.len(), tbm[0], tbm[1], tbm[2]);
    println!("| of CPU time µs | {} / {} / {} |", cpu[0], cpu[1], cpu[2]);
    println!("| TTFM µs p50 / p99 / p99.9 | {} / {} / {} |", ttfm[0], ttfm[1], ttfm[2]);
    Ok(())
}
