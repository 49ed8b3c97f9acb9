#!/bin/sh
# flux-plugin.sh TAG <checksums.txt prints the manifest of flux-armature for a catalog
# of plugins of Flux's CLI (RFC-0013). It names the archives that krew takes.
set -eu
version=${1#v}
home=https://github.com/armature-dev/armature
platforms=
while read -r sum file; do
	platform=${file#"kubectl-armature_${version}_"}
	[ "$platform" != "$file" ] || continue
	case $platform in *.tar.gz) platform=${platform%.tar.gz} ;; *) continue ;; esac
	platforms="$platforms
      - os: ${platform%_*}
        arch: ${platform##*_}
        url: $home/releases/download/$1/$file
        checksum: sha256:$sum
        extractPath: armature"
done
[ -n "$platforms" ] || { echo "flux-plugin.sh: no archive of version $version is in the checksums" >&2; exit 1; }
cat <<END
apiVersion: cli.fluxcd.io/v1beta1
kind: Plugin
name: armature
description: Render agents with their identity, build and deliver them
homepage: $home
source: $home
bin: flux-armature
versions:
  - version: $version
    platforms:$platforms
END
