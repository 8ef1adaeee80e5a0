"""Triton kernels of the training step, for half precision on CUDA."""
