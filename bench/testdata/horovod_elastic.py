"""An elastic Horovod job that runs until a file appears; each worker tells the size of its world when that is another one."""

import os
import time

import torch

import horovod.torch as hvd

directory = os.environ["BENCH_DIR"]
hvd.init()


@hvd.elastic.run
def train(state):
    size = 0
    while True:
        stop = float(os.path.exists(os.path.join(directory, "stop")))
        if hvd.allreduce(torch.tensor([stop]), op=hvd.Sum, name="step").item():
            return
        if hvd.size() != size:
            size = hvd.size()
            open(os.path.join(directory, "world-%d-%d" % (size, os.getpid())), "w").close()
        state.commit()
        time.sleep(0.01)


train(hvd.elastic.TorchState(step=0))
