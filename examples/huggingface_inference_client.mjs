// npm install @huggingface/inference

import { InferenceClient } from "@huggingface/inference";

const client = new InferenceClient().endpoint("http://localhost:3000");
const answer = await client.chatCompletion({ messages: [{ role: "user", content: "add 3 and 4" }], max_tokens: 10 });
console.log(answer.choices[0].message.content);
