# pip install text-generation

from text_generation import Client

client = Client("http://localhost:3000", timeout=60)
print(client.generate("add 3 and 4", max_new_tokens=10).generated_text)
for piece in client.generate_stream("add 3 and 4", max_new_tokens=10):
    print(piece.token.text, end="")
