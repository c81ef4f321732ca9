//! The cases of MaskBench in the file that `PENSTOCK_SCHEMAS` names, if it does: nothing invalid is let through.

use penstock_constraint::{Cancel, Compiler, Limits, Source};
use serde_json::Value;

use crate::synthetic::Vocabulary;

#[test]
fn no_invalid_instance_is_let_through() {
    let Some(path) = std::env::var_os("PENSTOCK_SCHEMAS").filter(|path| !path.is_empty()) else { return };
    let text = std::fs::read_to_string(path).expect("PENSTOCK_SCHEMAS names a file");
    let vocabulary = Vocabulary::new(4_000);
    let limits = Limits { cache_bytes: 0, ..Limits::default() };
    let compiler = Compiler::new(vocabulary.tokens.clone(), 4_000, &[vocabulary.eos], limits).unwrap();
    let (mut cases, mut compiled, mut refused) = (0, 0, 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let case: Value = serde_json::from_str(line).unwrap();
        cases += 1;
        let Ok(grammar) = compiler.compile(&Source::JsonSchema(case["schema"].clone()), &Cancel::new())
        else {
            continue;
        };
        compiled += 1;
        for test in case["tests"].as_array().into_iter().flatten() {
            let instance = test["data"].to_string();
            let mut matcher = grammar.matcher();
            let tokens = vocabulary.tokenize(instance.as_bytes());
            let accepted =
                tokens.into_iter().chain([vocabulary.eos]).all(|token| matcher.advance(token).is_ok());
            let valid = test["valid"].as_bool().unwrap();
            assert!(valid || !accepted, "{}: {instance}", case["name"]);
            refused += usize::from(valid && !accepted);
        }
    }
    println!("{compiled} of {cases} compiled, {refused} valid instances refused");
    assert!(compiled * 100 >= cases * 85, "only {compiled} of {cases} schemas compile");
}
