"""The model and the data of train.py: an own module beside the script, so each worker imports it for itself."""
import torch
from torch.utils.data import Dataset, get_worker_info


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


class Samples(Dataset):
    """Sixteen samples that are functions of their index; each tells which data loader process made it."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(8, generator=generator), get_worker_info().id


def steps(wrapped, rank, count=5):
    """Trains on a batch that differs by rank, and returns the losses."""
    generator = torch.Generator().manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    x = torch.randn(32, 8, generator=generator)
    losses = []
    for _ in range(count):
        loss = torch.nn.functional.mse_loss(wrapped(x).squeeze(1), x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    return losses
