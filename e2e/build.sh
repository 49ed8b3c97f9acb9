#!/bin/bash
# build.sh NAME FOLDER PACKAGE [ALIAS...] builds PACKAGE in e2e/FOLDER, most often
# a Go module of its own, as .cache/bin/NAME, and makes each ALIAS a link to it.
# A NAME that ends in a slash is the folder that it goes to, and so is that of the
# package `tool`, which means the tools in the module's go.mod. Nothing happens if
# that was done and neither folder nor toolchain has changed since.
set -euo pipefail
cd "$(dirname "$0")"
name=${1%/} folder=$2 package=$3
bin=$PWD/../.cache/bin
out=$bin/$1
[ "$package" != tool ] || out=$bin/$name/
shift 3
mkdir -p "$bin"

cd "$folder"
inputs=$({ go version; cat "$OLDPWD/build.sh"; find . -type f | LC_ALL=C sort | xargs sha256sum; } | sha256sum)
if [ -e "$out" ] && [ "$(cat "$bin/.$name" 2>/dev/null)" = "$inputs" ]; then
	echo "$name: up to date"
else
	echo "$name: building from e2e/$folder (minutes the first time, seconds later)"
	SECONDS=0
	# Kubernetes components compare versions, so theirs has to be set. Other
	# programs lack these variables, and the linker passes over them.
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes 2>/dev/null || echo v0.0.0)
	IFS=. read -r major minor _ <<<"${version#v}"
	v=k8s.io/component-base/version
	CGO_ENABLED=0 go build -o "$out" -ldflags "-s -w -X $v.gitVersion=$version -X $v.gitMajor=$major -X $v.gitMinor=$minor" "$package"
	echo "$inputs" >"$bin/.$name"
	echo "$name: built in $SECONDS s"
fi
# A link that is made again would be a file that changed, and Go would run the tests again.
for alias in "$@"; do [ "$(readlink "$bin/$alias")" = "$name" ] || ln -sf "$name" "$bin/$alias"; done
