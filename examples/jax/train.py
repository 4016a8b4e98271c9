"""Trains a linear model with JAX, one process for each worker. The variables of --env-profile jax say who is who."""
import os

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()  # by the variables of --env-profile jax
rank, world = jax.process_index(), jax.process_count()

mesh = jax.make_mesh((world,), ("data",))
divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
wanted = np.arange(4, dtype=np.float32)


@jax.jit
def step(weights, inputs):
    def loss(w):
        return jnp.mean((inputs @ w - inputs @ wanted) ** 2)  # of the batches of all workers

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


done, weights = 0, np.zeros(4, np.float32)
if os.path.exists("weights.npz"):
    saved = np.load("weights.npz")
    done, weights = int(saved["step"]), saved["weights"]
if rank == 0:
    print(f"begins behind step {done} with {world} workers on {jax.device_count()} devices", flush=True)
weights = jax.device_put(weights, whole)
for number in range(done + 1, 41):
    local = np.random.default_rng(1000 * number + rank).standard_normal((32, 4), np.float32)
    weights, value = step(weights, jax.make_array_from_process_local_data(divided, local))
    if number % 10 == 0 and rank == 0:
        with open("weights.new", "wb") as file:
            np.savez(file, step=number, weights=np.asarray(weights.addressable_data(0)))
        os.replace("weights.new", "weights.npz")
        print(f"step {number}", flush=True)
    if number == 25 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        jax.block_until_ready(value)
        os._exit(3)  # a rehearsal of a crash
if rank == 0:
    print("weights", np.round(np.asarray(weights.addressable_data(0))).astype(int).tolist(), flush=True)
jax.distributed.shutdown()
