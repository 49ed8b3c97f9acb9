#!/bin/bash
# can.sh says on standard output why a cluster cannot run here, and then fails.
[ "$(uname -s)" = Linux ] || { echo "it takes Linux"; exit 1; }
[ "$(id -u)" = 0 ] || { echo "it takes root, for namespaces and mounts"; exit 1; }
[ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ] || { echo "it takes Debian 12, for its containerd"; exit 1; }
problem=$(unshare --net --mount --pid --fork --mount-proc sh -c 'ip link add can0 type veth && mount -t tmpfs can /mnt' 2>&1) ||
	{ echo "namespaces cannot be made: $problem"; exit 1; }
