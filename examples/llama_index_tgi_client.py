# pip install llama-index-llms-text-generation-inference

from llama_index.llms.text_generation_inference import TextGenerationInference

llm = TextGenerationInference(model_url="http://localhost:3000", max_tokens=10, temperature=0.5)
print(llm.complete("add 3 and 4").text)
