#!/bin/bash
# packages.sh installs what the cluster takes from Debian, unless it is there.
set -euo pipefail
packages=(containerd runc containernetworking-plugins iptables nftables conntrack kmod iproute2
	git openssh-server openssh-client mmdebstrap)
missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -Wf '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "Debian packages to install: ${missing[*]}"
apt-get update -qq
# None of them is to start a server of its own.
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
