"""Meets the other workers as accelerate's library does, and says what it found."""

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

state = PartialState(cpu=True)
ranks = gather_object([state.process_index])
print(f"rank {state.process_index} of {state.num_processes}: {state.distributed_type.value} {state.backend} {ranks} threads {torch.get_num_threads()}", flush=True)
state.destroy_process_group()
