"""A worker as of Paddle, JAX or TensorFlow: it reads where the others listen, and meets each of them there. argv: the
profile and a directory, where it leaves what it was told. Rank 1 fails in its first life, once all have met."""
import json
import os
import socket
import sys
import threading
import time

profile, out = sys.argv[1:]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]


def told():
    """Returns the rank, the places of all workers, and the place at which this one listens."""
    env = os.environ
    if profile == "paddle":
        places = env["PADDLE_TRAINER_ENDPOINTS"].split(",")
        assert len(places) == int(env["PADDLE_TRAINERS_NUM"]) == int(env["PADDLE_GLOBAL_SIZE"])
        assert "MASTER_ADDR" not in env and "MASTER_PORT" not in env  # which Paddle reads before PADDLE_MASTER
        assert env["PADDLE_MASTER"] not in places and env["PADDLE_MASTER"].split(":")[0] == places[0].split(":")[0]
        return int(env["PADDLE_TRAINER_ID"]), places, env["PADDLE_CURRENT_ENDPOINT"]
    if profile == "tensorflow":
        config = json.loads(env["TF_CONFIG"])
        assert config["task"]["type"] == "worker"
        places = config["cluster"]["worker"]
        return config["task"]["index"], places, places[config["task"]["index"]]
    rank = int(env["JAX_PROCESS_ID"])
    assert rank == int(env["OMPI_COMM_WORLD_RANK"]) and env["JAX_NUM_PROCESSES"] == env["OMPI_COMM_WORLD_SIZE"]
    assert env["OMPI_MCA_orte_hnp_uri"]
    return rank, [env["JAX_COORDINATOR_ADDRESS"]], env["JAX_COORDINATOR_ADDRESS"] if rank == 0 else None


def reach(place):
    host, port = place.rsplit(":", 1)
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, int(port)), 5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


rank, places, own = told()
world = int(os.environ["WORLD_SIZE"])
assert rank == int(os.environ["RANK"])
if own:
    host, port = own.rsplit(":", 1)
    listener = socket.create_server((host, int(port)))
    listener.settimeout(60)
    greeted = []

    def listen():
        while len(greeted) < world:
            with listener.accept()[0] as c:
                greeted.append(c.recv(4))

    thread = threading.Thread(target=listen)
    thread.start()
for place in places:
    with reach(place) as c:
        c.sendall(b"%04d" % rank)
        c.recv(1)  # until it has been read
if own:
    thread.join(60)
    assert sorted(greeted) == [b"%04d" % r for r in range(world)], greeted
path = os.path.join(out, f"{attempt}.{rank}")
devices = os.environ.get("FLAGS_selected_gpus") or os.environ.get("JAX_LOCAL_DEVICE_IDS")
with open(path + ".new", "w") as file:
    json.dump({"places": places, "own": own, "devices": devices}, file)
os.rename(path + ".new", path)
if attempt == "0":
    while rank != 1 or not all(os.path.exists(os.path.join(out, f"0.{r}")) for r in range(world)):
        time.sleep(0.01)
    sys.exit(3)
