"""A step of a tiny Llama under DDP, then torch.compile of a layer; it is run with -m."""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

from .config import CONFIG

SOAK = os.environ.get("TESTS_SOAK") == "1"


def show(text):
    os.write(1, b"rank %s: %s\n" % (os.environ["RANK"].encode(), text.encode()))


def llama():
    torch.manual_seed(7)
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def step(model, rank):
    """Two losses with a step of the optimizer between them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(CONFIG["vocab_size"], (2, 16), generator=torch.Generator().manual_seed(rank))
    losses = []
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compiled(rank):
    """Output and gradient of a compiled layer. Under make soak the compiler is torch's inductor: rank 0 compiles with its processes,
    and rank 1 without them what it does not find in the cache of rank 0. Else its graphs are traced, parted as is done fastest, and run
    as they are."""
    if rank == 1 and SOAK:
        from torch._inductor import config
        config.compile_threads = 1
        dist.barrier()
    torch.manual_seed(rank)
    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
    x = torch.randn(8, 16)
    y = torch.compile(layer, backend="inductor" if SOAK else "aot_eager_default_partitioner")(x)
    y.sum().backward()
    assert torch.allclose(y, layer(x), atol=1e-5)
    if rank == 0 and SOAK:
        dist.barrier()
    return y.sum().item(), layer[0].weight.grad.sum().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    show("%s is %s of %s, arguments %r" % (os.path.basename(__file__), __spec__.name, __package__, sys.argv[1:]))
    show("transformers under DDP %r" % step(DistributedDataParallel(llama()), rank))
    show("torch.compile %r" % (compiled(rank),))
    dist.barrier()
    dist.destroy_process_group()
    show("finished")


if __name__ == "__main__":
    main()
