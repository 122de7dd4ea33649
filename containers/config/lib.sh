# Shared by the scripts of the test cluster's containers.
CONFIG=/usr/share/berth-cluster
STATE=/run/cluster
LOGS=/var/log/cluster
READY=/etc/slurm/.ready
TOPOLOGY=/etc/slurm/berth/topology

fail() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# keep NAME COMMAND...: run it, and again whenever it ends, unless `svc NAME stop` forbids it. Each daemon is the
# leader of a process group of its own, so that a signal reaches all its processes.
keep() {
	local name=$1 status
	shift
	while :; do
		if [ -e "$STATE/$name.stopped" ]; then
			sleep 0.1
			continue
		fi
		setsid "$@" > >(tee -a "$LOGS/$name.log") 2>&1 &
		echo $! >"$STATE/$name.pid"
		status=0
		wait $! || status=$?
		rm -f "$STATE/$name.pid"
		echo "cluster: $name ended with status $status" | tee -a "$LOGS/$name.log"
		sleep 0.2
	done
}
