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
# What is linked is kept for the other tiers; CI runs all of them at once.
GOFLAGS=${GOFLAGS:-}
[[ $PWD == *' '* || -n ${CI:-} ]] || export GOFLAGS=${GOFLAGS/"=env GOGC=400"/"=$PWD/e2e/link.sh"}
packages=("$@") short=()
if [ "${ARMATURE_TEST_SERVERS:-}" = none ]; then
	# Less of what only takes long, and no package is linked that says Only of controlplane or
	# programs, or has benchmarks alone.
	short=(-short)
	with() { git grep --untracked -lE "$1" -- '*_test.go' | xargs -n1 dirname | sort -u; }
	mapfile -t unlinked < <({
		with '^var _ = (controlplane|programs)\.Only$'
		comm -23 <(with '^func Benchmark') <(with '^func (Test|Fuzz)[A-Z].*\*testing\.[TF]\)')
	} | sort -u)
	mapfile -t packages < <(go list -find "$@" | grep -vE "/($(IFS='|'; echo "${unlinked[*]}"))\$")
fi
# Tests wait for servers more than they compute: two packages for each processor. vet is
# a target of its own, and programs of which nothing is debugged need no tables for it.
go run gotest.tools/gotestsum@v1.13.0 --format=pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile="$dir/log" \
	"${again[@]}" --packages="${packages[*]}" -- "${short[@]}" -p $((2 * $(nproc))) -vet=off -ldflags=-w -timeout 30m || status=$?
count() { grep -cE "$1" "$dir/log" || true; }
tell() { [ "$1" = 0 ] || echo "$1 tests $2"; }
servers=$(count '"Output":"SKIPPED .*make test-servers')
[ -z "${unlinked:-}" ] || servers=$((servers + $(git grep -hE '^func Test[A-Z].*\(t ' -- "${unlinked[@]/%//*_test.go}" | wc -l)))
tell "$servers" "are not in this tier: make test-servers runs them"
tell "$(count '"Output":"SKIPPED .*make test-peers')" "are not in this tier: make test-peers runs them"
tell "$(count '"Output":.*run it without -short')" "take long: make test-servers runs them"
if [ -s "$dir/again" ]; then
	printf '\n*** THESE TESTS FAILED ONCE AND PASSED WHEN THEY RAN AGAIN:\n'
	cat "$dir/again"
fi
exit $status
