//! The cases of MaskBench in the file that `PENSTOCK_SCHEMAS` names, if it does: nothing invalid is let through, and
//! nothing valid is refused whose properties come in the schema's order.

use penstock_constraint::{Cancel, Compiler, Limits, Source};
use serde_json::Value;

use crate::{order, synthetic::Vocabulary};

/// How many of the 400 cases compile: docs/decisions/013-schemas-are-rewritten.md and benchmarks/RESULTS.md say the same.
const COMPILED: usize = 368;

#[test]
fn instances_are_judged_rightly() {
    let Some(path) = std::env::var_os("PENSTOCK_SCHEMAS").filter(|path| !path.is_empty()) else {
        return println!("not run: PENSTOCK_SCHEMAS names no file");
    };
    let text = std::fs::read_to_string(path).expect("PENSTOCK_SCHEMAS names a file");
    let vocabulary = Vocabulary::new(4_000);
    let limits = Limits { cache_bytes: 0, ..crate::patient() };
    let compiler = Compiler::new(vocabulary.tokens.clone(), 4_000, &[vocabulary.eos], limits).unwrap();
    let (mut cases, mut compiled, mut wrong) = (0, 0, Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let case: Value = serde_json::from_str(line).unwrap();
        let schema = &case["schema"];
        cases += 1;
        let Ok(grammar) = compiler.compile(Source::JsonSchema(schema.clone()), &Cancel::new()) else {
            continue;
        };
        compiled += 1;
        let accepts = |instance: &Value| {
            let mut matcher = grammar.matcher();
            let tokens = vocabulary.tokenize(instance.to_string().as_bytes());
            tokens.into_iter().chain([vocabulary.eos]).all(|token| matcher.advance(token).is_ok())
        };
        for test in case["tests"].as_array().into_iter().flatten() {
            let accepted = accepts(&test["data"]) || accepts(&order::of_schema(schema, &test["data"]));
            if test["valid"] != accepted {
                wrong.push(format!("{}, accepted: {accepted}: {}", case["name"], test["data"]));
            }
        }
    }
    println!("{compiled} of {cases} compiled");
    assert!(wrong.is_empty(), "{} judged wrongly:\n{}", wrong.len(), wrong.join("\n"));
    let least = if cases == 400 { COMPILED } else { cases * 85 / 100 };
    assert!(compiled >= least, "only {compiled} of {cases} schemas compile");
}
