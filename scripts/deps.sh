#!/bin/sh
# Installs the Debian packages given as arguments that are missing, and says so. Root or sudo is needed only then.
set -eu
missing=
for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
echo "deps: installing$missing"
if ! command -v apt-get >/dev/null; then
    echo "deps: no apt-get here; please install the equivalents of:$missing" >&2
    exit 3
fi
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
