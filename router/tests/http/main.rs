//! The router as clients meet it: real connections to `run`, over mock workers and a tiny tokenizer.

mod adapters;
mod life;
mod metrics;
mod openai;
mod platforms;
mod reasoning;
mod refusals;
mod served;
mod streams;
mod tgi;
mod tool_calls;
