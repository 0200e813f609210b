"""Known patterns of real CuPy work, to the byte."""
import pytest

from tests.gpu.conftest import MIB, array, record

pytestmark = pytest.mark.usefixtures("standin_board", "probe")


def test_an_array(probe):
    with probe.task("one"):
        x = array(MIB + 1)
    (found,) = record("one").gpu
    assert found == {"device": 0, "peak_bytes": MIB + 512, "end_bytes": MIB + 512, "pool_used_bytes": MIB + 512, "pool_total_bytes": MIB + 512}
    del x
