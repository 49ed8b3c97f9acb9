#!/usr/bin/env bash
# check.sh is what the GitHub Action runs. Findings become annotations of the pull
# request; what the change means goes to the summary of the job. It reads
# ARMATURE_PATH, ARMATURE_RENDERED and ARMATURE_AGAINST, which action.yml explains.
set -euo pipefail
path=$ARMATURE_PATH rendered=$ARMATURE_RENDERED against=$ARMATURE_AGAINST
git() { GIT_NO_LAZY_FETCH=1 command git -c safe.bareRepository=explicit -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"; } # no file of the change decides what is run
armature lint "$path" -o github # where it fails, the rest would report the same

status=0
if [ -n "$rendered" ]; then
	into=(-d "$rendered")
	[ "$rendered" != "$path" ] || into=(--in-place)
	armature render "$path" "${into[@]}" --check --findings github || status=1
fi

if [ -n "$against" ]; then
	git cat-file -e "$against^{commit}" 2>/dev/null || git fetch --quiet --no-tags --depth=1 origin "$against"
	armature diff "$path" --against "$against" -o markdown >>"$GITHUB_STEP_SUMMARY" || status=1
fi
exit "$status"
