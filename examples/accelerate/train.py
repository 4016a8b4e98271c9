"""Trains with Hugging Face accelerate, and goes on from the state that it has saved."""
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(640, 16)), batch_size=16)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

if os.path.isdir("state"):
    accelerator.load_state("state")
    accelerator.print("goes on from state")
for (inputs,) in data:
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
accelerator.save_state("state")
accelerator.print(f"{len(data)} steps with {accelerator.num_processes} workers", flush=True)
accelerator.end_training()
