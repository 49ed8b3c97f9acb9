#!/bin/sh
# install.sh VERSION FOLDER puts the armature of a release, such as v0.1.0, into a
# folder, after it has compared the checksum and, where there is a cosign, verified who
# signed it. SERVER is https://github.com unless set.
set -eu
version=$1 folder=$2
case $version in
v[0-9]*) ;;
*) echo "install.sh: version \"$version\": name a release, such as v0.1.0" >&2; exit 2 ;;
esac
os=$(uname -s | tr '[:upper:]' '[:lower:]')
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) echo "install.sh: there is no release for $(uname -m)" >&2; exit 1 ;;
esac
release=${SERVER:-https://github.com}/armature-dev/armature/releases/download/$version
archive=armature_${version#v}_${os}_$arch.tar.gz
fetch() {
	if command -v curl >/dev/null; then
		curl --fail --silent --show-error --location --retry 3 --max-time 300 --output "$2" "$1"
	else
		wget -q -T 300 -O "$2" "$1"
	fi
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch "$release/checksums.txt" "$work/checksums.txt"
fetch "$release/$archive" "$work/$archive"
if command -v cosign >/dev/null; then
	fetch "$release/checksums.txt.sigstore.json" "$work/bundle" || { echo "install.sh: the release $version has no signature to verify" >&2; exit 1; }
	cosign verify-blob --new-bundle-format --bundle "$work/bundle" \
		--certificate-oidc-issuer https://token.actions.githubusercontent.com \
		--certificate-identity "https://github.com/armature-dev/armature/.github/workflows/release.yml@refs/tags/$version" \
		"$work/checksums.txt" >"$work/cosign" 2>&1 || {
		cat "$work/cosign" >&2
		echo "install.sh: checksums.txt is not what the release workflow signed for $version, or this cosign, which has to be 2.6 or later, cannot tell" >&2
		exit 1
	}
	echo "install.sh: cosign verified the signature of $version" >&2
else
	echo "install.sh: the signature of $version was not verified, its checksum alone is compared: cosign is not installed" >&2
fi
grep "^[0-9a-f]*  $archive\$" "$work/checksums.txt" >"$work/expected" || { echo "install.sh: checksums.txt does not name $archive" >&2; exit 1; }
(cd "$work" && sha256sum -c expected >/dev/null) || { echo "install.sh: $archive has another checksum than checksums.txt" >&2; exit 1; }
mkdir -p "$folder"
tar -xzf "$work/$archive" -C "$folder" armature
