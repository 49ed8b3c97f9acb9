#!/bin/bash
# count.sh REVISION counts the tests of a revision and those of the working tree, and fails
# where docs/contributing/tests.md does not name one that is gone. A folder may have moved: the
# last part of its path counts.
set -euo pipefail
cd "$(dirname "$0")/.."
# tests prints a line for each: its folder and its name.
tests() {
	git grep -oE '^func (Test|Fuzz)[A-Za-z0-9_]+\((t|f) ' "$@" -- '*_test.go' |
		sed -E 's#^([^:]*:)?(.*)/[^/]*_test\.go:func ([A-Za-z0-9_]+)\(.*#\2 \3#' | LC_ALL=C sort -u
}
stories() { grep -c '/testdata/.*\.txtar$'; }
before=$(tests "$1") after=$(tests)
printf '%s: %d tests and %d stories in txtar\nnow: %d tests and %d stories in txtar\n' "$1" \
	"$(wc -l <<<"$before")" "$(git ls-tree -r --name-only "$1" | stories)" "$(wc -l <<<"$after")" "$(git ls-files | stories)"
gone=0
while read -r folder name; do
	grep -qE "(^|/)${folder##*/} $name\$" <<<"$after" || grep -q "\`$name\`" docs/contributing/tests.md || { echo "gone: $name of $folder"; gone=1; }
done < <(LC_ALL=C comm -23 <(echo "$before") <(echo "$after"))
exit $gone
