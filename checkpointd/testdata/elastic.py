"""What DLRover's elastic helpers do with the same inputs, as JSON: run with its own package, and with ours."""
import itertools
import json
import logging
import os
import sys

import torch

logging.disable(logging.CRITICAL)
from dlrover.trainer.torch.elastic.dataloader import ElasticDataLoader
from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler
from dlrover.trainer.torch.elastic.trainer import ElasticTrainer

assert sys.modules["dlrover"].__file__.startswith(os.environ["PYTHONPATH"]), "another package dlrover than the one to be run"
folder, told = sys.argv[1], {}
for size, replicas, shuffle, drop in itertools.product((1, 7, 12, 100), (1, 3, 4), (False, True), (False, True)):
    for rank in range(replicas):
        sampler = ElasticDistributedSampler(list(range(size)), replicas, rank, shuffle, 3, drop)
        sampler.set_epoch(2)
        seen = [list(sampler), len(sampler)]
        if size >= replicas:
            state = sampler.state_dict(1, 1)
            for others in (1, replicas, 2):  # goes on with as many ranks, or another number
                again = ElasticDistributedSampler(list(range(size)), others, 0, shuffle, 3, drop)
                again.load_state_dict(state)
                seen += [state, list(again), len(again)]
                again.set_epoch(3)
                seen += [list(again), len(again)]
        told[f"{size} {replicas} {shuffle} {drop} {rank}"] = seen

config = os.path.join(folder, "config.json")


def write(version, size):
    with open(config, "w") as f:
        json.dump({"dataloader": {"version": version, "batch_size": size}}, f)


loader = ElasticDataLoader(list(range(20)), batch_size=3, config_file=config)
told["sizes"] = sizes = [loader.get_batch_size()]
for version, size in ((1, 4), (1, 5), (2, 5), (3, 0), (4, 6)):
    write(version, size)
    loader.update_batch_size()
    sizes.append(loader.get_batch_size())
with open(config, "w") as f:
    f.write("{")
loader.update_batch_size()
loader.update_batch_size(7)
told["batches"] = [loader.get_batch_size(), [len(batch) for batch in loader]]

os.environ.update(WORKER_NUM="3", LOCAL_WORLD_SIZE="1", RUNTIME_METRICS_PATH=os.path.join(folder, "metrics.json"))
for fixed in (False, True):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    trainer = ElasticTrainer(model)
    trainer.gradient_state.num_backward_steps = 0  # theirs is shared by all trainers
    trainer.reset()
    optimizer, scheduler = torch.optim.SGD(model.parameters(), lr=0.1), None
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)
    steps = []
    for i in range(7):
        with trainer.step(fix_total_batch_size=fixed):
            model(torch.full((2, 3), float(i))).sum().backward()
            optimizer.step()
            if not fixed:  # theirs steps with each batch then
                scheduler.step()
            optimizer.zero_grad()
        steps.append([trainer.num_steps, model.weight.tolist(), scheduler.get_last_lr()])
    told[f"trainer {fixed}"] = [trainer.gradient_accumulation_steps, steps, optimizer.state_dict()["param_groups"][0]["params"]]
with open(os.environ["RUNTIME_METRICS_PATH"]) as f:
    told["metrics"] = sorted(json.load(f))
print(json.dumps(told))
