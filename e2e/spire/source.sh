#!/bin/bash
# source.sh makes .cache/spire: SPIRE's module at the version that go.mod names,
# without the plugins that talk to clouds, key stores and other platforms. Their
# libraries are two thirds of what would be compiled. The rest is SPIRE's as it is.
set -euo pipefail
cd "$(dirname "$0")"
cache=$PWD/../../.cache
version=$(sed -n 's|^require github.com/spiffe/spire ||p' go.mod)
stamp="$version $(sha256sum <source.sh)"
[ "$(cat "$cache/spire/.stamp" 2>/dev/null)" != "$stamp" ] || exit 0

# Outside of this module, whose go.mod names the folder made here and whose go.sum
# therefore says nothing of SPIRE itself.
sum=h1:wDTK8tj8ShO5izjue/OFanVaehmjUxSxHtSWxBY+FJQ=
module=$(cd / && go mod download -json "github.com/spiffe/spire@$version")
grep -qF "\"Sum\": \"$sum\"" <<<"$module" || { echo "source.sh: SPIRE $version has another sum than $sum: $module" >&2; exit 1; }
from=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$module")
rm -rf "$cache/spire"
mkdir -p "$cache/spire/test"
cp -r "$from"/{go.mod,go.sum,LICENSE,cmd,pkg,proto} "$cache/spire"
cp -r "$from/test/clock" "$cache/spire/test"
cd "$cache/spire"
chmod -R u+w .
find . -name '*_test.go' -delete

# A plugin is an import and an entry in a list, one line each.
for plugin in awskms azurekeyvault gcpkms awsiid azuremsi gcpiit httpchallenge k8spsat sshpop tpmdevid \
	gcsbundle k8sbundle awss3 gcpcloudstorage awsrolesanywhere k8sconfigmap awssecret awspca gcpcas \
	certmanager ejbca vault awssecretsmanager gcpsecretmanager docker systemd; do
	sed -i -E "/(\/$plugin\"|\t$plugin\.BuiltIn\(\),)$/d" pkg/{server,agent}/catalog/*.go
done

# SPIRE takes its SQLite with cgo alone; this one needs none.
cd pkg/server/datastore/sqlstore
rm sqlite_no_cgo.go
sed -i -e '/^\/\/go:build cgo$/d' -e '/gorm\/dialects\/sqlite"$/d' \
	-e 's|"github.com/mattn/go-sqlite3"|"modernc.org/sqlite"|' \
	-e 's|var e sqlite3\.Error|var e *sqlite.Error|; s|e\.Code == sqlite3\.ErrConstraint|e.Code()\&0xff == 19|' \
	-e 's|gorm.Open("sqlite3", embellished)|gorm.Open("sqlite3", "sqlite", embellished)|' \
	-e 's|q.Set("_foreign_keys", "ON")|q.Add("_pragma", "foreign_keys(1)")|; s|q.Set("_journal_mode", "WAL")|q.Add("_pragma", "journal_mode(WAL)")|' sqlite.go
cd - >/dev/null
echo "$stamp" >.stamp
