"""Tells what it sees of the world, trains, and ends by sys.exit; with packages of its own called as this tool's are."""

import argparse
import json
import multiprocessing
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

BEFORE_TORCH = "torch" not in sys.modules

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import checks  # noqa: E402
import runner  # noqa: E402
import tests  # noqa: E402


@dataclass
class Item:
    number: int


def double(item):
    return Item(2 * item.number)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def facts():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [Item(21)])[0]
    return {
        "argv": sys.argv, "file": __file__, "name": __name__, "path": sys.path[0], "cwd": str(Path.cwd()),
        "variable": os.environ.get("OF_THE_CALLER"), "owners": [checks.OWNER, runner.OWNER, tests.OWNER],
        "before_torch": BEFORE_TORCH, "main_is_this": sys.modules["__main__"].Item is Item,
        "pickled": pickle.loads(pickle.dumps(Item(1))) == Item(1), "spawned": doubled == Item(42),
        "annotations": Item.__annotations__["number"] is int,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--log", default="torchrun has options that begin so")
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("rest", nargs="*")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        options.facts.write_text(json.dumps(facts()))
    model = torch.nn.Linear(4, 1)
    first, second = (torch.optim.SGD([part], lr=1e-9) for part in model.parameters())
    loader = iter(torch.utils.data.DataLoader(Numbers(), batch_size=1, num_workers=1))
    for step in range(options.steps):
        for _ in range(2):  # accumulates
            model(next(loader)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        first.step()
        second.step()
        model.zero_grad()
        print(f"step {step} of rank {dist.get_rank()}", flush=True)
    dist.destroy_process_group()
    sys.exit(options.status)


if __name__ == "__main__":
    main()
