# pip install haystack-ai huggingface-api-haystack

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from haystack_integrations.components.generators.huggingface_api import HuggingFaceAPIChatGenerator

question = [ChatMessage.from_user("add 3 and 4")]
generator = HuggingFaceAPIChatGenerator(
    api_type="text_generation_inference", api_params={"url": "http://localhost:3000"}, token=None
)
print(generator.run(question, generation_kwargs={"max_tokens": 10})["replies"][0].text)
generator = OpenAIChatGenerator(
    api_base_url="http://localhost:3000/v1", api_key=Secret.from_token("unused"), model="tgi"
)
print(generator.run(question, generation_kwargs={"max_tokens": 10})["replies"][0].text)
