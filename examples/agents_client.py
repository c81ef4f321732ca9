# pip install openai-agents

import agents
from openai import AsyncOpenAI

agents.set_tracing_disabled(True)
client = AsyncOpenAI(base_url="http://localhost:3000/v1", api_key="unused")


@agents.function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return '{"temperature": 21, "condition": "sunny"}'


model = agents.OpenAIResponsesModel(model="tgi", openai_client=client)
settings = agents.ModelSettings(temperature=0, max_tokens=100)
agent = agents.Agent(name="Weather", model=model, tools=[get_weather], model_settings=settings)
print(agents.Runner.run_sync(agent, "What is the weather in Paris?").final_output)
