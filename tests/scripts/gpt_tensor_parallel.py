"""Trains a small GPT with tensor parallelism, its communication buffers in a pool registered with NCCL.

    torchrun --nproc-per-node=2 gpt_tensor_parallel.py [--fixed-backward]

Without --fixed-backward the pool is in use around the whole step, which looks right and is not: it holds for the
thread that enters it, and autograd runs backward on another one (https://github.com/pytorch/pytorch/issues/167353).
With it, each autograd function enters the pool itself, where it makes the buffer that is reduced.
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Pool:
    """A memory pool whose segments are windows of NCCL; on the CPU there is none, and nothing happens."""

    def __init__(self, device: torch.device, inside_functions: bool) -> None:
        self.device, self.inside_functions = device, inside_functions
        self.pool = make_pool(device) if device.type == "cuda" else None

    def _use(self, wanted: bool):
        if self.pool is None or not wanted:
            return contextlib.nullcontext()
        return torch.cuda.use_mem_pool(self.pool, self.device)

    def around_step(self):
        return self._use(not self.inside_functions)

    def around_buffer(self):
        return self._use(self.inside_functions)

    def register(self) -> None:
        if self.pool is not None:
            backend(self.device).register_mem_pool(self.pool, symm=True)

    def deregister(self) -> None:
        if self.pool is not None:
            backend(self.device).deregister_mem_pool(self.pool)


def backend(device: torch.device):
    return dist.group.WORLD._get_backend(device)


def make_pool(device: torch.device) -> torch.cuda.MemPool:
    try:
        return torch.cuda.MemPool(backend(device).mem_allocator)
    except RuntimeError:  # no multicast on this GPU
        import torch.distributed._symmetric_memory as symmetric_memory

        symmetric_memory.set_backend("NCCL")
        return symmetric_memory.get_mem_pool(device)


class ReduceFromParallel(torch.autograd.Function):
    """Sums over the ranks in forward; the gradient passes through. After a row-parallel layer."""

    @staticmethod
    def forward(ctx, tensor, pool):
        if pool.inside_functions:
            with pool.around_buffer():
                tensor = tensor.clone()
        else:
            ctx.mark_dirty(tensor)
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class CopyToParallel(torch.autograd.Function):
    """Passes through in forward; sums the gradient over the ranks. Before a column-parallel layer."""

    @staticmethod
    def forward(ctx, tensor, pool):
        ctx.pool = pool
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        with ctx.pool.around_buffer():
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient, None


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, ranks: int, pool: Pool) -> None:
        super().__init__()
        self.heads, self.pool = heads // ranks, pool
        self.qkv = nn.Linear(hidden, 3 * hidden // ranks, bias=False)
        self.out = nn.Linear(hidden // ranks, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(CopyToParallel.apply(x, self.pool)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return ReduceFromParallel.apply(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)), self.pool)


class Mlp(nn.Module):
    def __init__(self, hidden: int, ranks: int, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.up = nn.Linear(hidden, 4 * hidden // ranks, bias=False)
        self.down = nn.Linear(4 * hidden // ranks, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ReduceFromParallel.apply(
            self.down(functional.gelu(self.up(CopyToParallel.apply(x, self.pool)))), self.pool
        )


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, ranks: int, pool: Pool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.mlp = Attention(hidden, heads, ranks, pool), Mlp(hidden, ranks, pool)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, options: argparse.Namespace, ranks: int, pool: Pool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.hidden)
        self.places = nn.Embedding(options.sequence, options.hidden)
        self.blocks = nn.Sequential(*(Block(options.hidden, options.heads, ranks, pool) for _ in range(options.layers)))
        self.norm = nn.LayerNorm(options.hidden)
        self.head = nn.Linear(options.hidden, options.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixed-backward", action="store_true", help="enter the pool inside the autograd functions")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=1024)
    return parser.parse_args()


def sample(options: argparse.Namespace, device: torch.device) -> torch.Tensor:
    """Sequences that count upwards from a random token: something to be learnt in a few steps."""
    first = torch.randint(options.vocabulary, (options.batch, 1), device=device)
    return (first + torch.arange(options.sequence + 1, device=device)) % options.vocabulary


def train(options: argparse.Namespace, device: torch.device) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pool = Pool(device, inside_functions=options.fixed_backward)
    torch.manual_seed(0)  # the same data, and the same replicated parameters, on every rank
    model = Gpt(options, ranks, pool).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        tokens = sample(options, device)
        with pool.around_step():
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            # NCCL makes windows of the segments that are there, so the first step comes before.
            torch.cuda.synchronize() if device.type == "cuda" else None
            pool.register()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    pool.deregister()


def main() -> None:
    options = parse()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
