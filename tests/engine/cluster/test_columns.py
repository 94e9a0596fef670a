

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.kubernetes.objects import LARGEST_AMOUNT

from .cluster_objects import node, pod


def test_devices_come_from_the_device_object_where_there_is_one():
    device = {
        "kind": "Device", "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-model": "A10"}},
        "spec": {
            "devices": [
                {"type": "gpu", "minor": 0, "health": True}, {"type": "gpu", "minor": 1, "health": False},
                {"type": "rdma", "minor": 0}, {"type": "gpu", "minor": 2, "health": True},
            ],
        },
    }
    cluster = Cluster([node("n1", gpus=3), pod("p", on="n1", gpus=1), device])
    devices = cluster.snapshot().devices
    assert (devices.total.tolist(), devices.free.tolist(), devices.count.tolist()) == (
        [[1000, 0, 1000]], [[0, 0, 1000]], [2],
    )
    assert devices.of(0) == [
        {"type": "gpu", "minor": 0, "total": 1000, "free": 0, "model": "A10"},
        {"type": "gpu", "minor": 2, "total": 1000, "free": 1000, "model": "A10"},
    ]
    cluster.delete("Device", "n1")
    assert cluster.snapshot().devices.free.tolist() == [[0, 1000, 1000]]


def test_sums_beyond_the_largest_amount_saturate_and_come_back_exactly_when_pods_leave():
    most = LARGEST_AMOUNT

    def bound(name, on, cpu, memory):
        item = pod(name, cpu=cpu, on=on)
        item["spec"]["containers"][0]["resources"]["requests"]["memory"] = str(memory)
        return item

    cluster = Cluster([node("a"), node("b"), bound("small", "a", "1", 5), bound("other", "b", "2", 7),
                       bound("x", "a", "1", 2**63 - 1), bound("y", "a", f"{2**63 - 1}m", most)])

    def seen():
        snapshot = cluster.snapshot()
        return [snapshot.requested("cpu").tolist(), snapshot.requested("memory").tolist(),
                snapshot.nonzero_requested("memory").tolist(), [dict(snapshot.row(row).requested) for row in (0, 1)]]

    full = seen()
    cluster.delete("Pod", "shop/x")
    without_x = seen()
    cluster.delete("Pod", "shop/y")
    assert full == [[most, 2000], [most, 7], [most, 7], [{"cpu": most, "memory": most}, {"cpu": 2000, "memory": 7}]]
    assert without_x == full
    assert seen() == [[1000, 2000], [5, 7], [5, 7], [{"cpu": 1000, "memory": 5}, {"cpu": 2000, "memory": 7}]]
