#!/bin/bash
# link.sh TOOL ARGUMENTS... runs a tool for the go command. The programs of tests are kept in
# .cache/tests, one for each package, by the ID that names all that is linked: as go run keeps
# programs, so that make test, test-servers and test-peers link each of them once.
set -euo pipefail
export GOGC=400
out='' id=''
for ((i = 2; i < $#; i++)); do
	case ${!i} in
	-o) at=$((i + 1)) out=${!at} ;;
	-buildid=*/*) id=${!i#-buildid=} id=${id%%/*} ;;
	esac
done
[[ $1 == */link && ${TOOLEXEC_IMPORTPATH:-} == *.test && $out && $id ]] || exec "$@"
folder=$(dirname "$0")/../.cache/tests/${TOOLEXEC_IMPORTPATH//\//.}
# Copies: the go command writes an ID into its own, and what runs cannot be written.
cp "$folder/$id" "$out" 2>/dev/null && exit
"$@"
# Without room for the copy it is linked again the next time.
{ rm -rf "$folder" && mkdir -p "$folder" && cp "$out" "$folder/$$" && mv "$folder/$$" "$folder/$id"; } 2>/dev/null || true
