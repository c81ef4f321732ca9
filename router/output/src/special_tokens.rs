//! Which special tokens formats write: text that is parsed has the names of these, while those of others are left out of it.

use crate::formats::{Arguments, Body, Closes, ReasoningFormat, ToolFormat};
use crate::{harmony, inkling};

impl ToolFormat {
    /// Whether a marker has this special token in it, so that its name has to be in the text that is parsed.
    pub fn has_in_markers(&self, special: &str) -> bool {
        self.markers().any(|marker| marker.contains(special))
    }

    fn markers(&self) -> impl Iterator<Item = &'static str> {
        let section = self.section.iter().flat_map(|section| section.open.iter().chain(section.close));
        let calls = self.calls.iter().flat_map(|call| {
            let mut markers = [call.open, call.close].concat();
            match &call.body {
                Body::Named(name, arguments) => {
                    markers.extend([name.ends, name.stops, &[name.prefix]].concat());
                    markers.extend(name.id_end.iter().chain(&name.cut));
                    match arguments {
                        Arguments::Json => {}
                        Arguments::Braces(quote) => markers.push(quote),
                        Arguments::Parameters(parameters) => {
                            markers.push(parameters.open);
                            markers.extend(parameters.head_ends.iter().chain(&parameters.value_open));
                            match parameters.closes {
                                Closes::Markers(closes) => markers.extend(closes),
                                Closes::Key(open, close) => markers.extend([open, close]),
                            }
                        }
                    }
                }
                Body::Harmony => markers.extend(harmony::SPECIAL),
                Body::Inkling => markers.extend(inkling::SPECIAL),
                Body::Envelope(_) | Body::Python => {}
            }
            markers
        });
        section.chain(self.silent).copied().chain(calls)
    }
}

impl ReasoningFormat {
    /// As `ToolFormat::has_in_markers`.
    pub fn has_in_markers(&self, special: &str) -> bool {
        let tokens: &[&str] = match (self.has_channels(), self.has_messages()) {
            (true, _) => harmony::SPECIAL,
            (_, true) => inkling::SPECIAL,
            _ => &[],
        };
        let markers = [self.open, self.close, self.silent, tokens].concat();
        markers.iter().any(|marker| marker.contains(special))
    }
}

#[cfg(test)]
mod tests {
    use crate::tables::{REASONING, TOOLS};

    #[test]
    fn special_tokens_of_a_format_are_known() {
        for (format, inside, outside) in [
            ("hermes", "<tool_call>", "<|im_start|>"),
            ("harmony", "<|channel|>", "<|startoftext|>"),
            ("mistral", "[ARGS]", "[INST]"),
            ("deepseek_v31", "<｜tool▁sep｜>", "<｜User｜>"),
            ("kimi_k2", "<|tool_call_argument_begin|>", "<|im_middle|>"),
            ("gemma4", "<|\"|>", "<turn|>"),
            ("glm45", "<arg_key>", "<|user|>"),
            ("solar_open", "<|tool_call:name|>", "<|flush|>"),
            ("inkling", "<|message_model|>", "<|message_user|>"),
            // As its tokenizer has them, with the line breaks.
            ("gigachat3", "<|message_sep|>\n\n", "</s>"),
            ("gigachat3", "<|role_sep|>\n", "<|file|>"),
            ("hyperclovax", "<|im_end|>", "<|stop|>"),
            // What ends an answer is no part of its text.
            ("llama3_json", "<|python_tag|>", "<|eom_id|>"),
        ] {
            let format = TOOLS.iter().find(|known| known.name == format).expect("the format exists");
            assert!(format.has_in_markers(inside), "{inside}");
            assert!(!format.has_in_markers(outside), "{outside}");
        }
        for (format, inside, outside) in [
            ("think", "</think>", "<|im_end|>"),
            ("harmony", "<|message|>", "<|im_end|>"),
            ("mistral", "[THINK]", "<|im_end|>"),
            ("inkling", "<|content_text|>", "<|im_end|>"),
            ("hyperclovax", "<|im_start|>", "<|endofturn|>"),
        ] {
            let format = REASONING.iter().find(|known| known.name == format).expect("the format exists");
            assert!(format.has_in_markers(inside) && !format.has_in_markers(outside), "{inside}");
        }
    }
}
