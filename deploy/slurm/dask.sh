#!/bin/bash
# A Dask cluster on several nodes, with one exporter on each:    sbatch --nodes=4 deploy/slurm/dask.sh python job.py
# job.py finds the cluster with a plain `Client()`. Administrators: with deploy/systemd on the nodes, no exporter is needed here.
# DWSR_TARGETS, DWSR_TOKEN_FILE: as in job.sh. DWSR_LINGER: how many seconds the exporters stay for the last scrape (15).
#SBATCH --job-name=dwsr-probe-dask
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=01:00:00
set -euo pipefail
[ $# -gt 0 ] || { echo "which program? sbatch $0 python job.py" >&2; exit 2; }

# Boards of this job only, in memory, so that jobs of one user on one node are not counted twice.
export DWSR_PROBE_BOARD_DIR=${DWSR_BOARDS:-/dev/shm}/dwsr-probe-$SLURM_JOB_ID
export DWSR_PORT=$((9500 + SLURM_JOB_ID % 500))
work=$(mktemp -d "$PWD/.dask-$SLURM_JOB_ID-XXXXXX")  # where all nodes see it
every_node=(srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
memory=auto
[ -z "${SLURM_MEM_PER_NODE:-}" ] || memory=${SLURM_MEM_PER_NODE}MiB

# Steps end by scancel: a signal to srun itself would make SLURM kill them before they can clean up.
end() {
  trap - EXIT TERM
  [ -z "${DWSR_TARGETS:-}" ] || sleep "${DWSR_LINGER:-15}"  # for the last scrape
  scancel --quiet --signal=TERM "$SLURM_JOB_ID" || true
  [ -z "${scheduler:-}" ] || kill "$scheduler" 2>/dev/null || true
  wait
  rm -rf "$DWSR_PROBE_BOARD_DIR"
  [ -z "${DWSR_TARGETS:-}" ] || rm -f "$DWSR_TARGETS"/*-"$SLURM_JOB_ID".json
  rm -rf "$work"
}
trap end EXIT
trap 'DWSR_LINGER=0; exit 143' TERM

interface=(${DASK_INTERFACE:+--interface "$DASK_INTERFACE"})  # ib0, for example
dask scheduler "${interface[@]}" --port 0 --dashboard-address :0 --scheduler-file "$work/scheduler.json" &
scheduler=$!

if [ -n "${DWSR_TARGETS:-}" ]; then
  # shellcheck disable=SC2016  # each node says its own name
  "${every_node[@]}" bash -c 'exec dwsr-probe export --listen "0.0.0.0:$DWSR_PORT" --board-dir "$DWSR_PROBE_BOARD_DIR" \
      --file-sd "$DWSR_TARGETS/$SLURMD_NODENAME-$SLURM_JOB_ID.json" --advertise "$SLURMD_NODENAME:$DWSR_PORT" \
      ${DWSR_TOKEN_FILE:+--token-file "$DWSR_TOKEN_FILE"}' &
fi

# Each node's boards go with its worker: what killed workers have left would stay in memory. Administrators: the same line in the nodes' Epilog is certain.
# shellcheck disable=SC2016
"${every_node[@]}" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
  bash -c 'trap : TERM; "$@" & wait $!; wait $!; code=$?; sleep 1; rm -rf "$DWSR_PROBE_BOARD_DIR"; exit $code' - \
  dask worker "${interface[@]}" --scheduler-file "$work/scheduler.json" --nthreads "${SLURM_CPUS_PER_TASK:-1}" --memory-limit "$memory" \
  --local-directory "${SLURM_TMPDIR:-/tmp}" --preload dwsr_probe.dask.preload &

until [ -s "$work/scheduler.json" ]; do
  kill -0 "$scheduler" 2>/dev/null || { echo "the scheduler did not start" >&2; exit 1; }
  sleep 0.2
done
DASK_SCHEDULER_ADDRESS=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$work/scheduler.json")
export DASK_SCHEDULER_ADDRESS
"$@"
