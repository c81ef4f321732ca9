curl -sSN localhost:3000/generate_stream -H 'content-type: application/json' \
  -d '{"inputs": "add 3 and 4", "parameters": {"max_new_tokens": 10}}'
curl -sS localhost:3000/v1/chat/completions -H 'content-type: application/json' \
  -d '{"messages": [{"role": "user", "content": "add 3 and 4"}], "max_tokens": 10}'
