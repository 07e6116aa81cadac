"""The three static baselines of the PagedAttention paper: reserve the whole run on arrival, never change it."""

from __future__ import annotations

from labkit.errors import LabError
from labkit.kv.base import positive
from labkit.kv.contiguous import ContiguousKVCache
from labkit.memory import Allocator


class ReserveMaxKVCache(ContiguousKVCache):
    """Everyone gets `max_model_len` slots (without one: the most that the request itself allows)."""

    name = "reserve-max"

    def __init__(self, allocator: Allocator, bytes_per_token: int, *, max_model_len: int | None = None):
        super().__init__(allocator, bytes_per_token)
        self.max_model_len = None if max_model_len is None else positive(max_model_len, "max_model_len")

    def reservation(self, num_tokens: int, max_tokens: int, final_tokens: int | None) -> int:
        if self.max_model_len is None:
            return max(num_tokens, max_tokens)
        if max(num_tokens, max_tokens) > self.max_model_len:
            raise LabError(
                f"max_tokens is {max(num_tokens, max_tokens)}; reserve-max holds at most max_model_len={self.max_model_len}"
            )
        return self.max_model_len

    def most_blocks(self, num_tokens: int, max_tokens: int) -> int:
        return self.reservation(num_tokens, max_tokens, None)


class ReserveOracleKVCache(ContiguousKVCache):
    """Exactly the real final length, which `admit` must be told as `final_tokens`."""

    name = "reserve-oracle"

    def reservation(self, num_tokens: int, max_tokens: int, final_tokens: int | None) -> int:
        return max(num_tokens, self._final(final_tokens))

    def most_blocks(self, num_tokens: int, max_tokens: int) -> int:
        return num_tokens

    def _final(self, final_tokens: int | None) -> int:
        if final_tokens is None:
            raise LabError(
                f"{self.name} needs final_tokens at admission: it stands for a system that knows it"
            )
        return final_tokens


class ReservePow2KVCache(ReserveOracleKVCache):
    """The real output, rounded up to a power of two, after the tokens that are known on arrival: at most twice too
    much for the output ("if the true output length is 25, it reserves 32 positions", section 6.1)."""

    name = "reserve-pow2"

    def reservation(self, num_tokens: int, max_tokens: int, final_tokens: int | None) -> int:
        num_output = self._final(final_tokens) - num_tokens
        return num_tokens + (1 << (num_output - 1).bit_length() if num_output > 0 else 0)
