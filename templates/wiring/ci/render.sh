#!/bin/sh
# Render in CI: fail on findings, and where the rendered folder in Git is not
# what a render makes of the manifests by now.
set -eu
armature render apps/ -c armature.yaml -d rendered/ --findings github
armature verify rendered/ -c armature.yaml --findings github
changed=$(git status --porcelain -- rendered/)
if [ -n "$changed" ]; then
	echo "rendered/ is not up to date: run armature render apps/ -c armature.yaml -d rendered/ and commit" >&2
	echo "$changed" >&2
	exit 1
fi
