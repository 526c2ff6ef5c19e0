#!/usr/bin/env bash
# Start a throw-away Slurm cluster on this one machine: munge, slurmctld and several slurmd with pretend GPUs.
# Root on Debian or Ubuntu. Everything lives in STATE_DIR, and ci/slurm/down.sh STATE_DIR stops it. Running it again is safe.
# Two at a time need other ports and another prefix: a job removes what jobs that its Slurm does not know left on its node.
#
# usage: up.sh [options] STATE_DIR
#   -n NODES   default 4          -c CPUS    of a node, default 2      -g GPUS  of a node, default 8
#   -m MB      of a node, 6000    -p PORT    first of NODES + 2, 17000  -x NAME  prefix of the nodes, node
#   -s COUNT   of the nodes, the last ones: a partition of their own, spare; default 0. Jobs of a third partition, urgent,
#              pre-empt those of spare, which are requeued after a time of grace of 35 s
#   -a         accounting as well (mariadb and slurmdbd), so that sacct answers
#   -l         without cgroups, which is the default where cgroup v1 cannot be written: then no job ends as OUT_OF_MEMORY,
#              and a process that a job daemonised outlives it
set -euo pipefail

die() { echo "slurm: error: $*" >&2; exit 1; }
usage() { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }

nodes=4 cpus=2 gpus=8 memory=6000 port=17000 prefix=node accounting=0 cgroups=1 spare=0
while getopts n:c:g:m:p:x:s:al option; do
  case $option in
    n) nodes=$OPTARG ;; c) cpus=$OPTARG ;; g) gpus=$OPTARG ;; m) memory=$OPTARG ;; p) port=$OPTARG ;;
    x) prefix=$OPTARG ;; s) spare=$OPTARG ;; a) accounting=1 ;; l) cgroups=0 ;; *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage

check_arguments() { # STATE_DIR
  [ "$(id -u)" = 0 ] || die "must run as root: Slurm's daemons start jobs as their users"
  command -v apt-get >/dev/null || die "needs Debian or Ubuntu, whose packages it installs"
  local name
  for name in nodes cpus gpus memory port spare; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name must be a number, not '${!name}'"
  done
  [ "$nodes" -ge 1 ] || die "at least one node is needed"
  [ "$spare" -lt "$nodes" ] || die "$spare spare nodes of $nodes leave none"
  [[ $prefix =~ ^[a-z][a-z-]*$ ]] || die "the prefix must be lower-case letters, not '$prefix'"
  # The paths of unix sockets are limited to 107 characters.
  [ ${#1} -le 70 ] || die "the path of the state folder is too long for a unix socket: $1"
}

can_use_cgroups() {
  local controller folder
  for controller in memory freezer; do
    folder=/sys/fs/cgroup/$controller/slurm-up-$$
    mkdir "$folder" 2>/dev/null && rmdir "$folder" || return 1
  done
}

install_packages() {
  local entry missing=() wanted=(munge:munged slurmctld:slurmctld slurmd:slurmd slurm-client:sbatch)
  [ "$accounting" = 0 ] || wanted+=(slurmdbd:slurmdbd mariadb-server:mariadbd)
  for entry in "${wanted[@]}"; do
    command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "slurm: installing ${missing[*]}"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
    >"$state/log/apt.log" 2>&1 || { tail -n 20 "$state/log/apt.log" >&2; die "apt-get failed ($state/log/apt.log)"; }
}

# The process of a pid file, if it lives and was started for this state folder: pids are reused.
ours() { # NAME
  local pid
  pid=$(cat "$state/run/$1.pid" 2>/dev/null) || return 1
  [[ $pid =~ ^[0-9]+$ ]] && grep -qsF "$state/" "/proc/$pid/cmdline" "/proc/$pid/environ"
}

need_port() { # PORT
  ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null || die "port $1 is taken: choose another with -p"
}

wait_for() { # SECONDS WHAT COMMAND...
  local ticks=$(($1 * 10)) what=$2
  shift 2
  while ! timeout 10 "$@" >/dev/null 2>&1; do
    ticks=$((ticks - 1))
    [ "$ticks" -gt 0 ] || die "$what did not come up (logs: $state/log)"
    sleep 0.1
  done
}

# "1" or "[1-4]"
range() { if [ "$2" = "$1" ]; then echo "$1"; else echo "[$1-$2]"; fi; }

write_configuration() {
  local process_tracking=linuxproc task=none gather=linux i gpu_files=""
  if [ "$cgroups" = 1 ]; then
    process_tracking=cgroup task=cgroup gather=cgroup
    printf '%s\n' CgroupMountpoint=/sys/fs/cgroup CgroupPlugin=cgroup/v1 CgroupAutomount=no ConstrainRAMSpace=yes \
      ConstrainSwapSpace=no ConstrainDevices=no ConstrainCores=no >"$state/etc/cgroup.conf"
  fi
  : >"$state/etc/gres.conf"
  if [ "$gpus" -gt 0 ]; then
    for ((i = 0; i < gpus; i++)); do
      [ -c "$state/dev/gpu$i" ] || mknod -m 666 "$state/dev/gpu$i" c 1 3
    done
    gpu_files=$state/dev/gpu$(range 0 $((gpus - 1)))
    echo "Name=gpu File=$gpu_files" >"$state/etc/gres.conf"
  fi
  cat >"$state/etc/slurm.conf" <<CONF
ClusterName=throwaway
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$state/munge/munge.socket,cred_expire=15
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/run/slurmctld.pid
SlurmdPidFile=$state/run/slurmd-%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd-%n.log
MailProg=/bin/true
EnforcePartLimits=ALL
ProctrackType=proctrack/$process_tracking
TaskPlugin=task/$task
MpiDefault=none
JobAcctGatherType=jobacct_gather/$gather
JobAcctGatherFrequency=task=1
$([ "$cgroups" = 1 ] || echo JobAcctGatherParams=OverMemoryKill)
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((memory / cpus))
SchedulerType=sched/backfill
$([ "$spare" = 0 ] || printf '%s\n' PreemptType=preempt/partition_prio PreemptMode=REQUEUE)
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=30
MessageTimeout=30
MinJobAge=86400
FirstJobId=$(($(date +%s) / 10 % 60000000))
KillWait=3
UnkillableStepTimeout=30
CompleteWait=0
JobRequeue=1
JobCompType=jobcomp/filetxt
JobCompLoc=$state/log/jobcomp.txt
NodeName=$prefix$(range 1 "$nodes") NodeHostname=$host NodeAddr=127.0.0.1 Port=$(range $((port + 1)) $((port + nodes))) CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory $([ -z "$gpu_files" ] || echo "Gres=gpu:$gpus") State=UNKNOWN
PartitionName=main Nodes=$prefix$(range 1 $((nodes - spare))) Default=YES DefaultTime=00:30:00 MaxTime=UNLIMITED State=UP
$([ "$spare" = 0 ] || write_spare)
CONF
  if [ "$accounting" = 1 ]; then write_accounting_configuration; fi
  echo "export SLURM_CONF=$SLURM_CONF" >"$state/env.sh"
}

write_spare() {
  local rest
  rest="Nodes=$prefix$(range $((nodes - spare + 1)) "$nodes") DefaultTime=00:30:00 MaxTime=UNLIMITED State=UP"
  echo "PartitionName=spare PriorityTier=1 PreemptMode=REQUEUE GraceTime=35 $rest"
  echo "PartitionName=urgent PriorityTier=2 PreemptMode=OFF $rest"
}

write_accounting_configuration() {
  cat >>"$state/etc/slurm.conf" <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + nodes + 1))
AccountingStoragePass=$state/munge/munge.socket
AccountingStorageTRES=gres/gpu
CONF
  (umask 077; cat >"$state/etc/slurmdbd.conf") <<CONF
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$((port + nodes + 1))
AuthType=auth/munge
AuthInfo=socket=$state/munge/munge.socket
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile=$state/log/slurmdbd.log
PidFile=$state/run/slurmdbd.pid
CONF
}

start_munge() {
  if ! ours munged; then
    [ -s "$state/munge/munge.key" ] || (umask 077; head -c 1024 /dev/urandom >"$state/munge/munge.key")
    rm -f "$state"/munge/munge.socket* "$state/run/munged.pid"
    munged --force --num-threads=10 --socket="$state/munge/munge.socket" --key-file="$state/munge/munge.key" \
      --pid-file="$state/run/munged.pid" --log-file="$state/log/munged.log" --seed-file="$state/munge/munged.seed" ||
      die "munged did not start ($state/log/munged.log)"
  fi
  wait_for 60 munged munge -S "$state/munge/munge.socket" -n
}

start_accounting() {
  local socket=$state/munge/mysql.sock
  if ! ours mariadbd; then
    [ -d "$state/db/mysql" ] || {
      mkdir -p "$state/db"
      mariadb-install-db --no-defaults --user=root --datadir="$state/db" --auth-root-authentication-method=normal \
        --skip-test-db >"$state/log/mariadb-install.log" 2>&1 || die "mariadb-install-db failed ($state/log/mariadb-install.log)"
    }
    setsid mariadbd --no-defaults --user=root --datadir="$state/db" --socket="$socket" --skip-networking \
      --pid-file="$state/run/mariadbd.pid" --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
      --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync --log-error="$state/log/mariadb.log" \
      </dev/null >/dev/null 2>&1 &
    wait_for 30 mariadbd mariadb-admin --no-defaults -S "$socket" -u root ping
    mariadb --no-defaults -S "$socket" -u root -e "create database if not exists slurm_acct_db;
      create user if not exists slurm@localhost identified by 'slurm'; grant all on slurm_acct_db.* to slurm@localhost"
  fi
  if ! ours slurmdbd; then
    need_port $((port + nodes + 1))
    MYSQL_UNIX_PORT=$socket slurmdbd || die "slurmdbd did not start ($state/log/slurmdbd.log)"
  fi
  wait_for 30 slurmdbd sacctmgr -n list cluster
}

start_slurm() {
  local i
  if ! ours slurmctld; then
    need_port "$port"
    slurmctld -f "$SLURM_CONF" || die "slurmctld did not start ($state/log/slurmctld.log)"
  fi
  wait_for 60 slurmctld scontrol ping
  for ((i = 1; i <= nodes; i++)); do
    ours "slurmd-$prefix$i" && continue
    need_port $((port + i))
    mkdir -p "$state/spool/$prefix$i"
    slurmd -f "$SLURM_CONF" -N "$prefix$i" || die "slurmd of $prefix$i did not start ($state/log/slurmd-$prefix$i.log)"
  done
}

nodes_are_up() {
  local name up
  # A node that an earlier job left down or drained.
  for name in $(timeout 5 sinfo -h -N -t down,drain -o %N | sort -u); do
    timeout 5 scontrol update nodename="$name" state=resume 2>/dev/null || true
  done
  up=$(timeout 5 sinfo -h -N -o '%N %T' | sort -u | grep -cE ' (idle|mixed|allocated|completing)$')
  [ "$up" = "$nodes" ]
}

wait_for_nodes() {
  local tick
  for ((tick = 0; tick < 240; tick++)); do
    nodes_are_up && return
    sleep 0.25
  done
  timeout 5 sinfo -N -o '%N %T %E' >&2
  die "the nodes are not up after a minute (logs: $state/log)"
}

mkdir -p "$1"
state=$(realpath "$1")
check_arguments "$state"
can_use_cgroups || cgroups=0
host=$(hostname -s)
export SLURM_CONF=$state/etc/slurm.conf
mkdir -p "$state"/{etc,run,log,munge,ctld,dev,spool}
chmod 755 "$state" "$state/munge"
parameters="$nodes $cpus $gpus $memory $port $prefix $accounting $cgroups $spare"
before=$(cat "$state/etc/parameters" 2>/dev/null || true)
if [ -n "$before" ] && [ "$before" != "$parameters" ] && ours slurmctld; then
  die "a cluster with other parameters ($before, not $parameters) runs in $state: stop it with ci/slurm/down.sh $state"
fi
install_packages
write_configuration
echo "$parameters" >"$state/etc/parameters"
start_munge
if [ "$accounting" = 1 ]; then start_accounting; fi
start_slurm
wait_for_nodes
echo "slurm: $(slurmctld -V | cut -d' ' -f2) with $nodes nodes of $cpus CPUs, $gpus pretend GPUs and $memory MB, cgroups $cgroups, accounting $accounting"
echo "slurm: . $state/env.sh   then sinfo, sbatch, srun, squeue work;   logs: $state/log;   stop: ci/slurm/down.sh $state"
