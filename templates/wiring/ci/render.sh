#!/bin/sh
# Render in CI: fail on findings, and where the rendered folder in Git is not
# what a render makes of the manifests by now.
set -eu
armature render apps/ -o rendered/ --findings github
armature verify rendered/ --findings github
changed=$(git status --porcelain -- rendered/ ':!rendered/.armature-files')
if [ -n "$changed" ]; then
	echo "rendered/ is not up to date: run armature render apps/ -o rendered/ and commit" >&2
	echo "$changed" >&2
	exit 1
fi
