// npm install ai @ai-sdk/openai-compatible

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const penstock = createOpenAICompatible({ name: "penstock", baseURL: "http://localhost:3000/v1", apiKey: "unused" });
const { textStream } = streamText({ model: penstock("tgi"), prompt: "add 3 and 4", maxOutputTokens: 10 });
for await (const text of textStream) process.stdout.write(text);
