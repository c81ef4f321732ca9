# pip install llama-index-llms-huggingface-api llama-index-llms-openai-like

from llama_index.core.llms import ChatMessage
from llama_index.llms.huggingface_api import HuggingFaceInferenceAPI
from llama_index.llms.openai_like import OpenAILike

llm = HuggingFaceInferenceAPI(model_name="http://localhost:3000", num_output=10)
print(llm.chat([ChatMessage(role="user", content="add 3 and 4")]).message.content)
like = OpenAILike(
    api_base="http://localhost:3000/v1", api_key="unused", model="tgi", is_chat_model=True, max_tokens=10
)
for piece in like.stream_complete("add 3 and 4"):
    print(piece.delta, end="", flush=True)
