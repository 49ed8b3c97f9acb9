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
# A link, not a copy: it takes no time, and the go command writes its last ID into both.
ln "$folder/$id" "$out" 2>/dev/null && exit
"$@"
rm -rf "$folder"
mkdir -p "$folder"
ln "$out" "$folder/$id" 2>/dev/null || true # elsewhere on another disk, where it is linked again
