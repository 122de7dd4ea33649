#!/bin/bash
# Inside a container of the test cluster's image: a lone slurmctld that knows 1,024 nodes of 8 GPUs, none of them there
# (powered-down cloud nodes), which is all that a submission needs. GPUs are named as Berth needs it, or `by-model`.
set -eu
nodes=$1 layout=${2:-by-position}
install -d -o munge -g munge -m 755 /run/munge
setpriv --reuid=munge --regid=munge --init-groups munged
install -d -o slurm -g slurm /var/spool/slurmctld /run/berth /var/log/berth
install -d /etc/slurm/berth/topology

gres=
for gpu in 0 1 2 3 4 5 6 7; do gres="${gres}gpu:g$gpu:1,"; done
for gpu in 0 1 2 3 4 5 6 7; do gres="${gres}shard:g$gpu:100,"; done
for gpu in 0 1 2 3 4 5 6 7; do gres="${gres}seat:g$gpu:1,"; done
types=gpu,shard,seat
if [ "$layout" = by-model ]; then gres=gpu:h100:8 types=gpu; fi

plugins=$(dirname "$(find /usr/lib* -name job_submit_berth.so)")
cat >/etc/slurm/slurm.conf <<END
ClusterName=bench
SlurmctldHost=$(hostname)
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
SlurmctldPidFile=/run/berth/slurmctld.pid
SlurmctldLogFile=/var/log/berth/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
MaxJobCount=100000
SchedulerParameters=disable_job_shrink,batch_sched_delay=0,bf_interval=2,bf_continue
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=INFINITE
ResumeTimeout=36000
GresTypes=$types
PluginDir=$plugins:/usr/libexec/berth-bench
#JobSubmitPlugins
NodeName=g[1-$nodes] State=CLOUD Sockets=2 CoresPerSocket=32 RealMemory=500000 Feature=h100 Gres=${gres%,}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
for gpu in 0 1 2 3 4 5 6 7; do
	echo "NodeName=g[1-$nodes] Name=gpu Type=g$gpu File=/dev/nvidia$gpu"
	echo "NodeName=g[1-$nodes] Name=shard Type=g$gpu Count=100 File=/dev/nvidia$gpu"
	echo "NodeName=g[1-$nodes] Name=seat Type=g$gpu File=/dev/nvidia$gpu"
done >/etc/slurm/gres.conf
if [ "$layout" = by-model ]; then
	echo "NodeName=g[1-$nodes] Name=gpu Type=h100 File=/dev/nvidia[0-7]" >/etc/slurm/gres.conf
fi
echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf
printf '[hook]\nmessage = "flags"\nhook_log = "/var/log/berth/hook.log"\n' >/etc/slurm/berth.conf

export BERTH_FAKE_NVML=/usr/share/berth-fake/machines/hgx-h100
berth topo discover --node g1 --output /etc/slurm/berth/topology/g1.json >/dev/null
for number in $(seq 2 "$nodes"); do
	sed "s/\"node\": \"g1\"/\"node\": \"g$number\"/" /etc/slurm/berth/topology/g1.json >"/etc/slurm/berth/topology/g$number.json"
done
