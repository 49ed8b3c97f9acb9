#!/bin/bash
# newcomer.sh [REVISION...] measures what somebody waits for who has cloned the repository:
# the targets of the Makefile in TARGETS (demo and test) in an empty clone with an empty
# build cache, then the tests that need no server with a full one, as make test runs them, and
# a fixed go build, because machines differ. Modules are downloaded before the clock starts.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# timed LABEL COMMAND... prints how long a command takes.
timed() {
	local label=$1 status=0 TIMEFORMAT='%R %U %S' wall user system
	shift
	{ time "$@" >"$work/log" 2>&1 || status=$?; } 2>"$work/times"
	read -r wall user system <"$work/times"
	awk -v l="$label" -v w="$wall" -v c="$user" -v s="$system" 'BEGIN { printf "%-50s %6.0f s %6.0f s CPU\n", l, w, c + s }'
	[ "$status" = 0 ] || tail -40 "$work/log"
	return "$status"
}

# alone lists the packages whose tests start no server and no program of others, as a
# revision without tiers cannot say it.
alone() {
	go list -test -f '{{if eq .Name "main"}}{{$p := .ImportPath}}{{range .Deps}}{{if or (eq . "github.com/armature-dev/armature/e2e/controlplane") (eq . "github.com/armature-dev/armature/e2e/programs")}}{{$p = ""}}{{end}}{{end}}{{$p}}{{end}}' ./... |
		sed -n 's/\.test$//p'
}

for revision in "${@:-HEAD}"; do
	cd "$top"
	echo "$revision: $(git log -1 --format='%h %s' "$revision")"
	git clone -q "$top" "$work/$revision"
	export GOCACHE=$work/cache-$revision
	timed "go build std, from nothing" go build std
	rm -rf "$GOCACHE"
	cd "$work/$revision"
	git checkout -q "$revision"
	go mod download
	for target in ${TARGETS-demo test}; do timed "make $target, from nothing" make "$target"; done
	mapfile -t packages < <(alone)
	warm=(go test -count=1 -vet=off -ldflags=-w -timeout 25m "${packages[@]}")
	if [ -f e2e/link.sh ]; then
		warm=(env ARMATURE_TEST_SERVERS=none GOFLAGS="-buildvcs=false -count=1 '-toolexec=env GOGC=400'" e2e/test.sh "${packages[@]}")
	fi
	timed "tests of ${#packages[@]} packages without servers" "${warm[@]}"
	timed "the same with a full cache" "${warm[@]}"
	if [ -f e2e/link.sh ]; then timed "make test with a full cache" env GOFLAGS=-count=1 make test; fi
	rm -rf "$GOCACHE"
done
