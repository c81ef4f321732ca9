"""What the tiny model knows about Penstock: one answer per fact, and many ways to ask for it.

A fact has one canonical answer. Its questions come from patterns; every fifth pattern is held out for
evaluation. Written to agree with the README and with `penstock --help`; change it when they change.
"""

# Tables of text, one entry on a line.
# ruff: noqa: E501

import random
from dataclasses import dataclass

from penstock.tiny.words import THINGS, Split, draw_list, held_out


@dataclass(frozen=True)
class Fact:
    """`questions` are complete patterns of this fact alone; a flag or endpoint gets shared patterns too."""

    answer: str
    questions: tuple[str, ...]


# name -> (what it does as a verb phrase, purposes to ask for: "Which flag ...?")
FLAGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "model-id": ("chooses the model: a Hugging Face hub id or a local folder", ("the model", "which model is served")),
    "revision": ("chooses the branch, tag or commit of the model on the hub", ("the revision of the model", "the commit or branch of the model")),
    "num-shard": ("sets over how many devices the model is split", ("the number of shards", "how many devices the model is split over")),
    "sharded": ("says whether the model is split over several devices", ("whether the model is sharded",)),
    "dtype": ("sets the number type of the weights: float32, bfloat16 or float16", ("the dtype", "the number type of the weights")),
    "device": ("says where the model runs: cpu, cuda or cuda:N", ("the device", "where the model runs")),
    "worker-threads": ("sets how many CPU threads compute", ("the number of CPU threads", "how many threads compute")),
    "max-concurrent-requests": ("limits how many requests are queued and running at once; more get status 429", ("the number of concurrent requests", "how many requests may run at once")),
    "max-best-of": ("limits best_of in a request", ("the limit of best_of",)),
    "max-input-tokens": ("limits the tokens of a prompt", ("the longest prompt", "how many tokens a prompt may have")),
    "max-total-tokens": ("limits prompt and answer together, in tokens", ("the total tokens of a request", "how many tokens prompt and answer may have together")),
    "max-batch-prefill-tokens": ("limits the tokens computed in one step", ("the tokens in one step", "the prefill budget of a batch")),
    "max-batch-total-tokens": ("sets the size of the KV cache in tokens", ("the size of the KV cache", "the token budget of all running requests")),
    "max-batch-size": ("limits how many sequences are in one step", ("the size of a batch", "how many sequences are in one step")),
    "max-stop-sequences": ("limits the stop strings of a request", ("the number of stop strings", "how many stop sequences are allowed")),
    "max-top-n-tokens": ("limits top_n_tokens in a request", ("the limit of top_n_tokens", "how many top tokens a request may ask for")),
    "max-client-batch-size": ("limits the prompts in one request", ("how many prompts one request may hold",)),
    "validation-workers": ("sets the number of tokenizer threads", ("the number of tokenizer threads",)),
    "hostname": ("sets the address to listen on, 0.0.0.0 by default", ("the address to listen on", "the host address")),
    "port": ("sets the port to listen on, 3000 by default", ("the port", "which port the server listens on")),
    "json-output": ("writes the logs as JSON lines", ("JSON logs", "the log format")),
    "log-level": ("sets how much is logged: error, warn, info, debug or trace", ("the log level", "how much is logged")),
    "shutdown-timeout": ("sets how long running requests may go on after SIGTERM", ("the time for a graceful stop", "how long running requests may go on at shutdown")),
    "huggingface-hub-cache": ("sets the folder for downloaded models", ("the download folder", "where downloaded models are kept")),
    "weights-cache-override": ("names a folder with the files of the model, instead of a download", ("a local weight folder",)),
    "payload-limit": ("limits the size of a request body in bytes", ("the size of a request body", "how big a request body may be")),
    "cors-allow-origin": ("allows a web origin to call the server", ("the allowed web origins",)),
    "tokenizer-config-path": ("names another tokenizer_config.json, for its chat template", ("the tokenizer config file", "another chat template")),
    "memory-fraction": ("limits the share of memory that a worker may take", ("the share of memory", "how much memory a worker takes")),
    "target-itl-ms": ("keeps the time of a step under this, in milliseconds", ("the target time between tokens", "the longest step time")),
    "step-timeout": ("sets after how many seconds a step that does not end counts as a hang", ("when a worker counts as hung",)),
    "env": ("logs versions and devices at start", ("whether versions are logged at start",)),
}  # fmt: skip

_OTHER_FLAGS = (
    "quantize", "speculate", "kv-cache-dtype", "trust-remote-code", "waiting-served-ratio", "max-waiting-tokens",
    "cuda-graphs", "prometheus-port", "shard-uds-path", "master-addr", "master-port", "disable-custom-kernels",
    "rope-scaling", "rope-factor", "otlp-endpoint", "otlp-service-name", "api-key", "watermark-gamma", "ngrok",
    "watermark-delta", "disable-grammar-support", "lora-adapters", "usage-stats", "enable-prefill-logprobs",
    "gpu-memory-utilization", "tensor-parallel-size", "max-model-len", "seed", "verbose", "debug", "config", "help",
)  # fmt: skip

FLAG_PATTERNS = (
    "What does {flag} do?",
    "What is {flag}?",
    "Explain {flag}.",
    "What is the flag {flag} for?",
    "Tell me what {flag} does.",
    "What does the flag {flag} do?",
    "When do I need {flag}?",
    "Explain the flag {flag} to me.",
    "{flag}?",
    "What happens when I pass {flag}?",
    "How do I use {flag}?",
    "What is {flag} good for?",
    "I saw {flag} in the help. What is it?",
    "Describe the option {flag}.",
    "What can I do with {flag}?",
    "What does the option {flag} mean?",
    "Why would I use {flag}?",
    "What is the meaning of {flag}?",
    "What effect does {flag} have?",
    "I do not understand {flag}. Can you explain it?",
)
PURPOSE_PATTERNS = (
    "Which flag sets {purpose}?",
    "How do I set {purpose}?",
    "What flag is for {purpose}?",
    "Which option controls {purpose}?",
    "I want to change {purpose}. Which flag is it?",
    "How can I change {purpose}?",
    "Is there a flag for {purpose}?",
    "Where do I set {purpose}?",
    "What is the flag for {purpose}?",
    "Which flag do I need to set {purpose}?",
    "How do I choose {purpose}?",
    "What option sets {purpose}?",
    "I need to set {purpose}.",
    "Which flag changes {purpose}?",
    "How do I configure {purpose}?",
)

ENDPOINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "/generate": ("POST", ("takes inputs and parameters and answers with the whole generated text",)),
    "/generate_stream": ("POST", ("takes the same request as /generate and streams the tokens as server-sent events",)),
    "/v1/chat/completions": ("POST", ("is the chat route of the OpenAI API: messages in, an answer or a stream out",)),
    "/v1/completions": ("POST", ("is the completion route of the OpenAI API: a prompt in, text or a stream out",)),
    "/v1/models": ("GET", ("lists the model that is served, as in the OpenAI API",)),
    "/tokenize": ("POST", ("answers with the tokens of a text, with their ids and offsets",)),
    "/info": ("GET", ("tells the model, its limits and the version of the server",)),
    "/health": ("GET", ("answers 200 when the server can serve, and 503 with the reason when it cannot",)),
    "/ping": ("GET", ("is the same as /health",)),
    "/livez": ("GET", ("answers 200 as long as the process lives",)),
    "/readyz": ("GET", ("answers 200 when requests can be served, and 503 while loading or recovering",)),
    "/metrics": ("GET", ("gives the metrics in Prometheus format",)),
}  # fmt: skip
ENDPOINT_PATTERNS = (
    "What does {path} do?",
    "What is {path}?",
    "Explain {path}.",
    "What is the endpoint {path} for?",
    "Tell me about {path}.",
    "What does the endpoint {path} do?",
    "What does the route {path} do?",
    "{path}?",
    "When do I use {path}?",
    "What do I get from {path}?",
    "Explain the route {path} to me.",
    "What is {path} good for?",
    "How do I use {path}?",
    "What can I do with {path}?",
    "What happens when I call {path}?",
    "Describe the endpoint {path}.",
    "What does {method} {path} answer?",
    "Why would I call {path}?",
    "What is the route {path} for?",
    "What comes back from {path}?",
)

OTHER_FLAG_ANSWER = "I do not know this flag. To see all flags, run: penstock --help"

LONG_ANSWER = (
    "Penstock serves large language models. A router written in Rust takes the HTTP requests, turns text into "
    "tokens, and keeps everything there is to know about a request. It packs many requests into one step plan. "
    "A worker written in Python holds the model and runs one step at a time, on a CPU or on GPUs. The launcher "
    "starts both and watches them. When a worker dies, it is started again, the router sends the tokens so far, "
    "and every stream goes on without a lost token. The key-value cache is kept in blocks, and prompts that "
    "begin alike share them. Clients of Text Generation Inference and of the OpenAI API work as they are. "
    "I am the tiny model in the package: I answer when no other model is named. "
    "To serve a real one, run: penstock --model-id <model>"
)

FACTS: tuple[Fact, ...] = (
    Fact("Penstock is a server for large language models. It speaks the APIs of Text Generation Inference and of OpenAI, and no stream is lost when a worker dies.",
         ("What is Penstock?", "What does Penstock do?", "Explain Penstock.", "Penstock?", "What is Penstock for?", "Tell me what Penstock is.", "What is this server?", "What kind of software is Penstock?", "Describe Penstock in one sentence.", "What can Penstock do?", "I am new here. What is Penstock?", "So what is this Penstock?", "Who is Penstock for?", "What is the purpose of Penstock?", "Can you explain what Penstock is?")),
    Fact(LONG_ANSWER,
         ("Tell me about Penstock in detail.", "How does Penstock work?", "Write a long text about Penstock.", "Tell me everything about Penstock.", "Give me a long description of Penstock.", "Explain in detail how Penstock works.", "Write a long answer about Penstock.", "Describe Penstock in detail.", "How does Penstock work inside?", "Tell me all you know about Penstock.")),
    Fact("Run: penstock --model-id <model>, where <model> is a Hugging Face hub id or a local folder.",
         ("How do I serve another model?", "How can I serve another model?", "How do I run a different model?", "Can I use a bigger model?", "How do I load my own model?", "How do I serve a model from the hub?", "How to serve a real model?", "Which command serves another model?", "How do I change the model?", "I want to serve a different model.", "How do I start Penstock with another model?", "How can I use my own model?", "What is the command to serve a model?", "Serve another model?", "Can Penstock serve other models?")),
    Fact("Give the folder as the model: penstock --model-id ./my-model",
         ("How do I serve a local folder?", "How do I serve a model from my disk?", "Can I serve a local model folder?", "My model is in a local folder. How do I serve it?", "How do I serve a model folder on my disk?", "Can Penstock load a model from a folder?", "How do I load a model from a local folder?", "How do I point Penstock to a local folder?", "Is it possible to serve a folder on my disk?", "How can I serve weights from a local folder?")),
    Fact("The default port is 3000. Change it with --port.",
         ("What is the default port?", "Which port does Penstock use?", "On which port does Penstock listen?", "What port is it on?", "Where does Penstock listen?", "Which port is the default?", "Tell me the default port.", "What is the port of the server?", "What port does the server use by default?", "Which port do I connect to?")),
    Fact("Type make serve. It builds Penstock and serves the tiny model on port 3000.",
         ("How do I start Penstock?", "What does make serve do?", "How do I start the server?", "make serve?", "How do I build and run Penstock?", "What is make serve?", "How do I try Penstock?", "How do I get started?", "Explain make serve.", "What is the first command to type?")),
    Fact("Type make test. It runs all tests.",
         ("How do I run the tests?", "What does make test do?", "make test?", "How can I test Penstock?", "What is make test?", "Which command runs the tests?", "Explain make test.", "How do I test it?", "I want to run all tests.", "How are the tests run?")),
    Fact("Type make model. It trains me again from generated text.",
         ("How do I train the tiny model?", "What does make model do?", "make model?", "How was the tiny model made?", "How do I train you again?", "What is make model?", "Which command trains the tiny model?", "Explain make model.", "How can the tiny model be trained again?", "How were you trained?")),
    Fact("Type make lint. It checks format, lints and types.",
         ("How do I run the linters?", "What does make lint do?", "make lint?", "What is make lint?", "Which command checks the format?", "Explain make lint.", "How do I lint the code?", "How do I check the types?", "I want to lint the code.", "Which command runs the linters?")),
    Fact("Type make bench. It runs the benchmarks.",
         ("How do I run the benchmarks?", "What does make bench do?", "make bench?", "What is make bench?", "Which command runs the benchmarks?", "Explain make bench.", "How do I measure the speed?", "How can I benchmark Penstock?", "I want to run the benchmarks.", "How do I benchmark it?")),
    Fact("curl -N localhost:3000/generate_stream -H 'content-type: application/json' -d '{\"inputs\": \"What is Penstock?\"}'",
         ("How do I stream with curl?", "Show me a curl command that streams.", "Give me a curl example.", "What is the curl line for streaming?", "How can I stream tokens with curl?", "Streaming with curl?", "Show me how to stream with curl.", "How do I use curl with Penstock?", "Which curl command streams tokens?", "Can I stream with curl?", "I want to stream with curl.", "How do I call /generate_stream with curl?", "Write a curl command for streaming.", "Give me a curl line that streams tokens.", "How does streaming with curl work?")),
    Fact("from huggingface_hub import InferenceClient\nclient = InferenceClient(\"http://localhost:3000\")\nfor token in client.text_generation(\"What is Penstock?\", stream=True):\n    print(token, end=\"\")",
         ("How do I stream with huggingface_hub?", "How do I stream with InferenceClient?", "Show me an InferenceClient example.", "How do I use InferenceClient?", "Streaming with InferenceClient?", "How do I use huggingface_hub with Penstock?", "Give me Python code for huggingface_hub.", "Show me how to stream with huggingface_hub.", "Can I use huggingface_hub?", "How can I stream tokens with InferenceClient?", "How does streaming with huggingface_hub work?", "Write code that uses InferenceClient.", "I want to stream with huggingface_hub.", "Does InferenceClient work?", "How do I call Penstock with InferenceClient?")),
    Fact("from openai import OpenAI\nclient = OpenAI(base_url=\"http://localhost:3000/v1\", api_key=\"unused\")\nmessages = [{\"role\": \"user\", \"content\": \"What is Penstock?\"}]\nfor chunk in client.chat.completions.create(model=\"tgi\", messages=messages, stream=True):\n    print(chunk.choices[0].delta.content or \"\", end=\"\")",
         ("How do I stream with the OpenAI client?", "How do I use the OpenAI client?", "Show me an OpenAI example.", "How do I stream with openai?", "Can I use the OpenAI client?", "Does the OpenAI client work?", "Show me how to use the openai package.", "Streaming with the OpenAI client?", "Give me Python code for the OpenAI client.", "How can I stream with the openai package?", "How does the OpenAI client work with Penstock?", "I want to use the OpenAI client.", "Write code that uses the OpenAI client.", "How do I connect the OpenAI client?", "How do I call Penstock with openai?")),
    Fact("Send POST /generate_stream, or POST /v1/chat/completions with \"stream\": true. Tokens come as server-sent events.",
         ("How do I stream?", "How do I stream tokens?", "How does streaming work?", "Can Penstock stream?", "How can I get a stream?", "Which endpoint streams?", "Streaming?", "I want a stream of tokens.", "How do I get tokens one by one?", "Does Penstock support streaming?")),
    Fact("The worker is started again and every stream goes on where it was, without a lost or doubled token.",
         ("What happens when a worker dies?", "What happens when a worker crashes?", "What if I kill the worker?", "Does a stream survive a dead worker?", "What happens to my stream when the worker dies?", "What does Penstock do when a worker dies?", "Is a stream lost when a worker crashes?", "What if a worker crashes?", "Can I kill the worker?", "The worker died. What now?")),
    Fact("The router is written in Rust. It owns the requests: HTTP, tokens, queue and batches.",
         ("What is the router?", "What does the router do?", "Explain the router.", "In which language is the router written?", "What is the router for?", "Tell me about the router.", "What language is the router written in?", "Router?", "Describe the router.", "What job does the router have?")),
    Fact("The worker is written in Python. It holds the model and runs one step plan at a time.",
         ("What is a worker?", "What does the worker do?", "Explain the worker.", "In which language is the worker written?", "What is the worker for?", "Tell me about the worker.", "What language is the worker written in?", "Worker?", "Describe the worker.", "What job does the worker have?")),
    Fact("The launcher starts the worker and the router, watches them, and restarts a dead worker.",
         ("What is the launcher?", "What does the launcher do?", "Explain the launcher.", "What is the launcher for?", "Tell me about the launcher.", "Launcher?", "Describe the launcher.", "Who starts the worker?", "Who restarts a dead worker?", "What job does the launcher have?")),
    Fact("A penstock is the pipe and gate that feed water to a turbine: it decides how much flows.",
         ("What does the word penstock mean?", "What does the name mean?", "Why is it called Penstock?", "Where does the name Penstock come from?", "What does the name Penstock mean?", "Why this name?", "What is a penstock in a dam?", "Why is the server called Penstock?", "Explain the name Penstock.", "What does penstock mean?")),
    Fact("I am the tiny model that ships with Penstock. I can answer questions about Penstock and do small tasks with words, numbers, JSON and tools.",
         ("Who are you?", "What are you?", "What is your name?", "What can you do?", "What model is this?", "Which model are you?", "Tell me about yourself.", "Are you a language model?", "What do you know?", "Who am I talking to?", "Introduce yourself.", "What are you able to do?", "Are you a person?", "How can you help me?", "What kind of model are you?")),
    Fact("I have about six million parameters. That is tiny.",
         ("How big are you?", "How many parameters do you have?", "How large is the tiny model?", "What is your size?", "How many parameters has the tiny model?", "Are you a big model?", "How small are you?", "Tell me your size.", "What size is this model?", "How many parameters are in this model?")),
    Fact("Llama and models of the same shape, such as TinyLlama and SmolLM, from safetensors files.",
         ("Which models can Penstock serve?", "Which models are supported?", "What models work?", "Does Penstock support Llama?", "What kinds of models can be served?", "Which architectures are supported?", "Can Penstock serve Llama?", "What models does Penstock support?", "Is Llama supported?", "Which model families work?")),
    Fact("Penstock runs on a CPU. The same code is made for NVIDIA GPUs too.",
         ("Do I need a GPU?", "Does Penstock run on a CPU?", "Can I run Penstock without a GPU?", "Does it run on GPUs?", "Which hardware does Penstock need?", "Does it work on a CPU?", "Can Penstock use a GPU?", "Is a GPU needed?", "What hardware can I use?", "Will it run on my CPU?")),
    Fact("It means that the queue is full. Wait as long as Retry-After says, then try again.",
         ("What does status 429 mean?", "Why do I get 429?", "What is a 429 error?", "I get status 429. What is wrong?", "What does 429 mean?", "The server answers 429. Why?", "What should I do about 429?", "Status 429?", "How do I handle 429?", "What is wrong when I get a 429?")),
    Fact("It means that the server is loading, recovering or stopping. The body says which.",
         ("What does status 503 mean?", "Why do I get 503?", "What is a 503 error?", "I get status 503. What is wrong?", "What does 503 mean?", "The server answers 503. Why?", "What should I do about 503?", "Status 503?", "How do I handle 503?", "What is wrong when I get a 503?")),
    Fact("It means that the request is not valid. The error names the field and the limit.",
         ("What does status 422 mean?", "Why do I get 422?", "What is a 422 error?", "I get status 422. What is wrong?", "What does 422 mean?", "The server answers 422. Why?", "What should I do about 422?", "Status 422?", "How do I handle 422?", "What is wrong when I get a 422?")),
    Fact("Send SIGTERM. Running requests finish within --shutdown-timeout; a second signal stops at once.",
         ("How do I stop Penstock?", "How do I stop the server?", "How can I shut Penstock down?", "What does SIGTERM do?", "How do I shut the server down?", "How does Penstock stop?", "What happens on SIGTERM?", "How do I end the server?", "I want to stop the server.", "What is the right way to stop Penstock?")),
    Fact("Set the variable HF_TOKEN to your Hugging Face token.",
         ("How do I serve a private model?", "How do I serve a gated model?", "What is HF_TOKEN for?", "Where do I put my Hugging Face token?", "How do I use my Hugging Face token?", "HF_TOKEN?", "What does HF_TOKEN do?", "How do I log in to the hub?", "My model is private. How do I serve it?", "How do I give Penstock my token?")),
    Fact("Set HF_HUB_OFFLINE=1. Then only files in the cache are used.",
         ("How do I use Penstock offline?", "What is HF_HUB_OFFLINE for?", "What does HF_HUB_OFFLINE do?", "HF_HUB_OFFLINE?", "Can Penstock work offline?", "How do I run without internet?", "How do I serve a model offline?", "Does Penstock work without internet?", "I have no internet. What do I do?", "How do I stay offline?")),
    Fact("Run: penstock --help",
         ("How do I see all flags?", "Which flags are there?", "Show me all flags.", "What flags does Penstock have?", "How do I get help?", "List the flags.", "Where can I find the flags?", "Is there a list of flags?", "What options are there?", "How do I find all flags?")),
    Fact("docker run -p 3000:80 -v $PWD/data:/data penstock --model-id <model>",
         ("How do I use Docker?", "What is the docker command?", "How do I run Penstock in Docker?", "Show me the docker run line.", "Can I run Penstock in a container?", "How do I start the container?", "Docker?", "Is there a Docker image?", "Which docker command do I need?", "I want to run Penstock with Docker.")),
    Fact("max_new_tokens limits the tokens of the answer.",
         ("What is max_new_tokens?", "What does max_new_tokens do?", "How do I limit the length of the answer?", "max_new_tokens?", "Explain max_new_tokens.", "How do I get a shorter answer?", "Which parameter limits the answer?", "How do I limit the number of new tokens?", "What is max_new_tokens for?", "Which parameter sets the length of the answer?")),
    Fact("temperature sets how random the answer is. Low values are safer.",
         ("What is temperature?", "What does temperature do?", "Explain temperature.", "temperature?", "How do I make the answer less random?", "What does the parameter temperature do?", "How do I make answers more random?", "What is the parameter temperature for?", "Which parameter makes the answer random?", "What is temperature good for?")),
    Fact("top_p keeps only the most likely tokens, up to this probability in sum.",
         ("What is top_p?", "What does top_p do?", "Explain top_p.", "top_p?", "What does the parameter top_p do?", "What is top_p for?", "When do I use top_p?", "What is the parameter top_p for?", "How do I use top_p?", "What is top_p good for?")),
    Fact("seed makes sampling repeatable: the same seed gives the same text.",
         ("What is seed?", "What does seed do?", "Explain seed.", "seed?", "How do I get the same text again?", "What does the parameter seed do?", "What is the seed for?", "How do I make sampling repeatable?", "Which parameter makes the text repeatable?", "What is a seed good for?")),
    Fact("stop is a list of strings. The answer ends when one of them appears.",
         ("What is stop?", "What does the parameter stop do?", "How do I use stop strings?", "stop?", "What are stop strings?", "How do I end the answer at a word?", "Explain stop strings.", "What is the parameter stop for?", "How do stop sequences work?", "What are stop strings good for?")),
    Fact("details adds the tokens, their log probabilities and the finish reason to the answer.",
         ("What is details?", "What does details do?", "Explain details.", "How do I get log probabilities?", "What does the parameter details do?", "How do I see the finish reason?", "How do I get the tokens of the answer?", "details?", "What is details for?", "What is the parameter details for?")),
    Fact("It finds prompts that begin alike and computes the shared part once.",
         ("What is the prefix cache?", "What does the prefix cache do?", "Explain the prefix cache.", "How does the prefix cache work?", "What is prefix caching?", "What is the prefix cache for?", "Prefix cache?", "Tell me about the prefix cache.", "Describe the prefix cache.", "What is prefix caching good for?")),
    Fact("Penstock is free software under the Apache 2.0 license.",
         ("What is the license?", "Which license does Penstock have?", "Is Penstock free?", "Is Penstock open source?", "License?", "Under which license is Penstock?", "May I use Penstock at work?", "Is it free software?", "What license is it under?", "Does Penstock cost money?")),
    Fact("Yes. Clients of Text Generation Inference work as they are, and so do its flags.",
         ("Can Penstock replace TGI?", "Is Penstock compatible with TGI?", "I used TGI. Can I use Penstock?", "Does Penstock replace Text Generation Inference?", "Do TGI clients work?", "Does my TGI client work?", "Is it compatible with Text Generation Inference?", "Can I switch from TGI?", "Is Penstock like TGI?", "Do my TGI flags work?")),
)  # fmt: skip


def pick(rng: random.Random, patterns: tuple[str, ...], split: Split) -> str:
    """A pattern of this split: every fifth one is held out."""
    return rng.choice([p for index, p in enumerate(patterns) if (index % 5 == 4) == (split == "eval")])


def flag_answer(name: str) -> str:
    return f"--{name} {FLAGS[name][0]}."


def _other_flag(rng: random.Random, split: Split) -> str:
    """A flag that is not in FLAGS: of TGI, or invented."""
    if rng.random() < 0.5:
        return rng.choice([name for name in _OTHER_FLAGS if held_out(name, 4) == (split == "eval")])
    parts = [*draw_list(rng, THINGS, split, rng.randint(1, 2), False), *rng.choice(((), ("max",), ("size",)))]
    rng.shuffle(parts)
    return "-".join(parts)


def endpoint_answer(path: str) -> str:
    method, (text,) = ENDPOINTS[path]
    return f"{method} {path} {text}."


def ask(rng: random.Random, split: Split) -> tuple[str, str]:
    """A question about Penstock and its answer."""
    kind = rng.random()
    if kind < 0.03:
        name = _other_flag(rng, split)
        return pick(rng, FLAG_PATTERNS, split).format(flag=f"--{name}"), OTHER_FLAG_ANSWER
    if kind < 0.25:
        name = rng.choice(sorted(FLAGS))
        shown = f"--{name}" if split == "eval" or rng.random() < 0.85 else name
        return pick(rng, FLAG_PATTERNS, split).format(flag=shown), flag_answer(name)
    if kind < 0.45:
        name = rng.choice(sorted(FLAGS))
        purpose = rng.choice(FLAGS[name][1])
        return pick(rng, PURPOSE_PATTERNS, split).format(purpose=purpose), flag_answer(name)
    if kind < 0.6:
        path = rng.choice(sorted(ENDPOINTS))
        question = pick(rng, ENDPOINT_PATTERNS, split).format(path=path, method=ENDPOINTS[path][0])
        return question, endpoint_answer(path)
    fact = rng.choice(FACTS)
    return pick(rng, fact.questions, split), fact.answer
