# Tells of itself with NVRx's own client. In the first attempt rank 1 stays in a section, in the next one time-outs are calculated.
import os
import time

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
client = RankMonitorClient()
client.init_workload_monitoring()
assert client.section_timeouts.section == {"step": 600.0, "evaluation": 5.0, "free": None}, client.section_timeouts
assert client.hb_timeouts.initial == 900.0 and client.hb_timeouts.subsequent is None, client.hb_timeouts
for step in range(4):
    client.start_section("step")
    if rank == 1 and step == 2 and restarts == 0:
        client.start_section("evaluation")
        time.sleep(3600)
    dist.all_reduce(torch.ones(4))
    client.end_section("step")
    client.send_heartbeat()
client.calculate_and_set_hb_timeouts()
client.calculate_and_set_section_timeouts(selected_sections=["step"])
state = client.state_dict()
client.shutdown_workload_monitoring()
client = RankMonitorClient()
client.load_state_dict(state)
client.init_workload_monitoring()
assert client.hb_timeouts.were_calculated and client.section_timeouts.calculated_sections == {"step"}
client.shutdown_workload_monitoring()
print(f"rank {rank} has calculated", flush=True)
dist.destroy_process_group()
