# pip install openai

from openai import OpenAI

client = OpenAI(base_url="http://localhost:3000/v1", api_key="unused")
stream = client.chat.completions.create(
    model="tgi", messages=[{"role": "user", "content": "add 3 and 4"}], max_tokens=10, stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
text = client.completions.create(model="tgi", prompt="add 3 and 4", max_tokens=10, extra_body={"top_k": 40})
print(text.choices[0].text)
