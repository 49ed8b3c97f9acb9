#!/bin/bash
# compile.sh REVISION... compiles armature of each revision from nothing, with the flags of
# the Makefile, and prints what that took: compare revisions in the same run, because machines
# differ.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
printf '%-12s %9s %8s %12s %8s\n' revision packages MB 'CPU seconds' seconds
for revision; do
	mkdir "$work/source"
	git archive "$revision" | tar -x -C "$work/source"
	(
		cd "$work/source"
		packages=$(go list -deps ./cmd/armature | wc -l) # downloads what is missing, too
		export GOCACHE=$work/cache
		TIMEFORMAT='%U %S %R'
		took=$({ time go build -o "$work/armature" ./cmd/armature; } 2>&1)
		echo "$revision $packages $(stat -c %s "$work/armature") $took"
	) | awk '{ printf "%-12s %9d %8.1f %12.0f %8.0f\n", $1, $2, $3 / 1e6, $4 + $5, $6 }'
	rm -rf "$work/source" "$work/cache" "$work/armature"
done
