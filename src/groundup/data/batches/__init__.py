"""Shards to batches: the windows that a step takes (`order`), and their way to the device.

Nothing is imported here, so that `order` costs no torch.
"""
