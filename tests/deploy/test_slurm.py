"""slurm/: by shellcheck; run with stand-ins for srun and scancel, and by a real SLURM of one
node: root, apt-get install slurm-wlm."""

import json
import os
import py_compile
import random
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import permitted, require, wait_until
from tests.deploy.conftest import (
    BIN,
    DEPLOY,
    answers,
    environment,
    free_ports,
    samples,
    started,
    tool,
)

SLURM = DEPLOY / "slurm"
SRUN = """#!/bin/bash
# srun on one node: the command, without srun's options. A signal to srun ends its step as SLURM
# does, with SIGKILL.
while [ "${1#--}" != "$1" ]; do shift; done
"$@" & echo $! >> "$FAKE_STEPS"
trap 'kill -KILL $!' TERM
wait $!
"""
SCANCEL = """#!/bin/bash
case "$*" in *--signal=TERM*"$SLURM_JOB_ID")
    while read -r step; do kill -TERM "$step" 2>/dev/null; done < "$FAKE_STEPS"; exit 0;; esac
exit 1
"""
PLAIN = """
import os, sys, time, dwsr_probe
with dwsr_probe.task("glcm"):
    pass
while not os.path.exists("end"):
    time.sleep(0.05)
sys.exit(int(open("end").read()))
"""
DASK = """
import os, sys, time
from distributed import Client
with Client() as client:
    assert client.submit(sum, [1, 2]).result() == 3
    while not os.path.exists("end"):
        time.sleep(0.05)
sys.exit(int(open("end").read()))
"""


@pytest.mark.parametrize(
    "path", [*SLURM.glob("*.sh"), DEPLOY / "k8s" / "prometheusrule"], ids=lambda p: p.name
)
def test_shellcheck(path):
    done = tool("shellcheck", "apt-get install shellcheck")(path)
    assert done.returncode == 0, done.stdout


def free_job():
    """A number for a job whose exporter finds its port free: the scripts compute the port from
    it."""
    for job in random.sample(range(10_000, 10_500), 500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 9500 + job % 500)):
                return job
    raise AssertionError("no port from 9500 to 9999 is free")


class Standin:
    """A batch script as slurmd would start it, beside our srun and scancel."""

    def __init__(self, folder):
        self.folder, self.node, self.job = folder, "127.0.0.1", free_job()
        for name, text in (("srun", SRUN), ("scancel", SCANCEL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def submit(self, env, words):
        env = dict(
            env,
            PATH=f"{self.folder}:{env['PATH']}",
            FAKE_STEPS=str(self.folder / "steps"),
            SLURM_JOB_ID=str(self.job),
            SLURMD_NODENAME=self.node,
            SLURM_JOB_NUM_NODES="1",
            SLURM_CPUS_PER_TASK="2",
            SLURM_MEM_PER_NODE="2048",
        )
        with open(self.folder / "out", "wb") as out:
            self._batch = subprocess.Popen(
                ["bash", *map(str, words)],
                cwd=self.folder,
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return self.job

    def wait(self):
        return self._batch.wait(600)

    def cancel(self):
        """SIGTERM for all of its processes."""
        os.killpg(self._batch.pid, 15)

    def close(self):
        try:
            os.killpg(self._batch.pid, 9)
        except ProcessLookupError:
            pass


class Real:
    """munged, slurmctld and slurmd of the test's own, on ports of its own. SLURM's time limits
    are those of a slow machine."""

    CONF = """ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
FirstJobId={job}
BatchStartTimeout=600
KillWait=600
MessageTimeout=100
TCPTimeout=60
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=2048 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP
"""

    def __init__(self, folder, stack):
        self.folder, self.node = folder, os.uname().nodename
        permitted(os.geteuid() == 0, "run a SLURM (needs root)")
        require(
            all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))),
            "SLURM: apt-get install slurm-wlm",
        )
        (folder / "munge").mkdir(mode=0o755)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.env = environment(SLURM_CONF=folder / "slurm.conf")
        controller, daemon = free_ports(2)
        (folder / "slurm.conf").write_text(
            self.CONF.format(
                node=self.node,
                folder=folder,
                controller=controller,
                daemon=daemon,
                cpus=os.cpu_count(),
                job=free_job(),
            )
        )
        places = [
            f"--{name}={folder}/munge/{name.partition('-')[0]}"
            for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
        ]
        stack.enter_context(
            started(["munged", "--foreground", "--force", *places], folder, "munged", code=None)
        )
        wait_until(lambda: (folder / "munge" / "socket").exists(), "munged")
        stack.enter_context(
            started(["slurmctld", "-D"], folder, "slurmctld", code=None, env=self.env)
        )
        wait_until(lambda: " UP" in self._call("scontrol", "ping"), "slurmctld")
        stack.enter_context(started(["slurmd", "-D"], folder, "slurmd", code=None, env=self.env))
        wait_until(lambda: "idle" in self._call("sinfo", "-h", "-o", "%T"), "the node")

    def _call(self, *words, **options):
        return subprocess.run(
            words,
            **{"capture_output": True, "text": True, "timeout": 600, "env": self.env, **options},
        ).stdout

    def submit(self, env, words):
        options = [
            "--parsable",
            "--nodes=1",
            f"--cpus-per-task={min(2, os.cpu_count())}",
            "--mem=1G",
            f"--output={self.folder}/out",
        ]
        self.job = int(
            self._call(
                "sbatch",
                *options,
                *map(str, words),
                cwd=self.folder,
                env=dict(env, SLURM_CONF=self.env["SLURM_CONF"]),
            )
        )
        return self.job

    def wait(self):
        def ended():
            said = self._call("scontrol", "show", "job", str(self.job))
            return re.search(r"JobState=(COMPLETED|FAILED|CANCELLED)", said) and re.search(
                r"ExitCode=(\d+):(\d+)", said
            )

        found = wait_until(ended, "the job")
        return int(found[1]) or int(found[2])

    def cancel(self):
        self._call("scancel", str(self.job))

    def close(self): ...


@pytest.fixture(params=["standin", "real"])
def slurm(request, tmp_path):
    from contextlib import ExitStack

    with ExitStack() as stack:
        found = Standin(tmp_path) if request.param == "standin" else Real(tmp_path, stack)
        stack.callback(found.close)
        yield found


@pytest.mark.parametrize("ending", ["ends", "fails", "cancelled"])
@pytest.mark.parametrize(
    "script, code", [("job.sh", PLAIN), ("dask.sh", DASK)], ids=["job", "dask"]
)
def test_job(slurm, tmp_path, script, code, ending):
    """Announced and served while it runs, its exit code kept; nothing left behind, however it
    ends."""
    targets, boards = tmp_path / "targets", tmp_path / "boards"
    targets.mkdir()
    boards.mkdir()
    (tmp_path / "job.py").write_text(code)
    text = (SLURM / script).read_text()
    assert "--linger 30" in text or script != "job.sh"
    (tmp_path / script).write_text(text.replace("--linger 30", "--linger 1"))
    env = environment(
        DWSR_TARGETS=targets, DWSR_BOARDS=boards, DWSR_LINGER=1, XDG_STATE_HOME=tmp_path / "state"
    )
    job = slurm.submit(env, [tmp_path / script, "python", "job.py"])
    try:
        name = {"job.sh": f"job-{job}.json", "dask.sh": f"{slurm.node}-{job}.json"}[script]
        target = json.loads(
            wait_until(lambda: (targets / name).exists() and (targets / name).read_text(), name)
        )[0]
        assert target["targets"] == [f"{slurm.node}:{9500 + job % 500}"] and set(
            target["labels"]
        ) == {"dwsr_kind"}
        url = f"http://{target['targets'][0]}"
        counted = wait_until(lambda: samples(url, "dwsr_tasks_total"), "its tasks")
        task = {"job.sh": "glcm", "dask.sh": "sum"}[script]
        assert counted == [
            f'dwsr_tasks_total{{operation="{task}",outcome="ok",task_name="{task}"}} 1.0'
        ]
        if ending == "cancelled":
            slurm.cancel()
        else:
            (tmp_path / "end").write_text("7" if ending == "fails" else "0")
        ended = slurm.wait()
        assert ended != 0 if ending == "cancelled" else ended == {"ends": 0, "fails": 7}[ending]
        assert wait_until(lambda: not list(targets.iterdir()), "its target to go")
        assert wait_until(lambda: not list(boards.iterdir()), "its boards to go")
        assert not list(tmp_path.glob(".dask-*"))
        assert wait_until(lambda: answers(url + "/-/healthy") is None, "its exporter to end")
        if script == "job.sh":
            assert (tmp_path / "dwsr-runs" / f"slurm-{job}").is_dir()
    except BaseException:
        print((tmp_path / "out").read_text()[-6000:])
        raise


@pytest.mark.parametrize(
    "script, code", [("job.sh", PLAIN), ("dask.sh", DASK)], ids=["job", "dask"]
)
def test_token(tmp_path, script, code):
    (tmp_path / "targets").mkdir()
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "job.py").write_text(code)
    slurm = Standin(tmp_path)
    env = environment(
        DWSR_TARGETS=tmp_path / "targets",
        DWSR_BOARDS=tmp_path,
        DWSR_LINGER=0,
        DWSR_TOKEN_FILE=tmp_path / "token",
        XDG_STATE_HOME=tmp_path / "state",
    )
    job = slurm.submit(env, [SLURM / script, "python", "job.py"])
    url = f"http://127.0.0.1:{9500 + job % 500}/metrics"

    def status(**headers):
        try:
            return urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=600
            ).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    try:
        assert wait_until(status, "its port") == 401
        assert status(Authorization="Bearer secret") == 200
    finally:
        slurm.cancel()
        slurm.wait()
        slurm.close()


@pytest.mark.parametrize("script", ["job.sh", "dask.sh"])
def test_without_a_program(script):
    done = subprocess.run(
        [SLURM / script],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(SLURM_JOB_ID=1),
    )
    assert done.returncode == 2 and done.stderr.startswith("which program?")


def test_jobqueue(tmp_path):
    """The script that it hands to SLURM, run by a shell: its worker joins, its exporter is
    announced, and both clean up."""
    pytest.importorskip("dask_jobqueue")
    py_compile.compile(str(SLURM / "jobqueue.py"), cfile=str(tmp_path / "x.pyc"), doraise=True)
    targets, boards = tmp_path / "targets", tmp_path / "boards"
    targets.mkdir()
    boards.mkdir()
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys; sys.path.insert(0, {str(SLURM)!r})\n"
        + """
import jobqueue
from distributed import Client

with (
    jobqueue.cluster(
        sys.argv[1],
        cores=1,
        memory="1GB",
        scheduler_options={"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
    ) as cluster,
    Client(cluster) as client,
):
    open("script.sh.new", "w").write(cluster.job_script())
    import os

    os.rename("script.sh.new", "script.sh")
    client.wait_for_workers(1, timeout=600)
    assert client.submit(sum, [1, 2]).result() == 3
    print("done", flush=True)
    sys.stdin.read()
"""
    )
    job, script = free_job(), tmp_path / "script.sh"
    with started(
        [sys.executable, driver, targets], tmp_path, "driver", code=None, stdin=subprocess.PIPE
    ) as log:
        wait_until(script.exists, "the script")
        env = environment(SLURM_JOB_ID=job, SLURMD_NODENAME="127.0.0.1", DWSR_BOARDS=boards)
        assert "--token-file" in script.read_text()
        with started(["bash", script], tmp_path, "worker", code=None, env=env) as worker:
            wait_until(lambda: "done" in log.read_text(), "the task")
            target = json.loads(
                wait_until(
                    lambda: list(targets.iterdir()) and next(targets.iterdir()).read_text(),
                    "its exporter",
                )
            )[0]["targets"][0]
            assert target == f"127.0.0.1:{9500 + job % 500}"
            assert wait_until(
                lambda: samples(f"http://{target}", "dwsr_tasks_total"), "its tasks"
            ) == ['dwsr_tasks_total{operation="sum",outcome="ok",task_name="sum"} 1.0']
            assert Path(worker).exists()
        assert wait_until(lambda: not list(targets.iterdir()), "its target to go")


def test_jobqueue_without_prometheus():
    pytest.importorskip("dask_jobqueue")
    code = (
        f"import sys; sys.path.insert(0, {str(SLURM)!r}); import jobqueue; c = jobqueue.cluster();"
        " print(c.job_script()); c.close()"
    )
    done = subprocess.run(
        [BIN / "python", "-c", code], capture_output=True, text=True, timeout=600, env=environment()
    )
    assert (
        "--preload dwsr_probe.dask.preload" in done.stdout
        and "dwsr-probe export" not in done.stdout
    ), done.stderr
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
