//! Searches for tools that the client makes, as Codex and Vercel's AI SDK have them: what the model is told of earlier ones, and
//! what an answer's item has of one. The tool is one of `chats::functions`, and those that were found are read there.

use serde_json::{Value, json};

use crate::http::chats::functions::Namespaced;

/// The id of a search that the client made. What OpenAI's servers have searched for has none.
pub fn of_client<'a>(execution: Option<&str>, call_id: Option<&'a str>) -> Option<&'a str> {
    call_id.filter(|_| execution == Some("client"))
}

/// What the model reads as the result: the tools themselves stand among the others.
pub fn result(found: &[Value]) -> String {
    let names: Vec<String> = found.iter().flat_map(names).collect();
    match names.is_empty() {
        true => "No tool was found.".to_owned(),
        false => format!("These tools were found, and can be called from now on:\n{}", names.join("\n")),
    }
}

/// By which the model knows a tool, or all of a namespace.
fn names(tool: &Value) -> Vec<String> {
    let name = |tool: &Value| tool["name"].as_str().map(str::to_owned);
    match tool["tools"].as_array() {
        Some(tools) => {
            let namespace = tool["name"].as_str().unwrap_or_default();
            let shown = |tool: &Value| name(tool).map(|name| Namespaced::new(namespace, &name).shown);
            tools.iter().filter_map(shown).collect()
        }
        None => name(tool).into_iter().collect(),
    }
}

/// The arguments that a call's item has: an object, which is empty where the text breaks off. Codex takes whole numbers only as such,
/// and models write `8.0` where a schema says `number`.
pub fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(mut arguments @ Value::Object(_)) => {
            to_whole_numbers(&mut arguments);
            arguments
        }
        _ => json!({}),
    }
}

fn to_whole_numbers(value: &mut Value) {
    /// Below it every whole number is a float.
    const MOST: f64 = (1_u64 << 53) as f64;
    match value {
        Value::Number(number) if number.is_f64() => {
            let is_whole = |float: &f64| float.fract() == 0.0 && float.abs() < MOST;
            if let Some(whole) = number.as_f64().filter(is_whole) {
                *number = (whole as i64).into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(to_whole_numbers),
        Value::Object(members) => members.values_mut().for_each(to_whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openai::responses::input::tests::additional;
    use crate::http::openai::responses::request::tests::{parsed, refusal};

    #[test]
    fn arguments_are_an_object_with_whole_numbers_as_such() {
        for (text, expected) in [
            (r#"{"query": "sea", "limit": 8.0}"#, json!({"query": "sea", "limit": 8})),
            (r#"{"a": [1.5, {"b": -2e1}], "c": 1e300}"#, json!({"a": [1.5, {"b": -20}], "c": 1e300})),
            (r#"{"query": "se"#, json!({})),
            ("[8.0]", json!({})),
            ("", json!({})),
        ] {
            assert_eq!(arguments(text), expected, "{text}");
        }
    }

    #[test]
    fn what_was_found_has_the_names_by_which_it_is_called() {
        let found = json!([
            {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]},
            {"type": "function", "name": "h"},
        ]);
        let says = "These tools were found, and can be called from now on:\nmcp__docs__f\nmcp__docs__g\nh";
        assert_eq!(result(found.as_array().expect("tools")), says);
        assert_eq!(result(&[]), "No tool was found.");
    }

    /// As Codex sends it where it keeps the tools of MCP servers back.
    fn search() -> Value {
        let query =
            json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]});
        json!({"type": "tool_search", "execution": "client", "description": "Finds", "parameters": query})
    }

    #[test]
    fn a_search_for_tools_is_a_tool_where_the_client_makes_it() {
        let function = json!({"type": "function", "name": "f"});
        let user = json!({"role": "user", "content": "Hi"});
        for more in [
            json!({"tools": [search(), function]}),
            json!({"input": [additional(json!([search(), function])), user]}),
            json!({"tools": [{"type": "tool_search", "execution": "client"}], "tool_choice": "required"}),
        ] {
            let asked = parsed(more.clone()).expect("valid").chat;
            assert!(asked.params.warnings.is_empty(), "{more}");
            let tools = format!("{:?}", asked.tools.expect("a tool"));
            assert!(tools.contains("name: \"tool_search\"") && tools.contains("is_search: true"), "{tools}");
        }
        for (more, says) in [
            (json!({"tools": [search(), search()]}), "`tools[1].type` is the same as another tool's"),
            (
                json!({"tools": [{"type": "tool_search", "execution": "client", "parameters": 5}]}),
                "`tools[0].parameters` must be an object, a JSON schema",
            ),
            (
                json!({"tools": [{"type": "tool_search", "execution": "client", "description": 5}]}),
                "`tools[0].description` must be a string",
            ),
            (
                json!({"tools": [{"type": "namespace", "name": "n", "tools": [search()]}]}),
                "`tools[0].tools[0].type` must be \"function\"",
            ),
            (
                json!({"input": [{"type": "tool_search_call", "call_id": "1", "execution": "client", "arguments": "{}"}]}),
                "`input[0].arguments` must be an object",
            ),
        ] {
            let refused = refusal(more);
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    /// OpenAI's servers refuse the choice by its type.
    #[test]
    fn a_search_for_tools_is_chosen_as_a_function_is() {
        let tools = json!([search(), {"type": "function", "name": "f"}]);
        let chosen = json!({"tools": tools, "tool_choice": {"type": "function", "name": "tool_search"}});
        let tools_of =
            |asked: Value| format!("{:?}", parsed(asked).expect("valid").chat.tools.expect("a tool"));
        let found = tools_of(chosen);
        assert!(found.contains("is_required: true") && found.contains("is_search: true"), "{found}");
        assert!(!found.contains("is_search: false"), "{found}");
        let refused = refusal(json!({"tools": tools, "tool_choice": {"type": "tool_search"}}));
        assert_eq!(
            refused,
            "`tool_choice` of type \"tool_search\" is not supported, as at OpenAI: to have the model search first, name the search \
             as a function, {\"type\": \"function\", \"name\": \"tool_search\"}"
        );
    }

    #[test]
    fn a_search_for_tools_is_left_out_by_name_where_a_server_makes_it() {
        let function = json!({"type": "function", "name": "f", "defer_loading": true});
        let line = |place: &str| {
            format!(
                "`{place}` has no effect here: this server searches for no tools, and the model knows those that are in the request"
            )
        };
        let user = json!({"role": "user", "content": "Hi"});
        for search in [json!({"type": "tool_search"}), json!({"type": "tool_search", "execution": "server"})]
        {
            let input = json!([additional(json!([function, search])), user]);
            let asked = parsed(json!({"input": input})).expect("valid").chat;
            assert_eq!(asked.params.warnings.lines(), [line("input[0].tools[1]")]);
            let asked = parsed(json!({"tools": [search, function]})).expect("valid").chat;
            assert_eq!(asked.params.warnings.lines(), [line("tools[0]")]);
            assert!(format!("{:?}", asked.tools.expect("a tool")).contains("name: \"f\""));
            let refused = refusal(json!({"tools": [search], "tool_choice": "required"}));
            assert!(
                refused.starts_with("`tools[0].type` must be ")
                    && refused.contains("runs no tools of its own"),
                "{refused}"
            );
        }
    }

    /// A template refuses or garbles a call without its result, and a model that is told of none searches again.
    #[test]
    fn what_a_client_searched_for_is_a_call_and_its_result() {
        let tools = json!([{"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "f", "defer_loading": true}]}]);
        for (found, says) in [
            (tools, "These tools were found, and can be called from now on:\nmcp__docs__f"),
            (json!([]), "No tool was found."),
        ] {
            let arguments = json!({"query": "docs", "limit": 1});
            let input = json!([
                {"role": "user", "content": "Look."},
                {"type": "tool_search_call", "call_id": "1", "execution": "client", "status": "completed", "arguments": arguments},
                {"type": "tool_search_output", "call_id": "1", "status": "completed", "execution": "client", "tools": found},
            ]);
            let asked = parsed(json!({"input": input, "tools": [search()]})).expect("valid").chat;
            let function = json!({"name": "tool_search", "arguments": arguments});
            let calls = json!([{"id": "1", "type": "function", "function": function}]);
            assert_eq!(
                asked.chat.messages[1..],
                [
                    json!({"role": "assistant", "content": null, "tool_calls": calls}),
                    json!({"role": "tool", "tool_call_id": "1", "content": says}),
                ]
            );
            assert!(asked.params.warnings.is_empty());
            let tools = format!("{:?}", asked.tools.expect("tools"));
            assert_eq!(tools.contains("name: \"mcp__docs__f\""), found != json!([]), "{tools}");
        }
    }

    #[test]
    fn tools_that_a_client_keeps_back_are_shown_once_they_are_found() {
        let function =
            |name: &str, deferred: bool| json!({"type": "function", "name": name, "defer_loading": deferred});
        let kept = json!([{"type": "namespace", "name": "n", "tools": [function("a", true), function("b", false)]}, function("c", true)]);
        let output = json!({"type": "tool_search_output", "call_id": "1", "execution": "client", "tools": [function("c", true)]});
        let user = json!({"role": "user", "content": "Hi"});
        let names = |tools: Value, input: Value| {
            let asked = parsed(json!({"tools": tools, "input": input})).expect("valid").chat;
            let tools = format!("{:?}", asked.tools.expect("tools"));
            ["n__a", "n__b", "c"].map(|name| tools.contains(&format!("name: \"{name}\"")))
        };
        let mut with_search = kept.as_array().expect("tools").clone();
        with_search.push(search());
        assert_eq!(names(json!(with_search), json!([user])), [false, true, false]);
        assert_eq!(names(json!(with_search), json!([user, output])), [false, true, true]);
        // The model was told that it can call it, whatever comes behind.
        let again = additional(json!([function("c", true)]));
        assert_eq!(names(json!(with_search), json!([user, output, again])), [false, true, true]);
        // Nobody could find them.
        assert_eq!(names(kept, json!([user])), [true, true, true]);
    }

    /// OpenAI's reference allows tools of its servers so, and a client that keeps tools back allows these before they are found.
    #[test]
    fn of_allowed_tools_those_are_left_out_that_are_elsewhere() {
        let function =
            |name: &str, deferred: bool| json!({"type": "function", "name": name, "defer_loading": deferred});
        let mcp = json!({"type": "mcp", "server_label": "docs"});
        let web = json!({"type": "web_search"});
        let named = |name: &str| json!({"type": "function", "name": name});
        let tools =
            json!([function("a", false), function("b", true), function("c", false), search(), web, mcp]);
        let allowed =
            |mode: &str, tools: Value| json!({"type": "allowed_tools", "mode": mode, "tools": tools});
        let all = json!([named("a"), named("b"), mcp, web, {"type": "tool_search"}]);
        let user = json!({"role": "user", "content": "Hi"});
        let found = json!({"type": "tool_search_output", "call_id": "1", "execution": "client", "tools": [function("b", true)]});
        for (choice, place) in [
            (allowed("auto", all.clone()), "tool_choice.tools"),
            (
                json!({"type": "allowed_tools", "allowed_tools": allowed("required", all)}),
                "tool_choice.allowed_tools.tools",
            ),
        ] {
            for (input, is_found) in [(json!([user]), false), (json!([user, found]), true)] {
                let more = json!({"input": input, "tools": tools, "tool_choice": choice});
                let asked = parsed(more).expect("valid").chat;
                let left_out = |place: &str, kind: &str| {
                    format!("`{place}` has no effect here: this server runs no {kind}")
                };
                assert_eq!(
                    asked.params.warnings.lines(),
                    [
                        left_out("tools[4]", "web_search"),
                        left_out("tools[5]", "mcp"),
                        left_out(&format!("{place}[2]"), "mcp"),
                        left_out(&format!("{place}[3]"), "web_search"),
                    ]
                );
                let tools = format!("{:?}", asked.tools.expect("tools"));
                let may_be_called = |name: &str| tools.contains(&format!("name: \"{name}\""));
                assert_eq!(
                    ["a", "b", "c", "tool_search"].map(may_be_called),
                    [true, is_found, false, true],
                    "{tools}"
                );
            }
        }
        for (choice, says) in [
            (
                allowed("required", json!([mcp])),
                "`tool_choice` asks for a call, and allows no tool that can be called",
            ),
            (
                allowed("required", json!([named("b")])),
                "`tool_choice` asks for a call, and allows no tool that can be called",
            ),
            (allowed("auto", json!([named("d")])), "`tool_choice` names a tool that is not in `tools`: d"),
            (named("b"), "`tool_choice` names a tool that `defer_loading` keeps back until it is found: b"),
            (allowed("auto", json!([{"type": "shell"}])), "`tool_choice` must be \"auto\""),
            (allowed("auto", json!(["a"])), "`tool_choice.tools[0]` must be an object"),
        ] {
            let refused = refusal(json!({"tools": tools, "tool_choice": choice}));
            assert!(refused.starts_with(says), "{refused}");
        }
    }
}
