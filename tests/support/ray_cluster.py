"""A real Ray cluster on this machine: nodes with declared GPUs, until standard input ends.

``python ray_cluster.py NODES GPUS`` prints the cluster's address. Run by an interpreter with Ray.
"""

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    nodes, gpus = int(sys.argv[1]), int(sys.argv[2])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    for _ in range(nodes):
        cluster.add_node(num_cpus=2, num_gpus=gpus)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
