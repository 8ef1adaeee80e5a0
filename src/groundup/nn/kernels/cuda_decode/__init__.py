"""Triton kernels for decoding, one token per row, in half precision on CUDA."""
