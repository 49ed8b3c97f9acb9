#!/bin/bash
# package.sh PACKAGE PROGRAM: install a Debian package unless its program is there.
# Where that cannot be done, say so and go on: the tests that need it say so too,
# and fail where CI is set.
set -uo pipefail
compgen -G "$2" >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "NO $1: it takes root and Debian to install it; tests that need it are skipped" >&2
	exit 0
fi
echo "Debian package to install: $1"
apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null ||
	echo "NO $1: apt-get failed; tests that need it are skipped" >&2
