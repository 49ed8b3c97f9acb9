#!/bin/sh
# Render in CI: fail on findings, and on a rendered folder that is not up to date.
set -eu
armature render apps/ -o rendered/ --findings github
armature verify rendered/ --findings github
git diff --exit-code -- rendered/
