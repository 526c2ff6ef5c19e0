#!/usr/bin/env bash
# Stop the cluster that ci/slurm/up.sh started in STATE_DIR: its own processes, by pid, and what its jobs left behind.
#
# usage: down.sh [-r] STATE_DIR      -r removes STATE_DIR as well
set -uo pipefail

remove=0
if [ "${1:-}" = -r ]; then remove=1; shift; fi
[ $# -eq 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ -d "$1" ] || { echo "slurm: nothing at $1" >&2; exit 0; }
state=$(realpath "$1")
[ -f "$state/etc/parameters" ] || { echo "slurm: error: ci/slurm/up.sh did not make $state" >&2; exit 1; }
export SLURM_CONF=$state/etc/slurm.conf

alive() { # PID
  local status
  status=$(sed -n 's/^State:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null) && [[ -n $status && $status != Z* ]]
}

# The pid of a pid file, if that process was started for this state folder.
pid_of() { # NAME
  local pid
  pid=$(cat "$state/run/$1.pid" 2>/dev/null) || return 1
  [[ $pid =~ ^[0-9]+$ ]] && grep -qsF "$state/" "/proc/$pid/cmdline" "/proc/$pid/environ" && echo "$pid"
}

stop() { # NAME
  local pid tick
  if pid=$(pid_of "$1"); then
    kill "$pid" 2>/dev/null
    for ((tick = 0; tick < 100; tick++)); do alive "$pid" || break; sleep 0.1; done
    if alive "$pid"; then
      echo "slurm: $1 ($pid) ignored SIGTERM and is killed" >&2
      kill -9 "$pid"
    fi
  fi
  rm -f "$state/run/$1.pid"
}

cancel_jobs() {
  local tick
  pid_of slurmctld >/dev/null && timeout 5 scontrol ping >/dev/null 2>&1 || return
  timeout 5 scancel --partition=main >/dev/null 2>&1
  for ((tick = 0; tick < 80; tick++)); do
    [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break
    sleep 0.1
  done
}

# slurmstepd and what it started outlive slurmd; SLURM_CONF or the job's own variables in their environment tell them.
left_by_jobs() {
  local folder pid
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    [ "$pid" != $$ ] || continue
    grep -qsxzF "SLURM_CONF=$SLURM_CONF" "$folder/environ" && grep -qsz '^SLURM_JOB_ID=' "$folder/environ" && echo "$pid"
  done
}

cancel_jobs
for file in "$state"/run/slurmd-*.pid; do
  [ -e "$file" ] && stop "$(basename "$file" .pid)"
done
for pid in $(left_by_jobs); do
  echo "slurm: a job left process $pid ($(cat "/proc/$pid/comm" 2>/dev/null)), which is killed" >&2
  kill -9 "$pid" 2>/dev/null
done
for name in slurmctld slurmdbd mariadbd munged; do stop "$name"; done
names=$(sed -n 's/^NodeName=\([^ ]*\) .*/\1/p' "$SLURM_CONF")
for name in $(scontrol show hostnames "$names"); do
  find /sys/fs/cgroup/*/"slurm_$name" -depth -type d -exec rmdir {} \; 2>/dev/null
done
if [ "$remove" = 1 ]; then rm -rf "$state"; fi
echo "slurm: stopped"
