"""Operations of the package as Triton kernels, for GPUs. Each has its definition, in plain torch, in the module of its name one folder up,
which comes here where `choice.usable` says so. Tested without a GPU in Triton's interpreter. Only what a GPU needs imports it.
"""
