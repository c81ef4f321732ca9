# pip install openai

import json
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url="http://localhost:3000/v1", api_key="unused")


class Mood(BaseModel):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


answer = client.chat.completions.parse(
    model="tgi", messages=[{"role": "user", "content": "How are you?"}], response_format=Mood, max_tokens=100
)
print(answer.choices[0].message.parsed)


def get_weather(city: str) -> dict[str, object]:
    return {"temperature": 21, "condition": "sunny"}


parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
function = {"name": "get_weather", "description": "Get the weather in a city", "parameters": parameters}
options = {"model": "tgi", "tools": [{"type": "function", "function": function}], "temperature": 0}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
message = client.chat.completions.create(messages=messages, **options).choices[0].message
messages.append(message)
for call in message.tool_calls or []:
    result = get_weather(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
for chunk in client.chat.completions.create(messages=messages, stream=True, **options):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
