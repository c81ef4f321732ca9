# pip install anthropic

from anthropic import Anthropic

client = Anthropic(base_url="http://localhost:3000", api_key="unused")
question = {"role": "user", "content": "What is the weather in Paris?"}
with client.messages.stream(model="tgi", max_tokens=40, messages=[question]) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
tool = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
message = client.messages.create(
    model="tgi", max_tokens=100, messages=[question], tools=[tool], tool_choice={"type": "any"}
)
print(message.stop_reason, [block.input for block in message.content if block.type == "tool_use"])
