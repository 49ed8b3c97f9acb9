#!/bin/bash
# packages.sh [-i] SET... looks for the Debian packages of each set, peers or
# cluster. With -i, or where CI is set, it installs those that are missing;
# otherwise it names them with the command that installs them, and fails.
set -euo pipefail
install=${CI:+yes}
if [ "${1:-}" = -i ]; then
	install=yes
	shift
fi
packages=()
for set in "$@"; do
	case $set in
	peers) packages+=(chromium postgresql runc busybox-static) ;;
	cluster) packages+=(containerd runc containernetworking-plugins iptables nftables conntrack kmod iproute2
		git openssh-server openssh-client mmdebstrap) ;;
	*) echo "packages.sh: unknown set $set" >&2; exit 2 ;;
	esac
done
missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -Wf '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "Debian packages that are missing: ${missing[*]}" >&2
if [ -z "$install" ]; then
	echo "make deps installs them, or: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
	exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then
	root=sudo
	command -v sudo >/dev/null || { echo "installing them takes root" >&2; exit 1; }
fi
$root apt-get update -qq
# None of them is to start a server of its own.
$root env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
