//! How long masks and compiling take, by the size of the vocabulary: 4,000, 32,000, 128,000 and 256,000 synthetic tokens,
//! over the schemas of the tests. Prints a table. `mask_times [SIZE...]`

#[path = "../tests/schemas/mod.rs"]
mod schemas;
mod synthetic;

use std::time::{Duration, Instant};

use penstock_constraint::{Cancel, Compiler, Limits, Source};
use synthetic::{Random, Vocabulary};

fn percentile(times: &mut [Duration], share: f64) -> f64 {
    times.sort();
    let index = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1;
    times[index].as_secs_f64() * 1e6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes: Vec<usize> =
        std::env::args().skip(1).map(|size| size.parse()).collect::<Result<_, _>>()?;
    if sizes.is_empty() {
        sizes = vec![4_000, 32_000, 128_000, 256_000];
    }
    let all: Vec<_> = schemas::written().into_iter().chain((0..150).map(schemas::generated)).collect();
    println!(
        "| vocabulary | index ms | compile and first mask of {} schemas, µs p50 / p99 | masks | mask, µs of CPU time p50 / p99 / p99.9 |",
        all.len()
    );
    println!("|---|---|---|---|---|");
    for size in sizes {
        let vocabulary = Vocabulary::new(size);
        let start = Instant::now();
        let limits = Limits { cache_bytes: 0, timeout: Duration::from_secs(10), ..Limits::default() };
        let compiler = Compiler::new(vocabulary.tokens.clone(), size, &[vocabulary.eos], limits)?;
        let indexed = start.elapsed();
        let (mut compiling, mut masks) = (Vec::new(), Vec::new());
        for (seed, schema) in all.iter().enumerate() {
            let source = Source::JsonSchema(schema.clone());
            let start = Instant::now();
            let grammar = compiler.compile(source, &Cancel::new())?;
            compiling.push(start.elapsed());
            let mut mask = vec![0; grammar.mask_words()];
            let mut random = Random(seed as u64 * 2 + 1);
            for _ in 0..3 {
                let mut matcher = grammar.matcher();
                for _ in 0..60 {
                    let start = synthetic::cpu_time();
                    matcher.mask(&mut mask)?;
                    masks.push(synthetic::cpu_time() - start);
                    let allowed: Vec<u32> = (0..size as u32)
                        .filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
                        .collect();
                    let token = allowed[random.below(allowed.len())];
                    matcher.advance(token)?;
                    if matcher.is_complete() {
                        break;
                    }
                }
            }
        }
        println!(
            "| {size} | {:.0} | {:.0} / {:.0} | {} | {:.0} / {:.0} / {:.0} |",
            indexed.as_secs_f64() * 1e3,
            percentile(&mut compiling, 0.5),
            percentile(&mut compiling, 0.99),
            masks.len(),
            percentile(&mut masks, 0.5),
            percentile(&mut masks, 0.99),
            percentile(&mut masks, 0.999),
        );
    }
    Ok(())
}
