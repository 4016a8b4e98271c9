import contextlib
import json
import os
import time

import torch
import torch.distributed as dist

from dlrover.trainer.torch.elastic.dataloader import ElasticDataLoader

REPORT_EVERY = 15  # seconds between two records of how far training is


class GradientState:
    """What the trainer and the things it has prepared know of gradients: one for each trainer."""

    def __init__(self):
        self.sync_gradients = True  # whether this step ends with all ranks' gradients in the optimizer
        self.num_backward_steps = 0
        self.num_steps = 0  # of the optimizer


class _Optimizer(torch.optim.Optimizer):
    """An optimizer that steps when gradients are whole."""

    def __init__(self, optimizer, gradients):
        self.__dict__.update(optimizer=optimizer, gradient_state=gradients)

    def __getattr__(self, name):
        if name == "optimizer":  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name, value):
        setattr(self.optimizer, name, value)

    def __getstate__(self):
        return self.__dict__.copy()

    def __setstate__(self, state):
        self.__dict__.update(state)

    def add_param_group(self, param_group):
        self.optimizer.add_param_group(param_group)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none=True):
        if self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        if self.gradient_state.sync_gradients:
            return self.optimizer.step(closure)


class _Scheduler:
    """A learning rate scheduler that steps with the optimizer."""

    def __init__(self, scheduler, gradients):
        self.scheduler, self.gradient_state = scheduler, gradients

    def __getattr__(self, name):
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def step(self, *args, **kwargs):
        if self.gradient_state.sync_gradients:
            self.scheduler.step(*args, **kwargs)


class ElasticTrainer:
    """Keeps the global batch size when there are fewer workers than WORKER_NUM nodes would have: each takes several steps of
    gradients for one of the optimizer.

        trainer = ElasticTrainer(model, dataloader)
        optimizer, scheduler = trainer.prepare(optimizer, scheduler)
        for batch in dataloader:
            with trainer.step(fix_total_batch_size=True):
                loss(model, batch).backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    """

    def __init__(self, model, dataloader=None):
        self.model, self.dataloader = model, dataloader
        self.gradient_state = GradientState()
        self.gradient_accumulation_steps = 1
        self._reported = 0.0

    def prepare(self, optimizer, lr_scheduler=None):
        """Returns the optimizer, and the scheduler if one is given, as ones that step when gradients are whole."""
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        most = int(os.environ.get("WORKER_NUM") or 1) * int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        self.gradient_accumulation_steps = max(1, most // world + (rank < most % world))
        optimizer = _Optimizer(optimizer, self.gradient_state)
        return (optimizer, _Scheduler(lr_scheduler, self.gradient_state)) if lr_scheduler else optimizer

    @contextlib.contextmanager
    def step(self, fix_total_batch_size=False):
        """Surrounds forward, backward and what was prepared."""
        gradients = self.gradient_state
        gradients.num_backward_steps += 1
        gradients.sync_gradients = not fix_total_batch_size or gradients.num_backward_steps % self.gradient_accumulation_steps == 0
        apart = contextlib.nullcontext if gradients.sync_gradients else getattr(self.model, "no_sync", contextlib.nullcontext)
        with apart():
            yield
        if gradients.sync_gradients:
            gradients.num_steps += 1
            if time.time() - self._reported > REPORT_EVERY:
                self.report_training_step()
                self._reported = time.time()
        if isinstance(self.dataloader, ElasticDataLoader):
            self.dataloader.update_batch_size()

    @property
    def num_steps(self):
        return self.gradient_state.num_steps

    def reset(self):
        self.gradient_state.num_steps = 0

    def report_training_step(self):
        """Has rank 0 write how far training is to RUNTIME_METRICS_PATH, where that is set."""
        path = os.environ.get("RUNTIME_METRICS_PATH", "")
        if os.path.isdir(os.path.dirname(path)) and (not dist.is_initialized() or dist.get_rank() == 0):
            with open(path, "w") as f:
                json.dump({"step": self.num_steps, "timestamp": time.time()}, f, indent=4, sort_keys=True)
