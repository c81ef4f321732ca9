# pip install "haystack-ai<3" "huggingface_hub<2"

from haystack.components.generators import HuggingFaceAPIGenerator, OpenAIGenerator
from haystack.utils import Secret

generator = HuggingFaceAPIGenerator(
    api_type="text_generation_inference",
    api_params={"url": "http://localhost:3000"},
    token=None,
    generation_kwargs={"max_new_tokens": 10, "return_full_text": False},
)
print(generator.run("add 3 and 4")["replies"][0])
generator = OpenAIGenerator(
    api_base_url="http://localhost:3000/v1", api_key=Secret.from_token("unused"), model="tgi"
)
print(generator.run("add 3 and 4", generation_kwargs={"max_tokens": 10})["replies"][0])
