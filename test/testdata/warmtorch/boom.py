"""Rank 1 fails in a function under record, the other waits to be stopped."""
import os
import time

import torch
from torch.distributed.elastic.multiprocessing.errors import record


def divide(numerator, rank):
    return torch.full((2,), numerator).tolist()[rank] // (1 - rank)


@record
def main():
    divide(4, int(os.environ["RANK"]))
    time.sleep(120)


if __name__ == "__main__":
    main()
