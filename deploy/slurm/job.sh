#!/bin/bash
# One node, one program:    sbatch deploy/slurm/job.sh python job.py
# All its processes are measured, served while it runs, and kept in dwsr-runs/slurm-JOBID (dwsr-probe report).
# DWSR_TARGETS: a directory that Prometheus reads, too (file_sd in deploy/prometheus.yml). Unset: nothing is announced, and only this node can read the port.
# DWSR_TOKEN_FILE: the bearer token that Prometheus must show. Task names, keys and shapes are readable with it, or by everybody without.
#SBATCH --job-name=dwsr-probe
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=01:00:00
set -euo pipefail
[ $# -gt 0 ] || { echo "which program? sbatch $0 python job.py" >&2; exit 2; }

port=$((9500 + SLURM_JOB_ID % 500))  # jobs share nodes
listen=$port
options=(--output "dwsr-runs/slurm-$SLURM_JOB_ID")
[ -z "${DWSR_TOKEN_FILE:-}" ] || options+=(--token-file "$DWSR_TOKEN_FILE")

if [ -n "${DWSR_TARGETS:-}" ]; then
  listen=0.0.0.0:$port
  options+=(--linger 30 --allow-host "$SLURMD_NODENAME")  # for the last scrape; the name below may not be the host's own
  target=$DWSR_TARGETS/job-$SLURM_JOB_ID.json
  trap 'rm -f "$target"' EXIT
  # The job's number stays out of the labels: one series per task and job has filled Prometheus servers before.
  printf '[{"targets": ["%s:%d"], "labels": {"dwsr_kind": "run"}}]\n' "$SLURMD_NODENAME" "$port" > "$target.new"
  mv "$target.new" "$target"
fi

srun --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" dwsr-probe run --metrics "$listen" "${options[@]}" "$@"
