"""symmem-check: which collectives of a PyTorch training step ran on symmetric memory.

This half reads the evidence and judges it. It never imports torch, so that it works on a machine
without a GPU, from the same files. The half that makes the evidence is the sibling package `checks`.
"""

__version__ = "0.1.0"
