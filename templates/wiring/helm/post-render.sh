#!/bin/sh
# Helm 3 renders releases with Armature:
#
#   helm upgrade --install web chart/ --post-renderer FOLDER/post-render.sh
#
# Helm 3 passes no hooks to post-renderers: they stay as the chart has them. Helm 4
# does, and takes plugin.yaml. The armature.yaml beside this file is the configuration.
exec armature-fn helm "$(dirname "$0")"
