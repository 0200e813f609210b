"""Blocks that fit into the memory of a device as well as into the host's."""

import json

ON_DEVICE = """
import cupy
import json
import numpy as np
from dwsr_probe.fit import fit_blocks

def double(block):
    '''Two arrays of the block's size on the device, nothing but the result on the host.'''
    there = cupy.asarray(block)
    return cupy.asnumpy(there + there)

volume = np.zeros((512, 128, 128), np.float32)  # 32 MiB
for limit in (None, "16MiB"):
    plan = fit_blocks(
        double,
        volume,
        memory="4GiB",
        threads=2,
        whole_axes=(),
        objective="largest",
        device_memory=limit,
    )
    print(json.dumps(plan.to_dict()))
"""


def test_both_memories_must_suffice(child):
    whole, small = map(json.loads, child(ON_DEVICE).stdout.splitlines())
    # The stand-in's device has 1 GiB: half of the array for each of two threads
    assert whole["device"]["memory_bytes"] == 1 << 30 and whole["block_bytes"] == 16 << 20
    assert small["device"]["memory_bytes"] == 16 << 20
    assert small["block_bytes"] < whole["block_bytes"]
    assert small["device"]["bound_bytes"] <= small["device"]["allowed_bytes"]
    # Two threads, two arrays of the block in each
    assert 4 * small["block_bytes"] <= small["device"]["expected_bytes"] * 1.1
