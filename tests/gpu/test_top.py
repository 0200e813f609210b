"""`dwsr-probe top` with GPUs: CuPy's allocations in this process, on the stand-in, looked at
through its board and through a port."""

import re

from dwsr_probe.export.server import Server
from dwsr_probe.export.sources.machine import MachineSource
from dwsr_probe.report.top.picture import Picture
from dwsr_probe.report.top.port import PortWatch
from dwsr_probe.report.top.screen import Screen
from dwsr_probe.report.top.watch import MachineWatch
from tests.conftest import wait_until
from tests.gpu.conftest import MIB, array


def test_devices_and_their_tasks(standin_board, probe, board_dir):
    server = Server(MachineSource([str(board_dir)]), "127.0.0.1", 0)
    server.start()
    try:
        with probe.task("on the device"):
            kept = array(64 * MIB)
            array(100 * MIB)  # gone at once
            for watch in (MachineWatch([str(board_dir)]), PortWatch(server.url)):
                picture = Picture("here")
                screen = Screen(picture)

                def text(watch=watch, picture=picture, screen=screen):
                    picture.add(watch.read())
                    return re.sub(r"\x1b\[[\d;]*[Gm]", " ", "\n".join(screen.lines(150, 40)))

                def shown(text=text):
                    found = text()
                    return re.search(
                        r"^0 Stand-in GPU .* 64\.0 MiB +164 MiB .*[█▒].* 164 MiB ", found, re.M
                    ) and re.search(r"^ ?on the device .* 164 MiB ", found, re.M)

                wait_until(shown, "the device and its task")
                assert "gpu peak" in text()
        del kept
    finally:
        server.stop()
