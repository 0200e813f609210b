"""dask-jobqueue with the probe in every worker, its figures in Prometheus, and a summary at the
end:    python deploy/slurm/jobqueue.py

DWSR_TARGETS: a directory that Prometheus reads, too (file_sd in deploy/prometheus.yml); each job
then has an exporter for its workers. DWSR_TOKEN_FILE: the bearer token that Prometheus must
show. Options of your site (queue, account, interface): ~/.config/dask/jobqueue.yaml.
"""

import os

from dask_jobqueue import SLURMCluster

BOARDS = "export DWSR_PROBE_BOARD_DIR=${DWSR_BOARDS:-/dev/shm}/dwsr-probe-$SLURM_JOB_ID"
# In the background of each job: Prometheus reads it, and finds it by its file, which goes when the
# job ends.
EXPORT = (
    'port=$((9500 + SLURM_JOB_ID % 500)); dwsr-probe export --listen "0.0.0.0:$port" --board-dir'
    ' "$DWSR_PROBE_BOARD_DIR" --file-sd "$DWSR_TARGETS/$SLURMD_NODENAME-$SLURM_JOB_ID.json"'
    ' --advertise "$SLURMD_NODENAME:$port" ${DWSR_TOKEN_FILE:+--token-file "$DWSR_TOKEN_FILE"} &'
    " exporter=$!"
)
END = (
    'trap \'[ -z "${exporter:-}" ] || { kill "$exporter"; wait "$exporter"; }; rm -rf'
    ' "$DWSR_PROBE_BOARD_DIR"\' EXIT'
)


def cluster(targets=None, **options):
    """A SLURMCluster whose workers are measured; options as for SLURMCluster."""
    prologue = [BOARDS, END]
    if targets:
        prologue += [f"export DWSR_TARGETS='{targets}'", EXPORT]
    settings = {"cores": 4, "processes": 1, "memory": "8GB", "walltime": "01:00:00", **options}
    return SLURMCluster(
        worker_extra_args=["--preload", "dwsr_probe.dask.preload"],
        job_script_prologue=prologue,
        **settings,
    )


if __name__ == "__main__":
    import dask.array as da

    import dwsr_probe.dask

    with cluster(os.environ.get("DWSR_TARGETS")) as workers, workers.get_client() as client:
        workers.scale(jobs=2)
        client.wait_for_workers(1)
        volume = da.random.random((400, 400, 400), chunks=100)
        print((volume - volume.mean(axis=2, keepdims=True)).std().compute())
        print(dwsr_probe.dask.records(client).summary())
