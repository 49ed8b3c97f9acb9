#!/bin/bash
# can.sh says on standard output why a cluster cannot run here, and then fails.
# STARTED is when what it belongs to began, in seconds since 1970. On a machine with cold
# caches, building the programs of a cluster and playing the stories takes about 0.9 of the
# time that all before it took, however slow the machine is; CI has 75 minutes.
late=2350
[ -z "${STARTED:-}" ] || [ $(($(date +%s) - STARTED)) -lt $late ] || [ -e .cache/bin/kubelet ] ||
	{ echo "$((($(date +%s) - STARTED) / 60)) minutes have gone already, and its programs are not built: make e2e plays them"; exit 1; }
[ "$(uname -s)" = Linux ] || { echo "it takes Linux"; exit 1; }
[ "$(id -u)" = 0 ] || { echo "it takes root, for namespaces and mounts"; exit 1; }
[ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ] || { echo "it takes Debian 12, for its containerd"; exit 1; }
problem=$(unshare --net --mount --pid --fork --mount-proc sh -c 'ip link add can0 type veth && mount -t tmpfs can /mnt' 2>&1) ||
	{ echo "namespaces cannot be made: $problem"; exit 1; }
