// npm install openai

import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://localhost:3000/v1", apiKey: "unused" });
const stream = await client.chat.completions.create({
  model: "tgi",
  messages: [{ role: "user", content: "add 3 and 4" }],
  max_tokens: 10,
  stream: true,
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? "");
