//! What a chat template does with tools, calls and results, found by rendering some: not every model's has a place for them, and
//! those that have one do not all have the same. What a template leaves out, the model would never read.

use penstock_core::prompt::Chat;
use penstock_output::{ReasoningFormat, ToolFormat, of_template};
use serde_json::{Value, json};

use crate::http::chats::effort::Efforts;
use crate::http::chats::message_manners::{MessageManners, PartsAlone};
use crate::http::chats::template_places::{
    CALL_ROLE, CallPlace, ToolPlace, fill_in, into_the_system_message, into_tool_responses, rename_ids,
};

const TOOL: &str = "penstock_looks_for_tools";
/// Beside which a call of the first one is looked for: a template that shows this one alone does not show the call.
const OTHER_TOOL: &str = "penstock_has_another_tool";
const RESULT: &str = "penstock looks for results";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manners {
    pub tools: ToolPlace,
    /// The template needs a description and parameters of each function.
    pub fills_in_tools: bool,
    pub calls: CallPlace,
    /// Beside tools in their place in the template, as `messages_beside_tools`.
    pub calls_beside_tools: CallPlace,
    /// The template refuses ids of calls that are not nine letters and digits (Mistral's older ones).
    pub nine_ids: bool,
    pub messages: MessageManners,
    /// Beside tools in their place in the template, for which a model may have a template of its own.
    pub messages_beside_tools: MessageManners,
    pub parts_alone: PartsAlone,
    pub efforts: Efforts,
}

impl Manners {
    /// `render` gives None where the template refuses a chat. `template` is its source, for chats with tools; without `calls`, calls
    /// and results stay where they are.
    pub fn of(
        template: &str,
        calls: Option<&ToolFormat>,
        reasoning: Option<&ReasoningFormat>,
        render: impl Fn(&Chat) -> Option<String>,
    ) -> Self {
        let parts_alone = PartsAlone::of(|messages| render(&Chat { messages, ..Chat::default() }));
        let render = |chat: &Chat| {
            let mut chat = chat.clone();
            parts_alone.write(&mut chat.messages);
            render(&chat)
        };
        let user = json!({"role": "user", "content": "x"});
        let system = json!({"role": "system", "content": "x"});
        // Some say what they say of tools only where there is a system's message.
        let shows = |messages: &[Value], tool: Option<&Value>, wanted: &[&str]| {
            let all = |before: &[&Value]| -> Vec<Value> {
                before.iter().copied().cloned().chain(messages.iter().cloned()).collect()
            };
            [all(&[&user]), all(&[&system, &user])].into_iter().any(|messages| {
                let chat = Chat { messages, tools: tool.map(|tool| vec![tool.clone()]), ..Chat::default() };
                render(&chat).is_some_and(|text| wanted.iter().all(|wanted| text.contains(wanted)))
            })
        };
        let bare = json!({"type": "function", "function": {"name": TOOL}});
        let mut filled = bare.clone();
        fill_in(&mut filled);
        let tools = if shows(&[], Some(&filled), &[TOOL]) {
            ToolPlace::Template
        } else if shows_within_the_system_message(render) {
            ToolPlace::SystemMessage
        } else {
            ToolPlace::LastMessage
        };
        let result = |content: Value, has_name: bool| {
            let mut messages = vec![
                json!({"role": "assistant", "content": null, "tool_calls":
                    [{"id": "call00001", "type": "function", "function": {"name": TOOL, "arguments": {}}}]}),
                json!({"role": "tool", "tool_call_id": "call00001", "content": content}),
            ];
            if has_name {
                messages[1]["name"] = TOOL.into();
            }
            messages
        };
        let placed = |place: CallPlace, mut messages: Vec<Value>| {
            if let Some(calls) = calls {
                place.rewrite(&mut messages, template, calls);
            }
            messages
        };
        let shows_calls = |place: CallPlace, tool: Option<&Value>| {
            shows(&placed(place, result(json!(RESULT), true)), tool, &[TOOL, RESULT])
        };
        // A model that is asked for another format than its template's reads its earlier calls in that one, too.
        let own = of_template(template).0.map(|format| format.name);
        let is_asked_otherwise =
            tools == ToolPlace::LastMessage && own.is_some() && own != calls.map(|format| format.name);
        let has_word =
            |word: &str| ['\'', '"'].iter().any(|quote| template.contains(&format!("{quote}{word}{quote}")));
        // Many write any role as it is called, which no model but those of whose templates it is a word has seen.
        let may_be = |place: CallPlace| match place {
            CallPlace::Messages | CallPlace::ToolResponses => !is_asked_otherwise,
            CallPlace::OwnRoles => !is_asked_otherwise && has_word(CALL_ROLE),
            CallPlace::Text => has_word("tool"),
            CallPlace::TextAndToolResponse => calls.is_some_and(|format| format.name == "granite"),
            CallPlace::TextAndUser => true,
        };
        let places = [
            CallPlace::Messages,
            CallPlace::OwnRoles,
            CallPlace::Text,
            CallPlace::TextAndToolResponse,
            CallPlace::TextAndUser,
        ];
        let place_beside = |tool: Option<&Value>| {
            let may_be = |place: CallPlace| calls.is_some() && may_be(place);
            if may_be(CallPlace::ToolResponses) && reads_tool_responses(template, tool, render) {
                return CallPlace::ToolResponses;
            }
            let place = places.into_iter().find(|place| may_be(*place) && shows_calls(*place, tool));
            place.unwrap_or_default()
        };
        let mut other = filled.clone();
        other["function"]["name"] = OTHER_TOOL.into();
        let other = Some(other).filter(|_| tools == ToolPlace::Template);
        let (place, beside_tools) = (place_beside(None), place_beside(other.as_ref()));
        let refuses_ids = |place: CallPlace, tool: Option<&Value>| {
            let takes_id = |id: &str| {
                let mut messages = result(json!(RESULT), true);
                rename_ids(&mut messages, |_| id.to_owned());
                shows(&placed(place, messages), tool, &[TOOL, RESULT])
            };
            !takes_id("call_0123456789abcdefghi") && takes_id("call00001")
        };
        let messages = |place: CallPlace, tools: Option<Vec<Value>>| {
            MessageManners::of(
                template,
                |messages| {
                    let messages = placed(place, messages);
                    render(&Chat { messages, tools: tools.clone(), ..Chat::default() })
                },
                |content, has_name| [vec![user.clone()], result(content, has_name)].concat(),
            )
        };
        let with_tools = Some(vec![filled]).filter(|_| tools == ToolPlace::Template);
        let efforts = Efforts::of(
            |variables| {
                let chat = Chat { messages: vec![user.clone()], variables, ..Chat::default() };
                let without_tools = render(&chat)?;
                Some(without_tools + &render(&Chat { tools: with_tools.clone(), ..chat })?)
            },
            reasoning,
        );
        let mut empty = bare.clone();
        empty["function"]["parameters"] = json!({});
        let needs_more = |tool: Value| !shows(&[], Some(&tool), &[TOOL]);
        Self {
            tools,
            fills_in_tools: tools == ToolPlace::Template && (needs_more(bare) || needs_more(empty)),
            calls: place,
            calls_beside_tools: beside_tools,
            nine_ids: refuses_ids(place, None) || refuses_ids(beside_tools, other.as_ref()),
            messages: messages(place, None),
            messages_beside_tools: messages(beside_tools, with_tools.clone()),
            parts_alone: parts_alone.clone(),
            efforts,
        }
    }
}

fn shows_within_the_system_message(render: impl Fn(&Chat) -> Option<String>) -> bool {
    let mut messages = vec![json!({"role": "user", "content": "x"})];
    into_the_system_message(&mut messages, &[json!({"function": {"name": TOOL}})]);
    let chat = Chat { messages, ..Chat::default() };
    render(&chat).is_some_and(|text| text.contains(TOOL))
}

/// Whether a result has another form as one of the assistant's `tool_responses` than as a message of `tool`: that of the model,
/// where a template has it.
fn reads_tool_responses(
    template: &str,
    tool: Option<&Value>,
    render: impl Fn(&Chat) -> Option<String>,
) -> bool {
    if !template.contains("tool_responses") {
        return false;
    }
    let call = json!({"id": "call00001", "type": "function", "function": {"name": TOOL, "arguments": {}}});
    let mut messages = vec![
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call00001", "name": TOOL, "content": RESULT}),
    ];
    let tools = tool.map(|tool| vec![tool.clone()]);
    let rendered = |messages: &[Value]| {
        render(&Chat { messages: messages.to_vec(), tools: tools.clone(), ..Chat::default() })
    };
    let as_message = rendered(&messages);
    into_tool_responses(&mut messages);
    let as_response = rendered(&messages);
    as_response.as_ref().is_some_and(|text| text.contains(RESULT)) && as_response != as_message
}

#[cfg(test)]
mod tests {
    use penstock_output::tool_format;
    use penstock_template::ChatTemplates;
    use serde_json::Map;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::config::FormatFlag;
    use crate::http::chats::families::{Family, call, families, family, said, tool_loop};
    use crate::http::chats::formats::ChatFormats;

    /// The forms of Gemma 4's templates: the first read `tool_responses` alone, later ones also messages of `tool`.
    #[test]
    fn results_go_into_tool_responses_where_the_template_reads_them_there_alone() {
        const CALLS: &str = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}\
                             {% for r in m.tool_responses or [] %}<response>{{ r.name }}:{{ r.response }}{% endfor %}";
        let own = format!(
            "{{% for m in messages %}}<turn>{{{{ m.role }}}} {CALLS}{{{{ m.content }}}}{{% endfor %}}"
        );
        let both = format!(
            "{{% for m in messages %}}{{% if m.role == 'tool' %}}<response>{{{{ m.name }}}}:{{{{ m.content }}}}\
             {{% else %}}<turn>{{{{ m.role }}}} {CALLS}{{{{ m.content or '' }}}}{{% endif %}}{{% endfor %}}"
        );
        let other = own.replace("tool_responses", "responses");
        for (template, place) in
            [(own, CallPlace::ToolResponses), (both, CallPlace::Messages), (other, CallPlace::Messages)]
        {
            let sources = [("default".to_owned(), template.clone())];
            let templates = ChatTemplates::compile(&sources, Map::new(), |name, why| panic!("{name}: {why}"));
            let render = |chat: &Chat| templates.render(chat, &CancellationToken::new()).ok();
            let calls = tool_format("gemma4").expect("there is one");
            assert_eq!(Manners::of(&template, Some(calls), None, render).calls, place, "{template}");
        }
    }

    /// A call that was cut off comes back with what there is of its arguments, and some clients send a text of a text, or a list.
    #[test]
    fn arguments_that_are_no_object_are_shown() {
        let with = |arguments: &str| {
            let call = json!({"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}});
            let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "no"});
            vec![
                said("user", "x"),
                json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                result,
                said("user", "y"),
            ]
        };
        let mut showing = 0;
        for (name, family) in families() {
            let prompt = |arguments: &str| family.prompt(with(arguments));
            if !prompt(r#"{"city": "Paris"}"#).is_some_and(|prompt| prompt.contains("Paris")) {
                continue;
            }
            showing += 1;
            for arguments in
                [r#"{"city": "Paris"#, r#""{\"city\": \"Paris\"}""#, r#"["Paris"]"#, r#""Paris""#, "Paris"]
            {
                let prompt = prompt(arguments);
                assert!(prompt.is_some_and(|prompt| prompt.contains("Paris")), "{name}: {arguments}");
            }
        }
        assert!(showing > 40, "{showing}");
    }

    /// Each of these writes any role as it is called.
    #[test]
    fn calls_have_no_role_that_the_template_does_not_know() {
        for name in ["chatml", "smollm2", "qwen1_5", "llama3", "phi4_mini", "exaone", "openchat"] {
            let family = family(name);
            assert_eq!(family.formats.manners.calls, CallPlace::TextAndUser, "{name}");
        }
        assert_eq!(family("granite3").formats.manners.calls, CallPlace::OwnRoles);
        assert_eq!(family("granite3_3").formats.manners.calls, CallPlace::TextAndToolResponse);
    }

    /// Command R7B and Command A are published with a template for chats with tools and one for others, which wants turns.
    #[test]
    fn calls_and_results_go_where_the_template_of_tools_shows_them() {
        let cohere = Family::of_sources(&[
            (
                "default",
                "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
                 {% if m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}{% else %}<|CHATBOT_TOKEN|>{{ m.content }}{% endif %}{% endfor %}",
            ),
            (
                "tool_use",
                "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'tool' %}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{{ m.content }}<|END_TOOL_RESULT|>\
                 {% elif m.tool_calls %}<|CHATBOT_TOKEN|><|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|><|START_ACTION|>{% for c in m.tool_calls %}\
                 {{ c.function.name }}{% endfor %}<|END_ACTION|>{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}",
            ),
        ]);
        let manners = &cohere.formats.manners;
        assert_eq!(manners.calls, CallPlace::TextAndUser);
        assert_eq!(manners.calls_beside_tools, CallPlace::Messages);
        let mut thought = tool_loop("{}");
        thought[1]["reasoning_content"] = "Hm.".into();
        let prompt = cohere.prompt_beside(true, thought).expect("a prompt");
        let shown = "<user>x<|CHATBOT_TOKEN|><|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>f<|END_ACTION|>\
                     <|SYSTEM_TOKEN|><|START_TOOL_RESULT|>r<|END_TOOL_RESULT|>";
        assert!(prompt.ends_with(shown), "{prompt}");
        let prompt = cohere.prompt(tool_loop("{}")).expect("a prompt");
        assert!(prompt.starts_with("<|USER_TOKEN|>x<|CHATBOT_TOKEN|><|START_ACTION|>["), "{prompt}");
        assert!(prompt.ends_with("<|END_ACTION|><|USER_TOKEN|>r"), "{prompt}");
    }

    /// Hunyuan A13B's rule.
    #[test]
    fn calls_that_are_shown_beside_tools_alone_stay_where_they_are_there() {
        let hunyuan = Family::of(
            "{% if tools %}{{ tools | tojson }}{% for m in messages %}{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>\
             {% elif m.tool_calls %}<tool_calls>[{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}]</tool_calls>\
             {% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}\
             {% else %}{% for m in messages %}{% if m.role == 'assistant' %}Answer: {{ m.content }}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}\
             {% endfor %}{% endif %}",
        );
        let manners = &hunyuan.formats.manners;
        assert_eq!((manners.calls, manners.calls_beside_tools), (CallPlace::Text, CallPlace::Messages));
        let prompt = hunyuan.prompt_beside(true, tool_loop("{}")).expect("a prompt");
        assert!(
            prompt.ends_with("<user>x<tool_calls>[f]</tool_calls><tool_response>r</tool_response>"),
            "{prompt}"
        );
        // A template that shows the tools alone does not show their calls.
        let plain = Family::of(
            "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        );
        assert_eq!(plain.formats.manners.calls_beside_tools, CallPlace::TextAndUser);
    }

    /// LFM2's first template: it shows results, and calls only as the model's text.
    #[test]
    fn calls_that_a_template_does_not_show_are_text_in_its_format() {
        let lfm2 = Family::of(
            "{% if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}{% for m in messages %}\
             <|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}<|tool_response_start|>{{ m.content }}<|tool_response_end|>\
             {% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
        );
        assert_eq!(
            lfm2.prompt(tool_loop(r#"{"city": "Paris", "days": 3}"#)).as_deref(),
            Some(
                "<|im_start|>user\nx<|im_end|>\n\
                 <|im_start|>assistant\n<|tool_call_start|>[f(city=\"Paris\", days=3)]<|tool_call_end|><|im_end|>\n\
                 <|im_start|>tool\n<|tool_response_start|>r<|tool_response_end|><|im_end|>\n<|im_start|>assistant"
            )
        );
    }

    /// Apertus' rule: arguments are a text there.
    #[test]
    fn calls_as_text_have_the_arguments_that_the_model_wrote() {
        let apertus = Family::of(
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}[{{ m.content }}]\
             {% else %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|tools_prefix|>[{{ '{\"' + c.function.name + '\": ' + c.function.arguments + '}' }}]\
             <|tools_suffix|>{% endfor %}{% endif %}{% endfor %}",
        );
        for arguments in [r#"{"a": 1, "b":  1e2}"#, r#"{"a": "Par"#] {
            let prompt = apertus.prompt(tool_loop(arguments)).expect("a prompt");
            let shown =
                format!("<assistant><|tools_prefix|>[{{\"f\": {arguments}}}]<|tools_suffix|><tool>[r]");
            assert!(prompt.ends_with(&shown), "{prompt}");
        }
    }

    /// DeepSeek R1's, which its distilled models have: it shows calls and results, and no tools.
    #[test]
    fn a_template_without_tools_has_calls_in_json_all_along() {
        let r1 = Family::of(
            "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}\
             {% elif m.content is none %}<｜Assistant｜>{% for c in m.tool_calls %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.type + '<｜tool▁sep｜>' + \
             c.function.name + '\n```json\n' + c.function.arguments + '\n```' }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}\
             {% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{% endif %}{% endfor %}<｜Assistant｜><think>\n",
        );
        assert_eq!(r1.formats.calls.map(|format| format.name), Some("json"));
        assert_eq!(r1.formats.reasoning.map(|format| format.name), Some("think"));
        assert_eq!(
            r1.prompt(tool_loop(r#"{"a": 1}"#)).as_deref(),
            Some(
                "<｜User｜>x<｜Assistant｜>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<｜tool▁output▁begin｜>r<｜Assistant｜><think>"
            )
        );
        // A format that is named is kept.
        let calls = FormatFlag::Named(tool_format("deepseek_v3").expect("it exists"));
        let source = r1.formats.template.as_str();
        let named = ChatFormats::of_templates([source; 2], &calls, &FormatFlag::Auto, |chat| r1.render(chat));
        let mut messages = tool_loop(r#"{"a": 1}"#);
        named.rewrite(&mut messages, false);
        let text = messages[1]["content"].as_str().expect("a text");
        assert!(
            text.starts_with("<｜tool▁calls▁begin｜>") && text.contains("\n```json\n{\"a\": 1}\n```"),
            "{text}"
        );
    }

    /// Seed-OSS' rule.
    #[test]
    fn parameters_without_properties_are_shown_by_a_template_that_goes_through_them() {
        let seed = Family::of(
            "{% for t in tools or [] %}def {{ t.function.name }}({% for name, spec in t.function.parameters.properties.items() %}{{ name }}\
             {% endfor %}){% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        // It goes through those of functions that have some.
        let guarded = Family::of(
            "{% for t in tools or [] %}def {{ t.function.name }}({% if t.function.parameters is defined %}\
             {% for name, spec in t.function.parameters.properties.items() %}{{ name }}{% endfor %}{% endif %}){% endfor %}\
             {% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let plain = Family::of(
            "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        assert!(!plain.formats.manners.fills_in_tools);
        for family in [seed, guarded] {
            assert!(family.formats.manners.fills_in_tools);
            for function in [
                json!({"name": "f"}),
                json!({"name": "f", "parameters": {}}),
                json!({"name": "f", "parameters": {"type": "object"}}),
            ] {
                let mut tool = json!({"type": "function", "function": function});
                fill_in(&mut tool);
                let chat =
                    Chat { messages: vec![said("user", "x")], tools: Some(vec![tool]), ..Chat::default() };
                assert_eq!(family.render(&chat).as_deref(), Some("def f()<user>x"), "{function}");
            }
        }
    }

    /// A conversation that was begun with another model.
    #[test]
    fn ids_have_the_form_that_the_template_wants() {
        let mistral = family("mistral_v3");
        assert!(mistral.formats.manners.nine_ids && !family("mistral_tekken").formats.manners.nine_ids);
        let (one, other) = ("call_0123456789abcdef", "toolu_0123456789abcdef");
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
        let messages = vec![
            said("user", "x"),
            json!({"role": "assistant", "content": null, "tool_calls": [call(one, "{}"), call(other, "{}")]}),
            result(other),
            result(one),
        ];
        let prompt = mistral.prompt(messages).expect("a prompt");
        let ids = |before: &str| -> Vec<String> {
            prompt.split(before).skip(1).map(|rest| rest.chars().take(9).collect()).collect()
        };
        let (called, mut answered) = (ids("\"id\": \""), ids("\"call_id\": \""));
        answered.reverse();
        assert!(called.len() == 2 && called[0] != called[1] && called == answered, "{prompt}");
    }
}
