#!/usr/bin/env bash
# What lintian says of the .deb: errors fail. Usage: deb.sh PACKAGE_FOLDER; status 77: skipped, with the reason.
set -euo pipefail
command -v lintian >/dev/null || { echo "SKIPPED: lintian is not installed"; exit 77; }
compgen -G "$1/*.deb" >/dev/null || { echo "SKIPPED: no .deb in $1: run tools/dev/make_packages.sh"; exit 77; }
# No package of Debian's archive: none of its changelog's entries, and no bug of its own that it closes. People who are not there have no address.
lintian --allow-root --fail-on error --suppress-tags bad-distribution-in-changes-file,bogus-mail-host,initial-upload-closes-no-bugs,no-changelog \
  "$1"/*.deb
