#!/bin/sh
# Check in CI: fail on findings, and with a diff where the rendered folder in Git is
# not what a render writes now.
set -eu
armature render apps/ -c armature.yaml -d rendered/ --check --findings github
