#!/bin/sh
# by-digest.sh writes the digest of a release's controller into the chart's values and
# into the manifests below templates/install of this tree. It reads what ko build
# --image-refs wrote.
set -eu
image=$(sed -nE 's|^(.*/armature-controller)(:[^@]*)?@(sha256:[0-9a-f]{64})$|\1@\3|p')
case $image in
*@sha256:*) ;;
*) echo "by-digest.sh: no line is armature-controller by digest: pass the file of ko build --image-refs" >&2; exit 1 ;;
esac
sed -i "s|^image: \"\"\$|image: \"$image\"|" templates/chart/values.yaml
grep -rl '/armature-controller:' templates/install | xargs sed -i "s|image: .*/armature-controller:.*|image: $image|"
