"""`TensorExecutor`: the decided step with real keys and values.

    memory = TensorMemory(256 * MIB)
    kv = make_kv_cache("paged", capacity_tokens=8192, bytes_per_token=TensorExecutor.kv_spec(config).bytes_per_token)
    executor = TensorExecutor(config, kv, memory, rng=np.random.default_rng(0))
    executor.add_prompt("a", [3, 1, 4, 1, 5])
    result = executor.execute(plan)          # plan.chunks from a scheduler with record_chunks=True

The scheduler decides, the manager places, the executor executes: it applies the plan's moves, writes the keys and values
of every chunk to the slots of its block table, attends through the kernels, and samples greedily. All of a layer's writes
come before its reads, so a block that two requests of one step share is whole when it is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from labkit.errors import LabError
from labkit.kv import KVCacheManager
from labkit.kv.spec import KVSpec
from labkit.memory import Span
from labkit.serving.base import Executor, StepPlan, StepResult
from labkit.serving.kv_pool import KVPool
from labkit.serving.llama import Llama, Weights, random_weights
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.mla import absorb, expand
from labkit.serving.step_batch import StepBatch
from labkit.serving.tensor_memory import TensorMemory
from labkit.serving.weights_in_memory import place_weights
from labkit.workload.base import RequestSpec


class TensorExecutor(Executor):
    """rng        draws the weights, unless `weights` are given
    kv_dtype   "fp32", "bf16" or "fp16" as the model computes in, or "int8", "fp8"
    forced     request id -> output tokens to return instead of the sampled ones (to follow a load's own outputs)
    validate   let every kernel check ids, slots and lengths (slower; for tests)
    """

    def __init__(
        self,
        config: LlamaConfig,
        kv: KVCacheManager,
        memory: TensorMemory,
        *,
        rng: np.random.Generator | None = None,
        weights: Weights | None = None,
        dtype: torch.dtype = torch.float32,
        kv_dtype: str | None = None,
        max_num_batched_tokens: int = 2048,
        forced: Mapping[str, Sequence[int]] | None = None,
        validate: bool = False,
    ):
        if (rng is None) == (weights is None):
            raise LabError("TensorExecutor: give either rng (random weights) or weights")
        if weights is None:
            assert rng is not None
            weights = random_weights(config, rng, dtype)
        self.config, self.kv, self.memory, self.validate = config, kv, memory, validate
        self.model = Llama(config, place_weights(weights, memory))
        self.pool = KVPool(kv, self.kv_spec(config, self.model.dtype, kv_dtype), memory)
        self.max_num_batched_tokens = max_num_batched_tokens
        shape = (max_num_batched_tokens, config.hidden_size)
        self._reduced = memory.new("communication", shape, self.model.dtype, "all-reduce buffer").tensor
        self.forced = forced
        self.known_ids: dict[str, list[int]] = {}
        self.num_prompt_tokens: dict[str, int] = {}
        self.num_steps = 0

    @staticmethod
    def kv_spec(
        config: LlamaConfig, dtype: torch.dtype = torch.float32, kv_dtype: str | None = None
    ) -> KVSpec:
        """The cache's shape; its `bytes_per_token` is what the KV manager must count."""
        names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
        if dtype not in names:
            raise LabError(f"the model computes in {dtype}; choose float32, bfloat16 or float16")
        kv_dtype = kv_dtype or names[dtype]
        if kv_dtype not in (names[dtype], "int8", "fp8"):
            raise LabError(
                f"KV dtype {kv_dtype} does not go with a {names[dtype]} model; choose {names[dtype]}, int8, fp8"
            )
        if config.mla is not None:
            return KVSpec.mla(config.num_layers, config.mla.latent_dim, config.mla.rope_dim, kv_dtype)
        return KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, kv_dtype)

    # --- what requests say ---------------------------------------------------------------------------------------------

    def add_prompt(self, request_id: str, token_ids: Iterable[int]) -> None:
        """Tokens that the request begins with. Raises `LabError` for one outside the vocabulary."""
        ids = [int(token) for token in token_ids]
        for index, token in enumerate(ids):
            if not 0 <= token < self.config.vocab_size:
                raise LabError(
                    f"request {request_id}: token {index} is {token}; the vocabulary has {self.config.vocab_size}"
                )
        if not ids:
            raise LabError(f"request {request_id} has an empty prompt")
        self.known_ids[request_id], self.num_prompt_tokens[request_id] = ids, len(ids)

    def add_requests(self, specs: Iterable[RequestSpec]) -> None:
        """Prompts of a load. Raises `LabError` where a request has only a length."""
        for spec in specs:
            if spec.prompt_token_ids is None:
                raise LabError(f"request {spec.request_id} has no prompt tokens; a tensor run needs them")
            self.add_prompt(spec.request_id, spec.prompt_token_ids)

    def outputs(self, request_id: str) -> list[int]:
        """Tokens sampled so far."""
        return self._known(request_id)[self.num_prompt_tokens[request_id] :]

    def forget(self, request_id: str) -> None:
        """A finished request's tokens are no longer needed."""
        self.known_ids.pop(request_id, None)
        self.num_prompt_tokens.pop(request_id, None)

    # --- one step ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        if plan.chunks is None:
            raise LabError("TensorExecutor needs plan.chunks: build the scheduler with record_chunks=True")
        if plan.swapped_bytes:
            raise LabError(
                "TensorExecutor does not swap: choose pressure recompute, or the cost model for preemption by swap"
            )
        self.num_steps += 1
        self.pool.move(plan.moves)
        tokens: dict[str, int] = {}
        if plan.chunks:
            num_tokens = sum(chunk.num_tokens for chunk in plan.chunks)
            if num_tokens > self.max_num_batched_tokens:
                raise LabError(
                    f"step {plan.step} has {num_tokens} tokens; max_num_batched_tokens is {self.max_num_batched_tokens}"
                )
            tokens = self._run(plan)
        return StepResult(time.perf_counter() - started, tokens)

    def layout(self) -> list[Span]:
        """The arena as a memory map, the KV pool as its manager sees it."""
        return self.memory.layout(self.pool.block, self.kv.layout())

    def _run(self, plan: StepPlan) -> dict[str, int]:
        assert plan.chunks is not None
        with ExitStack() as step:
            batch = StepBatch(plan.chunks, self._known, self.pool, self.memory, step, self.config.window)
            hidden = step.enter_context(
                self.memory.borrowed(
                    "activations", (batch.num_tokens, self.config.hidden_size), self.model.dtype, "hidden"
                )
            )

            def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                mla, weights = self.config.mla, self.model.weights.layers[layer]
                if mla is not None:
                    out = batch.attend_latent(
                        layer, absorb(weights, mla, q), k, mla.scale, mla.latent_dim, validate=self.validate
                    )
                    return expand(weights, out)
                return batch.attend(layer, q, k, v, self.config.head_dim**-0.5, validate=self.validate)

            self.model.forward(batch.token_ids, batch.positions, attend, self.memory, hidden, self._reduced)
            if not batch.sampling_ids:
                return {}
            logits = self.model.logits(hidden[batch.sampling_rows], self.memory)
        return self._sample(batch.sampling_ids, logits)

    def _sample(self, request_ids: Sequence[str], logits: torch.Tensor) -> dict[str, int]:
        """Greedy, or what the load says comes next."""
        tokens = {}
        for request_id, best in zip(request_ids, logits.argmax(-1).tolist()):
            known = self._known(request_id)
            if self.forced is not None:
                index = len(known) - self.num_prompt_tokens[request_id]
                best = self.forced[request_id][index]
            known.append(best)
            tokens[request_id] = best
        return tokens

    def _known(self, request_id: str) -> list[int]:
        try:
            return self.known_ids[request_id]
        except KeyError:
            raise LabError(f"request {request_id} has no prompt here; call add_prompt first") from None
