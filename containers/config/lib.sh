# Shared by the scripts of the test cluster's containers.
# shellcheck shell=bash disable=SC2034 # the scripts use these
CONFIG=${BASH_SOURCE[0]%/*}
ETC=${BERTH_CLUSTER_ETC:-/etc/slurm}
STATE=/run/cluster
LOGS=/var/log/cluster
READY=$ETC/.ready
MUNGE_KEY=$ETC/.munge.key
TOPOLOGY=$ETC/berth/topology
# What nodes say of themselves where they register themselves, and those that are powered up.
DYNAMIC=$ETC/.dynamic-nodes
POWER=$ETC/power

fail() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# All containers of a cluster share /etc/slurm; ctl writes it once, the others wait for it.
wait_for_config() {
	local tries=600
	until [ -e "$READY" ]; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || fail "no $READY after 60 s: look at the log of ctl"
		sleep 0.1
	done
}

# start_munge [WRAPPER...]. The key of this cluster's controller; that of the image may differ from the one in another.
start_munge() {
	[ "${AUTH:-munge}" = munge ] || return 0
	install -o munge -g munge -m 400 "$MUNGE_KEY" /etc/munge/munge.key
	install -d -o munge -g munge -m 755 /run/munge
	setpriv --reuid=munge --regid=munge --init-groups "$@" munged
}

# keep NAME COMMAND... &: run it, and again whenever it ends, unless `svc NAME stop` forbids it. Each daemon is the
# leader of a process group of its own, so that a signal reaches all its processes.
keep() {
	local name=$1 status
	shift
	exec > >(tee -a "$LOGS/$name.log") 2>&1
	while :; do
		if [ -e "$STATE/$name.stopped" ]; then
			sleep 0.1
			continue
		fi
		setsid "$@" &
		echo $! >"$STATE/$name.pid"
		status=0
		wait $! || status=$?
		rm -f "$STATE/$name.pid"
		echo "cluster: $name ended with status $status"
		sleep 0.2
	done
}
