"""Trains, and meets the trouble that its argument names."""

import sys
import time

import torch
import torch.distributed as dist

trouble = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(number):
    model(torch.ones(1, 4)).sum().backward()
    if trouble == "raises" and number == 3 and rank == 1:
        raise ValueError("the loss is not finite")
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    if trouble == "hangs" and number == 3:
        time.sleep(600)
    if trouble != "no-optimizer":
        optimizer.step()
    optimizer.zero_grad()
    print(f"step {number} of rank {rank}", flush=True)


if trouble == "steps-in-backward":
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: torch.optim.SGD([parameter], lr=0.1).step())
    trouble = "no-optimizer"
if trouble == "own-profiler":
    torch.profiler.profile().start()

number = 0
while number < (3 if trouble in ("short", "status", "no-optimizer") else 50):
    try:
        step(number)
    except SystemExit:
        print("nobody ends this script by SystemExit", flush=True)
    number += 1
dist.destroy_process_group()
if trouble == "status":
    sys.exit(5)
