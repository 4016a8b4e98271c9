"""Trains with Horovod while workers come and go. It ends when there is a file named stop."""
import os
import time

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    if hvd.rank() == 0:  # a new world begins here, with what was committed last
        print(f"{hvd.size()} workers", flush=True)
        with open("workers", "w") as file:
            file.write(f"{hvd.size()}\n")
    while True:
        stop = torch.tensor([float(os.path.exists("stop"))])
        if hvd.allreduce(stop, op=hvd.Sum, name="stop").item():
            return
        inputs = torch.randn(32, 16)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.step += 1
        time.sleep(0.05)
        state.commit()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
