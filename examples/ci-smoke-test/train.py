"""Stands for a training script: it counts steps, goes on from its checkpoint, and fails once on rank 1."""
import os
import time

rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
done = int(open("checkpoint").read()) if os.path.exists("checkpoint") else 0
if rank == 0:
    print(f"begins behind step {done} with {os.environ['WORLD_SIZE']} workers", flush=True)
for step in range(done + 1, 7):
    time.sleep(0.05)
    if rank == 0:
        with open("checkpoint.new", "w") as file:
            file.write(str(step))
        os.replace("checkpoint.new", "checkpoint")
    if step == 3 and rank == 0 and restarts == 0:
        time.sleep(60)  # waits for rank 1, as in a collective
    if step >= 3 and rank == 1 and restarts == 0:
        while not os.path.exists("checkpoint") or open("checkpoint").read() != "3":
            time.sleep(0.01)
        raise RuntimeError("a rehearsed crash")
