#!/bin/bash
# scale.sh ROW[:SIZE,...]... measures rows of the table that it prints at the end. A row that
# fails or takes too long is named, and the others go on. Nothing is left when it ends.
set -uo pipefail
cd "$(dirname "$0")/../.."
declare -A package=(
	[sources]=./render/deliver/flux/controller [kustomize]=./e2e/bench/scale [argocd]=./e2e/bench/scale
	[attest]=./builds/controller [fleet]=./e2e/bench/scale
)
declare -A bench=([sources]=Sources [kustomize]=Kustomize [argocd]=ArgoCD [attest]=Attest [fleet]=Fleet)
for row in "$@"; do
	[ -n "${bench[${row%%:*}]:-}" ] || { echo "no row ${row%%:*}: there are ${!bench[*]}"; exit 2; } >&2
done

# Each row, in seconds.
limit=${LIMIT:-1500}
TMPDIR=$(mktemp -d)
chmod 711 "$TMPDIR" # PostgreSQL runs as another user
running=
end() {
	[ -z "$running" ] || { kill -TERM "$running"; wait "$running"; } 2>/dev/null
	rmdir /sys/fs/cgroup/{,cpu/}armature-scale-* 2>/dev/null
	chmod -R u+rwX "$TMPDIR" 2>/dev/null
	rm -rf "$TMPDIR"
}
trap end EXIT
trap 'exit 130' INT TERM
export TMPDIR ARMATURE_SCALE_BIN=$TMPDIR/bin ARMATURE_TEST_SERVERS=required ARMATURE_TEST_PEERS=required
echo "compiling the programs"
go build -o "$ARMATURE_SCALE_BIN/" ./cmd/armature ./cmd/armature-controller ./cmd/armature-fn || exit

failed=()
for row in "$@"; do
	name=${row%%:*} sizes=${row#"$name"}
	echo "$row: compiling the benchmark"
	go test -vet=off -c -o "$TMPDIR/$name.test" "${package[$name]}" || { failed+=("$row: it does not compile"); continue; }
	SECONDS=0
	# The group that timeout makes ends as a whole.
	(cd "${package[$name]}" && ARMATURE_SCALE_SIZES=${sizes#:} exec timeout -k 10 "$limit" \
		"$TMPDIR/$name.test" -test.run='^$' -test.bench="^BenchmarkScale${bench[$name]}\$" -test.benchtime=1x) > >(tee -a "$TMPDIR/rows") 2>&1 &
	running=$!
	wait "$running"
	status=$?
	running=
	sleep 0.5 # tee ends
	case $status in
	0) echo "$row: $SECONDS s" ;;
	124 | 137) failed+=("$row: not done in $limit s, which LIMIT sets") ;;
	*) failed+=("$row: failed after $SECONDS s: see above") ;;
	esac
done
echo
echo "| what | N | ours: wall, CPU, peak memory | peer | ours over peer | command |"
echo "|---|---|---|---|---|---|"
grep '^| ' "$TMPDIR/rows"
for f in "${failed[@]}"; do echo "FAILED $f"; done >&2
[ ${#failed[@]} = 0 ]
