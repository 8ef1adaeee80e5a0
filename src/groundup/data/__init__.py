"""Turn files into shards and shards into batches; the built-in sample corpus.

Names are imported on first use, so that handling text does not import torch.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.data.batches.loader import get_batch as get_batch
    from groundup.data.shards import open_shards as open_shards

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
