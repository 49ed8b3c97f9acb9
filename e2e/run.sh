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
stories() { go test -json -count=1 -parallel=8 -timeout=45m ./e2e/stories "$@" | "$cache/bin/report"; }
case " $* " in *" -bench "*) stories() { go test -count=1 -run='^$' -timeout=60m ./e2e/stories "$@"; } ;; esac

timed "our commands" make --no-print-directory e2e-commands
if [ -z "${E2E_KUBECONFIG:-}" ]; then
	export E2E_KUBECONFIG=$cache/cluster/kubeconfig E2E_INFO=$cache/cluster/info.json
	timed "programs, from Go modules" make --no-print-directory cluster-programs
	timed "Debian packages" make --no-print-directory cluster-packages
	timed "images" "$cache/bin/cluster" build "$cache"
	timed "cluster" "$cache/bin/cluster" up "$cache"
fi
status=0
timed "stories" stories "$@" || status=$?
echo
echo "where the time went:"
printf '%s\n' "${times[@]}"
printf '%7d s  all\n' $((SECONDS - began))
exit $status
