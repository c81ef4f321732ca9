//! Masks of text in which a call may begin: one mask serves until its marker does.

use penstock_output::{Callable, Calls, reasoning_format, tool_format};
use serde_json::json;

use super::{EOS, World, bit, calls, functions, special_or_not};
use crate::synthetic::Random;

#[test]
fn masks_of_free_text_are_computed_once() {
    let mut functions = functions();
    // Its arguments may have any names.
    functions.push(Callable {
        name: "list".to_owned(),
        schema: json!({"type": "object", "properties": {}}),
        ..functions[0].clone()
    });
    for (name, has_special, begins, ends) in [
        ("hermes", false, "", ""),
        ("qwen3_coder", true, "", ""),
        ("glm45", false, "", ""),
        ("gemma4", true, "", ""),
        (
            "harmony",
            true,
            "<|channel|>final<|message|>",
            "<|end|><|start|>assistant<|channel|>commentary to=functions.",
        ),
        (
            "inkling",
            true,
            "<|content_text|>",
            "<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>",
        ),
    ] {
        let format = tool_format(name).unwrap();
        let world = World::new(format, has_special);
        let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; grammar.mask_words()];
        let mut free = 0;
        for token in world.tokens(begins) {
            matcher.advance(token).unwrap();
        }
        let text = "A long text, with a < b and two\n lines. ".repeat(20);
        let tokens = world.tokens(&text);
        for &token in &tokens {
            matcher.mask(&mut mask).unwrap();
            free += usize::from(matcher.is_free());
            assert!(matcher.try_advance(token).unwrap());
        }
        assert!(free * 100 > tokens.len() * 90, "{name}: free at {free} of {} tokens", tokens.len());
        assert!(matcher.masks_computed() < 60, "{name}: {} masks", matcher.masks_computed());

        // What the matcher does not take leaves it where it is, and from the marker on nothing is free.
        let trigger = format!("{}{ends}", format.frame("").trigger);
        for token in world.tokens(&trigger) {
            assert!(matcher.try_advance(token).unwrap(), "{name}");
        }
        matcher.mask(&mut mask).unwrap();
        assert!(!matcher.is_free());
        let refused = (0..256).find(|&token| !bit(&mask, token)).unwrap();
        assert!(!matcher.try_advance(refused).unwrap() && !matcher.try_advance(EOS).unwrap());
        let allowed = (0..256).find(|&token| bit(&mask, token)).unwrap();
        assert!(matcher.try_advance(allowed).unwrap(), "{name}");
    }
}

#[test]
fn free_masks_are_what_would_be_computed() {
    let functions = functions();
    let mut random = Random(7);
    for name in ["hermes", "glm45", "command_a", "minimax_m3", "llama3_json", "harmony", "inkling"] {
        let format = tool_format(name).unwrap();
        for &has_special in special_or_not(format) {
            let world = World::new(format, has_special);
            let calls = Calls { reasoning: reasoning_format("think"), ..calls(format, "", &functions) };
            let grammar = world.compile(calls.possible().unwrap().parts);
            let mut matcher = grammar.matcher();
            let mut mask = vec![0; grammar.mask_words()];
            let mut text = Vec::new();
            for _ in 0..200 {
                matcher.mask(&mut mask).unwrap();
                // One that has seen the same, and knows nothing of it being free.
                let mut other = grammar.matcher();
                let mut whole = vec![0; grammar.mask_words()];
                text.iter().for_each(|&token| other.advance(token).unwrap());
                other.mask(&mut whole).unwrap();
                assert_eq!(mask, whole, "{name} after {text:?}");
                let allowed: Vec<u32> = (0..world.tokens.len() as u32)
                    .filter(|&token| token != EOS && bit(&mask, token))
                    .collect();
                let Some(&token) = allowed.get(random.below(allowed.len().max(1))) else { break };
                matcher.advance(token).unwrap();
                text.push(token);
            }
        }
    }
}
