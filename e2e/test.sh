#!/bin/bash
# test.sh PACKAGE... runs Go tests, and counts at the end those that another target of
# the Makefile runs. In CI what fails runs once more, and what then passes is named.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
again=()
[ -z "${CI:-}" ] || again=(--rerun-fails=1 --rerun-fails-max-failures=8 --rerun-fails-report="$dir/again")
status=0
# Tests collect garbage less often, which a third of their CPU went to. Those that measure the
# memory of a program run it with GOGC=100.
export GOGC=400
# Tests wait for servers more than they compute: two packages for each processor. vet is
# a target of its own, and programs of which nothing is debugged need no tables for it.
go run gotest.tools/gotestsum@v1.13.0 --format=pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile="$dir/log" \
	"${again[@]}" --packages="$*" -- -p $((2 * $(nproc))) -vet=off -ldflags=-w -timeout 25m || status=$?
for target in test-servers test-peers; do
	skipped=$(grep -c "\"Output\":\"SKIPPED .*make $target" "$dir/log" || true)
	[ "$skipped" = 0 ] || echo "$skipped tests are not in this tier: make $target runs them"
done
if [ -s "$dir/again" ]; then
	printf '\n*** THESE TESTS FAILED ONCE AND PASSED WHEN THEY RAN AGAIN:\n'
	cat "$dir/again"
fi
exit $status
