# pip install huggingface_hub

from huggingface_hub import InferenceClient

client = InferenceClient("http://localhost:3000")
for token in client.text_generation("add 3 and 4", max_new_tokens=10, stream=True):
    print(token, end="", flush=True)
answer = client.chat_completion([{"role": "user", "content": "add 3 and 4"}], max_tokens=10)
print(answer.choices[0].message.content, answer.usage.total_tokens)
