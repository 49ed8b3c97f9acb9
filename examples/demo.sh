#!/usr/bin/env bash
# Renders the weather agent and shows what came around it, first with armature-fn,
# which compiles in a minute, and then with the whole tool. Arguments go to go build.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
flags=("$@")

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# compile PROGRAM builds a command into bin, and says every 250 packages how far it
# is. What the compiler says besides the names of packages is shown.
compile() {
	printf 'compiling %s (%s)\n' "$1" "$2"
	"${GO:-go}" build -v "${flags[@]}" -o bin/ "./cmd/$1" 2>&1 | awk '
		/^[a-zA-Z0-9][a-zA-Z0-9._\/~-]*$/ { if (++n % 250 == 0) { print "  " n " packages compiled"; fflush() }; next }
		{ print; fflush() }
	'
}

compile armature-fn "a minute the first time, seconds later"

step "armature-fn render examples/weather-agent > rendered.yaml"
bin/armature-fn render examples/weather-agent > "$out/rendered.yaml"
grep -E '^kind: ' "$out/rendered.yaml" | sort | uniq -c

step "What came around the container of examples/weather-agent/deployment.yaml, in the order in which it starts:"
awk '
	/^      initContainers:/ { inside = 1; next }
	/^      [a-z]/ { inside = 0 }
	inside && /^        - name:/ { if (name) print line(); name = $3; image = user = ports = kind = ""; kind = "runs once" }
	inside && /^          image:/ { image = $2; gsub(/"/, "", image); sub(/.*\//, "", image) }
	inside && /^          restartPolicy: Always/ { kind = "sidecar" }
	inside && /containerPort:/ { ports = ports " " ($2 == "containerPort:" ? $3 : $2) }
	inside && /runAsUser:/ { user = $2 }
	END { print line(); print "  then agent, with /etc/kagenti/trace mounted" }
	function line() { return sprintf("  %-20s %-40s uid %-5s %-10s ports%s", name, image, user, kind, ports ? ports : " none") }
' "$out/rendered.yaml"

step "The whole tool does the rest"
compile armature "minutes the first time, seconds later"

step "armature render examples/weather-agent -d rendered/"
bin/armature render examples/weather-agent -d "$out/rendered"

step "What was added to the author's file (lines that got another value: $(diff examples/weather-agent/deployment.yaml "$out/rendered/deployment.yaml" | grep -c '^<' || :))"
diff -u examples/weather-agent/deployment.yaml "$out/rendered/deployment.yaml" > "$out/diff" || :
sed -n '3,22p' "$out/diff" | cut -c1-120
echo "  … $(grep -c '^+' "$out/diff") lines added in all"

step "The objects that it generated beside it:"
grep -hE -A3 '^kind: ConfigMap' "$out"/rendered/*.yaml | grep -E '^(kind| +name)'

step "armature render rendered/ | cmp: rendering again changes nothing"
bin/armature render -q "$out/rendered" -d "$out/again"
diff -r -x .armature-files "$out/rendered" "$out/again" && echo "byte-identical"

step "armature uninject rendered/: the author's bytes come back"
bin/armature uninject -q "$out/rendered" -d "$out/back"
diff -r -x .armature-files examples/weather-agent "$out/back" && echo "byte-identical to examples/weather-agent"

step "armature verify: what opted in and is not rendered fails"
bin/armature verify "$out/rendered"
if bin/armature verify examples/weather-agent 2> "$out/verify"; then
	echo "verify passed manifests that were not rendered" >&2
	exit 1
fi
grep -A1 'was not rendered' "$out/verify"

step "All examples, as one stream"
for example in examples/*/; do
	find "$example" -name '*.yaml' -print -quit | grep -q . || continue
	printf '%-28s ' "$(basename "$example")"
	[ ! -d "$example/app" ] || example+=app
	bin/armature render "$example" 2>&1 >/dev/null | grep 'injected,'
done

step "armature build plan examples/builds/weather.yaml: the Tekton pipeline that an AgentBuild becomes, without a cluster"
bin/armature build plan examples/builds/weather.yaml --graph

step "armature build run examples/builds/weather.yaml --local: the same pipeline on this machine, with BuildKit"
if bin/armature build run examples/builds/weather.yaml --local --timeout 10m 2> "$out/problem"; then
	head -1 "$out/problem"
else
	sed -n 's/^armature: /not built: /p; s/^agentbuild weather was //p' "$out/problem" | head -1
fi

step "Next: your own manifests, with docs/getting-started.md"
