"""Triton kernels that generate text, one token a row, for half precision on CUDA."""
