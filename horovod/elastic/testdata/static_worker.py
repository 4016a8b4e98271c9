"""A Horovod job of one all-reduce."""

import sys

import torch

import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.tensor([float(2 ** hvd.rank())]), op=hvd.Sum)
sys.stdout.write("rank %d of %d: %d\n" % (hvd.rank(), hvd.size(), total.item()))
hvd.shutdown()
