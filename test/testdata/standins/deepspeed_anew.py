"""Imports deepspeed, and has it forget the accelerator that it has found: each fork looks in its own environment, as a new process
does."""
import deepspeed
from deepspeed.accelerator import real_accelerator

assert real_accelerator.ds_accelerator is not None
real_accelerator.ds_accelerator = None
