# pip install litellm

import litellm

question = [{"role": "user", "content": "add 3 and 4"}]
answer = litellm.completion(
    "huggingface/penstock-tiny", question, api_base="http://localhost:3000", api_key="unused", max_tokens=10
)
print(answer.choices[0].message.content)
stream = litellm.completion(
    "openai/tgi", question, api_base="http://localhost:3000/v1", api_key="unused", max_tokens=10, stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
