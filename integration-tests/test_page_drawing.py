"""What the chat page looks like, in Chromium: Markdown as it is drawn, which stays text whatever a model writes, and screens, colours and scripts."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Route, expect

import wire
from browser import CHAT, Chat, Open, body_of, pieces, told
from launched import Launched
from prompts import ADD

MARKDOWN = """# Title

Some **bold**, *slanted* and `code **as it is**`; 2*3*4, snake_case_name, \\*not slanted\\*.
A second line.

1. one
2. two
   - inner `x`
   - more

7) seven

```python
if a < b:
    print("**no bold**")
```

The **end"""


def test_markdown_is_drawn(chat: Chat) -> None:
    told(chat, pieces(*MARKDOWN))  # one character at a time: half a mark must not stay as it was
    words = chat.ask("x")
    expect(words.locator("h3")).to_have_text("Title")
    expect(words.locator("p strong")).to_have_text(["bold"])
    expect(words.locator("p em")).to_have_text(["slanted"])
    expect(words.locator("p code")).to_have_text(["code **as it is**"])
    expect(words.locator("p").first).to_contain_text("2*3*4, snake_case_name, *not slanted*.\nA second line.")
    expect(words.locator("ol > li")).to_have_count(3)
    expect(words.locator("ol > li > ul > li")).to_have_text(["inner x", "more"])
    assert words.locator("ol > li").last.evaluate("item => item.value") == 7
    expect(words.locator("pre code")).to_have_text('if a < b:\n    print("**no bold**")')
    expect(words.locator("p").last).to_have_text("The **end")
    drawn = words.inner_html()
    told(chat, pieces(MARKDOWN))
    assert chat.ask("x").inner_html() == drawn, "drawn in pieces or at once, it is the same"


STEPS_WITH_CODE = """1. First:

    ```python
    def f():
        return 1

    ```

2. Then
   - so:

     ~~~ sh run.sh
     make
   all
     ~~~
\t- and
\t\t```
\t\t\tx
\t\t```
3. Done"""


def test_code_within_an_item_of_a_list_is_code_as_it_was_written(chat: Chat) -> None:
    told(chat, pieces(*STEPS_WITH_CODE))
    words = chat.ask("x")
    code = words.locator("pre code").evaluate_all("all => all.map((code) => code.textContent)")
    assert code == ["def f():\n    return 1\n", "make\nall", "\tx"]
    assert words.locator("pre").evaluate_all("all => all.map((pre) => pre.dataset.language)") == [
        "python",
        "sh",
        None,
    ]
    assert words.locator("ol > li").evaluate_all("all => all.map((item) => item.value)") == [1, 2, 3]
    expect(words).not_to_contain_text("```")
    drawn = words.inner_html()
    told(chat, pieces(STEPS_WITH_CODE))
    assert chat.ask("x").inner_html() == drawn, "drawn in pieces or at once, it is the same"


THOUGHT = """<think>
Is it **so**?

</think>

Before | it

| name | [x](https://a.example/y_(z) "t") | n |
|:--|:-:|--:|
| `a \\| b` | **b** | 1 | too much |
| only

See [the *docs*](https://b.example/q?a=b&c=*d*), https://c.example/d. or <https://e.example>; write to [me](mailto:a@b.example).
[no](javascript:alert(1)) [no](data:text/html,x) [no](//f.example) [no](vbscript:x) [no](file:///etc/passwd)"""


@pytest.mark.parametrize("names", [["reasoning_content"], ["reasoning"], ["reasoning_content", "reasoning"]])
def test_reasoning_that_the_server_tells_apart_is_folded_and_sent_back(chat: Chat, names: list[str]) -> None:
    deltas = [
        {"role": "assistant", "content": ""},
        {"content": None} | dict.fromkeys(names, "Is it "),
        {"content": None} | dict.fromkeys(names, "**so**?"),
        {"content": "It "},
        {"content": "is."},
    ]
    told(chat, [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas])
    words = chat.ask("x")
    expect(words.locator("details.think summary")).to_have_text("Thoughts")
    expect(words.locator("> p")).to_have_text("It is.")
    expect(chat.page.locator("#said")).to_have_text("The answer is complete. It is.")
    assert chat.copied("Copy") == "It is."
    with chat.page.expect_request(CHAT) as asked:
        chat.ask("y")
    said = body_of(asked.value)["messages"][1]
    assert said == {"role": "assistant", "content": "It is.", "reasoning_content": "Is it **so**?"}


def test_thoughts_are_folded_and_tables_and_links_are_drawn(chat: Chat) -> None:
    told(chat, pieces(*THOUGHT))
    words = chat.ask("x")
    thoughts = words.locator("details.think")
    expect(thoughts.locator("summary")).to_have_text("Thoughts")
    expect(thoughts.locator("strong")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("strong")).to_have_text("so")
    expect(words.locator("> p").first).to_have_text("Before | it")
    expect(words.locator("th")).to_have_text(["name", "x", "n"])
    expect(words.locator("td")).to_have_text(["a \\| b", "b", "1", "only", "", ""])
    assert words.locator("td").nth(2).evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    links = [
        "https://a.example/y_(z)",
        "https://b.example/q?a=b&c=*d*",
        "https://c.example/d",
        "https://e.example",
        "mailto:a@b.example",
    ]
    found = words.locator("a").evaluate_all(
        "all => all.map((a) => [a.getAttribute('href'), a.rel, a.target])"
    )
    assert found == [[address, "noopener noreferrer", "_blank"] for address in links]
    expect(words.locator("> p").last).to_contain_text(
        "See the docs, https://c.example/d. or https://e.example; write to me."
    )
    expect(words.locator("> p").last).to_contain_text("[no](javascript:alert(1)) [no](data:text/html,x)")
    drawn = words.inner_html()
    told(chat, pieces(THOUGHT))
    again = chat.ask("x")
    again.locator("summary").click()
    assert again.inner_html() == drawn, "drawn in pieces or at once, it is the same"


def test_links_are_drawn_where_the_browser_has_no_can_parse(chat: Chat) -> None:
    chat.page.add_init_script("delete URL.canParse")  # As Safari before 17 and Chrome before 120.
    chat.page.reload()
    assert chat.page.evaluate("URL.canParse === undefined")
    told(chat, pieces("See https://a.example/x or ", "[the docs](https://b.example). ", "And so on."))
    for count, message in enumerate(("x", "y"), 1):
        words = chat.ask(message)
        expect(chat.page.locator(".turn")).to_have_count(count)
        expect(words.locator("a")).to_have_text(["https://a.example/x", "the docs"])
        expect(words).to_contain_text("And so on.")
    chat.page.reload()
    expect(chat.page.locator(".turn")).to_have_count(2)
    expect(chat.words.locator("a")).to_have_count(2)
    chat.ask("z")
    expect(chat.page.locator(".turn")).to_have_count(3)


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_label_of_a_setting_has_one_line(open_page: Open, server: Launched, width: int) -> None:
    chat = open_page(server.url, viewport={"width": width, "height": 900})
    chat.page.get_by_text("More", exact=True).click()
    expect(chat.page.get_by_label("Token probabilities", exact=True)).to_be_visible()
    for label in chat.page.locator("#settings .field:not([hidden]) label").all():
        lines = label.evaluate("label => new Set([...label.getClientRects()].map((at) => at.top)).size")
        tall = label.evaluate("label => label.offsetHeight / parseFloat(getComputedStyle(label).lineHeight)")
        assert (lines, round(tall)) == (1, 1), label.text_content()


@pytest.mark.parametrize("height", [260, 420, 800])
def test_the_window_beside_a_token_never_covers_its_line(
    open_page: Open, server: Launched, height: int
) -> None:
    chat = open_page(server.url, viewport={"width": 1280, "height": height})
    chunks = pieces(*(f"word{n}\n" for n in range(12)))
    for number, chunk in enumerate(chunks):
        likely = [{"token": f"t{n}", "logprob": -0.5 * n - 0.1, "bytes": []} for n in range(12)]
        content = {**likely[0], "token": f"word{number}\n", "top_logprobs": likely}
        chunk["choices"][0]["logprobs"] = {"content": [content]}
    told(chat, chunks)
    words = chat.ask("x")
    for token in words.locator(".token").all():
        token.hover()
        expect(chat.popover).to_be_visible()
        at, over = token.bounding_box(), chat.popover.bounding_box()
        assert at and over
        assert over["y"] + over["height"] <= at["y"] or over["y"] >= at["y"] + 20, (at, over)
        assert over["y"] >= 0 and over["y"] + over["height"] <= height


def test_markdown_takes_any_text_in_no_time(chat: Chat) -> None:
    milliseconds = chat.page.evaluate("""async () => {
        const {parse} = await import(new URL('page/markdown.js', document.baseURI));
        const marks = [
            '*', '**', '`', '``', ' ', 'a', '\\n', '- ', '1. ', '```', '#', '\\\\', '  ',
            '|', '|-|', '[', '](', 'https://a', ')', '<think>', '</think>', '~', '~~~',
        ];
        let seed = 1;
        const next = () => (seed = (seed * 48271) % 2147483647);
        for (let round = 0; round < 2000; round++) {
            let text = '';
            for (let n = next() % 30; n > 0; n--) text += marks[next() % marks.length];
            let end = 0;
            for (const block of parse(text)) {
                if (block.start < end || block.end < block.start || block.end > text.length) throw Error(text);
                end = block.end;
            }
        }
        const began = performance.now();
        // Lines that might open a block of code, up to their last character.
        for (const [opens, goesOn] of [['~', '~'], ['~', ' ~'], ['```', 'a'], ['```', ' a'], ['~~~', '\\t'], [' ', ' ']]) {
            parse(opens + goesOn.repeat(100000 / goesOn.length) + '`');
        }
        for (const mark of [
            ' *a', '**a ', '`a', ' **a *b', '- a\\n', '    ', '``a`', '1. '.repeat(3),
            '[', '[a](', '[a](https://b', '[a](https://b(', '|', '|-', '|a\\n|-\\n', 'https://a', '<think>', '--- ',
        ]) {
            parse(mark.repeat(100000 / mark.length));
        }
        return performance.now() - began;
    }""")
    assert milliseconds < 24 * 1000, "each of twenty-four texts of 100,000 characters that are all marks"


ATTACK = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [x](javascript:hacked=1) '
    '**<svg onload="window.hacked=1">** `</code><script>window.hacked=1</script>` '
    '<a href="javascript:window.hacked=1">x</a> <iframe srcdoc="<script>parent.hacked=1</script>"></iframe>'
)


def test_what_a_model_writes_stays_text(chat: Chat, server: Launched) -> None:
    odd = {"token": ATTACK, "logprob": -1.0, "bytes": []}
    chunk = pieces(ATTACK, f'\n\n```"><script>window.hacked=1</script>\n{ATTACK}\n```\n\n- {ATTACK}')
    chunk[0]["choices"][0]["logprobs"] = {"content": [{**odd, "top_logprobs": [odd]}]}
    chunk[0]["warnings"] = [ATTACK]
    told(chat, chunk)

    def info(route: Route) -> None:
        route.fulfill(json={**wire.get(server.address, "/info").json(), "model_id": f"x{ATTACK}"})

    chat.page.route("**/info", info)
    chat.page.reload()
    words = chat.ask(ATTACK)
    words.locator(".token").first.hover()
    expect(chat.popover).to_contain_text("onerror")
    expect(words).to_contain_text('<img src=x onerror="window.hacked=1">')
    expect(chat.page.locator(".said")).to_have_text(ATTACK)
    chat.page.unroute(CHAT)
    refusal = {"error": {"message": ATTACK, "param": ATTACK, "http_status_code": 422}}
    chat.page.route(CHAT, lambda route: route.fulfill(status=422, json=refusal))
    chat.ask("again", until="failed")
    expect(chat.error).to_contain_text("onerror")
    made = chat.page.locator("main, #popover, #side, header")
    assert made.locator("script, iframe, a[href^=javascript], #log img, #log svg").count() == 0
    assert chat.page.evaluate("window.hacked") is None
    refused = chat.page.evaluate("""() => {
        try { document.body.innerHTML = '<p>'; return false; } catch (error) { return error instanceof TypeError; }
    }""")
    assert refused, "the browser itself must refuse markup made of strings"
    chat.faults.clear()  # Which it notes.


# WCAG 2's contrast of each text that can be seen to what is behind it: [how many texts, those that are too pale].
CONTRASTS = """() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => {
        const [r, g, b] = parts(color).map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const hasText = (element) =>
        element.matches("input, textarea") || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const contrast = (element) => {
        let behind = element;
        while (behind.parentElement && parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        const colors = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
        return (Math.max(...colors) + 0.05) / (Math.min(...colors) + 0.05);
    };
    const seen = [...document.body.querySelectorAll("*")].filter(
        (element) => hasText(element) && !element.disabled && element.checkVisibility({ visibilityProperty: true }),
    );
    const pale = seen.map((element) => [contrast(element), element.outerHTML]).filter(([ratio]) => !(ratio >= 4.5));
    return [seen.length, pale];
}"""


def test_dark_and_light_can_be_read(chat: Chat) -> None:
    grounds = set()
    expect(chat.page.locator("#set-top_p-bounds")).not_to_be_empty()
    chat.set("Temperature", "warm")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in (*schemes, *schemes):
        chat.page.emulate_media(color_scheme=scheme)
        texts, pale = chat.page.evaluate(CONTRASTS)
        assert texts > 40 and pale == [], (scheme, pale)
        grounds.add(chat.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        if scheme == "dark":
            chat.ask("What does `--port` do?", until="failed")
    assert len(grounds) == 2, "dark is another ground than light"


def test_a_narrow_screen_has_room_for_all(open_page: Open, server: Launched) -> None:
    chat = open_page(server.url, viewport={"width": 360, "height": 640}, has_touch=True)

    def width() -> int:
        """Of all there is, also of what one would have to scroll to within the conversation."""
        widths = "[document.documentElement, document.getElementById('scroll')].map((one) => one.scrollWidth)"
        return int(max(chat.page.evaluate(widths)))

    side = chat.page.get_by_label("Settings and server")
    expect(side).to_be_hidden()
    long = "x" * 300
    told(chat, pieces(f"{long}\n\n```\n{long}\n```\n\n1. {long}\n   - {long}"))
    words = chat.ask(long)
    assert width() == 360
    for part in (
        words.locator("p"),
        words.locator("pre"),
        chat.page.locator(".said"),
        chat.text,
        chat.button("Send"),
    ):
        box = part.first.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360, box
    for button in chat.page.get_by_role("button").all():
        box = button.bounding_box()
        assert not box or box["height"] >= 24, button.inner_text()
    chat.button("Settings").click()
    expect(side).to_be_visible()
    expect(chat.button("Close")).to_be_focused()
    chat.set("Temperature", 0)
    assert width() == 360
    chat.page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    expect(chat.button("Settings")).to_be_focused()
    chat.page.unroute(CHAT)
    chat.ask(ADD)
    chat.words.locator(".token").first.tap()
    expect(chat.popover).to_be_visible()
    box = chat.popover.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_other_scripts_are_laid_out_as_they_are_read(chat: Chat) -> None:
    arabic, hebrew = "مرحبا بالعالم", "שלום"
    told(chat, pieces(f"{arabic} **{arabic}**\n\nEnglish\n\n- {hebrew} `code`\n\n", "👩‍👩‍👧‍👦 naïve 日本語"))
    words = chat.ask(arabic)
    direction = "element => getComputedStyle(element).direction"
    assert chat.page.locator(".said").evaluate(direction) == "rtl"
    assert [p.evaluate(direction) for p in words.locator("p").all()] == ["rtl", "ltr", "ltr"]
    assert words.locator("li").evaluate(direction) == "rtl"
    expect(words.locator("p").last).to_have_text("👩‍👩‍👧‍👦 naïve 日本語")
    chat.text.fill(hebrew)
    assert chat.text.evaluate(direction) == "rtl"
