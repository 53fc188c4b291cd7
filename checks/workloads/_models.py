"""Two small models with their references: blocks sharded over the ranks, and layers that every rank has whole.

Weights and inputs are drawn in float64, the same on every rank, and rounded to the dtype at work. The reference is
the unsharded model in float64 with those rounded numbers, so that only the rounding of the arithmetic is left.
"""

from __future__ import annotations

import math
from itertools import count

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..case import Case

HIDDEN = 512
COLUMNS = 256


def floating(dtype: str) -> torch.dtype:
    """Return torch's floating type called `dtype`; raises ValueError where there is none."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is no floating type of torch, which the backward phase needs")
    return kind


def normal(seed: int, *shape: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tensor:
    """Return normally distributed numbers of deviation `scale`, the same on every rank for the same seed."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return (numbers * scale).to(device, dtype)


def check(case: Case, got: Tensor, expected: Tensor) -> None:
    """Compare `got` with the float64 `expected`, to some roundings at its largest magnitude.

    4 of its own dtype, since a matrix product rounds each result once and a few in a row add up; and 64 of
    float32, in which the products are summed. What a collective left out, added twice or mixed up is off by the
    magnitude itself.
    """
    roundings = 4 * torch.finfo(got.dtype).eps + 64 * torch.finfo(torch.float32).eps
    case.check(got, expected, tolerance=roundings * float(expected.abs().max()))


def leaf(tensor: Tensor) -> Tensor:
    """Return a copy of `tensor` that gets a gradient."""
    return tensor.detach().clone().requires_grad_()


class ShardedBlocks:
    """Feed-forward blocks x + down(gelu(up(x))), with `up` split by columns over the ranks and `down` by rows.

    `inputs` and `gradient` (of the output) are the same on every rank, of shape (tokens, HIDDEN) and `size`
    bytes: that is what the ranks all-reduce, in forward and in backward. `weights` has this rank's part of `up`
    and `down`, of shapes (COLUMNS, HIDDEN) and (HIDDEN, COLUMNS), for each layer.
    """

    def __init__(self, case: Case, *, dtype: str, size: int, layers: int) -> None:
        self.case, kind = case, floating(dtype)
        tokens, columns = max(1, size // (HIDDEN * kind.itemsize)), COLUMNS * case.world_size
        seeds = count()

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return normal(next(seeds), *shape, dtype=kind, device=case.device, scale=scale)

        self.gradient = draw(tokens, HIDDEN)
        self.inputs = leaf(draw(tokens, HIDDEN))
        self.whole = [
            (draw(columns, HIDDEN, scale=HIDDEN**-0.5), draw(HIDDEN, columns, scale=columns**-0.5))
            for _ in range(layers)
        ]
        self.weights = [
            (leaf(up.chunk(case.world_size, 0)[case.rank]), leaf(down.chunk(case.world_size, 1)[case.rank]))
            for up, down in self.whole
        ]

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that get a gradient: the input, then `up` and `down` of each layer."""
        return [self.inputs, *(weight for layer in self.weights for weight in layer)]

    def forget_gradients(self) -> None:
        """Drop the gradients of the last step, so that the next one takes their memory."""
        for tensor in self.leaves:
            tensor.grad = None

    def check(self, output: Tensor, gradients: list[Tensor]) -> None:
        """Compare `output` and the `gradients` of `leaves` with the unsharded model in float64."""
        inputs = leaf(self.inputs.to(torch.float64))
        whole = [(leaf(up.to(torch.float64)), leaf(down.to(torch.float64))) for up, down in self.whole]
        expected = inputs
        for up, down in whole:
            expected = expected + functional.linear(functional.gelu(functional.linear(expected, up)), down)
        expected.backward(self.gradient.to(torch.float64))
        check(self.case, output, expected.detach())
        ranks, rank = self.case.world_size, self.case.rank
        references = [inputs.grad]
        for up, down in whole:
            references += [up.grad.chunk(ranks, 0)[rank], down.grad.chunk(ranks, 1)[rank]]
        for got, reference in zip(gradients, references, strict=True):
            check(self.case, got, reference)


class Layers(torch.nn.Module):
    """Square linear layers with gelu between them, of `size` bytes each, to be trained on other data on each rank.

    The weights are the same on every rank. `inputs` and `gradient` (of the output) are this rank's, of shape
    (BATCH, width).
    """

    BATCH = 32

    def __init__(self, case: Case, *, dtype: str, size: int, layers: int) -> None:
        super().__init__()
        self.kind, self.device = floating(dtype), case.device
        # A multiple of 128 divides evenly over as many ranks.
        self.width = max(128, math.isqrt(size // self.kind.itemsize) // 128 * 128)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(self.width, self.width, bias=False, device="meta", dtype=self.kind) for _ in range(layers)
        ).to_empty(device=case.device)
        for number, layer in enumerate(self.layers):
            layer.weight.data.copy_(self._draw(number, self.width, scale=self.width**-0.5))
        self.inputs, self.gradient = self.data_of(case.rank)

    def _draw(self, seed: int, rows: int, scale: float = 1.0) -> Tensor:
        return normal(seed, rows, self.width, dtype=self.kind, device=self.device, scale=scale)

    def data_of(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return the input of `rank` and the gradient of its output."""
        return self._draw(1000 + 2 * rank, self.BATCH), self._draw(1001 + 2 * rank, self.BATCH)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output for `inputs`, of the same shape."""
        for layer in self.layers[:-1]:
            inputs = functional.gelu(layer(inputs))
        return self.layers[-1](inputs)

    def references(self, ranks: int) -> list[Tensor]:
        """Return each weight's gradient in float64, averaged over the data of all ranks, as data parallelism does.

        Call it before the layers are sharded.
        """
        weights = [leaf(layer.weight.to(torch.float64)) for layer in self.layers]
        for rank in range(ranks):
            output, gradient = (tensor.to(torch.float64) for tensor in self.data_of(rank))
            for weight in weights[:-1]:
                output = functional.gelu(functional.linear(output, weight))
            functional.linear(output, weights[-1]).backward(gradient / ranks)
        return [weight.grad for weight in weights]
