# pip install langchain-huggingface langchain-openai

from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_openai import ChatOpenAI

endpoint = HuggingFaceEndpoint(endpoint_url="http://localhost:3000", max_new_tokens=10)
print(endpoint.invoke("add 3 and 4"))
chat = ChatHuggingFace(llm=endpoint, model_id="penstock-tiny", max_tokens=10)
print(chat.invoke("add 3 and 4").content)
model = ChatOpenAI(base_url="http://localhost:3000/v1", api_key="unused", model="tgi", max_tokens=10)
for chunk in model.stream("add 3 and 4"):
    print(chunk.content, end="", flush=True)
