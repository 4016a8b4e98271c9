"""The master of DLRover that runs in a cluster, without one: it decides itself which nodes are started, and again, and who
started this does so. A line on stdout asks for it ("launch ID RANK"), one on stdin says what has become of a node
("ID RANK STATUS", where a running one has the status run). Its log goes to stderr.

Arguments: port, nodes.
"""
import queue
import sys
import threading
from unittest import mock

from dlrover.python.common.constants import DistributionStrategy, NodeExitReason, NodeStatus, NodeType, PlatformType
from dlrover.python.common.node import Node, NodeGroupResource, NodeResource
from dlrover.python.master import dist_master
from dlrover.python.master.node import dist_job_manager
from dlrover.python.master.scaler.base_scaler import Scaler
from dlrover.python.master.watcher.base_watcher import NodeWatcher
from dlrover.python.scheduler.job import JobArgs, NodeArgs
from dlrover.python.scheduler.kubernetes import k8sClient

port, count = int(sys.argv[1]), int(sys.argv[2])
events = queue.Queue()


def node_event(node_id, rank, status):
    node = Node(NodeType.WORKER, node_id, name="job-worker-%d" % node_id, rank_index=rank, max_relaunch_count=3)
    if status == "run":
        node.status = NodeStatus.RUNNING
    elif status == "0":
        node.status = NodeStatus.SUCCEEDED
        node.set_exit_reason(NodeExitReason.Succeeded)
    else:  # as the watcher of pods takes most exit statuses
        node.status = NodeStatus.FAILED
        node.set_exit_reason(NodeExitReason.UNKNOWN_ERROR)
    return dist_job_manager.NodeEvent("MODIFIED", node)


class Watcher(NodeWatcher):
    def watch(self):
        while True:
            yield events.get()

    def list(self):
        return []


class Starter(Scaler):
    def start(self):
        pass

    def scale(self, plan):
        for group in plan.node_group_resources.values():
            for i in range(group.count):
                self.launch(i, i)
        for node in plan.launch_nodes:
            self.launch(node.id, node.rank_index)

    def launch(self, node_id, rank):
        print("launch", node_id, rank, flush=True)


def hear():
    for line in sys.stdin:
        node_id, rank, status = line.split()
        events.put(node_event(int(node_id), int(rank), status))


cluster = mock.MagicMock()
cluster.list_namespaced_pod.return_value = None
k8sClient.singleton_instance = classmethod(lambda *_: cluster)
dist_master._create_master_service_on_k8s = lambda *_: True
dist_master.new_elasticjob_watcher = lambda *_: None
dist_job_manager.new_elastic_job = lambda *_: mock.MagicMock()
dist_job_manager.new_node_watcher = lambda *_: Watcher("uid")
dist_job_manager.new_job_scaler = lambda *_: Starter("job")
dist_job_manager.new_job_auto_scaler = lambda *_: mock.MagicMock()

args = JobArgs(PlatformType.KUBERNETES, "default", "job")
args.node_args[NodeType.WORKER] = NodeArgs(NodeGroupResource(count, NodeResource(1, 1024)), True, 3, 0, "")
args.job_uuid = "uid"
args.distribution_strategy = DistributionStrategy.ALLREDUCE
args.enable_elastic_scheduling = True
args.relaunch_always = True
master = dist_master.DistributedJobMaster(port, args)
threading.Thread(target=hear, daemon=True).start()
master.prepare()
master.pre_check()
sys.exit(master.run())
