#!/bin/bash
# run.sh brings up a cluster, unless E2E_KUBECONFIG names one, plays the stories
# on it, and says where the time went. -run and other flags go to go test; with
# -bench it plays no story.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/.cache
export PATH=$cache/bin:$PATH
times=()
began=$SECONDS
timed() {
	local name=$1 start=$SECONDS status=0
	shift
	"$@" || status=$?
	times+=("$(printf '%7d s  %s' $((SECONDS - start)) "$name")")
	return $status
}
# In CI a story that fails runs once more.
again=()
[ -z "${CI:-}" ] || again=(--rerun-fails=1 --rerun-fails-max-failures=5)
stories() {
	ARMATURE_TEST_SERVERS=required ARMATURE_TEST_PEERS=required go run gotest.tools/gotestsum@v1.13.0 --format=testname "${again[@]}" --packages=./e2e/stories -- \
		-count=1 -parallel=8 -timeout=45m "$@"
}
case " $* " in *" -bench "*) stories() { go test -count=1 -run='^$' -timeout=60m ./e2e/stories "$@"; } ;; esac

# What this machine lacks is said before anything is compiled.
if [ -z "${E2E_KUBECONFIG:-}" ]; then
	why=$(env -u STARTED e2e/can.sh) || { echo "a cluster cannot run here: $why"; echo "E2E_KUBECONFIG names another one"; exit 1; } >&2
	timed "Debian packages" e2e/packages.sh cluster
fi
timed "our commands" make --no-print-directory e2e-commands
case " $* " in *" -bench "*) ;; *) timed "programs of stories" make --no-print-directory story-programs ;; esac
if [ -z "${E2E_KUBECONFIG:-}" ]; then
	export E2E_KUBECONFIG=$cache/cluster/kubeconfig E2E_INFO=$cache/cluster/info.json
	timed "programs, from Go modules" make --no-print-directory cluster-programs
	timed "images" "$cache/bin/cluster" build "$cache"
	timed "cluster" "$cache/bin/cluster" up "$cache"
fi
# What stories measure; a passed test shows no log.
E2E_FIGURES=$(mktemp)
export E2E_FIGURES
trap 'rm -f "$E2E_FIGURES"' EXIT
status=0
timed "stories" stories "$@" || status=$?
cat "$E2E_FIGURES"
echo
echo "where the time went:"
printf '%s\n' "${times[@]}"
printf '%7d s  all\n' $((SECONDS - began))
exit $status
