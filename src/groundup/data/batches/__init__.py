"""Turn shards into batches: which windows each step reads (`order`), and copying to the device.

Empty, so that `order` can be imported without torch.
"""
