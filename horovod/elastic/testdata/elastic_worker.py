"""An elastic Horovod job that counts batches until a file appears. Each worker writes a line for each batch into a file
of its own in the directory argv[1]: rank, size, batch, sum over the workers. $LINES names it, else where the worker is."""

import os
import sys
import time

import torch

import horovod.torch as hvd

directory = sys.argv[1]
name = "%s:%s.%d" % (os.environ["HOROVOD_HOSTNAME"], os.environ["HOROVOD_LOCAL_RANK"], os.getpid())
log = open(os.path.join(directory, os.environ.get("LINES", name)), "w", buffering=1)
hvd.init()


@hvd.elastic.run
def train(state):
    while True:
        wanted = torch.tensor([1.0, float(os.path.exists(os.path.join(directory, "stop")))])
        summed = hvd.allreduce_async(wanted, op=hvd.Sum, name="step")
        while not hvd.poll(summed):  # allreduce keeps a processor busy while it waits, for one that was killed 12 s long
            time.sleep(0.005)
        ones, stop = hvd.synchronize(summed).tolist()
        state.batch += 1
        log.write("%d %d %d %d\n" % (hvd.rank(), hvd.size(), state.batch, ones))
        if stop:
            return
        state.commit()
        time.sleep(0.02)


train(hvd.elastic.TorchState(batch=0))
