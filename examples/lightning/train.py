"""Trains with Lightning, and goes on from the last checkpoint after a crash."""
import argparse
import os

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from muster.integrations.lightning import ProgressCallback

parser = argparse.ArgumentParser()
parser.add_argument("--fail-at", type=int, help="rank 1 fails after this step, once: a rehearsal")
args = parser.parse_args()


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        inputs, = batch
        loss = (self.layers(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Fail(Callback):
    def on_train_batch_end(self, trainer, *ignored):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and trainer.global_rank == 1 and trainer.global_step == args.fail_at:
            os._exit(3)


pl.seed_everything(0)
last = "out/last.ckpt" if os.path.exists("out/last.ckpt") else None
print("goes on from", last, flush=True)
trainer = pl.Trainer(
    accelerator="auto", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_steps=20, logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[ModelCheckpoint(dirpath="out", save_last=True, every_n_train_steps=5), ProgressCallback(), Fail()])
data = DataLoader(TensorDataset(torch.randn(640, 16)), batch_size=8)
trainer.fit(Net(), data, ckpt_path=last)
print("ends at step", trainer.global_step, flush=True)
