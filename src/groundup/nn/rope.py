"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.errors import ConfigError


class RotaryEmbedding(nn.Module):
    """Rotates each pair (x_2k, x_2k+1) of a vector at position i by i · theta^(-2k / d_k):

        y_2k   = x_2k cos - x_2k+1 sin
        y_2k+1 = x_2k sin + x_2k+1 cos

    so that the dot product of a query and a key depends only on their distance. The cosines and
    sines of positions 0 to max_seq_len - 1 are non-persistent buffers.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        theta: float,
        d_k: int,
        max_seq_len: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.theta = theta
        self.d_k = d_k
        self.max_seq_len = max_seq_len
        cos, sin = self._tables(device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _tables(self, device: torch.device | str | None) -> tuple[Tensor, Tensor]:
        if torch.device(device or "cpu").type == "meta":
            nothing = torch.empty(self.max_seq_len, self.d_k // 2, device=device)
            return nothing, nothing.clone()
        # In float64, because position times frequency loses precision in float32 for long contexts.
        exponents = torch.arange(0, self.d_k, 2, dtype=torch.float64) / self.d_k
        positions = torch.arange(self.max_seq_len, dtype=torch.float64)
        angles = positions[:, None] * self.theta ** -exponents[None, :]
        return angles.cos().float().to(device), angles.sin().float().to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Recompute the tables whenever the module is moved or cast: half precision would blur
        positions, and tables on the meta device are empty."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.cos, self.sin = self._tables(self.cos.device)
        return self

    def forward(
        self,
        x: Float[Tensor, "... seq d_k"],
        token_positions: Int[Tensor, "... seq"] | None = None,
    ) -> Float[Tensor, "... seq d_k"]:
        """token_positions: 0, 1, … along the sequence by default."""
        if token_positions is None:
            self.check_length(x.shape[-2])
            cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        else:
            cos, sin = self.cos[token_positions], self.sin[token_positions]
        even, odd = x.reshape(*x.shape[:-1], self.d_k // 2, 2).unbind(-1)
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return rotated.flatten(-2).to(x.dtype)

    def check_length(self, seq: int) -> None:
        """Raise ConfigError for sequences longer than the tables: a one-row table would broadcast
        to any length."""
        if seq > self.max_seq_len:
            raise ConfigError(
                f"{seq} positions are more than the {self.max_seq_len} of the RoPE tables: "
                f"give fewer, or a larger max_seq_len"
            )
