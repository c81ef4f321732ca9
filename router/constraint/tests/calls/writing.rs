//! Values and calls in each way of writing them: as elements, as JSON, as Python, with bare keys. What is right is let through, and what
//! is wrong is not.

use penstock_output::{Frame, tool_format};
use serde_json::{Value, json};

use super::{EOS, World, calls, functions, read, special_or_not, strict};

/// In a section, what stands between calls begins as what closes it does.
#[test]
fn a_section_has_several_calls() {
    let functions = functions();
    let invoke = |name: &str| format!("<invoke name=\"{name}\">\n</invoke>");
    let dsml = |name: &str| format!("<｜DSML｜invoke name=\"{name}\">\n</｜DSML｜invoke>");
    let hunyuan = |name: &str| format!("<tool_call>{name}<tool_sep>\n</tool_call>");
    let step = |name: &str| {
        format!(
            "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{name}\">\n</steptml:invoke><｜tool_call_end｜>"
        )
    };
    for (name, open, call, close) in [
        ("minimax_m2", "<minimax:tool_call>\n", &invoke as &dyn Fn(&str) -> String, "\n</minimax:tool_call>"),
        ("deepseek_v32", "<｜DSML｜function_calls>\n", &dsml, "\n</｜DSML｜function_calls>"),
        ("deepseek_v4", "<｜DSML｜tool_calls>\n", &dsml, "\n</｜DSML｜tool_calls>"),
        ("hunyuan_v3", "<tool_calls>\n", &hunyuan, "\n</tool_calls>"),
        ("step3", "<｜tool_calls_begin｜>\n", &step, "\n<｜tool_calls_end｜>"),
    ] {
        let format = tool_format(name).unwrap();
        let text = format!("{open}{}\n{}{close}", call("ping"), call("set"));
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let calls = calls(format, "", &functions);
            for parts in [calls.possible().unwrap().parts, calls.required().0] {
                assert!(world.accepts(&world.compile(parts), &text), "{has_special}: {text}");
            }
        }
    }
}

/// GigaChat 3's calls begin with what ends each of its messages: behind that an answer may end, too.
#[test]
fn what_ends_a_message_may_end_an_answer() {
    let functions = functions();
    let format = tool_format("gigachat3").unwrap();
    let call = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"ping\", \"arguments\": {}}";
    for template in ["", "<|function_call|>"] {
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, template, &functions).possible().unwrap().parts);
            let ended = |text: &str| world.accepts(&grammar, &format!("{text}<|message_sep|>\n\n"));
            assert!(ended("Hm.") && ended(""), "{template:?} {has_special}");
            let has_called = world.accepts(&grammar, &format!("Hm.{call}"));
            assert_eq!(has_called, template.is_empty(), "{template:?} {has_special}");
        }
    }
}

#[test]
fn wrong_calls_are_refused_in_each_way_of_writing() {
    let functions = functions();
    let coder = |inside: &str| format!("<tool_call>\n<function={inside}</function>\n</tool_call>");
    let bare = |inside: &str| format!("<function={inside}</function>");
    let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let exact = |key: &str, value: &str| format!("<parameter={key}>{value}</parameter>\n");
    let weather = |more: &str| coder(&format!("get_weather>\n{}{more}", parameter("city", "Paris")));
    let glm = |value: &str| {
        format!(
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
        )
    };
    let dsml = |kind: &str, value: &str| {
        format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
             <｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"days\" string=\"{kind}\">{value}</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
    };
    let m3 = |value: &str| {
        format!(
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"set\">]<]minimax[>[<a>{value}]<]minimax[>[</a>\
             ]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"
        )
    };
    let gemma = |inside: &str| format!("<|tool_call>call:get_weather{{{inside}}}<tool_call|>");
    let lfm = |inside: &str| format!("<|tool_call_start|>[get_weather({inside})]<|tool_call_end|>");
    let set = |inside: &str| format!("<|tool_call_start|>[set({inside})]<|tool_call_end|>");
    let harmony = |header: &str, body: &str| {
        format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{header}<|message|>{body}")
    };
    let to = "<|channel|>commentary to=functions.get_weather <|constrain|>json";
    let action = |body: &str| {
        format!(
            "<|START_RESPONSE|>Hm.<|END_RESPONSE|><|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \
             \"get_weather\", \"parameters\": {body}}}\n]<|END_ACTION|>"
        )
    };
    let solar = |body: &str| {
        format!(
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{body}<|tool_call:end|>"
        )
    };
    let hyperclova = |body: &str| {
        format!("-> tool/function_call\n[{{\"name\": \"get_weather\", \"arguments\": {body}}}]<|im_end|>")
    };
    let inkling = |body: &str| {
        format!(
            "get_weather<|content_invoke_tool_json|>{{\"name\":\"get_weather\",\"args\":{body}}}<|end_message|>"
        )
    };
    let paris = "{\"city\": \"Paris\"}";
    let cases: Vec<(&str, Vec<String>, Vec<String>)> = vec![
        (
            "qwen3_coder",
            vec![
                weather(""),
                weather(&parameter("days", "3")),
                weather(&parameter("unit", "celsius")),
                coder("ping>\n"),
                coder(&format!("send>\n{}{}", parameter("to", "10.0.0.1"), parameter("body", "</b> <par>"))),
                coder(&format!("set>\n{}{}", parameter("a", "-1.5"), parameter("c", "true"))),
                bare(&format!("get_weather>\n{}", parameter("city", "Paris"))),
                format!("I look.\n\n{}", bare(&format!("get_weather>\n{}", parameter("city", "Paris")))),
                format!("{}\n</tool_call>\nDone.", bare("ping>\n")),
                format!("{}\n{}", bare("ping>\n"), weather("")),
            ],
            vec![
                weather(&parameter("days", "15")),
                weather(&parameter("days", "three")),
                weather(&parameter("unit", "kelvin")),
                weather(&parameter("where", "x")),
                coder("get_weather>\n"),
                coder("nothing>\n"),
                coder(&format!("send>\n{}{}", parameter("to", "10.0.0.256"), parameter("body", "x"))),
                coder(&format!(
                    "send>\n{}{}",
                    parameter("to", "10.0.0.1"),
                    parameter("body", "thirteen chars")
                )),
                coder(&format!("set>\n{}", parameter("c", "false"))),
                weather("").replace("Paris", "x\n</function>\n</tool_call>"),
                bare("get_weather>\n"),
                bare(&format!("get_weather>\n{}", parameter("town", "Paris"))),
                bare("nothing>\n"),
                format!("Hm.\n{}", bare(&format!("set>\n{}", parameter("c", "false")))),
            ],
        ),
        (
            "mimo",
            vec![
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1"), exact("body", "\nx\n"))),
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1"), exact("body", "</b> <par"))),
                coder(&format!("get_weather>\n{}{}", exact("city", "Paris\n"), exact("days", "3"))),
            ],
            vec![
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1\n"), exact("body", "x"))),
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1"), exact("body", "twelve chars\n"))),
                coder(&format!("get_weather>\n{}{}", exact("city", "Paris"), exact("days", "15"))),
            ],
        ),
        ("glm45", vec![glm("14")], vec![glm("0"), glm("x"), glm("</arg_value>1")]),
        (
            "deepseek_v32",
            vec![dsml("false", "3")],
            vec![dsml("true", "3"), dsml("false", "\"3\""), dsml("false", "30")],
        ),
        ("minimax_m3", vec![m3("1e3"), m3("0.5")], vec![m3("x"), m3("\"1\""), m3("")]),
        (
            "gemma4",
            vec![
                gemma("city:<|\"|>Paris<|\"|>"),
                gemma("city:<|\"|>a}b<|\"|>,days:3,unit:<|\"|>celsius<|\"|>"),
            ],
            vec![
                gemma(""),
                gemma("city:Paris"),
                gemma("city:\"Paris\""),
                gemma("city:<|\"|>P<|\"|>,days:15"),
                gemma("city:<|\"|>P<|\"|>,unit:<|\"|>kelvin<|\"|>"),
                gemma("city:<|\"|>P<|\"|>,"),
            ],
        ),
        (
            "lfm2",
            vec![
                lfm("city='Paris'"),
                lfm("city=\"it's (so)\", days=3"),
                lfm("city='x', unit='celsius'"),
                "<|tool_call_start|>[ping(), set(b='x', c=true)]<|tool_call_end|>".to_owned(),
                set(""),
                set("a=1"),
                set("a=1, b='x', c=1"),
                set("a=1, c=\"x\""),
                set("b='x', c=1"),
                set("c=1"),
            ],
            vec![
                set("b='x', a=1"),
                set("a=1, a=1"),
                set("a=1, "),
                set(", a=1"),
                set("a=1 b='x'"),
                lfm(""),
                lfm("'Paris'"),
                lfm("city=Paris"),
                lfm("city='it's'"),
                lfm("city='x', days=15"),
                lfm("city='x' days=3"),
                lfm("city='x', unit='kelvin'"),
                lfm("days=3"),
            ],
        ),
        (
            "harmony",
            vec![
                harmony(to, "{\"city\": \"Paris\"}"),
                harmony(&to.replace("commentary", "analysis"), "{\"city\": \"Paris\"}"),
                harmony("<|channel|>final", "Hello {"),
            ],
            vec![
                harmony(to, "{\"town\": \"Paris\"}"),
                harmony(&to.replace("commentary", "analysis"), "{\"town\": \"Paris\"}"),
                harmony("<|channel|>commentary to=functions.nothing", "{}"),
                harmony("<|channel|>other", "x"),
            ],
        ),
        (
            "inkling",
            vec![
                inkling(paris),
                inkling(paris).replace("get_weather<", "<"),
                format!("{}<|message_model|>{}", inkling(paris), inkling(paris)),
                format!("<|content_thinking|>Hm.<|end_message|><|message_model|>{}", inkling(paris)),
                format!("<|content_text|>Hm.<|end_message|><|message_model|>{}", inkling(paris)),
                format!("{}<|message_model|><|content_text|>Done.<|end_message|>", inkling(paris)),
                "<|content_text|>Hello {".to_owned(),
                "<|content_thinking|>Hm.".to_owned(),
            ],
            vec![
                inkling("{}"),
                inkling("{\"town\": \"Paris\"}"),
                inkling(paris).replace("get_weather", "nothing"),
                inkling(paris).replace("\"get_weather\"", "\"send\""),
                format!("{}{}", inkling(paris), inkling(paris)),
                format!("<|content_text|>Hm.<|end_message|><|message_model|>{}", inkling("{}")),
                format!("<|content_text|>Hm.{}", inkling(paris)),
                "<|content_text|>Hm.<|end_message|><|message_model|>".to_owned(),
                "Hello.".to_owned(),
            ],
        ),
        (
            "command_a",
            vec![action("{\"city\": \"Paris\"}"), "<|START_RESPONSE|>Hello.<|END_RESPONSE|>".to_owned()],
            vec![action("{\"town\": \"Paris\"}"), action("{}")],
        ),
        (
            "hyperclovax",
            vec![
                hyperclova(paris),
                format!(" {}", hyperclova(paris)),
                format!("\nHm.<|im_end|>\n<|im_start|>assistant {}", hyperclova(paris)),
                "\nHello.<|im_end|>".to_owned(),
                "Hello.".to_owned(),
            ],
            vec![
                hyperclova("{}"),
                hyperclova("{\"town\": \"Paris\"}"),
                hyperclova(paris).replace("get_weather", "nothing"),
                hyperclova(paris).replace("arguments", "parameters"),
                format!("\nHm.<|im_end|>\n<|im_start|>assistant {}", hyperclova("{}")),
                "-> tool/function_call\nHello.".to_owned(),
            ],
        ),
        (
            "solar_open",
            vec![
                solar(paris),
                solar(paris).replace("<|tool_calls|>", ""),
                format!("{}{}", solar(paris), solar(paris).replace("<|tool_calls|>", "")),
                format!("<|content|>Hm.<|end|><|begin|>assistant{}", solar(paris)),
                "<|content|>Hello.".to_owned(),
            ],
            vec![
                solar("{}"),
                solar("{\"town\": \"Paris\"}"),
                solar(paris).replace("a1b2c3d4e5", "0"),
                solar(paris).replace("get_weather", "nothing"),
                format!("<|content|>Hm.<|end|><|begin|>assistant{}", solar("{}")),
            ],
        ),
    ];
    for (name, good, bad) in cases {
        let format = tool_format(name).unwrap();
        for &has_special in special_or_not(format) {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            for text in &good {
                assert!(world.accepts(&grammar, text), "{name} refuses {text}");
            }
            for text in &bad {
                assert!(!world.accepts(&grammar, text), "{name} takes {text}");
            }
        }
    }
}

/// Schemas of one argument, with values of it as the format writes them.
#[test]
fn values_are_held_to_their_schemas_in_each_way_of_writing() {
    let quoted = |text: &str| format!("<|\"|>{text}<|\"|>");
    let gemma = |value: &str| format!("<|tool_call>call:f{{p:{value}}}<tool_call|>");
    let coder = |value: &str| {
        format!("<tool_call>\n<function=f>\n<parameter=p>\n{value}\n</parameter>\n</function>\n</tool_call>")
    };
    let of_booleans =
        |key: &str, count: Value| json!({"type": "array", "items": {"type": "boolean"}, key: count});
    let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let most = i32::MAX;
    let cases = [
        (
            "gemma4",
            of_booleans("maxItems", json!(1)),
            texts(&["[]", "[true]"]),
            texts(&["[true,true]", "true"]),
        ),
        ("gemma4", of_booleans("maxItems", json!(0)), texts(&["[]"]), texts(&["[true]"])),
        ("gemma4", of_booleans("minItems", json!(2.0)), texts(&["[true,true]"]), texts(&["[true]"])),
        ("gemma4", of_booleans("maxItems", json!(1.0)), texts(&["[true]"]), texts(&["[true,true]"])),
        (
            "gemma4",
            json!({"type": "string", "enum": ["x", 1, ""]}),
            vec![quoted("x"), quoted("")],
            texts(&["1"]),
        ),
        (
            "gemma4",
            json!({"type": "integer", "enum": ["x", 1, 1.5]}),
            texts(&["1"]),
            vec![quoted("x"), "1.5".into()],
        ),
        (
            "gemma4",
            json!({"enum": ["x", 1, null]}),
            vec!["1".into(), "null".into(), quoted("x")],
            texts(&["x"]),
        ),
        (
            "gemma4",
            json!({"type": "string", "maxLength": most}),
            vec![quoted("x"), quoted("")],
            texts(&["1"]),
        ),
        ("gemma4", json!({"type": "string", "maxLength": 2.0}), vec![quoted("xy")], vec![quoted("xyz")]),
        ("qwen3_coder", json!({"type": "string", "maxLength": most}), texts(&["x", ""]), vec![]),
        (
            "qwen3_coder",
            json!({"type": "string", "minLength": 1.0, "maxLength": 2.0}),
            texts(&["xy"]),
            texts(&["", "xyz"]),
        ),
        ("qwen3_coder", json!({"type": "string", "enum": ["x", 1]}), texts(&["x"]), texts(&["1"])),
    ];
    for (name, schema, good, bad) in cases {
        let format = tool_format(name).unwrap();
        let call = |value: &str| if name == "gemma4" { gemma(value) } else { coder(value) };
        let parameters = json!({"type": "object", "properties": {"p": schema}, "required": ["p"]});
        let functions = strict(parameters);
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            for value in &good {
                assert!(world.accepts(&grammar, &call(value)), "{schema} refuses {value}");
            }
            for value in &bad {
                assert!(!world.accepts(&grammar, &call(value)), "{schema} takes {value}");
            }
        }
    }
}

/// As LFM2.5's template writes them, which escapes nothing, and as Python would.
#[test]
fn texts_between_single_quotes_are_what_is_read_of_them() {
    let functions = functions();
    for (name, before, after) in [
        ("lfm2", "<|tool_call_start|>[", "]<|tool_call_end|>"),
        ("olmo3", "<function_calls>", "</function_calls>"),
        ("pythonic", "[", "]"),
    ] {
        let format = tool_format(name).unwrap();
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            for (written, expected) in [
                ("", ""),
                ("cat > f <<EOF\nprint(1)\nEOF\n", "cat > f <<EOF\nprint(1)\nEOF\n"),
                (r"it\'s", "it's"),
                (r#"say "a\\b" \d\n"#, "say \"a\\b\" \\d\n"),
                (r"C:\users\x", r"C:\users\x"),
            ] {
                let call = format!("{before}get_weather(city='{written}', days=3){after}");
                assert!(world.accepts(&grammar, &call), "{name} refuses {call}");
                let answer = read(format, &functions, &call);
                let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
                assert_eq!(arguments, json!({"city": expected, "days": 3}), "{name}: {call}");
            }
            // What a keyword says of a text says it of what is written.
            let call = |to: &str, body: &str| format!("{before}send(to='{to}', body='{body}'){after}");
            assert!(world.accepts(&grammar, &call("10.0.0.1", "a\nb")), "{name}");
            assert!(!world.accepts(&grammar, &call("10.0.0.1", r"a\nb")), "{name}");
        }
    }
}

#[test]
fn with_bare_keys_there_are_values_of_any_kind() {
    let (array, object) = (json!({"type": "array"}), json!({"type": "object"}));
    let bound = [
        json!({"type": "object"}),
        json!({"type": "object", "properties": {"o": {}, "paths": {"description": "Any"}}}),
        json!({"type": "object", "properties": {"paths": array, "o": object}}),
    ];
    let unbound = json!({"type": "object", "properties": {"paths": {"type": "array", "uniqueItems": true}, "o": object}});
    for (name, mark) in [("gemma4", "<|\"|>"), ("functiongemma", "<escape>")] {
        let format = tool_format(name).unwrap();
        let Frame { before_name, after, .. } = format.frame("");
        let call = |arguments: &str| format!("{before_name}f{}{after}", arguments.replace('\'', mark));
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            for schema in bound.iter().chain([&unbound]) {
                let mut functions = strict(schema.clone());
                functions[0].is_strict = schema != &unbound;
                let possible = calls(format, "", &functions).possible().unwrap();
                assert_eq!(possible.unbound.len(), usize::from(schema == &unbound), "{schema}");
                let grammar = world.compile(possible.parts);
                let text = call("{o:{Content-Type:'a}\n',x y:[[],{}],'k:':null},paths:['a',-1.5,{b:true}]}");
                assert!(world.accepts(&grammar, &text), "{name} {schema} refuses {text}");
                let arguments = read(format, &functions, &text).calls[0].arguments.clone();
                assert_eq!(
                    serde_json::from_str::<Value>(&arguments).unwrap(),
                    json!({"o": {"Content-Type": "a}\n", "x y": [[], {}], "k:": null}, "paths": ["a", -1.5, {"b": true}]}),
                    "{name}: {text}"
                );
                for wrong in [
                    "{o:{a}}",
                    "{o:{a:}}",
                    "{o:{a:1,}}",
                    "{o:{:1}}",
                    "{o:{'':1}}",
                    "{paths:[a]}",
                    "{paths:[1,]}",
                ] {
                    assert!(!world.accepts(&grammar, &call(wrong)), "{name} {schema} takes {wrong}");
                }
            }
        }
    }
}

/// Rust's MCP servers say of an integer how many bits it has.
#[test]
fn a_format_of_numbers_is_none_of_texts() {
    let functions = strict(json!({"type": "object", "properties": {
        "limit": {"type": "integer", "format": "uint32", "minimum": 0},
        "paths": {"type": "array", "items": {"type": "string"}}}}));
    let format = tool_format("gemma4").unwrap();
    let world = World::new(format, true);
    let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
    let call = |arguments: &str| format!("<|tool_call>call:f{{{arguments}}}<tool_call|>");
    assert!(world.accepts(&grammar, &call("limit:3,paths:[<|\"|>a<|\"|>]")));
    assert!(!world.accepts(&grammar, &call("limit:-3")) && !world.accepts(&grammar, &call("limit:true")));
}

/// Its template shows the model no other.
#[test]
fn bare_keys_come_in_the_order_of_the_template() {
    let text = json!({"type": "string"});
    let functions = strict(json!({"type": "object", "required": ["location"], "properties": {
        "location": {"type": "object", "required": ["b", "a"], "properties": {"b": text, "a": text}},
        "days": {"type": "integer"}, "Category": text, "unit": text}}));
    let format = tool_format("gemma4").unwrap();
    let world = World::new(format, true);
    let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
    let call =
        |arguments: &str| format!("<|tool_call>call:f{{{arguments}}}<tool_call|>").replace('\'', "<|\"|>");
    for good in [
        "Category:'c',days:3,location:{a:'x',b:'y'},unit:'C'",
        "days:3,location:{a:'x',b:'y'}",
        "location:{a:'x',b:'y'},unit:'C'",
    ] {
        assert!(world.accepts(&grammar, &call(good)), "refuses {good}");
    }
    for bad in [
        "location:{b:'y',a:'x'}",
        "location:{a:'x',b:'y'},days:3",
        "days:3,Category:'c',location:{a:'x',b:'y'}",
    ] {
        assert!(!world.accepts(&grammar, &call(bad)), "takes {bad}");
    }
}

/// The name of a special token in a client's value is text, letter by letter.
#[test]
fn a_value_may_have_the_name_of_a_special_token_in_it() {
    let format = tool_format("gemma4").unwrap();
    for keyword in [json!({"const": "x<|tool_call>y"}), json!({"enum": ["x<|tool_call>y"]})] {
        let parameters = json!({"type": "object", "properties": {"p": keyword}, "required": ["p"]});
        let functions = strict(parameters);
        let world = World::new(format, true);
        let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
        let (before, after) = ("<|tool_call>call:f{p:<|\"|>x", "y<|\"|>}<tool_call|>");
        assert!(!world.accepts(&grammar, &format!("{before}<|tool_call>{after}")));
        let mut matcher = grammar.matcher();
        let name = b"<|tool_call>".map(u32::from);
        let tokens = world.tokens(before).into_iter().chain(name).chain(world.tokens(after));
        tokens.chain([EOS]).for_each(|token| matcher.advance(token).unwrap());
    }
}

#[test]
fn in_json_too_a_function_takes_the_properties_that_it_names() {
    let format = tool_format("hermes").unwrap();
    let world = World::new(format, true);
    let named =
        json!({"properties": {"a": {"type": "integer"}, "b": {"type": "object", "properties": {"c": {}}}}});
    let with = |keyword: &str, value: Value| {
        let mut schema = named.clone();
        schema[keyword] = value;
        schema
    };
    let own = [r#"{}"#, r#"{"a": 6}"#, r#"{"a": 6, "b": {"c": 1, "d": 2}}"#];
    for (schema, takes_more) in [
        (named.clone(), false),
        (with("required", json!(["a"])), false),
        (with("type", json!("object")), false),
        (with("additionalProperties", json!(true)), true),
        (with("additionalProperties", json!({"type": "string"})), true),
        (with("patternProperties", json!({"^n": {"type": "string"}})), true),
        (with("required", json!(["name"])), true),
        (json!({"properties": {}}), true),
        (json!({"type": "object"}), true),
        (Value::Null, false),
    ] {
        let functions = strict(schema.clone());
        let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
        let takes = |arguments: &str| {
            let call = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
            world.accepts(&grammar, &call)
        };
        assert_eq!(takes(r#"{"a": 6, "name": "Name"}"#), takes_more, "{schema}");
        if schema.get("required").is_none() && !schema.is_null() {
            own.iter().for_each(|arguments| assert!(takes(arguments), "{schema} refuses {arguments}"));
        }
    }
}

/// MiniMax M3 names an argument where its value ends too.
#[test]
fn a_function_that_names_no_arguments_leaves_others_bound() {
    let format = tool_format("minimax_m3").unwrap();
    let mut given = functions();
    given[3].schema = json!({"type": "object", "properties": {}});
    let possible = calls(format, "", &given).possible().unwrap();
    assert_eq!(possible.unbound, []);
    let world = World::new(format, false);
    let grammar = world.compile(possible.parts);
    let call = |inside: &str| {
        format!(
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"{inside}]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"
        )
    };
    let city = |key: &str| format!("get_weather\">]<]minimax[>[<{key}>Paris]<]minimax[>[</{key}>");
    assert!(world.accepts(&grammar, &call("ping\">")) && world.accepts(&grammar, &call(&city("city"))));
    assert!(!world.accepts(&grammar, &call(&city("town"))));
}
