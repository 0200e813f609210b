"""What is told of CuPy's arrays as inputs and outputs: type, dtype, shape, bytes, at no cost to
the device."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if not importlib.util.find_spec("cupy"):
    pytest.skip("needs CuPy: make test-gpu", allow_module_level=True)

from tests import standin

ROOT = Path(__file__).resolve().parents[2]


def job(tmp_path, code):
    env = standin.environment(folder=tmp_path)
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def test_arrays_of_every_shape(tmp_path):
    found, total, output, touched = job(
        tmp_path,
        """
        import json, os, cupy, numpy, standin
        from dwsr_probe import _core

        class Mine(cupy.ndarray):
            @property
            def nbytes(self):
                raise SystemExit("the job's code is not ours to run")

        x = cupy.empty((4, 8), "f4")
        values = [
            x,
            x[:, ::2],
            cupy.empty((), "i1"),
            cupy.empty((3, 0)),
            cupy.broadcast_to(x[:1, :1], (100, 100)),
            [x, {"a": x.T}],
            cupy.float32(1),
        ]
        mine = cupy.ndarray.__new__(Mine, (2, 2))

        def device():
            mine = standin.board().processes()[os.getpid()]
            return [
                mine.launches,
                mine.use[0].mallocs,
                mine.pinned_bytes,
                cupy.get_default_memory_pool().used_bytes(),
            ]

        before = device()
        text, total, count, omitted = _core.describe_inputs(values)
        (own,) = json.loads(_core.describe_inputs([mine])[0])
        output = _core.describe_output(values[4])
        print(
            json.dumps(
                [
                    json.loads(text) + [own],
                    total,
                    [json.loads(output[0]), output[1]],
                    [before, device()],
                ]
            )
        )
    """,
    )

    def array(shape, nbytes, dtype="float32"):
        return {"type": "cupy.ndarray", "dtype": dtype, "shape": shape, "nbytes": nbytes}

    assert found == [
        array([4, 8], 128),
        array([4, 4], 64),
        array([], 1, "int8"),
        array([3, 0], 0, "float64"),
        array([100, 100], 4),
        array([4, 8], 128),
        array([8, 4], 128),
        {**array([], 4), "type": "float32"},
        {"type": "Mine", "dtype": None, "shape": None, "nbytes": None},
    ]
    assert total == 128 + 64 + 1 + 0 + 4 + 128 + 128 + 4
    assert output == [array([100, 100], 4), 4]
    assert touched[0] == touched[1]  # nothing launched, allocated or copied


def test_sparse_matrices(tmp_path):
    found = job(
        tmp_path,
        """
        import json, sys, types, cupy, cupyx

        # that library is absent here; only its descriptor is made
        cupyx.cusparse = sys.modules["cupyx.cusparse"] = types.ModuleType("cusparse")
        cupyx.cusparse.MatDescriptor = types.SimpleNamespace(create=object)
        from cupyx.scipy import sparse
        from dwsr_probe import _core

        data, ints = cupy.empty(10, "f8"), cupy.empty(10, "i4")
        csr = sparse.csr_matrix((data, ints, cupy.empty(6, "i4")), shape=(5, 7))
        # CuPy 14 cuts them by a value that a kernel would compute
        csr.data, csr.indices = data, ints
        coo = sparse.coo_matrix((data, (ints, ints)), shape=(5, 7))
        print(_core.describe_inputs([csr, coo])[0].decode())
    """,
    )
    assert found == [
        {"type": "cupyx.csr_matrix", "dtype": "float64", "shape": [5, 7], "nbytes": 80 + 40 + 24},
        {"type": "cupyx.coo_matrix", "dtype": "float64", "shape": [5, 7], "nbytes": 80 + 40 + 40},
    ]
