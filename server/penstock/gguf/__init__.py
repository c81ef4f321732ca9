"""Models in GGUF, llama.cpp's format: one file, or several, with the numbers, the configuration and the tokenizer.

`unpack` makes a model's folder of one, which all others read as any folder: config.json (`configuration`), tokenizer.json and
tokenizer_config.json (`tokenizer`), and links to the files. `container` reads a file's header, `architectures` says which tensor of the file each of a
recipe's is made of (`layout`), and `blocks` what the numbers of each type stand for. Must not import torch.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What each model's converter does to its tensors: llama.cpp's `conversion`.
"""
